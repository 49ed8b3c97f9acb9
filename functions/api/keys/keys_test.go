package keys

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestKeysAreWrittenOnce: no other Go file has a literal of Armature's keys or a prefix, except
// tests, which contain users' files, and other modules, which cannot import this package.
func TestKeysAreWrittenOnce(t *testing.T) {
	const root = "../../.."
	prefixes := []string{Group, LabelPrefix, RossoctlPrefix, Kagent, Kagent1, Kagenti, Rossoctl, Asya}
	files := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(name, "go.mod")); name != root &&
				(err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") ||
			name == filepath.Join(root, "functions", "api", "keys", "keys.go") {
			return nil
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				return true
			}
			value, err := strconv.Unquote(text.Value)
			written := slices.ContainsFunc(prefixes, func(p string) bool {
				return value == p || strings.HasPrefix(value, p+"/") ||
					strings.HasSuffix(value, "."+p) && !strings.Contains(value, " ")
			})
			if err != nil || written || strings.Contains(value, Own) {
				t.Errorf("%s: %s: use or add a constant of functions/api/keys",
					set.Position(text.Pos()), text.Value)
			}
			return true
		})
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files looked at: %v", files, err)
	}
}
