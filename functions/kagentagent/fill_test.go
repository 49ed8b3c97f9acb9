package kagentagent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The init container's script, run by a real Python, puts values with quotes
// and line feeds into the configuration and leaves everything else alone.
func TestFillScript(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on PATH: the script of the init container is NOT tested")
	}
	from, to := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"config.json":     `{"headers":{"Authorization":"$(ARMATURE_VALUE_0)"},"list":["$(ARMATURE_VALUE_0)",1,true,null],"text":"say $(ARMATURE_VALUE_0)"}`,
		"agent-card.json": `{}`,
	} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, "-c",
		strings.NewReplacer("/config-template", from, "/config/", to+"/").Replace(fillScript),
		"agent-card.json", "config.json")
	cmd.Env = []string{"ARMATURE_VALUE_0=a \"b\"\nc"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	have, err := os.ReadFile(filepath.Join(to, "config.json"))
	want := `{"headers": {"Authorization": "a \"b\"\nc"}, "list": ["a \"b\"\nc", 1, true, null], "text": "say $(ARMATURE_VALUE_0)"}`
	if err != nil || string(have) != want {
		t.Errorf("%v\ngot  %s\nwant %s", err, have, want)
	}
}
