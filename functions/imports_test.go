package functions_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/armature-dev/armature/"

// folder is a package as go list prints it.
type folder struct {
	ImportPath, Name                            string
	GoFiles, Imports, TestImports, XTestImports []string
}

// listed returns the packages of this repository, and those that they import, by path.
var listed = sync.OnceValues(func() (map[string]folder, error) {
	out, err := exec.Command("go", "list", "-deps",
		"-json=ImportPath,Name,GoFiles,Imports,TestImports,XTestImports", "../...").Output()
	found := make(map[string]folder)
	for d := json.NewDecoder(bytes.NewReader(out)); err == nil; {
		var f folder
		if err = d.Decode(&f); err == nil {
			found[f.ImportPath] = f
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return found, err
})

func packages(t *testing.T) map[string]folder {
	t.Helper()
	found, err := listed()
	if err != nil || len(found) < 1000 {
		t.Fatalf("go list prints %d packages: %v", len(found), err)
	}
	return found
}

// dependencies returns what packages link. A pattern such as functions/... is for all that are in a
// folder.
func dependencies(all map[string]folder, patterns ...string) map[string]bool {
	linked := make(map[string]bool)
	var add func(name string)
	add = func(name string) {
		if _, exists := all[name]; exists && !linked[name] {
			linked[name] = true
			for _, i := range all[name].Imports {
				add(i)
			}
		}
	}
	for _, pattern := range patterns {
		for name := range all {
			if matches(module+pattern, name) {
				add(name)
			}
		}
	}
	return linked
}

func matches(pattern, name string) bool {
	of, whole := strings.CutSuffix(pattern, "/...")
	return name == of || whole && strings.HasPrefix(name, of+"/")
}

// TestImports keeps rendering pure and quick to start: no cluster, registry or signing code in the
// functions, the engine, the packages on it that armature-fn or analyses need, or armature-fn. It
// keeps imports that point one way (docs/contributing/architecture.md).
func TestImports(t *testing.T) {
	pure := []string{"cmd/armature-fn", "functions/...", "render", "render/host", "render/source",
		"render/explain", "render/verify", "render/migrate"}
	leaf := []string{"functions/krm", "functions/api", "templates"}
	core := []string{"functions/..."}
	index := []string{"functions/index"}
	store, serve := []string{"catalog/store"}, []string{"catalog/serve"}
	console := []string{"catalog/console"}
	// without the console
	catalog := []string{"catalog/access/...", "catalog/api/...", "catalog/ask/...",
		"catalog/controller/...", "catalog/kinds/...", "catalog/serve/...", "catalog/store/..."}
	build, sources := []string{"render/deliver/flux/build"}, []string{"render/deliver/flux/..."}
	const ours = "github.com/armature-dev/armature"
	all := packages(t)
	for _, ban := range []struct {
		packages []string
		banned   string
		reason   string
	}{
		{pure, "k8s.io/client-go", "rendering knows no cluster"},
		{pure, "k8s.io/apimachinery",
			"its type machinery alone costs more start-up time than a render"},
		{pure, "sigs.k8s.io/controller-runtime", "controllers belong to armature-controller"},
		{pure, "github.com/tektoncd", "rendering has nothing to do with builds"},
		{pure, "github.com/google/go-containerregistry", "rendering never asks a registry"},
		{pure, "github.com/sigstore", "signing is render/deliver/sign's"},
		{pure, "sigs.k8s.io/kustomize/api", "only lint builds kustomizations"},
		{pure, "k8s.io/pod-security-admission", "only lint judges pods as the API server does"},
		{pure, module + "render/lint", "lint imports Kubernetes' own types"},
		{pure, "github.com/spf13/cobra", "armature-fn parses a handful of words itself"},
		{[]string{"render"}, module + "render/source", "the engine reads what its source gives it"},
		{pure, module + "builds", "builds import render, never the other way"},
		{pure, module + "catalog", "the catalog is independent of render"},
		{core, module + "render", "render imports the functions"},
		{append(pure, "render/compare", "render/lint", "render/page"), module + "render/deliver",
			"delivery imports the engine and its analyses"},
		{core, module + "cmd", "commands are the rim"},
		{leaf, module + "render", "leaves import nothing of ours"},
		{leaf, module + "functions/identity", "leaves import nothing of ours"},
		{leaf, module + "functions/index", "leaves import nothing of ours"},
		{index, module + "functions/identity",
			"the index says what there is, and not what it means"},
		{index, module + "functions/contract", "functions get the index, which knows no function"},

		{store, ours, "the store imports nothing of ours"},
		{store, "k8s.io", "the store knows no cluster"},
		{[]string{"catalog/api"}, ours, "the kinds import nothing of ours"},
		{[]string{"catalog/kinds"}, module + "catalog/controller",
			"commands read and ask without the controller"},
		{serve, module + "catalog/ask", "what serves does not ask agents"},
		{serve, module + "catalog/controller", "what serves does not ask agents"},
		{catalog, module + "builds", "the catalog is independent of builds"},
		{catalog, module + "render", "the catalog is independent of render"},
		{catalog, module + "catalog/console", "the console is on top of the catalog"},
		{console, module + "catalog/ask", "what shows does not ask agents"},
		{console, module + "catalog/controller", "what shows does not ask agents"},
		{append(catalog, "catalog/console/..."), module + "cmd", "commands are the rim"},

		{[]string{"render/archive"}, module + "render", "archives are bytes"},
		{build, "k8s.io/client-go", "building is pure"},
		{build, "sigs.k8s.io/controller-runtime", "building is pure"},
		{build, module + "render/deliver/flux/controller", "building is pure"},
		{sources, module + "builds", "sources are independent of builds"},
		{sources, module + "catalog", "sources are independent of the catalog"},
		{sources, module + "cmd", "commands are the rim"},
	} {
		linked := dependencies(all, ban.packages...)
		if len(linked) < 5 {
			t.Fatalf("%v links %d packages", ban.packages, len(linked))
		}
		for name := range linked {
			own := func(pattern string) bool { return matches(module+pattern, name) }
			allowed := slices.ContainsFunc(ban.packages, own) ||
				strings.HasPrefix(ban.packages[0], "catalog/") && slices.Contains(forAll, name)
			if matches(ban.banned+"/...", name) && !allowed {
				t.Errorf("%v import %s: %s", ban.packages, name, ban.reason)
			}
		}
	}
}

// forAll are packages of functions and render that the catalog may import: prefixes, several
// errors, which build this is, how a controller starts, what it counts and how it copies, what
// answers take.
var forAll = []string{module + "functions/api/keys", module + "functions/multi",
	module + "render/version", module + "render/process", module + "render/process/managers",
	module + "render/process/metrics", module + "render/process/copies", module + "render/answers"}

// TestFunctionsApart: packages below functions import no function, so that each function has its
// own state and text. Functions share packages below them.
func TestFunctionsApart(t *testing.T) {
	const contract = module + "functions/contract"
	table, err := os.ReadFile("table.go")
	if err != nil {
		t.Fatal(err)
	}
	all, functions := packages(t), 0
	for name := range all {
		if name == contract || !matches(module+"functions/...", name) ||
			!bytes.Contains(table, []byte(`"`+name+`"`)) {
			continue
		}
		functions++
		for of, f := range all {
			below := matches(module+"functions/...", of) && of != module+"functions"
			if below && slices.Contains(f.Imports, name) {
				t.Errorf("%s imports %s, which is a function", of, name)
			}
		}
	}
	if functions < 10 {
		t.Errorf("only %d folders with functions", functions)
	}
}

// TestPureCores: the engine and compose themselves ask no file system, network,
// clock or environment; of time, compose takes durations only, and commit is given it.
func TestPureCores(t *testing.T) {
	for of, bans := range map[string][]string{
		"render":                   {"os", "net", "net/http", "time", "math/rand/v2"},
		"builds/compose":           {"os", "net", "net/http", "math/rand/v2"},
		"builds/compose/templates": {"os", "net", "net/http", "math/rand/v2"},
		"builds/compose/tekton":    {"os", "net", "net/http", "math/rand/v2"},
		"builds/source/commit":     {"os", "net", "net/http", "math/rand/v2"},
	} {
		imports := packages(t)[module+of].Imports
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

// TestRooms: builds has at most 13 folders and catalog nine. A package of one file, without tests,
// has two packages of the product that import it, or is a file of the one; if
// only tests import it, it serves two packages.
func TestRooms(t *testing.T) {
	all := packages(t)
	rooms := make(map[string]bool) // the folders directly in builds and catalog
	product, tests := make(map[string]int), make(map[string]int)
	for name, f := range all {
		own, _ := strings.CutPrefix(name, module)
		if own == name {
			continue
		}
		if area, below, ok := strings.Cut(own, "/"); ok {
			below, _, _ = strings.Cut(below, "/")
			rooms[path.Join(area, below)] = true
		}
		counts := product
		if strings.HasPrefix(own, "e2e/") {
			counts = tests
		}
		for _, i := range f.Imports {
			counts[i]++
		}
		imported := append(f.TestImports, f.XTestImports...)
		slices.Sort(imported)
		for _, i := range slices.Compact(imported) {
			if i != name && !slices.Contains(f.Imports, i) {
				tests[i]++
			}
		}
	}

	count := map[string]int{}
	for room := range rooms {
		count[path.Dir(room)]++
	}
	for area, most := range map[string]int{"builds": 13, "catalog": 9} {
		if n := count[area]; n < 5 || n > most {
			t.Errorf("%d folders are in %s, at most %d are allowed", n, area, most)
		}
	}

	small := 0
	for name, f := range all {
		files := slices.DeleteFunc(slices.Clone(f.GoFiles), func(file string) bool {
			return file == "doc.go"
		})
		if !strings.HasPrefix(name, module) || f.Name == "main" || len(files) != 1 {
			continue
		}
		small++
		n := product[name]
		if n == 0 || matches(module+"e2e/...", name) {
			n += tests[name]
		}
		if n < 2 {
			t.Errorf("%s has one file and one importer: move the file there", name)
		}
	}
	if small < 10 {
		t.Errorf("only %d packages of one file", small)
	}
}
