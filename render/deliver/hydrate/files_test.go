package hydrate_test

import (
	"testing"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/hydrate"
)

// A manifest has the objects of a cluster in their order, with sorted keys.
func TestManifest(t *testing.T) {
	got, err := hydrate.Manifest([]render.File{
		{Path: "b.yaml", Data: []byte(`# a comment
kind: ConfigMap
apiVersion: v1
metadata: {name: b}
data: {number: "1", yes: "yes"}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: local
  annotations: {config.kubernetes.io/local-config: "true"}
---
apiVersion: armature.dev/v1alpha1
kind: RenderConfig
metadata: {name: local}
`)},
		{Path: "a.yaml", Data: []byte(`apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: a}
  spec: {replicas: 9007199254740993}
- apiVersion: v1
  kind: Secret
  metadata: {name: local, annotations: {config.kubernetes.io/local-config: ""}}
`)},
		{Path: "c.json",
			Data: []byte(
				`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c", "annotations": {"config.kubernetes.io/local-config": "false"}}}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "manifest", `apiVersion: v1
data:
  number: "1"
  "yes": "yes"
kind: ConfigMap
metadata:
  name: b
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: a
spec:
  replicas: 9007199254740993
---
apiVersion: v1
kind: Service
metadata:
  annotations:
    config.kubernetes.io/local-config: "false"
  name: c
`, string(got))
	if got, err := hydrate.Manifest([]render.File{{Path: "a.yaml",
		Data: []byte("apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\n")}}); err != nil ||
		got != nil {
		t.Errorf("no objects: %q, %v", got, err)
	}
}
