package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/templates"
)

// schema is one node of the shipped CRD, ready to judge values. The API server's own
// validator would register its metrics and feature gates in every command that
// starts; TestSchema compares the two.
type schema struct {
	*structuralschema.Structural
	*structuralschema.ValueValidation
	properties map[string]*schema
	items      *schema // of an array, or nil
	values     *schema // of a map, or nil
	pattern    *regexp.Regexp
	rules      []rule
}

// rule is one of x-kubernetes-validations. path leads from its node to the field
// that it blames, such as .platforms, or is "".
type rule struct {
	program       cel.Program
	path, message string
}

// fault is what is wrong with the value of one field.
type fault struct{ path, message, hint string }

// shippedSchema is compiled once: compiling the CEL rules takes longer than all
// else that reading a build does.
var shippedSchema = sync.OnceValues(loadSchema)

func loadSchema() (*schema, error) {
	data, err := templates.Files.ReadFile("crds/agent.kagenti.dev_agentbuilds.yaml")
	if err != nil {
		return nil, fmt.Errorf("reading the shipped CRD: %w", err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		return nil, fmt.Errorf("decoding the shipped CRD: %w", err)
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		return nil, fmt.Errorf("converting the shipped CRD: %w", err)
	}
	structural, err := structuralschema.NewStructural(&props)
	if err != nil {
		return nil, fmt.Errorf("structuring the shipped CRD: %w", err)
	}
	env, err := cel.NewEnv(cel.Variable("self", cel.DynType), ext.Strings(), cel.HomogeneousAggregateLiterals(), cel.DefaultUTCTimeZone(true))
	if err != nil {
		return nil, fmt.Errorf("preparing the rules of the shipped CRD: %w", err)
	}
	root, err := compile(env, structural)
	if err != nil {
		return nil, fmt.Errorf("compiling the shipped CRD: %w", err)
	}
	return root, nil
}

// compile a node and all below it. A keyword that check would pass over is an error.
func compile(env *cel.Env, s *structuralschema.Structural) (*schema, error) {
	v := cmp.Or(s.ValueValidation, &structuralschema.ValueValidation{})
	out := &schema{Structural: s, ValueValidation: v, properties: map[string]*schema{}}
	switch {
	case len(v.AllOf)+len(v.OneOf) > 0 || v.Not != nil || v.MultipleOf != nil || v.UniqueItems || v.ExclusiveMaximum || v.ExclusiveMinimum || v.MinProperties != nil,
		len(v.AnyOf) > 0 && !s.XIntOrString, s.XEmbeddedResource, s.Nullable,
		s.AdditionalProperties != nil && s.AdditionalProperties.Structural == nil,
		!slices.Contains([]string{"", "int32", "int64", "date-time"}, v.Format): // decoding judges the last
		return nil, fmt.Errorf("%q has a keyword that cannot be judged", s.Description)
	}
	var err error
	if out.pattern, err = regexp.Compile(v.Pattern); err != nil {
		return nil, err
	}
	for _, r := range s.XValidations {
		ast, issues := env.Compile(r.Rule)
		if issues.Err() != nil {
			return nil, issues.Err()
		}
		if r.MessageExpression != "" || r.Reason != nil || r.Message == "" {
			return nil, fmt.Errorf("rule %q has no message, or more than one", r.Rule)
		}
		program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
		if err != nil {
			return nil, err
		}
		out.rules = append(out.rules, rule{program, r.FieldPath, r.Message})
	}
	for name, property := range s.Properties {
		if out.properties[name], err = compile(env, &property); err != nil {
			return nil, err
		}
	}
	if s.Items != nil {
		if out.items, err = compile(env, s.Items); err != nil {
			return nil, err
		}
	}
	if s.AdditionalProperties != nil {
		if out.values, err = compile(env, s.AdditionalProperties.Structural); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// maxCost of one rule on one value, in CEL's units, as the API server has it.
const maxCost = 1_000_000

// below is the schema of a key, or nil.
func (s *schema) below(key string) *schema {
	if property, ok := s.properties[key]; ok {
		return property
	}
	return s.values
}

// settle sets defaults in a value and below it, as an API server does before it
// judges, and makes whole numbers integers where the schema has them.
func (s *schema) settle(value any) any {
	if s == nil {
		return value
	}
	if value == nil && s.Default.Object != nil {
		value = runtime.DeepCopyJSONValue(s.Default.Object)
	}
	switch value := value.(type) {
	case map[string]any:
		for name, property := range s.properties {
			if _, found := value[name]; !found && property.Default.Object != nil {
				value[name] = nil
			}
		}
		for key := range value {
			value[key] = s.below(key).settle(value[key])
		}
	case []any:
		for i := range value {
			value[i] = s.items.settle(value[i])
		}
	case float64:
		if (s.Type == "integer" || s.XIntOrString) && value == math.Trunc(value) && math.Abs(value) < 1<<53 {
			return int64(value)
		}
	}
	return value
}

// judge a settled value and all below it. wrong is true if something has another
// type than the schema gives: rules do not judge what holds it.
func (s *schema) judge(path string, value any, report func(fault)) (wrong bool) {
	bad := func(format string, args ...any) {
		report(fault{path, fmt.Sprintf(format, args...), "see docs/builds.md for the field"})
	}
	if !s.typed(value) {
		hint := "give the field that type"
		switch {
		case value == nil:
			hint = "give it a value, or remove it"
		case s.Type == "string":
			hint = "put the value in quotes"
		}
		report(fault{path, fmt.Sprintf("is %s; want %s", article(kindOf(value)), article(s.wanted())), hint})
		return true
	}
	switch value := value.(type) {
	case map[string]any:
		wrong = s.judgeObject(path, value, report, bad)
	case []any:
		wrong = s.judgeArray(path, value, report, bad)
	case string:
		s.judgeText(value, bad)
	case int64:
		s.judgeNumber(float64(value), bad)
	case float64:
		s.judgeNumber(value, bad)
	}
	if len(s.Enum) > 0 && !slices.ContainsFunc(s.Enum, func(e structuralschema.JSON) bool { return e.Object == value }) {
		report(fault{path, fmt.Sprintf("is %v, which is not supported", value), s.supported()})
	}
	if wrong {
		return true
	}
	for _, r := range s.rules {
		result, _, err := r.program.Eval(map[string]any{"self": value})
		switch {
		case err != nil:
			bad("%s", r.message) // such as a text that is not a duration
		case result != types.True:
			report(fault{path + r.path, r.message, "see docs/builds.md for the field"})
		}
	}
	return false
}

func (s *schema) judgeObject(path string, object map[string]any, report func(fault), bad func(string, ...any)) (wrong bool) {
	if s.MaxProperties != nil && int64(len(object)) > *s.MaxProperties {
		bad("must have at most %d items", *s.MaxProperties)
	}
	for _, name := range s.Required {
		if _, ok := object[name]; !ok {
			report(fault{strings.TrimPrefix(path+"."+name, "."), "is missing", "add the field"})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if below := s.below(key); below != nil {
			wrong = below.judge(strings.TrimPrefix(path+"."+key, "."), object[key], report) || wrong
		}
	}
	return wrong
}

func (s *schema) judgeArray(path string, array []any, report func(fault), bad func(string, ...any)) (wrong bool) {
	if s.MaxItems != nil && int64(len(array)) > *s.MaxItems {
		bad("must have at most %d items", *s.MaxItems)
	}
	if s.MinItems != nil && int64(len(array)) < *s.MinItems {
		bad("should have at least %d items", *s.MinItems)
	}
	for i, item := range array {
		wrong = s.items.judge(fmt.Sprintf("%s[%d]", path, i), item, report) || wrong
	}
	return wrong
}

func (s *schema) judgeText(text string, bad func(string, ...any)) {
	length := int64(utf8.RuneCountInString(text))
	if s.MaxLength != nil && length > *s.MaxLength {
		bad("may not be more than %d bytes", *s.MaxLength)
	}
	if s.MinLength != nil && length < *s.MinLength {
		bad("should be at least %d chars long", *s.MinLength)
	}
	if !s.pattern.MatchString(text) {
		bad("should match '%s'", s.Pattern)
	}
}

func (s *schema) judgeNumber(number float64, bad func(string, ...any)) {
	if s.Format == "int32" && (number > math.MaxInt32 || number < math.MinInt32) {
		bad("does not fit in 32 bits")
	}
	if s.Maximum != nil && number > *s.Maximum {
		bad("should be less than or equal to %v", *s.Maximum)
	}
	if s.Minimum != nil && number < *s.Minimum {
		bad("should be greater than or equal to %v", *s.Minimum)
	}
}

// typed is true for a value that has the type of the schema.
func (s *schema) typed(value any) bool {
	kind := kindOf(value)
	if s.XIntOrString {
		return kind == "integer" || kind == "string"
	}
	return s.Type == kind || s.Type == "number" && kind == "integer" || s.Type == "" && kind != "null"
}

// wanted names the type of the schema.
func (s *schema) wanted() string {
	if s.XIntOrString {
		return "integer or string"
	}
	return s.Type
}

// supported lists the values that an enum has.
func (s *schema) supported() string {
	var all []string
	for _, e := range s.Enum {
		text, _ := json.Marshal(e.Object)
		all = append(all, string(text))
	}
	return "supported values: " + strings.Join(all, ", ")
}

// kindOf is the JSON type of a settled value.
func kindOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case int64:
		return "integer"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "number"
}

// article puts a or an before the name of a JSON type; null has none.
func article(kind string) string {
	switch {
	case kind == "null":
		return kind
	case strings.ContainsRune("aio", rune(kind[0])):
		return "an " + kind
	}
	return "a " + kind
}
