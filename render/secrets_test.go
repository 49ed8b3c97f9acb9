package render_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/lint"
)

// secretMarker is a secret that an author wrote where none belongs.
const secretMarker = "hunter2marker"

// secretValues hold the marker where URLs, images and paths have secrets.
var secretValues = []string{
	"https://user:" + secretMarker + "@host:port/p q", "http://user:" + secretMarker + "@host/path",
	"http://host/path?token=" + secretMarker, "https://host/ ?token=" + secretMarker + "#" +
		secretMarker, "user:" + secretMarker + "@host:1",
	"user:" + secretMarker + "@registry/image: v1", "/path?token=" + secretMarker + ",",
	"$${" + secretMarker + "@", "line\n" + secretMarker + "@",
	"user:" + secretMarker + "@{{.Nobody}}",
}

// leaves sets each text below a value in turn, alone, and calls visit with its path.
func leaves(t *testing.T, kind reflect.Type, text string, visit func(path string, value any)) {
	for i, n := 0, 1; i < n; i++ {
		at := -1
		path := ""
		var fill func(v reflect.Value, where string) bool
		fill = func(v reflect.Value, where string) (set bool) {
			switch v.Kind() {
			case reflect.Pointer:
				x := reflect.New(v.Type().Elem())
				if set = fill(x.Elem(), where); set {
					v.Set(x)
				}
			case reflect.Struct:
				for f := range v.NumField() {
					name, options, _ := strings.Cut(v.Type().Field(f).Tag.Get("json"), ",")
					if options != "inline" && (name == "" || name == "-") {
						continue
					}
					set = fill(v.Field(f), where+"."+name) || set
				}
			case reflect.Slice:
				x := reflect.New(v.Type().Elem()).Elem()
				if set = fill(x, where); set {
					v.Set(reflect.Append(v, x))
				}
			case reflect.Map:
				x := reflect.New(v.Type().Elem()).Elem()
				if set = fill(x, where); set && v.Type().Key().Kind() == reflect.String {
					v.Set(reflect.MakeMap(v.Type()))
					key := "key"
					if v.Type().Elem() == reflect.TypeFor[*api.ComponentSpec]() {
						key = sidecars.AuthProxy
					}
					v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), x)
				}
			case reflect.String:
				if v.Type() == reflect.TypeFor[json.Number]() ||
					v.Type() == reflect.TypeFor[api.Number]() {
					return false
				}
				if at++; at == i {
					v.SetString(text)
					path, set = where, true
				}
			}
			return set
		}
		v := reflect.New(kind)
		fill(v.Elem(), "")
		if n = at + 1; path != "" {
			visit(path, v.Interface())
		}
	}
	if t.Failed() {
		t.Logf("with %q in the %s", text, kind.Name())
	}
}

// TestFindingsKeepSecrets writes secrets into every field of what is read, one at
// a time, and looks for them in all findings. Even a misplaced secret must not be
// printed in a log.
func TestFindingsKeepSecrets(t *testing.T) {
	t.Parallel()
	const workload = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"kagenti.io/inject": "enabled"}, "annotations": {%s}}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": %s,
"env": [{"name": "PASSWORD", "value": "` + secretMarker + `"}], "args": ["--token=` + secretMarker + `"]}]}}}}
---
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {password: ` + secretMarker + `}
---
`
	found := 0
	check := func(t *testing.T, what string, config *api.RenderConfig, text string) {
		t.Helper()
		src := render.Source{Files: []render.File{{Path: "x.yaml", Data: []byte(text)}}}
		findings, _, err := lint.Run(src, render.Options{Config: config})
		if err != nil && strings.Contains(err.Error(), secretMarker) {
			t.Errorf("%s: the error quotes the secret: %v", what, err)
		}
		found += len(findings)
		for _, format := range host.Formats() {
			var out bytes.Buffer
			if err := host.WriteFindings(&out, format, findings); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(out.String(), secretMarker) {
				t.Errorf("%s: a finding quotes the secret:\n%s", what, out.String())
				return
			}
		}
	}
	resource := func(apiVersion, kind string, spec any) string {
		text, err := json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": kind,
			"metadata": map[string]string{"name": "r"}, "spec": spec})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(workload, "", `"web:v1"`) + string(text) + "\n"
	}
	target := api.TargetRef{Kind: "Deployment", Name: "web"}
	authBridge := sidecars.AuthBridge
	least := 1000
	for i, value := range secretValues {
		if testing.Short() && i%3 != 0 {
			least = 300
			continue
		}
		leaves(t, reflect.TypeFor[api.TokenExchangeSpec](), value, func(path string, spec any) {
			if x := spec.(*api.TokenExchangeSpec); !strings.HasPrefix(path, ".targetRef") {
				x.TargetRef = target
				check(t, "TokenExchange "+path, nil,
					resource("kagenti.io/v1alpha1", "TokenExchange", x))
			}
		})
		leaves(t, reflect.TypeFor[api.AgentTraceSpec](), value, func(path string, spec any) {
			if x := spec.(*api.AgentTraceSpec); !strings.HasPrefix(path, ".targetRef") {
				x.TargetRef = target
				check(t, "AgentTrace "+path, nil, resource("kagenti.io/v1alpha1", "AgentTrace", x))
			}
		})
		leaves(t, reflect.TypeFor[api.AgentCardSpec](), value, func(path string, spec any) {
			if x := spec.(*api.AgentCardSpec); !strings.HasPrefix(path, ".targetRef") {
				x.TargetRef = &target
				check(t, "AgentCard "+path, nil, resource("kagenti.io/v1alpha1", "AgentCard", x))
			}
		})
		leaves(t, reflect.TypeFor[api.AgentRuntimeSpec](), value, func(path string, spec any) {
			if x := spec.(*api.AgentRuntimeSpec); !strings.HasPrefix(path, ".targetRef") {
				x.TargetRef = target
				c := &api.RenderConfig{Spec: api.RenderConfigSpec{Profile: &authBridge}}
				check(t, "AgentRuntime "+path, c,
					resource("agent.rossoctl.dev/v1alpha1", "AgentRuntime", x))
			}
		})
		leaves(t, reflect.TypeFor[api.AuthBridgeSpec](), value, func(path string, spec any) {
			c := &api.RenderConfig{Spec: api.RenderConfigSpec{Profile: &authBridge,
				AuthBridge: spec.(*api.AuthBridgeSpec)}}
			check(t, "RenderConfig .authbridge"+path, c, fmt.Sprintf(workload, "", `"web:v1"`))
		})
		leaves(t, reflect.TypeFor[api.RenderConfigSpec](), value, func(path string, spec any) {
			c := &api.RenderConfig{Spec: *spec.(*api.RenderConfigSpec)}
			check(t, "RenderConfig "+path, c, fmt.Sprintf(workload, "", `"web:v1"`))
		})
		quoted, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range sidecars.All().AnnotationNames() {
			check(t, name, nil, fmt.Sprintf(workload, `"kagenti.io/`+name+`": `+string(quoted),
				`"web:v1"`))
		}
		check(t, "image", nil, fmt.Sprintf(workload, "", quoted))
	}
	if found < least {
		t.Errorf("only %d findings", found)
	}
	// Where all of a value may be a secret, none of it is quoted.
	for _, spec := range []string{
		`clientRegistration: {keycloak: {adminCredentialsSecret: "%s!"}}`,
		`clientRegistration: {keycloak: {url: "%s"}}`, `inbound: {validation: {issuer: "%s"}}`,
		`inbound: {validation: {jwksUrl: "http://user:%s/"}}`,
		`outbound: {tokenExchange: {tokenUrl: "%s"}}`,
		`clientRegistration: {aws: {stsEndpoint: "%s"}}`,
	} {
		text := fmt.Sprintf(workload, "", `"web:v1"`) +
			"apiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\nmetadata: {name: r}\nspec:\n" +
			"  targetRef: {kind: Deployment, name: web}\n  " + fmt.Sprintf(spec, secretMarker) + "\n"
		check(t, spec, nil, text)
		result, err := render.Run(
			render.Source{Files: []render.File{{Path: "x.yaml", Data: []byte(text)}}},
			render.Options{Config: config(t, `{profile: kagenti, trace: {enabled: true}}`)})
		if err != nil || !finding.Failed(result.Findings) {
			t.Errorf("%s is not an error: %v %v", spec, err, result.Findings)
		}
	}
	for _, spec := range []string{`exporters: [{type: otlp, endpoint: "%s"}]`,
		`resourceAttributes: {a: "$$%s"}`, `resourceAttributes: {a: "\x07%s"}`,
		`integration: {mlflow: {enabled: true, trackingUri: "%s"}}`} {
		check(t, spec, nil,
			fmt.Sprintf(workload, "", `"web:v1"`)+
				"apiVersion: kagenti.io/v1alpha1\nkind: AgentTrace\nmetadata: {name: r}\nspec:\n"+
				"  targetRef: {kind: Deployment, name: web}\n  "+fmt.Sprintf(spec, secretMarker)+"\n")
	}
}
