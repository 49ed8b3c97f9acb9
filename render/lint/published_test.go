package lint_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/lint"
	"github.com/armature-dev/armature/render/source"
)

// judged is a line of testdata/published.tsv.
type judged struct{ folder, file, rule, object, message, verdict string }

func judgements(t *testing.T) (all []judged) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "published.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 7 || f[6] == "" || !slices.Contains([]string{"right", "false", "moved"}, f[5]) {
			t.Fatalf("a line has folder, file, rule, object, message, verdict and reason: %q", line)
		}
		all = append(all, judged{f[0], f[1], f[2], f[3], f[4], f[5]})
	}
	return all
}

// others is the part of a message that counts further places of one finding.
var others = regexp.MustCompile(` \(and [0-9]+ more [a-z]+\)$`)

// published lints a folder and gives its findings without a verdict.
func published(t *testing.T, root, folder string) (all []judged) {
	t.Helper()
	src, _, err := source.Tree(filepath.Join(root, filepath.FromSlash(folder)), "")
	if err != nil {
		t.Fatal(err)
	}
	findings, _, err := lint.Run(src, render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if rule, ok := strings.CutPrefix(f.Rule, "lint/"); ok {
			all = append(all, judged{folder, f.File, rule, f.Object.String(), others.ReplaceAllString(f.Message, ""), ""})
		}
	}
	return all
}

// TestFalsePositives lints published manifests in the module cache and compares
// each finding with the verdict of a person: at most 3 % are false, and no true
// one is lost. It prints the share; modules that are not there are left out.
func TestFalsePositives(t *testing.T) {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Skip("no go command, no module cache: ", err)
	}
	root := strings.TrimSpace(string(out))
	folders := make(map[string][]judged)
	all := judgements(t)
	wrong := 0
	for _, j := range all {
		folders[j.folder] = append(folders[j.folder], j)
		if j.verdict == "false" {
			wrong++
		}
	}
	t.Logf("judged: %d findings of %d packages, %d of them false", len(all), len(folders), wrong)
	there, findings, unjust := 0, 0, 0
	for folder, known := range folders {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(folder))); err != nil {
			t.Logf("not in the module cache: %s", folder)
			continue
		}
		there++
		found := published(t, root, folder)
		findings += len(found)
		for _, f := range found {
			i := slices.IndexFunc(known, func(k judged) bool { k.verdict = ""; return k == f })
			switch {
			case i < 0:
				t.Errorf("nobody has judged: %s", strings.Join([]string{f.folder, f.file, f.rule, f.object, f.message}, "\t"))
			case known[i].verdict == "false":
				unjust++
				t.Logf("false: %s %s: %s", f.folder, f.object, f.message)
			}
		}
		for _, k := range known {
			k.verdict = strings.TrimPrefix(k.verdict, "right")
			if k.verdict == "" && !slices.Contains(found, k) {
				t.Errorf("a true finding is lost: %s", strings.Join([]string{k.folder, k.file, k.rule, k.object, k.message}, "\t"))
			}
		}
	}
	if findings == 0 {
		t.Skip("the module cache has none of the packages")
	}
	share := 100 * float64(unjust) / float64(findings)
	t.Logf("false positives: %d of %d findings in %d of %d packages, %.1f %%", unjust, findings, there, len(folders), share)
	if share > 3 {
		t.Errorf("%.1f %% false positives, at most 3 %%", share)
	}
}
