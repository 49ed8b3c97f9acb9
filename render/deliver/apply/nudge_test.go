package apply_test

import (
	"fmt"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

func pod(name, volumes string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: NS}, spec: "+
		"{automountServiceAccountToken: false, containers: [{name: a, image: a}], volumes: [%s]}}",
		name, volumes)
}

// Pods that mount a changed ConfigMap are nudged, and no others.
func TestNudge(t *testing.T) {
	w := newWorld(t)
	w.create("{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: NS}}")
	w.apply(apply.Options{Nudge: true}, configMap("settings", "a"), configMap("other", "a"))
	w.create(pod("mounts", "{name: v, configMap: {name: settings}}"))
	w.create(pod("projects", "{name: v, projected: {sources: [{configMap: {name: settings}}]}}"))
	w.create(pod("elsewhere", "{name: v, configMap: {name: other}}"))
	const annotation = "armature.dev/nudged"
	nudged := func() string {
		var out string
		for _, name := range []string{"mounts", "projects", "elsewhere"} {
			out += fmt.Sprint(w.get("v1", "Pod", name).GetAnnotations()[annotation] != "", " ")
		}
		return out
	}
	w.apply(apply.Options{}, configMap("settings", "b"), configMap("other", "a"))
	if got := nudged(); got != "false false false " {
		t.Errorf("nudged without being asked: %s", got)
	}
	w.apply(apply.Options{Nudge: true}, configMap("settings", "c"), configMap("other", "a"))
	if got := nudged(); got != "true true false " {
		t.Errorf("nudged: %s", got)
	}
	if got, want := w.get("v1", "Pod", "mounts").GetAnnotations()[annotation],
		w.get("v1", "ConfigMap", "settings").GetResourceVersion(); got != want {
		t.Errorf("annotated with %s, want %s", got, want)
	}
}
