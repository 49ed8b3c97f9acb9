package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLinks keeps out what the commands have no use for: what is linked is initialized
// as every command starts.
func TestLinks(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{.Imports}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	var linked []string
	for line := range strings.Lines(string(out)) {
		name, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		linked = append(linked, name)
		if strings.HasPrefix(name, "github.com/armature-dev/") &&
			slices.Contains(strings.Fields(strings.Trim(imports, "[]")),
				"k8s.io/client-go/kubernetes") {
			t.Errorf("%s makes a clientset, and armature gets 15 MB larger: use "+
				"controller-runtime's client", name)
		}
	}
	if !slices.Contains(linked, "k8s.io/client-go/rest") {
		t.Fatalf("go list names %d packages, and client-go is not among them", len(linked))
	}
	// The seconds are of CPU, to compile what a ban keeps out: go build -debug-actiongraph=FILE has
	// them.
	for banned, reason := range map[string]string{
		"github.com/sigstore/cosign/v2/pkg/signature": "it brings the clients of " +
			"Kubernetes, GitLab and GitHub; render/deliver/sign loads keys itself",
		"github.com/armature-dev/armature/catalog/controller": "catalog/ask asks tool servers",
		"github.com/armature-dev/armature/builds/controller": "the commands read what the " +
			"controller writes, and do not run it",
		"github.com/armature-dev/armature/builds/report": "builds/report/comment writes what a " +
			"report says",
		"github.com/armature-dev/armature/catalog/serve": "the commands ask a " +
			"catalog's server, and are none; for its own rights, a command has access.Own",
		"github.com/armature-dev/armature/catalog/store/database": "a command keeps a catalog " +
			"in store.Memory",
		"github.com/armature-dev/armature/render/process/managers": "a command runs no controllers",
		"github.com/armature-dev/armature/cmd/armature-fn":         "rendering is a library",
		"github.com/armature-dev/armature/e2e":                     "it is for tests",
		"modernc.org": "SQLite in Go, 21 s: " +
			"store.Memory has what commands ask a catalog for",
		"github.com/jackc": "PostgreSQL, 9 s: only the catalog's server keeps its store there",
		"k8s.io/apiserver/pkg/server": "what an API server is made " +
			"of, 6 s with all of its filters: catalog/serve has them",
		"k8s.io/apiserver/pkg/authentication/authenticatorfactory": "filters of an API server: " +
			"catalog/serve has them",
		"k8s.io/apiserver/pkg/authorization/authorizerfactory": "filters of an API server: " +
			"catalog/serve has them",
		"sigs.k8s.io/controller-runtime/pkg/manager": "controllers with webhooks and " +
			"leases, 5 s: only controllers have one",
		"sigs.k8s.io/controller-runtime/pkg/builder":    "it brings the manager",
		"sigs.k8s.io/controller-runtime/pkg/controller": "it brings the manager",
		"sigs.k8s.io/controller-runtime/pkg/webhook":    "it brings the manager",
		"k8s.io/client-go/tools/events": "it is for controllers, 1 s: " +
			"commands record no events",
	} {
		for _, p := range linked {
			if p == banned ||
				strings.HasPrefix(p, banned+"/") &&
					!slices.Contains(linkable,
						strings.TrimPrefix(p, "github.com/armature-dev/armature/builds/")) {
				t.Errorf("armature links %s: %s", p, reason)
			}
		}
	}
	if len(linked) > maxLinked {
		t.Errorf("armature links %d packages, and %d are allowed: what brings the new ones is in "+
			"go list -deps -json; is there a narrower import?", len(linked), maxLinked)
	}
}

// linkable are packages below banned ones that commands need as well.
var linkable = []string{"report/comment", "controller/runs"}

// maxLinked is a bit above what there is. 1,478 of them are those of the libraries that armature
// is built on: Tekton's types, fluxcd/pkg/ssa, kyaml, go-containerregistry and cosign.
const maxLinked = 1970
