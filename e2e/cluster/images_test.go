//go:build linux

package cluster

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/templates"
)

// A step whose image is not here cannot run in the cluster.
func TestEveryShippedStepHasAnImage(t *testing.T) {
	// This one is not made: tests can be run in busybox.
	missing := map[string]bool{"docker.io/library/python": true}
	known := map[string]bool{}
	for _, image := range images {
		known[image.standsFor] = true
	}
	reference := regexp.MustCompile(`[a-z0-9.-]+\.(?:io|com)/[a-z0-9/._-]+:[A-Za-z0-9._-]+`)
	count := 0
	err := fs.WalkDir(templates.Files, "steps",
		func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := templates.Files.ReadFile(path)
			for _, image := range reference.FindAllString(string(text), -1) {
				count++
				repository, _, _ := strings.Cut(image, ":")
				if !known[image] && !missing[repository] {
					t.Errorf("%s: no image of ours replaces %s", path, image)
				}
			}
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	if count < 10 {
		t.Errorf("only %d images were found in the steps", count)
	}
}

func TestTektonManifestsNameOurImages(t *testing.T) {
	cache := t.TempDir()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// copyTekton looks for the module beside .cache.
	if err := os.Symlink(filepath.Join(repository, "e2e"),
		filepath.Join(cache, "e2e")); err != nil {
		t.Fatal(err)
	}
	c := Cluster{Cache: filepath.Join(cache, ".cache")}
	if err := os.Mkdir(c.Cache, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := copyTekton(c.Cache); err != nil {
		t.Fatal(err)
	}
	ours := map[string]string{}
	for _, image := range images {
		ours[image.name] = "OURS/" + image.name
	}
	files, err := filepath.Glob(filepath.Join(c.Cache, "tekton-config", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		manifest := withImages(string(text), ours)
		for _, foreign := range []string{"ko://", "/sbin/tini", "cgr.dev/chainguard/busybox@"} {
			if strings.Contains(manifest, foreign) {
				t.Errorf("%s still says %s", filepath.Base(file), foreign)
			}
		}
		for _, image := range regexp.MustCompile(`OURS/[a-z-]+`).FindAllString(manifest, -1) {
			found[image] = true
		}
	}
	want := []string{
		"OURS/busybox", "OURS/tekton-controller", "OURS/tekton-entrypoint", "OURS/tekton-nop",
		"OURS/tekton-sidecarlogresults", "OURS/tekton-webhook", "OURS/tekton-workingdirinit",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("images in Tekton's manifests (-want +got):\n%s", diff)
	}
}
