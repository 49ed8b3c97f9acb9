package render_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/lint"
	"github.com/armature-dev/armature/render"
)

// linted gives what lint says of the files of an archive below a folder.
func linted(t *testing.T, a *txtar.Archive, folder string) (src render.Source, findings []krm.Finding) {
	t.Helper()
	opt := render.Options{}
	for _, f := range a.Files {
		name, in := strings.CutPrefix(f.Name, folder+"/")
		switch {
		case !in:
		case name == render.ConfigFile:
			opt.Config, findings = render.ReadConfig(f.Data, name)
			if krm.Failed(findings) {
				t.Fatal(findings)
			}
		default:
			src.Files = append(src.Files, render.File{Path: name, Data: f.Data})
		}
	}
	if len(src.Files) == 0 {
		t.Fatalf("no files below %s", folder)
	}
	findings, _, err := render.Lint(src, opt)
	if err != nil {
		t.Fatal(err)
	}
	return src, findings
}

// TestLint has a file for each rule: a package that it judges, with all that it
// says, and one of which it says nothing.
func TestLint(t *testing.T) {
	for _, rule := range lint.Rules() {
		t.Run(rule.Name, func(t *testing.T) {
			a, err := txtar.ParseFile(filepath.Join("testdata", "lint", rule.Name+".txtar"))
			if err != nil {
				t.Fatal(err)
			}
			said := func(folder string) (lines string) {
				_, findings := linted(t, a, folder)
				for _, f := range findings {
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
			for _, f := range a.Files {
				if f.Name == "want" {
					want = string(f.Data)
				}
			}
			if want == "" {
				t.Error("nothing is wanted of the bad package")
			}
			if diff := cmp.Diff(want, said("bad")); diff != "" {
				t.Error(diff)
			}
			if got := said("good"); got != "" {
				t.Error("of the good package: ", got)
			}
		})
	}
}
