package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A pod that is evicted by the API in the middle of a build, as when a node is drained, costs
// time and not the build: Tekton makes the pod again, or the run fails and is tried again.
func TestEvictedBuild(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/slow", "public/"+s.namespace+".git")
	s.apply(t, strings.Replace(slowBuild, `"600"`, `"15"`, 1)+
		"  cleanupAfterBuild: false\n  retries: {limit: 1, backoff: 1s}\n")
	s.building(t, "slow")
	run := s.runOf(t, "slow")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace,
		Name: run.Name + "-buildkit-build-pod"}}
	eventually(t, 10*time.Minute, "the pod that builds runs", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	must(t, s.SubResource("eviction").Create(t.Context(), pod, &policyv1.Eviction{}))
	build := s.succeeded(t, "slow")
	t.Logf("attempt %d succeeded: %s", build.Status.Attempt, build.Status.Message)
}
