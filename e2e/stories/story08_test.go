package stories

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

const slowBuild = `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: slow}
spec:
  mode: dev
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: SECONDS, value: "600"}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: slow, imageTag: v1}
`

// Story 8: somebody cancels a build that takes too long. It stops, and is said
// to be cancelled, not failed. Changed, it is built after all.
func TestStory08CancelThenBuildAgain(t *testing.T) {
	t.Parallel()
	s := enter(t, nil)
	s.installed(t)
	s.push(t, "testdata/slow", "public/"+s.namespace+".git")
	s.apply(t, slowBuild)
	s.building(t, "slow")

	s.edit(t, "slow", func(build *api.AgentBuild) { build.Spec.Cancel = true })
	if phase := s.finished(t, "slow").Status.Phase; phase != api.PhaseCancelled {
		t.Fatalf("the build ended %s, want %s", phase, api.PhaseCancelled)
	}
	eventually(t, time.Minute, "its pods stop", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := s.List(ctx, &pods, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.Status.Phase == corev1.PodRunning {
				return fmt.Errorf("pod %s runs", pod.Name)
			}
		}
		return nil
	})

	s.edit(t, "slow", func(build *api.AgentBuild) {
		build.Spec.Cancel = false
		build.Spec.BuildArgs[1].Value = new("1")
	})
	eventually(t, 5*time.Minute, "the changed build succeeds", func(ctx context.Context) error {
		var build api.AgentBuild
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "slow"}, &build); err != nil {
			return err
		}
		if build.Status.Phase != api.PhaseSucceeded {
			return fmt.Errorf("it is %s: %s", build.Status.Phase, build.Status.Message)
		}
		return nil
	})
}

// Story 8, too: a build that hangs ends at its timeout, and the status says so.
func TestStory08ATimeoutIsNamed(t *testing.T) {
	t.Parallel()
	s := enter(t, nil)
	s.installed(t)
	s.push(t, "testdata/slow", "public/"+s.namespace+".git")
	s.apply(t, slowBuild+"  timeout: 1m\n")

	build := s.finished(t, "slow")
	condition := apimeta.FindStatusCondition(build.Status.Conditions, "BuildSucceeded")
	if build.Status.Phase != api.PhaseFailed || condition == nil || condition.Reason != api.ReasonTimeout {
		t.Errorf("the build ended %s with condition %+v, want reason %s", build.Status.Phase, condition, api.ReasonTimeout)
	}
}

// building waits until the image itself is being built.
func (s *stage) building(t *testing.T, name string) {
	t.Helper()
	eventually(t, 5*time.Minute, "build "+name+" builds the image", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := s.List(ctx, &pods, client.InNamespace(s.namespace), client.MatchingLabels{"tekton.dev/pipelineTask": "kaniko-build"}); err != nil {
			return err
		}
		if len(pods.Items) == 0 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("its pod does not run yet")
		}
		return nil
	})
}

func (s *stage) edit(t *testing.T, name string, change func(*api.AgentBuild)) {
	t.Helper()
	var build api.AgentBuild
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, &build))
	before := build.DeepCopy()
	change(&build)
	must(t, s.Patch(t.Context(), &build, client.MergeFrom(before)))
}
