package stories

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/compose"
)

// A team's namespace enforces Pod Security restricted and has room for no run and no pod. Its
// attested build runs in the platform's namespace, with a copy of the team's login that goes with
// the run, and nothing of the run is in the team's namespace.
func TestIsolatedRuns(t *testing.T) {
	t.Parallel()
	s := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	s.installed(t)
	s.attestKey(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.secret(t, "login", corev1.SecretTypeDockerConfigJson,
		map[string]string{corev1.DockerConfigJsonKey: s.registryLogin(t)})
	s.apply(t, `
apiVersion: v1
kind: ResourceQuota
metadata: {name: nothing}
spec: {hard: {pods: "0", count/pipelineruns.tekton.dev: "0", requests.storage: "0"}}
---
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
	if a := build.Status.Attestation; a == nil || a.Image != build.Status.BuiltImage ||
		a.Level != 3 || build.Status.PipelineRunNamespace != buildNamespace {
		t.Fatalf("it is not attested at level 3 of a run in %s: %+v", buildNamespace, build.Status)
	}
	run := s.runOf(t, "isolated")
	if got := run.Spec.TaskRunTemplate.ServiceAccountName; got != compose.BuildAccount {
		t.Errorf("the run has the ServiceAccount %q", got)
	}
	copies := func(ctx context.Context) (of []corev1.Secret, err error) {
		var all corev1.SecretList
		err = s.List(ctx, &all, client.InNamespace(buildNamespace))
		for _, secret := range all.Items {
			if metav1.IsControlledBy(&secret, run) {
				of = append(of, secret)
			}
		}
		return of, err
	}
	if have, err := copies(t.Context()); err != nil || len(have) != 1 || len(have[0].Data) != 1 {
		t.Errorf("%v: the copies are %v", err, have)
	}
	var pods corev1.PodList
	must(t, s.List(t.Context(), &pods, client.InNamespace(s.namespace)))
	var runs tektonv1.PipelineRunList
	must(t, s.List(t.Context(), &runs, client.InNamespace(s.namespace)))
	if len(pods.Items)+len(runs.Items) != 0 {
		t.Errorf("the team's namespace has %d pods and %d runs", len(pods.Items), len(runs.Items))
	}
	// The network of this cluster enforces no policy, which the probe finds out. It leaves no pod.
	cmd := exec.CommandContext(t.Context(), "armature", "check", "--cluster=probe", "--kubeconfig",
		os.Getenv("E2E_KUBECONFIG"))
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 ||
		!strings.Contains(string(out), "not enforced: in namespace "+buildNamespace) {
		t.Errorf("the probe: %v\n%s", err, out)
	}
	must(t, s.List(t.Context(), &pods, client.InNamespace(buildNamespace)))
	for _, pod := range pods.Items {
		if pod.Labels["tekton.dev/pipelineRun"] == "" {
			t.Errorf("the probe leaves pod %s", pod.Name)
		}
	}
	must(t, s.Delete(t.Context(), build))
	eventually(t, 2*time.Minute, "nothing of the run is left", func(ctx context.Context) error {
		left, err := s.isolated(ctx)
		secrets, also := copies(ctx)
		if err != nil || also != nil || len(left)+len(secrets) != 0 {
			return fmt.Errorf("%d runs, %d Secrets, %v, %v", len(left), len(secrets), err, also)
		}
		return nil
	})
}
