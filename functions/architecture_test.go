package functions

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var backquoted = regexp.MustCompile("`([^`]+)`")

// TestArchitecture: the list of packages in docs/contributing/architecture.md has each folder
// with Go code, and nothing that is not there.
func TestArchitecture(t *testing.T) {
	const root = ".."
	page, err := os.ReadFile(filepath.Join(root, "docs", "contributing", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "## Packages\n\n```\n")
	text, _, found := strings.Cut(text, "\n```\n")
	if !found {
		t.Fatal("the page has no list of packages")
	}
	listed := make(map[string]string) // what is written of a folder, by its name
	area := ""
	for _, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, " ") {
			area, line, _ = strings.Cut(line, "/")
		}
		listed[area] += line + "\n"
	}
	packages := 0
	for area, text := range listed {
		for _, word := range strings.Fields(text) {
			name, isFolder := strings.CutSuffix(word, "/")
			if _, err := os.Stat(filepath.Join(root, area, name)); isFolder && err != nil {
				t.Errorf("%s/%s is on the page: %v", area, name, err)
			}
		}
		seen := make(map[string]bool)
		err := filepath.WalkDir(filepath.Join(root, area),
			func(file string, e fs.DirEntry, err error) error {
				folder := filepath.Base(filepath.Dir(file))
				switch {
				case err != nil:
					return err
				case e.IsDir() && (e.Name() == "testdata" || area == "e2e"):
					return fs.SkipDir // the page sums up what only tests use
				case filepath.Ext(file) != ".go" || seen[folder] || folder == area:
					return nil
				}
				seen[folder] = true
				if !regexp.MustCompile(`(^|\W)` + regexp.QuoteMeta(folder) + `(\W|$)`).MatchString(text) {
					t.Errorf("%s is not on the page", filepath.Dir(file))
				}
				return nil
			})
		if err != nil {
			t.Errorf("%s is on the page: %v", area, err)
		}
		packages += len(seen)
	}
	if packages < 40 {
		t.Errorf("only %d packages", packages)
	}
}

// TestWay: one render passes at most ten packages and twenty files, and each function of its way
// in docs/contributing/architecture.md is in a file of its row.
func TestWay(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "contributing", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "## One file from command to disk\n")
	text, _, _ = strings.Cut(text, "\n## ")
	packages, files := make(map[string]bool), make(map[string]bool)
	for _, row := range strings.Split(text, "\n") {
		cells := strings.Split(row, "|")
		if len(cells) != 5 || !strings.Contains(cells[2], ".go`") {
			continue
		}
		var code strings.Builder
		for _, m := range backquoted.FindAllStringSubmatch(cells[2], -1) {
			packages[filepath.Dir(m[1])], files[m[1]] = true, true
			source, err := os.ReadFile(filepath.Join("..", m[1]))
			if err != nil {
				t.Fatal(err)
			}
			code.Write(source)
		}
		for _, m := range backquoted.FindAllStringSubmatch(cells[3], -1) {
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + m[1] + `\(`).MatchString(code.String()) {
				t.Errorf("%s is in none of%s", m[1], cells[2])
			}
		}
	}
	if len(packages) > 10 || len(files) > 20 || len(files) < 15 {
		t.Errorf("the way has %d packages and %d files", len(packages), len(files))
	}
}
