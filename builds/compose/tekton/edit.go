// Package tekton edits the tasks of Tekton pipelines as typed objects. It takes and returns values,
// and knows neither builds nor templates.
package tekton

import (
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/functions/text"
)

// Tasks iterates over pointers to the tasks of a pipeline, including the finally tasks.
func Tasks(p *tektonv1.PipelineSpec) iter.Seq[*tektonv1.PipelineTask] {
	return func(yield func(*tektonv1.PipelineTask) bool) {
		for _, list := range [][]tektonv1.PipelineTask{p.Tasks, p.Finally} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// Edit returns a copy of v with all texts edited except the keys of maps.
func Edit[T any](v T, edit func(text string) string) T {
	return edited(reflect.ValueOf(&v).Elem(), edit).Interface().(T)
}

func edited(v reflect.Value, edit func(string) string) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch kind := v.Kind(); {
	case kind == reflect.String:
		out.SetString(edit(v.String()))
	case kind == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(edited(v.Field(i), edit))
			}
		}
	case kind != reflect.Pointer && kind != reflect.Slice && kind != reflect.Map || v.IsNil():
	case kind == reflect.Pointer:
		out.Set(reflect.New(v.Type().Elem()))
		out.Elem().Set(edited(v.Elem(), edit))
	case kind == reflect.Slice:
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(edited(v.Index(i), edit))
		}
	case kind == reflect.Map:
		out.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
		for _, key := range v.MapKeys() {
			out.SetMapIndex(key, edited(v.MapIndex(key), edit))
		}
	}
	return out
}

// Contains reports whether the JSON of v contains a part.
func Contains(v any, part string) bool { return strings.Contains(JSON(v), part) }

// JSON returns a value as JSON. It panics if the value cannot be marshalled.
func JSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("tekton: marshalling %T: %v", v, err))
	}
	return string(data)
}

var taskVariable = text.Pattern(`\$\(tasks\.([a-z0-9-]+)\.([^()]+)\)`)

// Retarget returns a task whose references to tasks, and RunAfter, name the tasks that those
// became. References to several tasks are separated by commas. The result shares its spec with
// task.
func Retarget(task tektonv1.PipelineTask, became map[string][]string) tektonv1.PipelineTask {
	var after []string
	for _, name := range task.RunAfter {
		replacements := became[name]
		if replacements == nil {
			replacements = []string{name}
		}
		for _, r := range replacements {
			if !slices.Contains(after, r) {
				after = append(after, r)
			}
		}
	}
	task.RunAfter, task.Params, task.When =
		after, RetargetTexts(task.Params, became), RetargetTexts(task.When, became)
	return task
}

// RetargetTexts replaces the references to tasks in all texts of a value, like Retarget. Only
// references to results can become references to several tasks.
func RetargetTexts[T any](v T, became map[string][]string) T {
	return Edit(v, func(text string) string {
		return taskVariable().ReplaceAllStringFunc(text, func(reference string) string {
			m := taskVariable().FindStringSubmatch(reference)
			names := became[m[1]]
			if names == nil || len(names) > 1 && !strings.HasPrefix(m[2], "results") {
				return reference
			}
			out := make([]string, len(names))
			for i, name := range names {
				out[i] = "$(tasks." + name + "." + m[2] + ")"
			}
			return strings.Join(out, ",")
		})
	})
}

// EachImage calls do for the images of a task, with the field of each.
func EachImage(task *tektonv1.TaskSpec, do func(image *string, field string)) {
	for i := range task.Steps {
		do(&task.Steps[i].Image, fmt.Sprintf("steps[%d].image", i))
	}
	for i := range task.Sidecars {
		do(&task.Sidecars[i].Image, fmt.Sprintf("sidecars[%d].image", i))
	}
	if task.StepTemplate != nil {
		do(&task.StepTemplate.Image, "stepTemplate.image")
	}
}

// MakesContainers reports whether a sidecar of the task creates containers in its own user
// namespace, as rootless BuildKit does; the capabilities SETUID and SETGID show this. It needs
// system calls that the runtime's seccomp profile forbids, and a container cannot unset the profile
// of its pod.
func MakesContainers(task *tektonv1.TaskSpec) bool {
	return slices.ContainsFunc(task.Sidecars, func(s tektonv1.Sidecar) bool {
		return s.SecurityContext != nil && s.SecurityContext.Capabilities != nil &&
			slices.Contains(s.SecurityContext.Capabilities.Add, "SETUID") &&
			slices.Contains(s.SecurityContext.Capabilities.Add, "SETGID")
	})
}

// Reports reports whether a task declares a result.
func Reports(task *tektonv1.TaskSpec, result string) bool {
	return slices.ContainsFunc(task.Results,
		func(r tektonv1.TaskResult) bool { return r.Name == result })
}

// HasWorkspace reports whether a task declares a workspace.
func HasWorkspace(task *tektonv1.TaskSpec, name string) bool {
	return slices.ContainsFunc(task.Workspaces,
		func(w tektonv1.WorkspaceDeclaration) bool { return w.Name == name })
}

// BoundTo returns the binding of a task's workspace, or the zero value.
func BoundTo(task *tektonv1.PipelineTask, workspace string) tektonv1.WorkspacePipelineTaskBinding {
	for _, b := range task.Workspaces {
		if b.Name == workspace {
			return b
		}
	}
	return tektonv1.WorkspacePipelineTaskBinding{}
}
