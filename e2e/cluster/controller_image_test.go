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

	"github.com/armature-dev/armature/e2e/base"
)

// built makes the controller's image in an empty cache, of a program with that text.
func built(t *testing.T, program string) v1.Image {
	t.Helper()
	cache := t.TempDir()
	if err := os.Mkdir(filepath.Join(cache, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cache, "bin", "armature-controller"), []byte(program),
		0o755); err != nil {
		t.Fatal(err)
	}
	img, err := makeImage(cache, controllerImage, nil)
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
		strings.Count(content["/"+base.Certificates], "BEGIN CERTIFICATE") < 50 {
		t.Errorf("the image has %q and %d bytes of certificates", content["/ko-app/armature-controller"],
			len(content["/"+base.Certificates]))
	}
	if _, ok := content["/bin/sh"]; ok {
		t.Error("the image has a shell")
	}
}
