package stories

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// Story 1: a developer has a Dockerfile in a public repository, asks for an
// image of it in mode dev, gets it by digest, and runs it.
func TestStory01FromPublicGitToARunningPod(t *testing.T) {
	t.Parallel()
	s := enter(t, nil)
	s.installed(t)
	commit := s.push(t, "testdata/hello", "public/"+s.namespace+".git")

	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: dev
  source:
    sourceRepository: ${git}/public/${namespace}.git
    sourceRevision: main
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: GREETING, value: good morning}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1}
`, map[string]string{"git": s.info.GitHTTP, "registry": s.info.Registry, "namespace": s.namespace})

	build := s.finished(t, "hello", 5*time.Minute)
	if build.Status.Phase != api.PhaseSucceeded {
		t.Fatalf("the build ended %s: %s", build.Status.Phase, build.Status.Message)
	}
	if got := build.Status.Source.Git.CommitSHA; got != commit {
		t.Errorf("commit %s was built, want %s", got, commit)
	}
	image := regexp.MustCompile("^" + regexp.QuoteMeta(s.info.Registry+"/"+s.namespace+"/hello") + "(:v1)?@sha256:[0-9a-f]{64}$")
	if !image.MatchString(build.Status.BuiltImage) {
		t.Fatalf("the image is %q, want %s", build.Status.BuiltImage, image)
	}

	must(t, s.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: s.namespace},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: build.Status.BuiltImage}}},
	}))
	eventually(t, time.Minute, "the image says what it was built to say", func(ctx context.Context) error {
		said, err := s.log(ctx, "hello", "agent")
		if err != nil {
			return err
		}
		if strings.TrimSpace(said) != "good morning from root" {
			return fmt.Errorf("it said %q", said)
		}
		return nil
	})
}

// finished waits for the end of a build, good or bad.
func (s *stage) finished(t *testing.T, name string, limit time.Duration) *api.AgentBuild {
	t.Helper()
	build := &api.AgentBuild{}
	eventually(t, limit, "build "+name+" ends", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, build); err != nil {
			return err
		}
		if build.Status.CompletionTime == nil {
			return fmt.Errorf("it is %q: %s", build.Status.Phase, build.Status.Message)
		}
		return nil
	})
	return build
}
