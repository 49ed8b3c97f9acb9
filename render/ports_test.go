package render_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render"
)

// TestPortRemedies follows the hints about ports until nothing is found any more:
// they name annotations, and together they are enough.
func TestPortRemedies(t *testing.T) {
	annotation := regexp.MustCompile(`kagenti\.io/[a-z-]+: "\d+"`)
	for _, ports := range [][]string{
		{"8080"}, {"8080", "8081"}, {"8000"}, {"15123"}, {"15124"}, {"15123", "15124"}, {"8080", "15123", "15126"}, {"0x1F90"}, {"017620", "3000"},
	} {
		var annotations []string
		for round := 0; ; round++ {
			src := render.Source{Files: []render.File{{Path: "web.yaml", Data: fmt.Appendf(nil, `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
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
			result, err := render.Run(src, render.Options{})
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, f := range result.Findings {
				if f.Rule != "inject/port-clash" && f.Rule != "inject/target-port" && f.Rule != "identity/port-clash" {
					continue
				}
				found++
				for _, a := range annotation.FindAllString(f.Hint, -1) {
					key, _, _ := strings.Cut(a, ":")
					annotations = append(slices.DeleteFunc(annotations, func(b string) bool { return strings.HasPrefix(b, key+":") }), a)
				}
			}
			if found == 0 {
				break
			}
			if round == 3 {
				t.Fatalf("the ports %q still clash with the annotations %q: %s", ports, annotations, result.Findings)
			}
		}
	}
}
