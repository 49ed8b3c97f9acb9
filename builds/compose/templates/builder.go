package templates

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
)

// A template may offer several builders: rows with builders: run for these builders only. Other
// rows refer to results of the chosen builder's last row by $(builder.results.NAME), and wait for
// it by $(builder) in runAfter.

// Unisolated builders run the Dockerfile in the container that reports the digest.
var Unisolated = []string{"kaniko", "buildah"}

// Builders returns the builders that the template offers, in the order of its steps. An isolating
// template offers none of Unisolated.
func (t *Template) Builders() []string {
	var out []string
	for _, row := range t.Steps {
		for _, b := range row.Builders {
			if !slices.Contains(out, b) && !(t.Isolates() && slices.Contains(Unisolated, b)) {
				out = append(out, b)
			}
		}
	}
	return out
}

// usualBuilder is the builder if neither the build nor its template names one.
const usualBuilder = "buildkit"

// usual returns the builder of builds that choose none, or "" if the template offers none.
func (t *Template) usual() string {
	if t.Builder == "" && slices.Contains(t.Builders(), usualBuilder) {
		return usualBuilder
	}
	return t.Builder
}

// ListsAll reports whether the build's steps are the whole pipeline.
func ListsAll(b *api.AgentBuild) bool {
	return b.Spec.Pipeline != nil && slices.ContainsFunc(b.Spec.Pipeline.Steps,
		func(s api.Step) bool { return s.ConfigMap != "" })
}

// BuilderOf returns the builder of a build, and the reason if the build does not name it and it is
// not the template's. The first of these decides: the build's spec.builder; a step that the build
// adjusts; a step that it disables; a parameter that the build sets and only steps of one builder
// declare; the template. Missing steps declare no parameters.
func (t *Template) BuilderOf(build *api.AgentBuild,
	steps map[string]*Step) (builder, because string) {
	switch {
	case t.chosen != "":
		return t.chosen, ""
	case build.Spec.Builder != "":
		return build.Spec.Builder, ""
	case build.Spec.Pipeline == nil:
		return t.usual(), ""
	}
	for _, off := range []bool{false, true} {
		for i, s := range build.Spec.Pipeline.Steps {
			if off != (s.Enabled != nil && !*s.Enabled) {
				continue
			}
			if of := t.buildersOf(s.Name); len(of) > 0 && !slices.Contains(of, t.usual()) {
				return of[0], fmt.Sprintf("spec.pipeline.steps[%d]: %s is a step of it", i, s.Name)
			}
		}
	}
	if ListsAll(build) {
		return t.usual(), ""
	}
	for i, p := range build.Spec.Pipeline.Parameters {
		if only := t.onlyBuilderWith(p.Name, steps); only != "" && only != t.usual() {
			return only, fmt.Sprintf(
				"spec.pipeline.parameters[%d]: %s is a parameter of its step alone", i, p.Name)
		}
	}
	return t.usual(), ""
}

// buildersOf returns the builders of a step, or none if it runs for all builders.
func (t *Template) buildersOf(step string) []string {
	var of []string
	for _, row := range t.Steps {
		if row.Name == step {
			of = append(of, row.Builders...)
		}
	}
	return of
}

// onlyBuilderWith returns the builder whose steps alone declare a parameter, or "".
func (t *Template) onlyBuilderWith(parameter string, steps map[string]*Step) string {
	only := ""
	for _, row := range t.Steps {
		step := steps[row.ConfigMap]
		if step == nil || !Declares(step.Task.Params, parameter) {
			continue
		}
		if len(row.Builders) != 1 || only != "" && only != row.Builders[0] {
			return ""
		}
		only = row.Builders[0]
	}
	return only
}

// ForBuild returns the template with only the rows of the build's builder.
func (t *Template) ForBuild(build *api.AgentBuild, steps map[string]*Step) *Template {
	builder, _ := t.BuilderOf(build, steps)
	if builder == "" || t.chosen != "" {
		return t
	}
	chosen, last := *t, ""
	chosen.Steps, chosen.chosen = nil, builder
	for _, row := range t.Steps {
		if len(row.Builders) > 0 && !slices.Contains(row.Builders, builder) {
			continue
		}
		if len(row.Builders) > 0 {
			last = row.Name
		}
		chosen.Steps = append(chosen.Steps, row)
	}
	resolve := strings.NewReplacer("$(builder)", last, "$(builder.", "$(tasks."+last+".").Replace
	for i, row := range chosen.Steps {
		if last != "" && row.refers {
			chosen.Steps[i] = tekton.Edit(row, resolve)
		}
	}
	return &chosen
}

// checkBuilders refuses a default builder that no step has, references to a missing builder, and
// two steps of one name for one builder.
func (r *reader) checkBuilders(t *Template) {
	offered := t.Builders()
	switch {
	case t.usual() == "" && len(offered) > 0:
		r.bad("steps", "name the builder of builds that choose none under builder:",
			"has steps with builders, and no builder")
	case t.Builder != "" && !slices.Contains(offered, t.Builder):
		r.bad("builder", "use one of "+strings.Join(offered, ", "),
			"is %q, which no step has in its builders", t.Builder)
	}
	for i, row := range t.Steps {
		at := fmt.Sprintf("steps[%d]", i)
		if row.refers && t.usual() == "" {
			r.bad(at, "name one under builder:, and give its steps builders",
				"refers to $(builder), and the template has no builder")
		}
		for _, before := range t.Steps[:i] {
			share := func(b string) bool { return slices.Contains(before.Builders, b) }
			if row.Name != "" && row.Name == before.Name && (len(row.Builders) == 0 ||
				len(before.Builders) == 0 || slices.ContainsFunc(row.Builders, share)) {
				r.bad(at, "give each step a unique name", "name %q occurs twice", row.Name)
				break
			}
		}
	}
}
