package identity_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

// fields returns the paths of all scalars and lists of a specification.
func fields(r reflect.Type, at string) (all []string) {
	for r.Kind() == reflect.Pointer {
		r = r.Elem()
	}
	if r.Kind() != reflect.Struct {
		return []string{at}
	}
	for i := range r.NumField() {
		name, _, _ := strings.Cut(r.Field(i).Tag.Get("json"), ",")
		path := strings.TrimPrefix(at+"."+name, ".")
		all = append(all, fields(r.Field(i).Type, path)...)
	}
	return all
}

// TestEverySettingIsExplained: whatever a TokenExchange, an AgentTrace, a
// RenderConfig or an annotation can say has its entry.
func TestEverySettingIsExplained(t *testing.T) {
	s, findings := sidecars.All().Base(decode[api.RenderConfig](t, `
spec:
  profile: kagenti
  identity:
    outbound:
      tokenExchange:
        destinationRules: [{match: {host: a.example}, target: {audience: a}}]
  trace:
    resourceAttributes: {team: a}
`))
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	known := make(map[string]bool)
	for _, x := range s.All() {
		known[x.Setting] = true
	}
	var want []string
	for _, f := range fields(reflect.TypeFor[api.IdentitySpec](), "") {
		switch f {
		case "outbound.noProxy": // AuthBridge's
		case "tokenExchange.issuer": // an alias of inbound.validation.issuer
		case "outbound.tokenExchange.destinationRules":
			for _, part := range []string{"match.host", "target.audience", "target.scopes",
				"tokenUrl", "passthrough"} {
				want = append(want, f+"[0]."+part)
			}
		default:
			want = append(want, f)
		}
	}
	for _, f := range fields(reflect.TypeFor[api.TraceSpec](), "trace") {
		if f == "trace.resourceAttributes" {
			f += "[team]"
		}
		want = append(want, f)
	}
	for _, c := range sidecars.All().Sidecars() {
		if !s.Profile.HasSidecar(c) {
			continue
		}
		want = append(want, fields(reflect.TypeFor[api.ComponentSpec](), "components."+c)...)
	}
	for _, f := range want {
		if !known[f] {
			t.Errorf("no setting explains %s", f)
		}
	}
	if len(want) < 80 || len(known) != len(want) {
		t.Errorf("%d settings for %d fields", len(known), len(want))
	}
}

// TestAlterAltersOneSetting: each setting comes out with another value, and no
// other one does, but for URLs that follow from it.
func TestAlterAltersOneSetting(t *testing.T) {
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
	for _, x := range base.All() {
		altered := x.Alter(base)
		changed := 0
		for i, y := range altered.All() {
			if y.Value != base.All()[i].Value {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("%s: %d settings changed", x.Setting, changed)
		}
	}
}

// TestLaterInputsWin: annotation over TokenExchange over RenderConfig over default.
func TestLaterInputsWin(t *testing.T) {
	has := func(names ...string) *api.Origin {
		return &api.Origin{File: names[0],
			Text: text{func(string) int { return 7 }, func(field string) bool {
				return strings.Contains(strings.Join(names, " "), field)
			}}}
	}
	base, _ := sidecars.All().Base(decode[api.RenderConfig](t, "spec: {profile: kagenti}"))
	in := identity.Inputs{
		Config: has("armature.yaml", "spec.identity.inbound.port",
			"spec.identity.inbound.targetPort", "spec.identity.tokenExchange.issuer",
			"spec.components.auth-proxy.image"),
		TokenExchange: has("exchange.yaml", "spec.inbound.targetPort",
			"spec.clientRegistration.keycloak.realm"),
		AgentTrace: has("trace.yaml", "spec.exporters"),
		Annotations: []identity.Annotation{{Key: "kagenti.io/inbound-port", Value: "9",
			Field: "metadata.annotations", Line: 3}},
		File: "web.yaml", Settings: &base,
	}
	want := map[string]identity.Input{
		"inbound.port": identity.ByAnnotation, "inbound.targetPort": identity.ByTokenExchange,
		"components.auth-proxy.image":       identity.ByRenderConfig,
		"clientRegistration.keycloak.realm": identity.ByTokenExchange,
		"trace.exporters":                   identity.ByAgentTrace,
		"spiffe.audience":                   identity.ByDefault,
		// The URL is derived, although the origin has the field.
		"inbound.validation.issuer": identity.ByDefault,
	}
	for _, p := range in.Explain() {
		if by, asked := want[p.Setting]; asked && p.By != by {
			t.Errorf("%s is set by %s, want %s", p.Setting, p.By, by)
		}
	}
}
