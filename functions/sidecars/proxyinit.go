package sidecars

import (
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// ProxyInit redirects the pod's traffic with iptables, and ends.
const ProxyInit = "proxy-init"

func proxyInit(container func([]byte, *identity.Settings) []byte) identity.Sidecar {
	return identity.Sidecar{
		Name: ProxyInit, Ends: true, Container: container,
		Default: identity.Component{Enabled: true, Image: repository + "proxy-init" + imageTag, ImagePullPolicy: "IfNotPresent", CPURequest: "10m", MemoryRequest: "10Mi", CPULimit: "100m", MemoryLimit: "64Mi"},
	}
}

// appendRedirect is the container, with more capabilities and with the port, 0 for
// none, at which the kubelet asks for health before Envoy is up. Its program is the
// published init-iptables.sh, which needs root, NET_ADMIN and a writable /run.
func appendRedirect(dst []byte, s *identity.Settings, capabilities string, health int) []byte {
	w := writer{dst, s}
	w.text("  env:\n")
	w.envInt("PROXY_PORT", s.Outbound.ProxyPort)
	w.envInt("INBOUND_PROXY_PORT", s.Outbound.InboundProxyPort)
	w.envInt("PROXY_UID", s.Outbound.ProxyUID)
	w.text("  - name: OUTBOUND_PORTS_EXCLUDE\n    value: \"")
	w.outboundExcludes()
	w.text("\"\n  - name: INBOUND_PORTS_EXCLUDE\n    value: \"")
	if health > 0 {
		w.dst = scalar.AppendInt(w.dst, health)
	}
	for i, port := range s.Outbound.ExcludeInboundPorts {
		if i > 0 || health > 0 {
			w.text(",")
		}
		w.dst = scalar.AppendInt(w.dst, port)
	}
	w.text("\"\n")
	w.field("POD_IP", "status.podIP")
	return w.initSecurity(capabilities)
}

// appendProxyInit and appendProxyInitRaw are the container of Envoy's profiles: what
// was published needs NET_RAW as well.
func appendProxyInit(dst []byte, s *identity.Settings) []byte {
	return appendRedirect(dst, s, "", helperHealth(s))
}

func appendProxyInitRaw(dst []byte, s *identity.Settings) []byte {
	return appendRedirect(dst, s, rawSockets, helperHealth(s))
}

// helperHealth is the port of spiffe-helper's health check.
func helperHealth(s *identity.Settings) int {
	if s.On(SpiffeHelper) {
		return s.SPIFFE.HealthPort
	}
	return 0
}

// appendBridgeInit is the container of the profile authbridge.
func appendBridgeInit(dst []byte, s *identity.Settings) []byte {
	if s.On(EnvoyProxy) {
		return appendRedirect(dst, s, rawSockets, bridgeHealthPort)
	}
	w := writer{dst, s}
	w.text("  env:\n")
	w.env("MODE", "enforce-redirect")
	w.envInt("PROXY_UID", s.Outbound.ProxyUID)
	w.envInt("TRANSPARENT_PORT", transparentPort)
	return w.initSecurity(rawSockets)
}

const rawSockets = "      - NET_RAW\n      drop:\n      - ALL\n"

// initSecurity appends the end of proxy-init.
func (w *writer) initSecurity(capabilities string) []byte {
	w.resources(w.s.Component(ProxyInit))
	w.text(initSecurity, "      add:\n      - NET_ADMIN\n", capabilities, "    seccompProfile:\n      type: RuntimeDefault\n")
	return w.dst
}

func (w *writer) outboundExcludes() {
	s := w.s
	listed := false
	for i, port := range s.Outbound.ExcludePorts {
		if i > 0 {
			w.text(",")
		}
		w.dst = scalar.AppendInt(w.dst, port)
		listed = listed || port == s.Registration.Port
	}
	// client-registration talks to Keycloak before Envoy is up.
	if s.On(ClientRegistration) && s.Registration.Provider == "keycloak" && !listed && s.Registration.Port > 0 {
		if len(s.Outbound.ExcludePorts) > 0 {
			w.text(",")
		}
		w.dst = scalar.AppendInt(w.dst, s.Registration.Port)
	}
}
