package source_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/armature-dev/armature/render/source"
)

// TestPipesOfAPackage: a package that is a pipe, or whose configuration, lock, list of files or
// rendered file is one, is refused: a read would never return.
func TestPipesOfAPackage(t *testing.T) {
	for name, read := range map[string]func(root string) error{
		"armature.yaml": func(root string) error {
			_, _, err := source.FindConfig("", root, root)
			return err
		},
		"armature.lock": func(root string) error {
			_, _, err := source.FindLock("", root)
			return err
		},
		"package.yaml": func(root string) error {
			src, _, err := source.Tree(filepath.Join(root, "package.yaml"), "", nil)
			if err == nil {
				_, err = src.Content("package.yaml")
			}
			return err
		},
		"rendered.yaml": func(root string) error {
			c, err := source.NewComparison(root, false)
			if err != nil {
				return err
			}
			return c.Write("rendered.yaml", []byte("kind: Pod\n"))
		},
		source.ListFile: func(root string) error {
			c, err := source.NewComparison(root, false)
			if err != nil {
				return err
			}
			return c.For("-")
		},
	} {
		root := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("pipe", filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- read(root) }()
		select {
		case err := <-done:
			if err == nil || !strings.Contains(err.Error(), "it is not a file") {
				t.Errorf("%s: error %v", name, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: no answer after 5 s", name)
		}
	}
}
