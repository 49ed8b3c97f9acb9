package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
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

// Somebody cancels a build that takes too long. It stops, and is reported
// as cancelled, not failed. Changed, it is built after all.
func TestCancelThenBuildAgain(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/slow", "public/"+s.namespace+".git")
	s.apply(t, slowBuild)
	s.building(t, "slow")

	armature(t, "build", "cancel", "slow", "--namespace="+s.namespace)
	if phase := s.finished(t, "slow").Status.Phase; phase != api.PhaseCancelled {
		t.Fatalf("the build ended %s, want %s", phase, api.PhaseCancelled)
	}
	eventually(t, 5*time.Minute, "its pods stop", func(ctx context.Context) error {
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
	eventually(t, 20*time.Minute, "the changed build succeeds", func(ctx context.Context) error {
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

// A build that hangs ends at its timeout, and the status says so.
func TestTimeoutIsNamed(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/slow", "public/"+s.namespace+".git")
	s.apply(t, slowBuild+"  timeout: 1m\n")

	build := s.finished(t, "slow")
	condition := apimeta.FindStatusCondition(build.Status.Conditions, "BuildSucceeded")
	if build.Status.Phase != api.PhaseFailed || condition == nil ||
		condition.Reason != api.ReasonTimeout {
		t.Errorf("the build ended %s with condition %+v, want reason %s", build.Status.Phase,
			condition, api.ReasonTimeout)
	}
}

// building waits until the image itself is being built.
func (s *story) building(t *testing.T, name string) {
	t.Helper()
	eventually(t, 20*time.Minute, "build "+name+" builds the image",
		func(ctx context.Context) error {
			var pods corev1.PodList
			if err := s.List(ctx, &pods, client.InNamespace(s.namespace),
				client.MatchingLabels{"tekton.dev/pipelineTask": "buildkit-build"}); err != nil {
				return err
			}
			if len(pods.Items) == 0 || pods.Items[0].Status.Phase != corev1.PodRunning {
				return fmt.Errorf("its pod does not run yet")
			}
			return nil
		})
}

func (s *story) edit(t *testing.T, name string, change func(*api.AgentBuild)) {
	t.Helper()
	var build api.AgentBuild
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, &build))
	before := build.DeepCopy()
	change(&build)
	must(t, s.Patch(t.Context(), &build, client.MergeFrom(before)))
}

// A branch that moves builds nothing by itself; a rerun builds what
// is there now.
func TestRerun(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	repository := "public/" + s.namespace + ".git"
	first := s.push(t, "testdata/hello", repository)
	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: dev
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1}
`)
	before := s.succeeded(t, "hello").Status
	second := s.push(t, "testdata/hello", repository)
	if first == second || before.Source.Git.CommitSHA != first {
		t.Fatalf("commit %s was built, then %s pushed; want %s and another one",
			before.Source.Git.CommitSHA, second, first)
	}

	armature(t, "build", "rerun", "hello", "--namespace="+s.namespace)
	eventually(t, 20*time.Minute, "commit "+second+" is built", func(ctx context.Context) error {
		var build api.AgentBuild
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "hello"},
			&build); err != nil {
			return err
		}
		if status := build.Status; status.Phase != api.PhaseSucceeded ||
			status.Source.Git.CommitSHA != second || status.RunReason != api.TriggerCommit {
			return fmt.Errorf("it is %s, of commit %s, because of %s", status.Phase,
				status.Source.Git.CommitSHA, status.RunReason)
		}
		return nil
	})
}

// The base image is not there yet. The build is tried again after a
// while, and then it is. Another one hopes in vain, and ends at its bound.
func TestRetry(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	const build = `
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: dev
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/${namespace}/NAME-base:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}
  retries: {limit: 1, backoff: 20s, after: [Any]}
`
	s.apply(t,
		strings.ReplaceAll(build, "NAME", "patient")+strings.ReplaceAll(build, "NAME", "hopeless"))

	attempt := func(name string, number int32, phase api.Phase) {
		eventually(t, 20*time.Minute, fmt.Sprintf("attempt %d at %s ends %s", number, name, phase),
			func(ctx context.Context) error {
				var build api.AgentBuild
				if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name},
					&build); err != nil {
					return err
				}
				if build.Status.Attempt != number || build.Status.Phase != phase {
					return fmt.Errorf("it is attempt %d, %s: %s", build.Status.Attempt,
						build.Status.Phase, build.Status.Message)
				}
				return nil
			})
	}
	attempt("patient", 1, api.PhaseFailed)
	base, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox:latest"))
	must(t, err)
	must(t, remote.Write(reference(t, s.info.HostRegistry+"/"+s.namespace+"/patient-base:latest"), base))
	attempt("patient", 2, api.PhaseSucceeded)

	attempt("hopeless", 2, api.PhaseFailed)
	if hopeless := s.finished(t, "hopeless"); !strings.Contains(hopeless.Status.Message,
		"no more retries") {
		t.Errorf("the status does not say that this was the last attempt: %s", hopeless.Status.Message)
	}
}
