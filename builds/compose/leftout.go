package compose

import (
	"fmt"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
)

// A build may list its whole pipeline itself, and leave out steps of the
// template (000, "Extension Points"; published builds do). A step of the same
// name still has the template's defaults and when-expressions, and those may
// refer to a result of a step that is left out. Nobody can give that result, so
// what refers to it is dropped with a warning: the step's own default holds, the
// step runs unconditionally, and its source is the shared one.

var taskReference = krm.Pattern(`\$\(tasks\.([a-z0-9-]+)\.`)

// dropReferences drops what the template says of rows and refers to one of its
// steps that the build's own list leaves out.
func (c *composition) dropReferences(rows []*plannedStep) {
	if !listsAll(c.in.Build) {
		return // a step that is only disabled leaves an error behind
	}
	out := map[string]bool{}
	for _, s := range c.in.Template.Steps {
		out[s.Name] = true
	}
	for _, s := range rows {
		delete(out, s.row.Name)
	}
	// dropped names the step that a value refers to, where it is left out.
	dropped := func(value any, place krm.Place) bool {
		for _, m := range taskReference().FindAllStringSubmatch(mustJSON(value), -1) {
			if out[m[1]] {
				c.warnings = append(c.warnings, fmt.Sprintf("%s: %s: refers to step %q, which spec.pipeline.steps leaves out, so it is dropped", place, place.Field, m[1]))
				return true
			}
		}
		return false
	}
	for _, s := range rows {
		if s.rowIndex < 0 {
			continue
		}
		place := c.rowPlace(s)
		s.row.DefaultParameters = without(s.row.DefaultParameters, func(p TemplateParameter) bool {
			return dropped(p.Value, place.At(fmt.Sprintf("%s.defaultParameters[%s]", place.Field, p.Name)))
		})
		if s.row.SourceFrom != "" && dropped("$(tasks."+s.row.SourceFrom+".", place.At(place.Field+".sourceFrom")) {
			s.row.SourceFrom = ""
		}
		if s.user == nil || s.user.WhenExpressions == nil {
			at := -1
			s.row.WhenExpressions = without(s.row.WhenExpressions, func(w api.WhenExpression) bool {
				at++
				return dropped(w, place.At(fmt.Sprintf("%s.whenExpressions[%d]", place.Field, at)))
			})
		}
	}
	template := *c.in.Template
	template.GlobalParameters = without(template.GlobalParameters, func(p TemplateParameter) bool {
		return dropped(p.Value, template.doc.place("globalParameters").At(fmt.Sprintf("globalParameters[%s]", p.Name)))
	})
	c.in.Template = &template
}

// without is a list without what is dropped; the list itself stays.
func without[T any](list []T, drop func(T) bool) []T {
	var out []T
	for _, item := range list {
		if !drop(item) {
			out = append(out, item)
		}
	}
	return out
}
