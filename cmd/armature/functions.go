package main

import (
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/invopop/jsonschema"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
)

func functionsCommand() *cobra.Command {
	var format, schema string
	cmd := &cobra.Command{
		Use:   "functions [NAME]",
		Short: "List the functions, or show one with its configuration and an example",
		Example: `  armature functions
  armature functions inject
  armature functions -o json
  armature functions --schema RenderConfig > armature.schema.json`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string,
			string) ([]string, cobra.ShellCompDirective) {
			return functions.Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if schema != "" {
				if len(args) > 0 || cmd.Flags().Changed("output") {
					return cli.Usagef("--schema cannot be combined with -o or a function name: a " +
						"schema is JSON and describes a kind")
				}
				return writeSchema(cmd.OutOrStdout(), schema)
			}
			if len(args) == 1 {
				page, ok := functions.Page(args[0])
				if !ok {
					return cli.Usagef("function %q does not exist: see armature functions", args[0])
				}
				if format != "json" && format != "yaml" {
					_, err := fmt.Fprint(cmd.OutOrStdout(), page)
					return err
				}
				f, _ := functions.Lookup(args[0])
				return cli.Encode(cmd.OutOrStdout(), format, struct {
					functionRow `yaml:",inline"`
					Page        string `json:"page" yaml:"page"`
				}{functionRow{f.Name, f.Summary}, page})
			}
			l := cli.Listing{}
			rows := []functionRow{}
			for _, f := range functions.Table() {
				rows = append(rows, functionRow{f.Name, f.Summary})
				l.Add(f.Name, f.Name, f.Summary)
			}
			l.Objects = rows
			return l.Print(cmd, format)
		},
	}
	cli.ListFlag(cmd, &format)
	kinds := slices.Sorted(maps.Keys(schemas))
	cli.WordFlag(cmd, &schema, "schema", "", "",
		"print the JSON Schema of a kind: "+strings.Join(kinds, ", "), "kind", kinds...)
	return cmd
}

type functionRow struct {
	Name    string `json:"name" yaml:"name"`
	Summary string `json:"summary" yaml:"summary"`
}

// schemas are the types of the kinds that have a JSON Schema.
var schemas = map[string]any{
	"RenderConfig": api.RenderConfig{}, "TokenExchange": api.TokenExchange{},
	"AgentTrace": api.AgentTrace{}, "AgentCard": api.AgentCard{},
	"AsyncActor": api.AsyncActor{}, "Overcommit": api.Overcommit{},
	"OvercommitClass": api.OvercommitClass{},
}

// writeSchema writes the JSON Schema of a kind, by which editors complete and
// check armature.yaml and the pillars' custom resources.
func writeSchema(w io.Writer, kind string) error {
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
	return cli.Encode(w, "json", reflector.Reflect(schemas[kind]))
}
