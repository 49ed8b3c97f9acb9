package lintrules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/text"
)

// bypassAuthProxy reports ports of a Service that bypass the proxy, and excluded ports of the
// agent.
func bypassAuthProxy(c *checker) {
	// With auth-proxy, the render has its own finding.
	if c.facts.inbound != 0 && c.facts.authProxy == 0 {
		c.openAgent()
	}
	if c.Kind != "Service" {
		return
	}
	pods := c.selected(c.Namespace, c.Get("spec", "selector"))
	for p := range c.Get("spec", "ports").Items() {
		for _, pod := range pods {
			at, number, owner := pod.reached(p)
			proxy, hint := c.past(pod, number)
			if number == 0 || proxy == "" || pod.authProxy == 0 && component(owner) {
				continue
			}
			c.report(at, fmt.Sprintf("%s; if the port is meant to be open, such as one "+
				"for metrics, annotate the Service %s: bypass-auth-proxy", hint, keys.LintIgnore),
				"leads to port %d of %s in %s, past %s", number, owner, pod.ref, proxy)
			break
		}
	}
}

// past returns the proxy that does not check requests to a port of a pod, and the remedy. It is ""
// if the proxy checks them, or the pod has none.
func (p *Package) past(pod *pod, number int) (proxy, hint string) {
	guarded := p.guarded(pod)
	switch {
	case pod.authProxy != 0 && number != pod.authProxy && number != pod.inbound:
		return sidecars.AuthProxy, fmt.Sprintf("set targetPort: auth-proxy (%d)", pod.authProxy)
	case pod.authProxy == 0 && pod.inbound != 0 && slices.Contains(pod.open, number):
		return sidecars.EnvoyProxy, fmt.Sprintf("remove %d from excludeInboundPorts", number)
	case guarded != 0 && guarded != number:
		return "AuthBridge", fmt.Sprintf("set targetPort: %d, where AuthBridge checks tokens",
			guarded)
	}
	return "", ""
}

// guarded returns the port that AuthBridge's reverse proxy takes from the agent of a pod, or 0.
func (p *Package) guarded(pod *pod) int {
	if facts := p.collected.objects[key("ConfigMap",
		pod.ref.Namespace, pod.config)]; pod.config != "" && facts != nil {
		return facts.guarded
	}
	return 0
}

// httpOnly reports protocols that Services name for the port of AuthBridge's reverse proxy.
func httpOnly(c *checker) {
	if c.Kind != "Service" {
		return
	}
	pods := c.selected(c.Namespace, c.Get("spec", "selector"))
	for p := range c.Get("spec", "ports").Items() {
		protocol := map[string]string{
			"grpc": "gRPC", "https": "HTTPS", "http2": "HTTP/2", "h2c": "HTTP/2",
			"kubernetes.io/h2c": "HTTP/2", "kubernetes.io/wss": "WebSocket over TLS",
		}[strings.ToLower(p.Get("appProtocol").Text())]
		if protocol == "" {
			continue
		}
		for _, pod := range pods {
			if _, number, _ := pod.reached(p); number != 0 && number == c.guarded(pod) {
				c.report(p.Get("appProtocol"), fmt.Sprintf(
					"annotate the workload %s/authbridge-mode: envoy-sidecar, or use another port",
					c.prefix), "announces %s for port %d of %s, where AuthBridge's "+
					"reverse proxy listens, which speaks HTTP/1.1 alone", protocol, number, pod.ref)
				break
			}
		}
	}
}

// reached returns the port of the pod to which a port of a Service leads, or 0, with its field and
// the container.
func (p *pod) reached(port krm.Node) (at krm.Node, number int, owner string) {
	at = port.Get("targetPort")
	if !at.IsScalar() {
		at = port.Get("port")
	}
	number, owner, declared := p.target(at.Text())
	if !declared {
		number, _ = at.Int()
		owner = "the application"
	}
	return at, number, owner
}

// openAgent reports the agent's own port in the list of ports that iptables do not redirect.
func (c *checker) openAgent() {
	agent := identity.AgentContainer(c.pod)
	for p := range agent.Get("ports").Items() {
		at := p.Get("containerPort")
		if number, ok := at.Int(); ok && protocol(p) == "TCP" {
			if slices.Contains(c.facts.open, number) {
				c.report(at,
					fmt.Sprintf("remove it from excludeInboundPorts; if it is meant to be open, "+
						"annotate the workload %s: bypass-auth-proxy", keys.LintIgnore),
					"excludeInboundPorts has port %d of %s, which is then open to requests "+
						"without a token", number, agent.Get("name").Text())
			}
			return // further ports are for metrics and the like
		}
	}
}

// reverseProxy matches the port that AuthBridge takes from the agent in AuthBridge's configuration.
var reverseProxy = text.Pattern(`(?m)^  reverse_proxy_addr: ":([0-9]+)"$`)

// guardedPort returns the port at which AuthBridge checks tokens, or 0.
func guardedPort(config string) int {
	m := reverseProxy().FindStringSubmatch(config)
	if m == nil || !strings.Contains(config, "- name: jwt-validation\n") {
		return 0
	}
	port, _ := strconv.Atoi(m[1]) // digits
	return port
}

// duplicateTarget reports objects that conflict over one workload, or of which only one takes
// effect.
func duplicateTarget(c *checker) {
	switch c.Kind {
	case "HorizontalPodAutoscaler", "ScaledObject":
		target := scaled(c.Object)
		if first := c.collected.scalers[target][0]; first != c.Ref {
			c.report(c.Get("spec", "scaleTargetRef"), "keep one: two autoscalers undo each "+
				"other's work, and a ScaledObject creates an autoscaler",
				"%s scales %s %s already", first, target.kind, target.name)
		}
	case "PodDisruptionBudget":
		labels := c.Get("spec", "selector", "matchLabels")
		for _, pod := range c.selected(c.Namespace, labels) {
			first, guarded := c.collected.guards[pod]
			if !guarded {
				first, c.collected.guards[pod] = c.Ref, c.Ref
			}
			if first != c.Ref {
				c.report(labels, "keep one: pods with two PodDisruptionBudgets cannot be evicted",
					"%s guards %s already", first, pod.ref)
				return
			}
		}
	}
}
