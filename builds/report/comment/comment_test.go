package comment

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/compare"
)

// TestHostileContent checks that text of builds and authors is in code blocks alone: it mentions
// no user, has no link, and ends no block.
func TestHostileContent(t *testing.T) {
	const hostile = "@octocat #12 <img src=https://evil.example/x> [x](https://evil.example) | " +
		"`` ``` ~~~ </details> <!-- armature: package/a -->\x1b[2J"
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather"}}
	b.Status.Phase, b.Status.Source =
		api.PhaseFailed, &api.SourceStatus{Git: api.GitStatus{CommitSHA: "1234"}}
	b.Status.FailureDetails = &api.FailureDetails{Reason: "Failed",
		Message: hostile + "\n" + hostile, Step: "s`t",
		LogTail: []string{hostile, "````", "x", "`````"}}
	found := finding.Finding{Rule: "x", Severity: finding.Error, Message: hostile, Hint: hostile,
		Place: finding.Place{File: "a|b.yaml"}}
	findings := []finding.Finding{found}
	for range 100 {
		findings = append(findings, found)
	}
	packages, quiet := Package("apps/`"+hostile, findings, nil)
	if quiet || !strings.Contains(packages, "and 51 more") ||
		!strings.Contains(packages, "101 errors, 0 warnings") {
		t.Errorf("%v %.300s", quiet, packages)
	}
	claims := &api.AgentBuild{Status: api.AgentBuildStatus{Phase: api.PhaseSucceeded,
		BuiltImage:  hostile,
		Attestation: &api.Attestation{Image: hostile, Level: 3, ProvenanceDigest: hostile}}}
	claimed := Build(claims)
	if claims.Status.Attestation = nil; !strings.Contains(claimed,
		"claimed by status, not verified") || !strings.Contains(Build(claims), "`unattested`") {
		t.Errorf("%s\n%s", claimed, Build(claims))
	}
	for name, text := range map[string]string{"build": Build(b), "package": packages, "claims": claimed} {
		if len(text) > 100_000 {
			t.Errorf("%s: %d bytes", name, len(text))
		}
		if rest := outsideCode(text); strings.Contains(rest, "octocat") ||
			strings.Contains(rest, "evil") || strings.Contains(rest, "</details>") ||
			strings.Contains(text, "\x1b") {
			t.Errorf("%s is not all in code:\n%s", name, rest)
		}
	}
	// A line of a log would be a command of this account to other bots.
	b.Status.FailureDetails.LogTail = append(b.Status.FailureDetails.LogTail, "/approve", "  /lgtm",
		"@bot merge")
	for line := range strings.Lines(Build(b)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") ||
			strings.HasPrefix(line, "@") {
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
	body, quiet := Package("apps", []finding.Finding{{Severity: finding.Info, Message: "x"}},
		&compare.Report{})
	if !quiet || !strings.Contains(body, "Lint: 0 errors, 0 warnings") ||
		!strings.Contains(body, "nothing changes") {
		t.Errorf("%v %s", quiet, body)
	}
	changes := &compare.Report{
		Workloads: []compare.Workload{{Object: finding.Ref{Kind: "Deployment", Name: "web"},
			Effect: compare.Rolls, Fields: []string{"@a #1 https://x [y](z)"}}}}
	body, quiet = Package("apps", nil, changes)
	if quiet || !strings.Contains(body, "**rolls**") || strings.Contains(body, "@a") ||
		strings.Contains(body, "#1") || strings.Contains(body, "https://") ||
		strings.Contains(body, "](z)") {
		t.Errorf("%v %s", quiet, body)
	}
}
