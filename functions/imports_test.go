package functions_test

import (
	"go/parser"
	"go/token"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports keeps rendering pure and quick to start: no cluster,
// registry or signing code in the functions, the engine, the packages on it that
// armature-fn or analyses need, or armature-fn, and
// imports that point one way (docs/contributing/architecture.md).
func TestImports(t *testing.T) {
	const module = "github.com/armature-dev/armature/"
	pure := []string{module + "cmd/armature-fn", module + "functions/...", module + "render", module + "render/host", module + "render/source",
		module + "render/explain", module + "render/verify", module + "render/migrate"}
	leaf := []string{module + "functions/krm", module + "functions/api", module + "templates"}
	core := []string{module + "functions/..."}
	index := []string{module + "functions/index"}
	bans := []struct {
		packages []string
		prefix   string
		reason   string
	}{
		{pure, "k8s.io/client-go", "rendering knows no cluster"},
		{pure, "k8s.io/apimachinery", "its type machinery alone costs more start-up time than a render"},
		{pure, "sigs.k8s.io/controller-runtime", "controllers belong to armature-controller"},
		{pure, "github.com/tektoncd/", "rendering has nothing to do with builds"},
		{pure, "github.com/google/go-containerregistry", "rendering never asks a registry"},
		{pure, "github.com/sigstore/", "signing is render/deliver/sign's"},
		{pure, "sigs.k8s.io/kustomize/api", "only lint builds kustomizations"},
		{pure, "k8s.io/pod-security-admission", "only lint judges pods as the API server does"},
		{pure, module + "render/lint", "lint imports Kubernetes' own types"},
		{pure, "github.com/spf13/cobra", "armature-fn parses a handful of words itself"},
		{[]string{module + "render"}, module + "render/source", "the engine reads what its source gives it"},
		{pure, module + "builds", "builds import render, never the other way"},
		{pure, module + "catalog", "the catalog is independent of render"},
		{core, module + "render", "render imports the functions"},
		{append(pure, module+"render/compare", module+"render/lint", module+"render/page"), module + "render/deliver", "delivery imports the engine and its analyses"},
		{core, module + "cmd", "commands are the rim"},
		{leaf, module + "render", "leaves import nothing of ours"},
		{leaf, module + "functions/identity", "leaves import nothing of ours"},
		{leaf, module + "functions/index", "leaves import nothing of ours"},
		{index, module + "functions/identity", "the index says what there is, and not what it means"},
		{index, module + "functions/contract", "functions get the index, which knows no function"},
	}
	dependencies := make(map[string][]string)
	for _, ban := range bans {
		key := strings.Join(ban.packages, " ")
		if dependencies[key] == nil {
			out, err := exec.Command("go", append([]string{"list", "-deps"}, ban.packages...)...).Output()
			if err != nil {
				t.Fatal(err)
			}
			dependencies[key] = strings.Fields(string(out))
			if len(dependencies[key]) < 5 {
				t.Fatalf("%s has no dependencies: %v", key, dependencies[key])
			}
		}
		for _, d := range dependencies[key] {
			if d == ban.prefix || strings.HasPrefix(d, strings.TrimSuffix(ban.prefix, "/")+"/") {
				t.Errorf("%s imports %s: %s", key, d, ban.reason)
			}
		}
	}
}

// TestFunctionsApart: what is below functions imports no function, so that a function's state
// and text are its own. What two functions need is a package below them.
func TestFunctionsApart(t *testing.T) {
	const module = "github.com/armature-dev/armature/functions/"
	table, err := parser.ParseFile(token.NewFileSet(), "table.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	own := make(map[string]bool)
	for _, i := range table.Imports {
		name := strings.Trim(i.Path.Value, `"`)
		own[name] = strings.HasPrefix(name, module) && name != module+"contract"
	}
	if len(own) < 10 {
		t.Fatalf("functions: %v", own)
	}

	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		for _, imported := range words[1:] {
			if own[imported] && strings.HasPrefix(words[0], module) {
				t.Errorf("%s imports %s, which is a function", words[0], imported)
			}
		}
	}
}

// TestPureCores: the engine and compose themselves ask no file system, network,
// clock or environment; of time, compose takes durations only, and commit is given it.
func TestPureCores(t *testing.T) {
	for of, bans := range map[string][]string{
		"render":                {"os", "net", "net/http", "time", "math/rand/v2"},
		"builds/compose":        {"os", "net", "net/http", "math/rand/v2"},
		"builds/compose/recipe": {"os", "net", "net/http", "math/rand/v2"},
		"builds/compose/tekton": {"os", "net", "net/http", "math/rand/v2"},
		"builds/source/commit":  {"os", "net", "net/http", "math/rand/v2"},
	} {
		out, err := exec.Command("go", "list", "-f", "{{range .Imports}}{{.}}\n{{end}}", "github.com/armature-dev/armature/"+of).Output()
		if err != nil {
			t.Fatal(err)
		}
		imports := strings.Fields(string(out))
		if !slices.Contains(imports, "fmt") {
			t.Fatalf("%s: no imports: %v", of, imports)
		}
		for _, ban := range bans {
			if slices.Contains(imports, ban) {
				t.Errorf("%s imports %s", of, ban)
			}
		}
	}
}
