package render_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render"
)

// The kubelet has no token: the paths of its probes are open. A gRPC probe asks
// the standard health service. The root may be where an agent takes its
// requests, so it stays closed, with a warning; a probe without a path asks it.
func TestProbes(t *testing.T) {
	const agent = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: agent
  labels:
    kagenti.io/inject: enabled
spec:
  template:
    spec:
      containers:
      - name: agent
        image: registry.example.com/agent:1
        livenessProbe:
          grpc: {port: 8000}
        readinessProbe:
          httpGet: {path: /ready, port: 8000}
        startupProbe:
          httpGet: {port: 8000}
`
	r, err := render.Run(render.Source{Files: []render.File{{Path: "agent.yaml", Data: []byte(agent)}}}, render.Options{})
	if err != nil || len(r.Files) != 1 {
		t.Fatal(err, r.Findings)
	}
	line := ""
	for l := range strings.Lines(string(r.Files[0].Data)) {
		if strings.Contains(l, "BYPASS_INBOUND_PATHS") {
			line = strings.TrimSpace(l)
		}
	}
	if want := `,/grpc.health.v1.Health/Check,/ready"`; !strings.HasSuffix(line, want) {
		t.Errorf("the open paths are %s, want them to end in %s", line, want)
	}
	if len(r.Findings) != 2 || r.Findings[0].Rule != "identity/probe-refused" || !strings.Contains(r.Findings[0].Message, `"/"`) {
		t.Errorf("findings are %v, want a warning about the probe of /", r.Findings)
	}
}
