package ci

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/templates"
)

// The release workflow locks the images of the steps before it builds anything that is released,
// where the programs take the lock from, and the tree stays clean, as the workflow demands.
func TestStepLock(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, ".github/workflows/release.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct{ Run string }
		}
	}
	if err := yaml.Unmarshal(text, &workflow); err != nil {
		t.Fatal(err)
	}
	folder, name := filepath.Split(filepath.Join("templates", templates.StepLockFile))
	if name != render.LockFile {
		t.Errorf("armature pin writes %s, and %s is read", render.LockFile, name)
	}
	var order []string
	for _, step := range workflow.Jobs["release"].Steps {
		switch {
		case strings.Contains(step.Run,
			"go run ./cmd/armature pin "+filepath.Clean(folder)+" --steps"):
			order = append(order, "lock")
		case strings.Contains(step.Run, "make release "):
			order = append(order, "build")
		case strings.Contains(step.Run, "make test"):
			order = append(order, "test")
		}
	}
	if !slices.Equal(order, []string{"test", "lock", "build"}) {
		t.Errorf("the release does %v", order)
	}

	file := filepath.Join(folder, name)
	ignored := exec.Command("git", "check-ignore", file)
	ignored.Dir = root
	if out, err := ignored.CombinedOutput(); err != nil {
		t.Errorf("Git does not ignore %s: %v %s", file, err, out)
	}
	if templates.StepLock() != nil {
		t.Skip("this tree has a lock")
	}
	whole, err := filepath.Abs(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	lock, overlay := filepath.Join(t.TempDir(), "lock"), filepath.Join(t.TempDir(), "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{whole: lock}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{lock: []byte("kind: ImageLock\n"), overlay: replace} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := exec.Command("go", "list", "-overlay", overlay, "-f", "{{join .EmbedFiles \" \"}}",
		"./templates")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Fields(string(out)), templates.StepLockFile) {
		t.Errorf("%s is not embedded, but %s", templates.StepLockFile, out)
	}
}
