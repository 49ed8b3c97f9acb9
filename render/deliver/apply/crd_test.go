package apply_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

func crd(group, version, kind string) string {
	plural := strings.ToLower(kind) + "s"
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[4]s.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[3]s, listKind: %[3]sList, plural: %[4]s, singular: %[5]s}
  versions:
    - name: %[2]s
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`, group, version, kind, plural, strings.ToLower(kind))
}

// A CRD and its instance are one package: the instance waits until its kind is
// served. Both go together, too.
func TestCRDAndInstance(t *testing.T) {
	w := newWorld(t)
	instance := "{apiVersion: example.com/v1, kind: Gadget, metadata: {name: one}, spec: {size: 3}}"
	plan := w.apply(apply.Options{Wait: true}, instance, crd("example.com", "v1", "Gadget"),
		configMap("settings", "a"))
	w.expect(plan, "create CustomResourceDefinition gadgets.example.com", "create Gadget NS/one",
		"create ConfigMap NS/settings")
	if got := field(w.get("example.com/v1", "Gadget", "one"), "spec", "size"); got != int64(3) {
		t.Errorf("size %v", got)
	}
	before := w.writes.count()
	w.expect(w.apply(apply.Options{}, instance, crd("example.com", "v1", "Gadget"),
		configMap("settings", "a")),
		"unchanged CustomResourceDefinition gadgets.example.com", "unchanged Gadget NS/one",
		"unchanged ConfigMap NS/settings")
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
	w.expect(w.apply(apply.Options{Wait: true}, configMap("settings", "a")),
		"unchanged ConfigMap NS/settings", "prune Gadget NS/one",
		"prune CustomResourceDefinition gadgets.example.com")
	if w.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "gadgets.example.com") != nil {
		t.Error("the CRD is still there")
	}
}

// A kind that nobody serves or defines ends the apply before anything is written.
func TestUnknownKind(t *testing.T) {
	w := newWorld(t)
	w.refused(apply.Options{},
		"app.yaml:7: Widget one of example.org/v1: the cluster does not serve this kind",
		configMap("settings", "a"),
		"{apiVersion: example.org/v1, kind: Widget, metadata: {name: one}}")
}

// A namespace, its content, and the package's inventory in it.
func TestNamespaceAndContent(t *testing.T) {
	w := newWorld(t)
	home := w.Package.Namespace + "-home"
	w.Package.Namespace = home
	namespace := "{apiVersion: v1, kind: Namespace, metadata: {name: " + home + "}}"
	w.expect(w.apply(apply.Options{Wait: true}, configMap("settings", "a"), namespace),
		"create Namespace "+home, "create ConfigMap NS/settings")
	before := w.writes.count()
	w.expect(w.apply(apply.Options{}, configMap("settings", "a"), namespace),
		"unchanged Namespace "+home, "unchanged ConfigMap NS/settings")
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
	// To prune the namespace would be to lose the inventory.
	w.expect(w.apply(apply.Options{}, configMap("settings", "a")), "skip Namespace "+home,
		"unchanged ConfigMap NS/settings")
	w.Package.Namespace = home + "-other"
	w.refused(apply.Options{}, `namespaces "`+home+`-other" not found`, configMap("settings", "a"))
}
