package compose

import (
	"fmt"
	"slices"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// A build may list its whole pipeline itself and leave out steps of the template (000, "Extension
// Points"; published builds do). A step of the same name still has the template's defaults and
// when-expressions, which may refer to a result of a step that is left out. This result never
// exists, so these references are dropped with a warning: the step's own default applies, the step
// runs unconditionally, and its source is the shared one.

var taskReference = text.Pattern(`\$\(tasks\.([a-z0-9-]+)\.`)

// dropLeftOut removes references to steps that the build's own list leaves out, from the rows and
// from their template.
func dropLeftOut(c *composer) {
	if !templates.ListsAll(c.Build) {
		return // a reference to a step that is only disabled is an error
	}
	out := map[string]bool{}
	for _, s := range c.Template.Steps {
		out[s.Name] = c.named(s.Name) == nil
	}
	// dropped reports whether a value refers to a step that is left out, and warns about it.
	dropped := func(value any, place finding.Place) bool {
		for _, m := range taskReference().FindAllStringSubmatch(tekton.JSON(value), -1) {
			if out[m[1]] {
				c.warn("%s: %s: refers to step %q, which spec.pipeline.steps leaves out, so it is "+
					"dropped", place, place.Field, m[1])
				return true
			}
		}
		return false
	}
	without := func(params []templates.Parameter, list finding.Place) []templates.Parameter {
		return slices.DeleteFunc(slices.Clone(params), func(p templates.Parameter) bool {
			return dropped(p.Value, list.At(list.Field+"["+p.Name+"]"))
		})
	}
	for i := range c.steps {
		s := &c.steps[i]
		if s.ownRow {
			continue
		}
		s.row.DefaultParameters = without(s.row.DefaultParameters, s.at(".defaultParameters"))
		if s.row.SourceFrom != "" && dropped("$(tasks."+s.row.SourceFrom+".", s.at(".sourceFrom")) {
			s.row.SourceFrom = ""
		}
		if s.user == nil || s.user.WhenExpressions == nil {
			at := -1
			s.row.WhenExpressions = slices.DeleteFunc(slices.Clone(s.row.WhenExpressions),
				func(w api.WhenExpression) bool {
					at++
					return dropped(w, s.at(fmt.Sprintf(".whenExpressions[%d]", at)))
				})
		}
	}
	template := *c.Template
	template.GlobalParameters = without(template.GlobalParameters,
		template.Doc.At("globalParameters"))
	c.Template = &template
}
