package controller_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// What a run needs and is not there stops it beforehand, with every name at
// once; when it comes, the build then continues by itself.
func TestMissingThings(t *testing.T) {
	w := newWorld(t)
	w.own("pipeline-template-own", "template.yaml", "steps: [{name: only, configMap: own-step}]")
	w.start()
	w.create("weather", func(b *api.AgentBuild) {
		b.Spec.Source.SourceCredentials = &corev1.LocalObjectReference{Name: "git-login"}
		b.Spec.BuildOutput.ImageRepoCredentials = &corev1.LocalObjectReference{Name: "registry-login"}
		b.Spec.ServiceAccountName = "builder"
	})
	got := w.phase("weather", api.PhaseFailed)
	ready := condition(got, api.ConditionReady)
	for _, want := range []string{`Secret "git-login" does not exist in namespace "` + w.namespace,
		`Secret "registry-login"`, `ServiceAccount "builder"`, "hint: create the Secret"} {
		if !strings.Contains(ready.Message, want) {
			t.Errorf("%q is not in:\n%s", want, ready.Message)
		}
	}
	if ready.Reason != api.ReasonSourceSecretNotFound {
		t.Errorf("reason %s", ready.Reason)
	}
	if n := len(w.runs()); n != 0 {
		t.Fatalf("%d runs", n)
	}

	w.login("git-login", compose.PurposeGit, map[string]string{"token": "s3cret"})
	w.login("registry-login", compose.PurposeRegistry, map[string]string{"config.json": "{}"})
	w.must(w.Client.Create(w.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "builder"}}))
	run := w.run(1)
	if got := run.Spec.TaskRunTemplate.ServiceAccountName; got != "builder" {
		t.Errorf("the run's ServiceAccount is %q", got)
	}
	for _, binding := range run.Spec.Workspaces {
		if binding.Name == "registry-credentials" && len(binding.Secret.Items) != 0 {
			t.Errorf("the Secret has config.json, but the binding maps %v", binding.Secret.Items)
		}
	}
	w.phase("weather", api.PhaseBuilding)
}

// A template that is missing is named with the places it was sought; when it
// comes, the build starts within moments.
func TestMissingTemplateAndStep(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create("weather", func(b *api.AgentBuild) { b.Spec.Mode = "late" })
	got := w.phase("weather", api.PhaseFailed)
	if c := condition(got, api.ConditionReady); c.Reason != api.ReasonTemplateNotFound ||
		!strings.Contains(c.Message, "pipeline-template-late") ||
		!strings.Contains(c.Message, w.namespace) || !strings.Contains(c.Message, "use one of ") {
		t.Errorf("condition: %+v", c)
	}
	w.own("pipeline-template-late", "template.yaml", "steps: [{name: only, configMap: late-step}]")
	w.eventually("the missing step is named", func() string {
		if c := condition(w.build("weather"),
			api.ConditionReady); c.Reason != api.ReasonStepNotFound ||
			!strings.Contains(c.Message, `"late-step"`) {
			return c.Message
		}
		return ""
	})
	w.own("late-step", "task-spec.yaml", "steps: [{name: say, image: busybox, command: [echo]}]")
	w.run(1)
}
