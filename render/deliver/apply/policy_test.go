package apply_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

func annotated(name, value, annotation string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, annotations: "+
		"{kustomize.toolkit.fluxcd.io/%s}}, data: {key: %s}}", name, annotation, value)
}

// Flux's annotations mean what they mean with Flux.
func TestFluxPolicies(t *testing.T) {
	w := newWorld(t)
	w.create("{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, namespace: NS}, data: " +
		"{key: theirs}}")
	w.create("{apiVersion: v1, kind: ConfigMap, metadata: {name: taken, namespace: NS}, data: " +
		"{key: theirs}}")
	w.apply(apply.Options{},
		annotated("ignored", "a", "ssa: Ignore"), annotated("paused", "a", "reconcile: disabled"),
		annotated("once", "a", "ssa: IfNotPresent"), annotated("theirs", "a", "ssa: IfNotPresent"),
		annotated("taken", "a", "ssa: Override"), annotated("merged", "a", "ssa: Merge"))
	for name, want := range map[string]any{"ignored": "no object", "paused": "no object",
		"once": "a", "theirs": "theirs", "taken": "a", "merged": "a"} {
		u := w.get("v1", "ConfigMap", name)
		if u == nil && want == "no object" {
			continue
		}
		if got := field(u, "data", "key"); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	// What was there before is not the package's, so that it is never pruned.
	if got := w.inventory(); !slices.Equal(got,
		[]string{"ConfigMap merged", "ConfigMap once", "ConfigMap taken"}) {
		t.Errorf("inventory %v", got)
	}
	w.apply(apply.Options{}, annotated("once", "b", "ssa: IfNotPresent"),
		annotated("merged", "a", "ssa: Merge"), annotated("taken", "a", "ssa: Override"))
	if got := field(w.get("v1", "ConfigMap", "once"), "data", "key"); got != "a" {
		t.Errorf("once was changed to %v", got)
	}
	w.patch("v1", "ConfigMap", "merged", "somebody",
		`{"metadata":{"annotations":{"kustomize.toolkit.fluxcd.io/reconcile":"disabled"}}}`)
	w.apply(apply.Options{}, annotated("merged", "b", "ssa: Merge"),
		annotated("taken", "a", "ssa: Override"))
	if got := field(w.get("v1", "ConfigMap", "merged"), "data", "key"); got != "a" {
		t.Errorf("a paused object was changed to %v", got)
	}
	w.refused(apply.Options{}, `"sometimes" is unknown`, annotated("merged", "a", "ssa: sometimes"))
}
