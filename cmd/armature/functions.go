package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions"
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
		Args: args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, f := range functions.Table() {
				names = append(names, f.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"", "json", "yaml"}, format) {
				return usageError{fmt.Errorf("unknown format %q: choose json or yaml", format)}
			}
			if schema != "" {
				if len(args) > 0 || cmd.Flags().Changed("output") {
					return usageError{errors.New("--schema cannot be combined with -o or a function name: a schema is JSON and describes a kind")}
				}
				known, err := writeSchema(cmd.OutOrStdout(), schema)
				if err == nil && !known {
					return usageError{fmt.Errorf("no schema of %q: choose RenderConfig, TokenExchange, AgentTrace, AgentCard, AsyncActor, Overcommit or OvercommitClass", schema)}
				}
				return err
			}
			if len(args) == 1 {
				page, ok := functions.Page(args[0])
				if !ok {
					return usageError{fmt.Errorf("function %q does not exist: see armature functions", args[0])}
				}
				if format == "" {
					_, err := fmt.Fprint(cmd.OutOrStdout(), page)
					return err
				}
				f, _ := functions.Lookup(args[0])
				return encode(cmd, format, struct {
					functionRow `yaml:",inline"`
					Page        string `json:"page" yaml:"page"`
				}{functionRow{f.Name, f.Summary}, page})
			}
			var rows []functionRow
			for _, f := range functions.Table() {
				rows = append(rows, functionRow{f.Name, f.Summary})
			}
			if format != "" {
				return encode(cmd, format, rows)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, r := range rows {
				fmt.Fprintf(w, "%s\t%s\n", r.Name, r.Summary)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "json or yaml (default: a table)")
	cmd.Flags().StringVar(&schema, "schema", "", "print the JSON Schema of RenderConfig, TokenExchange, AgentTrace, AgentCard, AsyncActor, Overcommit or OvercommitClass")
	complete(cmd, "output", []string{"json", "yaml"})
	complete(cmd, "schema", []string{"RenderConfig", "TokenExchange", "AgentTrace", "AgentCard", "AsyncActor", "Overcommit", "OvercommitClass"})
	return cmd
}

type functionRow struct {
	Name    string `json:"name" yaml:"name"`
	Summary string `json:"summary" yaml:"summary"`
}

// encode writes a value as JSON, or else as YAML.
func encode(cmd *cobra.Command, format string, value any) error {
	if format == "json" {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	return yaml.NewEncoder(cmd.OutOrStdout()).Encode(value)
}
