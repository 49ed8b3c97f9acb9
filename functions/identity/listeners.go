package identity

import "slices"

// Listener is a port on which something in the pod listens.
type Listener struct {
	Port int
	// Name says what listens: "Envoy's outbound listener".
	Name string

	prefix, annotation string
	// field is where the port is set.
	field string
}

// Annotation moves it to another port, with the label prefix. It is empty where the
// port is built into the program.
func (l Listener) Annotation() string {
	if l.annotation == "" {
		return ""
	}
	return l.prefix + "/" + l.annotation
}

// agentPort is the field of the port that is the author's.
const agentPort = "inbound.targetPort"

// reversePort is the field of the port on which requests for the agent arrive.
const reversePort = "inbound.port"

// InjectedPorts are the ports of the injected containers, which share them with
// the author's. s has been resolved.
func (s *Settings) InjectedPorts() []Listener {
	return slices.DeleteFunc(s.listeners(), func(l Listener) bool {
		return l.field == agentPort || s.Profile == ProfileAuthBridge && l.field == reversePort
	})
}

// TargetPortAnnotation says where the agent listens.
func (s *Settings) TargetPortAnnotation() string { return s.Prefix + "/" + targetPort }

// listeners are all that listens in the pod. s has been settled.
func (s *Settings) listeners() []Listener {
	ports := make([]Listener, 0, 8)
	listens := func(on bool, port int, name, field, annotation string) {
		if on && port > 0 {
			ports = append(ports, Listener{port, name, s.Prefix, annotation, field})
		}
	}
	envoy := s.EnvoyProxy.Enabled
	if s.Profile == ProfileAuthBridge {
		s.authBridgeListeners(listens)
	}
	listens(envoy, EnvoyAdminPort, "Envoy's administration", interception+"proxyPort", "")
	listens(envoy, ExtProcPort, "the token processor beside Envoy", interception+"proxyPort", "")
	listens(s.SpiffeHelper.Enabled, s.SPIFFE.HealthPort, "spiffe-helper's health check", "spiffe", "")
	listens(s.AuthProxy.Enabled, s.Inbound.Port, AuthProxy, reversePort, inboundPort)
	listens(s.AuthProxy.Enabled, s.Inbound.TargetPort, "the agent", agentPort, targetPort)
	listens(envoy, s.Outbound.ProxyPort, "Envoy's outbound listener", interception+"proxyPort", proxyPort)
	listens(envoy, s.Outbound.InboundProxyPort, "Envoy's inbound listener", interception+"inboundProxyPort", inboundProxyPort)
	return ports
}

// FreePort gives the first port from a given one on that nothing in the pod has.
func (s *Settings) FreePort(from int, declared []int) int {
	taken := s.listeners()
	for port := from; ; port = port%65535 + 1 {
		if !slices.Contains(declared, port) && !slices.ContainsFunc(taken, func(l Listener) bool { return l.Port == port }) {
			return port
		}
	}
}
