package stories

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What `armature render` makes of an agent runs, whatever kind of
// workload it is. Its containers start in 001's order, each when the one before
// it has done its part; and a Job ends although its sidecars would run for ever.
func TestRenderedAgentsRun(t *testing.T) {
	t.Parallel()
	s := enterForAgents(t)
	s.applyObjects(t,
		s.rendered(t, s.agents(t, "deployment.yaml", "statefulset.yaml", "daemonset.yaml", "job.yaml")))

	for _, name := range []string{"deployment", "statefulset", "daemonset", "job", "cronjob"} {
		// One after another: the pods hold a third of the node's CPU. A parallel subtest
		// would wait for the end of a build that waits for that CPU.
		t.Run(name, func(t *testing.T) {
			// The CronJob waits for the minute to begin.
			eventually(t, 5*time.Minute, name+" has started in order",
				func(ctx context.Context) error {
					var pods corev1.PodList
					if err := s.List(ctx, &pods, client.InNamespace(s.namespace),
						client.MatchingLabels{"app": name}); err != nil {
						return err
					}
					if len(pods.Items) == 0 {
						return fmt.Errorf("no pod yet")
					}
					pod := pods.Items[0]
					switch ends := name == "job" || name == "cronjob"; {
					case ends && pod.Status.Phase != corev1.PodSucceeded:
						return fmt.Errorf("pod %s is %s, not yet done", pod.Name, pod.Status.Phase)
					case !ends && !ready(pod):
						return fmt.Errorf("pod %s is not ready", pod.Name)
					}
					order, err := s.startOrder(ctx, pod)
					if err != nil {
						return err
					}
					want := []string{"proxy-init", "spiffe-helper", "client-registration",
						"auth-proxy", "envoy-proxy", "agent"}
					if diff := cmp.Diff(want, order); diff != "" {
						return fmt.Errorf("start order (-want +got):\n%s", diff)
					}
					return nil
				})
			if name == "job" {
				var job batchv1.Job
				eventually(t, 5*time.Minute, "the Job completes", func(ctx context.Context) error {
					if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name},
						&job); err != nil {
						return err
					}
					if job.Status.CompletionTime == nil {
						return fmt.Errorf("it is %+v", job.Status)
					}
					return nil
				})
			}
		})
	}
}

// startOrder sorts a pod's containers by the time of the first line in the log of
// each, "NAME starts".
func (s *story) startOrder(ctx context.Context, pod corev1.Pod) ([]string, error) {
	began := map[string]time.Time{}
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		text, err := s.logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name,
			&corev1.PodLogOptions{Container: container.Name, Timestamps: true}).DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		line, _, _ := strings.Cut(string(text), "\n")
		stamp, message, _ := strings.Cut(line, " ")
		if message != container.Name+" starts" {
			return nil, fmt.Errorf("container %s says %q first", container.Name, line)
		}
		if began[container.Name], err = time.Parse(time.RFC3339Nano, stamp); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Keys(began),
		func(a, b string) int { return began[a].Compare(began[b]) }), nil
}

// Pod Security is as docs/containers.md says. Of a rendered pod,
// only proxy-init is not fit for the level "restricted"; without it the whole pod
// is.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	s := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	folder := s.agents(t, "deployment.yaml")

	objects := s.rendered(t, folder)
	for _, object := range objects { // no pod is let in before its ServiceAccount exists
		if object.GetKind() == "ServiceAccount" {
			must(t, s.Create(t.Context(), object))
		}
	}
	err := s.Create(t.Context(), podOf(t, objects), client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) ||
		!strings.Contains(err.Error(), `"proxy-init"`) {
		t.Fatalf("a pod with proxy-init: %v, want that Pod Security refuses it", err)
	}
	for _, container := range []string{"spiffe-helper", "client-registration", "auth-proxy",
		"envoy-proxy", "agent", "volume"} {
		if strings.Contains(err.Error(), container) {
			t.Errorf("%s is not fit for restricted: %v", container, err)
		}
	}

	rewrite(t, folder, "armature.yaml", "proxy-init: {", "proxy-init: {enabled: false, ")
	if err := s.Create(t.Context(), podOf(t, s.rendered(t, folder)), client.DryRunAll); err != nil {
		t.Errorf("a pod without proxy-init is refused: %v", err)
	}
}

// podOf is the pod that the Deployment among objects would make.
func podOf(t *testing.T, objects []*unstructured.Unstructured) *corev1.Pod {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == "Deployment" {
			var deployment appsv1.Deployment
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment))
			return &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace,
					Name: deployment.Name},
				Spec: deployment.Spec.Template.Spec,
			}
		}
	}
	t.Fatal("there is no Deployment")
	return nil
}
