package render_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/netpol"
	"github.com/armature-dev/armature/render"
)

// derivedIn returns the objects of a kind in the rendered part of a story.
func derivedIn[T any](t *testing.T, story, kind string) (all []T) {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", story+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.Files {
		if !strings.HasPrefix(f.Name, "want/") {
			continue
		}
		for _, doc := range strings.Split(string(f.Data), "\n---\n") {
			var head metav1.TypeMeta
			if yaml.Unmarshal([]byte(doc), &head) != nil || head.Kind != kind {
				continue
			}
			var one T
			if err := yaml.UnmarshalStrict([]byte(doc), &one); err != nil {
				t.Fatalf("%v\n%s", err, doc)
			}
			all = append(all, one)
		}
	}
	return all
}

// The derived NetworkPolicies let each agent reach its tools, its model and DNS, and nothing
// else, and let nobody else reach the tools.
func TestDerivedNetworkPolicies(t *testing.T) {
	policies := derivedIn[networkingv1.NetworkPolicy](t, "policies-enforce", "NetworkPolicy")
	if len(policies) != 3 {
		t.Fatalf("%d policies", len(policies))
	}
	pod := func(namespace string, set labels.Set) netpol.End {
		return netpol.End{Namespace: namespace, Labels: set}
	}
	agent := pod("team1", labels.Set{"app": "kagent", "kagent": "a", "app.kubernetes.io/name": "a"})
	other := pod("team1", labels.Set{"app": "kagent", "kagent": "b"})
	plain := pod("tools", labels.Set{"app": "plain"})
	weather, newer := pod("tools", labels.Set{"app": "weather", "version": "v1"}), pod("tools",
		labels.Set{"app": "weather", "version": "v2"})
	alike := pod("team2", labels.Set{"app": "weather"})
	dns := pod("kube-system", labels.Set{"k8s-app": "kube-dns"})
	controller := pod("kagent", labels.Set{"app": "kagent-controller"})
	for _, c := range []struct {
		name     string
		from, to netpol.End
		protocol corev1.Protocol
		port     int32
		want     bool
	}{
		{"its tool server", agent, weather, "TCP", 8000, true},
		{"a new version of it", agent, newer, "TCP", 8000, true},
		{"another port of it", agent, weather, "TCP", 8001, false},
		{"the port of its Service", agent, weather, "TCP", 80, false},
		{"another protocol", agent, weather, "UDP", 8000, false},
		{"the same labels in another namespace", agent, alike, "TCP", 8000, false},
		{"its model", agent, netpol.End{IP: "203.0.113.9"}, "TCP", 443, true},
		{"another address", agent, netpol.End{IP: "203.0.114.9"}, "TCP", 443, false},
		{"the metadata service", agent, netpol.End{IP: "169.254.169.254"}, "TCP", 80, false},
		{"DNS", agent, dns, "UDP", 53, true},
		{"DNS by TCP", agent, dns, "TCP", 53, true},
		{"other pods of kube-system", agent, pod("kube-system", labels.Set{"k8s-app": "x"}), "UDP",
			53, false},
		{"the controller", agent, controller, "TCP", 8083, true},
		{"the API of the controller's neighbour", agent, pod("kagent", nil), "TCP", 8083, false},
		{"another agent", agent, other, "TCP", 8080, false},
		// its ingress is not restricted
		{"the agent from anywhere", other, agent, "TCP", 8080, true},
		{"a tool server from an agent that is not bound", other, weather, "TCP", 8000, false},
		{"a tool server from the same labels elsewhere", pod("team2", agent.Labels), weather, "TCP",
			8000, false},
		{"a tool server from outside", netpol.End{IP: "198.51.100.1"}, weather, "TCP", 8000, false},
		{"a tool server from the plain agent", plain, weather, "TCP", 8000, true},
		{"what the plain agent calls", plain, netpol.End{IP: "10.1.2.3"}, "TCP", 9000, true},
		{"its neighbour", plain, netpol.End{IP: "10.1.2.4"}, "TCP", 9000, false},
		// nothing is known of it
		{"a tool server calls out", weather, netpol.End{IP: "198.51.100.1"}, "TCP", 443, true},
	} {
		if got, err := netpol.Allows(policies, c.from, c.to, c.protocol, c.port); err != nil ||
			got != c.want {
			t.Errorf("%s: %v (%v), want %v", c.name, got, err, c.want)
		}
	}
	for _, p := range policies {
		for _, port := range append(p.Spec.Ingress,
			networkingv1.NetworkPolicyIngressRule{})[0].Ports {
			if *port.Protocol != corev1.ProtocolTCP {
				t.Errorf("%s opens %s", p.Name, *port.Protocol)
			}
		}
	}
}

// An agent with skills, which are fetched by a configuration of their own, has its policies as
// well.
func TestPoliciesOfAgentWithSkills(t *testing.T) {
	const text = `apiVersion: kagent.dev/v1alpha2
kind: ModelConfig
metadata: {name: small, namespace: team1}
spec: {model: small, provider: Ollama, ollama: {host: "http://10.1.2.3:11434"}}
---
apiVersion: kagent.dev/v1alpha2
kind: RemoteMCPServer
metadata: {name: office, namespace: team1}
spec: {url: "http://10.1.2.4/mcp"}
---
apiVersion: kagent.dev/v1alpha2
kind: Agent
metadata: {name: assistant, namespace: team1}
spec:
  type: Declarative
  skills: {refs: ["10.1.2.5:5000/skills/booking:v1"]}
  declarative:
    modelConfig: small
    systemMessage: Book rooms.
    tools: [{type: McpServer, mcpServer: {kind: RemoteMCPServer, name: office}}]
`
	config := (&testCase{T: t}).config([]byte(`apiVersion: armature.dev/v1alpha1
kind: RenderConfig
metadata: {name: armature}
spec:
  policies:
    network: enforce
    addresses:
      kagent-controller.kagent: {namespace: kagent, pods: {app: kagent-controller}}
`))
	r, err := render.Run(
		render.Source{Files: []render.File{{Path: "app.yaml", Data: []byte(text)}}},
		render.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	var policies []networkingv1.NetworkPolicy
	for _, f := range r.Files {
		for _, doc := range strings.Split(string(f.Data), "\n---\n") {
			var p networkingv1.NetworkPolicy
			if yaml.Unmarshal([]byte(doc), &p) == nil && p.Kind == "NetworkPolicy" {
				policies = append(policies, p)
			}
		}
	}
	agent := netpol.End{Namespace: "team1",
		Labels: labels.Set{"app": "kagent", "kagent": "assistant"}}
	for ip, want := range map[string]bool{"10.1.2.4": true, "10.1.2.9": false} {
		if got, err := netpol.Allows(policies, agent, netpol.End{IP: ip}, corev1.ProtocolTCP,
			80); err != nil || got != want {
			t.Errorf("%s: %v (%v), want %v; findings: %v", ip, got, err, want, r.Findings)
		}
	}
}

// evaluate an expression of CEL with what gateways give.
func evaluate(t *testing.T, expression string, vars map[string]any) bool {
	t.Helper()
	env, err := cel.NewEnv(cel.Variable("mcp", cel.DynType), cel.Variable("request", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatalf("%s: %v", expression, issues.Err())
	}
	program, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := program.Eval(vars)
	return err == nil && out.Value() == true // an error denies
}

// The derived policies of gateways let the bound tools through and no others.
func TestDerivedToolPolicies(t *testing.T) {
	type agentgateway struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			TargetRefs []struct{ Group, Kind, Name string } `json:"targetRefs"`
			Backend    struct {
				MCP struct {
					Authorization struct {
						Action string `json:"action"`
						Policy struct {
							MatchExpressions []string `json:"matchExpressions"`
						} `json:"policy"`
					} `json:"authorization"`
				} `json:"mcp"`
			} `json:"backend"`
		} `json:"spec"`
	}
	found := derivedIn[agentgateway](t, "policies-tools", "AgentgatewayPolicy")
	if len(found) != 1 || found[0].Spec.TargetRefs[0].Name != "tools" ||
		found[0].Spec.Backend.MCP.Authorization.Action != "Allow" {
		t.Fatalf("%+v", found)
	}
	for _, c := range []struct {
		target, name string
		want         bool
	}{
		{"weather", "get_forecast", true},
		{"weather", "get_alerts", true},
		{"weather", "delete_all", false},
		{"news", "get_alerts", false},
		{"news", `"odd"`, true},
		{"other", "get_forecast", false},
		{"weather", "weather_get_forecast", false},
	} {
		got := false
		for _, e := range found[0].Spec.Backend.MCP.Authorization.Policy.MatchExpressions {
			got = got ||
				evaluate(t, e,
					map[string]any{
						"mcp": map[string]any{"tool": map[string]any{"target": c.target,
							"name": c.name}}, "request": map[string]any{}})
		}
		if got != c.want {
			t.Errorf("agentgateway: %s of %s: %v, want %v", c.name, c.target, got, c.want)
		}
	}
}
