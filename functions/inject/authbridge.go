package inject

import (
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

// This file implements AuthBridge's requirements for the agent's containers, as of rossoctl/cortex
// da955ea.

// proxyVariables are the variables with the forward proxy of an application. curl reads http_proxy
// only in lower case, and other programs read only upper case.
var proxyVariables = []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"}

const noProxy = "127.0.0.1,localhost"

// authBridge appends the variables with the application's port and forward proxy, and records them.
// A variable that the author set stays. moved is the result of movedAgent.
func (r *record) authBridge(env []byte, c, moved krm.Node, s *identity.Settings) []byte {
	if !s.On(sidecars.AuthBridgeProxy) {
		return env
	}
	var few [16]string // most containers have no more variables
	own := few[:0]
	for v := range c.Get("env").Items() {
		own = append(own, v.Get("name").Text())
	}
	add := func(variable, value string) {
		if !slices.ContainsFunc(own, func(set string) bool {
			// A program may read a variable of the author in either case.
			return set == variable || variable != "PORT" && strings.EqualFold(set, variable)
		}) {
			env = r.variable(env, variable, value)
		}
	}
	if c == moved {
		add("PORT", `"`+strconv.Itoa(s.Inbound.TargetPort)+`"`)
	}
	if s.Outbound.Enabled {
		proxy := `"http://127.0.0.1:` + strconv.Itoa(s.AuthBridge.ForwardPort) + `"`
		for _, variable := range proxyVariables {
			add(variable, proxy)
		}
		none := `"` + noProxy + `"`
		if more := s.Outbound.NoProxy; len(more) > 0 {
			none = `"` + noProxy + "," + strings.Join(more, ",") + `"`
		}
		add("NO_PROXY", none)
		add("no_proxy", none)
	}
	return env
}

// movedAgent returns the agent's container if it listens on the port in the variable PORT.
func movedAgent(s *identity.Settings, pod krm.PodTemplate) (moved krm.Node) {
	if s != nil && s.On(sidecars.AuthBridgeProxy) && s.Inbound.Enabled {
		moved = identity.AgentContainer(pod)
	}
	return moved
}

// overwritePort sets the author's variable PORT to the agent's new port.
func (r *record) overwritePort(port krm.Node, container string, s *identity.Settings) error {
	value, target := port.Get("value"), strconv.Itoa(s.Inbound.TargetPort)
	if from := port.Get("valueFrom"); from.Exists() {
		value = from
	} else if value.Is(target) && value.IsText() {
		return nil
	}
	return r.setField(port, value, field{At: envPath + container, Value: target}, "value")
}

// authBridgeValue reports whether authBridge sets a variable to this value.
func authBridgeValue(variable, value string) bool {
	switch {
	case variable == "PORT":
		_, err := strconv.Atoi(value)
		return err == nil
	case strings.EqualFold(variable, "NO_PROXY"):
		return strings.HasPrefix(value, noProxy)
	}
	return slices.Contains(proxyVariables, variable) &&
		strings.HasPrefix(value, "http://127.0.0.1:")
}

// authBridge reports obstacles for moving an agent to another port, and for its requests to use the
// forward proxy.
func (c *checker) authBridge() {
	if !c.On(sidecars.AuthBridgeProxy) {
		return
	}
	if c.Inbound.Enabled {
		c.agentPort(identity.AgentContainer(c.pod))
		c.protocols()
	}
	if !c.Outbound.Enabled {
		return
	}
	for container := range c.containers() {
		for v := range container.Get("env").Items() {
			if name := v.Get("name").Text(); slices.ContainsFunc(proxyVariables,
				func(variable string) bool { return strings.EqualFold(variable, name) }) {
				c.report(finding.Warning, "own-proxy", v.Get("name"),
					fmt.Sprintf("the application sets %s itself, so that its requests do not pass "+
						"AuthBridge's forward proxy and their tokens are not exchanged", name),
					"leave the variable out")
			}
			if value := v.Get("value"); c.AuthBridge.MTLS == "strict" && plainEgress(value.Text()) {
				c.report(finding.Warning, "strict-egress", value,
					"with mtls: strict, AuthBridge's forward proxy speaks TLS with the workload's "+
						"SVID to each host of a plain HTTP request: only an agent with AuthBridge "+
						"answers, and from others the application gets status 502",
					"call the host by HTTPS, or set authbridge.mtls to permissive")
			}
		}
	}
}

// plainEgress reports whether a value is the URL of a plain HTTP server in another pod.
func plainEgress(value string) bool {
	u, err := url.Parse(value)
	return err == nil && u.Scheme == "http" &&
		!slices.Contains([]string{"", "127.0.0.1", "localhost"}, u.Hostname())
}

// protocols reports ports and probes on the reverse proxy's port that cannot pass it: it speaks
// only HTTP/1.1, and with mtls: strict only with clients that have an SVID.
func (c *checker) protocols() {
	unspoken := func(at krm.Node, what, protocol string) {
		c.error("http-only", at,
			fmt.Sprintf("%s speaks %s on port %d, where AuthBridge's reverse proxy "+
				"listens, which speaks HTTP/1.1 alone in the mode %s", what, protocol,
				c.Inbound.Port, c.AuthBridge.Mode),
			fmt.Sprintf("annotate %s/authbridge-mode: envoy-sidecar, or use another port", c.Prefix))
	}
	for _, container := range c.pod.Containers() {
		for p := range container.Get("ports").Items() {
			if port, ok := p.Get("containerPort").Int(); ok && port == c.Inbound.Port &&
				!p.Get("protocol").Is("UDP") && !p.Get("protocol").Is("SCTP") {
				if protocol := namedProtocol(p.Get("name").Text()); protocol != "" {
					unspoken(p.Get("name"), "by its name the application", protocol)
				}
			}
		}
		for _, kind := range identity.ProbeFields() {
			http, grpc := container.Get(kind, "httpGet"), container.Get(kind, "grpc")
			switch {
			case grpc.IsMap() && identity.ProbedPort(container, grpc) == c.Inbound.Port:
				unspoken(grpc, "the probe", "gRPC")
			case !http.IsMap() || identity.ProbedPort(container, http) != c.Inbound.Port:
			case http.Get("scheme").Is("HTTPS"):
				unspoken(http.Get("scheme"), "the probe", "HTTPS")
			case c.AuthBridge.MTLS == "strict":
				c.error("strict-probe", http,
					"with mtls: strict, AuthBridge closes the kubelet's connection, because it "+
						"has no SVID: the probe never succeeds",
					"set authbridge.mtls to permissive, or probe by exec or another port")
			}
		}
	}
}

// namedProtocol returns the protocol other than HTTP/1.1 that a port's name states.
func namedProtocol(name string) string {
	first, _, _ := strings.Cut(name, "-")
	return protocols[first]
}

var protocols = map[string]string{"grpc": "gRPC", "https": "HTTPS", "h2c": "HTTP/2",
	"http2": "HTTP/2"}

// agentPort reports an agent that keeps listening on the reverse proxy's port.
func (c *checker) agentPort(agent krm.Node) {
	before := len(c.findings)
	in, moved := strconv.Itoa(c.Inbound.Port), c.Inbound.TargetPort
	own := identity.PortVariable(agent)
	value := own.Get("value")
	if value.Exists() && own.Get("valueFrom").Exists() {
		c.error("own-port", own, "the variable PORT has both a value and a valueFrom",
			"remove the one that does not count")
	}
	if n, err := strconv.Atoi(value.Text()); err == nil && (n < 1 || n > 65535) {
		c.error("own-port", value, fmt.Sprintf("PORT is %d, which is not a port", n),
			"use 1 to 65535")
	}
	elsewhere := fmt.Sprintf("or leave the port to the agent: annotate %s/inbound-port: \"%d\", "+
		"and lead Services to that port", c.Prefix, moved)
	for v := range agent.Get("env").Items() {
		if name, value := v.Get("name").Text(), v.Get("value"); name != "PORT" &&
			fixesPort(name, value.Text(), in) {
			c.report(finding.Warning, "port-in-variable", value,
				fmt.Sprintf("the variable %s has the port %s, which AuthBridge takes: an agent "+
					"that listens where it says ends with \"address already in use\"", name, in),
				fmt.Sprintf("write %d in place of %s, or put a variable PORT before it and write "+
					"$(PORT); %s", moved, in, elsewhere))
		}
	}
	for word := range commandLine(agent) {
		if namesPort(word.Text(), in) {
			c.error("port-in-arguments", word,
				fmt.Sprintf("the command line sets the port %s, which AuthBridge takes", in),
				fmt.Sprintf("write $(PORT) in place of %s, which Kubernetes replaces by %d; %s",
					in, moved, elsewhere))
		}
	}
	if c.AuthBridge.Moved && len(c.findings) == before && !readsPort(agent, strconv.Itoa(moved)) {
		c.report(finding.Warning, "port-of-image", agent, fmt.Sprintf("the agent has to listen on "+
			"the port in its variable PORT, %d, because AuthBridge takes %s: the manifest does "+
			"not show that its image does", moved, in),
			fmt.Sprintf("if the image reads PORT, set the variable to %s to say so; if not, write "+
				"$(PORT) into command or args, %s", in, elsewhere))
	}
}

// commandLine yields the words of a container's command and arguments.
func commandLine(container krm.Node) iter.Seq[krm.Node] {
	return func(yield func(krm.Node) bool) {
		for _, list := range [...]string{"command", "args"} {
			for word := range container.Get(list).Items() {
				if !yield(word) {
					return
				}
			}
		}
	}
}

// readsPort reports whether the manifest shows that a program listens on the port in the variable
// PORT: the container has the variable, or names it or its value.
func readsPort(agent krm.Node, port string) bool {
	named := func(text string) bool {
		return strings.Contains(text, "$(PORT)") || strings.Contains(text, "$PORT") ||
			strings.Contains(text, "${PORT") || namesPort(text, port)
	}
	for word := range commandLine(agent) {
		if named(word.Text()) {
			return true
		}
	}
	for v := range agent.Get("env").Items() {
		if v.Get("name").Is("PORT") || named(v.Get("value").Text()) {
			return true
		}
	}
	return false
}

// fixesPort reports whether a variable says that a program listens on a port: N8N_PORT=5678,
// LISTEN=:5678, ASPNETCORE_URLS=http://+:5678.
func fixesPort(name, value, port string) bool {
	switch {
	case value == port:
		return strings.Contains(strings.ToUpper(name), "PORT")
	case !namesPort(value, port):
		return false
	}
	_, host, url := strings.Cut(value, "://")
	return !(url && slices.ContainsFunc([]string{"127.0.0.1", "localhost", "[::1]", "$"},
		func(own string) bool { return strings.HasPrefix(host, own) }))
}

// namesPort reports whether a word of a command line, or of a script in it, is a port or ends with
// one to listen on: 8080, :8080, 0.0.0.0:8080, --port=8080.
func namesPort(line, port string) bool {
	return strings.Contains(line, port) && slices.ContainsFunc(
		strings.FieldsFunc(line, func(r rune) bool {
			return strings.ContainsRune(" \t\r\n;&|()'\"", r)
		}),
		func(word string) bool {
			rest, found := strings.CutSuffix(word, port)
			host, address := strings.CutSuffix(rest, ":")
			if !found || !address {
				return found && (rest == "" || strings.HasSuffix(rest, "="))
			}
			host = host[strings.LastIndexAny(host, "=/")+1:]
			return strings.HasPrefix(host, "$") ||
				slices.Contains([]string{"", "0.0.0.0", "127.0.0.1", "localhost", "*", "+", "[::]",
					"[::1]"}, host)
		})
}
