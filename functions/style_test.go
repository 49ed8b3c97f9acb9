package functions

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
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

// TestDocComments: the comment of a function begins with its name and a verb in the third person,
// as "Near reports whether", but for one in a hundred of a folder. Tests are left out.
func TestDocComments(t *testing.T) {
	verb := regexp.MustCompile(`^[a-z]+s[,:]?$`)
	for _, folder := range sources {
		var other []string
		functions := 0
		eachSource(t, folder, func(_ []byte, fset *token.FileSet, file *ast.File) {
			if strings.HasSuffix(fset.File(file.Pos()).Name(), "_test.go") {
				return
			}
			for _, declaration := range file.Decls {
				f, ok := declaration.(*ast.FuncDecl)
				if !ok || f.Doc.Text() == "" {
					continue
				}
				functions++
				words := strings.Fields(f.Doc.Text())
				if words[0] == f.Name.Name && len(words) > 1 && verb.MatchString(words[1]) &&
					!slices.Contains([]string{"is", "has", "was"}, words[1]) {
					continue
				}
				other = append(other, fmt.Sprintf("%s: %s", fset.Position(f.Doc.Pos()),
					strings.Join(words[:min(len(words), 4)], " ")))
			}
		})
		if len(other)*100 > functions {
			t.Errorf("%d of %d comments of functions of %s do not begin with the name and a verb "+
				"such as returns, reports or writes, and at most 1 %% may:\n\t%s",
				len(other), functions, folder, strings.Join(other, "\n\t"))
		}
		if folder != "templates" && functions < 100 {
			t.Errorf("%s has only %d functions with a comment", folder, functions)
		}
	}
}

// TestColumns: no line has more than 120 columns, with tabs as four, and one in a hundred of a
// folder has more than 100. Raw strings, struct tags, imports and directives are left as they are.
func TestColumns(t *testing.T) {
	const most, hard = 100, 120
	for _, folder := range sources {
		var long []string
		lines := 0
		eachSource(t, folder, func(text []byte, fset *token.FileSet, file *ast.File) {
			free := make(map[int]bool)
			exempt := func(n ast.Node) {
				for l := fset.Position(n.Pos()).Line; l <= fset.Position(n.End()).Line; l++ {
					free[l] = true
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ImportSpec:
					exempt(n)
				case *ast.Field:
					if n.Tag != nil {
						exempt(n.Tag)
					}
				case *ast.BasicLit:
					if n.Value[0] == '`' {
						exempt(n)
					}
				}
				return true
			})
			for _, g := range file.Comments {
				for _, c := range g.List {
					if directive.MatchString(c.Text) {
						exempt(c)
					}
				}
			}
			at := fset.File(file.Pos())
			for i, line := range strings.Split(string(text), "\n") {
				lines++
				columns := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
				if columns <= most || free[i+1] {
					continue
				}
				place := fmt.Sprintf("%s:%d", at.Name(), i+1)
				long = append(long, place)
				if columns > hard {
					t.Errorf("%s: the line has %d columns: break it at %d", place, columns, most)
				}
			}
		})
		if len(long)*100 > lines {
			t.Errorf("%d of %d lines of %s have more than %d columns, and at most 1 %% may:"+
				"\n\t%s", len(long), lines, folder, most, strings.Join(long, "\n\t"))
		}
		t.Logf("%s: %d of %d lines have more than %d columns", folder, len(long), lines, most)
		if folder != "templates" && lines < 1000 {
			t.Errorf("%s has only %d lines of Go", folder, lines)
		}
	}
}

var directive = regexp.MustCompile(`^// ?(\+|go:|nolint|#nosec)`)
