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
	r, err := render.Run(
		render.Source{Files: []render.File{{Path: "agent.yaml", Data: []byte(agent)}}},
		render.Options{Config: config(t, `{profile: kagenti, trace: {enabled: true}}`)})
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
	if len(r.Findings) != 3 || r.Findings[0].Rule != "identity/probe-refused" ||
		!strings.Contains(r.Findings[0].Message, `"/"`) {
		t.Errorf("findings are %v, want a warning about the probe of /", r.Findings)
	}
}

// The kubelet has no token for lifecycle hooks either. Their paths change something, so that
// they are not opened by themselves: a hook that the proxy would refuse is a finding.
func TestLifecycleHooks(t *testing.T) {
	const agent = `apiVersion: v1
kind: Pod
metadata:
  name: agent
  labels: {kagenti.io/inject: enabled}
  annotations: {ANNOTATIONS}
spec:
  serviceAccountName: agent
  containers:
  - name: agent
    image: registry.example.com/agent:1
    ports: [{name: http, containerPort: 8000}, {name: admin, containerPort: 8500}]
    lifecycle:
      HOOK
`
	const refused = "inject/hook-refused spec.containers[0].lifecycle."
	for _, test := range []struct{ name, profile, annotations, hook, want string }{
		{"by number", "authbridge", "", "postStart: {httpGet: {path: /warmup, port: 8000}}",
			"error " + refused + "postStart.httpGet"},
		{"by name", "authbridge", "", "preStop: {httpGet: {path: /drain, port: http}}",
			"warning " + refused + "preStop.httpGet"},
		{"without a path", "authbridge", "", "preStop: {httpGet: {port: http}}",
			"warning " + refused + "preStop.httpGet"},
		{"Envoy takes every port", "authbridge", "kagenti.io/authbridge-mode: envoy-sidecar",
			"preStop: {httpGet: {path: /drain, port: admin}}",
			"warning " + refused + "preStop.httpGet"},
		{"Kagenti's Envoy", "kagenti", "kagenti.io/target-port: '8000'",
			"preStop: {httpGet: {path: /drain, port: http}}",
			"warning " + refused + "preStop.httpGet"},
		{"another port", "authbridge", "", "preStop: {httpGet: {path: /drain, port: admin}}", ""},
		{"another host", "authbridge", "",
			"preStop: {httpGet: {path: /drain, port: 8000, host: other.example}}", ""},
		{"open path", "authbridge", "kagenti.io/inbound-bypass-paths: /dr*",
			"preStop: {httpGet: {path: /drain, port: http}}", ""},
		{"a program", "authbridge", "", "preStop: {exec: {command: [drain]}}", ""},
		{"nothing is checked", "authbridge", "kagenti.io/authbridge-proxy: disabled",
			"preStop: {httpGet: {path: /drain, port: http}}", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			config, findings := render.ReadConfig(
				[]byte("apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nspec: {profile: "+
					test.profile+"}\n"), "armature.yaml")
			if len(findings) > 0 {
				t.Fatal(findings)
			}
			text := strings.NewReplacer("ANNOTATIONS", test.annotations, "HOOK", test.hook).Replace(agent)
			r, err := render.Run(
				render.Source{Files: []render.File{{Path: "agent.yaml", Data: []byte(text)}}},
				render.Options{Config: config})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, f := range r.Findings {
				if f.Rule == "inject/hook-refused" {
					got += string(f.Severity) + " " + f.Rule + " " + f.Field
				} else if f.Severity == "error" {
					t.Error(f)
				}
			}
			if got != test.want {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}
