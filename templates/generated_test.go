package templates

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The committed deep copies and CRDs are what the types say. Those of kagent are kagent's.
func TestGenerated(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the generator; run it without -short")
	}
	for _, c := range []struct {
		folder, crds string
		args         []string
	}{
		{"../builds/api", "crds", []string{"crd:crdVersions=v1", "paths=.", "object"}},
		{"../builds/writeback/imageupdate/api", "crds",
			[]string{"crd:crdVersions=v1", "paths=.", "object"}},
		{"../render/deliver/flux/api", "crds/sources",
			[]string{"crd:crdVersions=v1", "paths=.", "object"}},
		{"../catalog/api", "crds/catalog",
			[]string{"crd:crdVersions=v1", "paths=.", "paths=../kinds"}},
	} {
		dir := t.TempDir()
		cmd := exec.Command("go", append([]string{"tool", "controller-gen", "output:dir=" + dir},
			c.args...)...)
		cmd.Dir = c.folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("controller-gen: %v\n%s", err, out)
		}
		made, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(made) != 2 {
			t.Errorf("%d files were generated of %s, want 2: %v", len(made), c.folder, err)
		}
		for _, file := range made {
			committed := filepath.Join(c.crds, filepath.Base(file))
			if filepath.Ext(file) == ".go" {
				committed = filepath.Join(c.folder, filepath.Base(file))
			}
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
