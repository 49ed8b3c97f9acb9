package attest

import (
	"encoding/json"
	"fmt"
	"slices"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
)

// How parts of a pod are compared: with the values of variables in place, but for what the API
// server puts in and what admission takes away.

// podValues are what Tekton puts into the text of a pod's containers, in its order.
func (t *task) podValues(spec tektonv1.TaskSpec, volumes map[string]corev1.Volume) []values {
	context, results, paths := newValues(), newValues(), newValues()
	for name, value := range map[string]string{"taskRun.name": t.run.Name, "taskRun.namespace": t.run.Namespace, "taskRun.uid": string(t.run.UID),
		"task.name": t.run.Name, "task.retry-count": fmt.Sprint(len(t.run.Status.RetriesStatus))} {
		context.texts["context."+name] = value
	}
	for _, r := range spec.Results {
		for _, form := range []string{"results.%s.path", "results[%q].path", "results['%s'].path"} {
			results.texts[fmt.Sprintf(form, r.Name)] = "/tekton/results/" + r.Name
		}
	}
	for n, step := range spec.Steps {
		name := stepContainer(step, n)
		results.texts["steps."+name+".exitCode.path"] = "/tekton/steps/" + name + "/exitCode"
	}
	for _, w := range spec.Workspaces {
		at := slices.IndexFunc(t.run.Spec.Workspaces, func(b tektonv1.WorkspaceBinding) bool { return b.Name == w.Name })
		prefix, claim := "workspaces."+w.Name+".", ""
		if at >= 0 && t.run.Spec.Workspaces[at].PersistentVolumeClaim != nil {
			claim = t.run.Spec.Workspaces[at].PersistentVolumeClaim.ClaimName
		}
		paths.texts[prefix+"bound"], paths.texts[prefix+"path"] = "true", w.GetMountPath()
		if w.Optional && at < 0 {
			paths.texts[prefix+"bound"], paths.texts[prefix+"path"] = "false", ""
		}
		paths.texts[prefix+"volume"], paths.texts[prefix+"claim"] = volumes[w.Name].Name, claim
	}
	paths.texts["credentials.path"] = "/tekton/creds"
	return []values{t.params(spec.Params), context, results, paths}
}

// plain is a value as JSON has it.
func plain(v any) (out any) {
	if err := json.Unmarshal([]byte(canonical(v)), &out); err != nil {
		panic(fmt.Sprintf("attest: reading %T again: %v", v, err))
	}
	return out
}

// replaced is a value with variables replaced, and lists with arrays in their place.
func replaced(v any, all []values) any {
	switch v := v.(type) {
	case string:
		return replaceIn(v, all)
	case map[string]any:
		for key, value := range v {
			v[key] = replaced(value, all)
		}
	case []any:
		out := []any{}
		for _, element := range v {
			text, is := element.(string)
			if !is {
				out = append(out, replaced(element, all))
				continue
			}
			for _, text := range elements(text, all) {
				out = append(out, text)
			}
		}
		return out
	}
	return v
}

// defaults that the API server puts into fields which are left out.
var defaults = map[string][]any{
	"apiVersion": {"v1"}, "protocol": {"TCP"}, "scheme": {"HTTP"}, "defaultMode": {420.0}, "divisor": {"0"}, "type": {""}, "optional": {false}, "readOnly": {false},
	"successThreshold": {1.0}, "failureThreshold": {3.0}, "periodSeconds": {10.0}, "timeoutSeconds": {1.0}, "expirationSeconds": {3600.0},
	"dnsPolicy": {"ClusterFirst"}, "enableServiceLinks": {true}, "restartPolicy": {"Never"}, "serviceAccountName": {"default"}, "hostNetwork": {false}, "hostUsers": {true},
}

// byServer reports whether the API server may have put in a value.
func byServer(key string, value any) bool { return slices.Contains(defaults[key], value) }

// otherField names a field in which have is not want, "" for none. added reports whether a field
// may have a value that was not ordered.
func otherField(want, have map[string]any, added func(key string, value any) bool) string {
	for key, value := range have {
		if other, ordered := want[key]; ordered && !defaulted(other, value) || !ordered && !added(key, value) {
			return key
		}
	}
	for key, value := range want {
		if _, given := have[key]; !given && !empty(value) {
			return key
		}
	}
	return ""
}

// defaulted reports whether have is want, but for what the API server puts in.
func defaulted(want, have any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		return ok && otherField(want, have, byServer) == ""
	case []any:
		have, ok := have.([]any)
		return ok && slices.EqualFunc(want, have, defaulted)
	}
	return want == have
}

func empty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return v == nil || v == "" || v == false || v == 0.0
}

// restrictions that admission may add to a security context.
var restrictions = map[string]func(any) bool{
	"runAsNonRoot": isTrue, "readOnlyRootFilesystem": isTrue,
	"allowPrivilegeEscalation": isFalse, "privileged": isFalse,
	"runAsUser":      func(v any) bool { return v != 0.0 },
	"capabilities":   func(v any) bool { c, _ := v.(map[string]any); return c["add"] == nil },
	"seccompProfile": func(v any) bool { c, _ := v.(map[string]any); return c["type"] == "RuntimeDefault" },
	"runAsGroup":     always, "seLinuxOptions": always, "fsGroup": always, "fsGroupChangePolicy": always, "supplementalGroups": always,
}

func isTrue(v any) bool  { return v == true }
func isFalse(v any) bool { return v == false }
func always(any) bool    { return true }

// restricted reports whether a security context is the one that was ordered, or takes more
// rights away.
func restricted(want, have any) bool {
	ordered, _ := want.(map[string]any)
	given, _ := have.(map[string]any)
	return otherField(ordered, given, func(key string, value any) bool {
		allowed := restrictions[key]
		return allowed != nil && allowed(value)
	}) == ""
}
