package controller_test

import (
	"fmt"
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
		w.change(b, func(b *api.AgentBuild) {
			b.Annotations = map[string]string{"agent.kagenti.dev/rerun": token}
		})
		run := w.run(i + 2)
		if got := w.phase("weather",
			api.PhaseBuilding); got.Status.RunReason != api.TriggerManual || got.Status.Attempt != 1 {
			t.Errorf("run %s because of %s, attempt %d", got.Status.PipelineRunName,
				got.Status.RunReason, got.Status.Attempt)
		}
		w.succeed(run)
		w.phase("weather", api.PhaseSucceeded)
	}
}

// The reason of a rerun is the same whether the run before is kept or not: MANUAL for
// the commit that was built, COMMIT for another one.
func TestRerunOfAPrunedRun(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	w.start()
	b := w.create("weather", r.source("main"))
	for i, reason := range []api.Trigger{api.TriggerConfig, api.TriggerManual, api.TriggerCommit} {
		if i > 0 {
			w.change(b, func(b *api.AgentBuild) {
				b.Annotations = map[string]string{"agent.kagenti.dev/rerun": fmt.Sprint(i)}
			})
		}
		run := w.run(1)
		if got := w.phase("weather", api.PhaseBuilding); got.Status.RunReason != reason {
			t.Errorf("run %d has the reason %s, want %s", i, got.Status.RunReason, reason)
		}
		w.succeed(run)
		w.phase("weather", api.PhaseSucceeded)
		w.eventually("the run is pruned", func() string {
			if n := len(w.runs()); n != 0 {
				return fmt.Sprintf("%d runs", n)
			}
			return ""
		})
		if reason == api.TriggerManual {
			r.commit("second")
		}
	}
}
