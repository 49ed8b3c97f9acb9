package stories

import (
	"archive/tar"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// A Dockerfile looks for logins and tokens in its files, the environment and the
// processes that it sees, and writes into Tekton's results. It finds and changes
// nothing.
func TestHostileDockerfile(t *testing.T) {
	t.Parallel()
	s := newStory(t, atBaseline)
	s.installed(t)
	s.push(t, "testdata/hostile", "private/"+s.namespace+".git")
	s.secret(t, "git-login", corev1.SecretTypeBasicAuth, map[string]string{"username": "story", "password": s.info.GitToken})
	const pushPassword = "push-canary-4711"
	auth := base64.StdEncoding.EncodeToString([]byte("robot:" + pushPassword))
	login, err := json.Marshal(map[string]any{"auths": map[string]any{"registry.example.com": map[string]string{"auth": auth}}})
	must(t, err)
	s.secret(t, "registry-login", corev1.SecretTypeDockerConfigJson, map[string]string{corev1.DockerConfigJsonKey: string(login)})
	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hostile}
spec:
  mode: dev-local
  builder: buildkit
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/private/${namespace}.git", sourceRevision: main, sourceCredentials: {name: git-login}}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hostile, imageTag: v1, imageRepoCredentials: {name: registry-login}}
`)
	build := s.succeeded(t, "hostile")
	loot := s.fileOf(t, strings.Replace(build.Status.BuiltImage, s.info.Registry, s.info.HostRegistry, 1), "loot")
	if !strings.Contains(loot, "planted-canary") || !strings.Contains(loot, "buildkitd") {
		t.Fatalf("the search finds neither its own canary nor the daemon, so that it proves nothing:\n%.2000s", loot)
	}
	for what, secret := range map[string]string{
		"the push password": pushPassword, "the push login": auth, "the Git token": s.info.GitToken,
		"a ServiceAccount token": "eyJhbGciOi", "a result": "wrote-a-result",
	} {
		if strings.Contains(loot, secret) {
			t.Errorf("the Dockerfile reached %s", what)
		}
	}
	var pods corev1.PodList
	must(t, s.List(t.Context(), &pods, client.InNamespace(s.namespace), client.HasLabels{"tekton.dev/taskRun"}))
	if len(pods.Items) == 0 {
		t.Fatal("the run left no pods to look at")
	}
	var pushed []string
	logins := map[string][]string{} // containers by the Secret that they mount
	for _, pod := range pods.Items {
		secrets := map[string]string{}
		for _, volume := range pod.Spec.Volumes {
			if volume.Secret != nil {
				secrets[volume.Name] = volume.Secret.SecretName
			}
		}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for _, mount := range container.VolumeMounts {
				if secret := secrets[mount.Name]; secret != "" {
					logins[secret] = append(logins[secret], pod.Labels["tekton.dev/pipelineTask"]+"/"+container.Name)
				}
			}
			if pod.Labels["tekton.dev/pipelineTask"] == "push" && container.Name == "step-push" {
				pushed = append(pushed, container.Image)
			}
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.Projected == nil {
				continue
			}
			for _, source := range volume.Projected.Sources {
				if source.ServiceAccountToken != nil {
					t.Errorf("pod %s has a ServiceAccount token", pod.Name)
				}
			}
		}
	}
	if want := map[string][]string{"git-login": {"github-clone/step-clone"}, "registry-login": {"push/step-push"}}; !maps.EqualFunc(logins, want, slices.Equal) {
		t.Errorf("containers with a login are %v, want %v", logins, want)
	}
	// It is the program of the controller that was installed, by --image.
	if want := s.info.Images["armature-controller"]; !slices.Equal(pushed, []string{want}) {
		t.Errorf("push runs %q, want %s", pushed, want)
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
