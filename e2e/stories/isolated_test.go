package stories

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/compose"
)

// A team's namespace enforces Pod Security restricted. Its attested build runs in a namespace of
// the platform, with a copy of the team's login that goes with the run, and nothing of the run is
// in the team's namespace. (No other story runs meanwhile: this installation has a namespace for
// builds, and the others' has none.)
func TestIsolatedRuns(t *testing.T) {
	s := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	s.withoutInstallation(t)
	s.platform = s.namespace + "-home"
	builds := s.namespace + "-builds"
	values := filepath.Join(t.TempDir(), "values.yaml")
	must(t, os.WriteFile(values, []byte("{mode: namespaced, buildNamespace: "+builds+"}"), 0o600))
	s.install(t, s.platform, "--values="+values, "--watch-namespaces="+s.namespace)
	t.Cleanup(func() {
		for _, namespace := range []string{s.platform, builds} {
			if err := s.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
				t.Error(err)
			}
		}
	})
	pair := newKey(t)
	must(t, s.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.platform, Name: "armature-attest-key"},
		Data: map[string][]byte{"cosign.key": pair.PrivateBytes, "cosign.pub": pair.PublicBytes, "cosign.password": []byte(keyPassword)}}))
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.secret(t, "login", corev1.SecretTypeDockerConfigJson, map[string]string{corev1.DockerConfigJsonKey: s.registryLogin(t)})
	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: isolated}
spec:
  mode: `+s.briefProd(t)+`
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "true"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: isolated, imageTag: v1, imageRepoCredentials: {name: login}}
  cleanupAfterBuild: false
`)
	build := s.succeeded(t, "isolated")
	if a := build.Status.Attestation; a == nil || a.Image != build.Status.BuiltImage || build.Status.PipelineRunNamespace != builds {
		t.Fatalf("it is not attested of a run in %s: %+v", builds, build.Status)
	}
	run := &tektonv1.PipelineRun{}
	must(t, s.Get(t.Context(), build.RunKey(), run))
	if got := run.Spec.TaskRunTemplate.ServiceAccountName; got != compose.BuildAccount {
		t.Errorf("the run has the ServiceAccount %q", got)
	}
	copies := s.copies(t, builds)
	if len(copies) != 1 || len(copies[0].Data) != 1 || !metav1.IsControlledBy(&copies[0], run) {
		t.Errorf("the copies are %v", copies)
	}
	var pods corev1.PodList
	must(t, s.List(t.Context(), &pods, client.InNamespace(s.namespace)))
	var runs tektonv1.PipelineRunList
	must(t, s.List(t.Context(), &runs, client.InNamespace(s.namespace)))
	if len(pods.Items)+len(runs.Items) != 0 {
		t.Errorf("the team's namespace has %d pods and %d runs", len(pods.Items), len(runs.Items))
	}
	must(t, s.Delete(t.Context(), build))
	eventually(t, 2*time.Minute, "nothing of the run is left", func(ctx context.Context) error {
		if err := s.List(ctx, &runs, client.InNamespace(builds)); err != nil {
			return err
		}
		if n := len(runs.Items) + len(s.copies(t, builds)); n != 0 {
			return fmt.Errorf("%d runs and Secrets", n)
		}
		return nil
	})
}

// copies are the Secrets that the controller made in a namespace.
func (s *story) copies(t *testing.T, namespace string) []corev1.Secret {
	t.Helper()
	var all corev1.SecretList
	must(t, s.List(t.Context(), &all, client.InNamespace(namespace), client.MatchingLabels{compose.LabelManagedBy: compose.ManagedBy}))
	return all.Items
}
