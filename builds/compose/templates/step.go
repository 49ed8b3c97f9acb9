package templates

import (
	"context"
	"regexp"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// ReadStep reads the TaskSpec of a step ConfigMap strictly, and validates it with Tekton. With an
// error it returns a broken Step, so that the rest of a build can be checked as well.
func ReadStep(cm ConfigMap) (*Step, error) {
	body, ok := cm.Data[StepKey]
	doc, broken := cm.document(StepKey, body), &Step{Doc: cm.document(StepKey, ""), Broken: true}
	if !ok {
		return broken, findings.Join(cm.Place().Fault(api.ReasonInvalidStep,
			"has no key task-spec.yaml", "put the step's Tekton TaskSpec under task-spec.yaml"))
	}
	var file struct {
		APIVersion        string `json:"apiVersion,omitempty"`
		Kind              string `json:"kind,omitempty"`
		tektonv1.TaskSpec `json:",inline"`
	}
	r := &reader{Document: doc, reason: api.ReasonInvalidStep}
	if !r.decode(&file) {
		return broken, r.err()
	}
	if file.Kind != "" && file.Kind != "TaskSpec" {
		r.bad("kind", "store the content of spec: of the Task, with or without kind: TaskSpec",
			"is %q, not TaskSpec", file.Kind)
	}
	if file.APIVersion != "" && !strings.HasPrefix(file.APIVersion, "tekton.dev/") {
		r.bad("apiVersion", "use tekton.dev/v1, or leave apiVersion and kind out", "is %q",
			file.APIVersion)
	}
	if len(r.found) == 0 {
		r.checkTask(file.TaskSpec.DeepCopy())
	}
	if len(r.found) > 0 {
		return broken, r.err()
	}
	return &Step{Task: file.TaskSpec, Doc: doc,
		RefersToTasks: tekton.Contains(file.TaskSpec, "$(tasks.")}, nil
}

// ControllerImage stands for the controller's own image in the image of a step.
const ControllerImage = "$(controller.image)"

// OfController reports whether all containers of a step run the controller's image.
func (s *Step) OfController() bool {
	return !slices.ContainsFunc(s.Task.Steps,
		func(step tektonv1.Step) bool { return step.Image != ControllerImage })
}

// checkTask checks one step by itself with Tekton's validation, and finds undeclared variables that
// Tekton does not check. It changes the task.
func (r *reader) checkTask(task *tektonv1.TaskSpec) {
	task.SetDefaults(context.Background())
	for _, e := range task.Validate(context.Background()).WrappedErrors() {
		place := r.At(append(e.Paths, "")[0]).At(strings.Join(e.Paths, ", "))
		r.found = append(r.found, place.Fault(r.reason, Sentence(e),
			"Tekton refuses this; change the step there"))
	}
	result := func(name string) bool {
		reportedByTekton := func(f *finding.Finding) bool {
			return strings.Contains(f.Message, "results."+name)
		}
		return slices.ContainsFunc(r.found, reportedByTekton) || tekton.Reports(task, name)
	}
	declared := func(name string) bool { // name may be OBJECT.KEY
		return slices.ContainsFunc(task.Params, func(p tektonv1.ParamSpec) bool {
			return p.Name == name ||
				(p.Type == tektonv1.ParamTypeObject && strings.HasPrefix(name, p.Name+"."))
		})
	}
	for _, part := range []struct {
		path  string
		value any
	}{{"steps", task.Steps}, {"stepTemplate", task.StepTemplate}, {"sidecars", task.Sidecars},
		{"volumes", task.Volumes}, {"workspaces", task.Workspaces}} {
		text := tekton.JSON(part.value)
		for _, reference := range []struct {
			form          *regexp.Regexp
			known         func(name string) bool
			message, hint string
		}{
			{ParamReference(), declared,
				"refers to $(params.%s), which is not declared", "declare it under params:"},
			{workspaceReference(), func(name string) bool {
				return tekton.HasWorkspace(task, name)
			}, "refers to the workspace %q, which is not declared", "declare it under workspaces:"},
			{resultReference(), result, "writes the result %q, which is not declared",
				"declare it under results:"},
		} {
			reported := map[string]bool{}
			for _, m := range reference.form.FindAllStringSubmatch(text, -1) {
				if name := strings.Join(m[1:], ""); !reported[name] && !reference.known(name) {
					reported[name] = true
					r.bad(part.path, reference.hint, reference.message, name)
				}
			}
		}
	}
	tekton.EachImage(task, func(image *string, _ string) {
		if *image == ControllerImage {
			*image = ""
		}
	})
	if tekton.Contains(task, ControllerImage) {
		r.bad("steps", "write it as the whole image, or name an image",
			"refers to "+ControllerImage+" in a place that is not the image of a step")
	}
}

// Sentence returns the message of a Tekton error, with its details, in one line.
func Sentence(e *apis.FieldError) string {
	text := e.Message
	if e.Details != "" {
		text += " (" + strings.Join(strings.Fields(e.Details), " ") + ")"
	}
	return text
}

var (
	// ParamReference matches $(params.NAME) in JSON, with the name in one of two groups.
	ParamReference = text.Pattern(
		`\$\(params(?:\.([_a-zA-Z][_a-zA-Z0-9.-]*)|\[(?:\\"|')([^"'\\]+)(?:\\"|')\])`)
	workspaceReference = text.Pattern(
		`\$\(workspaces\.([_a-zA-Z0-9-]+)\.(?:path|bound|claim|volume)\)`)
	resultReference = text.Pattern(`\$\(results\.([_a-zA-Z0-9.-]+)\.path\)`)
)
