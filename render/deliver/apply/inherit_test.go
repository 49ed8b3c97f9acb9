package apply_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// kubectlApplied makes an object as `kubectl apply` does.
func (w *world) kubectlApplied(manifest string) {
	w.Helper()
	o := w.read(manifest)[0]
	o.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}"})
	_, err := w.in(o.GetAPIVersion(), o.GetKind(), w.Package.Namespace).Create(w.Context(),
		o.Unstructured, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"})
	w.must(err)
}

// What kubectl applied is taken over with its fields, as kubectl and Flux do: those
// that the package has not go away, and so do those that it drops later. What others
// set stays.
func TestTakeOverFromKubectl(t *testing.T) {
	w := newWorld(t)
	w.kubectlApplied("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, labels: {old: " +
		"'yes'}}, data: {key: a, extra: b, gone: c}}")
	w.kubectlApplied(strings.Replace(web, "  replicas: 2\n",
		"  replicas: 2\n  minReadySeconds: 5\n", 1))
	w.patch("v1", "ConfigMap", "settings", "somebody", `{"data":{"theirs":"d"}}`)
	settings := "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {key: " +
		"a, extra: b}}"

	plan, err := w.Plan(t.Context(), w.Package, w.read(settings, web), apply.Options{})
	w.must(err)
	w.expect(plan, "change ConfigMap NS/settings", "change Deployment NS/web")
	if text := show(plan); !strings.Contains(text,
		"takes over what kubectl-client-side-apply applied, and removes the fields that the "+
			"package lacks") {
		t.Errorf("the plan says\n%s", text)
	}
	w.apply(apply.Options{}, settings, web)
	live := w.get("v1", "ConfigMap", "settings")
	if field(live, "data", "gone") != nil || field(live, "data", "theirs") != "d" ||
		live.GetLabels()["old"] != "" || len(live.GetAnnotations()) != 0 {
		t.Errorf("after taking over: %v", live.Object)
	}
	if got := field(w.get("apps/v1", "Deployment", "web"), "spec", "minReadySeconds"); got != nil {
		t.Errorf("minReadySeconds is %v", got)
	}
	w.replicas(2)
	before := w.writes.count()
	w.expect(w.apply(apply.Options{}, settings, web), "unchanged ConfigMap NS/settings",
		"unchanged Deployment NS/web")
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
	w.apply(apply.Options{}, configMap("settings", "a"), web)
	if got := field(w.get("v1", "ConfigMap", "settings"), "data", "extra"); got != nil {
		t.Errorf("extra is still there: %v", got)
	}
}

// A field that kubectl applied with another value is a conflict all the same.
func TestTakeOverFromKubectlWithConflict(t *testing.T) {
	w := newWorld(t)
	w.kubectlApplied("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {key: " +
		"theirs, gone: c}}")
	w.refused(apply.Options{}, "kubectl-client-side-apply has set data.key", configMap("settings", "a"))
	w.apply(apply.Options{ForceConflicts: []string{"kubectl-client-side-apply"}},
		configMap("settings", "a"))
	if live := w.get("v1", "ConfigMap", "settings"); field(live, "data", "gone") != nil ||
		field(live, "data", "key") != "a" {
		t.Errorf("after taking over: %v", live.Object)
	}
	before := w.writes.count()
	w.apply(apply.Options{}, configMap("settings", "a"))
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
}

// An autoscaler's workload keeps its replicas when it is taken over.
func TestTakeOverScaled(t *testing.T) {
	w := newWorld(t)
	w.kubectlApplied(strings.Replace(web, "replicas: 2", "replicas: 4", 1))
	w.create(hpa)
	w.apply(apply.Options{}, strings.Replace(web, "  replicas: 2\n", "", 1))
	w.replicas(4)
	w.patch("apps/v1", "Deployment", "web", "kube-controller-manager", `{"spec":{"replicas":7}}`, "scale")
	w.apply(apply.Options{}, strings.Replace(web, "  replicas: 2\n", "  minReadySeconds: 3\n", 1))
	w.replicas(7)
}

// A label of ours that somebody removed comes back: an object without one belongs to
// no other package.
func TestLabelRemoved(t *testing.T) {
	for _, label := range []string{keys.LabelName, keys.LabelNamespace} {
		t.Run(label, func(t *testing.T) {
			w := newWorld(t)
			w.apply(apply.Options{}, configMap("one", "a"), configMap("two", "a"))
			w.patch("v1", "ConfigMap", "one", "kubectl-label",
				`{"metadata":{"labels":{"`+label+`":null}}}`)
			w.expect(w.apply(apply.Options{}, configMap("one", "a"), configMap("two", "a")),
				"change ConfigMap NS/one", "unchanged ConfigMap NS/two")
			if got := w.get("v1", "ConfigMap", "one").GetLabels()[label]; got == "" {
				t.Error("the label is gone")
			}
		})
	}
}
