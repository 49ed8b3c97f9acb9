package catalog_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Imports point one way: the kinds and the store import nothing of ours, the
// store knows no cluster, and nothing of the catalog but the console knows builds or
// what was rendered: its pages show an agent from the commit to the pods.
func TestImports(t *testing.T) {
	const module = "github.com/armature-dev/armature/"
	var catalog []string // without the console
	for _, name := range []string{"access", "api", "ask", "controller", "kinds", "serve", "store"} {
		catalog = append(catalog, module+"catalog/"+name+"/...")
	}
	for _, ban := range []struct{ of, what, reason string }{
		{module + "catalog/store", module, "the store imports nothing of ours"},
		{module + "catalog/store", "k8s.io/", "the store knows no cluster"},
		{module + "catalog/api", module, "the kinds import nothing of ours"},
		{module + "catalog/kinds", module + "catalog/controller", "commands read and ask without the controller"},
		{module + "catalog/serve", module + "catalog/ask", "what serves does not ask agents"},
		{module + "catalog/serve", module + "catalog/controller", "what serves does not ask agents"},
		{strings.Join(catalog, " "), module + "builds", "the catalog is independent of builds"},
		{strings.Join(catalog, " "), module + "render", "the catalog is independent of render"},
		{strings.Join(catalog, " "), module + "catalog/console", "the console is on top of the catalog"},
		{module + "catalog/console", module + "catalog/ask", "what shows does not ask agents"},
		{module + "catalog/console", module + "catalog/controller", "what shows does not ask agents"},
		{module + "catalog/...", module + "cmd", "commands are the rim"},
	} {
		out, err := exec.Command("go", append([]string{"list", "-deps"}, strings.Fields(ban.of)...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		found := strings.Fields(string(out))
		if len(found) < 5 {
			t.Fatalf("%s has no dependencies: %v", ban.of, found)
		}
		for _, d := range found {
			switch d {
			case module + "functions/api/keys", module + "functions/multi", module + "render/version", module + "render/process", module + "render/process/managers", module + "render/process/metrics", module + "render/answers":
				continue // prefixes, several errors, which build this is, how a controller starts and what it counts, what answers take: nothing of rendering
			}
			if strings.HasPrefix(d, ban.what) && !strings.HasPrefix(d, strings.TrimSuffix(ban.of, "/...")) {
				t.Errorf("%s imports %s: %s", ban.of, d, ban.reason)
			}
		}
	}
}
