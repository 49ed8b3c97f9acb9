package flux_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Imports point one way: what builds an artifact knows no cluster and no network,
// and nothing here knows builds, the catalog or commands.
func TestImports(t *testing.T) {
	const module = "github.com/armature-dev/armature/"
	for _, ban := range []struct{ of, what, reason string }{
		{module + "render/archive", module + "render", "archives are bytes"},
		{module + "render/deliver/flux/build", "k8s.io/client-go", "building is pure"},
		{module + "render/deliver/flux/build", "sigs.k8s.io/controller-runtime", "building is pure"},
		{module + "render/deliver/flux/build", module + "render/deliver/flux/controller", "building is pure"},
		{module + "render/deliver/flux/...", module + "builds", "sources are independent of builds"},
		{module + "render/deliver/flux/...", module + "catalog", "sources are independent of the catalog"},
		{module + "render/deliver/flux/...", module + "cmd", "commands are the rim"},
	} {
		out, err := exec.Command("go", "list", "-deps", ban.of).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range strings.Fields(string(out)) {
			if strings.HasPrefix(d, ban.what) && !strings.HasPrefix(d, strings.TrimSuffix(ban.of, "/...")) {
				t.Errorf("%s imports %s: %s", ban.of, d, ban.reason)
			}
		}
	}
}
