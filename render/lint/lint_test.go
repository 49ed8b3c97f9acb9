package lint_test

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/lint"
	"github.com/armature-dev/armature/render/source"
)

// linted returns the findings of lint in the files of an archive below a folder.
func linted(t *testing.T, a *txtar.Archive,
	folder string) (src render.Source, findings []finding.Finding) {
	t.Helper()
	opt := render.Options{}
	root := t.TempDir()
	for _, f := range a.Files {
		name, in := strings.CutPrefix(f.Name, folder+"/")
		switch {
		case !in:
		case name == render.ConfigFile:
			opt.Config, findings = render.ReadConfig(f.Data, name)
			if finding.Failed(findings) {
				t.Fatal(findings)
			}
		case name == render.LockFile:
			opt.Lock, findings = render.ReadLock(f.Data, name)
			if finding.Failed(findings) {
				t.Fatal(findings)
			}
		default:
			write(t, filepath.Join(root, name), string(f.Data))
		}
	}
	src, _, err := source.Tree(root, "", nil)
	if err != nil || len(src.Files) == 0 {
		t.Fatalf("no files below %s: %v", folder, err)
	}
	findings, _, err = lint.Run(src, opt)
	if err != nil {
		t.Fatal(err)
	}
	return src, findings
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var update = flag.Bool("update", false, "write what was found into testdata/*.txtar")

// TestLint has files for each rule, RULE.txtar and RULE-*.txtar: a package with
// findings, and one without.
func TestLint(t *testing.T) {
	names := make(map[string]bool)
	for _, rule := range lintrules.Rules() {
		names[rule.Name] = true
	}
	for _, rule := range lintrules.Rules() {
		more, err := filepath.Glob(filepath.Join("testdata", rule.Name+"-*.txtar"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range append(more, filepath.Join("testdata", rule.Name+".txtar")) {
			name := strings.TrimSuffix(filepath.Base(file), ".txtar")
			if name != rule.Name && names[name] {
				continue
			}
			t.Run(name, func(t *testing.T) { archived(t, rule, file) })
		}
	}
}

// archived compares what a rule finds in an archive with what it says.
func archived(t *testing.T, rule lintrules.Rule, file string) {
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	report := func(folder string) (lines string) {
		_, findings := linted(t, a, folder)
		for _, f := range findings {
			if f.Rule == "lint/"+lintrules.KustomizeBuild && rule.Name != lintrules.KustomizeBuild {
				t.Errorf("of %s: %s", folder, f)
			}
			if f.Rule == "lint/"+rule.Name {
				if f.Hint == "" {
					t.Errorf("no remedy: %s", f)
				}
				f.Hint = ""
				lines += string(f.Severity) + ": " + f.String() + "\n"
			}
		}
		return lines
	}
	want := ""
	for i, f := range a.Files {
		if f.Name == "want" {
			if *update {
				a.Files[i].Data = []byte(report("bad"))
			}
			want = string(a.Files[i].Data)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want == "" {
		t.Error("the bad package has no expected findings")
	}
	if diff := cmp.Diff(want, report("bad")); diff != "" {
		t.Error(diff)
	}
	if got := report("good"); got != "" {
		t.Error("of the good package: ", got)
	}
}

// What the API reference of kagent 1.0 has, with all that it refers to, has no finding.
func TestSuccessorIsClean(t *testing.T) {
	archive, err := txtar.ParseFile(filepath.Join("..", "testdata", "kagent-successor.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	src := render.Source{
		Files: []render.File{{Path: archive.Files[0].Name, Data: archive.Files[0].Data}}}
	findings, _, err := lint.Run(src, render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Rule != "validate/substrate" {
			t.Errorf("%s:%d: %s: %s", f.File, f.Line, f.Rule, f.Message)
		}
	}
}

// TestLintConfiguration: spec.lint sets severities, the annotation lets an
// object off, and names that do not exist are errors.
func TestLintConfiguration(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n" +
		"  - {name: app, image: app}\n"
	for _, test := range []struct {
		name, config, pod, want string
	}{
		{"default", "{}", pod, "warning lint/latest-image"},
		{"raised", "{lint: {latest-image: error}}", pod, "error lint/latest-image"},
		{"off", "{lint: {latest-image: off}}", pod, "info lint/unpinned-image"},
		{"both off", "{lint: {latest-image: off, unpinned-image: off}}", pod, ""},
		{"ignored", "{}",
			strings.Replace(pod, "  name: web\n",
				"  name: web\n  annotations:\n    armature.dev/lint-ignore: latest-image, "+
					"unpinned-image\n", 1), ""},
		{"ignored by a wrong name", "{lint: {latest-image: off, unpinned-image: off}}",
			strings.Replace(pod, "  name: web\n",
				"  name: web\n  annotations:\n    armature.dev/lint-ignore: latest\n", 1),
			"error lint/unknown-rule"},
		{"unknown rule", "{lint: {latest: off, latest-image: off, unpinned-image: off}}", pod,
			"error config/lint"},
		{"unknown severity", "{lint: {latest-image: loud, unpinned-image: off}}", pod,
			"error config/lint"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config, findings := render.ReadConfig(
				[]byte("apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nspec: "+test.config+
					"\n"), "armature.yaml")
			if finding.Failed(findings) {
				t.Fatal(findings)
			}
			findings, _, err := lint.Run(
				render.Source{Files: []render.File{{Path: "web.yaml", Data: []byte(test.pod)}}},
				render.Options{Config: config})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range findings {
				if f.Severity != "loud" {
					got = append(got, string(f.Severity)+" "+f.Rule)
				}
				if f.Rule == "config/lint" && f.Line != 3 {
					t.Errorf("in line %d, want 3: %s", f.Line, f)
				}
			}
			if diff := cmp.Diff(test.want, strings.Join(got, ", ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestLintIsDocumented compares docs/reference/lint.md with the rules: each has a section that
// begins with its default severity, which UPDATE=1 writes.
func TestLintIsDocumented(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "reference", "lint.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range lintrules.Rules() {
		section := regexp.MustCompile("(?m)^## " + r.Name + "\n\nDefault: [a-z]+\\.")
		want := "## " + r.Name + "\n\nDefault: " + string(r.Severity) + "."
		if os.Getenv("UPDATE") != "" {
			text = section.ReplaceAll(text, []byte(want))
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("docs/reference/lint.md has no section on %s with \"Default: %s.\"", r.Name,
				r.Severity)
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLockFindingsAreDocumented: docs/reference/lint.md has each finding about locks that the
// program reports.
func TestLockFindingsAreDocumented(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "reference", "lint.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Findings of locks\n")
	section, _, _ = strings.Cut(section, "\n## ")
	found := make(map[string]bool)
	literal, own := regexp.MustCompile(`"((?:pin-images|card)/[a-z-]+|verify/tools)"`),
		regexp.MustCompile(`function\+"(/[a-z-]+)"`)
	for _, folder := range []string{"functions", "render", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, folder),
			func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") ||
					strings.HasSuffix(path, "_test.go") {
					return err
				}
				code, err := os.ReadFile(path)
				for _, m := range literal.FindAllStringSubmatch(string(code), -1) {
					found[m[1]] = true
				}
				if filepath.Base(filepath.Dir(path)) == "pinimages" {
					for _, m := range own.FindAllStringSubmatch(string(code), -1) {
						found["pin-images"+m[1]] = true
					}
				}
				return err
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) < 8 {
		t.Fatalf("only %v", found)
	}
	for id := range found {
		if !strings.Contains(section, "`"+id+"`") {
			t.Errorf("docs/reference/lint.md does not have %s among the findings of locks", id)
		}
	}
}

// BenchmarkLint judges a package of 1,000 workloads.
func BenchmarkLint(b *testing.B) {
	var files []render.File
	if err := workload.Each(1000, func(file string, data []byte) {
		files = append(files, render.File{Path: file, Data: data})
	}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		findings, _, err := lint.Run(render.Source{Files: files}, render.Options{})
		if err != nil || len(findings) == 0 {
			b.Fatal(findings, err)
		}
	}
}
