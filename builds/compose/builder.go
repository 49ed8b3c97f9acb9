package compose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
)

// A template may offer several builders: rows with builders: run for these alone,
// and other rows refer to what the last row of the chosen one reports by
// $(builder.results.NAME), and wait for it by $(builder) in runAfter.

// Builders that the template offers, in the order of its steps.
func (t *Template) Builders() []string {
	var out []string
	for _, row := range t.Steps {
		for _, b := range row.Builders {
			if !slices.Contains(out, b) {
				out = append(out, b)
			}
		}
	}
	return out
}

// builderOf a build: its own, that of a step which it names, or the template's.
func builderOf(build *api.AgentBuild, t *Template) string {
	if build.Spec.Builder != "" {
		return build.Spec.Builder
	}
	if build.Spec.Pipeline != nil {
		for _, s := range build.Spec.Pipeline.Steps {
			if s.Enabled != nil && !*s.Enabled {
				continue
			}
			var of []string
			for _, row := range t.Steps {
				if row.Name == s.Name {
					of = append(of, row.Builders...)
				}
			}
			if len(of) > 0 && !slices.Contains(of, t.Builder) {
				return of[0]
			}
		}
	}
	return t.Builder
}

// forBuild is the template with the rows of the build's builder alone.
func (t *Template) forBuild(build *api.AgentBuild) *Template {
	builder := builderOf(build, t)
	if builder == "" {
		return t
	}
	chosen, last := *t, ""
	chosen.Steps = nil
	for _, row := range t.Steps {
		if len(row.Builders) > 0 && !slices.Contains(row.Builders, builder) {
			continue
		}
		if len(row.Builders) > 0 {
			last = row.Name
		}
		chosen.Steps = append(chosen.Steps, row)
	}
	if last == "" {
		return &chosen
	}
	for i, row := range chosen.Steps {
		chosen.Steps[i] = row.referring(last)
	}
	return &chosen
}

// referring is the row with a task's name for $(builder).
func (row TemplateStep) referring(task string) TemplateStep {
	if !row.refers {
		return row
	}
	text := strings.NewReplacer("$(builder)", task, "$(builder.", "$(tasks."+task+".").Replace(mustJSON(row))
	out := TemplateStep{index: row.index}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		panic(fmt.Sprintf("compose: reading a row of our own: %v", err)) // a task's name is a DNS label
	}
	return out
}

// checkBuilder refuses a builder that the template does not offer, and one beside
// steps that are the whole pipeline.
func (c *composition) checkBuilder(t *Template) {
	builder := c.in.Build.Spec.Builder
	if builder == "" || t.broken {
		return
	}
	offered := t.Builders()
	switch {
	case listsAll(c.in.Build):
		c.bad(api.ReasonInvalidBuild, "spec.builder", "spec.pipeline.steps lists the whole pipeline, so that there is nothing to choose",
			"remove spec.builder, or list no configMap")
	case len(offered) == 0:
		c.bad(api.ReasonInvalidBuild, "spec.builder", fmt.Sprintf("the template %s offers no choice of builders", t.doc.from),
			"remove it, or use another mode")
	case !slices.Contains(offered, builder):
		c.bad(api.ReasonInvalidBuild, "spec.builder", fmt.Sprintf("the template %s has no builder %q", t.doc.from, builder),
			"use one of "+strings.Join(offered, ", "))
	}
}

// checkBuilders of a template: the default is offered, and a builder has one
// step of a name.
func (t *Template) checkBuilders(problems *findings) {
	bad := func(field, message, hint string) {
		problems.add(t.doc.place(field).Fault(api.ReasonInvalidTemplate, message, hint))
	}
	offered := t.Builders()
	switch {
	case t.Builder == "" && len(offered) > 0:
		bad("steps", "has steps with builders, and no builder", "name the builder of builds that choose none under builder:")
	case t.Builder != "" && !slices.Contains(offered, t.Builder):
		bad("builder", fmt.Sprintf("is %q, which no step has in its builders", t.Builder), "use one of "+strings.Join(offered, ", "))
	}
	for i, row := range t.Steps {
		if row.refers && t.Builder == "" {
			bad(fmt.Sprintf("steps[%d]", i), "refers to $(builder), and the template has no builder", "name one under builder:, and give its steps builders")
		}
		for _, before := range t.Steps[:i] {
			if row.Name == "" || row.Name != before.Name {
				continue
			}
			share := func(b string) bool { return slices.Contains(before.Builders, b) }
			if len(row.Builders) == 0 || len(before.Builders) == 0 || slices.ContainsFunc(row.Builders, share) {
				bad(fmt.Sprintf("steps[%d]", i), fmt.Sprintf("name %q occurs twice", row.Name), "give each step a name of its own")
				break
			}
		}
	}
}
