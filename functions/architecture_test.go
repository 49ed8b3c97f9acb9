package functions

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitecture: the list of packages in docs/architecture.md has each folder
// with Go code that is two levels below the root, and nothing that is not there.
func TestArchitecture(t *testing.T) {
	const root = ".."
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
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
		entries, err := os.ReadDir(filepath.Join(root, area))
		if err != nil {
			t.Errorf("%s is on the page: %v", area, err)
		}
		for _, e := range entries {
			code, err := filepath.Glob(filepath.Join(root, area, e.Name(), "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			if area == "e2e" || len(code) == 0 {
				continue // the page sums up what only tests use
			}
			packages++
			if !regexp.MustCompile(`(^|\W)` + regexp.QuoteMeta(e.Name()) + `(\W|$)`).MatchString(text) {
				t.Errorf("%s/%s is not on the page", area, e.Name())
			}
		}
	}
	if packages < 40 {
		t.Errorf("only %d packages", packages)
	}
}
