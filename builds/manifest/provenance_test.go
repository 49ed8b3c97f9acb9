package manifest_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/manifest"
)

// The provenance is JSON whatever the URL holds, and holds it unchanged. What
// cannot be a URL of Git's is refused.
func TestProvenanceIsJSON(t *testing.T) {
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	step, err := compose.ReadStep(library.ConfigMaps["slsa-provenance-step"])
	if err != nil {
		t.Fatal(err)
	}
	shell := []string{"sh"}
	if busybox, err := exec.LookPath("busybox"); err == nil { // the shell of the step's image
		shell = []string{busybox, "sh"}
	}
	script := filepath.Join(t.TempDir(), "describe.sh")
	if err := os.WriteFile(script, []byte(step.Task.Steps[0].Script), 0o600); err != nil {
		t.Fatal(err)
	}
	describe := func(url, commit string) ([]byte, error) {
		out := filepath.Join(t.TempDir(), "provenance.json")
		cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], script)...)
		cmd.Env = append(os.Environ(), "URL="+url, "COMMIT="+commit, "RUN=team1/weather", "OUT="+out)
		if text, err := cmd.CombinedOutput(); err != nil {
			return text, err
		}
		return os.ReadFile(out)
	}
	type source struct {
		URI    string
		Digest struct{ GitCommit string }
	}
	for _, c := range []struct{ url, commit string }{
		{"https://github.com/org/weather.git", "0123abcd"},
		{`https://host/a"b\c\\d`, `x"y`},
		{`https://host/\u0041&$HOME$(id)` + "`id`", "main"},
		{`https://host/%22 ü/"`, `\`},
	} {
		text, err := describe(c.url, c.commit)
		if err != nil {
			t.Errorf("%s: %v: %s", c.url, err, text)
			continue
		}
		var got struct {
			BuildDefinition struct {
				ExternalParameters   struct{ Source source }
				ResolvedDependencies []source
			}
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Errorf("%s: %v in\n%s", c.url, err, text)
			continue
		}
		want := source{URI: "git+" + c.url}
		want.Digest.GitCommit = c.commit
		if d := got.BuildDefinition; d.ExternalParameters.Source != want || len(d.ResolvedDependencies) != 1 || d.ResolvedDependencies[0] != want {
			t.Errorf("%s became\n%s", c.url, text)
		}
	}
	for _, url := range []string{"https://host/a\nb", "https://host/a\tb"} {
		if text, err := describe(url, "main"); err == nil {
			t.Errorf("%q became\n%s", url, text)
		}
	}
}
