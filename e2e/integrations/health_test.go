package integrations

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// The scripts in examples/argocd/health.yaml, as Argo CD runs them.
func TestArgoCDHealth(t *testing.T) {
	program := argocd(t)
	var settings struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(read(t, root, "examples/argocd/health.yaml")),
		&settings); err != nil {
		t.Fatal(err)
	}
	const build, rendered = "agent.kagenti.dev_AgentBuild", "armature.dev_RenderedSource"
	for name, c := range map[string]struct{ kind, object, status, message string }{
		"build, new": {build, `{}`, "Progressing",
			"waiting for the build controller"},
		"build, changed": {build,
			`{"status":{"phase":"Succeeded","observedGeneration":1}}`, "Progressing",
			"waiting for the build controller"},
		"build, pending": {build,
			`{"status":{"phase":"Pending","message":"queued","observedGeneration":2}}`,
			"Progressing", "queued"},
		"build, building": {build,
			`{"status":{"phase":"Building","observedGeneration":2}}`, "Progressing", "Building"},
		"build, succeeded": {build,
			`{"status":{"phase":"Succeeded","message":"the image was built","observedGeneration":2}}`,
			"Healthy", "the image was built"},
		"build, failed": {build,
			`{"status":{"phase":"Failed","message":"no such Secret","observedGeneration":2}}`,
			"Degraded", "no such Secret"},
		"build, cancelled": {build,
			`{"status":{"phase":"Cancelled","observedGeneration":2}}`, "Suspended", "Cancelled"},
		"source, new": {rendered, `{}`, "Progressing",
			"waiting for the controller of RenderedSources"},
		"source, changed": {rendered,
			`{"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"True"}]}}`,
			"Progressing", "waiting for the controller of RenderedSources"},
		"source, no conditions": {rendered, `{"status":{"observedGeneration":2}}`, "Progressing",
			"waiting for the controller of RenderedSources"},
		"source, published": {rendered,
			`{"status":{"observedGeneration":2,"conditions":[{"type":"Ready","status":"True","message":"published 3 objects"}]}}`, "Healthy", "published 3 objects"},
		"source, not there": {rendered,
			`{"status":{"observedGeneration":2,"conditions":[{"type":"Reconciling","status":"True"},{"type":"Ready","status":"False","reason":"SourceNotReady","message":"no artifact"}]}}`, "Progressing", "no artifact"},
		"source, does not render": {rendered,
			`{"status":{"observedGeneration":2,"conditions":[{"type":"Stalled","status":"True"},{"type":"Ready","status":"False","reason":"RenderFailed","message":"a.yaml:3"}]}}`, "Degraded", "a.yaml:3"},
		"source, suspended": {rendered,
			`{"spec":{"suspend":true},"status":{"observedGeneration":2,"conditions":[{"type":"Ready","status":"True"}]}}`, "Suspended", "spec.suspend is true"},
		"source, suspended: false": {rendered, `{"spec":{"suspend":false}}`, "Progressing",
			"waiting for the controller of RenderedSources"},
	} {
		t.Run(name, func(t *testing.T) {
			script := filepath.Join(t.TempDir(), "health.lua")
			if err := os.WriteFile(script,
				[]byte(settings.Data["resource.customizations.health."+c.kind]), 0o644); err != nil {
				t.Fatal(err)
			}
			var object map[string]any
			if err := json.Unmarshal([]byte(c.object), &object); err != nil {
				t.Fatal(err)
			}
			object["apiVersion"], object["kind"] = "example.com/v1", "Example"
			object["metadata"] = map[string]any{"name": "x", "generation": 2}
			text, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			var got struct{ Status, Message string }
			if err := json.Unmarshal([]byte(must(t, "", string(text), program, "health", script)),
				&got); err != nil {
				t.Fatal(err)
			}
			if got.Status != c.status || got.Message != c.message {
				t.Errorf("%s, %q; want %s, %q", got.Status, got.Message, c.status, c.message)
			}
		})
	}
}
