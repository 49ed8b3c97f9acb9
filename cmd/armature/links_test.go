package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLinks keeps the start of every command short: what is linked is initialized
// even where a command has no use for it.
func TestLinks(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, "k8s.io/client-go/rest") {
		t.Fatalf("go list names %d packages, and client-go is not among them", len(linked))
	}
	for banned, reason := range map[string]string{
		"k8s.io/kubectl":                                      "its scheme has every version of every built-in kind; what imports fluxcd/pkg/ssa brings it",
		"k8s.io/apiserver":                                    "its metrics, feature gates and CEL library are for API servers; builds/manifest judges with cel-go",
		"k8s.io/component-base":                               "its metrics are registered as the program starts",
		"k8s.io/kube-openapi/pkg/validation/strfmt":           "its formats compile 100 regular expressions as the program starts; no field of the shipped CRD has one of them",
		"k8s.io/client-go/kubernetes":                         "its scheme has every version of every built-in kind; client-go/dynamic does without",
		"k8s.io/client-go/discovery":                          "it brings client-go/kubernetes/scheme; render/apply asks for the API versions that it needs",
		"k8s.io/client-go/applyconfigurations":                "generated for every kind; what client-go/gentype needs them for is applied as it is written",
		"sigs.k8s.io/structured-merge-diff/v6/typed":          "it parses a schema as the program starts",
		"sigs.k8s.io/controller-runtime":                      "its client and metrics are for controllers",
		"github.com/sigstore/cosign/v2/pkg/signature":         "it brings the clients of Kubernetes, GitLab and GitHub; render/sign loads keys itself",
		"github.com/modelcontextprotocol/go-sdk":              "the catalog's controller asks MCP servers, and the commands do not",
		"github.com/armature-dev/armature/catalog/controller": "the commands read manifests with catalog/entry",
		"github.com/armature-dev/armature/builds/controller":  "the commands read what the controller writes, and do not run it",
		"github.com/armature-dev/armature/catalog/serve":      "the commands ask a catalog's server, and are none",
		"github.com/armature-dev/armature/cmd/armature-fn":    "rendering is a library",
		"github.com/armature-dev/armature/e2e":                "it is for tests",
	} {
		for _, p := range linked {
			if p == banned || strings.HasPrefix(p, banned+"/") {
				t.Errorf("armature links %s: %s", p, reason)
			}
		}
	}
}
