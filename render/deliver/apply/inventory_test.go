package apply_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// The inventory is one readable line for each object.
func TestInventoryFormat(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web)
	cm := w.get("v1", "ConfigMap", "armature-weather")
	text, _ := field(cm, "data", "objects").(string)
	if want := fmt.Sprintf("apps/v1 Deployment %s web %s ", w.Package.Namespace,
		w.get("apps/v1", "Deployment", "web").GetUID()); !strings.HasPrefix(text, want) {
		t.Errorf("objects are %q, want %q and a seal", text, want)
	}
	if field(cm, "data", "format") != "1" || field(cm, "data", "state") != "applied" ||
		cm.GetLabels()["armature.dev/inventory"] != "weather" {
		t.Errorf("the inventory is %v", cm.Object)
	}
}

// What a newer version wrote, or somebody broke, is not overwritten.
func TestInventoryUnreadable(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web)
	w.patch("v1", "ConfigMap", "armature-weather", "somebody", `{"data":{"format":"2"}}`)
	w.refused(apply.Options{}, "is not an inventory that this version can read", web)
	w.patch("v1", "ConfigMap", "armature-weather", "somebody",
		`{"data":{"format":"1","objects":"nonsense"}}`)
	w.refused(apply.Options{}, `line "nonsense"`, web)
}

// Mistakes in the package end it before anything is written.
func TestMistakes(t *testing.T) {
	w := newWorld(t)
	w.refused(apply.Options{}, "is in the package twice", configMap("one", "a"), configMap("one", "b"))
	w.refused(apply.Options{}, "is the name of the package's inventory",
		configMap("armature-weather", "a"))
	w.refused(apply.Options{}, "is the name of the package's lease",
		"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: armature-weather}}")
	for text, words := range map[string]string{
		"kind: Secret\nmetadata: {name: a}\nstringData: {password: hunter2}\n": "a document is not a Kubernetes object",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a-}\n":      "has no metadata.name",
		"apiVersion: v1\nkind: ConfigMap\nkind: Secret\nmetadata: {name: a}\n": "already set",
	} {
		if _, err := apply.Read("app.yaml", []byte(text)); err == nil ||
			!strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: error %v", text, err)
		}
	}
	w.Package.Name = "Not A Name"
	w.refused(apply.Options{}, "choose another with --name", configMap("one", "a"))
	if _, err := w.PlanDelete(t.Context(), w.Package, apply.Options{}); err == nil ||
		!strings.Contains(err.Error(), "cannot be the name of a package") ||
		strings.Contains(err.Error(), "--name") {
		t.Errorf("delete: %v", err)
	}
}
