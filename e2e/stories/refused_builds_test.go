package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
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
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.attestKey(t)
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
		"forged-digest":           {`mode: prod, pipeline: {parameters: [{name: image-digest, value: "DIGEST"}]}`, api.ReasonWiredParameter, "spec.pipeline.parameters[image-digest]"},
		"forged-digest-of-a-step": {`mode: preprod, pipeline: {steps: [{name: sbom, parameters: [{name: image-digest, value: "DIGEST"}]}]}`, api.ReasonWiredParameter, "spec.pipeline.steps[0].parameters[image-digest]"},
		"forged-commit":           {`mode: prod, pipeline: {steps: [{name: github-clone, parameters: [{name: revision, value: other}]}]}`, api.ReasonLocked, "spec.pipeline.steps[0].parameters[0].name"},
		"forged-repository":       {`mode: prod, pipeline: {parameters: [{name: repo-clone-url, value: "https://elsewhere.example/x"}]}`, api.ReasonLocked, "spec.pipeline.parameters[0].name"},
		"forged-image":            {`mode: preprod, pipeline: {steps: [{name: kaniko-build, parameters: [{name: image, value: "${registry}/other/image:v1"}]}]}`, api.ReasonWiredParameter, "spec.pipeline.steps[0].parameters[image]"},
		"signing-step":            {`mode: custom, pipeline: {steps: [{name: clone, configMap: github-clone-step}, {name: sign, configMap: cosign-sign-step, parameters: [{name: image-digest, value: "DIGEST"}]}]}`, api.ReasonPlatformStep, "spec.pipeline.steps[1].configMap"},
		"provenance-step":         {`mode: dev, pipeline: {steps: [{name: provenance, configMap: slsa-provenance-step}]}`, api.ReasonPlatformStep, "spec.pipeline.steps[0].configMap"},
		"own-namespace":           {`mode: prod, pipeline: {namespace: "${namespace}"}`, api.ReasonLocked, "spec.pipeline.namespace"},
		"own-attested-mode":       {`mode: ours`, api.ReasonNotPlatform, "attest"},
		"own-signing-mode":        {`mode: signing`, api.ReasonPlatformStep, "steps[1].configMap"},
		"own-step":                {`mode: prod, pipeline: {steps: [{name: kaniko-build, configMap: own-step}]}`, api.ReasonLocked, "spec.pipeline.steps[0].configMap"},
		"step-off":                {`mode: prod, pipeline: {steps: [{name: vulnerability-scan, enabled: false}]}`, api.ReasonLocked, "spec.pipeline.steps[0].enabled"},
		"step-never":              {`mode: prod, pipeline: {steps: [{name: tests, whenExpressions: [{input: a, operator: in, values: [b]}]}]}`, api.ReasonLocked, "spec.pipeline.steps[0].whenExpressions"},
		"own-volume":              {`mode: prod, pipeline: {workspaces: [{name: source, persistentVolumeClaim: {name: mine}}]}`, api.ReasonLocked, "spec.pipeline.workspaces[0]"},
		"poisoned-cache":          {`mode: prod, builder: buildkit, cache: {registry: "${registry}/${namespace}/cache"}`, api.ReasonInvalidBuild, "spec.cache"},
		"signed-by-annotation":    {`mode: prod, annotations: {chains.tekton.dev/signed: "true"}`, api.ReasonLocked, "spec.annotations[chains.tekton.dev/signed]"},
	}
	for name, attack := range attacks {
		tenant.apply(t, strings.NewReplacer("NAME", name, "SPEC", strings.ReplaceAll(attack.spec, "DIGEST", forgedDigest)).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec: {source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}, buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}, SPEC}
`))
	}
	for name, attack := range attacks {
		build := s.refused(t, name)
		ready := meta.FindStatusCondition(build.Status.Conditions, api.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, ": "+attack.field+": ") {
			t.Errorf("%s: no condition names %s: %+v", name, attack.field, ready)
		} else if problems := strings.Count(ready.Message, "hint: "); problems == 0 || problems == 1 && ready.Reason != attack.reason {
			t.Errorf("%s: the reason is %s, want %s with a hint: %s", name, ready.Reason, attack.reason, ready.Message)
		}
		if build.Status.BuiltImage != "" || build.Status.Attestation != nil {
			t.Errorf("%s: status has %q, %+v", name, build.Status.BuiltImage, build.Status.Attestation)
		}
		s.unsigned(t, s.info.HostRegistry+"/"+s.namespace+"/"+name)
	}
	var runs tektonv1.PipelineRunList
	must(t, s.List(t.Context(), &runs, client.InNamespace(s.namespace)))
	for _, run := range runs.Items {
		t.Errorf("run %s was started", run.Name)
	}
}

// refused waits until a build has failed, with or without a run.
func (s *story) refused(t *testing.T, name string) *api.AgentBuild {
	t.Helper()
	build := &api.AgentBuild{}
	eventually(t, 10*time.Minute, "build "+name+" fails", func(ctx context.Context) error {
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
