package render_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
)

// TestPortProtocols declares the sidecars' ports for other protocols than TCP,
// where they clash with nothing, and lead auth-proxy nowhere.
func TestPortProtocols(t *testing.T) {
	for ports, want := range map[string]string{
		"{containerPort: 8080, protocol: UDP}, {containerPort: 8081}":                  "",
		"{containerPort: 15123, protocol: SCTP}, {containerPort: 8081, protocol: TCP}": "",
		"{containerPort: 8080, protocol: UDP}":                                         "",
		"{containerPort: 8081, protocol: UDP}, " +
			"{containerPort: 3000}": `inject/target-port annotate kagenti.io/target-port: "3000"`,
		"{containerPort: 8080, " +
			"protocol: TCP}": `inject/port-clash annotate kagenti.io/target-port: "8080" and kagenti.io/inbound-port: "8081"`,
		"{containerPort: 9090}": "inject/" +
			"port-clash move the application to another port, because this one is built into the " +
			"injected program; or do without that program: annotate " +
			"kagenti.io/envoy-proxy: disabled",
	} {
		src := render.Source{
			Files: []render.File{{Path: "web.yaml", Data: fmt.Appendf(nil, `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {kagenti.io/inject: enabled}
spec:
  template:
    spec:
      containers:
      - name: web
        image: web:v1
        ports: [%s]
`, ports)}}}
		result, err := render.Run(src,
			render.Options{Config: config(t, `{profile: kagenti, trace: {enabled: true}}`)})
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, f := range result.Findings {
			if f.Rule == "inject/port-clash" || f.Rule == "inject/target-port" {
				found = append(found, f.Rule+" "+f.Hint)
			}
		}
		if have := strings.Join(found, "; "); have != want {
			t.Errorf("%s: found %q, want %q", ports, have, want)
		}
	}
}

// TestPortRemedies follows the hints about ports until nothing is found any more:
// they name annotations, and together they are enough, in every profile.
func TestPortRemedies(t *testing.T) {
	for _, profile := range []string{sidecars.Kagenti, sidecars.Rossoctl, sidecars.Published,
		sidecars.AuthBridge} {
		t.Run(profile, func(t *testing.T) { followPortRemedies(t, profile) })
	}
}

func followPortRemedies(t *testing.T, profile string) {
	annotation := regexp.MustCompile(`kagenti\.io/[a-z-]+: ("\d+"|disabled)`)
	config := &api.RenderConfig{}
	config.Spec.Profile = &profile
	for _, ports := range [][]string{
		{"8080"}, {"8080", "8081"}, {"8000"}, {"15123"}, {"15124"}, {"15123", "15124"},
		{"8080", "15123", "15126"}, {"0x1F90"}, {"017620", "3000"}, {"9090"}, {"9901", "9090"},
		{"15125"}, {"9091"}, {"8000", "9093", "9094"}, {"8000", "8082"}, {"8000", "8081"},
	} {
		var annotations []string
		for round := 0; ; round++ {
			src := render.Source{
				Files: []render.File{{Path: "web.yaml", Data: fmt.Appendf(nil, `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: team1
  labels: {kagenti.io/inject: enabled}
  annotations: {%s}
spec:
  template:
    spec:
      containers:
      - name: web
        image: web:v1
        ports: [{containerPort: %s}]
`, strings.Join(annotations, ", "), strings.Join(ports, "}, {containerPort: "))}}}
			result, err := render.Run(src, render.Options{Config: config})
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, f := range result.Findings {
				if f.Rule != "inject/port-clash" && f.Rule != "inject/target-port" &&
					f.Rule != "identity/port-clash" {
					continue
				}
				found++
				for _, a := range annotation.FindAllString(f.Hint, -1) {
					key, _, _ := strings.Cut(a, ":")
					annotations = append(slices.DeleteFunc(annotations,
						func(b string) bool { return strings.HasPrefix(b, key+":") }), a)
				}
			}
			if found == 0 && finding.Failed(result.Findings) {
				t.Fatalf("the ports %q with the annotations %q: %s", ports, annotations, result.Findings)
			}
			if found == 0 {
				break
			}
			if round == 3 {
				t.Fatalf("the ports %q still clash with the annotations %q: %s", ports, annotations,
					result.Findings)
			}
		}
	}
}
