package apply_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// Labels and annotations that are not strings are refused, not lost; what is wrong
// with a Secret is reported without its values.
func TestIllegible(t *testing.T) {
	w := newWorld(t)
	for words, manifest := range map[string]string{
		`app.yaml:1: ConfigMap a: metadata.labels["version"] is not a string: write it in quotes`: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {app: web, version: 1}}}",
		`metadata.annotations["since"] is not a string`:                                           "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {since: }}}",
		`metadata.labels is not a map`:                                                            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: [app]}}",
		`app.yaml:1: Secret a: stringData["pin"] is not a string: write it in quotes`:             "{apiVersion: v1, kind: Secret, metadata: {name: a}, stringData: {pin: 31415926}}",
		`data["pin"] is not a string: write it in quotes`:                                         "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {pin: 31415926}}",
		`data["pin"] is not in base64: write plain text under stringData`:                         "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {pin: 31415926-}}",
		`data is not a map`: "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: 31415926}",
	} {
		w.refused(apply.Options{}, words, manifest)
		if _, err := w.Plan(t.Context(), w.Package, w.read(manifest),
			apply.Options{}); err == nil || strings.Contains(err.Error(), "31415926") {
			t.Errorf("%s: a plan says %v", manifest, err)
		}
	}
	w.apply(apply.Options{},
		"{apiVersion: v1, kind: Secret, metadata: {name: a, labels: , annotations: {}}, data: "+
			"{pin: MzE0}, stringData: {other: '1'}}")
}

// What is annotated to be for tools alone never reaches the cluster, whether it
// serves the kind or not.
func TestLocalConfig(t *testing.T) {
	w := newWorld(t)
	const annotated = "annotations: {config.kubernetes.io/local-config: 'true'}"
	tools := "{apiVersion: v1, kind: ConfigMap, metadata: {name: tools, " + annotated + "}}"
	lock := "{apiVersion: armature.dev/v1alpha1, kind: ImageLock, metadata: {name: images, " +
		annotated + "}}"
	plan := w.apply(apply.Options{}, configMap("settings", "a"), tools, lock,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: other, annotations: "+
			"{config.kubernetes.io/local-config: 'false'}}}")
	w.expect(plan, "create ConfigMap NS/settings", "create ConfigMap NS/other",
		"skip ConfigMap tools", "skip ImageLock images")
	if w.get("v1", "ConfigMap", "tools") != nil {
		t.Error("it was applied")
	}
	if got := w.inventory(); !slices.Equal(got, []string{"ConfigMap other", "ConfigMap settings"}) {
		t.Errorf("inventory %v", got)
	}
	w.refused(apply.Options{}, "there is nothing to apply", tools, lock)
}
