package lintrules

import (
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

// keycloakAdminRule reports credentials with which a pod could take over a realm.
const keycloakAdminRule = "keycloak-admin"

// adminPassword is the key and the variable that client-registration reads.
const adminPassword = "KEYCLOAK_ADMIN_PASSWORD"

// keycloakAdmin reports a Secret once for its namespace, whether the package has it or a pod refers
// to it.
func keycloakAdmin(c *checker) {
	report := func(at krm.Node, secret string) {
		c.once(finding.Home(c.Namespace)+"/"+secret, at, "let SPIFFE identify "+
			"the client (spec.profile: "+sidecars.AuthBridge+"), or keep the credentials "+
			"in the namespace of a program that registers clients for others",
			"the Secret, in a namespace of agents, has the credentials of Keycloak's administrator")
	}
	if c.Kind == "Secret" || c.Kind == "SealedSecret" {
		for _, data := range [...]krm.Node{c.Get("data"), c.Get("stringData"),
			c.Get("spec", "encryptedData")} {
			if key := data.Get(adminPassword); key.Exists() && c.hasAgent(c.Namespace) {
				report(key, c.Name)
			}
		}
	}
	if !c.isAgent(c.facts) {
		return
	}
	for _, x := range c.facts.containers {
		for v := range x.node.Get("env").Items() {
			if ref := v.Get("valueFrom", "secretKeyRef"); ref.Get("key").Is(adminPassword) ||
				v.Get("name").Is(adminPassword) && ref.Exists() {
				report(ref.Get("name"), ref.Get("name").Text())
			}
		}
	}
}

// hasAgent reports whether the package has an agent in a namespace.
func (p *Package) hasAgent(namespace string) bool {
	for _, pod := range p.collected.pods {
		if finding.Home(pod.ref.Namespace) == finding.Home(namespace) && p.isAgent(pod) {
			return true
		}
	}
	return false
}

// isAgent reports whether a pod is an agent: it was injected, or Kagenti's operator would inject
// it.
func (p *Package) isAgent(pod *pod) bool {
	if pod.injected || strings.EqualFold(pod.labels[p.prefix+"/type"], "agent") {
		return true
	}
	for _, x := range pod.containers {
		if x.name == sidecars.AuthBridgeProxy || x.name == sidecars.ClientRegistration {
			return true
		}
	}
	return false
}
