package templates

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The committed CRDs are what the types say. Those of kagent are kagent's.
func TestGenerated(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the generator; run it without -short")
	}
	for _, c := range []struct {
		folder, crds string
		paths        []string
		files        int
	}{
		{"../builds/api", "crds", []string{"paths=."}, 1},
		{"../builds/writeback/imageupdate/api", "crds", []string{"paths=."}, 1},
		{"../render/deliver/flux/api", "crds/sources", []string{"paths=."}, 1},
		{"../catalog/api", "crds/catalog", []string{"paths=.", "paths=../kinds"}, 2},
	} {
		dir := t.TempDir()
		cmd := exec.Command("go", append([]string{"tool", "controller-gen", "output:dir=" + dir,
			"crd:crdVersions=v1"}, c.paths...)...)
		cmd.Dir = c.folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("controller-gen: %v\n%s", err, out)
		}
		made, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(made) != c.files {
			t.Errorf("%d files were generated of %s, want %d: %v", len(made), c.folder, c.files,
				err)
		}
		for _, file := range made {
			committed := filepath.Join(c.crds, filepath.Base(file))
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(committed)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s is out of date: run `go generate` in %s (-want +got):\n%s", committed,
					c.folder, diff)
			}
		}
	}
}
