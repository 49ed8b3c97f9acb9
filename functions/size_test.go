package functions

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSize: a type has 25 methods at most, and one with methods 15 fields; a package has
// 3,700 lines without tests and generated code.
func TestSize(t *testing.T) {
	const root, most, mostFields, mostLines = "..", 25, 15, 3700
	allowed := map[string]int{"functions/krm": 5000, "cmd/armature": 5500, "builds/compose": 3900}
	lines, methods, fields := make(map[string]int), make(map[string]int), make(map[string]int)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (name == "testdata" || strings.HasPrefix(name, ".")):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			return err
		}
		folder, _ := filepath.Rel(root, filepath.Dir(path))
		folder = filepath.ToSlash(folder)
		lines[folder] += bytes.Count(text, []byte{'\n'})
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil {
					methods[folder+"."+
						strings.TrimPrefix(
							string(text[n.Recv.List[0].Type.Pos()-1:n.Recv.List[0].Type.End()-1]), "*")]++
				}
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					fields[folder+"."+n.Name.Name] += s.Fields.NumFields()
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range methods {
		// the one lens for all kinds
		if name != "functions/krm.Object" && (n > most || fields[name] > mostFields) {
			t.Errorf(
				"%s has %d methods and %d fields: group what belongs together, or write functions",
				name, n, fields[name])
		}
	}
	for folder, n := range lines {
		if n > max(mostLines, allowed[folder]) {
			t.Errorf("%s has %d lines: move out what is a package of its own", folder, n)
		}
	}
	if len(lines) < 80 || len(methods) < 200 {
		t.Errorf("only %d packages and %d types with methods", len(lines), len(methods))
	}
}
