//go:build linux

package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
)

// An API server takes what the cluster has besides its API.
func TestClusterYAML(t *testing.T) {
	api := controlplane.Start(t)
	c, err := client.New(api.Admin.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := render("cluster.yaml", file,
		Cluster{}.values(map[string]string{"coredns": "registry.example/coredns"})); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := ssautil.ReadObjects(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, o := range objects {
		// whose address has another range there
		if err := c.Create(t.Context(), o, client.FieldValidation("Strict")); err != nil &&
			o.GetKind() != "Service" {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		count[o.GetKind()]++
	}
	if count["PersistentVolume"] != volumes || count["Deployment"] != 1 {
		t.Errorf("%v", count)
	}
}

// Each service has a command without a variable that nobody gave.
func TestServices(t *testing.T) {
	commands, err := Cluster{}.services()
	if err != nil {
		t.Fatal(err)
	}
	for name, command := range commands {
		if len(command) < 2 || strings.Contains(strings.Join(command, " "), "<no value>") {
			t.Errorf("%s: %q", name, command)
		}
	}
	if len(commands) != 11 {
		t.Errorf("%d services", len(commands))
	}
}
