package sidecars

import "github.com/armature-dev/armature/functions/identity"

// published has no auth-proxy unless somebody asks for it, and the token in a volume of
// its own. Envoy validates what comes in, so that it stays where nothing is exchanged
// on the way out.
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
