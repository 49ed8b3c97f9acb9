package stories

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// securityContexts logs those of a build's pods and their containers, and fails unless
// the namespace enforces Pod Security baseline. The build's run still has to exist.
func (s *story) securityContexts(t *testing.T) {
	t.Helper()
	var namespace corev1.Namespace
	must(t, s.Get(t.Context(), client.ObjectKey{Name: s.namespace}, &namespace))
	if level := namespace.Labels["pod-security.kubernetes.io/enforce"]; level != "baseline" {
		t.Errorf("the namespace enforces Pod Security %q", level)
	}
	for _, pod := range s.buildPods(t) {
		contexts := map[string]any{"pod": pod.Spec.SecurityContext}
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			contexts[c.Name] = c.SecurityContext
		}
		text, err := yaml.Marshal(contexts)
		must(t, err)
		t.Logf("security contexts of %s:\n%s", pod.Labels["tekton.dev/pipelineTask"], text)
	}
}

// atRestricted fails unless Pod Security restricted lets in the build's pods, as far as
// their containers are those of steps. Tekton's own ask for it with its setting
// set-security-context.
func (s *story) atRestricted(t *testing.T) {
	t.Helper()
	strict := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	for _, pod := range s.buildPods(t) {
		again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: strict.namespace,
			Name: pod.Name}, Spec: *pod.Spec.DeepCopy()}
		again.Spec.InitContainers, again.Spec.NodeName = nil, ""
		if err := s.Create(t.Context(), again, client.DryRunAll); err != nil {
			t.Errorf("the steps of %s: %v", pod.Labels["tekton.dev/pipelineTask"], err)
		}
	}
}

// buildPods are the namespace's of Tekton.
func (s *story) buildPods(t *testing.T) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	must(t, s.List(t.Context(), &pods, client.InNamespace(s.namespace),
		client.HasLabels{"tekton.dev/taskRun"}))
	if len(pods.Items) == 0 {
		t.Fatal("the run left no pods to look at")
	}
	byTask := map[string]corev1.Pod{}
	for _, pod := range pods.Items {
		byTask[pod.Labels["tekton.dev/pipelineTask"]] = pod
	}
	return slices.Collect(maps.Values(byTask))
}
