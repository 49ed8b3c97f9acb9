package compose_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The provenance is JSON whatever the URL holds, and holds it unchanged. What
// cannot be a URL of Git's is refused.
func TestProvenanceIsJSON(t *testing.T) {
	describe := func(url, commit string) ([]byte, error) {
		out := filepath.Join(t.TempDir(), "provenance.json")
		_, printed, err := runScript(t, stepContainer(t, "slsa-provenance-step", "describe").Script,
			"URL="+url, "COMMIT="+commit, "RUN=team1/weather", "OUT="+out,
			"IMAGE=registry.local/weather:v1", "DIGEST=sha256:"+strings.Repeat("a", 64))
		if err != nil {
			return []byte(printed), err
		}
		return os.ReadFile(out)
	}
	type source struct {
		URI         string
		Digest      struct{ GitCommit string }
		Annotations struct {
			Repository string `json:"armature_repository"`
		}
	}
	commit := strings.Repeat("0a", 20)
	for _, c := range []struct{ url, commit string }{
		{"https://github.com/org/weather.git", commit},
		{`https://host/a"b\c\\d`, strings.Repeat("0a", 32)},
		{`https://host/\u0041&$HOME$(id)` + "`id`", commit},
		{`https://host/%22 ü/"`, commit},
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
		want.Digest.GitCommit, want.Annotations.Repository = c.commit, c.url
		if d := got.BuildDefinition; d.ExternalParameters.Source != want ||
			len(d.ResolvedDependencies) != 1 || d.ResolvedDependencies[0] != want {
			t.Errorf("%s became\n%s", c.url, text)
		}
	}
	for _, url := range []string{"https://host/a\nb", "https://host/a\tb"} {
		if text, err := describe(url, commit); err == nil {
			t.Errorf("%q became\n%s", url, text)
		}
	}
	for _, bad := range []string{"", "main", commit[1:], strings.ToUpper(commit), commit + "\n",
		`x"y`, "$(COSIGN_PASSWORD)"} {
		if text, err := describe("https://host/x", bad); err == nil {
			t.Errorf("commit %q became\n%s", bad, text)
		}
	}
}
