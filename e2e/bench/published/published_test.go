// Package published_test holds what lint finds in the manifests of published Go modules
// against what the program kustomize builds of them.
package published_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/lint"
	"github.com/armature-dev/armature/render/source"
)

// modules are those that are judged, with the folder of their manifests.
var modules = []struct{ module, folder string }{
	{"github.com/argoproj/argo-cd/v3@v3.2.0", "manifests"},
	{"github.com/argoproj/argo-events@v1.9.7", "manifests"},
	{"github.com/argoproj/argo-rollouts@v1.8.3", "manifests"},
	{"github.com/argoproj/argo-workflows/v3@v3.7.1", "manifests"},
	{"github.com/cloudnative-pg/cloudnative-pg@v1.26.1", "config"},
	{"github.com/external-secrets/external-secrets@v0.14.4", "."},
	{"github.com/fluxcd/kustomize-controller@v1.9.5", "config"},
	{"github.com/fluxcd/notification-controller@v1.6.0", "config"},
	{"github.com/fluxcd/source-controller@v1.9.5", "config"},
	{"github.com/kedacore/keda/v2@v2.17.2", "config"},
	{"github.com/kserve/kserve@v0.15.2", "."},
	{"github.com/kubeflow/trainer/v2@v2.0.0", "."},
	{"github.com/kubeflow/training-operator@v1.9.2", "."},
	{"github.com/open-telemetry/opentelemetry-operator@v0.131.0", "config"},
	{"github.com/ray-project/kuberay/ray-operator@v1.4.2", "config"},
	{"github.com/spiffe/spire-controller-manager@v0.6.2", "."},
	{"github.com/tektoncd/pipeline@v1.15.1", "config"},
	{"sigs.k8s.io/cluster-api@v1.11.0", "."},
	{"sigs.k8s.io/gateway-api@v1.4.0", "."},
	{"sigs.k8s.io/jobset@v0.8.2", "."},
	{"sigs.k8s.io/kueue@v0.16.1", "config"},
	{"sigs.k8s.io/kwok@v0.7.0", "kustomize"},
	{"sigs.k8s.io/lws@v0.6.2", "."},
	{"sigs.k8s.io/node-feature-discovery@v0.17.3", "deployment"},
	{"sigs.k8s.io/scheduler-plugins@v0.32.7", "."},
}

// TestFalseFindings lints published manifests and judges each finding by what
// `kustomize build` prints, and by testdata/verdicts.tsv where that cannot decide. It
// prints the false ones and their share, which may be 3 % at most. Modules that the
// cache lacks are downloaded with ARMATURE_PUBLISHED=download.
func TestFalseFindings(t *testing.T) {
	mode := os.Getenv("ARMATURE_PUBLISHED")
	if mode == "" {
		t.Skip("set ARMATURE_PUBLISHED to lint the published modules of the cache, or to " +
			"\"download\" for those that it lacks")
	}
	program, err := filepath.Abs(filepath.Join("..", "..", "..", ".cache", "bin", "kustomize"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("kustomize"); err != nil {
			t.Fatal("no kustomize to ask: ", err)
		}
	}
	verdicts := readVerdicts(t)
	total, wrong, repositories := 0, 0, 0
	for _, m := range modules {
		folder := moduleFolder(t, m.module, mode == "download")
		if folder == "" {
			t.Logf("not in the module cache: %s", m.module)
			continue
		}
		j := newJudge(t, program, filepath.Join(folder, m.folder))
		n, bad, builds := 0, 0, 0
		for _, f := range j.findings(t) {
			n++
			verdict, reason := j.verdict(f)
			if verdict == undecided {
				builds--
				verdict, reason = verdicts.of(t, m.module, f, reason)
			}
			builds++
			if verdict == untrue {
				bad++
				t.Logf("false: %s: %s (%s)", m.module, f, reason)
			}
		}
		t.Logf("%-55s %3d findings, %3d judged by kustomize, %d false", m.module, n, builds, bad)
		if n > 0 {
			repositories++
		}
		total, wrong = total+n, wrong+bad
	}
	if total == 0 {
		t.Skip("the module cache has none of the modules")
	}
	share := 100 * float64(wrong) / float64(total)
	t.Logf("false positives: %d of %d findings in %d repositories, %.1f %%", wrong, total,
		repositories, share)
	if share > 3 {
		t.Errorf("%.1f %% of the findings are false, at most 3 %%", share)
	}
	for key := range verdicts {
		if mode == "download" && !verdicts[key].used {
			t.Errorf("no finding is judged by this verdict: %s", key)
		}
	}
}

// moduleFolder returns the folder of a module in the cache, or "".
func moduleFolder(t *testing.T, module string, download bool) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	if cmd.Dir = t.TempDir(); !download {
		cmd.Env = append(os.Environ(), "GOPROXY=off")
	}
	out, err := cmd.Output()
	var found struct{ Dir, Error string }
	if json.Unmarshal(out, &found) != nil || found.Dir == "" && download {
		t.Fatalf("%s: %v: %s", module, err, found.Error)
	}
	return found.Dir
}

// findings returns the findings of lint's rules.
func (j *judge) findings(t *testing.T) (found []finding.Finding) {
	t.Helper()
	src, _, err := source.Tree(j.root, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := lint.Run(src, render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if strings.HasPrefix(f.Rule, "lint/") && f.Rule != "lint/"+lintrules.ContestedField {
			found = append(found, f)
		}
	}
	return found
}

// handVerdicts are those of a person, by module and finding.
type handVerdicts map[string]*handVerdict

type handVerdict struct {
	verdict verdict
	reason  string
	used    bool
}

func key(module string, f finding.Finding) string {
	message, _, _ := strings.Cut(f.Message, " (and ")
	return strings.Join([]string{module, f.File, strings.TrimPrefix(f.Rule, "lint/"),
		f.Object.String(), message}, "\t")
}

func readVerdicts(t *testing.T) handVerdicts {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "verdicts.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	all := make(handVerdicts)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 7 || f[6] == "" || !slices.Contains([]verdict{right, untrue}, verdict(f[5])) {
			t.Fatalf("a line has module, file, rule, object, message, verdict and reason: %q", line)
		}
		all[strings.Join(f[:5], "\t")] = &handVerdict{verdict(f[5]), f[6], false}
	}
	return all
}

// of returns the verdict on a finding that kustomize cannot decide.
func (all handVerdicts) of(t *testing.T, module string, f finding.Finding,
	why string) (verdict, string) {
	t.Helper()
	v := all[key(module, f)]
	if v == nil {
		t.Errorf("nobody has judged, and kustomize cannot (%s): %s", why, key(module, f))
		return untrue, "nobody has judged"
	}
	v.used = true
	return v.verdict, v.reason
}
