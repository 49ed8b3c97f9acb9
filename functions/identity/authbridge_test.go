package identity_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

const issuer = `identity: {inbound: {validation: {issuer: "https://keycloak.example.com/realms/agents", jwksUrl: "https://keycloak.example.com/keys"}}}`

// TestAuthBridgeKeys: a key that the profile, or the mode, does not have is an error
// that names it, wherever it is set.
func TestAuthBridgeKeys(t *testing.T) {
	for spec, want := range map[string]string{
		"profile: authbridge, authbridge: {mode: sidecar}": "error identity/unknown-value " +
			"spec.authbridge.mode",
		"profile: authbridge, authbridge: {clientAuth: password}": "error identity/" +
			"unknown-value spec.authbridge.clientAuth",
		"profile: authbridge, authbridge: {mode: envoy-sidecar, mtls: strict}": "error identity/" +
			"no-mtls spec.authbridge.mtls",
		"profile: kagenti, authbridge: {mode: lite}": "error identity/other-profile spec.authbridge",
		"profile: kagenti, components: {authbridge-proxy: {enabled: true}}": "error " +
			"identity/other-profile spec.components.authbridge-proxy",
		"profile: authbridge, components: {spiffe-helper: {enabled: false}}": "error identity/" +
			"other-profile spec.components.spiffe-helper",
		"profile: authbridge, components: {client-registration: {enabled: false}}": "error " +
			"identity/other-profile spec.components.client-registration",
		"profile: authbridge, components: {auth-proxy: {enabled: false}}": "error identity/" +
			"other-profile spec.components.auth-proxy",
	} {
		_, findings := sidecars.All().Base(decode[api.RenderConfig](t,
			"spec: {"+spec+", "+issuer+"}"))
		errors := slices.DeleteFunc(brief(findings),
			func(f string) bool { return !strings.HasPrefix(f, "error") })
		if !slices.Equal(errors, []string{want}) {
			t.Errorf("%s: %q, want %q", spec, errors, want)
		}
	}
	base, findings := sidecars.All().Base(decode[api.RenderConfig](t,
		"spec: {profile: authbridge, "+issuer+"}"))
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	for spec, want := range map[string]string{
		"spiffe: {outputFormat: x509}": "info identity/needless spec.spiffe.outputFormat",
		"clientRegistration: {enabled: true, keycloak: {adminCredentialsSecret: a, " +
			"clientNameTemplate: a}}": "info identity/needless spec.clientRegistration.enabled",
		"outbound: {trafficInterception: {proxyPort: 15001, " +
			"excludePorts: [3306]}}": "info identity/needless " +
			"spec.outbound.trafficInterception.proxyPort",
		"inbound: {validation: " +
			"{requiredScopes: [a]}}": "warning identity/other-profile " +
			"spec.inbound.validation.requiredScopes",
		"inbound: {validation: " +
			"{audience: any}}": "error identity/other-profile spec.inbound.validation.audience",
		"clientRegistration: {gcp: {workloadIdentityProvider: " +
			"projects/1/locations/global/workloadIdentityPools/p/providers/s}}": "error identity/" +
			"other-profile spec.clientRegistration.gcp",
	} {
		te := decode[api.TokenExchange](t,
			"spec: {targetRef: {kind: Deployment, name: weather-agent}, "+spec+"}")
		if _, findings := identity.Resolve(&base, weatherAgent(), te, nil,
			nil); !slices.Equal(brief(findings), []string{want}) {
			t.Errorf("%s: %v", spec, findings)
		}
	}
	for _, test := range []struct{ key, value, want string }{
		{"auth-proxy", "disabled", "info identity/needless"},
		{"auth-proxy", "enabled", "error identity/other-profile"},
		{"spiffe-helper-image", "a:v1", "error identity/other-profile"},
		{"authbridge-mode", "waypoint", "error identity/unknown-value"},
		{"outbound-ports-exclude", "3306", "info identity/needless"},
	} {
		_, findings := identity.Resolve(&base, weatherAgent(), nil, nil,
			[]identity.Annotation{{Key: "kagenti.io/" + test.key, Value: test.value, Line: 7}})
		if got := brief(findings); len(got) != 1 ||
			got[0] != test.want+` metadata.annotations["kagenti.io/`+test.key+`"]` ||
			findings[0].Line != 7 {
			t.Errorf("%s: %v", test.key, findings)
		}
	}
}

// TestAgentRuntime: an AgentRuntime overrides the configuration, and its settings that cannot be
// rendered are findings.
func TestAgentRuntime(t *testing.T) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t,
		"spec: {profile: authbridge, "+issuer+"}"))
	resolve := func(spec string) (identity.Settings, []string) {
		w := weatherAgent()
		w.Runtime = decode[api.AgentRuntime](t,
			"spec: {type: agent, targetRef: {apiVersion: apps/v1, kind: Deployment, name: "+
				"weather-agent}, "+spec+"}")
		s, findings := identity.Resolve(&base, w, nil, nil, nil)
		return s, brief(findings)
	}
	s, findings := resolve("authBridgeMode: lite, mtlsMode: strict, egressEnforcement: none, " +
		"identity: {spiffe: {trustDomain: example.com}, allowedAudiences: [a]}")
	got := []any{s.AuthBridge.Mode, s.AuthBridge.MTLS, s.On(sidecars.ProxyInit),
		s.SPIFFE.TrustDomain, s.AuthBridge.AllowedAudiences, findings}
	if diff := cmp.Diff([]any{"lite", "strict", false, "example.com", []string{"a"}, []string(nil)},
		got); diff != "" {
		t.Error(diff)
	}
	// Envoy gets its traffic from iptables, whichever value the resource has.
	if s, findings = resolve(
		"authBridgeMode: envoy-sidecar, egressEnforcement: none"); len(findings) > 0 ||
		!s.On(sidecars.ProxyInit) || s.AuthBridge.MTLS != "disabled" {
		t.Errorf("envoy-sidecar: %v, proxy-init %v, mTLS %s", findings, s.On(sidecars.ProxyInit),
			s.AuthBridge.MTLS)
	}
	for spec, want := range map[string]string{
		"authBridgeMode: waypoint": "error identity/no-waypoint spec.authBridgeMode",
		"authBridgeMode: sidecar":  "error identity/unknown-value spec.authBridgeMode",
		"authBridgeMode: envoy-sidecar, mtlsMode: permissive": "error identity/no-mtls " +
			"spec.mtlsMode",
		"egressEnforcement: drop": "error identity/unknown-value spec.egressEnforcement",
		"tlsBridgeMode: enabled":  "error identity/not-rendered spec.tlsBridgeMode",
		"inboundInterception: transparent": "error identity/not-rendered " +
			"spec.inboundInterception",
	} {
		if _, findings := resolve(spec); !slices.Contains(findings, want) {
			t.Errorf("%s: %q, want %q", spec, findings, want)
		}
	}
}

// TestAuthBridgeIssuer: a workload that presents itself to the author's Keycloak under a name that
// may not be Keycloak's is a warning, unless the issuer is set.
func TestAuthBridgeIssuer(t *testing.T) {
	for spec, want := range map[string][]string{
		"": nil,
		", identity: {clientRegistration: {keycloak: {url: " +
			"'http://kc.iam:8080'}}}": {
			"warning identity/internal-issuer spec.identity.inbound.validation.issuer"},
		", identity: {clientRegistration: {keycloak: " +
			"{realm: agents}}}": {
			"warning identity/internal-issuer spec.identity.inbound.validation.issuer"},
		", identity: {clientRegistration: {keycloak: {realm: agents}}, inbound: {validation: " +
			"{issuer: 'https://kc.example.com/realms/agents'}}}": nil,
	} {
		_, findings := sidecars.All().Base(decode[api.RenderConfig](t,
			"spec: {profile: authbridge"+spec+"}"))
		got := slices.DeleteFunc(brief(findings),
			func(f string) bool { return !strings.Contains(f, "internal-issuer") })
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", spec, got, want)
		}
	}
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t,
		"spec: {profile: authbridge, authbridge: {clientAuth: client-secret}}"))
	w := weatherAgent()
	w.Namespace = ""
	_, findings := identity.Resolve(&base, w, nil, nil, nil)
	if got := brief(findings); !slices.Equal(got,
		[]string{"error identity/client-secret metadata.namespace"}) {
		t.Error(got)
	}
	s, findings := identity.Resolve(&base, w, nil, nil,
		[]identity.Annotation{{Key: "kagenti.io/keycloak-client-credentials-secret-name", Value: "mine"}})
	if len(findings) > 0 || s.AuthBridge.Secret != "mine" {
		t.Error(s.AuthBridge.Secret, findings)
	}
}

// TestAuthBridgeName: the names of ConfigMaps fit a label and stay apart.
func TestAuthBridgeName(t *testing.T) {
	long := strings.Repeat("a", 62)
	configMap := sidecars.All().Named(sidecars.AuthBridge).ConfigMapName
	if got := configMap("weather"); got != "authbridge-config-weather" {
		t.Error(got)
	}
	if a, b := configMap(long), configMap(long+"b"); a == b || len(a) > 63 || len(b) > 63 {
		t.Error(a, b)
	}
}
