package render_test

import (
	"net/netip"
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
)

// derivedIn gives the objects of a kind in the rendered part of a story.
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

// end of a connection: a pod, or an address outside the cluster.
type end struct {
	namespace string
	labels    labels.Set
	ip        string
}

func selected(t *testing.T, s *metav1.LabelSelector, set labels.Set) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(set)
}

// matches reports whether a peer of a policy in a namespace is an end.
func matches(t *testing.T, p networkingv1.NetworkPolicyPeer, namespace string, e end) bool {
	t.Helper()
	if p.IPBlock != nil {
		return e.ip != "" && netip.MustParsePrefix(p.IPBlock.CIDR).Contains(netip.MustParseAddr(e.ip))
	}
	if e.ip != "" {
		return false
	}
	inNamespace := e.namespace == namespace
	if p.NamespaceSelector != nil {
		inNamespace = selected(t, p.NamespaceSelector, labels.Set{"kubernetes.io/metadata.name": e.namespace})
	}
	return inNamespace && (p.PodSelector == nil || selected(t, p.PodSelector, e.labels))
}

func opens(ports []networkingv1.NetworkPolicyPort, protocol string, port int32) bool {
	for _, p := range ports {
		if string(*p.Protocol) == protocol && p.Port.IntVal == port {
			return true
		}
	}
	return len(ports) == 0
}

// allows reports whether policies let a connection through, as Kubernetes documents it: a pod
// that no policy selects for a direction is open in that direction, and rules add up.
func allows(t *testing.T, policies []networkingv1.NetworkPolicy, from, to end, protocol string, port int32) bool {
	t.Helper()
	direction := func(kind networkingv1.PolicyType, own, other end) bool {
		isolated, allowed := false, false
		for _, p := range policies {
			if own.ip != "" || p.Namespace != own.namespace || !selected(t, &p.Spec.PodSelector, own.labels) || p.Spec.PolicyTypes[0] != kind {
				continue
			}
			isolated = true
			for _, r := range p.Spec.Egress {
				for _, peer := range r.To {
					allowed = allowed || matches(t, peer, p.Namespace, other) && opens(r.Ports, protocol, port)
				}
			}
			for _, r := range p.Spec.Ingress {
				for _, peer := range r.From {
					allowed = allowed || matches(t, peer, p.Namespace, other) && opens(r.Ports, protocol, port)
				}
			}
		}
		return !isolated || allowed
	}
	return direction(networkingv1.PolicyTypeEgress, from, to) && direction(networkingv1.PolicyTypeIngress, to, from)
}

// The derived NetworkPolicies let each agent reach its tools, its model and DNS, and nothing
// else, and let nobody else reach the tools.
func TestDerivedNetworkPolicies(t *testing.T) {
	policies := derivedIn[networkingv1.NetworkPolicy](t, "policies-enforce", "NetworkPolicy")
	if len(policies) != 3 {
		t.Fatalf("%d policies", len(policies))
	}
	pod := func(namespace string, set labels.Set) end { return end{namespace: namespace, labels: set} }
	agent := pod("team1", labels.Set{"app": "kagent", "kagent": "a", "app.kubernetes.io/name": "a"})
	other := pod("team1", labels.Set{"app": "kagent", "kagent": "b"})
	plain := pod("tools", labels.Set{"app": "plain"})
	weather, newer := pod("tools", labels.Set{"app": "weather", "version": "v1"}), pod("tools", labels.Set{"app": "weather", "version": "v2"})
	alike := pod("team2", labels.Set{"app": "weather"})
	dns := pod("kube-system", labels.Set{"k8s-app": "kube-dns"})
	controller := pod("kagent", labels.Set{"app": "kagent-controller"})
	for _, c := range []struct {
		name     string
		from, to end
		protocol string
		port     int32
		want     bool
	}{
		{"its tool server", agent, weather, "TCP", 8000, true},
		{"a new version of it", agent, newer, "TCP", 8000, true},
		{"another port of it", agent, weather, "TCP", 8001, false},
		{"the port of its Service", agent, weather, "TCP", 80, false},
		{"another protocol", agent, weather, "UDP", 8000, false},
		{"the same labels in another namespace", agent, alike, "TCP", 8000, false},
		{"its model", agent, end{ip: "203.0.113.9"}, "TCP", 443, true},
		{"another address", agent, end{ip: "203.0.114.9"}, "TCP", 443, false},
		{"the metadata service", agent, end{ip: "169.254.169.254"}, "TCP", 80, false},
		{"DNS", agent, dns, "UDP", 53, true},
		{"DNS by TCP", agent, dns, "TCP", 53, true},
		{"other pods of kube-system", agent, pod("kube-system", labels.Set{"k8s-app": "x"}), "UDP", 53, false},
		{"the controller", agent, controller, "TCP", 8083, true},
		{"the API of the controller's neighbour", agent, pod("kagent", nil), "TCP", 8083, false},
		{"another agent", agent, other, "TCP", 8080, false},
		{"the agent from anywhere", other, agent, "TCP", 8080, true}, // its ingress is not restricted
		{"a tool server from an agent that is not bound", other, weather, "TCP", 8000, false},
		{"a tool server from the same labels elsewhere", pod("team2", agent.labels), weather, "TCP", 8000, false},
		{"a tool server from outside", end{ip: "198.51.100.1"}, weather, "TCP", 8000, false},
		{"a tool server from the plain agent", plain, weather, "TCP", 8000, true},
		{"what the plain agent calls", plain, end{ip: "10.1.2.3"}, "TCP", 9000, true},
		{"its neighbour", plain, end{ip: "10.1.2.4"}, "TCP", 9000, false},
		{"a tool server calls out", weather, end{ip: "198.51.100.1"}, "TCP", 443, true}, // nothing is known of it
	} {
		if got := allows(t, policies, c.from, c.to, c.protocol, c.port); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	for _, p := range policies {
		for _, port := range append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{})[0].Ports {
			if *port.Protocol != corev1.ProtocolTCP {
				t.Errorf("%s opens %s", p.Name, *port.Protocol)
			}
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
	if len(found) != 1 || found[0].Spec.TargetRefs[0].Name != "tools" || found[0].Spec.Backend.MCP.Authorization.Action != "Allow" {
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
			got = got || evaluate(t, e, map[string]any{"mcp": map[string]any{"tool": map[string]any{"target": c.target, "name": c.name}}, "request": map[string]any{}})
		}
		if got != c.want {
			t.Errorf("agentgateway: %s of %s: %v, want %v", c.name, c.target, got, c.want)
		}
	}
	type authPolicy struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			TargetRef struct{ Group, Kind, Name string } `json:"targetRef"`
			Rules     struct {
				Authentication map[string]struct {
					JWT struct {
						IssuerURL string `json:"issuerUrl"`
					} `json:"jwt"`
				} `json:"authentication"`
				Authorization map[string]struct {
					PatternMatching struct {
						Patterns []struct {
							Predicate string `json:"predicate"`
						} `json:"patterns"`
					} `json:"patternMatching"`
				} `json:"authorization"`
			} `json:"rules"`
		} `json:"spec"`
	}
	kuadrant := derivedIn[authPolicy](t, "policies-tools", "AuthPolicy")
	if len(kuadrant) != 1 || kuadrant[0].Spec.TargetRef.Name != "wx" || kuadrant[0].Spec.Rules.Authentication["issuer"].JWT.IssuerURL != "https://keycloak.example/realms/mcp" {
		t.Fatalf("%+v", kuadrant)
	}
	predicate := kuadrant[0].Spec.Rules.Authorization["bound-tools"].PatternMatching.Patterns[0].Predicate
	for _, c := range []struct {
		headers map[string]any
		want    bool
	}{
		{map[string]any{"x-mcp-servername": "tools/wx", "x-mcp-toolname": "get_alerts"}, true},
		{map[string]any{"x-mcp-servername": "tools/wx", "x-mcp-toolname": "get_forecast"}, false},
		{map[string]any{"x-mcp-servername": "tools/wx", "x-mcp-toolname": ""}, false},
		{map[string]any{"x-mcp-servername": "other/wx", "x-mcp-toolname": "get_alerts"}, false},
		{map[string]any{"x-mcp-toolname": "get_alerts"}, false},
		{map[string]any{}, false},
	} {
		if got := evaluate(t, predicate, map[string]any{"mcp": map[string]any{}, "request": map[string]any{"headers": c.headers}}); got != c.want {
			t.Errorf("Kuadrant: %v: %v, want %v", c.headers, got, c.want)
		}
	}
}
