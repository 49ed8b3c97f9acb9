package render_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/explain"
)

// runtimeAgent is an agent in the shape of those that are published: AgentRuntime,
// Deployment and Service in one file.
const runtimeAgent = `apiVersion: agent.rossoctl.dev/v1alpha1
kind: AgentRuntime
metadata:
  name: weather
  namespace: team1
spec:
  type: agent
  targetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: weather
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: weather
  namespace: team1
  labels:
    app.kubernetes.io/name: weather
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: weather
  template:
    metadata:
      labels:
        app.kubernetes.io/name: weather
    spec:
      containers:
        - name: agent
          image: example/weather:v1
          # CONTAINER
---
apiVersion: v1
kind: Service
metadata:
  name: weather
  namespace: team1
spec:
  selector:
    app.kubernetes.io/name: weather
  ports:
    - name: http
      port: 8080
      targetPort: 8000
`

func renderAuthBridge(t *testing.T, text string) ([]finding.Finding, string) {
	t.Helper()
	profile := sidecars.AuthBridge
	config := &api.RenderConfig{}
	config.Spec.Profile = &profile
	src := render.Source{Files: []render.File{{Path: "agent.yaml", Data: []byte(text)}}}
	result, err := render.Run(src, render.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if finding.Failed(result.Findings) {
		return result.Findings, ""
	}
	return result.Findings, string(result.Files[0].Data)
}

// TestAgentRuntimeRenders: what published agents say of their port renders. Where a
// finding refuses one, each of its remedies renders, taken at its word.
func TestAgentRuntimeRenders(t *testing.T) {
	const port = "          ports:\n            - name: http\n              containerPort: 8000\n"
	for name, c := range map[string]struct {
		container string
		refused   string // the word of the command line
	}{
		"declared": {port, ""},
		"PORT of the port": {port +
			"          env:\n            - name: HOST\n              value: 0.0.0.0\n" +
			"            - name: PORT\n              value: \"8000\"\n", ""},
		"PORT, undeclared": {
			"          env:\n            - name: PORT\n              value: \"8000\"\n", ""},
		"PORT of another one": {port +
			"          env:\n            - name: PORT\n              value: \"9095\"\n", ""},
		"PORT of a ConfigMap": {port +
			"          env:\n            - name: PORT\n              valueFrom:\n" +
			"                configMapKeyRef:\n                  name: environments\n" +
			"                  key: PORT\n", ""},
		"probes": {port +
			"          env: [{name: PORT, value: \"8000\"}]\n          readinessProbe:\n" +
			"            httpGet:\n              path: /.well-known/agent-card.json\n" +
			"              port: http\n          livenessProbe:\n            tcpSocket:\n" +
			"              port: 8000\n", ""},
		"another's port": {port +
			"          args: [\"--upstream\", \"http://tool.team1.svc:8000\", " +
			"\"--workers=80000\"]\n", ""},
		"argument": {port + "          args:\n            - \"-listen=:8000\"\n",
			"-listen=:8000"},
		"argument and PORT": {port +
			"          args: [--port, \"8000\"]\n          env:\n            - name: PORT\n" +
			"              value: \"8000\"\n", `"8000"]`},
		"address": {port + "          command: [agent, http://0.0.0.0:8000]\n",
			"http://0.0.0.0:8000"},
		"script": {port +
			"          command: [sh, -c, \"migrate && exec uvicorn app:app --port 8000 --host " +
			"0.0.0.0\"]\n", "--port 8000"},
	} {
		t.Run(name, func(t *testing.T) {
			manifest := strings.Replace(runtimeAgent, "          # CONTAINER\n", c.container, 1)
			findings, text := renderAuthBridge(t, manifest)
			if c.refused == "" {
				if finding.Failed(findings) || !strings.Contains(text, "name: authbridge-proxy") {
					t.Fatal(findings)
				}
				return
			}
			var hint string
			for _, f := range findings {
				if f.Severity == finding.Error {
					hint += f.Hint
				}
			}
			write := regexp.MustCompile(`write (\S+) in place of (\d+)`).FindStringSubmatch(hint)
			annotate := regexp.MustCompile(`annotate (\S+: "\d+")`).FindAllStringSubmatch(hint, -1)
			if write == nil || len(annotate) != 1 {
				t.Fatalf("one change each, of the command line and of the annotations, in %q", hint)
			}
			moved := strings.Replace(manifest, c.refused,
				strings.Replace(c.refused, write[2], write[1], 1), 1)
			if findings, text = renderAuthBridge(t, moved); finding.Failed(findings) ||
				!strings.Contains(text, "value: \"8001\"") {
				t.Errorf("with $(PORT): %v", findings)
			}
			left := strings.Replace(manifest, "  name: weather\n  namespace: team1\n  labels:\n",
				"  name: weather\n  namespace: team1\n  annotations:\n    "+annotate[0][1]+
					"\n  labels:\n", 1)
			if findings, text = renderAuthBridge(t, left); finding.Failed(findings) ||
				!strings.Contains(text, `reverse_proxy_addr: ":8001"`) ||
				!strings.Contains(text, `reverse_proxy_backend: "http://127.0.0.1:8000"`) {
				t.Errorf("with %s: %v", annotate[0][1], findings)
			}
		})
	}
}

// TestExplainOverwritten checks that explain names what overwrites an author's PORT, and what sets
// a workload's ServiceAccount.
func TestExplainOverwritten(t *testing.T) {
	profile := sidecars.AuthBridge
	config := &api.RenderConfig{}
	config.Spec.Profile = &profile
	manifest := strings.Replace(runtimeAgent, "          # CONTAINER\n",
		"          env:\n            - name: PORT\n              value: \"8000\"\n", 1)
	src := render.Source{Files: []render.File{{Path: "agent.yaml", Data: []byte(manifest)}}}
	result, _, err := explain.File(src, render.Options{Config: config}, "agent.yaml", explain.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	reasons := make(map[string]string)
	for _, l := range result.Lines {
		for _, because := range l.Because {
			reasons[strings.TrimSpace(l.Text)] += fmt.Sprint(l.Function, " ", because.Setting, "; ")
		}
	}
	for line, want := range map[string]string{
		`value: "8001"`: "inject inbound.targetPort",
		// without which nothing has a SPIFFE ID
		"serviceAccountName: weather": "inject components.authbridge-proxy.enabled",
		"kind: ServiceAccount":        "inject components.authbridge-proxy.enabled",
	} {
		if !strings.Contains(reasons[line], want) {
			t.Errorf("%s: %q; want %s", line, reasons[line], want)
		}
	}
}
