package attest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/substitution"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/armature-dev/armature/builds/api"
)

// What a TaskRun of a run has to be. Tekton makes it of the pipeline's task: it puts
// in values of parameters, of the run itself and of other tasks' results, and binds
// volumes. A TaskRun that a tenant made first, which Tekton takes for its own, is not
// that, or else does what was ordered.

// values are what Tekton puts in for variables.
type values struct {
	texts   map[string]string
	arrays  map[string][]string
	objects map[string]map[string]string
}

func newValues() values {
	return values{map[string]string{}, map[string][]string{}, map[string]map[string]string{}}
}

// forms in which parameters and results are referred to.
var (
	forms       = []string{"params.%s", "params[%q]", "params['%s']"}
	resultForms = []string{"tasks.%s.results.%s", "tasks.%s.results['%s']", "tasks.%s.results[%q]"}
)

// set the value of what the forms refer to by names.
func (v values) set(forms []string, value tektonv1.ParamValue, names ...any) {
	for _, form := range forms {
		key := fmt.Sprintf(form, names...)
		switch value.Type {
		case tektonv1.ParamTypeArray:
			v.arrays[key] = value.ArrayVal
			for i, text := range value.ArrayVal {
				v.texts[fmt.Sprintf("%s[%d]", key, i)] = text
			}
		case tektonv1.ParamTypeObject:
			v.objects[key] = value.ObjectVal
			for field, text := range value.ObjectVal {
				v.texts[key+"."+field] = text
			}
		default:
			v.texts[key] = value.StringVal
		}
	}
}

// replaceIn a text what all of them have.
func replaceIn(text string, all []values) string {
	for _, v := range all {
		text = substitution.ApplyReplacements(text, v.texts)
	}
	return text
}

// elements that one of a list becomes: several or none, where it refers to an array.
func elements(text string, all []values) []string {
	texts := []string{text}
	for _, v := range all {
		var next []string
		for _, text := range texts {
			next = append(next, substitution.ApplyArrayReplacements(text, v.texts, v.arrays)...)
		}
		texts = next
	}
	return texts
}

// params are the values of a task's parameters, as its TaskRun gives them.
func (t *task) params(declared tektonv1.ParamSpecs) values {
	v := newValues()
	for _, p := range declared {
		if p.Default != nil {
			v.set(forms, *p.Default, p.Name)
		}
	}
	for _, p := range t.run.Spec.Params {
		v.set(forms, p.Value, p.Name)
	}
	return v
}

// runValues are those of the run: Tekton puts them in first, the context and the
// workspaces after that, and the results of tasks last.
func (i *inspection) runValues() []values {
	params, context, results := newValues(), newValues(), newValues()
	for _, p := range i.Run.Spec.Params {
		params.set(forms, p.Value, p.Name)
	}
	pipeline := i.Run.Name
	if ref := i.Run.Spec.PipelineRef; ref != nil {
		pipeline = ref.Name
	}
	for name, value := range map[string]string{"pipelineRun.name": i.Run.Name, "pipelineRun.namespace": i.Run.Namespace, "pipelineRun.uid": string(i.Run.UID), "pipeline.name": pipeline} {
		context.texts["context."+name] = value
	}
	for _, w := range i.pipeline.Workspaces {
		bound := slices.ContainsFunc(i.Run.Spec.Workspaces, func(b tektonv1.WorkspaceBinding) bool { return b.Name == w.Name })
		context.texts["workspaces."+w.Name+".bound"] = fmt.Sprint(bound)
	}
	for _, t := range i.tasks {
		for name, value := range t.results {
			results.set(resultForms, value, t.ordered.Name, name)
		}
	}
	return []values{params, context, results}
}

// checkTasks compares each TaskRun with what was ordered, and each task that did not
// run with the reason for it.
func (i *inspection) checkTasks() error {
	run := i.runValues()
	for _, t := range i.tasks {
		if t.run == nil {
			if !i.skipped(t, run) {
				return refuse(api.ReasonNotAsOrdered, tampered, "task %s did not run, and nothing says that it may be left out", t.ordered.Name)
			}
			continue
		}
		if what := i.differs(t, run); what != "" {
			return refuse(api.ReasonNotAsOrdered, tampered, "TaskRun %s is not the step that was pinned: its %s is another", t.run.Name, what)
		}
	}
	return nil
}

// skipped reports whether a task may have been left out: one of its conditions does
// not hold, or it needs the result of a task that was left out.
func (i *inspection) skipped(t *task, run []values) bool {
	for _, w := range t.ordered.When {
		if w.CEL != "" {
			continue // is not evaluated here
		}
		input := replaceIn(w.Input, run)
		in := slices.ContainsFunc(w.Values, func(one string) bool { return replaceIn(one, run) == input })
		if in != (w.Operator == selection.In) {
			return true
		}
	}
	text := canonical(t.ordered.Params) + canonical(t.ordered.When)
	return slices.ContainsFunc(i.tasks, func(other *task) bool {
		return other.run == nil && other != t && strings.Contains(text, "$(tasks."+other.ordered.Name+".results")
	})
}

// differs names what of a TaskRun's spec is not as ordered, "" for nothing. Its
// timeout bounds it, and is Tekton's to set.
func (i *inspection) differs(t *task, run []values) string {
	have := t.run.Spec.DeepCopy()
	if have.TaskSpec == nil || have.TaskRef != nil {
		return "task"
	}
	params := tektonv1.Params{}
	for _, p := range t.ordered.Params {
		p := *p.DeepCopy()
		for _, v := range run {
			p.Value.ApplyReplacements(v.texts, v.arrays, v.objects)
		}
		params = append(params, p)
	}
	if canonical(params) != canonical(append(tektonv1.Params{}, have.Params...)) {
		return "parameters"
	}
	if !same(plain(t.ordered.TaskSpec.TaskSpec), plain(*have.TaskSpec), propagated(run, params)) {
		return "task"
	}
	if canonical(i.bindings(t.ordered)) != canonical(append([]tektonv1.WorkspaceBinding{}, have.Workspaces...)) {
		return "list of workspaces"
	}
	settings := i.Run.DeepCopy().GetTaskRunSpec(t.ordered.Name)
	want := tektonv1.TaskRunSpec{Retries: t.ordered.Retries, ServiceAccountName: settings.ServiceAccountName, PodTemplate: settings.PodTemplate,
		StepSpecs: settings.StepSpecs, SidecarSpecs: settings.SidecarSpecs, ComputeResources: settings.ComputeResources}
	have.Params, have.TaskSpec, have.Workspaces, have.Timeout = nil, nil, nil, nil
	if canonical(want) != canonical(have) {
		return "pod's settings or another field"
	}
	return ""
}

// propagated are the values that Tekton puts into the text of a task: a parameter of
// the task comes before one of the run with the same name.
func propagated(run []values, params tektonv1.Params) []values {
	own := newValues()
	for key, text := range run[0].texts {
		own.texts[key] = text
	}
	for key, list := range run[0].arrays {
		own.arrays[key] = list
	}
	for _, p := range params {
		for _, form := range forms {
			key := fmt.Sprintf(form, p.Name)
			if _, ok := own.texts[key]; ok {
				own.texts[key] = p.Value.StringVal
			}
			if _, ok := own.arrays[key]; ok {
				own.arrays[key] = p.Value.ArrayVal
			}
		}
	}
	return append([]values{own}, run[1:]...)
}

// same compares a task's text with the pinned one, in which variables may have been
// replaced by their values.
func same(want, have any, run []values) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok {
			return false
		}
		for key := range have {
			if _, ok := want[key]; !ok {
				return false
			}
		}
		for key, value := range want {
			other, ok := have[key]
			if list, is := value.([]any); is && !ok {
				other, ok = []any{}, len(list) > 0 // it may have become an empty one
			}
			if !ok || !same(value, other, run) {
				return false
			}
		}
		return true
	case []any:
		have, ok := have.([]any)
		return ok && sameList(want, have, run)
	case string:
		have, ok := have.(string)
		return ok && (want == have || replaceIn(want, run) == have)
	}
	return want == have
}

// sameList compares lists. An element that refers to an array may have become
// several, or none.
func sameList(want, have []any, run []values) bool {
	for _, one := range want {
		if text, ok := one.(string); ok {
			texts := elements(text, run)
			expanded := len(texts) != 1 || texts[0] != text
			if expanded && len(texts) <= len(have) && slices.EqualFunc(texts, have[:len(texts)], func(a string, b any) bool { return a == b }) && (len(have) == 0 || have[0] != text) {
				have = have[len(texts):]
				continue
			}
		}
		if len(have) == 0 || !same(one, have[0], run) {
			return false
		}
		have = have[1:]
	}
	return len(have) == 0
}

// bindings of a task's workspaces. A volume that Tekton makes for the run has a name
// that follows from the run's UID.
func (i *inspection) bindings(t tektonv1.PipelineTask) []tektonv1.WorkspaceBinding {
	out := []tektonv1.WorkspaceBinding{}
	for _, declared := range t.Workspaces {
		name := declared.Workspace
		if name == "" {
			name = declared.Name
		}
		at := slices.IndexFunc(i.Run.Spec.Workspaces, func(b tektonv1.WorkspaceBinding) bool { return b.Name == name })
		if at < 0 {
			continue
		}
		bound := *i.Run.Spec.Workspaces[at].DeepCopy()
		if template := bound.VolumeClaimTemplate; template != nil {
			prefix := "pvc"
			if template.Name != "" {
				prefix = template.Name
			}
			sum := sha256.Sum256([]byte(bound.Name + string(i.Run.UID)))
			bound.VolumeClaimTemplate = nil
			bound.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: prefix + "-" + hex.EncodeToString(sum[:])[:10]}
		}
		bound.Name, bound.SubPath = declared.Name, path.Join(bound.SubPath, declared.SubPath)
		out = append(out, bound)
	}
	return out
}

var resultReference = regexp.MustCompile(`^\$\(tasks\.([a-z0-9-]+)\.results\.([^()\[\]]+)\)$`)

// pipelineResult is the value of a result of the pipeline; it is not known where its
// task did not run.
func (i *inspection) pipelineResult(declared tektonv1.PipelineResult) (value tektonv1.ResultValue, known bool) {
	m := resultReference.FindStringSubmatch(declared.Value.StringVal)
	if m == nil {
		return value, false
	}
	for _, t := range i.tasks {
		if t.ordered.Name == m[1] {
			value, known = t.results[m[2]]
		}
	}
	return value, known
}

// endsIn reports whether a pipeline's result is the one of that name, or of one task
// of several.
func endsIn(result, name string) bool { return result == name || strings.HasSuffix(result, "-"+name) }

func trimmed(v tektonv1.ResultValue) string { return strings.TrimSpace(v.StringVal) }
