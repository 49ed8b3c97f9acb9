package explain_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/explain"
)

// kagenti is the configuration of the profile of source 001.
var kagenti = &api.RenderConfig{Spec: api.RenderConfigSpec{Profile: new(sidecars.Kagenti),
	Trace: &api.TraceSpec{}}}

// explanationOf explains a file of an archive.
func explanationOf(t *testing.T, archive, file string,
	pick explain.Selection) (explain.Explanation, error) {
	t.Helper()
	a := txtar.Parse([]byte(archive))
	opt := render.Options{Config: kagenti}
	var src render.Source
	for _, f := range a.Files {
		if f.Name == render.ConfigFile {
			var findings []finding.Finding
			if opt.Config, findings = render.ReadConfig(f.Data, f.Name); len(findings) > 0 {
				t.Fatal(findings)
			}
			continue
		}
		src.Files = append(src.Files, render.File{Path: f.Name, Data: f.Data})
	}
	e, findings, err := explain.File(src, opt, file, pick)
	if finding.Failed(findings) {
		t.Fatal(findings)
	}
	return e, err
}

const explainable = `-- armature.yaml --
apiVersion: armature.dev/v1alpha1
kind: RenderConfig
spec:
  components:
    envoy-proxy:
      image: "registry.example/envoy:v1"
  identity:
    clientRegistration: {keycloak: {realm: prod}}
  profile: kagenti
-- exchange.yaml --
apiVersion: kagenti.io/v1alpha1
kind: TokenExchange
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  outbound:
    trafficInterception:
      proxyPort: 15999
-- web.yaml --
# The web.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {kagenti.io/inject: enabled}
  annotations:
    kagenti.io/auth-proxy-cpu-limit: "1"
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: "example.com/web:v1"
`

// TestExplain: each kind of input is named with its place.
func TestExplain(t *testing.T) {
	const containers = "spec.template.spec.initContainers"
	for _, test := range []struct{ field, object, line, reason string }{
		{"metadata.name", "", "name: web", "author:5"},
		{"spec.template.spec.containers[web].image", "", `image: "example.com/web:v1"`,
			"author:16"},
		{containers + "[envoy-proxy].image", "", `image: "registry.example/envoy:v1"`,
			"inject: components.envoy-proxy.image (armature.yaml:6)"},
		{containers + "[envoy-proxy].ports[envoy-outbound].containerPort", "",
			"containerPort: 15999",
			"inject: outbound.trafficInterception.proxyPort (exchange.yaml:8)"},
		{containers + "[envoy-proxy].ports[envoy-inbound].containerPort", "",
			"containerPort: 15124",
			"inject: outbound.trafficInterception.inboundProxyPort (default)"},
		{containers + "[auth-proxy].resources.limits.cpu", "", `cpu: "1"`,
			"inject: components.auth-proxy.resources.limits.cpu (web.yaml:8)"},
		{containers + "[proxy-init].resources.limits", "", "limits:",
			"inject: there by components.envoy-proxy.enabled (default), " +
				"components.proxy-init.enabled (default)"},
		{"data.KEYCLOAK_REALM", "", `KEYCLOAK_REALM: "prod"`,
			"token-exchange: clientRegistration.keycloak.realm (armature.yaml:8)"},
		{"data[envoy.yaml]", "", "socket_address: {address: 127.0.0.1, port_value: 15999}",
			"token-exchange: outbound.trafficInterception.proxyPort (exchange.yaml:8)"},
		{"data[helper.conf]", "ConfigMap/web-token-exchange", "daemon_mode = true",
			"token-exchange: always in what is generated for Deployment/web"},
	} {
		t.Run(test.field, func(t *testing.T) {
			e, err := explanationOf(t, explainable, "web.yaml",
				explain.Selection{Field: test.field, Object: test.object})
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, l := range e.Lines {
				text := strings.TrimPrefix(strings.TrimSpace(l.Text), "- ")
				if text == test.line {
					if got := l.Reason(); got != test.reason {
						t.Errorf("because of %q, want %q", got, test.reason)
					}
					return
				}
				lines = append(lines, text)
			}
			t.Errorf("no line %q among %q", test.line, lines)
		})
	}
}

// TestExplainLists: what is there because of the items of a list names the list, and what
// has their value, also beside a workload for which the list is empty.
func TestExplainLists(t *testing.T) {
	archive := strings.Replace(explainable, "  outbound:\n",
		"  inbound: {validation: {enabled: true, requiredScopes: [weather.read]}}\n  outbound:\n", 1)
	_, web, _ := strings.Cut(archive, "-- web.yaml --\n")
	archive += "---\n" + strings.ReplaceAll(web, "web", "other") // whose list is empty
	e, err := explanationOf(t, archive, "web.yaml", explain.Selection{Field: "data[envoy.yaml]"})
	if err != nil {
		t.Fatal(err)
	}
	for text, reason := range map[string]string{
		"- name: envoy.filters.http.jwt_authn": "token-exchange: there by " +
			"inbound.validation.enabled (exchange.yaml:6), inbound.validation.requiredScopes " +
			"(exchange.yaml:6)",
		"- name: envoy.filters.http.rbac": "token-exchange: there by " +
			"inbound.validation.enabled (exchange.yaml:6), inbound.validation.requiredScopes " +
			"(exchange.yaml:6)",
		`regex: "(.* )?weather\\.read( .*)?"`: "token-exchange: " +
			"inbound.validation.requiredScopes (exchange.yaml:6)",
	} {
		i := slices.IndexFunc(e.Lines, func(l explain.Line) bool {
			return strings.TrimSpace(l.Text) == text
		})
		if i < 0 {
			t.Errorf("no line %s", text)
		} else if got := e.Lines[i].Reason(); got != reason {
			t.Errorf("%s because of %q, want %q", text, got, reason)
		}
	}
}

// TestExplainResources: what no setting decides is explained by the custom
// resource without which it would differ.
func TestExplainResources(t *testing.T) {
	archive := `-- class.yaml --
apiVersion: overcommit.inditex.dev/v1alphav1
kind: Overcommit
metadata: {name: cluster}
spec: {overcommitLabel: class}
---
apiVersion: overcommit.inditex.dev/v1alphav1
kind: OvercommitClass
metadata: {name: half}
spec: {cpuOvercommit: 0.5, memoryOvercommit: 1, isDefault: true}
-- web.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: first}
data: {}
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: Agent
metadata: {name: web}
spec:
  imageSource: {image: "web:v1"}
  podTemplateSpec:
    spec:
      containers:
      - name: agent
        resources:
          requests: {cpu: 7m}
          limits: {cpu: "1"}
`
	for field, want := range map[string]string{
		"spec.template.spec.containers[agent].resources.requests.cpu": "overcommit: Overcommit " +
			"cluster (class.yaml:1), OvercommitClass half (class.yaml:6), Agent web " +
			"spec.podTemplateSpec.spec.containers[0].resources.limits.cpu (web.yaml:17)",
		"spec.template.spec.containers[agent].image": "agent: Agent web " +
			"spec.imageSource.image (web.yaml:10)",
	} {
		e, err := explanationOf(t, archive, "web.yaml",
			explain.Selection{Object: "Deployment/web", Field: field})
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Lines[0].Reason(); got != want {
			t.Errorf("%s: %q, want %q", e.Lines[0].Text, got, want)
		}
	}
}

// TestExplainFlavors: what an actor has from a flavor leads there.
func TestExplainFlavors(t *testing.T) {
	const archive = `-- armature.yaml --
apiVersion: armature.dev/v1alpha1
kind: RenderConfig
spec:
  asya:
    generation: next
    transports:
      rabbitmq: {enabled: true, type: rabbitmq, config: {host: rabbitmq.default.svc}}
-- flavor.yaml --
apiVersion: apiextensions.crossplane.io/v1beta1
kind: EnvironmentConfig
metadata: {name: few}
data:
  scaling: {maxReplicaCount: 5}
-- actor.yaml --
apiVersion: asya.sh/v1alpha1
kind: AsyncActor
metadata: {name: small, namespace: prod}
spec:
  flavors: [few]
  image: example/small:v1
  handler: a.b
`
	e, err := explanationOf(t, archive, "actor.yaml", explain.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"maxReplicaCount: 5": "async-actor: EnvironmentConfig few " +
			"data.scaling.maxReplicaCount (flavor.yaml:5)",
		"image: example/small:v1": "async-actor: AsyncActor small spec.image (actor.yaml:6)",
		"pollingInterval: 30": "async-actor: AsyncActor small " +
			"spec.scaling.pollingInterval (default)",
	} {
		i := slices.IndexFunc(e.Lines, func(l explain.Line) bool {
			return strings.TrimSpace(l.Text) == field
		})
		if i < 0 {
			t.Errorf("no line is %s", field)
		} else if got := e.Lines[i].Reason(); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}

// TestExplainFields: what a resource expands to leads to the author's field, to a
// field of the configuration, or to the field that the author left out.
func TestExplainFields(t *testing.T) {
	const archive = `-- armature.yaml --
apiVersion: armature.dev/v1alpha1
kind: RenderConfig
spec:
  asya:
    transports:
      rabbitmq:
        enabled: true
        type: rabbitmq
        config: {host: rabbitmq.default.svc, passwordSecretRef: {name: mq, key: password}}
-- actor.yaml --
apiVersion: asya.sh/v1alpha1
kind: AsyncActor
metadata:
  name: model
  namespace: prod
  labels:
    team: ml
spec:
  transport: rabbitmq
  scaling:
    enabled: true
    maxReplicas: 5
  workload:
    template:
      spec:
        containers:
        - name: asya-runtime
          image: example/model:v1
-- agent.yaml --
apiVersion: agent.kagenti.dev/v1alpha1
kind: Agent
metadata: {name: web, namespace: prod}
spec:
  imageSource: {image: "web:v1"}
  servicePorts:
  - name: http
    port: 8080
  podTemplateSpec:
    spec:
      containers:
      - name: agent
-- kagent.yaml --
apiVersion: kagent.dev/v1alpha2
kind: ModelConfig
metadata: {name: fast, namespace: prod}
spec:
  provider: OpenAI
  model: gpt-4.1-mini
  apiKeySecret: keys
  apiKeySecretKey: OPENAI
---
apiVersion: kagent.dev/v1alpha2
kind: Agent
metadata: {name: helper, namespace: prod}
spec:
  type: Declarative
  declarative:
    modelConfig: fast
    systemMessage: Help.
    deployment:
      replicas: 3
`
	explained := make(map[string]explain.Explanation)
	for _, test := range []struct{ file, object, field, reason string }{
		{"actor.yaml", "ScaledObject/model", "spec.maxReplicaCount",
			"async-actor: AsyncActor model spec.scaling.maxReplicas (actor.yaml:12)"},
		{"actor.yaml", "ScaledObject/model", "spec.pollingInterval",
			"async-actor: AsyncActor model spec.scaling.pollingInterval (default)"},
		{"actor.yaml", "ScaledObject/model", "spec.minReplicaCount",
			"async-actor: AsyncActor model spec.scaling.minReplicas (default)"},
		{"actor.yaml", "Deployment/model", "metadata.labels.team",
			"async-actor: AsyncActor model metadata.labels.team (actor.yaml:7)"},
		{"actor.yaml", "Deployment/model", "spec.template.spec.containers[asya-runtime].image",
			"async-actor: AsyncActor model spec.workload.template.spec.containers[0].image " +
				"(actor.yaml:18)"},
		{"actor.yaml", "Deployment/model", "spec.template.spec.containers[asya-sidecar].image",
			"async-actor: AsyncActor model spec.sidecar.image (default), " +
				"spec.asya.sidecarImage (default)"},
		{"actor.yaml", "Deployment/model",
			"spec.template.spec.containers[asya-sidecar].env[ASYA_RABBITMQ_HOST].value",
			"async-actor: spec.asya.transports.rabbitmq.config.host (armature.yaml:9)"},
		{"agent.yaml", "Deployment/web", "spec.template.spec.containers[agent].image",
			"agent: Agent web spec.imageSource.image (agent.yaml:5)"},
		{"agent.yaml", "Service/web-svc", "spec.ports[http].port",
			"agent: Agent web spec.servicePorts[0].port (agent.yaml:8)"},
		{"kagent.yaml", "Deployment/helper", "spec.replicas",
			"kagent-agent: Agent helper spec.declarative.deployment.replicas (kagent.yaml:19)"},
	} {
		e, known := explained[test.file]
		if !known {
			var err error
			if e, err = explanationOf(t, archive, test.file, explain.Selection{}); err != nil {
				t.Fatal(err)
			}
			explained[test.file] = e
		}
		i := slices.IndexFunc(e.Lines, func(l explain.Line) bool {
			return l.Object.Kind+"/"+l.Object.Name == test.object && l.Field == test.field
		})
		if i < 0 {
			t.Errorf("%s has no line %s", test.object, test.field)
		} else if got := e.Lines[i].Reason(); got != test.reason {
			t.Errorf("%s: %q, want %q", e.Lines[i].Text, got, test.reason)
		}
	}
}

// TestExplainIsWhatRenderGives: the lines are those of the render, whichever
// form the author's file has: rendered before, of one object only, a stream.
func TestExplainIsWhatRenderGives(t *testing.T) {
	a := txtar.Parse([]byte(explainable))
	src := render.Source{}
	for _, f := range a.Files[1:] {
		src.Files = append(src.Files, render.File{Path: f.Name, Data: f.Data})
	}
	r, err := render.Run(src, render.Options{Config: kagenti})
	if err != nil || finding.Failed(r.Findings) {
		t.Fatal(err, r.Findings)
	}
	for _, from := range []render.Source{src, {Files: r.Files}} {
		e, _, err := explain.File(from, render.Options{Config: kagenti}, "web.yaml", explain.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, l := range e.Lines {
			text.WriteString(l.Text + "\n")
			if l.Field == "spec.template.spec.containers[web].image" &&
				(l.Function != explain.Author || l.Source == 0) {
				t.Errorf("the author's image is explained by %s", l.Reason())
			}
			if strings.HasPrefix(l.Field, "spec.template.spec.initContainers") && l.Function != "inject" {
				t.Errorf("%s is explained by %s", l.Field, l.Reason())
			}
		}
		if text.String() != string(r.Files[1].Data) {
			t.Errorf("not what a render gives:\n%s", text.String())
		}
	}
}

// TestExplainFlow: a line in flow style is there as it is in the file, followed by the values that
// functions set, and every line says why it is there.
func TestExplainFlow(t *testing.T) {
	const pod = "-- web.yaml --\napiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: " +
		"{kagenti.io/inject: enabled}}\nspec:\n" +
		"  containers: [{name: web, image: \"example.com/web:v1\", command: [\"run\", " +
		"\"--port\", \"80\"]}]\n"
	e, err := explanationOf(t, pod, "web.yaml", explain.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	lines := make(map[int][]explain.Line)
	for _, l := range e.Lines {
		lines[l.Line] = append(lines[l.Line], l)
		if l.Function != explain.Author && l.Reason() == l.Function {
			t.Errorf("line %d, %s: no reason", l.Line, l.Text)
		}
	}
	for number, of := range lines {
		switch first := of[0]; {
		case strings.HasPrefix(first.Text, "  containers: [{name: web"):
			if first.Function != explain.Author || first.Source != 5 || len(of) < 2 {
				t.Errorf("the line of the containers: %+v", of)
			}
		case strings.HasPrefix(first.Text, "metadata: {name: web") && first.Source != 3:
			t.Errorf("the line of the metadata: %+v", of)
		}
		for _, l := range of[1:] {
			if l.Function == explain.Author || !strings.HasPrefix(l.Text, l.Field+": ") {
				t.Errorf("line %d has a row of %+v", number, l)
			}
		}
	}
}

// TestExplainNothing: what is not there is an error that says what is.
func TestExplainNothing(t *testing.T) {
	_, err := explanationOf(t, explainable, "nothing.yaml", explain.Selection{})
	if !errors.Is(err, explain.ErrNotInPackage) {
		t.Errorf("for a file that is not there: %v", err)
	}
	_, err = explanationOf(t, explainable, "web.yaml",
		explain.Selection{Field: "spec.template.spec.containers[wbe]"})
	if err == nil || !strings.Contains(err.Error(), "there is spec.template.spec.containers[web]") {
		t.Errorf("for a field that is not there: %v", err)
	}
	_, err = explanationOf(t, explainable, "web.yaml", explain.Selection{Object: "Service/web"})
	if err == nil || !strings.Contains(err.Error(), "no object Service/web") {
		t.Errorf("for an object that is not there: %v", err)
	}
}

// BenchmarkExplain explains one file of a package of 1,000 workloads.
func BenchmarkExplain(b *testing.B) {
	var files []render.File
	err := workload.Each(1000, func(file string, data []byte) {
		files = append(files, render.File{Path: file, Data: data})
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		e, _, err := explain.File(render.Source{Files: files}, render.Options{Config: kagenti},
			files[500].Path, explain.Selection{})
		if err != nil || len(e.Lines) < 100 {
			b.Fatal(len(e.Lines), err)
		}
	}
}

// workloads is a file of n workloads that opt in.
func workloads(n int) (text []byte) {
	for i := range n {
		text = fmt.Appendf(text,
			"---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web%d\n"+
				"  labels: {kagenti.io/inject: enabled}\nspec:\n  selector: {matchLabels: {app: "+
				"web%[1]d}}\n  template:\n    metadata: {labels: {app: web%[1]d}}\n    spec:\n"+
				"      containers:\n      - name: web\n        image: \"example.com/web:v1\"\n", i)
	}
	return text
}

// TestExplainWork: the work for a file grows as the file does, and that for one object is
// not that for the others.
func TestExplainWork(t *testing.T) {
	work := func(n int, pick explain.Selection) float64 {
		src := render.Source{Files: []render.File{{Path: "a.yaml", Data: workloads(n)}}}
		return testing.AllocsPerRun(1, func() {
			if e, findings, err := explain.File(src, render.Options{Config: kagenti}, "a.yaml",
				pick); err != nil || len(e.Lines) < 100 {
				t.Fatal(err, findings)
			}
		})
	}
	one, few, many := work(1, explain.Selection{}), work(5, explain.Selection{}), work(20,
		explain.Selection{})
	if many > 5*few {
		t.Errorf("%.0f allocations for 5 workloads, %.0f for 20", few, many)
	}
	for _, object := range []string{"Deployment/web7", "ConfigMap/web7-token-exchange"} {
		if got := work(50, explain.Selection{Object: object}); got > 3*one {
			t.Errorf("%.0f allocations for one workload, %.0f for %s of 50", one, got, object)
		}
	}
}

func BenchmarkExplainFile(b *testing.B) {
	for _, n := range []int{10, 100, 200} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			src := render.Source{Files: []render.File{{Path: "a.yaml", Data: workloads(n)}}}
			for b.Loop() {
				if _, _, err := explain.File(src, render.Options{Config: kagenti}, "a.yaml",
					explain.Selection{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkExplainObject(b *testing.B) {
	for _, n := range []int{10, 2000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			src := render.Source{Files: []render.File{{Path: "a.yaml", Data: workloads(n)}}}
			for b.Loop() {
				if _, _, err := explain.File(src, render.Options{Config: kagenti}, "a.yaml",
					explain.Selection{Object: "Deployment/web7"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
