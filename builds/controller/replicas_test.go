package controller_test

import (
	"fmt"
	"testing"

	"github.com/armature-dev/armature/builds/api"
)

// Two replicas that both work, as when a lease is lost, still make one run a
// build.
func TestTwoReplicas(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.start()
	const builds = 20
	for i := range builds {
		w.create(fmt.Sprintf("b%d", i))
	}
	for i := range builds {
		w.phase(fmt.Sprintf("b%d", i), api.PhaseBuilding)
	}
	w.never("a double run", func() string {
		if n := len(w.runs()); n != builds {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
}

// With leader election the second replica takes over when the first ends.
func TestLeaderElection(t *testing.T) {
	w := newWorld(t)
	w.options.Namespace = w.namespace // a lease of its own
	w.own("pipeline-template-own", "template.yaml", "steps: [{name: only, configMap: own-step}]")
	w.own("own-step", "task-spec.yaml", "steps: [{name: say, image: busybox, command: [echo]}]")
	own := func(b *api.AgentBuild) { b.Spec.Mode = "own" }
	w.options.LeaderElection = true
	stop := w.start()
	w.create("first", own)
	w.phase("first", api.PhaseBuilding)
	w.start()
	stop()
	w.create("second", own)
	w.phase("second", api.PhaseBuilding)
	w.left(2)
}

// A run of the same name that somebody else made is never taken for ours.
func TestForeignRun(t *testing.T) {
	w := newWorld(t)
	stop := w.start()
	w.create("weather")
	run := w.run(1)
	w.phase("weather", api.PhaseBuilding)
	stop()
	// The same build under a new UID meets the old run, which nobody deleted.
	b := w.build("weather")
	w.change(b, func(b *api.AgentBuild) { b.Finalizers = nil })
	w.must(w.Client.Delete(w.Context(), b))
	w.create("weather")
	w.start()
	got := w.phase("weather", api.PhaseFailed)
	if c := condition(got, api.ConditionRunExists); c.Reason != api.ReasonRunForeign {
		t.Errorf("condition: %+v", c)
	}
	w.must(w.Client.Delete(w.Context(), run))
	w.phase("weather", api.PhaseBuilding)
}
