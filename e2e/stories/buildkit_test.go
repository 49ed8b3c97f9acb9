package stories

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// atBaseline is a namespace in which Pod Security lets in no pod above baseline.
var atBaseline = map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}

// BuildKit builds and another task pushes, in a namespace of Pod Security baseline,
// and the image runs. A Dockerfile that fails says where and why.
func TestBuildKit(t *testing.T) {
	t.Parallel()
	s := newStory(t, atBaseline)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.push(t, "testdata/broken", "public/"+s.namespace+"-broken.git")
	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: dev
  builder: buildkit
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline: {parameters: [{name: PLAIN_HTTP, value: "true"}]}
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: GREETING, value: "good morning, all"}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1, labels: {story: "a, b"}}
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: broken}
spec:
  mode: dev-local
  builder: buildkit
  source: {sourceRepository: "${git}/public/${namespace}-broken.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: broken, imageTag: v1}
`)
	build := s.succeeded(t, "hello")
	must(t, s.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: s.namespace},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: build.Status.BuiltImage}}},
	}))
	s.says(t, "hello", "good morning, all from root")
	img, err := remote.Image(reference(t, strings.Replace(build.Status.BuiltImage, s.info.Registry, s.info.HostRegistry, 1)))
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	if got := config.Config.Labels["story"]; got != "a, b" {
		t.Errorf("the image's label is %q", got)
	}

	broken := s.finished(t, "broken")
	s.failed(t, broken, "buildkit-build", "build")
	if tail := logTail(broken); !strings.Contains(tail, "the cupboard is bare") {
		t.Errorf("the last log lines lack the output of the Dockerfile's command:\n%s", tail)
	}
}

// fileOf an image, as text.
func (s *story) fileOf(t *testing.T, image, name string) string {
	t.Helper()
	img, err := remote.Image(reference(t, image))
	must(t, err)
	files := mutate.Extract(img)
	defer files.Close()
	for entries := tar.NewReader(files); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			t.Fatal(fmt.Errorf("%s has no file %s", image, name))
		}
		must(t, err)
		if strings.TrimPrefix(entry.Name, "/") == name {
			text, err := io.ReadAll(io.LimitReader(entries, 64<<20))
			must(t, err)
			return string(text)
		}
	}
}
