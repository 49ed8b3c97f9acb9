package manifest

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/templates"
)

// schema is the shipped CRD, compiled to validate objects as an API server does.
type schema struct {
	*structuralschema.Structural
	validator validation.SchemaValidator
	rules     *cel.Validator
}

// shippedSchema is compiled once: compiling the CEL rules takes longer than all other parts of
// reading a build.
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
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		return nil, fmt.Errorf("converting the shipped CRD: %w", err)
	}
	structural, err := structuralschema.NewStructural(&props)
	if err != nil {
		return nil, fmt.Errorf("structuring the shipped CRD: %w", err)
	}
	validator, _, err := validation.NewSchemaValidator(&props)
	if err != nil {
		return nil, fmt.Errorf("compiling the shipped CRD: %w", err)
	}
	return &schema{structural, validator,
		cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// judge sets the defaults of an object and returns the errors that an API server would report.
func (s *schema) judge(d document, object map[string]any) (out []error) {
	defaulting.Default(object, s.Structural)
	found := validation.ValidateCustomResource(nil, object, s.validator)
	mistyped := false // then rules about the parents of the field cannot be evaluated
	for _, e := range found {
		mistyped = mistyped || e.Type == field.ErrorTypeTypeInvalid
	}
	rules, _ := s.rules.Validate(context.Background(), nil, s.Structural, object, nil,
		celconfig.RuntimeCELCostBudget)
	for _, e := range append(found, rules...) {
		if message, hint := reworded(e, mistyped); message != "" {
			out = append(out, d.bad(e.Field, hint, "%s", message))
		}
	}
	return out
}

// reworded returns the message and the hint for an error of the API server's library. The message
// is empty for errors that only follow from a value of the wrong type, and for those without a
// field.
func reworded(e *field.Error, mistyped bool) (message, hint string) {
	if e.Field == "" || e.Field == "<nil>" {
		return "", "" // neither of two types matches; another error names the field
	}
	message = cmp.Or(strings.TrimPrefix(e.Detail, e.Field+" in body "), "is not valid")
	hint = "see docs/builds.md for the field"
	if before, rule, unjudged := strings.Cut(message, " evaluating rule: "); unjudged {
		if strings.HasPrefix(before, "invalid data") && mistyped {
			return "", ""
		}
		message = rule // for example, a text that is not a duration
	}
	switch e.Type {
	case field.ErrorTypeRequired:
		message, hint = "is missing", "add the field"
	case field.ErrorTypeNotSupported:
		message, hint = fmt.Sprintf("is %v, which is not supported", e.BadValue), e.Detail
	}
	m := wrongType().FindStringSubmatch(message)
	if m == nil {
		return message, hint
	}
	hint = "give the field that type"
	switch {
	case m[2] == "null":
		hint = "give it a value, or remove it"
	case m[1] == "string":
		hint = "put the value in quotes"
	}
	return fmt.Sprintf("is %s; want %s", article(m[2]), article(m[1])), hint
}

// wrongType matches what the API server reports about a value of the wrong type.
var wrongType = text.Pattern(`^must be of type (\w+): "(\w+)"$`)

// article returns the name of a JSON type after "a" or "an"; null has no article.
func article(kind string) string {
	switch kind {
	case "null":
		return kind
	case "array", "integer", "object":
		return "an " + kind
	}
	return "a " + kind
}
