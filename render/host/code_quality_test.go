package host_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/host"
)

// GitLab distinguishes old findings from new ones by their fingerprints: a finding keeps its
// own when lines above it come or go, and no two have the same.
func TestCodeQualityFingerprints(t *testing.T) {
	fingerprints := func(findings ...finding.Finding) (all []string) {
		var out bytes.Buffer
		if err := host.WriteFindings(&out, "gitlab", findings); err != nil {
			t.Fatal(err)
		}
		var entries []struct{ Fingerprint string }
		if err := json.Unmarshal(out.Bytes(), &entries); err != nil ||
			len(entries) != len(findings) {
			t.Fatalf("%v, %d entries of %d findings", err, len(entries), len(findings))
		}
		for _, e := range entries {
			all = append(all, e.Fingerprint)
		}
		return all
	}
	finding := finding.Finding{Rule: "inject/port-clash", Severity: finding.Error,
		Message: "port 8080 is also in b.yaml:7",
		Place: finding.Place{File: "a.yaml", Line: 3,
			Object: finding.Ref{Kind: "Deployment", Name: "a"}}}
	moved, other := finding, finding
	moved.Line, moved.Message = 5, "port 8080 is also in b.yaml:9"
	other.Object.Name = "b"
	before, after := fingerprints(finding, finding, other), fingerprints(moved, moved, other)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("lines that moved made other fingerprints (-before +after):\n%s", diff)
	}
	if before[0] == before[1] || before[0] == before[2] || before[1] == before[2] {
		t.Errorf("two findings have one fingerprint: %q", before)
	}
}
