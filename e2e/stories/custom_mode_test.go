package stories

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/api/keys"
)

// A platform team has steps and templates of its own. The custom step
// and the custom template of source 000, "Extension Points", make a build mode
// just as they are printed there.
func TestCustomMode(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.pushScanner(t)

	// They are printed with this namespace.
	team := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kagenti-system"}}
	must(t, client.IgnoreAlreadyExists(s.Create(t.Context(), team)))
	t.Cleanup(func() {
		if err := s.Delete(context.Background(), team); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"custom-step.yaml", "custom-template.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "builds", "controller", "testdata",
			"source-000", name))
		must(t, err)
		printed, err := ssautil.ReadObjects(bytes.NewReader(text))
		must(t, err)
		for _, object := range printed { // the team shares them with the namespace of the build
			labels := object.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels[keys.SharePrefix+s.namespace] = "true"
			object.SetLabels(labels)
		}
		s.applyObjects(t, printed)
	}
	// The document names this step, but does not print it. It is found beside the
	// build.
	s.apply(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: compliance-check-task}
data:
  task-spec.yaml: |
    steps:
    - name: check
      image: docker.io/library/busybox:1.37.0
      script: echo it complies
`)

	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: weather}
spec:
  mode: enterprise
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline: {namespace: kagenti-system}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: weather, imageTag: v1}
`)
	s.succeeded(t, "weather")
	s.taskSays(t, "security-scan", "scan", "scanned "+s.info.Registry+"/"+s.namespace+"/weather:v1")
	s.taskSays(t, "compliance-check", "check", "it complies")
}

// A build lists its own steps in mode custom. One hands its result
// to the next, and one is left out because of it.
func TestStepsOfABuild(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.apply(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: count-step}
data:
  task-spec.yaml: |
    params: [{name: pattern, type: string}]
    workspaces: [{name: source}]
    results: [{name: count}]
    steps:
    - name: count
      image: docker.io/library/busybox:1.37.0
      workingDir: $(workspaces.source.path)
      script: printf %s "$(ls | grep -c '$(params.pattern)')" > $(results.count.path)
---
apiVersion: v1
kind: ConfigMap
metadata: {name: say-step}
data:
  task-spec.yaml: |
    params: [{name: words, type: array}]
    steps:
    - name: say
      image: docker.io/library/busybox:1.37.0
      command: [echo, "$(params.words[*])"]
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: counted}
spec:
  mode: custom
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    steps:
    - {name: clone, configMap: github-clone-step}
    - name: count
      configMap: count-step
      parameters: [{name: pattern, value: "[.]sh$"}]
    - name: say
      configMap: say-step
      parameters: [{name: words, array: [it, has, $(tasks.count.results.count), script]}]
    - name: complain
      configMap: say-step
      parameters: [{name: words, array: [there, are, too, many]}]
      whenExpressions: [{input: $(tasks.count.results.count), operator: notin, values: ["1"]}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: none, imageTag: v1}
`)
	s.succeeded(t, "counted")
	s.taskSays(t, "say", "say", "it has 1 script")
	s.securityContexts(t)
	var pods corev1.PodList
	must(t, s.List(t.Context(), &pods, client.InNamespace(s.namespace),
		client.MatchingLabels{"tekton.dev/pipelineTask": "complain"}))
	if len(pods.Items) > 0 {
		t.Error("the step that was to be left out was run")
	}
}

// taskSays looks for a line in the log of a step.
func (s *story) taskSays(t *testing.T, task, step, want string) {
	t.Helper()
	eventually(t, 5*time.Minute, fmt.Sprintf("task %s says %q", task, want),
		func(ctx context.Context) error {
			var pods corev1.PodList
			if err := s.List(ctx, &pods, client.InNamespace(s.namespace),
				client.MatchingLabels{"tekton.dev/pipelineTask": task}); err != nil {
				return err
			}
			if len(pods.Items) != 1 {
				return fmt.Errorf("it has %d pods", len(pods.Items))
			}
			text, err := s.log(ctx, pods.Items[0].Name, "step-"+step)
			if err == nil && strings.TrimSpace(text) != want {
				err = fmt.Errorf("it says %q", text)
			}
			return err
		})
}

// pushScanner makes security-scanner:latest, the image of the printed step, with
// the program scan-image, and puts it into the mirror.
func (s *story) pushScanner(t *testing.T) {
	t.Helper()
	_, busybox, _ := strings.Cut(s.info.Images["busybox"], "@")
	base, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox@"+busybox))
	must(t, err)
	var files bytes.Buffer
	archive := tar.NewWriter(&files)
	program := "#!/bin/sh\necho \"scanned $1\"\n"
	must(t,
		archive.WriteHeader(&tar.Header{Name: "bin/scan-image", Mode: 0o755, Size: int64(len(program))}))
	_, err = io.WriteString(archive, program)
	must(t, err)
	must(t, archive.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	})
	must(t, err)
	image, err := mutate.AppendLayers(base, layer)
	must(t, err)
	mirror := strings.Replace(s.info.Mirror, s.info.Registry, s.info.HostRegistry, 1)
	must(t, remote.Write(reference(t, mirror+"/docker.io/library/security-scanner:latest"), image))
}
