package tokenexchange_test

import (
	"encoding/json"
	"strings"
	"testing"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl"
	"github.com/hashicorp/hcl/hcl/token"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

func weatherAgent() identity.Workload {
	return identity.Workload{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default", Name: "weather-agent",
		SPIFFE: true,
	}
}

// kagenti is the configuration of the profile of source 001.
func kagenti() *api.RenderConfig {
	return &api.RenderConfig{Spec: api.RenderConfigSpec{Profile: new(sidecars.Kagenti),
		Trace: &api.TraceSpec{}}}
}

// settings returns the settings of the weather agent with cfg and te, which may be nil.
func settings(t *testing.T, cfg *api.RenderConfig, te *api.TokenExchange) *identity.Settings {
	t.Helper()
	base, findings := sidecars.All().Base(cfg)
	s, more := identity.Resolve(&base, weatherAgent(), te, nil, nil)
	if findings = append(findings, more...); finding.Failed(findings) {
		t.Fatal(findings)
	}
	return &s
}

func exchange(t *testing.T, spec string) *api.TokenExchange {
	t.Helper()
	te := &api.TokenExchange{}
	if err := yaml.UnmarshalStrict([]byte(spec), te); err != nil {
		t.Fatal(err)
	}
	return te
}

// helperConf has exactly the fields that spiffe-helper's README documents.
type helperConf struct {
	AddIntermediatesToBundle bool        `hcl:"add_intermediates_to_bundle"`
	AgentAddress             string      `hcl:"agent_address"`
	Cmd                      string      `hcl:"cmd"`
	CmdArgs                  string      `hcl:"cmd_args"`
	PIDFileName              string      `hcl:"pid_file_name"`
	CertDir                  string      `hcl:"cert_dir"`
	CertFileMode             int         `hcl:"cert_file_mode"`
	KeyFileMode              int         `hcl:"key_file_mode"`
	JWTBundleFileMode        int         `hcl:"jwt_bundle_file_mode"`
	JWTSVIDFileMode          int         `hcl:"jwt_svid_file_mode"`
	IncludeFederatedDomains  bool        `hcl:"include_federated_domains"`
	RenewSignal              string      `hcl:"renew_signal"`
	DaemonMode               *bool       `hcl:"daemon_mode"`
	HealthChecks             healthCheck `hcl:"health_checks"`
	Hint                     string      `hcl:"hint"`
	OmitExpired              bool        `hcl:"omit_expired"`
	SVIDFileName             string      `hcl:"svid_file_name"`
	SVIDKeyFileName          string      `hcl:"svid_key_file_name"`
	SVIDBundleFileName       string      `hcl:"svid_bundle_file_name"`
	JWTSVIDs                 []jwtSVID   `hcl:"jwt_svids"`
	JWTBundleFileName        string      `hcl:"jwt_bundle_file_name"`

	Unused map[string][]token.Pos `hcl:",unusedKeyPositions"`
}

type healthCheck struct {
	ListenerEnabled bool   `hcl:"listener_enabled"`
	BindPort        int    `hcl:"bind_port"`
	LivenessPath    string `hcl:"liveness_path"`
	ReadinessPath   string `hcl:"readiness_path"`
}

type jwtSVID struct {
	Audience       string   `hcl:"jwt_audience"`
	ExtraAudiences []string `hcl:"jwt_extra_audiences"`
	FileName       string   `hcl:"jwt_svid_file_name"`

	Unused map[string][]token.Pos `hcl:",unusedKeyPositions"`
}

func parseHelperConf(t *testing.T, text []byte) helperConf {
	t.Helper()
	var conf helperConf
	if err := hcl.Decode(&conf, string(text)); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if len(conf.Unused) > 0 {
		t.Fatalf("spiffe-helper refuses %v in\n%s", conf.Unused, text)
	}
	for _, j := range conf.JWTSVIDs {
		if len(j.Unused) > 0 {
			t.Fatalf("spiffe-helper refuses %v in\n%s", j.Unused, text)
		}
	}
	return conf
}

func TestHelperConf(t *testing.T) {
	yes := true
	health := healthCheck{ListenerEnabled: true, BindPort: 15125, LivenessPath: "/live",
		ReadinessPath: "/ready"}
	for name, test := range map[string]struct {
		te   string
		want helperConf
	}{
		"defaults": {`{}`, helperConf{
			AgentAddress: "/run/spire/agent-sockets/agent.sock", CertDir: "/shared",
			DaemonMode: &yes, JWTSVIDFileMode: 0o644, HealthChecks: health,
			JWTSVIDs: []jwtSVID{{Audience: "kagenti-agents", FileName: "jwt_svid.token"}},
		}},
		"x509": {
			`spec: {targetRef: {kind: Deployment, name: weather-agent}, spiffe: {outputFormat: x509, audience: "a ${b} \"c\""}}`, helperConf{
				AgentAddress: "/run/spire/agent-sockets/agent.sock", CertDir: "/shared",
				DaemonMode:      &yes,
				JWTSVIDFileMode: 0o644, HealthChecks: health,
				SVIDFileName: "svid.pem", SVIDKeyFileName: "svid_key.pem",
				SVIDBundleFileName: "svid_bundle.pem",
				JWTSVIDs:           []jwtSVID{{Audience: `a ${b} "c"`, FileName: "jwt_svid.token"}},
			}},
		"aws": {`spec:
  targetRef: {kind: Deployment, name: weather-agent}
  spiffe: {socketPath: "unix:///run/spire/public/api.sock"}
  clientRegistration:
    aws: {roleArn: "arn:aws:iam::123456789012:role/weather", region: eu-central-1}`, helperConf{
			AgentAddress: "/run/spire/public/api.sock", CertDir: "/shared", DaemonMode: &yes,
			JWTSVIDFileMode: 0o644, HealthChecks: health,
			JWTSVIDs: []jwtSVID{
				{Audience: "kagenti-agents", FileName: "jwt_svid.token"},
				{Audience: "sts.amazonaws.com", FileName: "aws.token"},
			},
		}},
		"gcp": {`spec:
  targetRef: {kind: Deployment, name: weather-agent}
  clientRegistration:
    gcp: {workloadIdentityProvider: projects/1/locations/global/workloadIdentityPools/p/providers/spire}`, helperConf{
			AgentAddress: "/run/spire/agent-sockets/agent.sock", CertDir: "/shared",
			DaemonMode:      &yes,
			JWTSVIDFileMode: 0o644, HealthChecks: health,
			JWTSVIDs: []jwtSVID{
				{Audience: "kagenti-agents", FileName: "jwt_svid.token"},
				{
					Audience: "//iam.googleapis.com/projects/1/locations/global/" +
						"workloadIdentityPools/p/providers/spire", FileName: "gcp.token"},
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(t, kagenti(), exchange(t, test.te))
			got := parseHelperConf(t, file(t, s, sidecars.HelperConf))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCloudFiles(t *testing.T) {
	s := settings(t, kagenti(), exchange(t, `spec:
  targetRef: {kind: Deployment, name: weather-agent}
  clientRegistration:
    provider: aws
    aws: {roleArn: "arn:aws:iam::123456789012:role/weather", region: eu-central-1, stsEndpoint: https://sts.example.com}`))
	want := `[default]
role_arn = arn:aws:iam::123456789012:role/weather
web_identity_token_file = /etc/armature/tokens/aws.token
role_session_name = weather-agent
region = eu-central-1
services = sts-endpoint
[services sts-endpoint]
sts =
  endpoint_url = https://sts.example.com
`
	if diff := cmp.Diff(want, string(file(t, s, sidecars.AWSConfig))); diff != "" {
		t.Error(diff)
	}
	s = settings(t, kagenti(), exchange(t, `spec:
  targetRef: {kind: Deployment, name: weather-agent}
  clientRegistration:
    provider: gcp
    gcp:
      workloadIdentityProvider: //iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/spire
      serviceAccountEmail: weather@project.iam.gserviceaccount.com
      projectId: project`))
	var got map[string]any
	if err := json.Unmarshal(file(t, s, sidecars.GCPCredentials), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{
		"type": "external_account",
		"audience": "//iam.googleapis.com/projects/1/locations/global/" +
			"workloadIdentityPools/p/providers/spire",
		"subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
		"token_url":          "https://sts.googleapis.com/v1/token",
		"service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/" +
			"-/serviceAccounts/weather@project.iam.gserviceaccount.com:generateAccessToken",
		"quota_project_id": "project",
		"credential_source": map[string]any{
			"file": "/etc/armature/tokens/gcp.token"},
	}, got); diff != "" {
		t.Error(diff)
	}
}

func configMap(t *testing.T, text []byte) *corev1.ConfigMap {
	t.Helper()
	cm := &corev1.ConfigMap{}
	if err := yaml.UnmarshalStrict(text, cm); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return cm
}

// file is the value of a key of the ConfigMap: a file, as a program sees it.
func file(t *testing.T, s *identity.Settings, name string) []byte {
	t.Helper()
	text, ok := configMap(t, sidecars.AppendConfigMap(nil, s)).Data[name]
	if !ok {
		t.Fatalf("the ConfigMap has no %s", name)
	}
	return []byte(text)
}

func TestConfigMap(t *testing.T) {
	s := settings(t, kagenti(), nil)
	cm := configMap(t, sidecars.AppendConfigMap(nil, s))
	if cm.Kind != "ConfigMap" || cm.APIVersion != "v1" ||
		cm.Name != "weather-agent-token-exchange" || cm.Namespace != "default" {
		t.Errorf("%s %s %s/%s", cm.APIVersion, cm.Kind, cm.Namespace, cm.Name)
	}
	if cm.Labels["app.kubernetes.io/managed-by"] != "armature" ||
		cm.Annotations["armature.dev/rendered-for"] != "Deployment/weather-agent" {
		t.Errorf("labels %v, annotations %v", cm.Labels, cm.Annotations)
	}
	const realm = "http://keycloak.kagenti-system.svc:8080/realms/default"
	values := map[string]string{}
	for k, v := range cm.Data {
		if k == strings.ToUpper(k) {
			values[k] = v
		}
	}
	if diff := cmp.Diff(map[string]string{
		"PROVIDER": "keycloak", "SPIRE_ENABLED": "true",
		"KEYCLOAK_URL": "http://keycloak.kagenti-system.svc:8080", "KEYCLOAK_REALM": "default",
		"KEYCLOAK_TOKEN_EXCHANGE_ENABLED": "true", "ISSUER": realm,
		"JWKS_URL":             realm + "/protocol/openid-connect/certs",
		"TOKEN_URL":            realm + "/protocol/openid-connect/token",
		"BYPASS_INBOUND_PATHS": "/.well-known/*,/healthz,/readyz,/livez",
		"LISTEN_PORT":          "8080", "TARGET_SERVICE_URL": "http://127.0.0.1:8081",
		"DEFAULT_OUTBOUND_POLICY": "exchange", "TARGET_AUDIENCE": "downstream-service",
		"TARGET_SCOPES": "openid",
	}, values); diff != "" {
		t.Error(diff)
	}
}

func TestConfigMapWithoutNamespace(t *testing.T) {
	base, _ := sidecars.All().Base(kagenti())
	w := weatherAgent()
	w.Namespace = ""
	s, _ := identity.Resolve(&base, w, nil, nil, nil)
	if text := string(sidecars.AppendConfigMap(nil, &s)); strings.Contains(text, "namespace:") {
		t.Error("a workload without a namespace got a ConfigMap with one")
	}
}

// FuzzConfigMap puts one string everywhere that a user's string can go, past
// all validation, and finds it again in every file, with nothing added.
func FuzzConfigMap(f *testing.F) {
	for _, s := range []string{"plain", "a\nb: c", `"`, `\`, "${x}", "${", "#", "---\n",
		"ä\x00\u2028", "|", "a: b", "'", "\t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, x string) {
		x = strings.ToValidUTF8(x, "")
		base, _ := sidecars.All().Base(kagenti())
		s, _ := identity.Resolve(&base, weatherAgent(), nil, nil, nil)
		s.SPIFFE.SocketPath, s.SPIFFE.Audience, s.SPIFFE.TokenDir = x, x, x
		s.Registration.URL, s.Registration.Realm = x, x
		s.Inbound.Issuer, s.Inbound.JWKSURL, s.Inbound.Audience = x, x, x
		s.Inbound.RequiredScopes, s.Inbound.BypassPaths = []string{x}, []string{x}
		s.Outbound.TokenURL = x
		s.Outbound.Default = identity.Target{Audience: x, Scopes: []string{x}}
		s.Outbound.Rules = []identity.Rule{{Host: x, TokenURL: x,
			Target: identity.Target{Audience: x, Scopes: []string{x}}}}
		s.Subject.Name, s.Subject.Namespace, s.Subject.Kind = x, x, x

		cm := configMap(t, sidecars.AppendConfigMap(nil, &s))
		if x != "" && cm.Namespace != x {
			t.Errorf("namespace %q became %q", x, cm.Namespace)
		}
		if want := x + "/" + x; cm.Annotations["armature.dev/rendered-for"] != want {
			t.Errorf("rendered-for %q became %q", want, cm.Annotations["armature.dev/rendered-for"])
		}
		for _, key := range []string{"KEYCLOAK_URL", "KEYCLOAK_REALM", "ISSUER", "JWKS_URL",
			"TOKEN_URL", "TARGET_AUDIENCE", "TARGET_SCOPES", "REQUIRED_SCOPES", "BYPASS_INBOUND_PATHS"} {
			if cm.Data[key] != x {
				t.Errorf("%s: %q became %q", key, x, cm.Data[key])
			}
		}
		var envoy any
		if err := yaml.UnmarshalStrict([]byte(cm.Data["envoy.yaml"]), &envoy); err != nil {
			t.Fatalf("envoy.yaml: %v in\n%s", err, cm.Data["envoy.yaml"])
		}
		conf := parseHelperConf(t, []byte(cm.Data["helper.conf"]))
		if conf.AgentAddress != x || conf.CertDir != x || len(conf.JWTSVIDs) != 1 ||
			conf.JWTSVIDs[0].Audience != x {
			t.Errorf("helper.conf: %q became %+v", x, conf)
		}
		var routes []route
		if err := yaml.UnmarshalStrict([]byte(cm.Data["routes.yaml"]), &routes); err != nil {
			t.Fatalf("routes.yaml: %v in\n%s", err, cm.Data["routes.yaml"])
		}
		if want := (route{Host: x, TargetAudience: x, TokenScopes: x,
			TokenURL: x}); len(routes) == 0 || routes[0] != want {
			t.Errorf("routes.yaml: %q became %+v", x, routes)
		}
	})
}

func BenchmarkAppendConfigMap(b *testing.B) {
	base, _ := sidecars.All().Base(kagenti())
	s, _ := identity.Resolve(&base, weatherAgent(), nil, nil, nil)
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = sidecars.AppendConfigMap(dst[:0], &s)
	}
	b.SetBytes(int64(len(dst)))
}
