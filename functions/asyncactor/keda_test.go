package asyncactor

import (
	"slices"
	"testing"

	"github.com/expr-lang/expr"

	"github.com/armature-dev/armature/functions/api"
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
		"{a: queue}.a":               {"a"}, // a member of an object literal, which KEDA cannot use as a number
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
		"asya-sidecar:latest":                               "0.1 0.2 0.5 next",
		"ghcr.io/example/asya-sidecar:v1":                   "0.1 0.2 0.5 next",
		"ghcr.io/example/my-asya-sidecar:0.5.2":             "0.1 0.2 0.5 next",
		"ghcr.io/example/asya-sidecar@sha256:abc":           "0.1 0.2 0.5 next",
		"asya-sidecar:0.1.1":                                "0.1",
		"ghcr.io/deliveryhero/asya-sidecar:v0.2.0":          "0.2",
		"ghcr.io/deliveryhero/asya-sidecar:0.5.0":           "0.2",
		"localhost:5000/asya-sidecar:0.5.1-rc.1@sha256:abc": "0.5",
		"ghcr.io/deliveryhero/asya-sidecar:0.5.6":           "next",
		"ghcr.io/deliveryhero/asya-sidecar:1.0.0":           "next",
		"ghcr.io/deliveryhero/asya-sidecar:99999999999.0.0": "0.1 0.2 0.5 next",
	} {
		got := ""
		for i := range generations {
			if generations[i].suits(image) {
				got += " " + generations[i].name
			}
		}
		if got != " "+want {
			t.Errorf("%s suits%s, not %s", image, got, want)
		}
	}
}

// TestFormulasOfTriggers compiles formulas of several triggers with KEDA's library.
func TestFormulasOfTriggers(t *testing.T) {
	e := expander{actor: api.AsyncActor{Spec: api.AsyncActorSpec{Scaling: api.AsyaScaling{AdditionalTriggers: []api.AsyaTrigger{
		{Type: "prometheus", Name: "backlog"}, {Type: "cron"}, {Type: "cpu", Name: "load"}, {Type: "redis", Name: "not-a-name"},
	}}}}}
	env := make(map[string]float64)
	for _, name := range e.triggerNames() {
		env[name] = -1
	}
	for formula, compiles := range map[string]bool{
		"max(queue, backlog / 100)": true,
		"queue + load":              false,
		"queue + not-a-name":        false,
		"backlog > 5 ? queue : 1.0": true,
	} {
		if got := len(unknownNames(formula, e.triggerNames()...)) == 0; got != compiles {
			t.Errorf("%s: its names are known: %v", formula, got)
		}
		if _, err := expr.Compile("float("+formula+")", expr.Env(env)); (err == nil) != compiles {
			t.Errorf("%s: KEDA says %v", formula, err)
		}
	}
}

// TestFormulasCompile compiles formulas as KEDA does, with its library: those whose
// names the render knows compile, and those that it reports do not.
func TestFormulasCompile(t *testing.T) {
	triggers := map[string]float64{triggerName: -1}
	for formula, names := range map[string]bool{
		"queue":                         true,
		"queue * 2 + 1":                 true,
		"max(queue, 1)":                 true,
		"queue > 100 ? queue / 2 : 1e3": true,
		"queue > 1 and not (queue in [1.0, 2.0]) ? 1 : queue": true,
		"rabbit-mq":              false,
		"queue + messages":       false,
		"max(Queue, 1)":          false,
		"asya_queue > 1 ? 1 : 2": false,
	} {
		if got := len(unknownNames(formula, triggerName)) == 0; got != names {
			t.Errorf("%s: its names are known: %v", formula, got)
		}
		program, err := expr.Compile("float("+formula+")", expr.Env(triggers))
		if err == nil {
			_, err = expr.Run(program, triggers)
		}
		if compiles := err == nil; compiles != names {
			t.Errorf("%s: KEDA says %v", formula, err)
		}
	}
}
