package skill

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const valid = "---\nname: pdf-processing\ndescription: Extract text from PDF files. Use it with " +
	"PDFs.\nlicense: Apache-2.0\nmetadata:\n  author: example-org\n  version: \"1.0\"\n" +
	"allowed-tools: Bash(git:*) Read\n---\n\n# Steps\n"

func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pdf-processing")
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The image has the folder's files at its root, in one layer, and the same digest each time.
func TestImage(t *testing.T) {
	dir := folder(t, map[string]string{Manifest: valid, "scripts/run.sh": "#!/bin/sh\n",
		"references/a/b.md": "b"})
	if err := os.Chmod(filepath.Join(dir, "scripts/run.sh"), 0o700); err != nil {
		t.Fatal(err)
	}
	digests := map[string]bool{}
	for range 2 {
		s, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		image, err := s.Image()
		if err != nil {
			t.Fatal(err)
		}
		digest, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests[digest.String()] = true
		layers, err := image.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatal(len(layers), err)
		}
		content, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for r := tar.NewReader(content); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, h.FileInfo().Mode().String()+" "+h.Name)
		}
		if got := strings.Join(names,
			", "); got !=
			"-rw-r--r-- SKILL.md, -rw-r--r-- references/a/b.md, -rwxr-xr-x scripts/run.sh" {
			t.Errorf("files: %s", got)
		}
	}
	if len(digests) != 1 {
		t.Errorf("digests: %v", digests)
	}
}

func TestRefuses(t *testing.T) {
	head := func(text string) map[string]string { return map[string]string{Manifest: text} }
	for want, files := range map[string]map[string]string{
		"not a skill":         {"README.md": "x"},
		"no front matter":     head("# Steps\n"),
		"the folder's":        head(strings.Replace(valid, "pdf-processing", "pdf", 1)),
		"the name \"PDF\"":    head(strings.Replace(valid, "pdf-processing", "PDF", 1)),
		"the name \"pdf--x\"": head(strings.Replace(valid, "pdf-processing", "pdf--x", 1)),
		"the name \"-pdf\"":   head(strings.Replace(valid, "pdf-processing", "\"-pdf\"", 1)),
		"1 to 1,024 characters": head(strings.Replace(valid, "Extract", strings.Repeat("a", 1100),
			1)),
		"at most 500": head(strings.Replace(valid, "license:",
			"compatibility: "+strings.Repeat("a", 501)+"\nlicense:", 1)),
		"unknown field":      head(strings.Replace(valid, "license:", "licence:", 1)),
		"already set":        head(strings.Replace(valid, "license:", "name: b\nlicense:", 1)),
		"start with .wh":     {Manifest: valid, "a/.wh.b": ""},
		"control characters": {Manifest: valid, "a\u202eb": ""},
		"more than 1000":     many(),
		"a file has at most": {Manifest: valid, "big": strings.Repeat("a", maxFile+1)},
	} {
		if _, err := Read(folder(t, files)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for name, target := range map[string]string{"out": "/etc/passwd", "up": "../../secret",
		"in": Manifest, "loop": "loop"} {
		dir := folder(t, head(valid))
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "link") {
			t.Errorf("a link to %s: %v", target, err)
		}
	}
	dir := folder(t, head(valid))
	if err := os.Symlink("/etc", filepath.Join(dir, "folder")); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "link") {
		t.Errorf("a linked folder: %v", err)
	}
	dir = folder(t, head(valid))
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "device") {
		t.Errorf("a pipe: %v", err)
	}
}

func many() map[string]string {
	files := map[string]string{Manifest: valid}
	for i := range maxFiles {
		files["f"+strings.Repeat("x", i%50)+string(rune('a'+i/50))] = ""
	}
	return files
}
