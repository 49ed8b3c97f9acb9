package ci

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestWorkflows: a workflow may read the repository alone, unless a job names more; each
// job ends by itself; what has to run at some time does.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	steps := map[string]string{}
	for _, file := range files {
		name := filepath.Base(file)
		var workflow struct {
			Permissions map[string]string
			Jobs        map[string]struct {
				Timeout int `json:"timeout-minutes"`
				Steps   []struct{ Uses, Run string }
			}
		}
		if err := yaml.Unmarshal([]byte(read(t, file)), &workflow); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(workflow.Permissions) != 1 || workflow.Permissions["contents"] != "read" {
			t.Errorf("%s has the permissions %v for all jobs: name others at their job", name,
				workflow.Permissions)
		}
		for id, job := range workflow.Jobs {
			if job.Timeout == 0 {
				t.Errorf("%s: job %s has no timeout-minutes", name, id)
			}
			for _, step := range job.Steps {
				steps[name] += step.Uses + "\n" + step.Run + "\n"
				// GitHub runs it as bash -e; bash -n finds what does not parse.
				check := exec.CommandContext(t.Context(), "bash", "-n")
				check.Stdin = strings.NewReader(step.Run)
				if out, err := check.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", name, err, out)
				}
			}
		}
	}
	for file, does := range map[string]string{
		"check.yml": "make govulncheck", "nightly.yml": "make e2e-matrix\n",
		"scorecard.yml": "ossf/scorecard-action@", "codeql.yml": "github/codeql-action/analyze@",
		"release.yml": "\nmake release VERSION=",
	} {
		if !strings.Contains(steps[file], does) {
			t.Errorf("%s does not run %s:\n%s", file, strings.TrimSpace(does), steps[file])
		}
	}

	// A release is verified and attested before it is drafted.
	at := 0
	for _, does := range []string{"make test\n", "make release VERSION=", "SECURITY.md",
		"dist/provenance.json", "actions/attest-build-provenance@", "gh release create"} {
		i := strings.Index(steps["release.yml"][at:], does)
		if i < 0 {
			t.Fatalf("release.yml does not %s, or too early:\n%s", does, steps["release.yml"])
		}
		at += i
	}
}
