package asyncactor_test

import (
	"os"
	"testing"

	"github.com/expr-lang/expr"
	"sigs.k8s.io/yaml"
)

// TestFormulas compiles and runs formulas with KEDA's library. asyncactor's own test checks that a
// render knows the names in those that compile.
func TestFormulas(t *testing.T) {
	text, err := os.ReadFile("../../../asyncactor/testdata/formulas.yaml")
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
		triggers := make(map[string]float64)
		for _, name := range c.Triggers {
			triggers[name] = -1
		}
		for formula, compiles := range c.Formulas {
			program, err := expr.Compile("float("+formula+")", expr.Env(triggers))
			if err == nil {
				_, err = expr.Run(program, triggers)
			}
			if (err == nil) != compiles {
				t.Errorf("%s: KEDA says %v", formula, err)
			}
		}
	}
}
