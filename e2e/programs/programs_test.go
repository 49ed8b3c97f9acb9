package programs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A program counts where make puts it, and a program of the same name on the PATH
// does not.
func TestFind(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "path")
	inside := filepath.Join(root, "render", "sign")
	for _, folder := range []string{".git", "path", filepath.Join("render", "sign"),
		filepath.Join(".cache", "bin", "cosign")} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(inside)
	t.Setenv("PATH", path)
	t.Setenv(Variable, "")
	if err := os.WriteFile(filepath.Join(path, "cosign"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Find("cosign"); !errors.Is(err, ErrMissing) ||
		!strings.Contains(err.Error(), "`make peers`") {
		t.Errorf("on the PATH alone: %v", err)
	}
	want := filepath.Join(root, ".cache", "bin", "cosign", "cosign")
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := Find("cosign"); err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if _, err := Find("nonsense"); err == nil || errors.Is(err, ErrMissing) {
		t.Errorf("an unknown program: %v", err)
	}
}

// recorder is a test that notes how it ends.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper()      {}
func (r *recorder) Name() string { return "recorder" }
func (r *recorder) Skip(...any)  { r.ended = "skipped"; panic(r) }
func (r *recorder) Fatal(...any) { r.ended = "failed"; panic(r) }

// A missing program skips a test, and fails it where peers are required.
func TestMissingPeer(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	for value, want := range map[string]string{"": "skipped", "required": "failed"} {
		t.Setenv(Variable, value)
		r := &recorder{TB: t}
		func() {
			defer func() { _ = recover() }() // it ended
			Peer(r, "kustomize")
		}()
		if r.ended != want {
			t.Errorf("%s=%q: %q, want %q", Variable, value, r.ended, want)
		}
	}
}
