package compose

import (
	"fmt"
	"slices"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// A build may list its whole pipeline itself, and leave out steps of the
// template (000, "Extension Points"; published builds do). A step of the same
// name still has the template's defaults and when-expressions, and those may
// refer to a result of a step that is left out. Nobody can give that result, so
// what refers to it is dropped with a warning: the step's own default holds, the
// step runs unconditionally, and its source is the shared one.

var taskReference = text.Pattern(`\$\(tasks\.([a-z0-9-]+)\.`)

// withoutLeftOut are the rows and their template without what refers to one of its
// steps that the build's own list leaves out.
func withoutLeftOut(in Input, rows []step) (_ []step, _ *recipe.Template, warnings []string) {
	if !recipe.ListsAll(in.Build) {
		return rows, in.Template, nil // a step that is only disabled leaves an error behind
	}
	out := map[string]bool{}
	for _, s := range in.Template.Steps {
		out[s.Name] = true
	}
	for _, s := range rows {
		delete(out, s.row.Name)
	}
	// dropped names the step that a value refers to, where it is left out.
	dropped := func(value any, place finding.Place) bool {
		for _, m := range taskReference().FindAllStringSubmatch(tekton.JSON(value), -1) {
			if out[m[1]] {
				warnings = append(warnings,
					fmt.Sprintf("%s: %s: refers to step %q, which spec.pipeline.steps leaves "+
						"out, so it is dropped", place, place.Field, m[1]))
				return true
			}
		}
		return false
	}
	rows = slices.Clone(rows)
	for i := range rows {
		s := &rows[i]
		if s.ownRow {
			continue
		}
		s.row.DefaultParameters = slices.DeleteFunc(slices.Clone(s.row.DefaultParameters),
			func(p recipe.Parameter) bool {
				return dropped(p.Value,
					s.place.At(fmt.Sprintf("%s.defaultParameters[%s]", s.place.Field, p.Name)))
			})
		if s.row.SourceFrom != "" &&
			dropped("$(tasks."+s.row.SourceFrom+".", s.place.At(s.place.Field+".sourceFrom")) {
			s.row.SourceFrom = ""
		}
		if s.user == nil || s.user.WhenExpressions == nil {
			at := -1
			s.row.WhenExpressions = slices.DeleteFunc(slices.Clone(s.row.WhenExpressions),
				func(w api.WhenExpression) bool {
					at++
					return dropped(w,
						s.place.At(fmt.Sprintf("%s.whenExpressions[%d]", s.place.Field, at)))
				})
		}
	}
	template := *in.Template
	template.GlobalParameters = slices.DeleteFunc(slices.Clone(template.GlobalParameters),
		func(p recipe.Parameter) bool {
			return dropped(p.Value,
				template.Doc.At("globalParameters").At(fmt.Sprintf("globalParameters[%s]", p.Name)))
		})
	return rows, &template, warnings
}
