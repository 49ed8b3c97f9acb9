package sidecars

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/text"
)

// kagenti returns the profile of source 001.
func kagenti() identity.Profile {
	return identity.Profile{
		Name: Kagenti, Prefix: keys.LabelPrefix, TokenDir: "/shared", SharedVolume: ownSharedVolume,
		Sidecars: []identity.Sidecar{
			proxyInit(kagentiInit), spiffeHelper(), clientRegistration(), authProxy(), envoyProxy(),
		},
		Lacks: []identity.Lack{{Path: "authbridge"}, {Path: "outbound.noProxy", Needless: true}},
		Rules: identity.Rules{Settle: settleKagenti, Contradictions: contradictions},
	}
}

// rossoctl returns the profile kagenti with another prefix.
func rossoctl() identity.Profile {
	p := kagenti()
	p.Name, p.Prefix = Rossoctl, keys.RossoctlPrefix
	return p
}

func settleKagenti(s *identity.Settings) { settle(s, false) }

// settle disables sidecars that would be idle with these settings. envoyStays keeps Envoy for a
// workload without outbound settings.
func settle(s *identity.Settings, envoyStays bool) {
	init, helper, envoy := s.Component(ProxyInit), s.Component(SpiffeHelper), s.Component(EnvoyProxy)
	registration, inbound := s.Component(ClientRegistration), s.Component(AuthProxy)
	spiffe := s.SPIFFE.Enabled && helper.Enabled
	s.SPIFFE.Enabled, helper.Enabled = spiffe, spiffe
	registration.Enabled = registration.Enabled && s.Registration.Enabled
	inbound.Enabled = inbound.Enabled && s.Inbound.Enabled
	if !s.Outbound.Enabled {
		s.Outbound.TokenExchange = false
		envoy.Enabled = envoy.Enabled && envoyStays
	}
	// Traffic that is redirected to a missing proxy is lost.
	intercept := init.Enabled && envoy.Enabled && s.Outbound.Intercept
	init.Enabled, s.Outbound.Intercept = intercept, intercept
}

// contradictions reports settings that are valid separately but contradict each other.
func contradictions(c *identity.Checker, s *identity.Settings) {
	checkProvider(c, s)
	checkIssuer(c, s, false)
	if s.On(AuthProxy) && slices.Contains(s.Outbound.ExcludeInboundPorts, s.Inbound.TargetPort) {
		c.Warning("identity/inbound-bypass", identity.Interception+"excludeInboundPorts",
			fmt.Sprintf("port %d, the agent's own, can be reached without a token",
				s.Inbound.TargetPort),
			"leave it out of the list; auth-proxy reaches the agent through loopback")
	}
	if s.Inbound.Enabled && s.Inbound.Validate && len(s.Inbound.RequiredScopes) > 0 &&
		!s.Outbound.Intercept {
		c.Warning("identity/scopes-unchecked", "inbound.validation.requiredScopes",
			"Envoy checks the scopes, and inbound traffic does not pass it",
			"enable envoy-proxy and proxy-init, or use an auth-proxy that reads REQUIRED_SCOPES")
	}
	if s.On(EnvoyProxy) && !s.Outbound.Intercept {
		c.Warning("identity/proxy-unused", identity.Interception+"enabled",
			"envoy-proxy gets no traffic, because proxy-init does not redirect any to it",
			"turn envoy-proxy off too, or let proxy-init intercept traffic")
	}
	if s.On(EnvoyProxy) && s.Outbound.TokenExchange &&
		(!s.On(ClientRegistration) || s.Registration.Provider != "keycloak") {
		c.Warning("identity/no-client", "outbound.tokenExchange",
			"token exchange is enabled, but nothing registers the client that exchanges tokens",
			"let client-registration register with Keycloak, turn token exchange off, or set "+
				"CLIENT_ID and CLIENT_SECRET of envoy-proxy yourself")
	}
	if s.On(EnvoyProxy) && s.Outbound.TokenExchange && s.Outbound.Default.Audience == "" {
		c.Error("identity/target-missing", "outbound.tokenExchange.defaultTarget.audience",
			"token exchange needs an audience for destinations that no rule matches",
			"set defaultTarget.audience")
	}
	// A bad URL, whose port is 0, is a separate error.
	if s.On(ClientRegistration) && s.Registration.Provider == "keycloak" && s.Outbound.Intercept &&
		s.Registration.Port > 0 && !slices.Contains(s.Outbound.ExcludePorts, s.Registration.Port) {
		severity, why := finding.Info, ""
		if strings.HasPrefix(s.Registration.URL, "http://") {
			severity, why =
				finding.Warning, "; tokens of other plain HTTP traffic to it are not exchanged"
		}
		c.Add(severity, "identity/idp-port-excluded", identity.Interception+"excludePorts",
			fmt.Sprintf(
				"port %d leaves the pod directly, because client-registration reaches Keycloak "+
					"there before Envoy is up%s", s.Registration.Port, why),
			fmt.Sprintf("list %d in excludePorts to accept this", s.Registration.Port))
	}
}

// checkProvider reports settings that the identity provider lacks.
func checkProvider(c *identity.Checker, s *identity.Settings) {
	if !s.On(ClientRegistration) {
		return
	}
	missing := func(value, field, what string) {
		if value == "" {
			c.Error("identity/provider-incomplete", "clientRegistration."+field,
				"provider "+s.Registration.Provider+" needs "+what, "set clientRegistration."+field)
		}
	}
	switch s.Registration.Provider {
	case "aws":
		missing(s.Registration.AWS.RoleARN, "aws.roleArn", "the IAM role to act as")
		missing(s.Registration.AWS.Region, "aws.region", "a region")
	case "gcp":
		missing(s.Registration.GCP.ProviderResource, "gcp.workloadIdentityProvider",
			"a workload identity provider")
	}
	if s.Registration.Provider != "keycloak" && !s.SPIFFE.Enabled {
		c.Error("identity/provider-needs-spiffe", "clientRegistration.provider",
			"provider "+s.Registration.Provider+
				" federates the workload's SPIFFE identity, and SPIFFE is off",
			"turn SPIFFE on, or use keycloak")
	}
}

// checkIssuer reports an issuer without its keys, or keys without their issuer: the omitted one
// defaults to the cluster's Keycloak. public says that an issuer alone is Keycloak's public name.
func checkIssuer(c *identity.Checker, s *identity.Settings, public bool) {
	if !s.AnyOn(AuthProxy, EnvoyProxy, AuthBridgeProxy) || !s.Inbound.Enabled || !s.Inbound.Validate ||
		!sound(s.Inbound.Issuer) || !sound(s.Inbound.JWKSURL) { // a bad URL is a separate finding
		return
	}
	const validation = "inbound.validation."
	switch {
	case s.Derived.JWKS && !s.Derived.Issuer && !public:
		field := validation + "issuer"
		if at := "tokenExchange.issuer"; !c.Has(field) && c.Has(at) {
			field = at
		}
		c.Warning("identity/jwks-of-keycloak", field,
			fmt.Sprintf("tokens of %s are checked with the keys of the cluster's Keycloak, %s",
				text.Shown(s.Inbound.Issuer), text.Shown(s.Inbound.JWKSURL)),
			"set "+validation+
				"jwksUrl, as the pod reaches it; to the same URL if the issuer is another "+
				"name of this Keycloak")
	case s.Derived.Issuer && !s.Derived.JWKS:
		c.Warning("identity/issuer-of-keycloak", validation+"jwksUrl",
			fmt.Sprintf("the keys are those of %s, and only tokens of the cluster's Keycloak, "+
				"%s, are accepted", text.Shown(s.Inbound.JWKSURL), text.Shown(s.Inbound.Issuer)),
			"set "+validation+"issuer to the iss of the tokens")
	}
	const tokenURL = "outbound.tokenExchange.tokenUrl"
	if beside := keysBeside(s.Outbound.TokenURL); s.On(EnvoyProxy) &&
		strings.Contains(s.Component(EnvoyProxy).Image, processorImage) &&
		strings.HasPrefix(beside, "http") && sound(beside) &&
		authority(beside) != authority(s.Inbound.JWKSURL) {
		field := validation + "jwksUrl"
		if s.Derived.JWKS {
			field = tokenURL
		}
		c.Warning("identity/keys-beside-token-url", field,
			fmt.Sprintf(
				"the token processor beside Envoy checks tokens with the keys at %s, which it "+
					"derives from tokenUrl: it does not read jwksUrl, %s", text.Shown(beside),
				text.Shown(s.Inbound.JWKSURL)),
			"set "+tokenURL+
				" to the token endpoint of the server of jwksUrl; a destination rule may have "+
				"its own tokenUrl")
	}
}

// sound reports whether a text is a URL without credentials.
func sound(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Host != "" && u.User == nil
}

// keysBeside returns the URL at which the published token processor finds the keys of a token
// endpoint's issuer.
func keysBeside(tokenURL string) string { return strings.TrimSuffix(tokenURL, "/token") + "/certs" }

// authority returns the host and port of a URL.
func authority(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

// published returns the profile whose auth-proxy is off by default, and whose token has a separate
// volume. Envoy validates inbound requests, so it stays even if no tokens are exchanged.
func published() identity.Profile {
	p := kagenti()
	p.Name, p.TokenDir, p.SharedVolume, p.Rules.Settle = Published, "/opt", identity.SharedVolume,
		settlePublished
	p.Sidecars[0] = proxyInit(publishedInit)
	p.Defaults = map[string]any{
		"components.auth-proxy.enabled":     false,
		"spiffe.socketPath":                 "/spiffe-workload-api/spire-agent.sock",
		"spiffe.audience":                   "kagenti",
		"clientRegistration.keycloak.url":   "http://keycloak-service.keycloak.svc:8080",
		"clientRegistration.keycloak.realm": "kagenti",
	}
	return p
}

func settlePublished(s *identity.Settings) { settle(s, s.Inbound.Enabled) }
