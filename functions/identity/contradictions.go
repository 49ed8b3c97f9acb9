package identity

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/krm"
)

const interception = "outbound.trafficInterception."

const metricsPort = "integration.prometheus.port"

// metrics finds a clash of the agent's metrics with what is injected.
func (c *checker) metrics(s *Settings) {
	p := s.Trace.Prometheus
	if !p.Enabled {
		return
	}
	for _, l := range s.listeners() {
		// An agent may serve its metrics where it serves everything else.
		if l.Port == p.Port && l.field != agentPort {
			c.warning("identity/port-clash", metricsPort,
				fmt.Sprintf("the agent's metrics are on port %d, which %s takes first", p.Port, l.Name),
				"serve metrics on another port, such as 9464")
			return
		}
	}
}

// contradictions finds settings that are right each for itself and wrong
// together. s has been settled.
func (c *checker) contradictions(s *Settings) {
	envoy := s.EnvoyProxy.Enabled
	ports := s.listeners()
	for i, a := range ports {
		for _, b := range ports[:i] {
			if a.Port == b.Port {
				hint := "give one of them another port"
				if annotation := cmp.Or(a.Annotation(), b.Annotation()); annotation != "" {
					hint += fmt.Sprintf(", for one workload with the annotation %s: %q", annotation, strconv.Itoa(s.FreePort(a.Port, nil)))
				}
				c.error("identity/port-clash", a.field,
					fmt.Sprintf("port %d is for %s and for %s", a.Port, b.Name, a.Name),
					hint+"; containers of a pod share their ports")
			}
		}
	}
	c.provider(s)
	c.issuer(s)
	if s.Profile == ProfileAuthBridge {
		c.authBridgeContradictions(s)
		return
	}
	if s.AuthProxy.Enabled && slices.Contains(s.Outbound.ExcludeInboundPorts, s.Inbound.TargetPort) {
		c.warning("identity/inbound-bypass", interception+"excludeInboundPorts",
			fmt.Sprintf("port %d, the agent's own, can be reached without a token", s.Inbound.TargetPort),
			"leave it out of the list; auth-proxy reaches the agent through loopback")
	}
	if s.Inbound.Enabled && s.Inbound.Validate && len(s.Inbound.RequiredScopes) > 0 && !s.Outbound.Intercept {
		c.warning("identity/scopes-unchecked", "inbound.validation.requiredScopes",
			"Envoy checks the scopes, and inbound traffic does not pass it",
			"let envoy-proxy and proxy-init in, or use an auth-proxy that reads REQUIRED_SCOPES")
	}
	if envoy && !s.Outbound.Intercept {
		c.warning("identity/proxy-unused", interception+"enabled",
			"envoy-proxy gets no traffic, because nothing sends any to it",
			"turn envoy-proxy off too, or let proxy-init intercept traffic")
	}
	if envoy && s.Outbound.TokenExchange && (!s.ClientRegistration.Enabled || s.Registration.Provider != "keycloak") {
		c.warning("identity/no-client", "outbound.tokenExchange",
			"tokens are to be exchanged, but nothing registers the client that exchanges them",
			"let client-registration register with Keycloak, turn token exchange off, or give envoy-proxy CLIENT_ID and CLIENT_SECRET yourself")
	}
	if envoy && s.Outbound.TokenExchange && s.Outbound.Default.Audience == "" {
		c.error("identity/target-missing", "outbound.tokenExchange.defaultTarget.audience",
			"token exchange needs an audience for destinations that no rule matches", "say defaultTarget.audience")
	}
	if s.ClientRegistration.Enabled && s.Registration.Provider == "keycloak" && s.Outbound.Intercept &&
		!slices.Contains(s.Outbound.ExcludePorts, s.Registration.Port) {
		severity, why := krm.Info, ""
		if strings.HasPrefix(s.Registration.URL, "http://") {
			severity, why = krm.Warning, "; tokens of other plain HTTP traffic to it are not exchanged"
		}
		c.add(severity, "identity/idp-port-excluded", interception+"excludePorts",
			fmt.Sprintf("port %d leaves the pod directly, because client-registration reaches Keycloak there before Envoy is up%s", s.Registration.Port, why),
			fmt.Sprintf("list %d in excludePorts to say that you know", s.Registration.Port))
	}
}

// issuer finds an issuer without its keys, or keys without their issuer: the one
// that nobody set stays the cluster's Keycloak's.
func (c *checker) issuer(s *Settings) {
	sound := func(raw string) bool {
		u, err := url.Parse(raw)
		return err == nil && u.Host != "" && u.User == nil
	}
	if !s.AuthProxy.Enabled && !s.EnvoyProxy.Enabled && !s.AuthBridgeProxy.Enabled || !s.Inbound.Enabled || !s.Inbound.Validate ||
		!sound(s.Inbound.Issuer) || !sound(s.Inbound.JWKSURL) { // which is a finding of its own
		return
	}
	const validation = "inbound.validation."
	switch {
	case s.derive.jwks && !s.derive.issuer && s.Profile != ProfileAuthBridge: // where the issuer is Keycloak's public name
		field := validation + "issuer"
		if at := "tokenExchange.issuer"; !c.origin.Has(c.prefix+field) && c.origin.Has(c.prefix+at) {
			field = at
		}
		c.warning("identity/jwks-of-keycloak", field,
			fmt.Sprintf("tokens of %s are checked with the keys of the cluster's Keycloak, %s", krm.Shown(s.Inbound.Issuer), krm.Shown(s.Inbound.JWKSURL)),
			"set "+validation+"jwksUrl, as the pod reaches it; to the same URL where the issuer is another name of this Keycloak")
	case s.derive.issuer && !s.derive.jwks:
		c.warning("identity/issuer-of-keycloak", validation+"jwksUrl",
			fmt.Sprintf("the keys are those of %s, and only tokens of the cluster's Keycloak, %s, are accepted", krm.Shown(s.Inbound.JWKSURL), krm.Shown(s.Inbound.Issuer)),
			"set "+validation+"issuer to what the tokens' iss says")
	}
	const tokenURL = "outbound.tokenExchange.tokenUrl"
	if beside := keysBeside(s.Outbound.TokenURL); s.EnvoyProxy.Enabled && strings.Contains(s.EnvoyProxy.Image, processorImage) &&
		strings.HasPrefix(beside, "http") && sound(beside) && hostOf(beside) != hostOf(s.Inbound.JWKSURL) {
		field := validation + "jwksUrl"
		if s.derive.jwks {
			field = tokenURL
		}
		c.warning("identity/keys-beside-token-url", field,
			fmt.Sprintf("the token processor beside Envoy checks tokens with the keys at %s, which it derives from tokenUrl: it does not read jwksUrl, %s", krm.Shown(beside), krm.Shown(s.Inbound.JWKSURL)),
			"set "+tokenURL+" to the token endpoint of the server that jwksUrl is of; a destination rule may have a tokenUrl of its own")
	}
}

// keysBeside is where the published token processor finds the keys of a token
// endpoint's issuer.
func keysBeside(tokenURL string) string { return strings.TrimSuffix(tokenURL, "/token") + "/certs" }

// hostOf gives the host and port of a URL.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

// provider checks that the identity provider has all that it needs.
func (c *checker) provider(s *Settings) {
	if !s.ClientRegistration.Enabled {
		return
	}
	missing := func(value, field, what string) {
		if value == "" {
			c.error("identity/provider-incomplete", "clientRegistration."+field,
				"provider "+s.Registration.Provider+" needs "+what, "say clientRegistration."+field)
		}
	}
	switch s.Registration.Provider {
	case "aws":
		missing(s.Registration.AWS.RoleARN, "aws.roleArn", "the IAM role to act as")
		missing(s.Registration.AWS.Region, "aws.region", "a region")
	case "gcp":
		missing(s.Registration.GCP.ProviderResource, "gcp.workloadIdentityProvider", "a workload identity provider")
	}
	if s.Registration.Provider != "keycloak" && !s.SPIFFE.Enabled {
		c.error("identity/provider-needs-spiffe", "clientRegistration.provider",
			"provider "+s.Registration.Provider+" federates the workload's SPIFFE identity, and SPIFFE is off",
			"turn SPIFFE on, or use keycloak")
	}
}

// portOf gives a URL's port, 0 where it has none.
func portOf(raw string) int {
	u, err := url.Parse(raw)
	if err != nil {
		return 0
	}
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	switch u.Scheme {
	case "http":
		return 80
	case "https":
		return 443
	}
	return 0
}

func trimSlash(s string) string { return strings.TrimRight(s, "/") }
