package identity_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

func TestIdentityFindings(t *testing.T) {
	for name, test := range map[string]struct {
		spec string
		want []string
	}{
		"inbound is target": {"inbound: {port: 8081}",
			[]string{"error identity/port-clash spec.inbound.targetPort"}},
		"proxy port twice": {"outbound: {trafficInterception: {proxyPort: 15124}}",
			[]string{
				"error identity/port-clash spec.outbound.trafficInterception.inboundProxyPort"}},
		"Envoy's admin": {"inbound: {targetPort: 9901}",
			[]string{"error identity/port-clash spec.inbound.targetPort"}},
		"the token processor's": {"inbound: {port: 9090}",
			[]string{"error identity/port-clash spec.inbound.port"}},
		"spiffe-helper's": {"inbound: {port: 15125}",
			[]string{"error identity/port-clash spec.inbound.port"}},
		"port 0": {"inbound: {port: 0}",
			[]string{"error identity/bad-port spec.inbound.port"}},
		"port 70000": {"outbound: {trafficInterception: {excludePorts: [8080, 70000]}}",
			[]string{"error identity/bad-port spec.outbound.trafficInterception.excludePorts[1]"}},
		"root": {"outbound: {trafficInterception: {proxyUid: 0}}",
			[]string{"error identity/bad-uid spec.outbound.trafficInterception.proxyUid"}},
		"the helpers' user": {"outbound: {trafficInterception: {proxyUid: 1000}}",
			[]string{"error identity/bad-uid spec.outbound.trafficInterception.proxyUid"}},
		"negative user": {"outbound: {trafficInterception: {proxyUid: -1}}",
			[]string{"error identity/bad-uid spec.outbound.trafficInterception.proxyUid"}},
		"unknown provider": {"clientRegistration: {provider: okta}",
			[]string{"error identity/unknown-value spec.clientRegistration.provider",
				"warning identity/no-client spec.outbound.tokenExchange"}},
		"aws without role": {"clientRegistration: {provider: aws}",
			[]string{"error identity/provider-incomplete spec.clientRegistration.aws.roleArn",
				"error identity/provider-incomplete spec.clientRegistration.aws.region",
				"warning identity/no-client spec.outbound.tokenExchange"}},
		"gcp without provider": {
			"clientRegistration: {gcp: {projectId: p}}, outbound: {enabled: false}",
			[]string{"error identity/provider-incomplete " +
				"spec.clientRegistration.gcp.workloadIdentityProvider"}},
		"aws without SPIFFE": {"spiffe: {enabled: false}, outbound: {enabled: false}, " +
			"clientRegistration: {aws: {roleArn: 'arn:aws:iam::1:role/r', region: eu}}",
			[]string{"error identity/provider-needs-spiffe spec.clientRegistration.provider"}},
		"bad role": {
			"outbound: {enabled: false}, clientRegistration: {aws: {roleArn: role, region: eu}}",
			[]string{"error identity/bad-role-arn spec.clientRegistration.aws.roleArn"}},
		"bad gcp provider": {"outbound: {enabled: false}, clientRegistration: {gcp: " +
			"{workloadIdentityProvider: pool}}",
			[]string{"error identity/bad-provider-name " +
				"spec.clientRegistration.gcp.workloadIdentityProvider"}},
		"bad URL": {"inbound: {validation: {issuer: keycloak}}",
			[]string{"error identity/bad-url spec.inbound.validation.issuer"}},
		"ftp": {"outbound: {tokenExchange: {tokenUrl: 'ftp://x/token'}}",
			[]string{"error identity/bad-url spec.outbound.tokenExchange.tokenUrl"}},
		"password in URL": {
			"clientRegistration: {keycloak: {url: 'http://admin:admin@kc:8080'}}",
			[]string{"error identity/secret-in-url spec.clientRegistration.keycloak.url"}},
		"URL with line break": {`inbound: {validation: {jwksUrl: "http://x\ny"}}`,
			[]string{"error identity/control-character spec.inbound.validation.jwksUrl"}},
		"no admin Secret": {"clientRegistration: {keycloak: {adminCredentialsSecret: ''}}",
			[]string{"error identity/secret-missing " +
				"spec.clientRegistration.keycloak.adminCredentialsSecret"}},
		"odd admin Secret": {"clientRegistration: {keycloak: {adminCredentialsSecret: 'a b'}}",
			[]string{"error identity/bad-secret-name " +
				"spec.clientRegistration.keycloak.adminCredentialsSecret"}},
		"unknown placeholder": {
			"clientRegistration: {keycloak: {clientNameTemplate: '{{.Pod}}'}}",
			[]string{"error identity/bad-client-name " +
				"spec.clientRegistration.keycloak.clientNameTemplate"}},
		"open placeholder": {
			"clientRegistration: {keycloak: {clientNameTemplate: '{{.PodName'}}",
			[]string{"error identity/bad-client-name " +
				"spec.clientRegistration.keycloak.clientNameTemplate"}},
		"realm with slash": {"clientRegistration: {keycloak: {realm: a/b}}",
			[]string{"error identity/bad-realm spec.clientRegistration.keycloak.realm"}},
		"trust domain": {"spiffe: {trustDomain: 'spiffe://x'}",
			[]string{"error identity/bad-trust-domain spec.spiffe.trustDomain"}},
		"relative socket": {"spiffe: {socketPath: agent.sock}",
			[]string{"error identity/bad-socket spec.spiffe.socketPath"}},
		"socket over /etc": {"spiffe: {socketPath: /etc/agent.sock}",
			[]string{"error identity/bad-socket spec.spiffe.socketPath"}},
		"output format": {"spiffe: {outputFormat: pem}",
			[]string{"error identity/unknown-value spec.spiffe.outputFormat"}},
		"scope with space": {"inbound: {validation: {requiredScopes: ['a b']}}",
			[]string{"error identity/bad-scope spec.inbound.validation.requiredScopes[0]"}},
		"path with comma": {"inbound: {validation: {bypassPaths: ['/a,/']}}",
			[]string{"error identity/bad-path spec.inbound.validation.bypassPaths[0]"}},
		"rule without target": {
			"outbound: {tokenExchange: {destinationRules: [{match: {host: a}}]}}",
			[]string{"error identity/target-missing " +
				"spec.outbound.tokenExchange.destinationRules[0].target.audience"}},
		"rule with port": {"outbound: {tokenExchange: {destinationRules: [{match: {host: " +
			"'a:80'}, passthrough: true}]}}",
			[]string{"error identity/bad-host " +
				"spec.outbound.tokenExchange.destinationRules[0].match.host"}},
		"rule with URL": {"outbound: {tokenExchange: {destinationRules: [{match: {host: " +
			"'http://a/'}, passthrough: true}]}}",
			[]string{"error identity/bad-host " +
				"spec.outbound.tokenExchange.destinationRules[0].match.host"}},
		"no default audience": {"outbound: {tokenExchange: {defaultTarget: {audience: ''}}}",
			[]string{"error identity/empty spec.outbound.tokenExchange.defaultTarget.audience",
				"error identity/target-missing spec.outbound.tokenExchange.defaultTarget.audience"}},
		"agent unprotected": {"outbound: {trafficInterception: {excludeInboundPorts: [8081]}}",
			[]string{"warning identity/inbound-bypass " +
				"spec.outbound.trafficInterception.excludeInboundPorts"}},
		"unchecked scopes": {
			"inbound: {validation: {requiredScopes: [a]}}, outbound: {enabled: false}",
			[]string{"warning identity/scopes-unchecked spec.inbound.validation.requiredScopes"}},
		"unused proxy": {"outbound: {trafficInterception: {enabled: false}}",
			[]string{"warning identity/proxy-unused spec.outbound.trafficInterception.enabled"}},
		"https provider": {"clientRegistration: {keycloak: {url: 'https://kc'}}",
			[]string{
				"info identity/idp-port-excluded spec.outbound.trafficInterception.excludePorts"}},
		"http provider": {"clientRegistration: {keycloak: {url: 'http://kc'}}",
			[]string{
				"warning identity/idp-port-excluded spec.outbound.trafficInterception.excludePorts"}},
		"issuer alone": {
			"inbound: {validation: {issuer: 'https://sso.example.com/realms/a'}}",
			[]string{"warning identity/jwks-of-keycloak spec.inbound.validation.issuer"}},
		"001's issuer alone": {"tokenExchange: {issuer: 'https://sso.example.com/realms/a'}",
			[]string{"warning identity/jwks-of-keycloak spec.tokenExchange.issuer"}},
		"keys alone": {
			"inbound: {validation: {jwksUrl: 'https://sso.example.com/keys'}}",
			[]string{"warning identity/issuer-of-keycloak spec.inbound.validation.jwksUrl",
				"warning identity/keys-beside-token-url spec.inbound.validation.jwksUrl"}},
		"issuer and keys": {"tokenExchange: {issuer: 'https://a'}, inbound: {validation: " +
			"{jwksUrl: 'https://a/keys'}}",
			[]string{"warning identity/keys-beside-token-url spec.inbound.validation.jwksUrl"}},
		"token URL elsewhere": {"outbound: {tokenExchange: {tokenUrl: 'https://a/token'}}",
			[]string{
				"warning identity/keys-beside-token-url spec.outbound.tokenExchange.tokenUrl"}},
		"keys and token URL": {"tokenExchange: {issuer: 'https://a'}, inbound: {validation: " +
			"{jwksUrl: 'https://a/keys'}}, outbound: {tokenExchange: {tokenUrl: 'https://a/token'}}", nil},
		"keys of nobody": {"tokenExchange: {issuer: 'https://a'}, inbound: {validation: " +
			"{enabled: false, jwksUrl: 'https://a/keys'}}", nil},
		"issuer of nobody": {
			"tokenExchange: {issuer: 'https://a'}, inbound: {validation: {enabled: false}}", nil},
		"issuer with password": {"tokenExchange: {issuer: 'https://u:p@a'}",
			[]string{"error identity/secret-in-url spec.tokenExchange.issuer"}},
		"fine": {"inbound: {port: 8088, targetPort: 9000}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			te := decode[api.TokenExchange](t,
				"apiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\nmetadata: {name: x}\n"+
					"spec: {targetRef: {kind: Deployment, name: weather-agent}, "+test.spec+"}")
			te.Origin = api.Origin{File: "cr.yaml", Line: 1,
				Text: text{func(field string) int { return len(field) }, has(test.spec)}}
			base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
			_, findings := identity.Resolve(&base, weatherAgent(), te, nil, nil)
			if diff := cmp.Diff(test.want, brief(findings)); diff != "" {
				t.Error(diff)
			}
			for _, f := range findings {
				if f.File != "cr.yaml" || f.Line != len(f.Field) ||
					f.Object.Kind != "TokenExchange" {
					t.Errorf("the finding is at %s:%d, of %v", f.File, f.Line, f.Object)
				}
				if f.Severity != finding.Info && f.Hint == "" {
					t.Errorf("%s says no remedy", f.Rule)
				}
				if f.Rule == "identity/control-character" &&
					strings.Contains(f.Message, "http://x") {
					t.Errorf("%s quotes a value that may be secret: %s", f.Rule, f.Message)
				}
			}
			// The same in RenderConfig, whose paths lie deeper.
			config := decode[api.RenderConfig](t,
				"spec: {profile: kagenti, identity: {"+test.spec+"}}")
			config.Origin.Text = text{func(string) int { return 0 }, has(test.spec)}
			_, findings = sidecars.All().Base(config)
			deeper := make([]string, 0, len(test.want))
			for _, want := range test.want {
				deeper = append(deeper, strings.Replace(want, " spec.", " spec.identity.", 1))
			}
			if got := brief(findings); strings.Join(got, "\n") != strings.Join(deeper, "\n") {
				t.Error(cmp.Diff(deeper, got))
			}
		})
	}
}

func TestTraceFindings(t *testing.T) {
	for name, test := range map[string]struct {
		spec string
		want []string
	}{
		"unknown exporter": {"exporters: [{type: zipkin, endpoint: 'x:1'}]",
			[]string{"error identity/unknown-value spec.exporters[0].type"}},
		"no endpoint": {"exporters: [{type: console}, {type: otlp}]",
			[]string{"error identity/empty spec.exporters[1].endpoint"}},
		"endpoint, no port": {"exporters: [{type: otlp, endpoint: collector}]",
			[]string{"error identity/bad-endpoint spec.exporters[0].endpoint"}},
		"protocol": {"exporters: [{type: otlp, endpoint: 'x:1', protocol: http}]",
			[]string{"error identity/unknown-value spec.exporters[0].protocol"}},
		"compression": {"exporters: [{type: otlp, endpoint: 'x:1', compression: zstd}]",
			[]string{"error identity/unknown-value spec.exporters[0].compression"}},
		"scheme": {"exporters: [{type: otlp, endpoint: 'https://x:1', insecure: true}]",
			[]string{"error identity/exporter-scheme spec.exporters[0].insecure"}},
		"jaeger's own port": {"exporters: [{type: jaeger, endpoint: 'x:14250'}]",
			[]string{"warning identity/jaeger-port spec.exporters[0].endpoint"}},
		"rate above 1": {"sampling: {rate: 1.5}",
			[]string{"error identity/sampling-rate spec.sampling.rate"}},
		"no rate": {"sampling: {type: probabilistic}",
			[]string{"error identity/sampling-rate spec.sampling.rate"}},
		"sampler": {"sampling: {type: tail}",
			[]string{"error identity/unknown-value spec.sampling.type"}},
		"dollar": {"resourceAttributes: {a: '$$x'}",
			[]string{`error identity/dollar spec.resourceAttributes["a"]`}},
		"mlflow": {"integration: {mlflow: {enabled: true}}",
			[]string{"error identity/mlflow-incomplete spec.integration.mlflow.trackingUri"}},
		"metrics port": {"integration: {prometheus: {enabled: true, port: 9901}}",
			[]string{"warning identity/port-clash spec.integration.prometheus.port"}},
		"agent's metrics": {"integration: {prometheus: {enabled: true, port: 8081}}", nil},
		"endpoint with @": {"exporters: [{type: otlp, endpoint: 'a@b:1'}]",
			[]string{"error identity/bad-endpoint spec.exporters[0].endpoint"}},
		"endpoint in v6": {"exporters: [{type: otlp, endpoint: '[::1]:4317'}]", nil},
		"endpoint and path": {"exporters: [{type: otlp, endpoint: 'a:1/b'}]",
			[]string{"error identity/bad-endpoint spec.exporters[0].endpoint"}},
		"metrics path": {"integration: {prometheus: {path: metrics}}",
			[]string{"error identity/bad-path spec.integration.prometheus.path"}},
		"fine": {"exporters: [{type: otlp, endpoint: 'http://x:4318', protocol: " +
			"http/protobuf}], sampling: {rate: 0}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			at := decode[api.AgentTrace](t,
				"apiVersion: kagenti.io/v1alpha1\nkind: AgentTrace\nmetadata: {name: x}\n"+
					"spec: {targetRef: {kind: Deployment, name: weather-agent}, "+test.spec+"}")
			at.Origin = api.Origin{File: "trace.yaml", Line: 7}
			base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
			_, findings := identity.Resolve(&base, weatherAgent(), nil, at, nil)
			if diff := cmp.Diff(test.want, brief(findings)); diff != "" {
				t.Error(diff)
			}
			_, findings = sidecars.All().Base(decode[api.RenderConfig](t,
				"spec: {profile: kagenti, trace: {"+test.spec+"}}"))
			if len(findings) != len(test.want) {
				t.Errorf("in RenderConfig: %v", findings)
			}
		})
	}
}

// TestNoPasswords: findings about a URL do not contain its password.
func TestNoPasswords(t *testing.T) {
	for _, spec := range []string{
		"identity: {inbound: {validation: {issuer: 'ftp://admin:hunter2@idp'}}}",
		"identity: {outbound: {tokenExchange: {tokenUrl: 'http://admin:hunter2@idp/a b'}}}",
		"identity: {clientRegistration: {keycloak: {url: 'http://admin:hunter2@idp'}}}",
		"trace: {exporters: [{type: otlp, endpoint: 'admin:hunter2@collector:4317'}]}",
	} {
		_, findings := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {"+spec+"}"))
		if !finding.Failed(findings) {
			t.Errorf("nothing is wrong with %s", spec)
		}
		for _, f := range findings {
			if strings.Contains(f.String(), "hunter2") {
				t.Error(f)
			}
		}
	}
}
