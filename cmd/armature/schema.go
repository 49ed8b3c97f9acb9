package main

import (
	"encoding/json"
	"io"
	"reflect"

	"github.com/invopop/jsonschema"

	"github.com/armature-dev/armature/functions/api"
)

// writeSchema writes the JSON Schema of a kind, by which editors complete and
// check armature.yaml and the pillars' custom resources.
func writeSchema(w io.Writer, kind string) (known bool, err error) {
	kinds := map[string]any{
		"RenderConfig": api.RenderConfig{}, "TokenExchange": api.TokenExchange{},
		"AgentTrace": api.AgentTrace{}, "AgentCard": api.AgentCard{},
		"AsyncActor": api.AsyncActor{}, "Overcommit": api.Overcommit{}, "OvercommitClass": api.OvercommitClass{},
	}
	value, known := kinds[kind]
	if !known {
		return false, nil
	}
	reflector := jsonschema.Reflector{
		Anonymous:                 true,
		ExpandedStruct:            true,
		AllowAdditionalProperties: false,
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			if t == reflect.TypeFor[api.Number]() {
				return &jsonschema.Schema{Type: "number"}
			}
			if t == reflect.TypeFor[api.Quantity]() {
				return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}}}
			}
			return nil
		},
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return true, e.Encode(reflector.Reflect(value))
}
