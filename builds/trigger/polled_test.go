package trigger

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/render/process/metrics"
)

// Repositories are counted by their last poll, and not any more when it succeeds again.
func TestPolledRepositories(t *testing.T) {
	leads := make(chan struct{})
	close(leads)
	tr := &Triggers{
		leads: leads, polled: new(metrics.Set).Gauge("armature_polled_repositories"),
		states: map[reconcile.Request]*state{
			requestFor(git.Login{Repository: "a"}): {},
			requestFor(git.Login{Repository: "b"}): {failed: true},
			requestFor(git.Login{Repository: "c"}): {failed: true},
		},
	}
	count := func(want map[string]float64) {
		t.Helper()
		countPolled(tr)
		registry := prometheus.NewRegistry()
		registry.MustRegister(tr.polled)
		families, err := registry.Gather()
		if err != nil || len(families) != 1 {
			t.Fatal(families, err)
		}
		got := map[string]float64{}
		for _, m := range families[0].Metric {
			got[m.Label[0].GetValue()] = m.Gauge.GetValue()
		}
		if !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	count(map[string]float64{"good": 1, "failed": 2})
	tr.states[requestFor(git.Login{Repository: "b"})].failed = false
	count(map[string]float64{"good": 2, "failed": 1})
}

// A server that fails is asked ever more rarely, and never sooner than builds say.
func TestFailedPollsWaitLonger(t *testing.T) {
	for _, c := range []struct{ poll, first, second, last time.Duration }{
		{10 * time.Second, firstRetry, 2 * firstRetry, lastRetry},
		{5 * time.Minute, 5 * time.Minute, 5 * time.Minute, lastRetry},
	} {
		tr := triggersOf(&objects{})
		tr.polled = new(metrics.Set).Gauge("armature_polled_repositories")
		b := &api.AgentBuild{}
		b.Spec.Trigger = &api.SourceTrigger{Poll: &metav1.Duration{Duration: c.poll}}
		q, s := git.Login{Repository: "http://127.0.0.1:1/nothing.git"}, &state{}
		var waits []time.Duration
		for range 20 {
			waits = append(waits, tr.ask(t.Context(), q, s, []*api.AgentBuild{b}))
		}
		if waits[0] != c.first || waits[1] != c.second || waits[19] != c.last || !s.failed {
			t.Errorf("polled each %s: %v, failed: %v", c.poll, waits, s.failed)
		}
	}
}
