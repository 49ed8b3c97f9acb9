package controller_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// A build becomes one run; the run's end becomes the build's result, in at most
// two writes until the run exists and four until it is done.
func TestCreate(t *testing.T) {
	w := newWorld(t)
	w.start()
	keep := false
	b := w.create("weather", func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep })

	run := w.run(1)
	if n, all := w.writes.until("POST pipelineruns", 1); n > 2 {
		t.Errorf("%d writes until the run exists: %v", n, all)
	}
	if !metav1.IsControlledBy(run, b) {
		t.Errorf("the run's owners are %v", run.OwnerReferences)
	}
	if got := run.Annotations[keys.AnnotationCommit]; got != sha {
		t.Errorf("the run builds commit %q", got)
	}
	w.phase("weather", api.PhaseBuilding)
	w.begin(run)
	w.succeed(run)
	got := w.phase("weather", api.PhaseSucceeded)
	if n, all := w.writes.until("PATCH agentbuilds/status", 2); n > 4 {
		t.Errorf("%d writes until the build is done: %v", n, all)
	}

	want := api.AgentBuildStatus{
		Phase: api.PhaseSucceeded, ObservedGeneration: 1, PipelineRunName: run.Name,
		PipelineRunUID: run.UID, RunReason: api.TriggerConfig, Attempt: 1, RunNumber: 1,
		LastRunPhase: api.PhaseSucceeded, BuiltImage: "registry.local:5000/weather:v1@" + digest,
		Message: "built registry.local:5000/weather:v1@" + digest,
		Source:  &api.SourceStatus{Git: api.GitStatus{CommitSHA: sha}},
		Tasks: []api.TaskStatus{{Name: "buildpack-build", State: "Skipped",
			Reason: "When Expressions evaluated to false"}},
	}
	status := got.Status
	if status.LastBuildTime == nil || status.StartTime == nil || status.CompletionTime == nil {
		t.Errorf("times are missing: %+v", status)
	}
	for _, c := range status.Conditions {
		if c.ObservedGeneration != 1 || c.Status != metav1.ConditionTrue {
			t.Errorf("condition %s is %s of generation %d: %s", c.Type, c.Status,
				c.ObservedGeneration, c.Message)
		}
	}
	if len(status.Conditions) != 3 {
		t.Errorf("conditions: %v", status.Conditions)
	}
	status.LastBuildTime, status.StartTime, status.CompletionTime, status.Conditions,
		status.Inputs = nil, nil, nil, nil, nil
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"agent.kagenti.dev/finalizer"}, got.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	w.never("a second run", func() string {
		if n := len(w.runs()); n != 1 {
			return "there are more runs"
		}
		return ""
	})
}
