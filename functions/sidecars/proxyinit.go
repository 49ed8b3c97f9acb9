package sidecars

import (
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
)

// ProxyInit redirects the pod's traffic with iptables, and ends.
const ProxyInit = "proxy-init"

func proxyInit(container func(*identity.Settings) identity.Container) identity.Sidecar {
	return identity.Sidecar{
		Name: ProxyInit, Ends: true, Container: container,
		Default: component(repository+"proxy-init"+imageTag, "10m", "10Mi", "100m", "64Mi"),
	}
}

// redirects returns the container that redirects traffic to Envoy. health is the port that the
// kubelet probes before Envoy is up, or 0. The program is the published init-iptables.sh, which
// needs root, NET_ADMIN and a writable /run. Its published images need NET_RAW as well.
func redirects(s *identity.Settings, raw bool, health int) identity.Container {
	in := s.Outbound.ExcludeInboundPorts
	if health > 0 {
		in = slices.Concat([]int{health}, in)
	}
	return identity.Container{
		Env: []block.Node{
			intVariable("PROXY_PORT", s.Outbound.ProxyPort),
			intVariable("INBOUND_PROXY_PORT", s.Outbound.InboundProxyPort),
			intVariable("PROXY_UID", s.Outbound.ProxyUID),
			variable("OUTBOUND_PORTS_EXCLUDE", commas(outboundExcludes(s))),
			variable("INBOUND_PORTS_EXCLUDE", commas(in)),
			field("POD_IP", "status.podIP"),
		},
		Security: netAdmin(raw),
	}
}

func kagentiInit(s *identity.Settings) identity.Container {
	return redirects(s, false, helperHealth(s))
}

func publishedInit(s *identity.Settings) identity.Container {
	return redirects(s, true, helperHealth(s))
}

func bridgeInit(s *identity.Settings) identity.Container {
	if s.On(EnvoyProxy) {
		return redirects(s, true, bridgeHealthPort)
	}
	return identity.Container{
		Env: []block.Node{
			variable("MODE", "enforce-redirect"),
			intVariable("PROXY_UID", s.Outbound.ProxyUID),
			intVariable("TRANSPARENT_PORT", transparentPort),
		},
		Security: netAdmin(true),
	}
}

// helperHealth returns the port of spiffe-helper's health check, or 0.
func helperHealth(s *identity.Settings) int {
	if s.On(SpiffeHelper) {
		return s.SPIFFE.HealthPort
	}
	return 0
}

func netAdmin(raw bool) block.Node {
	capabilities := block.Map("capabilities", words("add", "NET_ADMIN"))
	if raw {
		capabilities = block.Map("capabilities", words("add", "NET_ADMIN", "NET_RAW"),
			words("drop", "ALL"))
	}
	return block.Map("securityContext",
		block.Int("runAsUser", 0),
		block.Bool("runAsNonRoot", false),
		block.Bool("allowPrivilegeEscalation", false),
		capabilities,
		runtimeDefault())
}

// outboundExcludes returns the ports that leave the pod directly: client-registration calls
// Keycloak before Envoy is up.
func outboundExcludes(s *identity.Settings) []int {
	port, ports := s.Registration.Port, s.Outbound.ExcludePorts
	if s.On(ClientRegistration) && s.Registration.Provider == "keycloak" && port > 0 &&
		!slices.Contains(ports, port) {
		return append(slices.Clone(ports), port)
	}
	return ports
}

func commas(ports []int) string {
	texts := make([]string, 0, len(ports))
	for _, port := range ports {
		texts = append(texts, strconv.Itoa(port))
	}
	return strings.Join(texts, ",")
}
