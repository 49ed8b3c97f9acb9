package discovery

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The address that lets its first reader in is in no argument of a process, where everybody on the
// machine reads it, but in a file of its owner.
func TestBrowse(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the browser is started by another program")
	}
	programs, noted := t.TempDir(), filepath.Join(t.TempDir(), "arguments")
	script := "#!/bin/sh\nfor a in \"$@\"; do echo \"$a\"; done > " + noted + ".new && mv " +
		noted + ".new " + noted + "\n"
	if err := os.WriteFile(filepath.Join(programs, "xdg-open"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", t.TempDir())
	const address = "http://127.0.0.1:1/login/console?token=SECRET&x=\"y"
	done, err := browse(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	var arguments []byte
	for deadline := time.Now().Add(time.Minute); len(arguments) == 0 &&
		time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		arguments, _ = os.ReadFile(noted)
	}
	file := strings.TrimSpace(string(arguments))
	if file == "" || strings.Contains(file, "SECRET") || strings.Contains(file, "\n") {
		t.Fatalf("the browser is started with %q", file)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text),
		`url=http://127.0.0.1:1/login/console?token=SECRET&amp;x=&#34;y"`) {
		t.Errorf("%s: %v", text, err)
	}
	for _, path := range []string{file, filepath.Dir(file)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: others may read it: %v %v", path, info, err)
		}
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(file)); !os.IsNotExist(err) {
		t.Errorf("it is left behind: %v", err)
	}
}
