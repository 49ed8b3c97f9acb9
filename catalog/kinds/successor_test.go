package kinds_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
)

// Agents and servers of kagent 1.0 are listed as they say, beside those of 0.x.
func TestSuccessor(t *testing.T) {
	of := func(kind string, spec map[string]any, condition, status string) store.Entry {
		t.Helper()
		e, ok, err := kinds.Of(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "api.kagent.dev/v1alpha3", "kind": kind,
			"metadata": map[string]any{"name": "weather", "namespace": "team1"}, "spec": spec,
			"status": map[string]any{
				"conditions": []any{map[string]any{"type": condition, "status": status,
					"message": "why"}}},
		}})
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return e
	}
	a := of("Agent", map[string]any{"template": map[string]any{"description": "Forecasts"},
		"harnessRef": map[string]any{"name": "h"}}, "Ready", "True")
	if a.Resource != "agents.api.kagent.dev" || a.Type != store.Agent ||
		a.Description != "Forecasts" || a.Health != store.Healthy || a.URL != "" {
		t.Errorf("%+v", a)
	}
	s := of("RemoteMCPServer", map[string]any{"url": "http://tools/mcp", "protocol": "SSE"},
		"Accepted", "False")
	if s.Resource != "remotemcpservers.api.kagent.dev" || s.Type != store.Server ||
		s.URL != "http://tools/mcp" || s.Protocol != "mcp+sse" || s.Health != store.Failing ||
		s.Message != "why" {
		t.Errorf("%+v", s)
	}
}
