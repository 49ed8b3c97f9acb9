package status_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/status"
)

var _ = controlplane.Only

// shared is the one control plane of this package.
var shared controlplane.Shared

func TestMain(m *testing.M) {
	os.Exit(shared.Main(m, func(plane *controlplane.ControlPlane) error {
		return plane.InstallCRDs("testdata/crds.yaml")
	}))
}

// world is one test's namespace on the shared API server. No controller runs:
// the test writes the statuses.
type world struct {
	testing.TB
	dynamic.Interface
	namespace string
	requests  *requests
}

var worlds atomic.Int32

func newWorld(t *testing.T) *world {
	t.Helper()
	plane := shared.Get(t)
	t.Parallel()
	w := &world{TB: t, namespace: fmt.Sprintf("team%d", worlds.Add(1)), requests: &requests{}}
	var err error
	w.Interface, err = dynamic.NewForConfig(plane.Admin.Config)
	w.must(err)
	w.create("{apiVersion: v1, kind: Namespace, metadata: {name: NS}}")
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// requests notes what is asked of the API server.
type requests struct {
	mu  sync.Mutex
	all []string
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		r.mu.Lock()
		r.all = append(r.all, q.Method+" "+q.URL.Path)
		r.mu.Unlock()
		return next.RoundTrip(q)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// report reads the namespace as the command does.
func (w *world) report() status.Report {
	w.Helper()
	config := rest.CopyConfig(shared.Get(w.TB).Admin.Config)
	config.Wrap(w.requests.wrap)
	c, err := dynamic.NewForConfig(config)
	w.must(err)
	live, err := status.Read(w.Context(), c, w.namespace)
	w.must(err)
	return status.Of(live)
}

// plurals are the resources of the kinds that tests make.
var plurals = map[string]string{
	"NetworkPolicy": "networkpolicies", "HorizontalPodAutoscaler": "horizontalpodautoscalers",
}

func (w *world) in(o *unstructured.Unstructured) dynamic.ResourceInterface {
	gv, err := schema.ParseGroupVersion(o.GetAPIVersion())
	w.must(err)
	plural := plurals[o.GetKind()]
	if plural == "" {
		plural = strings.ToLower(o.GetKind()) + "s"
	}
	if o.GetKind() == "Namespace" {
		return w.Resource(gv.WithResource(plural))
	}
	return w.Resource(gv.WithResource(plural)).Namespace(w.namespace)
}

// create makes an object from YAML, in which NS is the test's namespace.
func (w *world) create(text string) *unstructured.Unstructured {
	w.Helper()
	o := &unstructured.Unstructured{}
	w.must(yaml.Unmarshal([]byte(strings.ReplaceAll(text, "NS", w.namespace)), &o.Object))
	made, err := w.in(o).Create(w.Context(), o, metav1.CreateOptions{})
	w.must(err)
	return made
}

// kagenti is a configuration with all that a status shows.
const kagenti = "\n    profile: kagenti\n    trace: {enabled: true}"

// apply renders manifests and creates what comes out.
func (w *world) apply(config, manifests string) map[string]*unstructured.Unstructured {
	w.Helper()
	read, findings := render.ReadConfig(
		[]byte("apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nspec: "+config+"\n"),
		"armature.yaml")
	if finding.Failed(findings) {
		w.Fatal(findings)
	}
	src := render.Source{
		Files: []render.File{{Path: "app.yaml",
			Data: []byte(strings.ReplaceAll(manifests, "NS", w.namespace))}}}
	r, err := render.Run(src, render.Options{Config: read})
	w.must(err)
	if finding.Failed(r.Findings) {
		w.Fatal(r.Findings)
	}
	made := make(map[string]*unstructured.Unstructured)
	for _, f := range r.Files {
		render.EachObject(f.Data, func(d krm.Document, _ bool, _ int, _ finding.Ref) {
			o := w.create(string(f.Data[d.Start:d.End]))
			made[o.GetKind()+"/"+o.GetName()] = o
		})
	}
	return made
}

// status writes the status of an object, as a controller would.
func (w *world) status(o *unstructured.Unstructured, text string) {
	w.Helper()
	live, err := w.in(o).Get(w.Context(), o.GetName(), metav1.GetOptions{})
	w.must(err)
	var value map[string]any
	w.must(yaml.Unmarshal([]byte(text), &value))
	live.Object["status"] = value
	_, err = w.in(o).UpdateStatus(w.Context(), live, metav1.UpdateOptions{})
	w.must(err)
}

// pod creates a pod of a workload, as its controller would.
func (w *world) pod(workload *unstructured.Unstructured, name string) *unstructured.Unstructured {
	w.Helper()
	template, found, err := unstructured.NestedMap(workload.Object, "spec", "template")
	w.must(err)
	if !found {
		w.Fatalf("%s has no pod template", workload.GetKind())
	}
	metadata, _ := template["metadata"].(map[string]any)
	metadata["name"] = name
	delete(metadata, "creationTimestamp")
	pod := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod",
		"metadata": metadata, "spec": template["spec"]}}
	made, err := w.in(pod).Create(w.Context(), pod, metav1.CreateOptions{})
	w.must(err)
	return made
}

// podStatus writes a pod's: all containers up but those that wait for a reason.
func (w *world) podStatus(pod *unstructured.Unstructured, waiting map[string]string) {
	w.Helper()
	ready := "True"
	if len(waiting) > 0 {
		ready = "False"
	}
	text := "phase: Running\nconditions: [{type: PodScheduled, status: 'True'}, {type: " +
		"Ready, status: '" + ready + "'}]\n"
	for spec, field := range map[string]string{"initContainers": "initContainerStatuses",
		"containers": "containerStatuses"} {
		list, _, err := unstructured.NestedSlice(pod.Object, "spec", spec)
		w.must(err)
		text += field + ":\n"
		for _, c := range list {
			name := c.(map[string]any)["name"].(string)
			state := "running: {startedAt: '2026-01-01T00:00:00Z'}"
			if reason, waits := waiting[name]; waits {
				state = "waiting: {reason: " + reason + ", message: why}"
			}
			text += fmt.Sprintf(
				"- {name: %s, image: a, imageID: a, restartCount: 0, ready: %t, state: {%s}}\n",
				name, waiting[name] == "", state)
		}
		if len(list) == 0 {
			text = strings.TrimSuffix(text, field+":\n")
		}
	}
	w.status(pod, text)
}

func (w *world) patch(o *unstructured.Unstructured, patch string) {
	w.Helper()
	_, err := w.in(o).Patch(w.Context(), o.GetName(), types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	w.must(err)
}

func (w *world) delete(o *unstructured.Unstructured) {
	w.Helper()
	zero := int64(0)
	w.must(w.in(o).Delete(w.Context(), o.GetName(),
		metav1.DeleteOptions{GracePeriodSeconds: &zero}))
}
