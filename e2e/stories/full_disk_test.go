package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// A build fills its disk. Where the namespace has a LimitRange for that, as docs/operate.md
// has it, the kubelet ends its pod, and it leaves no image: the build fails, and is not tried
// again, since it would fill its disk again. A build beside it succeeds.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/greedy", "public/"+s.namespace+".git")
	s.apply(t, `
apiVersion: v1
kind: LimitRange
metadata: {name: disk}
spec: {limits: [{type: Container, default: {ephemeral-storage: 300Mi}, defaultRequest: {ephemeral-storage: 10Mi}}]}
`)
	const build = `
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: dev
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  retries: {limit: 1, backoff: 1s}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}, {name: MEGABYTES, value: "SIZE"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
`
	s.apply(t, strings.NewReplacer("NAME", "greedy", "SIZE", "1500").Replace(build))
	s.building(t, "greedy")
	s.apply(t, strings.NewReplacer("NAME", "modest", "SIZE", "1").Replace(build))
	run := s.runOf(t, "greedy")
	eventually(t, 10*time.Minute, "the pod that fills its disk is evicted",
		func(ctx context.Context) error {
			var pod corev1.Pod
			if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace,
				Name: run.Name + "-buildkit-build-pod"}, &pod); err != nil {
				return err
			}
			if pod.Status.Reason != "Evicted" ||
				!strings.Contains(pod.Status.Message, "ephemeral") {
				return fmt.Errorf("it is %s %s: %s", pod.Status.Phase, pod.Status.Reason,
					pod.Status.Message)
			}
			return nil
		})
	s.succeeded(t, "modest")
	// Tekton 1.15.1 does not notice that the pod is gone, and the controller does.
	greedy := s.finished(t, "greedy")
	if greedy.Status.Phase != api.PhaseFailed || greedy.Status.BuiltImage != "" ||
		greedy.Status.Attempt != 1 {
		t.Errorf("attempt %d ended %s with image %q", greedy.Status.Attempt, greedy.Status.Phase,
			greedy.Status.BuiltImage)
	}
	if d := greedy.Status.FailureDetails; d == nil || d.Reason != api.ReasonEvicted ||
		d.Cause != "" || d.Task != "buildkit-build" {
		t.Errorf("the failure is %+v", d)
	}
	if _, err := remote.Head(reference(t, s.info.HostRegistry+"/"+s.namespace+"/greedy:v1")); err == nil {
		t.Error("its image was pushed")
	}
}
