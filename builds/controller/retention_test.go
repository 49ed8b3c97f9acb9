package controller_test

import (
	"fmt"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

func (w *world) left(want int) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d runs are left", want), func() string {
		if n := len(w.runs()); n != want {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
}

// By default a succeeded run is deleted once its result is in status, and the
// build is not built again for it.
func TestCleanupAfterBuild(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create("weather")
	w.succeed(w.run(1))
	got := w.phase("weather", api.PhaseSucceeded)
	w.left(0)
	w.never("another run", func() string {
		if n := len(w.runs()); n != 0 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	if now := w.build("weather"); now.Status.BuiltImage != got.Status.BuiltImage ||
		now.Status.Phase != api.PhaseSucceeded {
		t.Errorf("status became %+v", now.Status)
	}
}

// Limits keep that many runs, newest first, each kind by itself.
func TestRetentionLimits(t *testing.T) {
	w := newWorld(t)
	w.start()
	one := int32(1)
	b := w.create("weather", func(b *api.AgentBuild) {
		b.Spec.Retention = &api.Retention{SucceededLimit: &one, FailedLimit: &one}
	})
	seen := map[string]bool{}
	next := func(token string) *tektonv1.PipelineRun {
		var run *tektonv1.PipelineRun
		w.eventually("a new run", func() string {
			for _, r := range w.runs() {
				if !seen[r.Name] {
					run = &r
					return ""
				}
			}
			return "none"
		})
		seen[run.Name] = true
		time.Sleep(1100 * time.Millisecond) // creation times have whole seconds
		return run
	}
	rerun := func(token string) {
		w.change(b, func(b *api.AgentBuild) {
			b.Annotations = map[string]string{"agent.kagenti.dev/rerun": token}
		})
	}
	w.fail(next(""))
	w.phase("weather", api.PhaseFailed)
	rerun("1")
	second := next("1")
	w.fail(second)
	w.left(1)
	rerun("2")
	w.succeed(next("2"))
	w.phase("weather", api.PhaseSucceeded)
	w.left(2)
	rerun("3")
	last := next("3")
	w.succeed(last)
	w.left(2)
	for _, r := range w.runs() {
		if r.Name != second.Name && r.Name != last.Name {
			t.Errorf("run %s is left", r.Name)
		}
	}
}

// A TTL deletes a run when its time is over.
func TestRetentionTTL(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create("weather", func(b *api.AgentBuild) {
		b.Spec.Retention = &api.Retention{
			TTLAfterFailed: &metav1.Duration{Duration: 3 * time.Second}}
	})
	w.fail(w.run(1))
	w.phase("weather", api.PhaseFailed)
	if n := len(w.runs()); n != 1 {
		t.Errorf("%d runs before the TTL", n)
	}
	w.left(0)
	if got := w.build("weather"); got.Status.Phase != api.PhaseFailed ||
		got.Status.FailureDetails == nil {
		t.Errorf("status became %+v", got.Status)
	}
}

// Where Chains is installed, a run stays until it is signed.
func TestRetentionWaitsForChains(t *testing.T) {
	w := newWorld(t)
	w.options.WaitForChains = true
	w.start()
	w.create("weather")
	run := w.run(1)
	w.succeed(run)
	w.phase("weather", api.PhaseSucceeded)
	w.never("an unsigned run is deleted", func() string {
		if len(w.runs()) != 1 {
			return "it is gone"
		}
		return ""
	})
	fresh := &tektonv1.PipelineRun{}
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), fresh))
	before := fresh.DeepCopy()
	fresh.Annotations["chains.tekton.dev/signed"] = "true"
	w.must(w.Patch(w.Context(), fresh, client.MergeFrom(before)))
	w.left(0)
}

// A success that was cleaned up is not forgotten for an older failure that is
// kept, and a spec that is broken and fixed finds its result again.
func TestCleanupKeepsTheResult(t *testing.T) {
	w := newWorld(t)
	w.start()
	b := w.create("weather")
	w.fail(w.run(1))
	w.phase("weather", api.PhaseFailed)
	w.change(b, retag("v2"))
	w.run(2)
	for _, run := range w.runs() {
		if run.Status.CompletionTime == nil {
			w.succeed(&run)
		}
	}
	built := w.phase("weather", api.PhaseSucceeded).Status.BuiltImage
	w.left(1)
	same := func() string {
		if got := w.build("weather"); len(w.runs()) != 1 ||
			got.Status.Phase != api.PhaseSucceeded || got.Status.BuiltImage != built {
			return fmt.Sprintf("%d runs, %s: %s", len(w.runs()), got.Status.Phase, got.Status.Message)
		}
		return ""
	}
	w.never("the old failure counts", same)

	w.change(b, func(b *api.AgentBuild) { b.Spec.Mode = "none" })
	w.phase("weather", api.PhaseFailed)
	w.change(b, func(b *api.AgentBuild) { b.Spec.Mode = "dev" })
	got := w.phase("weather", api.PhaseSucceeded)
	if c := condition(got, api.ConditionReady); c.Status != metav1.ConditionTrue ||
		got.Status.FailureDetails != nil {
		t.Errorf("after the fix: %+v, %+v", c, got.Status.FailureDetails)
	}
	w.never("something happens after the fix", same)
}
