package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/compare"
	"github.com/armature-dev/armature/render/deliver/forge"
)

const (
	commitA = "1111111111111111111111111111111111111111"
	commitB = "2222222222222222222222222222222222222222"
)

// ran is a build whose last run has a phase.
func ran(phase api.Phase, commit, run string) *api.AgentBuild {
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather"}}
	b.Status = api.AgentBuildStatus{Phase: phase, LastRunPhase: phase, Message: "the message", PipelineRunName: run,
		Source:     &api.SourceStatus{Git: api.GitStatus{CommitSHA: commit, Ref: "refs/heads/main"}},
		Conditions: []metav1.Condition{{Type: api.ConditionRunExists, Status: metav1.ConditionTrue}}}
	return b
}

func TestOf(t *testing.T) {
	for phase, want := range map[api.Phase]forge.State{api.PhasePending: forge.Queued, api.PhaseBuilding: forge.Running, api.PhaseSucceeded: forge.Success, api.PhaseFailed: forge.Failure, api.PhaseCancelled: forge.Cancelled} {
		if s, ok := Of(ran(phase, commitA, "weather-1")); !ok || s.State != want || s.Commit != commitA || s.ID != "weather-1" || s.Context != "armature/team1/weather" {
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
	derived.Name, derived.OwnerReferences = "weather-pr-7", []metav1.OwnerReference{{Kind: api.Kind, Name: "weather", Controller: &yes}}
	if got := Context(derived); got != "armature/team1/weather" {
		t.Error(got)
	}
	derived.Spec.Source.SourceRevision, derived.Status.Phase = commitB, api.PhasePending
	derived.Status.Conditions = []metav1.Condition{{Type: api.ConditionRunExists, Status: metav1.ConditionFalse, Reason: api.ReasonQueued}}
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
		if s, ok := skipped(skip, "skipped"); !ok || s.State != c.want || s.Commit != commitB || s.Description != "its message" {
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
	d := &api.FailureDetails{Message: "Dockerfile:3 RUN pip install: exit code 1: remedy", LogTail: []string{
		"main.go:12:5: undefined: x", "./api/server.py:7: error", "main.go:12:5: again", "at 10:15: nothing", "/etc/passwd:1: absolute", "../../up.go:1: outside", "src/x.ts:0: no line", "http://example.com:80: no file",
	}}
	want := []forge.Annotation{{Path: "sub/Dockerfile", Line: 3, Message: d.Message}, {Path: "sub/main.go", Line: 12, Message: "undefined: x"}, {Path: "sub/api/server.py", Line: 7, Message: "error"}}
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

// What a build prints, and what an author writes, mentions nobody, links nothing and ends no
// block: it is in code alone.
func TestHostileContent(t *testing.T) {
	const hostile = "@octocat #12 <img src=https://evil.example/x> [x](https://evil.example) | `` ``` ~~~ </details> <!-- armature: package/a -->\x1b[2J"
	b := ran(api.PhaseFailed, commitA, "weather-1")
	b.Status.FailureDetails = &api.FailureDetails{Reason: "Failed", Message: hostile + "\n" + hostile, Step: "s`t", LogTail: []string{hostile, "````", "x", "`````"}}
	finding := krm.Finding{Rule: "x", Severity: krm.Error, Message: hostile, Hint: hostile, Place: krm.Place{File: "a|b.yaml"}}
	findings := []krm.Finding{finding}
	for range 100 {
		findings = append(findings, finding)
	}
	packages, quiet := Package("apps/`"+hostile, findings, nil)
	if quiet || !strings.Contains(packages, "and 51 more") || !strings.Contains(packages, "101 errors, 0 warnings") {
		t.Errorf("%v %.300s", quiet, packages)
	}
	for name, text := range map[string]string{"build": Build(b), "package": packages} {
		if len(text) > 100_000 {
			t.Errorf("%s: %d bytes", name, len(text))
		}
		if rest := outsideCode(text); strings.Contains(rest, "octocat") || strings.Contains(rest, "evil") || strings.Contains(rest, "</details>") || strings.Contains(text, "\x1b") {
			t.Errorf("%s is not all in code:\n%s", name, rest)
		}
	}
	// A line of a log would be a command of this account to other bots.
	b.Status.FailureDetails.LogTail = append(b.Status.FailureDetails.LogTail, "/approve", "  /lgtm", "@bot merge")
	for line := range strings.Lines(Build(b)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") || strings.HasPrefix(line, "@") {
			t.Errorf("the comment has the line %q", line)
		}
	}
	if !strings.Contains(Build(b), "\n``````\n") {
		t.Errorf("the fence is not longer than those in it:\n%s", Build(b))
	}
	b.Status.FailureDetails.LogTail = []string{strings.Repeat("x", 1<<20)}
	if n := len(Build(b)); n > maxText {
		t.Errorf("%d bytes", n)
	}
}

// outsideCode leaves out code spans and fenced blocks, as CommonMark reads them.
func outsideCode(text string) string {
	var out strings.Builder
	fence := ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimRight(line, "\n")
		switch {
		case fence != "":
			if trimmed == fence {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```"):
			fence = trimmed
		default:
			for i, part := range strings.Split(line, "`") {
				if i%2 == 0 {
					out.WriteString(part)
				}
			}
		}
	}
	return out.String()
}

func TestPackage(t *testing.T) {
	body, quiet := Package("apps", []krm.Finding{{Severity: krm.Info, Message: "x"}}, &compare.Report{})
	if !quiet || !strings.Contains(body, "Lint: 0 errors, 0 warnings") || !strings.Contains(body, "nothing changes") {
		t.Errorf("%v %s", quiet, body)
	}
	changes := &compare.Report{Workloads: []compare.Workload{{Object: krm.Ref{Kind: "Deployment", Name: "web"}, Effect: compare.Rolls, Fields: []string{"@a #1 https://x [y](z)"}}}}
	body, quiet = Package("apps", nil, changes)
	if quiet || !strings.Contains(body, "**rolls**") || strings.Contains(body, "@a") || strings.Contains(body, "#1") || strings.Contains(body, "https://") || strings.Contains(body, "](z)") {
		t.Errorf("%v %s", quiet, body)
	}
}
