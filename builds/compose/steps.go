package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/finding"
)

// step is one enabled step and the pipeline task that is made of it.
type step struct {
	row templates.Row
	// place of the row in the template or the build.
	place finding.Place
	// user has the build's settings for the step, at field; it is nil if there are none.
	user  *api.Step
	field string
	// ownRow is set if the build, not the template, has the row.
	ownRow bool
	file   *templates.Step
	task   tektonv1.PipelineTask
	// platform is the platform of the task's image; empty if the task has none.
	platform string
	// known has the values of the task's parameters that are known before the run.
	known map[string]tektonv1.ParamValue
}

// at returns the place of a field of the step's row.
func (s step) at(field string) finding.Place { return s.place.At(s.place.Field + field) }

// declares reports whether the step has a parameter, under any of its names.
func (s step) declares(parameter string) bool {
	return templates.Declares(s.file.Task.Params, parameter)
}

// named returns the step of a name, or nil.
func (c *composer) named(name string) *step {
	for i := len(c.steps) - 1; i >= 0; i-- {
		if c.steps[i].row.Name == name {
			return &c.steps[i]
		}
	}
	return nil
}

// useOne returns a hint with the sorted names of the steps.
func (c *composer) useOne() string {
	var names []string
	for _, s := range c.steps {
		names = append(names, s.row.Name)
	}
	slices.Sort(names)
	return "use one of " + strings.Join(slices.Compact(names), ", ")
}

// listRows sets the enabled steps from the rows of the template and the build.
func listRows(c *composer) {
	template, complete := c.Template, templates.ListsAll(c.Build)
	var rows []step
	ofTemplate := func(row templates.Row) step {
		return step{row: row, place: template.Doc.At(fmt.Sprintf("steps[%d]", row.Index))}
	}
	if !complete {
		for _, row := range template.Steps {
			rows = append(rows, ofTemplate(row))
		}
	}
	asked := pipelineOf(c.Build).Steps
	for i := range asked {
		user, field := &asked[i], fmt.Sprintf("spec.pipeline.steps[%d]", i)
		at := slices.IndexFunc(template.Steps,
			func(row templates.Row) bool { return row.Name == user.Name })
		switch {
		case complete && at < 0:
			rows = append(rows, step{row: templates.Row{Name: user.Name}, place: c.Place.At(field),
				ownRow: true, user: user, field: field})
		case complete:
			row := ofTemplate(template.Steps[at])
			row.user, row.field = user, field
			rows = append(rows, row)
		case at < 0:
			c.bad(api.ReasonStepNotFound, field+".name", "use one of "+
				strings.Join(template.StepNames(), ", ")+", or name the step's configMap",
				"the template %s has no step %q", template.Doc.From, user.Name)
		}
		for n := range rows { // several builders may have a step of this name
			if !complete && rows[n].row.Name == user.Name {
				rows[n].user, rows[n].field = user, field
			}
		}
	}
	for _, s := range rows {
		if row, ok := adjusted(s.row, s.user, complete); ok {
			s.row = row
			c.steps = append(c.steps, s)
		}
	}
}

// adjusted returns a row with the build's settings, and whether its step is enabled.
func adjusted(row templates.Row, user *api.Step, complete bool) (_ templates.Row, enabled bool) {
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

// readFiles sets the files of the steps, and drops the steps without a file.
func readFiles(c *composer) {
	bytes, values := 0, 0
	rows := c.steps
	c.steps = nil
	for _, s := range rows {
		if s.row.ConfigMap == "" && c.Template.Broken {
			c.broken = true
			continue
		}
		if s.row.ConfigMap == "" {
			c.fault("", s.place, api.ReasonStepNotFound,
				"name the ConfigMap that holds the step's task-spec.yaml",
				"step %q names no configMap, and the template has no step of that name", s.row.Name)
			continue
		}
		s.file = c.Steps[s.row.ConfigMap]
		if s.file == nil {
			c.fault("", s.at(".configMap"), api.ReasonStepNotFound,
				"create it in the build's or the controller's namespace, correct the name, or "+
					"disable the step"+templates.ShareHint(c.Build),
				"step ConfigMap %q with the key %s does not exist", s.row.ConfigMap, templates.StepKey)
			continue
		}
		if s.file.Broken {
			c.broken = true
			continue
		}
		bytes, values = bytes+len(s.file.Doc.Body), values+s.file.Doc.Values
		if bytes > templates.MaxSteps || values > templates.MaxStepValues {
			c.fault("", s.place, api.ReasonInvalidPipeline, "use fewer or smaller steps",
				"the steps up to this one have more than %d KiB, or %d values, which no run can "+
					"hold", templates.MaxSteps>>10, templates.MaxStepValues)
			c.steps, c.broken = nil, true
			return
		}
		c.steps = append(c.steps, s)
	}
}

var operators = map[string]selection.Operator{"in": selection.In, "notin": selection.NotIn}

// makeTask makes the pipeline task of a step.
func makeTask(c *composer, s *step) {
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
	setParameters(c, s)
	mountSecrets(c, &s.task.TaskSpec.TaskSpec)
	mapImages(c, s.file.Doc, &s.task)
}

// order sets the steps that each step waits for: the step before it, or those of its row.
func order(c *composer) {
	rows := c.Template.Steps
	// enabled returns the enabled steps to wait for instead of a step that is left out: those that
	// it would wait for. pending is true for a step while its own steps are determined, and false
	// afterwards. It returns a missing step, or one that waits for itself, unchanged.
	var enabled func(name string, pending map[string]bool) []string
	enabled = func(name string, pending map[string]bool) (out []string) {
		at := slices.IndexFunc(rows, func(row templates.Row) bool { return row.Name == name })
		waits, done := pending[name]
		if c.named(name) != nil || waits || at < 0 {
			return []string{name}
		} else if done {
			return nil
		}
		pending[name] = true
		var after []string
		switch {
		case rows[at].RunAfter != nil:
			after = *rows[at].RunAfter
		case at > 0:
			after = []string{rows[at-1].Name}
		}
		for _, a := range after {
			out = append(out, enabled(a, pending)...)
		}
		pending[name] = false
		return out
	}
	last := ""
	for i := range c.steps {
		s := &c.steps[i]
		if s.row.Finally {
			continue
		}
		switch {
		case s.row.RunAfter != nil:
			for _, name := range *s.row.RunAfter {
				for _, other := range enabled(name, map[string]bool{}) {
					if !slices.Contains(s.task.RunAfter, other) {
						s.task.RunAfter = append(s.task.RunAfter, other)
					}
				}
			}
		case last != "":
			s.task.RunAfter = []string{last}
		}
		last = s.row.Name
	}
}
