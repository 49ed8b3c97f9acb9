package functions_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quoted     = regexp.MustCompile("`([^`]+)`")
	identifier = regexp.MustCompile(`^[A-Za-z]+$`)
)

// TestContributing: every path that CONTRIBUTING.md names exists. A file without a
// folder is in a folder that its line names, and a name in Go code is in a file or
// folder of its line. Each change of the table leads to at most three places.
func TestContributing(t *testing.T) {
	const root = ".."
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	top, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	inTree := func(name string) bool {
		first, _, _ := strings.Cut(name, "/")
		return slices.ContainsFunc(top, func(e os.DirEntry) bool { return e.Name() == first })
	}
	exists := func(name string) bool {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(name)))
		return err == nil && len(found) > 0
	}
	paths, rows := 0, 0
	for n, line := range strings.Split(string(text), "\n") {
		var folders, files, names []string
		places := make(map[string]bool)
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			name := strings.ReplaceAll(m[1], "NAME", "*")
			switch {
			case strings.ContainsAny(name, " |="):
			case inTree(name):
				paths++
				places[name] = true
				if !exists(name) {
					t.Errorf("line %d: %s does not exist", n+1, name)
				}
				if folder := strings.TrimSuffix(name, "/"); path.Ext(name) == "" {
					folders = append(folders, folder)
				} else {
					folders = append(folders, path.Dir(folder))
				}
			case strings.Contains(name, "/"):
				t.Errorf("line %d: %s does not begin at the root of the repository", n+1, name)
			case path.Ext(name) == ".go" || path.Ext(name) == ".yaml":
				files = append(files, name)
				places[name] = true
			case identifier.MatchString(name):
				names = append(names, name)
			}
		}
		for _, name := range files {
			if !slices.ContainsFunc(folders,
				func(f string) bool { return exists(f + "/" + name) }) {
				t.Errorf("line %d: %s is in none of %v", n+1, name, folders)
			}
		}
		cells := strings.Split(line, "|")
		if len(cells) != 4 || !strings.Contains(cells[2], "`") {
			continue
		}
		rows++
		if len(places) > 3 {
			t.Errorf("line %d:%s leads to %d places: %v", n+1, cells[1], len(places), places)
		}
		for _, name := range names {
			if !slices.ContainsFunc(folders,
				func(f string) bool { return written(t, filepath.Join(root, f), name) }) {
				t.Errorf("line %d: %s is in no Go file of %v", n+1, name, folders)
			}
		}
	}
	if paths < 30 || rows < 15 {
		t.Errorf("%d paths, %d changes: the test reads the page wrongly", paths, rows)
	}
}

// written reports whether a Go file of a folder has a word.
func written(t *testing.T, folder, word string) bool {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	whole := regexp.MustCompile(`\b` + word + `\b`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if whole.Match(text) {
			return true
		}
	}
	return false
}
