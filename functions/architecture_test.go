package functions

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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
		err := filepath.WalkDir(filepath.Join(root, area), func(file string, e fs.DirEntry, err error) error {
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
