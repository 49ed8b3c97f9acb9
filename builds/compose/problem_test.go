package compose_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/builds/compose"
)

// Problems come in the order of their lines and of their files, whatever order
// they were found in.
func TestProblemsInOrder(t *testing.T) {
	want := []string{
		"ConfigMap t/scan, task-spec.yaml:4", "ConfigMap t/scan, task-spec.yaml:12", "ConfigMap t/scan-2, task-spec.yaml:1",
		"a.yaml", "a.yaml:07", "a.yaml:7", "a.yaml:10", "a.yaml:10b", "a.yaml:100000000000000000000", "a.yaml:200000000000000000000",
		"a2.yaml:1", "a10.yaml:1", "b.yaml:3",
	}
	for i := range want {
		var found []error
		for _, place := range append(slices.Clone(want[i:]), want[:i]...) {
			found = append(found, &compose.Problem{Place: place, Message: "is wrong"})
		}
		slices.Reverse(found)
		var got []string
		for _, p := range compose.Problems(compose.Join(found...)) {
			got = append(got, p.Place)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("from the %d. on (-want +got):\n%s", i, diff)
		}
	}
}
