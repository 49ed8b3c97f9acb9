package tokenexchange_test

import (
	"regexp"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

// parseEnvoy decodes envoy.yaml as Envoy does and runs its validation, on the
// bootstrap and on everything in an Any.
func parseEnvoy(t *testing.T, text []byte) *bootstrapv3.Bootstrap {
	t.Helper()
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	bootstrap := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(data, bootstrap); err != nil {
		t.Fatal(err)
	}
	validate(t, "", bootstrap)
	return bootstrap
}

func validate(t *testing.T, at string, m proto.Message) {
	t.Helper()
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := at + "." + string(f.Name())
		visit := func(v protoreflect.Value) {
			inner := v.Message().Interface()
			if a, ok := inner.(*anypb.Any); ok {
				unpacked, err := a.UnmarshalNew()
				if err != nil {
					t.Errorf("%s: %v", at, err)
					return
				}
				inner = unpacked
			}
			validate(t, at, inner)
		}
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				visit(v)
				return true
			})
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				visit(v.List().Get(i))
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			visit(v)
		}
		return true
	})
}

func TestEnvoy(t *testing.T) {
	te := exchange(t,
		`spec: {targetRef: {kind: Deployment, name: weather-agent}, outbound: {trafficInterception: {proxyPort: 15001, inboundProxyPort: 15006}}}`)
	for name, test := range map[string]struct {
		te                *api.TokenExchange
		outbound, inbound uint32
	}{
		"defaults": {nil, 15123, 15124},
		"ports":    {te, 15001, 15006},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(t, kagenti(), test.te)
			bootstrap := parseEnvoy(t, file(t, s, sidecars.EnvoyYAML))
			listeners := bootstrap.GetStaticResources().GetListeners()
			if len(listeners) != 2 {
				t.Fatalf("%d listeners", len(listeners))
			}
			for i, want := range []struct {
				address string
				port    uint32
			}{{"127.0.0.1", test.outbound}, {"0.0.0.0", test.inbound}} {
				got := listeners[i].GetAddress().GetSocketAddress()
				if got.GetAddress() != want.address || got.GetPortValue() != want.port {
					t.Errorf("listener %d is on %s:%d, want %s:%d", i, got.GetAddress(),
						got.GetPortValue(), want.address, want.port)
				}
			}
			if admin := bootstrap.GetAdmin().GetAddress().GetSocketAddress(); admin.GetAddress() !=
				"127.0.0.1" || admin.GetPortValue() != 9901 {
				t.Errorf("the administration is on %v", admin)
			}
			// Whatever arrives has to pass the token processor: no way around it for
			// other protocols, no mode in which a failure lets a request pass.
			checkInbound(t, listeners[1])
		})
	}
}

func checkInbound(t *testing.T, l *listenerv3.Listener) {
	t.Helper()
	if l.GetDefaultFilterChain() != nil || len(l.GetFilterChains()) != 1 ||
		l.GetFilterChains()[0].GetFilterChainMatch() != nil {
		t.Error("the inbound listener has a second way in")
	}
	text := protojson.Format(l)
	if strings.Contains(strings.ToLower(text), "failuremodeallow") {
		t.Error("a failing token processor lets requests pass")
	}
	mutation, processor := strings.Index(text, "header_mutation"), strings.Index(text, "ext_proc")
	if mutation < 0 || processor < mutation ||
		!strings.Contains(text, "OVERWRITE_IF_EXISTS_OR_ADD") {
		t.Error("a caller's own direction header reaches the token processor")
	}
}

// TestRequiredScopes: Envoy demands the scopes itself, of every path that needs
// a token and of no other.
func TestRequiredScopes(t *testing.T) {
	te := exchange(t, `spec:
  targetRef: {kind: Deployment, name: weather-agent}
  inbound:
    validation:
      issuer: https://idp.example.com/realms/x
      jwksUrl: https://idp.example.com:8443/certs
      requiredScopes: ["agent:invoke", "a.b"]`)
	base, _ := sidecars.All().Base(kagenti())
	w := weatherAgent()
	w.Probes = []identity.Probe{{Path: "/health?full=1"}, {Path: "/"}}
	s, findings := identity.Resolve(&base, w, te, nil, nil)
	if finding.Failed(findings) {
		t.Fatal(findings)
	}
	bootstrap := parseEnvoy(t, file(t, &s, sidecars.EnvoyYAML))
	if got, want := string(file(t, &s, "BYPASS_INBOUND_PATHS")),
		"/.well-known/*,/healthz,/readyz,/livez,/health"; got != want {
		t.Errorf("BYPASS_INBOUND_PATHS = %s, want %s", got, want)
	}
	filters := map[string]proto.Message{}
	var order []string
	hcm := &hcmv3.HttpConnectionManager{}
	inbound := bootstrap.GetStaticResources().GetListeners()[1]
	if err := inbound.GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(hcm); err != nil {
		t.Fatal(err)
	}
	for _, f := range hcm.GetHttpFilters() {
		m, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		filters[f.GetName()] = m
		order = append(order, strings.TrimPrefix(f.GetName(), "envoy.filters.http."))
	}
	if got, want :=
		strings.Join(order, " "), "header_mutation ext_proc jwt_authn rbac router"; got != want {
		t.Fatalf("filters %s, want %s", got, want)
	}
	jwt := filters["envoy.filters.http.jwt_authn"].(*jwtv3.JwtAuthentication)
	if p := jwt.GetProviders()["issuer"]; p.GetIssuer() != "https://idp.example.com/realms/x" ||
		p.GetRemoteJwks().GetHttpUri().GetUri() != "https://idp.example.com:8443/certs" ||
		!p.GetForward() {
		t.Errorf("provider %v", p)
	}
	rules := jwt.GetRules()
	if last := rules[len(rules)-1]; last.GetMatch().GetPrefix() != "/" ||
		last.GetRequires().GetProviderName() != "issuer" {
		t.Errorf("the last rule is %v", last)
	}

	// allowed evaluates RBAC for a path and a token's scopes.
	rbac := filters["envoy.filters.http.rbac"].(*rbacv3.RBAC).GetRules()
	full := func(pattern, text string) bool {
		return regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(text)
	}
	allowed := func(path, scope string) bool {
		for _, p := range rbac.GetPolicies()["free"].GetPermissions() {
			if full(p.GetUrlPath().GetPath().GetSafeRegex().GetRegex(), path) {
				return true
			}
		}
		for _, p := range rbac.GetPolicies()["scopes"].GetPermissions()[0].GetAndRules().GetRules() {
			//lint:ignore SA1019 this field is what is rendered
			if !full(p.GetMetadata().GetValue().GetStringMatch().GetSafeRegex().GetRegex(), scope) {
				return false
			}
		}
		return true
	}
	for _, test := range []struct {
		path, scope string
		want        bool
	}{
		{"/", "openid agent:invoke a.b", true},
		{"/", "a.b agent:invoke", true},
		{"/", "agent:invoke", false},
		{"/", "agent:invoke aXb", false},
		{"/", "agent:invoker a.b", false},
		{"/", "", false},
		{"/healthz", "", true},
		{"/health", "", true},
		{"/health/x", "", false},
		{"/.well-known/agent.json", "", true},
		{"/.well-known/a/b", "", false},
		{"/xwell-known/a", "", false},
	} {
		if got := allowed(test.path, test.scope); got != test.want {
			t.Errorf("%s with %q: %v, want %v", test.path, test.scope, got, test.want)
		}
		open := false
		for _, rule := range rules[:len(rules)-1] {
			if rule.GetRequires() != nil {
				t.Errorf("a free path requires %v", rule.GetRequires())
			}
			open = open || full(rule.GetMatch().GetSafeRegex().GetRegex(), test.path)
		}
		if open != (test.want && test.scope == "") {
			t.Errorf("%s needs no token: %v", test.path, open)
		}
	}
	clusters := bootstrap.GetStaticResources().GetClusters()
	issuer := clusters[len(clusters)-1]
	address := issuer.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().
		GetAddress().GetSocketAddress()
	if issuer.GetName() != "issuer" || address.GetAddress() != "idp.example.com" ||
		address.GetPortValue() != 8443 || issuer.GetTransportSocket() == nil {
		t.Errorf("cluster %v", issuer)
	}
}

type route struct {
	Host           string `json:"host"`
	TargetAudience string `json:"target_audience,omitempty"`
	TokenScopes    string `json:"token_scopes,omitempty"`
	TokenURL       string `json:"token_url,omitempty"`
	Passthrough    bool   `json:"passthrough,omitempty"`
}

func TestRoutes(t *testing.T) {
	direct := []route{
		{Host: "keycloak.kagenti-system.svc", Passthrough: true},
		{Host: "otel-collector.observability", Passthrough: true},
	}
	for name, test := range map[string]struct {
		te   string
		want []route
	}{
		"defaults": {`{}`,
			append(direct[:2:2], route{Host: "**", TargetAudience: "downstream-service",
				TokenScopes: "openid"})},
		"rules": {`spec:
  targetRef: {kind: Deployment, name: weather-agent}
  outbound:
    tokenExchange:
      defaultTarget: {audience: other, scopes: ["downstream:access"]}
      destinationRules:
      - match: {host: premium-api.external.com}
        target: {audience: premium-api, scopes: ["weather:premium", "weather:historical"]}
        tokenUrl: https://idp.example.com/token
      - match: {host: "**.internal"}
        passthrough: true
      - match: {host: "*.example.com"}
        target: {audience: "odd \"audience\": ${x}"}`, append([]route{
			{Host: "premium-api.external.com", TargetAudience: "premium-api",
				TokenScopes: "weather:premium weather:historical",
				TokenURL:    "https://idp.example.com/token"},
			{Host: "**.internal", Passthrough: true},
			{Host: "*.example.com", TargetAudience: `odd "audience": ${x}`, TokenScopes: "openid"},
		},
			append(direct[:2:2],
				route{Host: "**", TargetAudience: "other", TokenScopes: "downstream:access"})...)},
		"off": {
			`spec: {targetRef: {kind: Deployment, name: weather-agent}, outbound: {tokenExchange: {enabled: false}}}`,
			[]route{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(t, kagenti(), exchange(t, test.te))
			var got []route
			if err := yaml.UnmarshalStrict(file(t, s, sidecars.RoutesYAML), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
