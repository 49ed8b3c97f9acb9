package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/functions/finding"
)

// step is one enabled step on its way to a pipeline task.
type step struct {
	row recipe.Row
	// place of the template or the build that asks for it.
	place finding.Place
	// user is what the build sets for it, at field; nil for nothing.
	user  *api.Step
	field string
	// ownRow says that the template has no such row.
	ownRow bool
	file   *recipe.Step
	task   tektonv1.PipelineTask
	// platform that the task makes the image of, empty for none in particular
	platform string
	// known values of the task's parameters, for checks before the run
	known map[string]tektonv1.ParamValue
}

// named is the step of that name; nil for none.
func named(steps []step, name string) *step {
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].row.Name == name {
			return &steps[i]
		}
	}
	return nil
}

// stepNames are sorted.
func stepNames(steps []step) []string {
	var names []string
	for _, s := range steps {
		names = append(names, s.row.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// rowsOf a build are the template's steps with the build's, without the disabled ones.
func rowsOf(in Input) (rows []step, found faults) {
	template, complete := in.Template, recipe.ListsAll(in.Build)
	ofTemplate := func(row recipe.Row) step {
		return step{row: row, place: template.Doc.At(fmt.Sprintf("steps[%d]", row.Index))}
	}
	if !complete {
		for _, row := range template.Steps {
			rows = append(rows, ofTemplate(row))
		}
	}
	if p := in.Build.Spec.Pipeline; p != nil {
		for i := range p.Steps {
			user, field := &p.Steps[i], fmt.Sprintf("spec.pipeline.steps[%d]", i)
			at := slices.IndexFunc(template.Steps,
				func(row recipe.Row) bool { return row.Name == user.Name })
			switch {
			case complete && at < 0:
				rows = append(rows, step{row: recipe.Row{Name: user.Name},
					place: in.Place.At(field), ownRow: true, user: user, field: field})
			case complete:
				row := ofTemplate(template.Steps[at])
				row.user, row.field = user, field
				rows = append(rows, row)
			case at < 0:
				found.bad(in, api.ReasonStepNotFound, field+".name",
					fmt.Sprintf("the template %s has no step %q", template.Doc.From, user.Name),
					"use one of "+strings.Join(template.StepNames(), ", ")+
						", or name the step's configMap")
			}
			for n := range rows { // each builder may have a step of the name
				if !complete && rows[n].row.Name == user.Name {
					rows[n].user, rows[n].field = user, field
				}
			}
		}
	}
	var enabled []step
	for _, s := range rows {
		if row, ok := adjusted(s.row, s.user, complete); ok {
			s.row = row
			enabled = append(enabled, s)
		}
	}
	return enabled, found
}

// adjusted is a row with what the build sets for its step, and whether that is enabled.
func adjusted(row recipe.Row, user *api.Step, complete bool) (_ recipe.Row, enabled bool) {
	enabled = row.Enabled == nil || *row.Enabled
	if user == nil {
		return row, enabled
	}
	row.ConfigMap = cmp.Or(user.ConfigMap, row.ConfigMap)
	if user.RequiredParameters != nil {
		row.RequiredParameters = user.RequiredParameters
	}
	if user.WhenExpressions != nil {
		row.WhenExpressions = user.WhenExpressions
	}
	if user.Enabled != nil {
		return row, *user.Enabled
	}
	return row, enabled || complete
}

// withFiles are the steps with their files. It is broken where a step could not be read, which
// its reader reported.
func withFiles(in Input, rows []step) (steps []step, broken bool, found faults) {
	bytes, values := 0, 0
	for _, s := range rows {
		if s.row.ConfigMap == "" && in.Template.Broken {
			broken = true
			continue
		}
		if s.row.ConfigMap == "" {
			found.add(s.place.Fault(api.ReasonStepNotFound,
				fmt.Sprintf("step %q names no configMap, and the template has no step of that name",
					s.row.Name),
				"name the ConfigMap that holds the step's task-spec.yaml"))
			continue
		}
		s.file = in.Steps[s.row.ConfigMap]
		if s.file == nil {
			found.add(s.place.At(s.place.Field+".configMap").Fault(api.ReasonStepNotFound,
				fmt.Sprintf("step ConfigMap %q with the key %s does not exist", s.row.ConfigMap,
					recipe.StepKey),
				"create it in the build's or the controller's namespace, correct the name, or "+
					"disable the step"+recipe.ShareHint(in.Build)))
			continue
		}
		if s.file.Broken {
			broken = true
			continue
		}
		bytes, values = bytes+len(s.file.Doc.Body), values+s.file.Doc.Values
		if bytes > recipe.MaxSteps || values > recipe.MaxStepValues {
			found.add(s.place.Fault(api.ReasonInvalidPipeline,
				fmt.Sprintf("the steps up to this one have more than %d KiB, or %d values, which "+
					"no run can hold", recipe.MaxSteps>>10, recipe.MaxStepValues),
				"use fewer or smaller steps"))
			return nil, true, found
		}
		steps = append(steps, s)
	}
	return steps, broken, found
}

var operators = map[string]selection.Operator{"in": selection.In, "notin": selection.NotIn}

// withTask is a step with its pipeline task.
func withTask(in Input, spec derived, s step) (_ step, found faults, warnings []string) {
	task := *s.file.Task.DeepCopy()
	for i := range task.Params {
		task.Params[i].SetDefaults(background())
	}
	s.task = tektonv1.PipelineTask{
		Name:     s.row.Name,
		TaskSpec: &tektonv1.EmbeddedTask{TaskSpec: task},
		Retries:  s.row.Retries,
		OnError:  s.row.OnError,
		Timeout:  s.row.Timeout,
	}
	for _, w := range s.row.WhenExpressions {
		s.task.When = append(s.task.When, tektonv1.WhenExpression{Input: w.Input,
			Operator: operators[w.Operator], Values: w.Values})
	}
	s.task.Params, s.known, found, warnings = parameters(in, spec, s)
	mountSecrets(in, &s.task.TaskSpec.TaskSpec)
	return s, append(found, mapImages(in.Settings, s.file.Doc, &s.task)...), warnings
}

// inOrder are the steps with what each waits for: the step before it, or what its row says.
func inOrder(steps []step, rows []recipe.Row) []step {
	steps = slices.Clone(steps)
	// instead of a step that is left out are those that it would wait for
	var instead func(name string, seen map[string]bool) []string
	instead = func(name string, seen map[string]bool) (out []string) {
		at := slices.IndexFunc(rows, func(row recipe.Row) bool { return row.Name == name })
		if named(steps, name) != nil || seen[name] || at < 0 {
			return []string{name}
		}
		seen[name] = true
		var after []string
		switch {
		case rows[at].RunAfter != nil:
			after = *rows[at].RunAfter
		case at > 0:
			after = []string{rows[at-1].Name}
		}
		for _, a := range after {
			out = append(out, instead(a, seen)...)
		}
		return out
	}
	last := ""
	for i := range steps {
		s := &steps[i]
		if s.row.Finally {
			continue
		}
		switch {
		case s.row.RunAfter != nil:
			for _, name := range *s.row.RunAfter {
				for _, real := range instead(name, map[string]bool{}) {
					if !slices.Contains(s.task.RunAfter, real) {
						s.task.RunAfter = append(s.task.RunAfter, real)
					}
				}
			}
		case last != "":
			s.task.RunAfter = []string{last}
		}
		last = s.row.Name
	}
	return steps
}
