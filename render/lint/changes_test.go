package lint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// TestChanges: the second function that sets a field contests it; one that sets
// a field of the author's, or adds a digest, does not.
func TestChanges(t *testing.T) {
	text := func(cpu, image, replicas string) []byte {
		return []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nreplicas: " + replicas +
			"\nspec:\n  containers:\n  - name: app\n    cpu: " + cpu + "\n    image: " + image + "\n")
	}
	ref := finding.Ref{APIVersion: "v1", Kind: "Pod", Name: "web"}
	versions := map[finding.Ref]*render.Versions{ref: {
		Functions: []int{-1, 0, 2}, Listed: make([]bool, 3), Line: 1, Texts: [][]byte{
			[]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nreplicas: 1\nspec:\n" +
				"  containers: []\n"),
			text("50m", "app:v1", "1"),
			text("20m", "app:v1@sha256:1", "2"),
		}}}
	got := changes("web.yaml", versions)
	want := []change{{finding.Place{File: "web.yaml", Line: 1, Field: "spec.containers[app].cpu",
		Object: ref}, 0, 2, "50m", "20m"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(change{})); diff != "" {
		t.Error(diff)
	}
}
