package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
)

// Modes of AuthBridge.
const (
	ModeProxySidecar = "proxy-sidecar"
	ModeLite         = "lite"
	ModeEnvoySidecar = "envoy-sidecar"
)

// How the proxy proves to Keycloak which client it is.
const (
	FederatedJWT = "federated-jwt"
	ClientSecret = "client-secret"
)

// Ports that AuthBridge listens on, whatever the agent's are.
const (
	// TransparentPort takes what iptables redirect.
	TransparentPort = 8082
	// BridgeHealthPort answers probes, BridgeStatsPort serves statistics to
	// Kagenti's UI, and BridgeSessionPort, on loopback, conversations.
	BridgeHealthPort  = 9091
	BridgeStatsPort   = 9093
	BridgeSessionPort = 9094

	// forwardPort is the first candidate for the forward proxy, and agentDefault
	// the port of an agent that declares none.
	forwardPort  = 8081
	agentDefault = 8000
)

// AuthBridge is what ProfileAuthBridge adds to the settings. Inbound.Port is where
// the agent's requests arrive, and Inbound.TargetPort where the agent listens; 0
// leaves them to the workload's own ports.
type AuthBridge struct {
	// Mode is one of the modes.
	Mode string
	// ClientAuth is FederatedJWT or ClientSecret.
	ClientAuth string
	// MTLS is "disabled", "permissive" or "strict"; empty until it is settled.
	MTLS string
	// AllowedAudiences are those of inbound tokens beside Inbound.Audience.
	AllowedAudiences []string
	// Secret names the Secret with client-id.txt and client-secret.txt. It is empty
	// for FederatedJWT.
	Secret string
	// Ports are the TCP ports that the author's containers declare, and EnvPort the
	// port that the author's variable PORT gives the agent, 0 for none.
	Ports   []int
	EnvPort int
	// ForwardPort is where the agent sends its requests, 0 where nothing listens.
	ForwardPort int
}

const (
	cortex     = "ghcr.io/rossoctl/cortex/"
	cortexTag  = ":v0.7.0-alpha.2"
	fullImage  = cortex + "authbridge" + cortexTag
	liteImage  = cortex + "authbridge-lite" + cortexTag
	envoyImage = cortex + "authbridge-envoy" + cortexTag
)

// authBridgeDefaults are those of the source 2026-08 (rossoctl/cortex da955ea and
// the operator beside it).
func (s *Settings) authBridgeDefaults() {
	s.SpiffeHelper.Enabled, s.ClientRegistration.Enabled, s.AuthProxy.Enabled = false, false, false
	s.ProxyInit.Image = cortex + "proxy-init" + cortexTag
	s.EnvoyProxy.Image = envoyImage
	s.AuthBridgeProxy = Component{
		Enabled: true, Image: fullImage, ImagePullPolicy: "IfNotPresent",
		CPURequest: "100m", MemoryRequest: "128Mi", CPULimit: "300m", MemoryLimit: "384Mi",
	}
	s.SPIFFE.SocketPath = "/spiffe-workload-api/spire-agent.sock"
	s.SPIFFE.Audience = "" // the issuer
	s.SPIFFE.TokenDir = "/opt"
	s.Registration.URL = "http://keycloak-service.keycloak.svc:8080"
	s.Registration.Realm = "rossoctl"
	s.Inbound.Port, s.Inbound.TargetPort = 0, 0
	s.Inbound.BypassPaths = append(s.Inbound.BypassPaths, "/metrics")
	s.Outbound.Default = Target{Scopes: []string{"openid"}} // without an audience tokens are left alone
	s.AuthBridge = AuthBridge{Mode: ModeProxySidecar, ClientAuth: FederatedJWT}
}

// settleAuthBridge is settle for ProfileAuthBridge.
func (s *Settings) settleAuthBridge() {
	b := &s.AuthBridge
	envoy := b.Mode == ModeEnvoySidecar
	some := s.Inbound.Enabled || s.Outbound.Enabled
	s.AuthBridgeProxy.Enabled = s.AuthBridgeProxy.Enabled && some && !envoy
	s.EnvoyProxy.Enabled = s.EnvoyProxy.Enabled && some && envoy
	proxy := s.AuthBridgeProxy.Enabled || s.EnvoyProxy.Enabled
	if b.Mode == ModeLite && s.AuthBridgeProxy.Image == fullImage {
		s.AuthBridgeProxy.Image = liteImage
	}
	// Envoy gets no traffic but from iptables; the other modes catch with them
	// what does not leave by the forward proxy.
	intercept := s.ProxyInit.Enabled && proxy && s.Outbound.Intercept && (envoy || s.Outbound.Enabled)
	s.ProxyInit.Enabled, s.Outbound.Intercept = intercept, intercept
	s.Outbound.TokenExchange = s.Outbound.TokenExchange && s.Outbound.Enabled
	if !s.SPIFFE.Enabled {
		b.ClientAuth = ClientSecret
	}
	if b.MTLS == "" {
		b.MTLS = "disabled"
		if s.SPIFFE.Enabled && !envoy {
			b.MTLS = "permissive"
		}
	}
	s.SPIFFE.Enabled = s.SPIFFE.Enabled && proxy && (b.ClientAuth == FederatedJWT || b.MTLS != "disabled")
	if s.SPIFFE.Audience == "" {
		s.SPIFFE.Audience = s.Inbound.Issuer // by which Keycloak knows itself
	}
	if b.Secret == "" && s.Namespace != "" && s.NeedsClientSecret() {
		b.Secret = clientSecretOf(s.Namespace, s.Name)
	}
	s.assignPorts()
}

// assignPorts gives the proxies of proxy-sidecar and lite the ports that nobody has
// set: the reverse proxy takes the agent's, which goes to the next free one.
func (s *Settings) assignPorts() {
	b := &s.AuthBridge
	b.ForwardPort = 0
	if !s.AuthBridgeProxy.Enabled {
		return
	}
	if s.Inbound.Enabled {
		if s.Inbound.Port == 0 {
			s.Inbound.Port = agentDefault
			if len(b.Ports) > 0 {
				s.Inbound.Port = b.Ports[0]
			}
		}
		switch {
		case s.Inbound.TargetPort != 0:
		case b.EnvPort != 0 && b.EnvPort != s.Inbound.Port:
			s.Inbound.TargetPort = b.EnvPort
		default:
			s.Inbound.TargetPort = s.FreePort(s.Inbound.Port, b.Ports)
		}
	}
	if s.Outbound.Enabled {
		b.ForwardPort = s.FreePort(forwardPort, b.Ports)
	}
}

// authBridgeListeners are the ports of AuthBridge that nothing else listens on.
func (s *Settings) authBridgeListeners(listens func(on bool, port int, name, field, annotation string)) {
	proxy := s.AuthBridgeProxy.Enabled
	listens(proxy && s.Inbound.Enabled, s.Inbound.Port, "AuthBridge's reverse proxy", reversePort, inboundPort)
	listens(proxy && s.Inbound.Enabled, s.Inbound.TargetPort, "the agent", agentPort, targetPort)
	listens(proxy && s.Outbound.Enabled, s.AuthBridge.ForwardPort, "AuthBridge's forward proxy", "outbound", "")
	listens(proxy && s.Outbound.Enabled, TransparentPort, "AuthBridge's transparent proxy", "outbound", "")
	any := proxy || s.EnvoyProxy.Enabled
	listens(any, BridgeHealthPort, "AuthBridge's health check", "outbound", "")
	listens(any, BridgeStatsPort, "AuthBridge's statistics", "outbound", "")
	listens(any, BridgeSessionPort, "AuthBridge's sessions", "outbound", "")
}

// NeedsClientSecret reports whether the proxy reads the client's ID and secret from
// a Secret.
func (s *Settings) NeedsClientSecret() bool {
	if s.AuthBridge.ClientAuth != ClientSecret || !s.AuthBridgeProxy.Enabled && !s.EnvoyProxy.Enabled {
		return false
	}
	return s.Outbound.TokenExchange || s.Inbound.Enabled && s.Inbound.Validate && s.SelfAudience()
}

// clientSecretOf is the name that Kagenti's operator gives the Secret of a
// workload's client.
func clientSecretOf(namespace, workload string) string {
	const name = "kagenti-keycloak-client-credentials"
	sum := sha256.Sum256([]byte(namespace + "\x00" + workload + "\x00" + name))
	return name + "-" + hex.EncodeToString(sum[:8])
}

// clientSecret finds a workload whose client's Secret cannot be named. s has been
// settled.
func (s *Settings) clientSecret(w Workload) []krm.Finding {
	if s.Profile != ProfileAuthBridge || s.AuthBridge.Secret != "" || !s.NeedsClientSecret() || s.TraceOnly {
		return nil
	}
	c := &checker{
		origin: &api.Origin{File: w.File, Line: w.Line},
		object: krm.Ref{APIVersion: w.APIVersion, Kind: w.Kind, Namespace: w.Namespace, Name: w.Name},
	}
	c.error("identity/client-secret", "metadata.namespace", "the name of the Secret with the client's credentials follows from the namespace, and the workload has none",
		"set metadata.namespace, or the Secret's name with the annotation "+s.Prefix+"/"+clientSecretName)
	return c.findings
}

// agentPorts reads the TCP ports that the containers of a pod declare, and the port
// that the author gives the agent with the variable PORT.
func agentPorts(pod krm.PodTemplate) (ports []int, env int) {
	for c := range pod.Spec().Get("containers").Items() {
		for p := range c.Get("ports").Items() {
			if protocol := p.Get("protocol"); protocol.Is("UDP") || protocol.Is("SCTP") {
				continue
			}
			if port, ok := p.Get("containerPort").Int(); ok {
				ports = append(ports, port)
			}
		}
	}
	for v := range AgentContainer(pod).Get("env").Items() {
		if v.Get("name").Is("PORT") {
			env, _ = strconv.Atoi(v.Get("value").Text())
		}
	}
	return ports, env
}

// AgentContainer is the one whose port AuthBridge takes: the first with a TCP port,
// or the first at all.
func AgentContainer(pod krm.PodTemplate) (agent krm.Node) {
	for c := range pod.Spec().Get("containers").Items() {
		if !agent.Exists() {
			agent = c
		}
		for p := range c.Get("ports").Items() {
			if protocol := p.Get("protocol"); !protocol.Is("UDP") && !protocol.Is("SCTP") {
				return c
			}
		}
	}
	return agent
}

// runtimeFields are the fields of an AgentRuntime's spec by the settings that they
// set.
var runtimeFields = map[string]string{
	"authbridge.mode":                      "authBridgeMode",
	"authbridge.mtls":                      "mtlsMode",
	"authbridge.allowedAudiences":          "identity.allowedAudiences",
	"spiffe.trustDomain":                   "identity.spiffe.trustDomain",
	"outbound.trafficInterception.enabled": "egressEnforcement",
}

// authBridge adds the settings of the profile.
func (l *settingList) authBridge(s *Settings) {
	l.text(s, "authbridge.mode", func(s *Settings) *string { return &s.AuthBridge.Mode }, ModeProxySidecar, ModeLite).annotations = []string{authBridgeMode}
	l.text(s, "authbridge.clientAuth", func(s *Settings) *string { return &s.AuthBridge.ClientAuth }, FederatedJWT, ClientSecret)
	l.text(s, "authbridge.mtls", func(s *Settings) *string { return &s.AuthBridge.MTLS }, "disabled", "strict")
	l.add("authbridge.allowedAudiences", strings.Join(s.AuthBridge.AllowedAudiences, " "), func(s *Settings) { s.AuthBridge.AllowedAudiences = []string{"altered"} })
}

// authBridge merges what the configuration says of AuthBridge.
func (c *checker) authBridge(s *Settings, x *api.AuthBridgeSpec) {
	if x == nil {
		return
	}
	if s.Profile != ProfileAuthBridge {
		c.otherProfile(s, "authbridge", "spec.authbridge")
		return
	}
	b := &s.AuthBridge
	c.optionalOneOf("authbridge.mode", x.Mode, ModeProxySidecar, ModeLite, ModeEnvoySidecar)
	set(&b.Mode, x.Mode)
	c.optionalOneOf("authbridge.clientAuth", x.ClientAuth, FederatedJWT, ClientSecret)
	set(&b.ClientAuth, x.ClientAuth)
	c.optionalOneOf("authbridge.mtls", x.MTLS, "disabled", "permissive", "strict")
	set(&b.MTLS, x.MTLS)
	c.mtls(s, "authbridge.mtls")
}

// mtls finds mTLS where nothing does it.
func (c *checker) mtls(s *Settings, field string) {
	b := &s.AuthBridge
	if b.MTLS == "" || b.MTLS == "disabled" {
		return
	}
	switch {
	case b.Mode == ModeEnvoySidecar:
		c.error("identity/no-mtls", field, "AuthBridge has no mTLS in the mode "+ModeEnvoySidecar, "set it to disabled, or take another mode")
	case !s.SPIFFE.Enabled:
		c.error("identity/no-mtls", field, "mTLS needs the workload's SPIFFE identity, and SPIFFE is off", "set it to disabled, or turn SPIFFE on")
	}
}

// runtime merges an AgentRuntime.
func (c *checker) runtime(s *Settings, x *api.AgentRuntimeSpec) {
	b := &s.AuthBridge
	c.oneOf("type", x.Type, "agent", "tool")
	if x.TargetRef.APIVersion == "" {
		c.error("identity/target-ref", "targetRef", "an AgentRuntime's targetRef needs an apiVersion", "write it as apps/v1")
	}
	if x.AuthBridgeMode != nil {
		if *x.AuthBridgeMode == "waypoint" {
			c.error("identity/no-waypoint", "authBridgeMode", "a waypoint is a Deployment of its own, and nothing is put beside the agent", "remove the AgentRuntime, or take the mode "+ModeProxySidecar)
		} else {
			c.oneOf("authBridgeMode", *x.AuthBridgeMode, ModeProxySidecar, ModeLite, ModeEnvoySidecar)
			b.Mode = *x.AuthBridgeMode
		}
	}
	c.optionalOneOf("mtlsMode", x.MTLSMode, "disabled", "permissive", "strict")
	set(&b.MTLS, x.MTLSMode)
	c.mtls(s, "mtlsMode")
	if e := x.EgressEnforcement; e != nil {
		c.oneOf("egressEnforcement", *e, "enforce-redirect", "none")
		// Envoy gets its traffic from iptables whatever this says.
		s.Outbound.Intercept = *e == "enforce-redirect" || b.Mode == ModeEnvoySidecar
	}
	for _, f := range [...]struct {
		field, takes string
		value        *string
	}{{"tlsBridgeMode", "disabled", x.TLSBridgeMode}, {"inboundInterception", "reverse-proxy", x.InboundInterception}} {
		if f.value != nil && *f.value != f.takes {
			c.error("identity/not-rendered", f.field, fmt.Sprintf("%q is not rendered: it needs objects that Kagenti's operator makes in the cluster", krm.Shown(*f.value)),
				"set it to "+f.takes+", or leave this workload to the operator")
		}
	}
	if id := x.Identity; id != nil {
		if id.SPIFFE != nil && id.SPIFFE.TrustDomain != nil {
			c.trustDomain("identity.spiffe.trustDomain", *id.SPIFFE.TrustDomain)
			s.SPIFFE.TrustDomain = *id.SPIFFE.TrustDomain
		}
		for i, a := range id.AllowedAudiences {
			c.text(indexed("identity.allowedAudiences", i), a)
		}
		if id.AllowedAudiences != nil {
			b.AllowedAudiences = id.AllowedAudiences
		}
	}
}

// authBridgeAnnotation merges an annotation that the profile reads in its own way,
// or that it does not have.
func (c *checker) authBridgeAnnotation(s *Settings, name, value, field string) (done bool) {
	switch name {
	case authBridgeMode:
		c.oneOf(field, value, ModeProxySidecar, ModeLite, ModeEnvoySidecar)
		s.AuthBridge.Mode = value
		c.mtls(s, field)
	case clientSecretName:
		c.secretName(field, value)
		s.AuthBridge.Secret = value
	case proxyPort, inboundProxyPort, outboundExclude, inboundExclude:
		if s.AuthBridge.Mode == ModeEnvoySidecar {
			return false
		}
		c.otherMode(s, field, name)
	default:
		return false
	}
	return true
}

// otherProfile reports a key that the profile does not have.
func (c *checker) otherProfile(s *Settings, field, key string) {
	c.error("identity/other-profile", field, fmt.Sprintf("the profile %s has no %s", s.Profile, key), "remove it, or set spec.profile to one that has it")
}

// otherMode reports a key that is read in the mode envoy-sidecar alone.
func (c *checker) otherMode(s *Settings, field, key string) {
	c.error("identity/other-mode", field, fmt.Sprintf("AuthBridge has no %s in the mode %s", key, krm.Shown(s.AuthBridge.Mode)), "remove it, or take the mode "+ModeEnvoySidecar)
}

// otherComponents reports components that the profile does not have.
func (c *checker) otherComponents(s *Settings, x *api.ComponentsSpec) {
	for _, of := range [...]struct {
		name string
		set  *api.ComponentSpec
	}{{SpiffeHelper, x.SpiffeHelper}, {ClientRegistration, x.ClientRegistration}, {AuthProxy, x.AuthProxy}, {AuthBridgeProxy, x.AuthBridgeProxy}} {
		if of.set != nil && !s.Has(of.name) {
			c.otherProfile(s, "components."+of.name, of.name)
		}
	}
}

// otherSettings reports settings of the injected programs that AuthBridge replaces.
func (c *checker) otherSettings(s *Settings, x *api.IdentitySpec) {
	of := func(field string, set bool) {
		if set {
			c.otherProfile(s, field, field)
		}
	}
	if p := x.SPIFFE; p != nil {
		of("spiffe.outputFormat", p.OutputFormat != nil)
	}
	if r := x.ClientRegistration; r != nil {
		const at = "clientRegistration."
		of(at+"enabled", r.Enabled != nil)
		of(at+"provider", r.Provider != nil && *r.Provider != "keycloak")
		of(at+"aws", r.AWS != nil)
		of(at+"gcp", r.GCP != nil)
		if k := r.Keycloak; k != nil {
			of(at+"keycloak.adminCredentialsSecret", k.AdminCredentialsSecret != nil)
			of(at+"keycloak.clientNameTemplate", k.ClientNameTemplate != nil)
			of(at+"keycloak.tokenExchangeEnabled", k.TokenExchangeEnabled != nil)
		}
	}
	if in := x.Inbound; in != nil && in.Validation != nil {
		of("inbound.validation.requiredScopes", in.Validation.RequiredScopes != nil)
		if a := in.Validation.Audience; a != nil && *a == "any" {
			c.error("identity/other-profile", "inbound.validation.audience", "AuthBridge takes no token without an audience that it knows", "write self, or an audience")
		}
	}
	if out := x.Outbound; out != nil && out.TrafficInterception != nil && s.AuthBridge.Mode != ModeEnvoySidecar {
		t := out.TrafficInterception
		for _, of := range [...]struct {
			name string
			set  bool
		}{
			{"proxyPort", t.ProxyPort != nil}, {"inboundProxyPort", t.InboundProxyPort != nil},
			{"excludePorts", t.ExcludePorts != nil}, {"excludeInboundPorts", t.ExcludeInboundPorts != nil},
		} {
			if of.set {
				c.otherMode(s, interception+of.name, of.name)
			}
		}
	}
}

// authBridgeContradictions is contradictions for ProfileAuthBridge. It warns where
// Keycloak is presented with a token for a name that may not be its own. s has been
// settled.
func (c *checker) authBridgeContradictions(s *Settings) {
	if s.EnvoyProxy.Enabled && !s.Outbound.Intercept {
		c.error("identity/proxy-unused", interception+"enabled", "nothing sends traffic to Envoy, so that nobody checks the tokens that arrive",
			"let proxy-init intercept traffic, or take the mode "+ModeProxySidecar)
	}
	if s.AuthBridge.ClientAuth != FederatedJWT || !s.SPIFFE.Enabled || !s.Outbound.TokenExchange || !s.derive.issuer || s.SPIFFE.Audience != s.Inbound.Issuer {
		return
	}
	c.warning("identity/internal-issuer", "inbound.validation.issuer",
		fmt.Sprintf("the workload presents itself to Keycloak with a token for %s, the address by which pods reach it: Keycloak takes only its own issuer, which is its public URL", krm.Shown(s.SPIFFE.Audience)),
		"set inbound.validation.issuer to what the tokens' iss says")
}
