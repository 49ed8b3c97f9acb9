package stories

import (
	"path/filepath"
	"strings"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// A build that was published for the operator's earlier versions, with its steps by their
// names, runs as it is, but for where it gets its source and puts its image: with kaniko.
func TestPublishedBuild(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "private/"+s.namespace+".git")
	s.secret(t, "github-token-secret", corev1.SecretTypeBasicAuth,
		map[string]string{"username": "robot", "password": s.info.GitToken})
	published := s.publishedBuild(t)
	s.applyObjects(t, []*unstructured.Unstructured{published})

	build := s.succeeded(t, published.GetName())
	if !strings.HasPrefix(build.Status.BuiltImage,
		s.info.Registry+"/"+s.namespace+"/weather-service") {
		t.Errorf("the image is %q", build.Status.BuiltImage)
	}
	var tasks tektonv1.TaskRunList
	must(t, s.List(t.Context(), &tasks, client.InNamespace(s.namespace)))
	ran := map[string]bool{}
	for _, task := range tasks.Items {
		ran[task.Labels["tekton.dev/pipelineTask"]] = task.IsSuccessful()
	}
	if !ran["github-clone"] || !ran["folder-verification"] || !ran["kaniko-build"] || len(ran) != 3 {
		t.Errorf("the tasks that ran are %v", ran)
	}
	s.securityContexts(t)
}

// publishedBuild is one with its source and its image in the cluster's places.
func (s *story) publishedBuild(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("..", "..", "builds", "compose", "testdata",
		"published-steps.txtar"))
	must(t, err)
	published := &unstructured.Unstructured{}
	for _, file := range archive.Files {
		if file.Name == "build.yaml" {
			must(t, yaml.Unmarshal(file.Data, &published.Object))
		}
	}
	set := func(value any, fields ...string) {
		must(t, unstructured.SetNestedField(published.Object, value,
			append([]string{"spec"}, fields...)...))
	}
	set(s.info.GitHTTP+"/private/"+s.namespace+".git", "source", "sourceRepository")
	set(".", "source", "sourceSubfolder")
	set(s.info.Registry+"/"+s.namespace, "buildOutput", "imageRegistry")
	set("armature-system", "pipeline", "namespace")
	set(false, "cleanupAfterBuild")
	set([]any{map[string]any{"name": "BASE",
		"value": s.info.Registry + "/armature/busybox:latest"}}, "buildArgs")
	published.SetNamespace(s.namespace)
	return published
}
