package sidecars

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/workload"
)

const (
	cortex    = "ghcr.io/rossoctl/cortex/"
	cortexTag = ":v0.7.0-alpha.2"
	// bridgeKeycloak and bridgeRealm are the defaults of the platform's own installation.
	bridgeKeycloak = "http://keycloak-service.keycloak.svc:8080"
	bridgeRealm    = "rossoctl"
)

// authBridge returns the profile of rossoctl/cortex da955ea and its operator of 2026-08.
func authBridge() identity.Profile {
	return identity.Profile{
		Name: AuthBridge, Prefix: keys.LabelPrefix, TokenDir: "/opt", FollowsPorts: true,
		AgentRuntimes: true,
		Sidecars:      []identity.Sidecar{proxyInit(bridgeInit), bridgeEnvoy(), authBridgeProxy()},
		Defaults: map[string]any{
			"components.proxy-init.image":       cortex + "proxy-init" + cortexTag,
			"components.envoy-proxy.image":      cortex + "authbridge-envoy" + cortexTag,
			"spiffe.socketPath":                 "/spiffe-workload-api/spire-agent.sock",
			"spiffe.audience":                   "", // the issuer
			"clientRegistration.keycloak.url":   bridgeKeycloak,
			"clientRegistration.keycloak.realm": bridgeRealm,
			"inbound.port":                      0, // the agent's
			"inbound.targetPort":                0,
			"inbound.validation.bypassPaths": []string{"/.well-known/*", "/healthz", "/readyz",
				"/livez", "/metrics"},
			"outbound.tokenExchange.defaultTarget.audience": "", // tokens are left alone
		},
		Lacks: []identity.Lack{
			{Path: "spiffe.outputFormat", Needless: true},
			{Path: "clientRegistration.enabled", Needless: true}, {Path: "clientRegistration.aws"},
			{Path: "clientRegistration.gcp"},
			{Path: "clientRegistration.keycloak.adminCredentialsSecret", Needless: true},
			{Path: "clientRegistration.keycloak.clientNameTemplate", Needless: true},
			{Path: "clientRegistration.keycloak.tokenExchangeEnabled", Needless: true},
			{Path: "inbound.validation.requiredScopes",
				Means: "AuthBridge does not check scopes: it accepts any token for the agent"},
		},
		ConfigMapPrefix: "authbridge-config-", // as Kagenti's operator has it
		Rules: identity.Rules{
			Settle: settleBridge, Given: givenToBridge, Unread: unreadByBridge,
			Merged: mergedForBridge, Contradictions: bridgeContradictions,
			Probe: probesBridge, Incomplete: unnamedSecret,
		},
	}
}

// settleBridge disables sidecars that would be idle in the mode, and computes ports and the name of
// the Secret.
func settleBridge(s *identity.Settings) {
	b, init, bridge, envoy := &s.AuthBridge, s.Component(ProxyInit), s.Component(AuthBridgeProxy),
		s.Component(EnvoyProxy)
	inEnvoy := b.Mode == identity.ModeEnvoySidecar
	noPort := len(b.Ports) == 0 && b.EnvPort == 0 && s.Inbound.Port == 0 && s.Inbound.TargetPort == 0
	if workload.Ends(s.Subject.Kind) && noPort {
		s.Inbound.Enabled = false // it receives no requests
	}
	some := s.Inbound.Enabled || s.Outbound.Enabled
	bridge.Enabled = bridge.Enabled && some && !inEnvoy
	envoy.Enabled = envoy.Enabled && some && inEnvoy
	proxy := bridge.Enabled || envoy.Enabled
	if b.Mode == identity.ModeLite && bridge.Image == fullImage {
		bridge.Image = liteImage
	}
	// Envoy gets traffic from iptables only. The other modes use them to catch traffic that
	// bypasses the forward proxy.
	intercept := init.Enabled && proxy && s.Outbound.Intercept && (inEnvoy || s.Outbound.Enabled)
	init.Enabled, s.Outbound.Intercept = intercept, intercept
	s.Outbound.TokenExchange = s.Outbound.TokenExchange && s.Outbound.Enabled
	if !s.SPIFFE.Enabled {
		b.ClientAuth = identity.ClientSecret
	}
	if b.MTLS == "" {
		b.MTLS = "disabled"
		if s.SPIFFE.Enabled && !inEnvoy {
			b.MTLS = "permissive"
		}
	}
	s.SPIFFE.Enabled = s.SPIFFE.Enabled && proxy &&
		(b.ClientAuth == identity.FederatedJWT || b.MTLS != "disabled")
	if s.SPIFFE.Audience == "" {
		s.SPIFFE.Audience = s.Inbound.Issuer // the name by which Keycloak identifies itself
	}
	if b.Secret == "" && s.Subject.Namespace != "" && needsClientSecret(s) {
		b.Secret = clientSecretOf(s.Subject.Namespace, s.Subject.Name)
	}
	b.ForwardPort, b.Moved = 0, false
	if bridge.Enabled {
		assignPorts(s)
	}
}

// assignPorts assigns the ports of the proxies of proxy-sidecar and lite that are not set. The
// reverse proxy takes the agent's port, and the agent moves to the next free one unless the author
// has moved it already.
func assignPorts(s *identity.Settings) {
	b := &s.AuthBridge
	if s.Inbound.Enabled {
		agent := agentPort(b)
		if s.Inbound.Port == 0 {
			s.Inbound.Port = agent
		}
		switch {
		case s.Inbound.TargetPort != 0:
		case b.EnvPort != 0 && b.EnvPort != s.Inbound.Port:
			s.Inbound.TargetPort = b.EnvPort
		case agent != s.Inbound.Port:
			s.Inbound.TargetPort = agent
		default:
			s.Inbound.TargetPort, b.Moved = s.FreePort(s.Inbound.Port, b.Ports), true
		}
	}
	if s.Outbound.Enabled {
		b.ForwardPort = s.FreePort(forwardPort, b.Ports)
	}
}

// agentPort returns the port at which clients reach the agent: its PORT, if a container declares
// that or none declares any, or else the first declared port.
func agentPort(b *identity.AuthBridge) int {
	switch {
	case b.EnvPort != 0 && (len(b.Ports) == 0 || slices.Contains(b.Ports, b.EnvPort)):
		return b.EnvPort
	case len(b.Ports) > 0:
		return b.Ports[0]
	}
	return agentDefault
}

// needsClientSecret reports whether the proxy reads the client's ID and secret from
// a Secret.
func needsClientSecret(s *identity.Settings) bool {
	if s.AuthBridge.ClientAuth != identity.ClientSecret || !s.AnyOn(AuthBridgeProxy, EnvoyProxy) {
		return false
	}
	return s.Outbound.TokenExchange || s.Inbound.Enabled && s.Inbound.Validate && s.SelfAudience()
}

// clientSecretOf returns the name that Kagenti's operator uses for the Secret of a workload's
// client.
func clientSecretOf(namespace, workload string) string {
	const name = "kagenti-keycloak-client-credentials"
	sum := sha256.Sum256([]byte(namespace + "\x00" + workload + "\x00" + name))
	return name + "-" + hex.EncodeToString(sum[:8])
}

// unnamedSecret reports that the Secret of the workload's client has no name.
func unnamedSecret(s *identity.Settings) (rule, field, message, hint string) {
	if s.AuthBridge.Secret != "" || !needsClientSecret(s) {
		return "", "", "", ""
	}
	return "identity/client-secret", "metadata.namespace",
		"the name of the Secret with the client's credentials depends on the namespace, and the " +
			"workload has none",
		"set metadata.namespace, or the Secret's name with the annotation " + s.Prefix + "/" +
			identity.ClientSecretName
}

// givenToBridge reports values that AuthBridge does not accept, and turns the fields of an
// AgentRuntime into settings.
func givenToBridge(c *identity.Checker, s *identity.Settings, set map[string]any) {
	const provider, audience = "clientRegistration.provider", "inbound.validation.audience"
	if c.By == identity.ByAgentRuntime {
		givenByRuntime(c, s, set)
	}
	if set[provider] != nil && set[provider] != "keycloak" {
		c.OtherProfile(s, provider, provider)
	}
	if set[audience] == "any" {
		c.Error("identity/other-profile", audience,
			"AuthBridge accepts no token without a known audience", "write self, or an audience")
	}
}

// givenByRuntime checks the fields of an AgentRuntime and turns them into settings of the table.
func givenByRuntime(c *identity.Checker, s *identity.Settings, set map[string]any) {
	const mode, egress = "authBridgeMode", "egressEnforcement"
	c.OneOf("type", set["type"].(string), "agent", "tool")
	if set["targetRef.apiVersion"] == "" {
		c.Error("identity/target-ref", "targetRef",
			"an AgentRuntime's targetRef needs an apiVersion", "write it as apps/v1")
	}
	if set[mode] == "waypoint" {
		c.Error("identity/no-waypoint", mode,
			"a waypoint is a separate Deployment, and the agent gets no sidecar",
			"remove the AgentRuntime, or take the mode "+identity.ModeProxySidecar)
		delete(set, mode)
	}
	if e, found := set[egress].(string); found {
		c.OneOf(egress, e, "enforce-redirect", "none")
		// Envoy gets its traffic from iptables, whichever value this has.
		set[egress] = e == "enforce-redirect" || set[mode] == identity.ModeEnvoySidecar ||
			set[mode] == nil &&
				s.AuthBridge.Mode == identity.ModeEnvoySidecar
	}
	for _, only := range [...]struct{ field, takes string }{{"tlsBridgeMode", "disabled"},
		{"inboundInterception", "reverse-proxy"}} {
		if value, found := set[only.field].(string); found && value != only.takes {
			c.Error("identity/not-rendered", only.field,
				fmt.Sprintf("%q is not supported: it needs objects that Kagenti's operator "+
					"creates in the cluster", text.Shown(value)),
				"set it to "+only.takes+", or leave this workload to the operator")
		}
	}
}

// unreadByBridge reports whether only the mode envoy-sidecar reads a setting.
func unreadByBridge(s *identity.Settings, path string) bool {
	switch strings.TrimPrefix(path, identity.Interception) {
	case "proxyPort", "inboundProxyPort", "excludePorts", "excludeInboundPorts":
		return s.AuthBridge.Mode != identity.ModeEnvoySidecar
	}
	return false
}

// mergedForBridge reports mTLS that nothing implements, once for the input that decides it.
func mergedForBridge(c *identity.Checker, s *identity.Settings, set map[string]any, field string) {
	_, section := set["authbridge"]
	_, mode := set[identity.BridgeMode]
	switch {
	case c.By == identity.ByAgentRuntime:
		field = "mtlsMode"
	case section:
		field = "authbridge.mtls"
	case field == "" || !mode:
		return
	}
	switch b := &s.AuthBridge; {
	case b.MTLS == "" || b.MTLS == "disabled":
	case b.Mode == identity.ModeEnvoySidecar:
		c.Error("identity/no-mtls", field,
			"AuthBridge has no mTLS in the mode "+identity.ModeEnvoySidecar,
			"set it to disabled, or take another mode")
	case !s.SPIFFE.Enabled:
		c.Error("identity/no-mtls", field,
			"mTLS needs the workload's SPIFFE identity, and SPIFFE is off",
			"set it to disabled, or turn SPIFFE on")
	}
}

// probesBridge reports whether a probe reaches the proxy: every probe in the mode envoy-sidecar,
// and the probes of its port in the others. AuthBridge cleans a path before it compares it.
func probesBridge(s *identity.Settings, p *identity.Probe) bool {
	p.Path, _, _ = strings.Cut(p.Path, "?")
	p.Path = path.Clean(p.Path)
	return p.Port == 0 || s.AuthBridge.Mode == identity.ModeEnvoySidecar || p.Port == s.Inbound.Port
}

// noPath is a path pattern that matches nothing, because AuthBridge cleans paths.
const noPath = "//"

// bypassPattern returns an author's pattern as AuthBridge compares it with cleaned paths.
func bypassPattern(pattern string) string {
	if pattern == noPath {
		return pattern
	}
	return path.Clean(pattern)
}

// checkBypassPaths reports patterns with which AuthBridge does not start.
func checkBypassPaths(c *identity.Checker, s *identity.Settings) {
	for i, pattern := range s.Inbound.BypassPaths {
		if clean := bypassPattern(pattern); clean == "/*" || clean == "/**" {
			c.Error("identity/bad-path", fmt.Sprintf("inbound.validation.bypassPaths[%d]", i),
				fmt.Sprintf("AuthBridge does not start with the pattern %q, which is too broad",
					text.Shown(pattern)),
				"name the paths that need no token, such as /docs or /static/*")
		}
	}
}

// checkRoutes warns of rules that have no effect on HTTPS, and of rules that share their tokens.
func checkRoutes(c *identity.Checker, s *identity.Settings) {
	const rules = "outbound.tokenExchange.destinationRules[%d]."
	all := s.Outbound.Rules
	for i := range all {
		r := &all[i]
		if r.Passthrough {
			continue
		}
		if leavesCluster(r.Host) {
			c.Warning("identity/https-rule", fmt.Sprintf(rules+"match.host", i),
				fmt.Sprintf("AuthBridge exchanges the tokens of plain HTTP alone: HTTPS requests "+
					"to %s keep the token that the agent sends", text.Shown(r.Host)),
				"let the agent call the host by plain HTTP, or set passthrough: true")
		}
		// The proxy caches a token by the caller's token and the audience.
		if j := slices.IndexFunc(all[:i], func(x identity.Rule) bool {
			return !x.Passthrough && x.Target.Audience == r.Target.Audience &&
				(x.TokenURL != r.TokenURL || !slices.Equal(x.Target.Scopes, r.Target.Scopes))
		}); j >= 0 {
			c.Warning("identity/shared-token", fmt.Sprintf(rules+"target.audience", i),
				fmt.Sprintf("AuthBridge uses one token for each audience, so %s and %s get each "+
					"other's scopes", text.Shown(all[j].Host), text.Shown(r.Host)),
				"give both rules the same scopes and tokenUrl, or each an audience of its own")
		}
	}
}

// leavesCluster reports whether a host looks like one outside of the cluster, which is usually
// reached by HTTPS.
func leavesCluster(host string) bool {
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := labels[len(labels)-1]
	switch {
	case len(labels) < 2 || strings.ContainsAny(last, "*:0123456789"):
		return false
	case len(labels) == 2: // a Service and its namespace, or a domain
		return slices.Contains([]string{"ai", "com", "dev", "io", "net", "org"}, last)
	}
	return !slices.Contains([]string{"svc", "local", "internal"}, last)
}

// bridgeContradictions reports contradictions, and warns if the workload presents itself to an
// author's Keycloak with a token for an address that may not be its issuer.
func bridgeContradictions(c *identity.Checker, s *identity.Settings) {
	checkIssuer(c, s, true)
	if s.ValidatesInbound() {
		checkBypassPaths(c, s)
	}
	if s.Outbound.TokenExchange && s.AnyOn(AuthBridgeProxy, EnvoyProxy) {
		checkRoutes(c, s)
	}
	if s.On(EnvoyProxy) && !s.Outbound.Intercept {
		c.Error("identity/proxy-unused", identity.Interception+"enabled",
			"no traffic is redirected to Envoy, so the tokens of inbound requests are not checked",
			"let proxy-init intercept traffic, or take the mode "+identity.ModeProxySidecar)
	}
	keycloak := &s.Registration
	if !sound(s.SPIFFE.Audience) || s.AuthBridge.ClientAuth != identity.FederatedJWT ||
		!s.SPIFFE.Enabled ||
		!s.Outbound.TokenExchange || !s.Derived.Issuer || s.SPIFFE.Audience != s.Inbound.Issuer ||
		keycloak.URL == bridgeKeycloak && keycloak.Realm == bridgeRealm {
		return
	}
	c.Warning("identity/internal-issuer", "inbound.validation.issuer",
		fmt.Sprintf(
			"the workload presents itself to Keycloak with a token for %s, the address by which "+
				"pods reach it: Keycloak accepts only its own issuer, which is its public URL",
			text.Shown(s.SPIFFE.Audience)),
		"set inbound.validation.issuer to the iss of the tokens")
}
