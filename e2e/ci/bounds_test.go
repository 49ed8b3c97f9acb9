package ci

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestBounds: each row of the page for auditors names a test, and each test that it names
// exists.
func TestBounds(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/contributing/bounds.md"))
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "git", "-C", root, "grep", "-hoE", "^func Test[A-Za-z0-9]*", "--", "*_test.go")
	found, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for name := range strings.Lines(string(found)) {
		exists[strings.TrimPrefix(strings.TrimSpace(name), "func ")] = true
	}
	test, rows := regexp.MustCompile("`(Test[A-Za-z0-9]*)`"), 0
	for row := range strings.Lines(string(page)) {
		if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| input |") {
			continue
		}
		rows++
		names := test.FindAllStringSubmatch(row, -1)
		if len(names) == 0 {
			t.Errorf("no test: %s", row)
		}
		for _, name := range names {
			if !exists[name[1]] {
				t.Errorf("%s does not exist: %s", name[1], row)
			}
		}
	}
	if rows < 15 {
		t.Errorf("the page has %d rows", rows)
	}
}
