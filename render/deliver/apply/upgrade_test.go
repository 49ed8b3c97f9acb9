package apply_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// A package that an earlier release applied is taken over: what did not change stays
// unchanged, what the package lacks now is pruned, and delete takes the rest.
func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	w.Package.Namespace = "earlier" // the inventory's seals are those of objects there
	namespace := w.read("{apiVersion: v1, kind: Namespace, metadata: {name: NS}}")[0]
	_, err := w.in("v1", "Namespace", "").Apply(t.Context(), "earlier", namespace.Unstructured,
		metav1.ApplyOptions{FieldManager: "somebody"})
	w.must(err)
	w.earlier("testdata/upgrade/6931e67.yaml")
	if got := w.inventory(); !slices.Equal(got,
		[]string{"ConfigMap one", "ConfigMap two", "Service weather"}) {
		t.Fatalf("the earlier inventory has %q", got)
	}
	service := w.get("v1", "Service", "weather").GetResourceVersion()

	plan := w.apply(apply.Options{},
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: one, namespace: NS}, data: {a: "new"}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: weather, namespace: NS}, spec: {selector: {app: weather}, ports: [{port: 80, targetPort: 8080}]}}`)
	w.expect(plan, "change ConfigMap NS/one", "unchanged Service NS/weather", "prune ConfigMap NS/two")
	if got := w.get("v1", "Service", "weather").GetResourceVersion(); got != service {
		t.Errorf("the Service was written again: %s, then %s", service, got)
	}
	if got := field(w.get("v1", "ConfigMap", "one"), "data", "a"); got != "new" {
		t.Errorf("ConfigMap one has %v", got)
	}
	if w.get("v1", "ConfigMap", "two") != nil {
		t.Error("ConfigMap two was not pruned")
	}

	if _, err := w.Delete(t.Context(), w.Package, apply.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ConfigMap one", "Service weather",
		"ConfigMap armature-weather"} {
		kind, name, _ := strings.Cut(name, " ")
		if w.get("v1", kind, name) != nil {
			t.Errorf("%s %s outlives the package", kind, name)
		}
	}
}

// earlier puts what an earlier release applied into the cluster: the objects by
// server-side apply, and the inventory with the UIDs that they get.
func (w *world) earlier(file string) {
	w.Helper()
	text, err := os.ReadFile(file)
	w.must(err)
	objects, err := apply.Read(file, text)
	w.must(err)
	var uids []string // of the file, and of the cluster
	for _, o := range objects[1:] {
		uids = append(uids, string(o.GetUID()))
		o.SetUID("")
		u, err := w.in(o.GetAPIVersion(), o.GetKind(), o.GetNamespace()).Apply(w.Context(),
			o.GetName(), o.Unstructured, metav1.ApplyOptions{FieldManager: fields.Manager})
		w.must(err)
		uids = append(uids, string(u.GetUID()))
	}
	inventory := objects[0]
	inventory.SetUID("")
	data, _ := field(inventory.Unstructured, "data", "objects").(string)
	inventory.Object["data"].(map[string]any)["objects"] = strings.NewReplacer(uids...).Replace(data)
	_, err = w.in("v1", "ConfigMap", inventory.GetNamespace()).Create(w.Context(),
		inventory.Unstructured, metav1.CreateOptions{FieldManager: fields.Manager})
	w.must(err)
}
