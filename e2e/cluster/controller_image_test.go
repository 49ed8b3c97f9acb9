//go:build linux

package cluster

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// built makes the controller's image in an empty cache, of a program with that text.
func built(t *testing.T, program string) v1.Image {
	t.Helper()
	cache := t.TempDir()
	for _, dir := range []string{"bin", "debian"} {
		if err := os.Mkdir(filepath.Join(cache, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cache, "bin", "armature-controller"), []byte(program),
		0o755); err != nil {
		t.Fatal(err)
	}
	var packages archive
	packages.file("/usr/share/ca-certificates/mozilla/B.crt", 0o644, []byte("second\n"))
	packages.file("/usr/share/ca-certificates/mozilla/A.crt", 0o644, []byte("first"))
	packages.file("/usr/share/doc/ca-certificates/copyright", 0o644, []byte("no certificate"))
	if err := packages.tar.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cache, "debian", "git+ca-certificates+openssh-client.tar"),
		packages.buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	img, err := makeImage(cache, controllerImage(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// The same program yields the same digest, whenever and wherever the image is built.
func TestControllerImageIsReproducible(t *testing.T) {
	digest := func(img v1.Image) string {
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	first := digest(built(t, "one"))
	time.Sleep(1100 * time.Millisecond) // files have another time
	if second := digest(built(t, "one")); second != first {
		t.Errorf("two digests of one program: %s and %s", first, second)
	}
	if other := digest(built(t, "two")); other == first {
		t.Error("two programs have one digest")
	}
}

// The image has what a release's has: the program in its place, certificates to check
// servers by, and the user of the manifests, who has no rights.
func TestControllerImage(t *testing.T) {
	img := built(t, "program")
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := file.Config; c.User != "65532" ||
		!slices.Equal(c.Entrypoint, []string{"/ko-app/armature-controller"}) {
		t.Errorf("user %q, entrypoint %q", c.User, c.Entrypoint)
	}
	content := map[string]string{}
	entries := tar.NewReader(mutate.Extract(img))
	for {
		entry, err := entries.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(entries)
		if err != nil {
			t.Fatal(err)
		}
		content["/"+strings.TrimPrefix(entry.Name, "/")] = string(data)
	}
	if content["/ko-app/armature-controller"] != "program" ||
		content[certificatesFile] != "first\nsecond\n" {
		t.Errorf("the image has %q", content)
	}
	if _, ok := content["/bin/sh"]; ok {
		t.Error("the image has a shell")
	}
}
