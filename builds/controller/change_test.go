package controller_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
)

func retag(tag string) func(*api.AgentBuild) {
	return func(b *api.AgentBuild) { b.Spec.BuildOutput.ImageTag = tag }
}

// A changed spec is built once more; a field that does not shape the run is not.
func TestSpecChange(t *testing.T) {
	w := newWorld(t)
	w.start()
	keep := false
	b := w.create("weather", func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep })
	w.succeed(w.run(1))
	w.phase("weather", api.PhaseSucceeded)

	w.change(b, func(b *api.AgentBuild) { b.Spec.Retries = &api.Retries{Limit: 2} })
	w.never("a run for a change of retries", func() string {
		if n := len(w.runs()); n != 1 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	w.change(b, retag("v2"))
	second := w.run(2)
	got := w.phase("weather", api.PhaseBuilding)
	if got.Status.RunReason != api.TriggerConfig || got.Status.PipelineRunName != second.Name {
		t.Errorf("run %s because of %s, want %s because of CONFIG", got.Status.PipelineRunName,
			got.Status.RunReason, second.Name)
	}
	w.succeed(second)
	if got := w.phase("weather",
		api.PhaseSucceeded); got.Status.BuiltImage != "registry.local:5000/weather:v2@"+digest {
		t.Errorf("built %s", got.Status.BuiltImage)
	}
}

// While a run is under way, onChange decides about a changed spec.
func TestSpecChangeDuringARun(t *testing.T) {
	t.Run("Queue", func(t *testing.T) {
		w := newWorld(t)
		w.start()
		keep := false
		b := w.create("weather", func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep })
		first := w.run(1)
		w.phase("weather", api.PhaseBuilding)
		w.change(b, retag("v2"))
		w.eventually("the change is queued", func() string {
			if c := condition(w.build("weather"),
				api.ConditionReady); c.Reason != api.ReasonQueued {
				return c.Reason
			}
			return ""
		})
		if runs := w.runs(); len(runs) != 1 || runs[0].Spec.Status != "" {
			t.Errorf("%d runs, the first with status %q", len(runs), runs[0].Spec.Status)
		}
		w.succeed(first)
		w.run(2)
	})
	t.Run("Cancel", func(t *testing.T) {
		w := newWorld(t)
		w.start()
		b := w.create("weather", func(b *api.AgentBuild) { b.Spec.OnChange = api.ChangeCancel })
		first := w.run(1)
		w.phase("weather", api.PhaseBuilding)
		w.change(b, retag("v2"))
		w.eventually("the first run is cancelled",
			func() string { return cancelState(w, first.Name) })
		w.never("a second run beside the first", func() string {
			if n := len(w.runs()); n != 1 {
				return fmt.Sprintf("%d runs", n)
			}
			return ""
		})
		w.finish(first, "False", "Cancelled", "PipelineRun was cancelled")
		second := w.run(2)
		w.succeed(second)
		if got := w.phase("weather", api.PhaseSucceeded); got.Status.PipelineRunName != second.Name {
			t.Errorf("status speaks of %s", got.Status.PipelineRunName)
		}
	})
	t.Run("Ignore", func(t *testing.T) {
		w := newWorld(t)
		w.start()
		keep := false
		b := w.create("weather", func(b *api.AgentBuild) {
			b.Spec.OnChange, b.Spec.CleanupAfterBuild = api.ChangeIgnore, &keep
		})
		first := w.run(1)
		w.phase("weather", api.PhaseBuilding)
		w.change(b, retag("v2"))
		w.eventually("the change is ignored", func() string {
			if c := condition(w.build("weather"),
				api.ConditionReady); c.Reason != api.ReasonChangeIgnored {
				return c.Reason
			}
			return ""
		})
		w.succeed(first)
		w.phase("weather", api.PhaseSucceeded)
		w.never("a run for the ignored change", func() string {
			if n := len(w.runs()); n != 1 {
				return fmt.Sprintf("%d runs", n)
			}
			return ""
		})
		w.change(b, retag("v3"))
		w.run(2)
	})
}

func cancelState(w *world, name string) string {
	for _, r := range w.runs() {
		if r.Name == name && r.Spec.Status != "CancelledRunFinally" {
			return fmt.Sprintf("spec.status is %q", r.Spec.Status)
		}
	}
	return ""
}

// A step that changes is built again, unless the build says otherwise; a
// ConfigMap that concerns no build wakes none.
func TestTemplateChange(t *testing.T) {
	w := newWorld(t)
	w.own("pipeline-template-own", templates.TemplateKeyYAML,
		"steps: [{name: only, configMap: own-step}]")
	w.own("own-step", templates.StepKey, "steps: [{name: say, image: busybox, command: [echo]}]")
	w.start()
	own := func(policy api.TemplatePolicy) func(*api.AgentBuild) {
		return func(b *api.AgentBuild) {
			keep := false
			b.Spec.Mode, b.Spec.OnTemplateChange, b.Spec.CleanupAfterBuild = "own", policy, &keep
		}
	}
	w.create("follows", own(api.TemplateRebuild))
	w.succeed(w.run(1))
	w.phase("follows", api.PhaseSucceeded)
	w.create("stays", own(api.TemplateIgnore))
	w.succeed(w.run(2))
	w.phase("stays", api.PhaseSucceeded)

	w.rewrite("own-step", templates.StepKey,
		"steps: [{name: say, image: busybox, command: [echo, again]}]")
	w.run(3)
	if got := w.phase("follows", api.PhaseBuilding); got.Status.RunReason != api.TriggerTemplate {
		t.Errorf("started because of %s, want TEMPLATE", got.Status.RunReason)
	}
	w.never("a run of the build that ignores templates", func() string {
		if n := len(w.runs()); n != 3 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
}

// A step that vanishes or breaks while somebody edits it leaves a finished build
// as it is; the next good version is built.
func TestStepIsEdited(t *testing.T) {
	w := newWorld(t)
	const good = "steps: [{name: say, image: busybox, command: [echo]}]"
	w.own("pipeline-template-own", templates.TemplateKeyYAML,
		"steps: [{name: only, configMap: own-step}]")
	w.own("own-step", templates.StepKey, good)
	w.start()
	keep := false
	w.create("weather", func(b *api.AgentBuild) { b.Spec.Mode, b.Spec.CleanupAfterBuild = "own", &keep })
	w.succeed(w.run(1))
	w.phase("weather", api.PhaseSucceeded)
	stays := func() string {
		if b := w.build("weather"); b.Status.Phase != api.PhaseSucceeded || len(w.runs()) != 1 {
			return string(b.Status.Phase) + " " + b.Status.Message
		}
		return ""
	}
	w.rewrite("own-step", templates.StepKey, "steps: [")
	w.never("a broken step touches the build", stays)
	w.must(w.Client.Delete(w.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "own-step"}}))
	w.never("a missing step touches the build", stays)
	w.own("own-step", templates.StepKey, good)
	w.never("the same step touches the build", stays)
	w.rewrite("own-step", templates.StepKey, good+"\ndescription: new")
	w.run(2)
}
