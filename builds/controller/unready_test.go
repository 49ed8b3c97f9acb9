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

// A build counts under its reason while an operator can do something about it.
func TestUnreadyBuilds(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	build := func(phase api.Phase, reason string, ready, exists metav1.ConditionStatus,
		ended time.Duration) api.AgentBuildStatus {
		return api.AgentBuildStatus{Phase: phase,
			CompletionTime: &metav1.Time{Time: now.Add(-ended)}, Conditions: []metav1.Condition{
				{Type: api.ConditionReady, Status: ready, Reason: reason},
				{Type: api.ConditionRunExists, Status: exists, Reason: reason},
			}}
	}
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	for name, c := range map[string]struct {
		status api.AgentBuildStatus
		reason string
	}{
		"new": {},
		"succeeded": {status: build(api.PhaseSucceeded, "Succeeded", yes, yes,
			time.Minute)},
		"failed now": {build(api.PhaseFailed, "RegistryUnreachable", no, yes,
			29*time.Minute), "RegistryUnreachable"},
		"failed long ago": {status: build(api.PhaseFailed, "RegistryUnreachable", no,
			yes, 31*time.Minute)},
		"held for long, after a run": {build(api.PhaseFailed, "AttestKeyMissing", no, no,
			9*time.Hour), "AttestKeyMissing"},
		"cancelled": {status: build(api.PhaseCancelled, "BuildRunCanceled", no,
			yes, time.Minute)},
		"queued for the next run": {build(api.PhasePending, "Queued", no, no, 9*time.Hour),
			"Queued"},
	} {
		if got := unreadyReason(c.status, now); got != c.reason {
			t.Errorf("%s: reason %q, want %q", name, got, c.reason)
		}
	}
}

// Requests are counted by how they ended, all of them from zero.
func TestRequestsOfServers(t *testing.T) {
	r := newMetrics(nil, nil)
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
	want := map[string]uint64{"commit good": 1, "commit refused": 1, "commit failed": 2,
		"poll good": 0, "poll refused": 0, "poll failed": 0, "attest good": 0, "attest refused": 0,
		"attest failed": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
