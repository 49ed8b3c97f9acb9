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
	f := render.Staged{Path: "web.yaml", Texts: [][]byte{
		[]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nreplicas: 1\nspec:\n" +
			"  containers: []\n"),
		text("50m", "app:v1", "1"),
		text("50m", "app:v1", "1"),
		text("20m", "app:v1@sha256:1", "2"),
	}}
	var got []change
	for _, c := range changes(f) {
		if !c.pins() {
			got = append(got, c)
		}
	}
	want := []change{{finding.Ref{APIVersion: "v1", Kind: "Pod", Name: "web"}, "web.yaml", 1,
		"spec.containers[app].cpu", 0, 2, "50m", "20m"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(change{})); diff != "" {
		t.Error(diff)
	}
}
