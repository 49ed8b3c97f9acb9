package manifest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/templates"
)

// server judges objects as an API server that has the shipped CRD.
type server struct {
	structural *structuralschema.Structural
	validator  validation.SchemaValidator
	cel        *cel.Validator
}

func newServer(t testing.TB) *server {
	t.Helper()
	data, err := templates.Files.ReadFile("crds/agent.kagenti.dev_agentbuilds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		t.Fatal(err)
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := structuralschema.NewStructural(&props)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(&props)
	if err != nil {
		t.Fatal(err)
	}
	return &server{structural, validator, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
}

// judge sets the defaults of an object and returns the fields that the schema and
// those that the rules refuse.
func (s *server) judge(object map[string]any) (schema, rules map[string]string) {
	defaulting.Default(object, s.structural)
	schema, rules = map[string]string{}, map[string]string{}
	for _, e := range validation.ValidateCustomResource(nil, object, s.validator) {
		if e.Field != "" && e.Field != "<nil>" { // that neither of two types fits has no field
			schema[e.Field] += e.Detail + "\n"
		}
	}
	found, _ := s.cel.Validate(context.Background(), nil, s.structural, object, nil, celconfig.RuntimeCELCostBudget)
	for _, e := range found {
		rules[e.Field] += e.Detail + "\n"
	}
	return schema, rules
}

// TestSchema compares the verdict on each field with the API server's library: on an
// AgentBuild with most fields, and on what is left when one of them is removed
// or has any of the substitutes.
func TestSchema(t *testing.T) {
	ours, err := shippedSchema()
	if err != nil {
		t.Fatal(err)
	}
	theirs := newServer(t)
	whole := fullBuild(t)
	faulty, defaulted := 0, 0
	compare := func(object map[string]any) {
		t.Helper()
		want, got := runtime.DeepCopyJSON(object), runtime.DeepCopyJSON(object)
		schema, rules := theirs.judge(want)
		faults := map[string]string{}
		ours.settle(got)
		wrong := ours.judge("", got, func(f fault) { faults[f.path] += f.message + "\n" })
		var differ []string
		for field := range schema {
			if faults[field] == "" {
				differ = append(differ, field)
			}
		}
		for field := range rules {
			if !wrong && faults[field] == "" {
				differ = append(differ, field)
			}
		}
		for field := range faults {
			if schema[field]+rules[field] == "" {
				differ = append(differ, field)
			}
		}
		if len(differ) > 0 {
			t.Errorf("%q: the API server finds %q and %q, and we find %q", differ, schema, rules, faults)
		}
		if len(faults) > 0 {
			faulty++
			return
		}
		a, b := asJSON(t, got), asJSON(t, want)
		if a != b {
			t.Errorf("the API server reads %s, and we read %s", b, a)
		}
		if a != asJSON(t, object) {
			defaulted++
		}
	}
	compare(whole)
	for i, p := range places(whole["spec"]) {
		if p.object != nil {
			object := runtime.DeepCopyJSON(whole)
			p := places(object["spec"])[i]
			delete(p.object, p.key)
			compare(object)
		}
		for _, value := range substitutes {
			object := runtime.DeepCopyJSON(whole)
			if p := places(object["spec"])[i]; p.object != nil {
				p.object[p.key] = runtime.DeepCopyJSONValue(value)
			} else {
				p.array[p.index] = runtime.DeepCopyJSONValue(value)
			}
			compare(object)
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	if faulty < 1000 || defaulted < 10 {
		t.Errorf("%d samples are faulty and %d have defaults: too few to compare", faulty, defaulted)
	}
}

// fullBuild is an AgentBuild with the fields that have rules, bounds and defaults.
func fullBuild(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile("testdata/schema/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{}
	if err := utiljson.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	data, err := utiljson.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// substitutes are put where something else was.
var substitutes = []any{nil, "", "x", "X y", "-x", "1h", "-5s", "0s", "1 day", "https://u:p@example.com/x", "ssh://example.com/a/../b", "file:///etc", "/a", "a/../b",
	"buildkit", "kaniko", "off", "max", "dev", "Queue", "1Gi", "1Xi", true, false, int64(0), int64(-1), int64(7), int64(99), int64(1) << 40, 1.5,
	map[string]any{}, map[string]any{"a": "b"}, map[string]any{"name": "a", "value": "v"}, map[string]any{"a": int64(1)},
	[]any{}, []any{"a", "a"}, []any{nil}, []any{map[string]any{"name": "a"}}, make([]any, 300), strings.Repeat("x", 300), strings.Repeat("é", 33000)}

// place is one value: of a key, or an item of array.
type place struct {
	object map[string]any
	key    string
	array  []any
	index  int
}

// places of all values below root, in a stable order.
func places(root any) []place {
	var out []place
	switch value := root.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			out = append(append(out, place{object: value, key: key}), places(value[key])...)
		}
	case []any:
		for i := range value {
			out = append(append(out, place{array: value, index: i}), places(value[i])...)
		}
	}
	return out
}

// TestSchemaKeywords shows that a CRD with a keyword that judge passes over is
// refused when it is compiled.
func TestSchemaKeywords(t *testing.T) {
	two := 2.0
	for i, v := range []structuralschema.ValueValidation{{MultipleOf: &two}, {UniqueItems: true}, {ExclusiveMinimum: true}, {Format: "uri"},
		{AnyOf: []structuralschema.NestedValueValidation{{}}}, {Pattern: "("}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if _, err := compile(nil, &structuralschema.Structural{Generic: structuralschema.Generic{Type: "number"}, ValueValidation: &v}); err == nil {
				t.Errorf("%+v is passed over", v)
			}
		})
	}
}
