package host_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
)

const agent = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: agent
  labels:
    kagenti.io/inject: enabled
spec:
  selector:
    matchLabels:
      app: agent
  template:
    metadata:
      labels:
        app: agent
    spec:
      containers:
      - name: agent
        image: example/agent:v1
`

const local = `apiVersion: v1
kind: ConfigMap
metadata:
  name: local
  annotations:
    config.kubernetes.io/local-config: "true"
`

func TestHelm(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: agent\n"
	const config = "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nmetadata:\n" +
		"  name: armature\nspec: {}\n"
	const exchange = "apiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\nmetadata:\n" +
		"  name: agent\nspec:\n  targetRef: {kind: Deployment, name: agent}\n"
	list := func(items ...string) string {
		text := "apiVersion: v1\nkind: List\nitems:\n"
		for _, item := range items {
			text += "- " + strings.TrimSuffix(strings.ReplaceAll(item, "\n", "\n  "), "  ")
		}
		return text
	}
	for name, c := range map[string]struct {
		stream string
		want   string // kinds and names in order
		err    string
	}{
		"order": {"---\n# Source: web/templates/service.yaml\n" + service +
			"---\n# Source: web/templates/agent.yaml\n" + agent,
			"Service/agent Deployment/agent ServiceAccount/agent ConfigMap/authbridge-config-agent",
			""},
		"local objects": {local + "---\n" + agent + "---\n" + config,
			"Deployment/agent ServiceAccount/agent ConfigMap/authbridge-config-agent", ""},
		"local items": {list(service, local), "Service/agent", ""},
		"local items in flow": {"{apiVersion: v1, kind: List, items: [{apiVersion: v1, " +
			"kind: Service, metadata: {name: agent}}, {apiVersion: v1, kind: ConfigMap, " +
			"metadata: {name: local, annotations: {config.kubernetes.io/local-config: 'true'}}}]}\n",
			"Service/agent", ""},
		"consumed": {"# Source: web/templates/cr.yaml\n" + exchange + "---\n" +
			agent, "Deployment/agent ServiceAccount/agent ConfigMap/authbridge-config-agent", ""},
		"nothing": {"", "", ""},
		"nothing but comments": {"---\n# Source: web/templates/off.yaml\n---\n" +
			"# HIDDEN: The Secret output has been suppressed\n", "", ""},
		"local objects alone": {local, "",
			"none of the release's objects (1) is for a cluster"},
		"a configuration and more": {config + "---\n" + local, "",
			"none of the release's objects (2) is for a cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			out, findings, err := host.Helm([]byte(c.stream), render.Options{})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || out != nil {
					t.Fatalf("%v, output %q; want an error that says %q and no output", err, out, c.err)
				}
				return
			}
			if err != nil || finding.Failed(findings) {
				t.Fatal(err, findings)
			}
			if strings.TrimSpace(string(out)) == "" {
				t.Error("the output is empty, which Helm 4 takes for a failure")
			}
			if strings.Contains(string(out), "armature.dev/consumed") {
				t.Errorf("a consumed custom resource is left as a comment:\n%s", out)
			}
			var got []string
			render.Objects(render.File{Path: "-", Data: out},
				func(o *krm.Object) { got = append(got, o.Kind+"/"+o.Name) })
			if strings.Join(got, " ") != c.want {
				t.Errorf("objects %v; want %s\n%s", got, c.want, out)
			}
		})
	}
}

// Findings name the template, by Helm 3's comment or Helm 4's annotation.
func TestHelmNamesTemplates(t *testing.T) {
	bad := strings.Replace(agent, "    kagenti.io/inject: enabled\n",
		"    kagenti.io/inject: enabled\n  annotations:\n    kagenti.io/target-port: nine\n", 1)
	annotated := func(text, template string) string {
		lead := "metadata:\n  annotations:\n    postrenderer.helm.sh/postrender-filename: '" +
			template + "'\n"
		if strings.Contains(text, "  annotations:\n") {
			return strings.Replace(text, "  annotations:\n",
				"  annotations:\n"+strings.TrimPrefix(lead, "metadata:\n  annotations:\n"), 1)
		}
		return strings.Replace(text, "metadata:\n", lead, 1)
	}
	service := "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n"
	for name, stream := range map[string]string{
		"Helm 3": "---\n# Source: web/templates/a.yaml\n" + service +
			"---\n# Source: web/templates/agent.yaml\n" + bad +
			"---\n# Source: web/templates/z.yaml\n" + strings.ReplaceAll(service, "web", "z"),
		"Helm 4": annotated(service, "web/templates/a.yaml") + "---\n" +
			annotated(bad, "web/templates/agent.yaml") + "---\n" +
			annotated(strings.ReplaceAll(service, "web", "z"), "web/templates/z.yaml"),
	} {
		out, findings, err := host.Helm([]byte(stream), render.Options{})
		if err != nil || out != nil || !finding.Failed(findings) {
			t.Fatalf(
				"%s: %v, output %q, findings %v; want an error among the findings and no output",
				name, err, out, findings)
		}
		for _, f := range findings {
			if f.Severity == finding.Error &&
				!strings.HasPrefix(f.String(), "web/templates/agent.yaml: Deployment agent") {
				t.Errorf("%s: %s", name, f)
			}
		}
	}
}

// What is kept keeps its bytes: a text's line feeds at its end, and an indentation.
func TestForClusterKeepsBytes(t *testing.T) {
	const text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: text\ndata:\n  text: |+\n" +
		"    a\n\n\n"
	const indented = "  apiVersion: v1\n  kind: Service\n  metadata:\n    name: indented\n"
	out, objects, err := host.ForCluster(render.File{Path: "all.yaml",
		Data: []byte(indented + "---\n" + local + "---\n" + text + "---\n" + local)})
	if want := indented + "---\n" + text; err != nil || objects != 2 || string(out) != want {
		t.Errorf("%v, %d objects, %q; want 2 and %q", err, objects, out, want)
	}
}
