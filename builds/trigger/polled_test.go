package trigger

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/armature-dev/armature/render/process/metrics"
)

// Repositories are counted by their last poll, and not any more when it succeeds again.
func TestPolledRepositories(t *testing.T) {
	leads := make(chan struct{})
	close(leads)
	tr := &Triggers{leads: leads, states: map[question]*state{{repository: "a"}: {}, {repository: "b"}: {failed: 3}, {repository: "c"}: {failed: 1}}, polled: new(metrics.Set).Gauge("armature_polled_repositories")}
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
	tr.states[question{repository: "b"}].failed = 0
	count(map[string]float64{"good": 2, "failed": 1})
}
