package stories

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A developer has a Dockerfile in a public repository, asks for an
// image of it in mode dev, gets it by digest, and runs it. The log has the time that it took.
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
  cleanupAfterBuild: false
  source:
    sourceRepository: ${git}/public/${namespace}.git
    sourceRevision: main
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: GREETING, value: "good morning, all"}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1, labels: {story: "a, b"}}
`)

	build := s.succeeded(t, "hello")
	if got := build.Status.Source.Git.CommitSHA; got != commit {
		t.Errorf("commit %s was built, want %s", got, commit)
	}
	image := regexp.MustCompile("^" + regexp.QuoteMeta(s.info.Registry+"/"+s.namespace+"/hello") +
		"(:v1)?@sha256:[0-9a-f]{64}$")
	if !image.MatchString(build.Status.BuiltImage) {
		t.Fatalf("the image is %q, want %s", build.Status.BuiltImage, image)
	}

	must(t, s.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: s.namespace},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "agent", Image: build.Status.BuiltImage}}},
	}))
	s.says(t, "hello", "good morning, all from root")
	img, err := remote.Image(reference(t, strings.Replace(build.Status.BuiltImage, s.info.Registry,
		s.info.HostRegistry, 1)))
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	if got := config.Config.Labels["story"]; got != "a, b" {
		t.Errorf("the image's label is %q", got)
	}
	t.Logf("the build took %s:%s", build.Status.CompletionTime.Sub(build.CreationTimestamp.Time),
		s.times(t))
	s.securityContexts(t)
}

// times of the namespace's TaskRuns, for the log.
func (s *story) times(t *testing.T) string {
	t.Helper()
	var tasks tektonv1.TaskRunList
	must(t, s.List(t.Context(), &tasks, client.InNamespace(s.namespace)))
	var text strings.Builder
	for _, task := range tasks.Items {
		fmt.Fprintf(&text, "\n  %s: from %s to %s", task.Labels["tekton.dev/pipelineTask"],
			task.CreationTimestamp.UTC().Format("15:04:05"),
			task.Status.CompletionTime.UTC().Format("15:04:05"))
	}
	return text.String()
}
