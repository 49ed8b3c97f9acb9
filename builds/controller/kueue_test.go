package controller_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/api/keys"
)

// apply makes the objects of a YAML text, those of the world in its namespace.
func (w *world) apply(text string) {
	w.Helper()
	for _, document := range strings.Split(text, "\n---\n") {
		u := &unstructured.Unstructured{}
		w.must(yaml.Unmarshal([]byte(strings.ReplaceAll(document, "$NAMESPACE", w.namespace)), &u.Object))
		w.must(w.Client.Create(w.Context(), u))
	}
}

// runKueue runs Kueue on a control plane until the test ends.
func runKueue(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	file := programs.Peer(t, "kueue")
	module := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue")
	module.Dir = filepath.Join("..", "..", "e2e", "kueue")
	folder, err := module.Output()
	if err == nil {
		err = plane.InstallCRDs(filepath.Join(strings.TrimSpace(string(folder)), "config",
			"components", "crd", "bases"))
	}
	if err != nil {
		t.Fatal(err)
	}
	var log controlplane.Output
	cmd := exec.Command(file)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+plane.Admin.Kubeconfig)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text := log.String(); t.Failed() {
			t.Logf("Kueue:\n%s", text[max(0, len(text)-6000):])
		}
	})
}

// Kueue admits whole runs: one for which its quota has no room waits, with Kueue's own message, and
// is created when another has ended; one that Kueue evicts is stopped and tried again. The
// controller has the rights that `armature install` grants.
func TestKueue(t *testing.T) {
	programs.Peer(t, "kueue")
	plane := controlplane.Start(t)
	w := newWorldOn(t, plane)
	w.must(furnish(plane))
	runKueue(t, plane)
	role, err := os.ReadFile(filepath.Join("..", "..", "templates", "install", "cluster", "role.yaml"))
	w.must(err)
	w.apply(string(role))
	access, err := plane.ServiceAccount(t.Context(), systemNamespace, "armature-controller")
	w.must(err)
	forbidden := &controlplane.Forbidden{}
	w.config = access.Config
	w.config.Wrap(forbidden.Wrap)
	w.apply(`apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: builds}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory, ephemeral-storage]
    flavors:
    - name: default
      resources:
      - {name: cpu, nominalQuota: 3}
      - {name: memory, nominalQuota: 1Ti}
      - {name: ephemeral-storage, nominalQuota: 1Ti}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: $NAMESPACE, name: builds}
spec: {clusterQueue: builds}`)
	w.options.QueueName = "builds"
	w.options.Namespaces = nil
	w.start()

	large := func(b *api.AgentBuild) {
		b.Spec.Pod = &api.PodSettings{
			Resources: &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}
		b.Spec.Retries = &api.Retries{Limit: 1,
			Backoff: &metav1.Duration{Duration: time.Millisecond}}
	}
	w.create("first", large, kept)
	first := w.soleRun("first")
	w.create("second", large, kept)
	w.queued("second",
		"waits for LocalQueue builds of Kueue: couldn't assign flavors to pod set run: "+
			"insufficient unused quota for cpu in flavor default")
	w.create("elsewhere", func(b *api.AgentBuild) {
		b.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "none"}
	})
	w.queued("elsewhere", "waits for LocalQueue none of Kueue: LocalQueue none doesn't exist")
	if label, is := first.Labels["kueue.x-k8s.io/queue-name"]; is || len(w.runs()) != 1 {
		t.Errorf("%d runs, and the pods of the first are to be gated for queue %q", len(w.runs()), label)
	}

	w.succeed(first)
	second := w.soleRun("second")
	if c := w.workload(first.Name, "Finished"); c["status"] != "True" || c["reason"] != "Succeeded" {
		t.Errorf("the Workload of a run that succeeded: %v", c)
	}

	stop := func(policy string) {
		t.Helper()
		queue := &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue",
				"metadata": map[string]any{"name": "builds"}}}
		w.must(w.Patch(t.Context(), queue,
			client.RawPatch(types.MergePatchType, []byte(`{"spec":{"stopPolicy":"`+policy+`"}}`))))
	}
	stop("HoldAndDrain")
	w.eventually("the evicted run is stopped", func() string {
		run := &tektonv1.PipelineRun{}
		w.must(w.Get(t.Context(), client.ObjectKeyFromObject(second), run))
		if run.Spec.Status != tektonv1.PipelineRunSpecStatusCancelledRunFinally ||
			!strings.Contains(run.Annotations[keys.AnnotationLost],
				"evicted by Kueue: The ClusterQueue is stopped") {
			return string(run.Spec.Status) + run.Annotations[keys.AnnotationLost]
		}
		return ""
	})
	ended := fmt.Sprintf(
		`{"status":{"completionTime":%q,"conditions":[{"type":"Succeeded","status":"False","reason":"Cancelled"}]}}`,
		time.Now().UTC().Format(time.RFC3339))
	w.must(w.Status().Patch(t.Context(), second,
		client.RawPatch(types.MergePatchType, []byte(ended))))
	got := w.queued("second",
		"waits for LocalQueue builds of Kueue: ClusterQueue builds is inactive")
	if d := got.Status.FailureDetails; d == nil || d.Reason != api.ReasonEvicted ||
		d.Cause != api.CauseEvicted {
		t.Errorf("the eviction is not in status: %+v", d)
	}
	stop("None")
	w.succeed(w.soleRun("second"))
	w.phase("second", api.PhaseSucceeded)

	// A build that is taken back leaves no Workload.
	w.change(w.build("elsewhere"), func(b *api.AgentBuild) { b.Spec.Cancel = true })
	w.phase("elsewhere", api.PhaseCancelled)
	w.eventually("only the Workloads of runs are left", func() string {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("kueue.x-k8s.io/v1beta2")
		list.SetKind("Workload")
		w.must(w.List(t.Context(), list, client.InNamespace(w.namespace)))
		var names []string
		for _, o := range list.Items {
			names = append(names, o.GetName())
		}
		if len(names) != len(w.runs()) {
			return strings.Join(names, " ")
		}
		return ""
	})
	if got := forbidden.All(); len(got) > 0 {
		t.Errorf("forbidden: %s", strings.Join(got, "\n"))
	}
}

// workload waits for a condition of a Workload.
func (w *world) workload(name, kind string) (found map[string]any) {
	w.Helper()
	w.eventually("Workload "+name+" is "+kind, func() string {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("kueue.x-k8s.io/v1beta2")
		u.SetKind("Workload")
		w.must(w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, u))
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			if found = c.(map[string]any); found["type"] == kind {
				return ""
			}
		}
		return "it is not"
	})
	return found
}

// Kueue admits isolated runs by the LocalQueue in the build namespace that has the name of the
// tenant's namespace, whatever the tenant says; what waits or has ended leaves no Workload.
func TestKueueIsolated(t *testing.T) {
	programs.Peer(t, "kueue")
	plane := controlplane.Start(t)
	w, s := newWorldOn(t, plane), newShop(t, true)
	w.must(furnish(plane))
	runKueue(t, plane)
	other := newWorldBeside(w)
	builds := w.options.Settings.BuildNamespace
	w.apply(`apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: builds}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory, ephemeral-storage]
    flavors:
    - name: default
      resources:
      - {name: cpu, nominalQuota: 3}
      - {name: memory, nominalQuota: 1Ti}
      - {name: ephemeral-storage, nominalQuota: 1Ti}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: $NAMESPACE-isolated, name: $NAMESPACE}
spec: {clusterQueue: builds}`)
	w.options.QueueName = "builds"
	w.options.Namespaces = []string{w.namespace, other.namespace}
	w.start()
	workloads := func() (names []string) {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("kueue.x-k8s.io/v1beta2")
		list.SetKind("Workload")
		w.must(w.List(t.Context(), list, client.InNamespace(builds)))
		for _, o := range list.Items {
			names = append(names, o.GetName())
		}
		return names
	}

	large := func(b *api.AgentBuild) {
		s.sold(b)
		b.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "mine"}
		b.Spec.Pod = &api.PodSettings{
			Resources: &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}
	}
	w.create("first", large, kept)
	first := w.released("first")
	w.create("second", large)
	w.queued("second", "waits for LocalQueue "+w.namespace+" of Kueue in namespace "+builds+
		": couldn't assign flavors to pod set run: insufficient unused quota for cpu")
	other.create("elsewhere", large)
	other.queued("elsewhere", "waits for LocalQueue "+other.namespace+" of Kueue in namespace "+
		builds+": LocalQueue "+other.namespace+" doesn't exist")
	if names := workloads(); len(names) != 3 || first.Namespace != builds {
		t.Errorf("Workloads %v, and the run is in %s", names, first.Namespace)
	}
	other.strip("elsewhere")
	w.must(w.Client.Delete(t.Context(), w.build("second")))
	w.eventually("what waited is gone", func() string {
		if names := workloads(); len(names) != 1 || names[0] != first.Name {
			return strings.Join(names, " ")
		}
		return ""
	})
	w.succeed(first)
	w.create("third", large)
	w.released("third")
	w.must(w.Client.Delete(t.Context(), w.build("first")))
	w.must(w.Client.Delete(t.Context(), w.build("third")))
	w.eventually("no Workload is left", func() string { return strings.Join(workloads(), " ") })
}
