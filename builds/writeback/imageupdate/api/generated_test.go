package api

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The committed deep copies and CRD are what the types say.
func TestGenerated(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the generator; run it without -short")
	}
	dir := t.TempDir()
	for committed, args := range map[string][]string{
		"zz_generated.deepcopy.go":                                  {"object", "paths=.", "output:object:dir=" + dir},
		"../../../../templates/crds/armature.dev_imageupdates.yaml": {"crd:crdVersions=v1", "paths=.", "output:crd:dir=" + dir},
	} {
		if out, err := exec.Command("go", append([]string{"tool", "controller-gen"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("controller-gen: %v\n%s", err, out)
		}
		want, err := os.ReadFile(filepath.Join(dir, filepath.Base(committed)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(committed)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is out of date: run `make generate-builds` (-want +got):\n%s", committed, diff)
		}
	}
}
