package identity

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
