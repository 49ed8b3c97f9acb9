package controller_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/armature-dev/armature/builds/api"
)

// A restart starts nothing and writes nothing, whatever state a build is in.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	stop := w.start()
	keep := false
	kept := func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep }
	for _, name := range []string{"done", "failed", "cleaned", "running", "incomplete"} {
		switch name {
		case "cleaned":
			w.create(name)
		case "incomplete":
			w.create(name, func(b *api.AgentBuild) { b.Spec.Mode = "none" })
		default:
			w.create(name, kept)
		}
	}
	w.left(4)
	for _, run := range w.runs() {
		switch run.Annotations["armature.dev/build-name"] {
		case "done", "cleaned":
			w.succeed(&run)
		case "failed":
			w.fail(&run)
		}
	}
	w.phase("done", api.PhaseSucceeded)
	w.phase("cleaned", api.PhaseSucceeded)
	w.phase("failed", api.PhaseFailed)
	w.phase("running", api.PhaseBuilding)
	w.phase("incomplete", api.PhaseFailed)
	w.left(3)
	before := -1
	for now, _ := w.writes.total(); now != before; now, _ = w.writes.total() {
		before = now
		time.Sleep(time.Second) // the last events leave
	}
	stop()

	w.start()
	w.never("a write after the restart", func() string {
		if now, by := w.writes.total(); now != before {
			return fmt.Sprintf("%d more: %v", now-before, by)
		}
		return ""
	})
	w.left(3)
}

// A run that vanished while it was under way is reported, not silently built
// again.
func TestRunDeletedByAnother(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create("weather")
	run := w.run(1)
	w.phase("weather", api.PhaseBuilding)
	w.must(w.Client.Delete(w.Context(), run))
	got := w.phase("weather", api.PhaseFailed)
	if c := condition(got, api.ConditionReady); c.Reason != api.ReasonRunDeleted {
		t.Errorf("condition: %+v", c)
	}
	w.never("another run", func() string {
		if n := len(w.runs()); n != 0 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
}
