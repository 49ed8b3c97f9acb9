package asyncactor

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/krm"
)

func TestUnknownNames(t *testing.T) {
	for formula, want := range map[string][]string{
		"queue":     nil,
		"queue * 2": nil,
		"queue > 100 ? max(queue, 1) * 2 : queue / 1e3": nil,
		"let big = queue * 2; big > 5 ? big : 0":        nil,
		`"other" == 'a\'b' ? queue : queue`:             nil,
		"`other \\` == `x` ? 0xFF : queue":              nil,
		"not (queue > 1) or queue in [1, 2] and true":   nil,
		// a member of an object literal, which KEDA cannot use as a number
		"{a: queue}.a":               {"a"},
		"rabbit-mq + queue + rabbit": {"rabbit", "mq"},
		"Queue":                      {"Queue"},
		"max (queue, messages)":      {"messages"},
		"":                           nil,
		"'":                          nil,
	} {
		if got := unknownNames(formula, triggerName); !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", formula, got, want)
		}
	}
}

func TestSuits(t *testing.T) {
	for image, want := range map[string]string{
		"asya-sidecar:latest":                               "0.2 next",
		"ghcr.io/example/asya-sidecar:v1":                   "0.2 next",
		"ghcr.io/example/my-asya-sidecar:0.5.2":             "0.2 next",
		"ghcr.io/example/asya-sidecar@sha256:abc":           "0.2 next",
		"asya-sidecar:0.1.1":                                "",
		"ghcr.io/deliveryhero/asya-sidecar:v0.2.0":          "0.2",
		"ghcr.io/deliveryhero/asya-sidecar:0.5.0":           "0.2",
		"localhost:5000/asya-sidecar:0.5.1-rc.1@sha256:abc": "",
		"ghcr.io/deliveryhero/asya-sidecar:0.5.6":           "next",
		"ghcr.io/deliveryhero/asya-sidecar:1.0.0":           "next",
		"ghcr.io/deliveryhero/asya-sidecar:99999999999.0.0": "0.2 next",
	} {
		var suited []string
		for i := range generations {
			if generations[i].suits(image, false) {
				suited = append(suited, generations[i].name)
			}
		}
		if got := strings.Join(suited, " "); got != want {
			t.Errorf("%s suits %q, not %q", image, got, want)
		}
	}
}

// TestOwnTags accepts a sidecar's tag that Asya never released if the configuration names the
// generation, and otherwise asks for it.
func TestOwnTags(t *testing.T) {
	for _, c := range []struct{ generation, image, want string }{
		{"0.2", "registry.example/asya-sidecar:v2.1.0", ""},
		{"next", "registry.example/asya-sidecar:2.1.0", ""},
		{"0.2", "registry.example/asya-sidecar:0.1.1",
			"the releases of generation 0.2 are 0.2.0 to 0.5.0: choose one of them, or another " +
				"spec.asya.generation"},
		{"next", "registry.example/asya-sidecar:0.5.5",
			"the releases of generation next are 0.5.6 or later: choose one of them, or another " +
				"spec.asya.generation"},
		{"0.1", "registry.example/asya-sidecar:v2.1.0",
			`write "0.2" for releases 0.2.0 to 0.5.0, or "next" for 0.5.6 or later`},
		{"", "registry.example/asya-sidecar:v2.1.0",
			"the releases of generation 0.2 are 0.2.0 to 0.5.0: choose one of them, or set " +
				"spec.asya.generation to that of an own tag"},
	} {
		var report krm.Report
		spec := &api.AsyaSpec{SidecarImage: &c.image}
		if c.generation != "" {
			spec.Generation = &c.generation
		}
		generationOf(&contract.Package{Report: &report}, spec)
		got := ""
		for _, f := range report.Findings() {
			got += f.Hint
		}
		if got != c.want {
			t.Errorf("%+v: have %q", c, got)
		}
	}
}

// TestFormulas: of the formulas in testdata, the render knows the names in those that
// KEDA compiles, and reports the others. internal/readers asks KEDA's library.
func TestFormulas(t *testing.T) {
	text, err := os.ReadFile("testdata/formulas.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Triggers []string
		Formulas map[string]bool
	}
	if err := yaml.UnmarshalStrict(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		for formula, compiles := range c.Formulas {
			if got := len(unknownNames(formula, c.Triggers...)) == 0; got != compiles {
				t.Errorf("%s: its names are known: %v", formula, got)
			}
		}
	}
	e := expander{
		actor: api.AsyncActor{
			Spec: api.AsyncActorSpec{Scaling: api.AsyaScaling{AdditionalTriggers: []api.AsyaTrigger{
				{Type: "prometheus", Name: "backlog"}, {Type: "cron"}, {Type: "cpu", Name: "load"},
				{Type: "redis", Name: "not-a-name"},
			}}}}}
	if got := triggerNames(&e); !slices.Equal(got, cases[1].Triggers) {
		t.Errorf("triggers %q, not %q", got, cases[1].Triggers)
	}
}
