package ci

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestBounds compares the pages for auditors with the tests: each test that they name exists,
// and each bound has one.
func TestBounds(t *testing.T) {
	list := exec.CommandContext(t.Context(), "git", "-C", root, "grep", "-hoE",
		"^func Test[A-Za-z0-9]*", "--", "*_test.go")
	found, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for name := range strings.Lines(string(found)) {
		exists[strings.TrimPrefix(strings.TrimSpace(name), "func ")] = true
	}
	name := regexp.MustCompile("`(Test[A-Za-z0-9]*)")
	for _, file := range []string{"bounds.md", "threat-model.md"} {
		rows := 0
		for row := range strings.Lines(read(t, filepath.Join(root, "docs", "contributing", file))) {
			if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| input |") {
				continue
			}
			rows++
			names := name.FindAllStringSubmatch(row, -1)
			if len(names) == 0 && file == "bounds.md" {
				t.Errorf("%s: no test: %s", file, row)
			}
			for _, n := range names {
				if !exists[n[1]] {
					t.Errorf("%s: %s does not exist: %s", file, n[1], row)
				}
			}
		}
		if rows < 15 {
			t.Errorf("%s has %d rows", file, rows)
		}
	}
}
