package functions

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sources are the folders with Go files.
var sources = []string{"builds", "catalog", "cmd", "e2e", "functions", "render", "templates"}

// eachSource parses the Go files of a folder, tests included and generated code left out.
func eachSource(t *testing.T, folder string,
	visit func(text []byte, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	root := filepath.Join("..", folder)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err == nil && !ast.IsGenerated(file) {
			visit(text, fset, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVerbs: comments say what a function returns, and not what it gives.
func TestVerbs(t *testing.T) {
	gives, returns := regexp.MustCompile(`(?i)\bgives\b`), regexp.MustCompile(`(?i)\breturns\b`)
	total := 0
	for _, folder := range sources {
		var old []string
		wanted := 0
		eachSource(t, folder, func(_ []byte, fset *token.FileSet, file *ast.File) {
			for _, g := range file.Comments {
				for _, c := range g.List {
					for range gives.FindAllString(c.Text, -1) {
						old = append(old, fset.Position(c.Pos()).String())
					}
					wanted += len(returns.FindAllString(c.Text, -1))
				}
			}
		})
		if len(old)*10 > wanted {
			t.Errorf("comments of %s have %d times \"gives\", more than a tenth of %d times "+
				"\"returns\": write the verb of what happens\n\t%s",
				folder, len(old), wanted, strings.Join(old, "\n\t"))
		}
		total += wanted
	}
	if total < 500 {
		t.Errorf("only %d comments were found that have \"returns\"", total)
	}
}
