package kinds_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/catalog/kinds"
)

// The scheme is built once and not for each object.
func TestSchemeIsShared(t *testing.T) {
	server := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kagent.dev/v1alpha2", "kind": "RemoteMCPServer",
		"metadata": map[string]any{"name": "tools", "namespace": "team1"},
		"spec":     map[string]any{"url": "http://tools.team1:8080/mcp", "description": "Tools."},
	}}
	// A scheme takes several thousand.
	if n := testing.AllocsPerRun(10, func() {
		if _, _, err := kinds.Of(server); err != nil {
			t.Fatal(err)
		}
	}); n > 1000 {
		t.Errorf("an entry takes %v allocations", n)
	}
}
