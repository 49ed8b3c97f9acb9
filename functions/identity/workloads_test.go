package identity

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
)

// TestProbedPorts: a probe's port is a number, or the name of a port of its own
// container.
func TestProbedPorts(t *testing.T) {
	const text = `apiVersion: v1
kind: Pod
metadata: {name: weather}
spec:
  containers:
  - name: agent
    ports: [{name: http, containerPort: 8000}]
    livenessProbe: {httpGet: {path: /named/, port: http}}
    readinessProbe: {httpGet: {port: 8000}}
    startupProbe: {grpc: {port: 9000}}
  - name: helper
    ports: [{name: http, containerPort: 9000}]
    livenessProbe: {httpGet: {path: /admin, port: http}}
    readinessProbe: {httpGet: {path: /text, port: "8000"}}
    startupProbe: {httpGet: {path: /undeclared, port: metrics}}
`
	var o krm.Object
	if _, err := o.Read([]byte(text), krm.Document{End: len(text)}, false, krm.Origin{}); err != nil {
		t.Fatal(err)
	}
	pod, ok := o.PodTemplate()
	if !ok {
		t.Fatal("the Pod has no pod template")
	}
	want := []Probe{{"/named/", 8000}, {"/", 8000}, {grpcHealth, 9000}, {"/admin", 9000},
		{"/text", 8000}, {"/undeclared", -1}}
	if diff := cmp.Diff(want, appendProbes(nil, pod)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestShapesAreBounded: workloads that all differ, or declare a lot, do not fill the memory.
func TestShapesAreBounded(t *testing.T) {
	const text = `apiVersion: apps/v1
kind: Deployment
metadata: {name: weather}
spec:
  template:
    metadata: {labels: {kagenti.io/inject: enabled}}
    spec:
      containers:
      - name: agent
        livenessProbe: {httpGet: {path: /%s, port: %d}}
`
	profiles := NewProfiles(Profile{Prefix: "kagenti.io"})
	w, findings := NewWorkloads(profiles, nil, index.NewBuilder(1).Index())
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	identify := func(path string, port int) {
		text := fmt.Sprintf(text, path, port)
		var o krm.Object
		if _, err := o.Read([]byte(text), krm.Document{End: len(text)}, false, krm.Origin{}); err != nil {
			t.Fatal(err)
		}
		pod, _ := o.PodTemplate()
		var e Effective
		if found := w.Identify(&e, &o, pod, nil, nil); len(found) > 0 || !e.Injected {
			t.Fatal(found, e.Injected)
		}
	}
	identify(strings.Repeat("a", maxShapeKey), 1)
	if n := len(w.shapes.known); n > 0 {
		t.Errorf("a path of %d bytes is kept", maxShapeKey)
	}
	for port := range 3 * maxShapes {
		identify("healthz", port)
	}
	if n := len(w.shapes.known); n != maxShapes {
		t.Errorf("%d shapes are kept, not %d", n, maxShapes)
	}
}
