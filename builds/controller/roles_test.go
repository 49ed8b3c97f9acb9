package controller_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// A tenant's build cannot change what an attested mode promises, nor what the
// steps of any mode hand to each other. Each attempt ends in a condition that names
// the field, and no run.
func TestTenantCannotChange(t *testing.T) {
	const forged = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	param := func(name, value string) api.Parameter {
		return api.Parameter{Name: name, Value: &value}
	}
	pipeline := func(mode string, p api.PipelineSpec) func(*api.AgentBuild) {
		return func(b *api.AgentBuild) { b.Spec.Mode, b.Spec.Pipeline = mode, &p }
	}
	parameters := func(mode string, params ...api.Parameter) func(*api.AgentBuild) {
		return pipeline(mode, api.PipelineSpec{Parameters: params})
	}
	steps := func(mode string, steps ...api.Step) func(*api.AgentBuild) {
		return pipeline(mode, api.PipelineSpec{Steps: steps})
	}
	for name, attack := range map[string]struct {
		edit   func(*api.AgentBuild)
		reason string
		field  string
	}{
		"forged-digest": {parameters("preprod", param("image-digest", forged)),
			api.ReasonWiredParameter, "spec.pipeline.parameters[image-digest]"},
		"forged-digest-prod": {parameters("prod", param("image-digest", forged)),
			api.ReasonWiredParameter, "spec.pipeline.parameters[image-digest]"},
		"forged-digest-step": {steps("preprod",
			api.Step{Name: "sbom", Parameters: []api.Parameter{param("image-digest", forged)}}),
			api.ReasonWiredParameter, "spec.pipeline.steps[0].parameters[image-digest]"},
		"other-result": {steps("preprod",
			api.Step{Name: "sbom",
				Parameters: []api.Parameter{param("image-digest",
					"$(tasks.tests.results.IMAGE_DIGEST)")}}), api.ReasonWiredParameter,
			"spec.pipeline.steps[0].parameters[image-digest]"},
		"forged-commit": {steps("prod",
			api.Step{Name: "github-clone", Parameters: []api.Parameter{param("revision", "main")}}),
			api.ReasonLocked, "spec.pipeline.steps[0].parameters[0].name"},
		"forged-commit-alias": {parameters("prod", param("SOURCE_REVISION", "main")),
			api.ReasonLocked, "spec.pipeline.parameters[0].name"},
		"forged-repository": {parameters("prod",
			param("repo-clone-url", "https://elsewhere.example/x")), api.ReasonLocked,
			"spec.pipeline.parameters[0].name"},
		"other-image": {steps("preprod",
			api.Step{Name: "kaniko-build",
				Parameters: []api.Parameter{param("image", "registry.local:5000/other:v1")}}),
			api.ReasonWiredParameter, "spec.pipeline.steps[0].parameters[image]"},
		"signing-in-custom": {steps("custom",
			api.Step{Name: "github-clone", ConfigMap: "github-clone-step"},
			api.Step{Name: "sign", ConfigMap: "cosign-sign-step",
				Parameters: []api.Parameter{param("image-digest", forged)}}),
			api.ReasonPlatformStep, "spec.pipeline.steps[1].configMap"},
		"provenance-in-dev": {steps("dev",
			api.Step{Name: "provenance", ConfigMap: "slsa-provenance-step"}),
			api.ReasonPlatformStep, "spec.pipeline.steps[0].configMap"},
		"own-namespace": {nil, api.ReasonLocked, "spec.pipeline.namespace"},
		"step-off": {steps("prod", api.Step{Name: "vulnerability-scan",
			Enabled: ptr.To(false)}), api.ReasonLocked, "spec.pipeline.steps[0].enabled"},
		"step-never": {steps("prod",
			api.Step{Name: "tests",
				WhenExpressions: []api.WhenExpression{{Input: "a", Operator: "in",
					Values: []string{"b"}}}}), api.ReasonLocked,
			"spec.pipeline.steps[0].whenExpressions"},
		"own-step": {steps("prod", api.Step{Name: "kaniko-build", ConfigMap: "own-step"}),
			api.ReasonLocked, "spec.pipeline.steps[0].configMap"},
		"locked-parameter": {parameters("prod", param("severity", "negligible")), api.ReasonLocked,
			"spec.pipeline.parameters[0].name"},
		"locked-flags": {parameters("prod",
			api.Parameter{Name: "kaniko-flags", Array: []string{"--destination=elsewhere"}}),
			api.ReasonLocked, "spec.pipeline.parameters[0].name"},
		"own-volume": {pipeline("prod",
			api.PipelineSpec{
				Workspaces: []api.WorkspaceBinding{{Name: "source",
					PersistentVolumeClaim: &corev1.LocalObjectReference{Name: "mine"}}}}),
			api.ReasonLocked, "spec.pipeline.workspaces[0]"},
		"kept-volume": {func(b *api.AgentBuild) {
			b.Spec.Mode, b.Spec.Workspace =
				"prod", &api.Workspace{Keep: true}
		}, api.ReasonLocked, "spec.workspace.keep"},
		"own-token": {func(b *api.AgentBuild) {
			b.Spec.Mode, b.Spec.Pod = "prod", &api.PodSettings{AutomountServiceAccountToken: true}
		}, api.ReasonLocked, "spec.pod.automountServiceAccountToken"},
		"no-output": {func(b *api.AgentBuild) {
			b.Spec.Mode, b.Spec.BuildOutput =
				"prod", nil
		}, api.ReasonLocked, "spec.buildOutput"},
		"signed-by-mark": {func(b *api.AgentBuild) {
			b.Spec.Mode, b.Spec.Annotations = "prod", map[string]string{chainsMark: "true"}
		}, api.ReasonLocked, "spec.annotations[" + chainsMark + "]"},
		"label-of-pods": {func(b *api.AgentBuild) {
			b.Spec.Mode, b.Spec.Labels = "prod", map[string]string{"sidecar.example/inject": "true"}
		}, api.ReasonLocked, "spec.labels[sidecar.example/inject]"},
		"dot-segments": {func(b *api.AgentBuild) {
			b.Spec.Mode, b.Spec.Source.SourceRepository =
				"prod", "https://github.com/acme/weather@refs/../../evil/weather"
		}, api.ReasonInvalidBuild, "spec.source.sourceRepository"},
		"own-attested-mode": {func(b *api.AgentBuild) { b.Spec.Mode = "ours" },
			api.ReasonNotPlatform, "attest"},
		"own-signing-mode": {func(b *api.AgentBuild) { b.Spec.Mode = "signing" },
			api.ReasonPlatformStep, "steps[1].configMap"},
		"own-prod-unlocked": {nil, api.ReasonLocked, "spec.pipeline.steps[0].enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			// What a tenant can bring: a prod of its own, an attested mode, one that signs.
			w.own("pipeline-template-prod", "template.yaml",
				"steps: [{name: vulnerability-scan, configMap: own-step}]")
			w.own("pipeline-template-ours", "template.yaml",
				"attest: true\nsteps: [{name: say, configMap: own-step}]")
			w.own("pipeline-template-signing", "template.yaml",
				"steps: [{name: say, configMap: own-step}, {name: sign, configMap: "+
					"cosign-sign-step, defaultParameters: [{name: image-digest, value: "+forged+"}]}]")
			w.own("own-step", "task-spec.yaml",
				"steps: [{name: say, image: busybox, command: [echo]}]")
			edit := attack.edit
			switch name {
			case "own-namespace":
				edit = pipeline("prod", api.PipelineSpec{Namespace: w.namespace})
			case "own-prod-unlocked":
				edit = pipeline("prod", api.PipelineSpec{Namespace: w.namespace,
					Steps: []api.Step{{Name: "vulnerability-scan", Enabled: ptr.To(false)}}})
			}
			w.start()
			w.create("attack", edit)
			got := w.phase("attack", api.PhaseFailed)
			ready := condition(got, api.ConditionReady)
			if !strings.Contains(ready.Message, ": "+attack.field+": ") {
				t.Errorf("no problem names %s: %s", attack.field, ready.Message)
			}
			if !strings.Contains(ready.Message, "hint: ") || ready.Status != metav1.ConditionFalse {
				t.Errorf("condition %+v", ready)
			}
			if problems := strings.Count(ready.Message, "hint: "); problems == 1 &&
				ready.Reason != attack.reason {
				t.Errorf("reason %s, want %s", ready.Reason, attack.reason)
			}
			if runs := w.runs(); len(runs) != 0 {
				t.Errorf("%d runs", len(runs))
			}
		})
	}
}

func sum(text string) string {
	digest := sha256.Sum256([]byte(text))
	return hex.EncodeToString(digest[:])
}

const chainsMark = "chains.tekton.dev/signed"

// An attested run takes what its template opens, and records the digests of the
// template and the steps that it was composed from.
func TestAttestedRun(t *testing.T) {
	w := newWorld(t)
	w.start()
	value := "make test"
	w.create("weather", func(b *api.AgentBuild) {
		b.Spec.Mode = "prod"
		b.Spec.Pipeline = &api.PipelineSpec{Namespace: systemNamespace,
			Parameters: []api.Parameter{{Name: "TEST_COMMAND", Value: &value}},
			Steps:      []api.Step{{Name: "tests", Enabled: ptr.To(true)}}}
	})
	run := w.run(1)
	var got compose.Materials
	w.must(json.Unmarshal([]byte(run.Annotations[keys.AnnotationMaterials]), &got))
	digestOf := func(name, key string) compose.Material {
		cm := &corev1.ConfigMap{}
		w.must(w.Get(t.Context(), client.ObjectKey{Namespace: systemNamespace, Name: name}, cm))
		return compose.Material{ConfigMap: systemNamespace + "/" + name,
			Digest: "sha256:" + sum(cm.Data[key])}
	}
	if want := digestOf("pipeline-template-prod", "template.yaml"); got.Template != want {
		t.Errorf("template %v, want %v", got.Template, want)
	}
	inAnothersPod := []string{"pack-source", "folder-verification", "dockerfile-check"}
	for _, step := range inAnothersPod {
		if got.Steps[step].Digest == "" {
			t.Errorf("step %s is not recorded", step)
		}
	}
	if want := len(run.Spec.PipelineSpec.Tasks) + len(inAnothersPod); len(got.Steps) != want {
		t.Errorf("%d steps are recorded of %d", len(got.Steps), want)
	}
	if want := digestOf("run-tests-step", "task-spec.yaml"); got.Steps["tests"] != want {
		t.Errorf("step tests %v, want %v", got.Steps["tests"], want)
	}
	for _, task := range run.Spec.PipelineSpec.Tasks {
		if task.Name == "tests" && !strings.Contains(fmt.Sprint(task.Params), value) {
			t.Errorf("the opened parameter does not arrive: %v", task.Params)
		}
	}
}
