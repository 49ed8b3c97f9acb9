package manifest

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/api"
)

func TestTests(t *testing.T) {
	const good = "apiVersion: armature.dev/v1alpha1\nkind: BuildTest\nmetadata: {name: a}\nspec:\n"
	tests, err := Tests("t.yaml",
		[]byte(good+
			"  step: check-dockerfile-step\n  parameters: {dockerfile: x, subfolder-path: y}\n---\n"+
			good+"  build: {mode: dev}\n  expect: {result: Failed}\n"), api.DefaultGroup)
	if err != nil || len(tests) != 2 {
		t.Fatalf("%d tests, %v", len(tests), err)
	}
	if p := tests[0].Build.Spec.Pipeline; p.Steps[0].ConfigMap != "check-dockerfile-step" ||
		len(p.Parameters) != 2 || tests[0].Spec.Expect.Result != "Succeeded" {
		t.Errorf("the first is %+v", tests[0])
	}
	if tests[1].Build.Spec.Mode != "dev" || tests[1].Build.Spec.BuildOutput.Image == "" ||
		tests[1].Spec.Expect.Result != "Failed" {
		t.Errorf("the second is %+v", tests[1])
	}
	for text, want := range map[string]string{
		"kind: Other\n": "holds no BuildTest",
		"apiVersion: armature.dev/v1\nkind: BuildTest\nmetadata: {name: a}\n" +
			"spec: {step: a}\n": "t.yaml:1: apiVersion: is \"armature.dev/v1\"",
		good +
			"  step: a\n  build: {mode: dev}\n": "t.yaml:4: spec: needs either step or build",
		good + "  expect: {}\n":                               "needs either step or build",
		good + "  step: a\n  parameter: {}\n":                 `unknown field "parameter"`,
		good + "  step: a\n  source: /etc\n":                  "is absolute",
		good + "  step: a\n  expect: {result: Ok}\n":          "use Succeeded or Failed",
		good + "  build: {mode: dev}\n  parameters: {a: b}\n": "spec.parameters: is of a step",
		good + "  build: {mode: dev, nonsense: 1}\n":          "nonsense",
	} {
		if _, err := Tests("t.yaml", []byte(text), api.DefaultGroup); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
