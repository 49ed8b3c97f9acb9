package catalog_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Imports point one way: the kinds and the store import nothing of ours, the
// store knows no cluster, and nothing of the catalog knows builds or rendering.
func TestImports(t *testing.T) {
	const module = "github.com/armature-dev/armature/"
	for _, ban := range []struct{ of, what, reason string }{
		{module + "catalog/store", module, "the store imports nothing of ours"},
		{module + "catalog/store", "k8s.io/", "the store knows no cluster"},
		{module + "catalog/api", module, "the kinds import nothing of ours"},
		{module + "catalog/entry", "k8s.io/client-go", "reading manifests needs no cluster"},
		{module + "catalog/entry", "sigs.k8s.io/controller-runtime", "reading manifests needs no cluster"},
		{module + "catalog/serve", module + "catalog/controller", "what serves does not ask agents"},
		{module + "catalog/...", module + "builds", "the catalog is independent of builds"},
		{module + "catalog/...", module + "render", "the catalog is independent of render"},
		{module + "catalog/...", module + "cmd", "commands are the rim"},
	} {
		out, err := exec.Command("go", "list", "-deps", ban.of).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range strings.Fields(string(out)) {
			switch d {
			case module + "functions/multi", module + "render/version", module + "render/process":
				continue // several errors, which build this is, how a controller starts: nothing of rendering
			}
			if strings.HasPrefix(d, ban.what) && !strings.HasPrefix(d, strings.TrimSuffix(ban.of, "/...")) {
				t.Errorf("%s imports %s: %s", ban.of, d, ban.reason)
			}
		}
	}
}
