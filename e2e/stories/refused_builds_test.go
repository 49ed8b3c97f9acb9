package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// A tenant orders what would make the platform sign something else than what was built.
// Each order is refused before anything runs, with a condition that names the field, and
// nothing is signed.
func TestRefusedBuilds(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	// The server still has the first commit, and sends it to every client that knows it.
	unreachable := s.push(t, "testdata/frontend", "public/"+s.namespace+".git")
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.attestKey(t)
	verified := s.fromMain(t)
	tenant := s.asTenant(t)
	// What a tenant can bring: a prod of its own, one that attests, one that signs.
	tenant.apply(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: pipeline-template-prod}
data: {template.yaml: "steps: [{name: vulnerability-scan, configMap: own-step}]"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: pipeline-template-ours}
data: {template.yaml: "attest: true\nsteps: [{name: say, configMap: own-step}]"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: pipeline-template-signing}
data:
  template.yaml: "steps: [{name: say, configMap: own-step}, {name: sign, configMap: cosign-sign-step, defaultParameters: [{name: image-digest, value: '`+forgedDigest+`'}]}]"
---
apiVersion: v1
kind: ConfigMap
metadata: {name: own-step}
data: {task-spec.yaml: "steps: [{name: say, image: docker.io/library/busybox:1.37.0, command: [echo]}]"}
`)
	attacks := map[string]struct{ spec, reason, field string }{
		"forged-digest": {
			`mode: prod, pipeline: {parameters: [{name: image-digest, value: "DIGEST"}]}`,
			api.ReasonWiredParameter, "spec.pipeline.parameters[image-digest]"},
		"forged-digest-of-a-step": {
			`mode: preprod, pipeline: {steps: [{name: sbom, parameters: [{name: image-digest, value: "DIGEST"}]}]}`,
			api.ReasonWiredParameter, "spec.pipeline.steps[0].parameters[image-digest]"},
		"forged-commit": {
			`mode: prod, pipeline: {steps: [{name: github-clone, parameters: [{name: revision, value: other}]}]}`,
			api.ReasonLocked, "spec.pipeline.steps[0].parameters[0].name"},
		"forged-repository": {
			`mode: prod, pipeline: {parameters: [{name: repo-clone-url, value: "https://elsewhere.example/x"}]}`,
			api.ReasonLocked, "spec.pipeline.parameters[0].name"},
		"forged-image": {
			`mode: preprod, pipeline: {steps: [{name: kaniko-build, parameters: [{name: image, value: "${registry}/other/image:v1"}]}]}`, api.ReasonWiredParameter, "spec.pipeline.steps[0].parameters[image]"},
		"signing-step": {
			`mode: custom, pipeline: {steps: [{name: clone, configMap: github-clone-step}, {name: sign, configMap: cosign-sign-step, parameters: [{name: image-digest, value: "DIGEST"}]}]}`, api.ReasonPlatformStep, "spec.pipeline.steps[1].configMap"},
		"provenance-step": {
			`mode: dev, pipeline: {steps: [{name: provenance, configMap: slsa-provenance-step}]}`,
			api.ReasonPlatformStep, "spec.pipeline.steps[0].configMap"},
		"own-namespace": {`mode: prod, pipeline: {namespace: "${namespace}"}`,
			api.ReasonLocked, "spec.pipeline.namespace"},
		"own-attested-mode": {`mode: ours`, api.ReasonNotPlatform, "attest"},
		"own-signing-mode":  {`mode: signing`, api.ReasonPlatformStep, "steps[1].configMap"},
		"own-step": {
			`mode: prod, pipeline: {steps: [{name: kaniko-build, configMap: own-step}]}`,
			api.ReasonLocked, "spec.pipeline.steps[0].configMap"},
		"step-off": {
			`mode: prod, pipeline: {steps: [{name: vulnerability-scan, enabled: false}]}`,
			api.ReasonLocked, "spec.pipeline.steps[0].enabled"},
		"step-never": {
			`mode: prod, pipeline: {steps: [{name: tests, whenExpressions: [{input: a, operator: in, values: [b]}]}]}`,
			api.ReasonLocked, "spec.pipeline.steps[0].whenExpressions"},
		"own-volume": {
			`mode: prod, pipeline: {workspaces: [{name: source, persistentVolumeClaim: {name: mine}}]}`,
			api.ReasonLocked, "spec.pipeline.workspaces[0]"},
		"poisoned-cache": {
			`mode: prod, builder: buildkit, cache: {registry: "${registry}/${namespace}/cache"}`,
			api.ReasonInvalidBuild, "spec.cache"},
		"kept-volume": {`mode: prod, workspace: {keep: true}`, api.ReasonLocked,
			"spec.workspace.keep"},
		"own-account": {`mode: prod, serviceAccountName: default`, api.ReasonLocked,
			"spec.serviceAccountName"},
		"own-user": {`mode: prod, pod: {securityContext: {runAsUser: 0}}`,
			api.ReasonLocked, "spec.pod.securityContext"},
		"kaniko": {`mode: prod, builder: kaniko`, api.ReasonLocked,
			"spec.builder"},
		"buildah": {`mode: prod, builder: buildah`, api.ReasonLocked,
			"spec.builder"},
		"foreign-secret": {`mode: prod, secrets: [{id: key, name: armature-attest-key}]`,
			api.ReasonSecretNotFound, "spec.secrets[0].name"},
		"signed-by-annotation": {`mode: prod, annotations: {chains.tekton.dev/signed: "true"}`,
			api.ReasonLocked, "spec.annotations[chains.tekton.dev/signed]"},
		"label-of-pods": {`mode: prod, labels: {sidecar.example/inject: "true"}`,
			api.ReasonLocked, "spec.labels[sidecar.example/inject]"},
		"annotation-of-pods": {`mode: prod, annotations: {sidecar.example/image: evil}`,
			api.ReasonLocked, "spec.annotations[sidecar.example/image]"},
		"dot-segments": {`mode: prod`, api.ReasonInvalidBuild,
			"spec.source.sourceRepository"},
		"encoded-dot-segments": {`mode: prod`, api.ReasonInvalidBuild,
			"spec.source.sourceRepository"},
		"unreachable-commit": {`mode: ` + verified, api.ReasonNotReachable,
			"spec.source.sourceRevision"},
	}
	for name, attack := range attacks {
		revision, repository := "main", "${git}/public/${namespace}.git"
		// Git and curl would fetch public/other.git, where a policy reads the build's own
		switch name {
		case "dot-segments":
			repository += "@refs/../../other.git"
		case "encoded-dot-segments":
			repository += "/%2e%2e/other.git"
		}
		if attack.reason == api.ReasonNotReachable {
			revision = unreachable
		}
		tenant.apply(t,
			strings.NewReplacer("NAME", name, "REVISION", revision, "REPOSITORY", repository,
				"SPEC", strings.ReplaceAll(attack.spec, "DIGEST", forgedDigest)).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec: {source: {sourceRepository: "REPOSITORY", sourceRevision: REVISION}, buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}, SPEC}
`))
	}
	for name, attack := range attacks {
		build := s.refused(t, name)
		ready := meta.FindStatusCondition(build.Status.Conditions, api.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse ||
			!strings.Contains(ready.Message, ": "+attack.field+": ") {
			t.Errorf("%s: no condition names %s: %+v", name, attack.field, ready)
		} else if problems := strings.Count(ready.Message, "hint: "); problems == 0 ||
			problems == 1 && ready.Reason != attack.reason {
			t.Errorf("%s: the reason is %s, want %s with a hint: %s", name, ready.Reason,
				attack.reason, ready.Message)
		}
		if build.Status.BuiltImage != "" || build.Status.Attestation != nil {
			t.Errorf("%s: status has %q, %+v", name, build.Status.BuiltImage, build.Status.Attestation)
		}
		s.unsigned(t, s.info.HostRegistry+"/"+s.namespace+"/"+name)
	}
	var runs tektonv1.PipelineRunList
	must(t, s.List(t.Context(), &runs, client.InNamespace(s.namespace)))
	isolated, err := s.isolated(t.Context())
	must(t, err)
	for _, run := range append(runs.Items, isolated...) {
		t.Errorf("run %s was started", run.Name)
	}
}

// fromMain is mode prod where the platform demands that commits are reachable from main.
func (s *story) fromMain(t *testing.T) (mode string) {
	t.Helper()
	policy := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "armature-system",
		Name: "source-" + s.namespace}, Data: map[string]string{
		"policy.yaml": "apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\n" +
			"spec: {source: {branches: [main]}}\n"}}
	must(t, s.Create(t.Context(), policy))
	t.Cleanup(func() {
		if err := s.Delete(context.Background(), policy); err != nil {
			t.Error(err)
		}
	})
	return s.adapted(t, "prod", "main",
		func(template string) string { return "verifySource: " + policy.Name + "\n" + template })
}

// refused waits until a build has failed, with or without a run.
func (s *story) refused(t *testing.T, name string) *api.AgentBuild {
	t.Helper()
	build := &api.AgentBuild{}
	eventually(t, 20*time.Minute, "build "+name+" fails", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, build); err != nil {
			return err
		}
		if build.Status.Phase != api.PhaseFailed {
			return fmt.Errorf("it is %q: %s", build.Status.Phase, build.Status.Message)
		}
		return nil
	})
	return build
}

// forgedDigest is of nothing that anybody built.
const forgedDigest = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
