package catalog_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/armature-dev/armature/"

// goFiles visits the Go files of this module, with the folder of each from its root.
func goFiles(t *testing.T, visit func(file, folder string)) {
	t.Helper()
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && file != ".." && (name == "testdata" || strings.HasPrefix(name, ".")):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".go"):
			visit(file, filepath.ToSlash(strings.TrimPrefix(filepath.Dir(file), "../")))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func ours(folder string) bool {
	return folder == "catalog" || strings.HasPrefix(folder, "catalog/") || folder == "cmd/internal/discovery"
}

// The catalog has at most nine folders, and no package of one file that only one other imports: that
// is a file of the other, unless the other would have more lines than TestSize of functions allows.
func TestRooms(t *testing.T) {
	const most, mostLines = 9, 3500
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	folders := 0
	for _, e := range entries {
		if e.IsDir() {
			folders++
		}
	}
	if folders < 5 || folders > most {
		t.Errorf("%d folders are in catalog, at most %d are allowed", folders, most)
	}
	files, lines, importers := map[string]int{}, map[string]int{}, map[string]map[string]bool{}
	goFiles(t, func(file, folder string) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") && ours(folder) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			files[folder]++
			lines[folder] += bytes.Count(text, []byte("\n"))
		}
		for _, i := range parsed.Imports {
			of, own := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module)
			if own && ours(of) && of != folder {
				if importers[of] == nil {
					importers[of] = map[string]bool{}
				}
				importers[of][folder] = true
			}
		}
	})
	for folder, n := range files {
		together := lines[folder]
		for importer := range importers[folder] {
			together += lines[importer]
		}
		if path.Base(folder) != "catalog" && n == 1 && len(importers[folder]) < 2 && together <= mostLines {
			t.Errorf("%s has one file, and %v imports it: move the file there", folder, importers[folder])
		}
	}
}
