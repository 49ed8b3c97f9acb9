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
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, "k8s.io/client-go/rest") {
		t.Fatalf("go list names %d packages, and client-go is not among them", len(linked))
	}
	for banned, reason := range map[string]string{
		"github.com/sigstore/cosign/v2/pkg/signature":         "it brings the clients of Kubernetes, GitLab and GitHub; render/deliver/sign loads keys itself",
		"github.com/armature-dev/armature/catalog/controller": "catalog/ask asks tool servers",
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
