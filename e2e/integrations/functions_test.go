package integrations

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/render/conformance"
)

// What armature test-function says of our functions, of which none fails, and of two of
// other projects is the table of docs/test-function.md. UPDATE=1 writes it.
func TestTestFunction(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	write(t, filepath.Dir(config), "config.yaml",
		"apiVersion: example.com/v1\nkind: Example\nmetadata: {name: example}\nvalue: team1\n")
	table := []string{"| function | ok | skipped | failed |", "|---|---|---|---|"}
	row := func(name string, ours bool, args ...string) {
		r := command("", "", "armature",
			append([]string{"test-function", "--timeout", "10m", "-o", "json"}, args...)...)
		var shown struct{ Checks []conformance.Check }
		if err := json.Unmarshal([]byte(r.stdout), &shown); err != nil || len(shown.Checks) == 0 {
			t.Fatalf("%s: %v\n%s%s", name, err, r.stderr, r.stdout)
		}
		by := make(map[conformance.Status][]string)
		for _, c := range shown.Checks {
			by[c.Status] = append(by[c.Status], c.Name)
		}
		if failed := len(by[conformance.Failed]) > 0; failed != (r.err != nil) || failed && ours {
			t.Errorf("%s: %v\n%s", name, r.err, r.stdout)
		}
		cell := func(s conformance.Status) string { return cmp.Or(strings.Join(by[s], ", "), "–") }
		table = append(table, fmt.Sprintf("| %s | %d | %s | %s |", name, len(by[conformance.OK]),
			cell(conformance.Skipped), cell(conformance.Failed)))
	}
	row("`armature-fn`, all functions", true, "armature-fn")
	for _, name := range append(functions.Names(), "verify") {
		row("`armature-fn "+name+"`", true, "armature-fn", name)
	}
	version := requirements(t, "e2e/functions")
	row("the example of kustomize's framework, kyaml "+version["sigs.k8s.io/kustomize/kyaml"],
		false, "--config", config, "--", programs.Peer(t, "function of kustomize"))
	row("`gen-pkg-context` of kpt "+version["github.com/kptdev/kpt"], false,
		programs.Peer(t, "function of kpt"))
	part(t, "docs/test-function.md", strings.Join(table, "\n"))
}

// requirements are the modules that the go.mod of a folder requires, and their versions.
func requirements(t *testing.T, folder string) map[string]string {
	t.Helper()
	version := make(map[string]string)
	for line := range strings.Lines(read(t, root, folder, "go.mod")) {
		if f := strings.Fields(strings.TrimPrefix(line, "require ")); len(f) > 1 &&
			strings.HasPrefix(f[1], "v") {
			version[f[0]] = f[1]
		}
	}
	return version
}

// part compares the table of a page, which is between two comments; UPDATE=1 writes it.
func part(t *testing.T, name, table string) {
	t.Helper()
	const begin, end = "<!-- written by make test-peers UPDATE=1 -->\n", "<!-- end -->"
	text := read(t, root, name)
	before, rest, ok := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no comments around its table", name)
	}
	want := before + begin + table + "\n" + end + after
	switch {
	case want == text:
	case os.Getenv("UPDATE") == "":
		t.Errorf("%s is not up to date: read what changed, then UPDATE=1\n%s", name, table)
	default:
		write(t, root, name, want)
	}
}
