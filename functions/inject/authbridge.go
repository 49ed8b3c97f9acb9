package inject

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
)

// This file is the profile authbridge: one container that is the pod's proxy both
// ways. Ports, users, paths and names are those of rossoctl/cortex da955ea.

// authBridgeVolumeNames are the volumes of appendAuthBridgeVolumes and those that
// all profiles share, in their order.
func authBridgeVolumeNames(s *identity.Settings) (names []string) {
	if !s.AuthBridgeProxy.Enabled && !s.EnvoyProxy.Enabled {
		return nil
	}
	names = append(names, configVolume, routesVolume)
	if s.NeedsClientSecret() {
		names = append(names, clientVolume)
	}
	names = append(names, memoryVolumes(s)...)
	if needsSocket(s) {
		names = append(names, socketVolume)
	}
	return names
}

// appendAuthBridgeVolumes appends the volumes that no other profile has.
func appendAuthBridgeVolumes(dst []byte, s *identity.Settings) []byte {
	if !s.AuthBridgeProxy.Enabled && !s.EnvoyProxy.Enabled {
		return dst
	}
	dst = append(dst, "- name: "+configVolume+"\n  configMap:\n    name: "...)
	dst = append(s.AppendName(dst, identity.TokenExchangeConfigMap), '\n')
	// Routes of the namespace, where its owners have some.
	dst = append(dst, "- name: "+routesVolume+"\n  configMap:\n    name: authproxy-routes\n    optional: true\n"...)
	if s.NeedsClientSecret() {
		dst = append(dst, "- name: "+clientVolume+"\n  secret:\n    secretName: "...)
		dst = append(scalar.AppendPlain(dst, s.AuthBridge.Secret), '\n')
	}
	return dst
}

// authBridge appends the container of the modes proxy-sidecar and lite. The reverse
// proxy's port is the agent's, which the agent's container declares.
func (w *writer) authBridge() {
	s := w.s
	w.text("  args:\n  - --config\n  - /etc/authbridge/config.yaml\n  ports:\n")
	if s.Inbound.Enabled && !slices.Contains(s.AuthBridge.Ports, s.Inbound.Port) {
		w.port("reverse-proxy", s.Inbound.Port)
	}
	w.bridgePorts()
	w.bridgeEnv()
	// It is healthy once it has its SPIFFE identity and its listeners, and ready
	// once each of its plugins is.
	w.text("  startupProbe:\n    httpGet:\n      path: /healthz\n      port: bridge-health\n")
	w.probe()
	w.bridgeEnd(&s.AuthBridgeProxy)
}

// authBridgeEnvoy appends the container of the mode envoy-sidecar: Envoy and, beside
// it, the processor that judges each request.
func (w *writer) authBridgeEnvoy() {
	w.text("  args:\n  - --config\n  - /etc/authbridge/config.yaml\n  ports:\n")
	w.envoyPorts()
	w.bridgePorts()
	w.bridgeEnv()
	w.text("  startupProbe:\n    tcpSocket:\n      port: envoy-inbound\n")
	w.probe()
	w.bridgeEnd(&w.s.EnvoyProxy)
	w.mount(configVolume, "/etc/envoy", true)
}

func (w *writer) bridgePorts() {
	w.port("bridge-health", identity.BridgeHealthPort)
	w.port("bridge-stats", identity.BridgeStatsPort)
}

// bridgeEnv appends the variables that config.yaml refers to.
func (w *writer) bridgeEnv() {
	if w.s.SPIFFE.Enabled {
		w.text("  env:\n")
		w.field("POD_NAMESPACE", "metadata.namespace")
		w.field("POD_SERVICE_ACCOUNT", "spec.serviceAccountName")
	}
}

func (w *writer) bridgeEnd(c *identity.Component) {
	s := w.s
	w.text("  readinessProbe:\n    httpGet:\n      path: /readyz\n      port: bridge-health\n")
	w.resources(c)
	w.proxySecurity()
	w.text("  volumeMounts:\n")
	w.mount(configVolume, "/etc/authbridge", true)
	w.mount(routesVolume, "/etc/authproxy", true)
	if s.NeedsClientSecret() {
		w.mount(clientVolume, "/shared", true)
	}
	if s.SPIFFE.Enabled {
		w.mount(socketVolume, path.Dir(s.SPIFFE.SocketPath), true)
		w.mount(publishedSVIDVolume, "/opt", false)
	}
}

// proxyVariables lead an application to the forward proxy.
var proxyVariables = []string{"HTTP_PROXY", "HTTPS_PROXY"}

const noProxy = "127.0.0.1,localhost"

// authBridge appends the variables by which an application finds its port and the
// forward proxy, and records them. A variable that the author set stays.
func (r *record) authBridge(env []byte, c krm.Node, s *identity.Settings, pod krm.PodTemplate) []byte {
	if !s.AuthBridgeProxy.Enabled {
		return env
	}
	name, own := c.Get("name").Text(), c.Get("env")
	add := func(variable, value string) {
		if itemNamed(own, variable).Exists() {
			return
		}
		env = append(env, "- name: "+variable+"\n  value: \""+value+"\"\n"...)
		if r.Env == nil {
			r.Env = make(map[string][]string)
		}
		r.Env[name] = append(r.Env[name], variable)
	}
	if s.Inbound.Enabled && name == identity.AgentContainer(pod).Get("name").Text() {
		add("PORT", strconv.Itoa(s.Inbound.TargetPort))
	}
	if s.Outbound.Enabled {
		for _, variable := range proxyVariables {
			add(variable, "http://127.0.0.1:"+strconv.Itoa(s.AuthBridge.ForwardPort))
		}
		add("NO_PROXY", noProxy)
	}
	return env
}

// authBridgeValue reports whether a variable's value is one that authBridge gives.
func authBridgeValue(variable, value string) bool {
	switch {
	case variable == "PORT":
		_, err := strconv.Atoi(value)
		return err == nil
	case variable == "NO_PROXY":
		return value == noProxy
	}
	return slices.Contains(proxyVariables, variable) && strings.HasPrefix(value, "http://127.0.0.1:")
}

// checkAuthBridge finds what keeps an agent from moving to another port, and its
// requests from the forward proxy.
func checkAuthBridge(o *krm.Object, pod krm.PodTemplate, s *identity.Settings) (findings []krm.Finding) {
	if !s.AuthBridgeProxy.Enabled {
		return nil
	}
	if s.Inbound.Enabled {
		findings = checkAgentPort(o, identity.AgentContainer(pod), s)
	}
	if !s.Outbound.Enabled {
		return findings
	}
	for c := range pod.Spec().Get("containers").Items() {
		for v := range c.Get("env").Items() {
			if name := v.Get("name").Text(); slices.Contains(proxyVariables, strings.ToUpper(name)) {
				findings = append(findings, o.Finding(krm.Warning, "inject/own-proxy", v.Get("name"),
					fmt.Sprintf("the application sets %s itself, so that its requests do not pass AuthBridge's forward proxy and their tokens are not exchanged", name), "leave the variable out"))
			}
		}
	}
	return findings
}

// checkAgentPort finds an agent that goes on listening where the reverse proxy does.
func checkAgentPort(o *krm.Object, agent krm.Node, s *identity.Settings) (findings []krm.Finding) {
	in := strconv.Itoa(s.Inbound.Port)
	hint := fmt.Sprintf("write $(PORT) there, which is %d; or leave the port to the agent with the annotation %s, and lead Services to the proxy's with %s/inbound-port",
		s.Inbound.TargetPort, fmt.Sprintf("%s: %q", s.TargetPortAnnotation(), in), s.Prefix)
	if own := itemNamed(agent.Get("env"), "PORT"); own.Exists() && own.Get("value").Text() != strconv.Itoa(s.Inbound.TargetPort) {
		findings = append(findings, o.Finding(krm.Error, "inject/own-port", own,
			fmt.Sprintf("the agent is given a PORT other than %d, where AuthBridge sends its requests", s.Inbound.TargetPort),
			fmt.Sprintf("leave the variable out, or annotate %s with its value", s.TargetPortAnnotation())))
	}
	for _, list := range [...]string{"command", "args"} {
		for word := range agent.Get(list).Items() {
			if namesPort(word.Text(), in) {
				findings = append(findings, o.Finding(krm.Error, "inject/port-in-arguments", word,
					fmt.Sprintf("the command line sets the port %s, which AuthBridge takes", in), hint))
			}
		}
	}
	return findings
}

// namesPort reports whether a word of a command line is a port, or ends with one:
// 8080, :8080, 0.0.0.0:8080, --port=8080.
func namesPort(word, port string) bool {
	rest, found := strings.CutSuffix(word, port)
	return found && (rest == "" || strings.HasSuffix(rest, "=") || strings.HasSuffix(rest, ":"))
}
