package version

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

// TestFingerprint: builds that may render differently have other fingerprints.
func TestFingerprint(t *testing.T) {
	vcs := func(revision, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"},
			{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
	}
	dep := func(m debug.Module) []*debug.Module { return []*debug.Module{&m} }
	builds := []struct {
		name       string
		info       *debug.BuildInfo
		executable string
	}{
		{"no information", nil, "one"},
		{"another executable without information", nil, "two"},
		{"a clean checkout", &debug.BuildInfo{Settings: vcs("a", "false")}, ""},
		{"the next commit", &debug.BuildInfo{Settings: vcs("b", "false")}, ""},
		{"a changed checkout", &debug.BuildInfo{Settings: vcs("a", "true")}, "three"},
		{"a checkout that changed again", &debug.BuildInfo{Settings: vcs("a", "true")}, "four"},
		{"a release",
			&debug.BuildInfo{Main: debug.Module{Path: "armature", Version: "v1.0.0", Sum: "h1:a"}},
			""},
		{"the next release",
			&debug.BuildInfo{Main: debug.Module{Path: "armature", Version: "v1.0.1", Sum: "h1:b"}},
			""},
		{"another Go", &debug.BuildInfo{GoVersion: "go1.99", Settings: vcs("a", "false")}, ""},
		{"another library", &debug.BuildInfo{Settings: vcs("a", "false"),
			Deps: dep(debug.Module{Path: "yaml", Version: "v3", Sum: "h1:c"})}, ""},
		{"a library from a folder",
			&debug.BuildInfo{Settings: vcs("a", "false"),
				Deps: dep(debug.Module{Path: "yaml", Replace: &debug.Module{Path: "../yaml"}})},
			"five"},
	}
	seen := make(map[string]string)
	for _, b := range builds {
		open := func() (string, error) {
			if b.executable == "" {
				return "", errors.New("the executable is not needed")
			}
			return b.executable, nil
		}
		first, err := fingerprint(b.info, open)
		if err != nil {
			t.Errorf("%s: %v", b.name, err)
		}
		if second, _ := fingerprint(b.info, open); second != first {
			t.Errorf("%s: two fingerprints: %s, %s", b.name, first, second)
		}
		if other, ok := seen[first]; ok {
			t.Errorf("%s has the fingerprint of %s", b.name, other)
		}
		seen[first] = b.name
	}
	if _, err := fingerprint(nil, func() (string, error) { return "", errors.New("gone") }); err == nil {
		t.Error("a build that nothing identifies has a fingerprint")
	}
	if this, err := Fingerprint()(); err != nil || this == "" {
		t.Errorf("this build: %q, %v", this, err)
	}
}

// A program is known by its build ID, and where that is missing by all its bytes.
func TestContent(t *testing.T) {
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(this)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	of := func(name string, data []byte) string {
		t.Helper()
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		id, err := content(file)
		if err != nil || id == "" {
			t.Fatalf("%s: %q, %v", name, id, err)
		}
		return id
	}
	same, longer := of("same", program), of("longer", append(bytes.Clone(program), 0))
	if parsed, err := elf.NewFile(bytes.NewReader(program)); err == nil {
		other := bytes.Clone(program)
		other[parsed.Section(".note.go.buildid").Offset+20] ^= 1
		if of("other", other) == same {
			t.Error("another build ID is the same program")
		}
		if same != longer {
			t.Error("the build ID is not read")
		}
	}
	if of("one", []byte("one")) == of("two", []byte("two")) {
		t.Error("two files without a build ID are the same program")
	}
	if _, err := content(filepath.Join(folder, "missing")); err == nil {
		t.Error("a program that is missing has content")
	}
}
