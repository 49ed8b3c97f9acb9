package sidecars

import (
	"path"
	"slices"

	"github.com/armature-dev/armature/functions/identity"
)

// AuthBridgeProxy is the pod's proxy both ways. Ports, users, paths and names are those
// of rossoctl/cortex da955ea.
const AuthBridgeProxy = "authbridge-proxy"

const (
	fullImage = cortex + "authbridge" + cortexTag
	liteImage = cortex + "authbridge-lite" + cortexTag
)

// Ports that AuthBridge listens on, whatever the agent's are.
const (
	// transparentPort takes what iptables redirect.
	transparentPort = 8082
	// bridgeHealthPort answers probes, bridgeStatsPort serves statistics to
	// Kagenti's UI, and bridgeSessionPort, on loopback, conversations.
	bridgeHealthPort  = 9091
	bridgeStatsPort   = 9093
	bridgeSessionPort = 9094

	// forwardPort is the first candidate for the forward proxy, and agentDefault
	// the port of an agent that declares none.
	forwardPort  = 8081
	agentDefault = 8000
)

func authBridgeProxy() identity.Sidecar {
	return identity.Sidecar{
		Name: AuthBridgeProxy, Guards: true,
		Default:   identity.Component{Enabled: true, Image: fullImage, ImagePullPolicy: "IfNotPresent", CPURequest: "100m", MemoryRequest: "128Mi", CPULimit: "300m", MemoryLimit: "384Mi"},
		Container: appendAuthBridgeProxy,
		Mounts:    bridgeMounts,
		Ports: func(dst []identity.Listener, s *identity.Settings) []identity.Listener {
			if s.Inbound.Enabled {
				dst = append(dst,
					identity.Listener{Port: s.Inbound.Port, Name: "AuthBridge's reverse proxy", Field: identity.ReversePort, Key: identity.InboundPort, Declared: true},
					identity.Listener{Port: s.Inbound.TargetPort, Name: "the agent", Field: identity.AgentPort, Key: identity.TargetPort, Agent: true})
			}
			if s.Outbound.Enabled {
				dst = append(dst,
					identity.Listener{Port: s.AuthBridge.ForwardPort, Name: "AuthBridge's forward proxy", Field: "outbound"},
					identity.Listener{Port: transparentPort, Name: "AuthBridge's transparent proxy", Field: "outbound"})
			}
			return bridgeListeners(dst, s)
		},
		Files: appendBridgeYAML,
	}
}

// bridgeEnvoy is envoy-proxy in the mode envoy-sidecar.
func bridgeEnvoy() identity.Sidecar {
	x := envoyProxy()
	x.Container, x.Values = appendBridgeEnvoy, nil
	x.Mounts = func(s *identity.Settings) []identity.Mount {
		return append(bridgeMounts(s), readOnly(ConfigVolume, "/etc/envoy"))
	}
	x.Ports = func(dst []identity.Listener, s *identity.Settings) []identity.Listener {
		return envoyListeners(bridgeListeners(dst, s), s)
	}
	x.Files = func(dst []byte, s *identity.Settings) []byte { return appendEnvoyYAML(appendBridgeYAML(dst, s), s) }
	return x
}

func bridgeMounts(s *identity.Settings) []identity.Mount {
	mounts := []identity.Mount{readOnly(ConfigVolume, "/etc/authbridge"), readOnly(routesVolume, "/etc/authproxy")}
	if needsClientSecret(s) {
		mounts = append(mounts, readOnly(clientVolume, "/shared"))
	}
	if s.SPIFFE.Enabled {
		mounts = append(mounts, readOnly(SocketVolume, path.Dir(s.SPIFFE.SocketPath)), writable(identity.SVIDVolume, "/opt"))
	}
	return mounts
}

func bridgeListeners(dst []identity.Listener, _ *identity.Settings) []identity.Listener {
	return append(dst,
		identity.Listener{Port: bridgeHealthPort, Name: "AuthBridge's health check", Field: "outbound"},
		identity.Listener{Port: bridgeStatsPort, Name: "AuthBridge's statistics", Field: "outbound"},
		identity.Listener{Port: bridgeSessionPort, Name: "AuthBridge's sessions", Field: "outbound"})
}

// appendAuthBridgeProxy appends the container of the modes proxy-sidecar and lite. The reverse
// proxy's port is the agent's, which the agent's container declares.
func appendAuthBridgeProxy(dst []byte, s *identity.Settings) []byte {
	w := writer{dst, s}
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
	return w.bridgeEnd(s.Component(AuthBridgeProxy))
}

// appendBridgeEnvoy appends the container of the mode envoy-sidecar: Envoy and, beside
// it, the processor that judges each request.
func appendBridgeEnvoy(dst []byte, s *identity.Settings) []byte {
	w := writer{dst, s}
	w.text("  args:\n  - --config\n  - /etc/authbridge/config.yaml\n  ports:\n")
	w.envoyPorts()
	w.bridgePorts()
	w.bridgeEnv()
	w.text("  startupProbe:\n    tcpSocket:\n      port: envoy-inbound\n")
	w.probe()
	return w.bridgeEnd(s.Component(EnvoyProxy))
}

func (w *writer) bridgePorts() {
	w.port("bridge-health", bridgeHealthPort)
	w.port("bridge-stats", bridgeStatsPort)
}

// bridgeEnv appends the variables that config.yaml refers to.
func (w *writer) bridgeEnv() {
	if w.s.SPIFFE.Enabled {
		w.text("  env:\n")
		w.field("POD_NAMESPACE", "metadata.namespace")
		w.field("POD_SERVICE_ACCOUNT", "spec.serviceAccountName")
	}
}

func (w *writer) bridgeEnd(c *identity.Component) []byte {
	w.text("  readinessProbe:\n    httpGet:\n      path: /readyz\n      port: bridge-health\n")
	w.resources(c)
	w.proxySecurity()
	return w.dst
}
