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
