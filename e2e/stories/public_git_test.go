package stories

import (
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A developer has a Dockerfile in a public repository, asks for an
// image of it in mode dev, gets it by digest, and runs it.
func TestFromPublicGitToARunningPod(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
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
`)

	build := s.succeeded(t, "hello")
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
	s.says(t, "hello", "good morning from root")
}
