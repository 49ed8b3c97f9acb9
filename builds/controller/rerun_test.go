package controller_test

import (
	"testing"

	"github.com/armature-dev/armature/builds/api"
)

// Each new value of the rerun annotation starts the build once more.
func TestRerun(t *testing.T) {
	w := newWorld(t)
	w.start()
	keep := false
	b := w.create("weather", func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep })
	w.fail(w.run(1))
	w.phase("weather", api.PhaseFailed)
	for i, token := range []string{"one", "two"} {
		w.change(b, func(b *api.AgentBuild) { b.Annotations = map[string]string{"agent.kagenti.dev/rerun": token} })
		run := w.run(i + 2)
		if got := w.phase("weather", api.PhaseBuilding); got.Status.RunReason != api.TriggerManual || got.Status.Attempt != 1 {
			t.Errorf("run %s because of %s, attempt %d", got.Status.PipelineRunName, got.Status.RunReason, got.Status.Attempt)
		}
		w.succeed(run)
		w.phase("weather", api.PhaseSucceeded)
	}
}
