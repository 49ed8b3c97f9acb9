package pins

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
)

// The images of steps are pinned by the lock of a release, unless the flag says otherwise.
func TestPins(t *testing.T) {
	lock := []byte("apiVersion: " + api.RenderV1alpha1 +
		"\nkind: ImageLock\nmetadata: {name: lock}\nspec:\n  images:\n" +
		"  - {image: \"busybox:1.37.0\", digest: \"sha256:" + strings.Repeat("a", 64) + "\"}\n")
	own := filepath.Join(t.TempDir(), "pins.yaml")
	if err := os.WriteFile(own, []byte("busybox:1.37.0: sha256:"+strings.Repeat("b", 64)+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		file  string
		given bool
		lock  []byte
		want  string // what busybox is pinned to
	}{
		"a release":                          {"", false, lock, "a"},
		"a release and a file":               {own, true, lock, "b"},
		"a release that pins none":           {"", true, lock, ""},
		"a development build":                {"", false, nil, ""},
		"a development build and a file":     {own, true, nil, "b"},
		"a development build that pins none": {"", true, nil, ""},
	} {
		t.Run(what, func(t *testing.T) {
			pins, err := Load(c.file, c.given, c.lock)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			if c.want != "" {
				want["busybox:1.37.0"] = "sha256:" + strings.Repeat(c.want, 64)
			}
			if !maps.Equal(pins, want) {
				t.Errorf("pinned are %v, want %v", pins, want)
			}
		})
	}
	if _, err := Load("", false, []byte("kind: ImageLock\napiVersion: v1\n")); err == nil ||
		!strings.Contains(err.Error(), "the lock of this release") {
		t.Errorf("a lock that cannot be read: %v", err)
	}
}
