package controller_test

import (
	"fmt"
	"testing"

	"github.com/armature-dev/armature/builds/api"
)

// cancel stops the run gently, and a cancelled build is not a failed one.
func TestCancel(t *testing.T) {
	w := newWorld(t)
	w.start()
	b := w.create("weather", func(b *api.AgentBuild) { b.Spec.Retries = &api.Retries{Limit: 3} })
	run := w.run(1)
	w.phase("weather", api.PhaseBuilding)
	w.change(b, func(b *api.AgentBuild) { b.Spec.Cancel = true })
	w.eventually("the run is cancelled", func() string { return cancelState(w, run.Name) })
	w.finish(run, "False", "Cancelled", "PipelineRun was cancelled")
	got := w.phase("weather", api.PhaseCancelled)
	if c := condition(got, api.ConditionSucceeded); c.Reason != api.ReasonCancelled {
		t.Errorf("condition: %+v", c)
	}
	if got.Status.FailureDetails != nil {
		t.Errorf("a cancelled build has failure details: %+v", got.Status.FailureDetails)
	}
	// Nothing starts while cancel is true, nor when it is taken back.
	w.change(b, func(b *api.AgentBuild) { b.Spec.BuildOutput.ImageTag = "v2" })
	w.never("a run while cancel is true", func() string {
		if n := len(w.runs()); n != 1 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	w.change(b, func(b *api.AgentBuild) { b.Spec.Cancel, b.Spec.BuildOutput.ImageTag = false, "v1" })
	w.never("a run of what was cancelled", func() string {
		if n := len(w.runs()); n != 1 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
}
