package findings_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
)

// Findings come in the order of their files, lines, objects and keys, whatever
// order they were found in, and what has no place comes last.
func TestFindingsInOrder(t *testing.T) {
	in := func(namespace, name, key string, line int) finding.Place {
		return finding.Place{Object: finding.Ref{Kind: "ConfigMap", Namespace: namespace,
			Name: name}, Key: key, KeyLine: line}
	}
	want := []finding.Place{
		{Object: finding.Ref{Kind: "AgentBuild", Namespace: "z", Name: "z"}},
		in("t", "scan", "", 0), in("t", "scan", "task-spec.yaml", 4),
		in("t", "scan", "task-spec.yaml", 12), in("t", "scan-2", "task-spec.yaml", 1),
		in("u", "a", "task-spec.yaml", 1), {File: "a.yaml"}, {File: "a.yaml", Line: 7},
		{File: "a.yaml", Line: 10}, {File: "b.yaml", Line: 3}, {},
	}
	for i := range want {
		var found []error
		for _, place := range append(slices.Clone(want[i:]), want[:i]...) {
			if place == (finding.Place{}) {
				found = append(found, errors.New("is wrong"))
			} else {
				found = append(found, place.Fault("Rule", "is wrong", ""))
			}
		}
		slices.Reverse(found)
		var got []finding.Place
		for _, f := range findings.Of(findings.Join(found...)) {
			got = append(got, f.Place)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("from the %d. on (-want +got):\n%s", i, diff)
		}
	}
}

// TestFindingsAreLimited checks that repetitions do not displace other findings, and that findings
// which are not listed are mentioned.
func TestFindingsAreLimited(t *testing.T) {
	var found []error
	for range 150 {
		found = append(found, finding.Place{File: "a.yaml"}.Fault("Rule", "is wrong", ""))
	}
	found = append(found, finding.Place{File: "b.yaml"}.Fault("Rule", "is wrong", ""))
	if got := findings.Of(findings.Join(found...)); len(got) != 2 || got[1].File != "b.yaml" {
		t.Errorf("%d findings, want one for each file", len(got))
	}
	for line := range 200 {
		found = append(found, finding.Place{File: "c.yaml", Line: line}.Fault("Rule", "is wrong", ""))
	}
	err := findings.Join(found...)
	if got := findings.Of(err); len(got) != 101 || got[100].Message != "more problems are not listed" {
		t.Errorf("%d findings, the last is %v", len(got), got[len(got)-1])
	}
	if again := findings.Join(err, nil); again.Error() != err.Error() {
		t.Errorf("joined again: %v", again)
	}
}
