package api

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The committed CRDs of AgentCard are what the types say. Those of kagent are kagent's.
func TestGenerated(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the generator; run it without -short")
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "tool", "controller-gen", "crd:crdVersions=v1", "paths=.", "paths=./published", "output:crd:dir="+dir).CombinedOutput(); err != nil {
		t.Fatalf("controller-gen: %v\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(made) != 2 {
		t.Fatalf("%d CRDs, want 2: %v", len(made), err)
	}
	for _, file := range made {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("../../templates/crds/catalog", filepath.Base(file)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is out of date: run `make generate-catalog` (-want +got):\n%s", filepath.Base(file), diff)
		}
	}
}
