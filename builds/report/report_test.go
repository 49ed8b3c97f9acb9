package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/forge"
)

const (
	commitA = "1111111111111111111111111111111111111111"
	commitB = "2222222222222222222222222222222222222222"
)

// ran is a build whose last run has a phase.
func ran(phase api.Phase, commit, run string) *api.AgentBuild {
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather"}}
	b.Status = api.AgentBuildStatus{Phase: phase, LastRunPhase: phase, Message: "the message",
		PipelineRunName: run,
		Source: &api.SourceStatus{Git: api.GitStatus{CommitSHA: commit,
			Ref: "refs/heads/main"}},
		Conditions: []metav1.Condition{{Type: api.ConditionRunExists,
			Status: metav1.ConditionTrue}}}
	return b
}

func TestOf(t *testing.T) {
	for phase, want := range map[api.Phase]forge.State{api.PhasePending: forge.Queued,
		api.PhaseBuilding: forge.Running, api.PhaseSucceeded: forge.Success,
		api.PhaseFailed: forge.Failure, api.PhaseCancelled: forge.Cancelled} {
		if s, ok := Of(ran(phase, commitA, "weather-1")); !ok || s.State != want ||
			s.Commit != commitA || s.ID != "weather-1" || s.Context != "armature/team1/weather" {
			t.Errorf("%s: %v, %+v", phase, ok, s)
		}
	}
	evicted := ran(api.PhaseFailed, commitA, "weather-1")
	evicted.Status.FailureDetails = &api.FailureDetails{Reason: "Evicted", Cause: api.CauseEvicted}
	if s, _ := Of(evicted); s.State != forge.Error {
		t.Errorf("evicted: %+v", s)
	}
	evicted.Spec.Retries = &api.Retries{Limit: 3}
	evicted.Status.Attempt = 1
	if s, _ := Of(evicted); s.State != forge.Running && !evicted.Over() {
		t.Errorf("tried again: %+v", s)
	}
	yes := true
	derived := ran(api.PhaseBuilding, commitA, "x")
	derived.Spec.Source.PullRequest = &api.SourcePullRequest{Number: 7}
	derived.Name, derived.OwnerReferences =
		"weather-pr-7", []metav1.OwnerReference{{Kind: api.Kind, Name: "weather", Controller: &yes}}
	if got := Context(derived); got != "armature/team1/weather" {
		t.Error(got)
	}
	derived.Spec.Source.SourceRevision, derived.Status.Phase = commitB, api.PhasePending
	derived.Status.Conditions = []metav1.Condition{{Type: api.ConditionRunExists,
		Status: metav1.ConditionFalse, Reason: api.ReasonQueued}}
	if s, ok := Of(derived); !ok || s.State != forge.Queued || s.Commit != commitB {
		t.Errorf("waits for other runs: %v, %+v", ok, s)
	}
	none := ran(api.PhaseFailed, commitA, "weather-1")
	none.Status.Conditions = nil
	if s, ok := Of(none); ok {
		t.Errorf("a spec that starts no run: %+v", s)
	}
}

// What is sent, by what was sent last.
func TestPlan(t *testing.T) {
	sent := func(b *api.AgentBuild) (out []string) {
		for _, s := range plan(b, "skipped") {
			out = append(out, string(s.State)+" "+s.Commit[:1]+" "+s.ID)
		}
		return out
	}
	b := ran(api.PhaseBuilding, commitA, "weather-1")
	check := func(what string, want ...string) {
		t.Helper()
		if d := cmp.Diff(want, sent(b)); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	check("the first", "running 1 weather-1")
	for _, c := range []struct {
		passes bool
		want   forge.State
	}{{true, forge.Skipped}, {false, forge.Queued}} {
		skip := ran(api.PhaseSucceeded, commitA, "weather-1")
		skip.Annotations = map[string]string{"skipped": SkippedValue(commitB, "its message", c.passes)}
		if s, ok := skipped(skip, "skipped"); !ok || s.State != c.want || s.Commit != commitB ||
			s.Description != "its message" {
			t.Errorf("passes %v: %v, %+v", c.passes, ok, s)
		}
	}
	now, _ := Of(b)
	b.Status.Report = &api.ReportStatus{Commit: commitA, Run: "weather-1", State: "running"}
	check("a killed controller had announced it", "running 1 weather-1")
	b.Status.Report.Sum = sum(now)
	check("an equal one")
	b.Status.PipelineRunName = "weather-2"
	check("another attempt of the commit", "running 1 weather-2")
	b.Status.Source.Git.CommitSHA = commitB
	check("another commit", "cancelled 1 weather-1", "running 2 weather-2")
	b.Status.Conditions = nil
	check("a run that is gone", "cancelled 1 weather-1")
	b.Status.Report.State = "cancelled"
	check("nothing is left open")
	b.Annotations = map[string]string{"skipped": strings.Repeat("3", 40) + " why"}
	check("a commit without a run", "skipped 3 skipped-"+strings.Repeat("3", 40))
	b.Status.Report.Skipped = strings.Repeat("3", 40)
	check("it was shown")
	for _, wrong := range []string{"x why", "../../x", commitB + " it was built after all"} {
		b.Annotations["skipped"] = wrong
		check(wrong)
	}
}

func TestAnnotations(t *testing.T) {
	d := &api.FailureDetails{Message: "Dockerfile:3 RUN pip install: exit code 1: remedy",
		LogTail: []string{
			"main.go:12:5: undefined: x", "./api/server.py:7: error", "main.go:12:5: again",
			"at 10:15: nothing", "/etc/passwd:1: absolute", "../../up.go:1: outside",
			"src/x.ts:0: no line", "http://example.com:80: no file",
		}}
	want := []forge.Annotation{{Path: "sub/Dockerfile", Line: 3, Message: d.Message},
		{Path: "sub/main.go", Line: 12, Message: "undefined: x"},
		{Path: "sub/api/server.py", Line: 7, Message: "error"}}
	if diff := cmp.Diff(want, annotations("sub", d)); diff != "" {
		t.Error(diff)
	}
	for range 100 {
		d.LogTail = append(d.LogTail, strings.Repeat("x", len(d.LogTail)+1)+".go:1: x")
	}
	if n := len(annotations("", d)); n != maxAnnotations {
		t.Errorf("%d annotations", n)
	}
}
