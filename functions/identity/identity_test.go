package identity_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

func weatherAgent() identity.Workload {
	return identity.Workload{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default", Name: "weather-agent",
		SPIFFE: true, File: "deploy.yaml", Line: 3,
	}
}

func decode[T any](t testing.TB, text string) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// brief returns the columns of a table of findings: severity, rule and field.
func brief(findings []finding.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, fmt.Sprintf("%s %s %s", f.Severity, f.Rule, f.Field))
	}
	return out
}

func TestProfiles(t *testing.T) {
	for _, test := range []struct{ profile, prefix, tokenDir string }{
		{"kagenti", "kagenti.io", "/shared"},
		{"rossoctl", "rossoctl.io", "/shared"},
		{"kagenti-published", "kagenti.io", "/opt"},
	} {
		base, findings := sidecars.All().Base(decode[api.RenderConfig](t,
			"spec: {profile: "+test.profile+"}"))
		if len(findings) > 0 {
			t.Errorf("%s: %v", test.profile, findings)
		}
		if base.Prefix != test.prefix || base.SPIFFE.TokenDir != test.tokenDir {
			t.Errorf("%s: prefix %s, token in %s", test.profile, base.Prefix, base.SPIFFE.TokenDir)
		}
	}
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t,
		"spec: {profile: rossoctl, labelPrefix: example.com}"))
	if base.Prefix != "example.com" {
		t.Errorf("prefix %s", base.Prefix)
	}
}

// TestPrecedence sets one value in every place: defaults < RenderConfig <
// TokenExchange < annotations.
func TestPrecedence(t *testing.T) {
	cfg := decode[api.RenderConfig](t,
		"spec: {profile: kagenti, identity: {inbound: {port: 8001, targetPort: 9001}, spiffe: "+
			"{audience: config}}}")
	te := decode[api.TokenExchange](t,
		"spec: {targetRef: {kind: Deployment, name: weather-agent}, inbound: {port: 8002}, "+
			"spiffe: {trustDomain: cr}}")
	base, _ := sidecars.All().Base(cfg)
	s, findings := identity.Resolve(&base, weatherAgent(), te, nil,
		[]identity.Annotation{{Key: "kagenti.io/inbound-port", Value: "8003"}})
	if len(findings) > 0 {
		t.Error(findings)
	}
	for what, pair := range map[string][2]any{
		"annotation over CR":  {s.Inbound.Port, 8003},
		"config over default": {s.Inbound.TargetPort, 9001},
		"CR over default":     {s.SPIFFE.TrustDomain, "cr"},
		"config stays":        {s.SPIFFE.Audience, "config"},
		"default stays":       {s.Outbound.ProxyPort, 15123},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
	s, _ = identity.Resolve(&base, weatherAgent(), te, nil, nil)
	if s.Inbound.Port != 8002 {
		t.Errorf("CR over config: %d", s.Inbound.Port)
	}
	if base.Inbound.Port != 8001 {
		t.Errorf("resolving one workload changed the base: %d", base.Inbound.Port)
	}
}

// TestDerivedURLs: the URLs of the realm follow the realm unless they are set.
func TestDerivedURLs(t *testing.T) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t,
		`spec: {profile: kagenti, identity: {inbound: {validation: {issuer: "https://idp.example.com/realms/x"}}}}`))
	te := decode[api.TokenExchange](t,
		`spec: {targetRef: {kind: Deployment, name: weather-agent}, clientRegistration: {keycloak: {url: "http://kc:8080/", realm: prod}}}`)
	s, _ := identity.Resolve(&base, weatherAgent(), te, nil, nil)
	if s.Inbound.Issuer != "https://idp.example.com/realms/x" {
		t.Errorf("issuer %s", s.Inbound.Issuer)
	}
	if want := "http://kc:8080/realms/prod/protocol/openid-connect/certs"; s.Inbound.JWKSURL != want {
		t.Errorf("jwks %s", s.Inbound.JWKSURL)
	}
	if want := "http://kc:8080/realms/prod/protocol/openid-connect/token"; s.Outbound.TokenURL != want {
		t.Errorf("token URL %s", s.Outbound.TokenURL)
	}
	// 001, lines 756 and 757: the short form.
	te = decode[api.TokenExchange](t,
		`spec: {targetRef: {kind: Deployment, name: weather-agent}, tokenExchange: {issuer: "https://keycloak.example.com"}}`)
	if s, _ = identity.Resolve(&base, weatherAgent(), te, nil,
		nil); s.Inbound.Issuer != "https://keycloak.example.com" {
		t.Errorf("issuer %s", s.Inbound.Issuer)
	}
}

func TestComponents(t *testing.T) {
	all := func(s *identity.Settings) string {
		var on []string
		for _, name := range sidecars.All().Sidecars() {
			if s.On(name) {
				on = append(on, name)
			}
		}
		return strings.Join(on, " ")
	}
	const every = "proxy-init spiffe-helper client-registration auth-proxy envoy-proxy"
	for name, test := range map[string]struct {
		config, te  string
		annotations []identity.Annotation
		spiffeOff   bool
		want        string
	}{
		"default": {want: every},
		"label": {spiffeOff: true,
			want: "proxy-init client-registration auth-proxy envoy-proxy"},
		"annotation": {annotations: []identity.Annotation{{Key: "kagenti.io/auth-proxy",
			Value: "disabled"}}, want: "proxy-init spiffe-helper client-registration envoy-proxy"},
		"another prefix": {annotations: []identity.Annotation{{Key: "example.com/auth-proxy",
			Value: "disabled"}}, want: every},
		"no envoy": {annotations: []identity.Annotation{{Key: "kagenti.io/envoy-proxy",
			Value: "disabled"}}, want: "spiffe-helper client-registration auth-proxy"},
		"no spiffe-helper": {annotations: []identity.Annotation{{Key: "kagenti.io/spiffe-helper",
			Value: "disabled"}}, want: "proxy-init client-registration auth-proxy envoy-proxy"},
		"CR": {
			te: "inbound: {enabled: false}, spiffe: {enabled: false}, clientRegistration: " +
				"{enabled: false}", want: "proxy-init envoy-proxy"},
		"no interception": {te: "outbound: {trafficInterception: {enabled: false}}",
			want: "spiffe-helper client-registration auth-proxy envoy-proxy"},
		"no outbound": {te: "outbound: {enabled: false}",
			want: "spiffe-helper client-registration auth-proxy"},
		"published": {config: "profile: kagenti-published",
			want: "proxy-init spiffe-helper client-registration envoy-proxy"},
		// Envoy validates what comes in, so it stays.
		"published, no outbound": {config: "profile: kagenti-published",
			te:   "outbound: {enabled: false}",
			want: "proxy-init spiffe-helper client-registration envoy-proxy"},
		// The CR's setting for inbound tokens does not affect a container that the
		// profile does not have.
		"published, inbound": {config: "profile: kagenti-published", te: "inbound: {enabled: true}",
			want: "proxy-init spiffe-helper client-registration envoy-proxy"},
		"annotation back on": {
			config:      "profile: kagenti, components: {auth-proxy: {enabled: false}}",
			annotations: []identity.Annotation{{Key: "kagenti.io/auth-proxy", Value: "enabled"}},
			want:        every,
		},
		// A contradiction in the base must not turn off the settings of a custom resource.
		"CR back on": {
			config: "profile: kagenti, identity: {outbound: {enabled: false}, spiffe: " +
				"{enabled: false}}", te: "outbound: {enabled: true}, spiffe: {enabled: true}",
			want: every},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := sidecars.All().Base(decode[api.RenderConfig](t,
				"spec: {"+cmp.Or(test.config, "profile: kagenti")+"}"))
			var te *api.TokenExchange
			if test.te != "" {
				te = decode[api.TokenExchange](t,
					"spec: {targetRef: {kind: Deployment, name: weather-agent}, "+test.te+"}")
			}
			w := weatherAgent()
			w.SPIFFE = !test.spiffeOff
			s, findings := identity.Resolve(&base, w, te, nil, test.annotations)
			if finding.Failed(findings) {
				t.Error(findings)
			}
			if got := all(&s); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if s.SPIFFE.Enabled != s.On(sidecars.SpiffeHelper) ||
				s.Outbound.Intercept != s.On(sidecars.ProxyInit) {
				t.Error("a switch and its component disagree")
			}
		})
	}
}

// has is a substitute for the author's text: it knows the first key of a specification.
// text is an author's, by what is asked about it.
type text struct {
	line func(field string) int
	has  func(field string) bool
}

func (t text) LineOf(field string) int { return t.line(field) }
func (t text) Has(field string) bool   { return t.has(field) }

func has(spec string) func(string) bool {
	first, _, _ := strings.Cut(spec, ":")
	return func(field string) bool {
		return strings.Contains(field, "."+first+".") &&
			(first != "inbound" ||
				strings.Contains(spec, field[strings.LastIndexByte(field, '.')+1:]))
	}
}

func TestAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		key, value string
		want       []string
		check      func(s *identity.Settings) any
		is         any
	}{
		"target port": {"target-port", "9000", nil,
			func(s *identity.Settings) any { return s.Inbound.TargetPort }, 9000},
		"inbound port": {"inbound-port", "8088", nil,
			func(s *identity.Settings) any { return s.Inbound.Port }, 8088},
		"proxy port": {"proxy-port", "15001", nil,
			func(s *identity.Settings) any { return s.Outbound.ProxyPort }, 15001},
		"inbound proxy": {"inbound-proxy-port", "15006", nil,
			func(s *identity.Settings) any { return s.Outbound.InboundProxyPort }, 15006},
		"proxy uid": {"proxy-uid", "2000", nil,
			func(s *identity.Settings) any { return s.Outbound.ProxyUID }, 2000},
		"outbound": {"outbound-ports-exclude", "5432, 6379,8080", nil,
			func(s *identity.Settings) any { return fmt.Sprint(s.Outbound.ExcludePorts) },
			"[8080 5432 6379]"},
		"inbound": {"inbound-ports-exclude", "9464", nil, func(s *identity.Settings) any {
			return fmt.Sprint(s.Outbound.ExcludeInboundPorts)
		}, "[9464]"},
		"paths": {"inbound-bypass-paths", "/metrics", nil,
			func(s *identity.Settings) any { return s.Inbound.BypassPaths[4] }, "/metrics"},
		"image": {"envoy-proxy-image", "example.com/envoy@sha256:0", nil,
			func(s *identity.Settings) any { return s.Component(sidecars.EnvoyProxy).Image },
			"example.com/envoy@sha256:0"},
		"pull policy": {"envoy-proxy-image-pull-policy", "Always", nil,
			func(s *identity.Settings) any {
				return s.Component(sidecars.EnvoyProxy).ImagePullPolicy
			}, "Always"},
		"cpu request": {"auth-proxy-cpu-request", "0.2", nil, func(s *identity.Settings) any {
			return s.Component(sidecars.AuthProxy).CPURequest
		}, "0.2"},
		"memory request": {"auth-proxy-memory-request", "128Mi", nil,
			func(s *identity.Settings) any { return s.Component(sidecars.AuthProxy).MemoryRequest },
			"128Mi"},
		"cpu limit": {"spiffe-helper-cpu-limit", "250m", nil,
			func(s *identity.Settings) any { return s.Component(sidecars.SpiffeHelper).CPULimit },
			"250m"},
		"no memory limit": {"client-registration-memory-limit", "", nil,
			func(s *identity.Settings) any {
				return s.Component(sidecars.ClientRegistration).MemoryLimit
			}, ""},

		"not a number": {"target-port", "http", []string{"error identity/bad-annotation"}, nil,
			nil},
		"not a port": {"target-port", "70000", []string{"error identity/bad-port"}, nil, nil},
		"not a list": {"outbound-ports-exclude", "80;443",
			[]string{"error identity/bad-annotation"}, nil, nil},
		"root": {"proxy-uid", "0", []string{"error identity/bad-uid"}, nil, nil},
		"not a switch": {"auth-proxy", "maybe", []string{"error identity/bad-annotation"}, nil,
			nil},
		"not a quantity": {"auth-proxy-cpu-limit", "much", []string{"error identity/bad-quantity"},
			nil, nil},
		"over the limit": {"auth-proxy-cpu-request", "201m",
			[]string{"error identity/request-over-limit"}, nil, nil},
		"below a request": {"envoy-proxy-memory-limit", "63.9Mi",
			[]string{"error identity/request-over-limit"}, nil, nil},
		"not an image": {"auth-proxy-image", "a b", []string{"error identity/bad-image"}, nil,
			nil},
		"not a path": {"inbound-bypass-paths", "metrics", []string{"error identity/bad-path"},
			nil, nil},
		"typo": {"outbound-port-exclude", "80",
			[]string{"warning identity/unknown-annotation"}, nil, nil},
		"typo in a name": {"auth-prox", "disabled",
			[]string{"warning identity/unknown-annotation"}, nil, nil},
		"unknown setting": {"auth-proxy-colour", "red",
			[]string{"warning identity/unknown-annotation"}, nil, nil},
		"someone else's":  {"framework", "langgraph", nil, nil, nil},
		"another's label": {"inject", "enabled", nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
			s, findings := identity.Resolve(&base, weatherAgent(), nil, nil, []identity.Annotation{
				{Key: "kagenti.io/" + test.key, Value: test.value,
					Field: "spec.template.metadata.annotations", Line: 12},
			})
			want := []string(nil)
			for _, w := range test.want {
				want = append(want,
					w+` spec.template.metadata.annotations["kagenti.io/`+test.key+`"]`)
			}
			if diff := gocmp.Diff(want, brief(findings)); diff != "" {
				t.Error(diff)
			}
			for _, f := range findings {
				if f.File != "deploy.yaml" || f.Line != 12 || f.Hint == "" {
					t.Errorf("%s:%d, hint %q", f.File, f.Line, f.Hint)
				}
			}
			if test.check != nil {
				if got := test.check(&s); got != test.is {
					t.Errorf("got %v, want %v", got, test.is)
				}
			}
		})
	}
}

// TestBlame: a contradiction is reported once, for the input that introduces it.
func TestBlame(t *testing.T) {
	cfg := decode[api.RenderConfig](t,
		"spec: {profile: kagenti, identity: {inbound: {port: 8500}}, trace: {integration: "+
			"{prometheus: {enabled: true, port: 9999}}}}")
	base, findings := sidecars.All().Base(cfg)
	if len(findings) > 0 {
		t.Error(findings)
	}
	te := decode[api.TokenExchange](t,
		"{kind: TokenExchange, spec: {targetRef: {kind: Deployment, name: x}, inbound: "+
			"{targetPort: 8500}}}")
	te.Origin.File = "cr.yaml"
	annotations := []identity.Annotation{{Key: "kagenti.io/proxy-port", Value: "9999", Line: 5}}
	_, findings = identity.Resolve(&base, weatherAgent(), te, nil, annotations)
	var got []string
	for _, f := range findings {
		got = append(got, fmt.Sprintf("%s:%d %s %s", f.File, f.Line, f.Severity, f.Field))
	}
	if diff := gocmp.Diff([]string{
		"cr.yaml:0 error spec.inbound.targetPort",
		"deploy.yaml:3 warning metadata.annotations",
	}, got); diff != "" {
		t.Error(diff)
	}
	// An error in the configuration is not reported again for each workload.
	base, findings = sidecars.All().Base(decode[api.RenderConfig](t,
		"spec: {profile: kagenti, identity: {inbound: {port: 8081}}, trace: {integration: "+
			"{prometheus: {enabled: true, port: 9090}}}}"))
	if diff := gocmp.Diff([]string{
		"error identity/port-clash spec.identity.inbound.targetPort",
		"warning identity/port-clash spec.trace.integration.prometheus.port",
	}, brief(findings)); diff != "" {
		t.Error(diff)
	}
	te = decode[api.TokenExchange](t,
		"spec: {targetRef: {kind: Deployment, name: x}, spiffe: {audience: other}}")
	if _, findings = identity.Resolve(&base, weatherAgent(), te, nil, nil); len(findings) > 0 {
		t.Error(findings)
	}
}

// TestProbes: agents receive requests at the root, which stays closed.
func TestProbes(t *testing.T) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
	w := weatherAgent()
	w.Probes = []identity.Probe{{Path: "/health"}, {Path: "/health?full=1"}, {Path: "/readyz"}}
	if _, findings := identity.Resolve(&base, w, nil, nil, nil); len(findings) > 0 {
		t.Error(findings)
	}
	w.Probes = []identity.Probe{{Path: "/health"}, {Path: "/"}}
	s, findings := identity.Resolve(&base, w, nil, nil, nil)
	if diff := gocmp.Diff([]string{"warning identity/probe-refused "},
		brief(findings)); diff != "" {
		t.Error(diff)
	}
	if p, ok := identity.OpenProbe(s.Declared.ProbePaths[1]); ok {
		t.Errorf("%s is open", p)
	}
	// Who opens it in so many words is not warned, nor is who validates nothing.
	if _, findings = identity.Resolve(&base, w, nil, nil,
		[]identity.Annotation{{Key: "kagenti.io/inbound-bypass-paths",
			Value: "/"}}); len(findings) > 0 {
		t.Error(findings)
	}
	te := decode[api.TokenExchange](t,
		"spec: {targetRef: {kind: Deployment, name: x}, inbound: {validation: {enabled: false}}}")
	if _, findings = identity.Resolve(&base, w, te, nil, nil); len(findings) > 0 {
		t.Error(findings)
	}
	for _, p := range []string{"", "/", "/?x", "health", "/a,/b", "/*", "/[a", `/\*`} {
		if open, ok := identity.OpenProbe(p); ok {
			t.Errorf("%q opens %s", p, open)
		}
	}
}

// TestBaseIsNotShared: an item that one workload adds to a list must not reach another one. The
// lists have spare capacity, as decoded ones do.
func TestBaseIsNotShared(t *testing.T) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
	base.Outbound.ExcludePorts = append(make([]int, 0, 8), 8080)
	base.Outbound.ExcludeInboundPorts = make([]int, 0, 8)
	base.Inbound.BypassPaths = append(make([]string, 0, 8), "/healthz")
	resolve := func(port, path string) identity.Settings {
		s, findings := identity.Resolve(&base, weatherAgent(), nil, nil, []identity.Annotation{
			{Key: "kagenti.io/outbound-ports-exclude", Value: port},
			{Key: "kagenti.io/inbound-ports-exclude", Value: port},
			{Key: "kagenti.io/inbound-bypass-paths", Value: path},
		})
		if len(findings) > 0 {
			t.Error(findings)
		}
		return s
	}
	first, second := resolve("1", "/a"), resolve("2", "/b")
	for _, test := range []struct {
		s    *identity.Settings
		want string
	}{
		{&base, "[8080] [] [/healthz]"}, {&first, "[8080 1] [1] [/healthz /a]"},
		{&second, "[8080 2] [2] [/healthz /b]"},
	} {
		if got := fmt.Sprint(test.s.Outbound.ExcludePorts, test.s.Outbound.ExcludeInboundPorts,
			test.s.Inbound.BypassPaths); got != test.want {
			t.Errorf("%s, want %s", got, test.want)
		}
	}
}

func TestShortName(t *testing.T) {
	long := strings.Repeat("a", 60)
	for _, name := range []string{"weather-agent", long, long + "b",
		strings.Repeat("a", 36) + "-" + long} {
		got := identity.ShortName(name, "-token-exchange")
		if len(got) > 63 || !strings.HasSuffix(got, "-token-exchange") ||
			strings.Contains(got, "--") || strings.Contains(got, ".-") {
			t.Errorf("%s: %s", name, got)
		}
		if cut := got != name+"-token-exchange"; cut != identity.Shortened(name, "-token-exchange") {
			t.Errorf("%s: Shortened disagrees", name)
		}
	}
	if identity.ShortName(long, "-trace") == identity.ShortName(long+"b", "-trace") {
		t.Error("two names became one")
	}
	if got, want := identity.ShortName(long, "-trace"),
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-11ee391211-trace"; got != want {
		t.Errorf("the name changed: %s, was %s", got, want)
	}
	w := weatherAgent()
	w.Name = long
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t,
		"spec: {profile: kagenti, trace: {}}"))
	if _, findings := identity.Resolve(&base, w, nil, nil, nil); len(findings) != 2 ||
		findings[0].Rule != "identity/name-shortened" {
		t.Errorf("%v", findings)
	}
}

// TestResolveAllocates holds the common case to the settings themselves.
func TestResolveAllocates(t *testing.T) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t,
		"spec: {profile: kagenti, trace: {}}"))
	w := weatherAgent()
	if n := testing.AllocsPerRun(100, func() { identity.Resolve(&base, w, nil, nil, nil) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkResolve(b *testing.B) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](b, "spec: {profile: kagenti}"))
	w := weatherAgent()
	b.ReportAllocs()
	for b.Loop() {
		identity.Resolve(&base, w, nil, nil, nil)
	}
}
