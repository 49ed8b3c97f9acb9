package controller_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/programs"
)

// kustomizeController runs Flux's kustomize-controller until the test ends.
func kustomizeController(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	program := programs.Peer(t, "kustomize-controller")
	module := exec.Command("go", "mod", "download", "-json", "github.com/fluxcd/kustomize-controller@v1.9.5")
	module.Dir = filepath.Join("..", "..", "e2e", "flux", "kustomize-controller")
	out, err := module.Output()
	var found struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil || found.Dir == "" {
		t.Fatalf("downloading the kustomize-controller for its CRD: %v", err)
	}
	if err := plane.InstallCRDs(filepath.Join(found.Dir, "config", "crd", "bases")); err != nil {
		t.Fatal(err)
	}
	var log controlplane.Output
	cmd := exec.Command(program, "--feature-gates=ExternalArtifact=true", "--metrics-addr=0", "--health-addr=127.0.0.1:0", "--requeue-dependency=1s")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+plane.Admin.Kubeconfig, "RUNTIME_NAMESPACE=flux-system")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text := log.String(); t.Failed() {
			t.Logf("kustomize-controller:\n%s", text[max(0, len(text)-6000):])
		}
	})
}

// kustomization of Flux as it is.
func (w *world) kustomization(name string) *unstructured.Unstructured {
	w.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization"})
	o.SetNamespace(w.namespace)
	o.SetName(name)
	if err := w.Get(w.Context(), client.ObjectKeyFromObject(o), o); client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	return o
}

// applied waits until Flux has applied and found healthy what is published.
func (w *world) applied(name string) *unstructured.Unstructured {
	w.Helper()
	w.eventually("Flux applies "+name, func() string {
		w.runDeployments()
		k, want := w.kustomization(name), w.published(name)["revision"]
		revision, _, _ := unstructured.NestedString(k.Object, "status", "lastAppliedRevision")
		conditions, _, _ := unstructured.NestedSlice(k.Object, "status", "conditions")
		all := map[string]string{}
		for _, c := range conditions {
			c := c.(map[string]any)
			all[c["type"].(string)] = fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"])
		}
		if revision != want || !strings.HasPrefix(all["Ready"], "True ReconciliationSucceeded") || !strings.HasPrefix(all["Healthy"], "True") {
			return fmt.Sprintf("revision %s, want %s; %v", revision, want, all)
		}
		return ""
	})
	return w.kustomization(name)
}

// runDeployments reports Deployments as available, since no cluster runs them.
func (w *world) runDeployments() {
	var all appsv1.DeploymentList
	if err := w.List(w.Context(), &all, client.InNamespace(w.namespace)); err != nil {
		return
	}
	for i := range all.Items {
		d := &all.Items[i]
		if d.Status.ObservedGeneration == d.Generation {
			continue
		}
		d.Status = appsv1.DeploymentStatus{
			ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas, UpdatedReplicas: *d.Spec.Replicas, ReadyReplicas: *d.Spec.Replicas, AvailableReplicas: *d.Spec.Replicas,
			Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable"},
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
			},
		}
		_ = w.Status().Update(w.Context(), d) // tried again while it is waited for
	}
}

// wiring makes sure that the API server takes what init writes for hosts, without
// unknown fields.
func (w *world) wiring(hosts ...string) {
	w.Helper()
	for _, host := range hosts {
		text, err := os.ReadFile(filepath.Join("..", "..", "templates", "wiring", host, host+".yaml"))
		w.must(err)
		objects := 0
		for _, doc := range strings.Split(string(text), "\n---\n") {
			o := &unstructured.Unstructured{}
			w.must(yaml.Unmarshal([]byte(doc), o))
			o.SetNamespace(w.namespace)
			if err := w.Create(w.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				w.Errorf("init --for %s: %v", host, err)
			}
			objects++
		}
		if objects < 2 {
			w.Errorf("init --for %s writes %d objects", host, objects)
		}
	}
}

// weather is the example in a repository, with a ConfigMap beside it.
func (w *world) weather(value string) map[string]string {
	w.Helper()
	out := map[string]string{}
	found, err := filepath.Glob(filepath.Join("..", "..", "examples", "weather-agent", "*.yaml"))
	w.must(err)
	for _, f := range found {
		data, err := os.ReadFile(f)
		w.must(err)
		out["apps/weather/"+filepath.Base(f)] = string(data)
	}
	if len(out) == 0 {
		w.Fatal("the example has no files")
	}
	if value != "" {
		out["apps/weather/settings.yaml"] = configMap("settings", value)
	}
	return out
}

// Flux's own kustomize-controller takes what is published: it applies, corrects
// and prunes, keeps the last good revision, and refuses an archive that was
// changed. The source is a GitRepository whose status and archive the test sets.
func TestKustomizeController(t *testing.T) {
	programs.Peer(t, "kustomize-controller")
	plane := controlplane.Start(t)
	folders, err := crdFolders()
	if err == nil {
		err = plane.InstallCRDs(append(folders, filepath.Join("..", "..", "templates", "crds", "catalog"))...)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, plane)
	w.start()
	kustomizeController(t, plane)
	w.wiring("flux", "flux-oci")
	w.repository("fleet", "c1", w.weather("one"))
	w.rendered("weather", "fleet", at("apps/weather"))
	w.ready("weather", "c1")
	k := w.kustomization("weather")
	k.Object["spec"] = map[string]any{
		"interval": "2s", "retryInterval": "2s", "timeout": "2m", "prune": true, "wait": true, "targetNamespace": w.namespace, "path": "./",
		"sourceRef": map[string]any{"kind": "ExternalArtifact", "name": "weather"},
	}
	w.must(w.Create(t.Context(), k))

	k = w.applied("weather")
	if origin, _, _ := unstructured.NestedString(k.Object, "status", "lastAppliedOriginRevision"); origin != "main@sha1:c1" {
		t.Errorf("lastAppliedOriginRevision %q", origin)
	}
	entries, _, _ := unstructured.NestedSlice(k.Object, "status", "inventory", "entries")
	if text := fmt.Sprint(entries); !strings.Contains(text, "apps_Deployment") || !strings.Contains(text, "_settings__ConfigMap") {
		t.Errorf("inventory %s", text)
	}
	var deployments appsv1.DeploymentList
	w.must(w.List(t.Context(), &deployments, client.InNamespace(w.namespace)))
	if len(deployments.Items) != 1 || deployments.Items[0].Annotations["armature.dev/injected"] == "" {
		t.Fatalf("%d Deployments, and none is injected", len(deployments.Items))
	}

	// A commit of one line arrives.
	value := func() string {
		c := &corev1.ConfigMap{}
		if err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "settings"}, c); client.IgnoreNotFound(err) != nil {
			return err.Error()
		}
		return c.Data["key"]
	}
	w.repository("fleet", "c2", w.weather("two"))
	w.ready("weather", "c2")
	w.applied("weather")
	if got := value(); got != "two" {
		t.Errorf("the commit did not arrive: %s", got)
	}

	// Intervals pass, and nothing is written.
	versions := func() (out string) {
		var maps corev1.ConfigMapList
		var services corev1.ServiceList
		for _, l := range []client.ObjectList{&deployments, &maps, &services} {
			w.must(w.List(t.Context(), l, client.InNamespace(w.namespace)))
		}
		for _, o := range deployments.Items {
			out += o.Name + " " + o.ResourceVersion + "\n"
		}
		for _, o := range maps.Items {
			out += o.Name + " " + o.ResourceVersion + "\n"
		}
		for _, o := range services.Items {
			out += o.Name + " " + o.ResourceVersion + "\n"
		}
		return out
	}
	before := versions()
	time.Sleep(5 * time.Second) // two intervals of the Kustomization and more
	if after := versions(); after != before {
		t.Errorf("objects were written while nothing changed:\n%s\n%s", before, after)
	}

	// A manual edit is corrected.
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "settings"}}
	w.must(w.Patch(t.Context(), c, client.RawPatch("application/merge-patch+json", []byte(`{"data":{"key":"by hand"}}`))))
	w.eventually("the edit is corrected", func() string { return strings.TrimPrefix(value(), "two") })

	// An error in a manifest: the last good one stays.
	broken := w.weather("three")
	broken["apps/weather/deployment.yaml"] += "  ]broken\n"
	w.repository("fleet", "c3", broken)
	if message := w.fails("weather", "RenderFailed"); !strings.Contains(message, "apps/weather/deployment.yaml:") {
		t.Errorf("no file and line in %s", message)
	}
	w.applied("weather")
	if got := value(); got != "two" {
		t.Errorf("a broken commit arrived: %s", got)
	}

	// What is no longer rendered is pruned, and nothing else.
	w.repository("fleet", "c4", w.weather(""))
	w.ready("weather", "c4")
	w.applied("weather")
	w.eventually("the ConfigMap is pruned", value)
	w.must(w.List(t.Context(), &deployments, client.InNamespace(w.namespace)))
	if len(deployments.Items) != 1 {
		t.Errorf("%d Deployments are left", len(deployments.Items))
	}

	// An archive that was changed on the disk is refused, and then repaired.
	file := filepath.Join(w.dir, filepath.FromSlash(w.published("weather")["path"].(string)))
	w.must(os.WriteFile(file, pack(t, map[string]string{"evil.yaml": configMap("evil", "x")}), 0o600))
	w.eventually("Flux refuses the archive", func() string {
		text := fmt.Sprint(w.kustomization("weather").Object["status"])
		if !strings.Contains(text, "digest") || !strings.Contains(text, "ArtifactFailed") {
			return text
		}
		return ""
	})
	err = w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "evil"}, &corev1.ConfigMap{})
	if err == nil || client.IgnoreNotFound(err) != nil {
		t.Errorf("the changed archive was applied: %v", err)
	}
	s := w.get("weather")
	s.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
	w.must(w.Update(t.Context(), s))
	w.applied("weather")
}
