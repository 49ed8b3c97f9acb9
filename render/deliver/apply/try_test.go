package apply_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// A new object that the API server refuses ends the first apply before anything is
// written, also where its namespace comes with the package.
func TestRefusedFirstApply(t *testing.T) {
	w := newWorld(t)
	bad := "{apiVersion: v1, kind: ConfigMap, metadata: {name: bad}, datta: {}}"
	w.refused(apply.Options{}, "field not declared in schema", configMap("good", "a"), bad)
	home := w.Package
	w.Package.Namespace += "-home"
	namespace := "{apiVersion: v1, kind: Namespace, metadata: {name: " + w.Package.Namespace + "}}"
	w.refused(apply.Options{}, "field not declared in schema", namespace, configMap("good", "a"), bad)
	if w.get("v1", "Namespace", w.Package.Namespace) != nil {
		t.Error("the namespace is there")
	}
	for _, p := range []apply.Package{home, w.Package} {
		if v, err := w.Inventory(t.Context(), p); err != nil || v.Exists() {
			t.Errorf("the inventory of %s exists: %v", p, err)
		}
	}
	w.apply(apply.Options{}, namespace, configMap("good", "a"))
}

// An object that needs another one of the package is not refused because that is
// not there yet.
func TestNeedsItsPackage(t *testing.T) {
	w := newWorld(t)
	priority := w.Package.Namespace + "-urgent"
	pod := "{apiVersion: v1, kind: Pod, metadata: {name: urgent}, spec: " +
		"{automountServiceAccountToken: false, priorityClassName: " + priority +
		", containers: [{name: a, image: a}]}}"
	account := "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}"
	w.refused(apply.Options{}, "no PriorityClass with name "+priority+" was found", account, pod)
	plan := w.apply(apply.Options{}, account, pod,
		"{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: "+priority+
			"}, value: 7}")
	if text := show(plan); !strings.Contains(text,
		"not checked in advance: PriorityClass "+priority+" comes with it") {
		t.Errorf("the plan says\n%s", text)
	}
}

// A custom resource may use a field that its CRD gets in the same apply.
func TestFieldOfChangedCRD(t *testing.T) {
	w := newWorld(t)
	group := w.Package.Namespace + ".example.com"
	closed := strings.Replace(crd(group, "v1", "Part"),
		"spec: {type: object, x-kubernetes-preserve-unknown-fields: true}",
		"spec: {type: object, properties: {size: {type: integer}}}", 1)
	part := "{apiVersion: " + group + "/v1, kind: Part, metadata: {name: one}, spec: {size: 1}}"
	w.apply(apply.Options{}, closed, part)
	wider := strings.Replace(closed, "size: {type: integer}",
		"size: {type: integer}, color: {type: string}", 1)
	painted := strings.Replace(part, "size: 1", "size: 1, color: red", 1)
	w.refused(apply.Options{}, "field not declared in schema", closed, painted)
	w.apply(apply.Options{Wait: true}, wider, painted,
		strings.Replace(painted, "name: one", "name: two", 1))
	if got := field(w.get(group+"/v1", "Part", "one"), "spec", "color"); got != "red" {
		t.Errorf("color is %v", got)
	}
}
