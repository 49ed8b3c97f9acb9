package controller

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/finding"
)

// What alerts read of a build: why it is not Ready, and how long it waits.
func TestUnreadyBuilds(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(-d)} }
	conditions := func(reason string, ready, exists, succeeded metav1.ConditionStatus, since time.Duration) []metav1.Condition {
		return []metav1.Condition{
			{Type: api.ConditionReady, Status: ready, Reason: reason},
			{Type: api.ConditionRunExists, Status: exists, Reason: reason},
			{Type: api.ConditionSucceeded, Status: succeeded, Reason: reason, LastTransitionTime: *ago(since)},
		}
	}
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for name, c := range map[string]struct {
		status      api.AgentBuildStatus
		reason      string
		waits, what string
	}{
		"new": {},
		"succeeded": {status: api.AgentBuildStatus{Phase: api.PhaseSucceeded, Conditions: conditions("Succeeded", yes, yes, yes, time.Hour),
			LastBuildTime: ago(time.Hour), StartTime: ago(time.Hour), CompletionTime: ago(time.Minute)}},
		"failed now": {status: api.AgentBuildStatus{Phase: api.PhaseFailed, Conditions: conditions("RegistryUnreachable", no, yes, no, time.Minute),
			LastBuildTime: ago(time.Hour), CompletionTime: ago(29 * time.Minute)}, reason: "RegistryUnreachable"},
		"failed long ago": {status: api.AgentBuildStatus{Phase: api.PhaseFailed, Conditions: conditions("RegistryUnreachable", no, yes, no, time.Minute),
			LastBuildTime: ago(time.Hour), CompletionTime: ago(31 * time.Minute)}},
		"held for long, after a run": {status: api.AgentBuildStatus{Phase: api.PhaseFailed, Conditions: conditions("AttestKeyMissing", no, no, no, 9*time.Hour),
			LastBuildTime: ago(9 * time.Hour), CompletionTime: ago(9 * time.Hour)}, reason: "AttestKeyMissing"},
		"cancelled": {status: api.AgentBuildStatus{Phase: api.PhaseCancelled, Conditions: conditions("BuildRunCanceled", no, yes, no, time.Minute)}},
		"queued for the next run": {status: api.AgentBuildStatus{Phase: api.PhasePending, Conditions: conditions("Queued", no, no, unknown, 40*time.Minute),
			LastBuildTime: ago(9 * time.Hour), StartTime: ago(9 * time.Hour)}, reason: "Queued", waits: "40m0s", what: "slot"},
		"created, and not started": {status: api.AgentBuildStatus{Phase: api.PhaseBuilding, Conditions: conditions("Running", no, yes, unknown, time.Minute),
			LastBuildTime: ago(5 * time.Minute)}, reason: "Running", waits: "5m0s", what: "start"},
		"runs": {status: api.AgentBuildStatus{Phase: api.PhaseBuilding, Conditions: conditions("Running", no, yes, unknown, time.Minute),
			LastBuildTime: ago(5 * time.Minute), StartTime: ago(5 * time.Minute)}, reason: "Running"},
	} {
		waits := ""
		since, what := waitsSince(c.status)
		if what != "" {
			waits = now.Sub(since).String()
		}
		if reason := unreadyReason(c.status, now); reason != c.reason || waits != c.waits || what != c.what {
			t.Errorf("%s: reason %q, waits %s for %q, want %q, %s, %q", name, reason, waits, what, c.reason, c.waits, c.what)
		}
	}
}

// Requests are counted by how they ended, all of them from zero.
func TestRequestsOfServers(t *testing.T) {
	r := newMetrics(nil)
	observe := r.request("commit")
	observe(nil, time.Second)
	observe(&finding.Finding{Rule: api.ReasonRevisionNotFound}, time.Second)
	observe(errors.New("no route to host"), time.Second)
	observe(errors.New("no route to host"), time.Second)
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.asked)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatal(families, err)
	}
	got := map[string]uint64{}
	for _, m := range families[0].Metric {
		got[m.Label[0].GetValue()+" "+m.Label[1].GetValue()] = m.Histogram.GetSampleCount()
	}
	want := map[string]uint64{"commit good": 1, "commit refused": 1, "commit failed": 2, "poll good": 0, "poll refused": 0, "poll failed": 0,
		"attest good": 0, "attest refused": 0, "attest failed": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
