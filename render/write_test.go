package render

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFolderStage: what is written to a folder that exists never leaves it on
// its way, so that the folder may be a mounted volume. Nothing of it is left.
func TestFolderStage(t *testing.T) {
	parent := t.TempDir()
	folder := filepath.Join(parent, "volume")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(folder)
	if err != nil {
		t.Fatal(err)
	}
	// A render that was killed left its stage.
	if err := os.Mkdir(filepath.Join(folder, ".rendering-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"a: 1\n", "a: 2\n"} {
		f, err := NewFolder(folder, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"a.yaml", "sub/deeper/b.yaml"} {
			if err := f.Write(file, []byte(data)); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(folder, file)); err == nil && data == "a: 1\n" {
				t.Errorf("%s is there before Commit", file)
			}
		}
		if names := list(t, parent); len(names) != 1 {
			t.Errorf("beside the folder: %v", names)
		}
		if written, _, err := f.Commit(); err != nil || written != 2 {
			t.Fatal(written, err)
		}
		if got, err := os.ReadFile(filepath.Join(folder, "sub/deeper/b.yaml")); err != nil || string(got) != data {
			t.Errorf("%q, %v", got, err)
		}
		if names := list(t, folder); len(names) != 4 { // the files, their list, the old stage
			t.Errorf("in the folder: %v", names)
		}
	}
	after, err := os.Stat(folder)
	if err != nil || !os.SameFile(before, after) {
		t.Error("the folder is another one", err)
	}
}

func list(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
