package functions

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestShape keeps functions apart: the root of the package is small, nothing
// embeds the index or what functions share, and a function's name is a string in
// its own folder only.
func TestShape(t *testing.T) {
	files := token.NewFileSet()
	own := make(map[string]bool) // names that nothing else is called
	for _, name := range Names() {
		own[name] = strings.Contains(name, "-")
	}
	checked := 0
	for _, root := range []string{".", "../render", "../cmd"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" ||
				strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			parsed, err := parser.ParseFile(files, path, data, 0)
			if err != nil {
				return err
			}
			checked++
			top := filepath.Dir(path) == "."
			if lines := bytes.Count(data, []byte{'\n'}); top && lines > 300 {
				t.Errorf("%s has %d lines: move what one function needs into its folder", path, lines)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.StructType:
					checkStruct(t, files, n, top)
				case *ast.ValueSpec:
					// the constant of a folder, or the name of AuthBridge's plugin
					name := n.Names[0].Name
					return !strings.HasPrefix(name, "function") && name != "exchangePlugin"
				case *ast.BasicLit:
					if text, err := strconv.Unquote(n.Value); err == nil && own[text] {
						t.Errorf("%s: %s is a function's name: use what its folder says of it",
							files.Position(n.Pos()), n.Value)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 100 {
		t.Errorf("only %d files", checked)
	}
}

func checkStruct(t *testing.T, files *token.FileSet, s *ast.StructType, top bool) {
	fields := 0
	for _, f := range s.Fields.List {
		fields += max(1, len(f.Names))
		if len(f.Names) > 0 {
			continue
		}
		embedded := f.Type
		if star, ok := embedded.(*ast.StarExpr); ok {
			embedded = star.X
		}
		if sel, ok := embedded.(*ast.SelectorExpr); ok {
			if of, ok := sel.X.(*ast.Ident); ok &&
				(of.Name == "index" || of.Name == "contract" && sel.Sel.Name != "Function") {
				t.Errorf("%s: %s.%s is embedded: name it", files.Position(f.Pos()), of.Name, sel.Sel.Name)
			}
		}
	}
	if top && fields > 12 {
		t.Errorf("%s: a struct of %d fields", files.Position(s.Pos()), fields)
	}
}
