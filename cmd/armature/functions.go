package main

import (
	"encoding/json"
	"fmt"
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
			if schema != "" {
				known, err := writeSchema(cmd.OutOrStdout(), schema)
				if err == nil && !known {
					return usageError{fmt.Errorf("no schema of %q: choose RenderConfig, TokenExchange, AgentTrace, AgentCard, AsyncActor, Overcommit or OvercommitClass", schema)}
				}
				return err
			}
			if len(args) == 1 {
				page, ok := functions.Page(args[0])
				if !ok {
					return usageError{fmt.Errorf("there is no function %q: see armature functions", args[0])}
				}
				_, err := fmt.Fprint(cmd.OutOrStdout(), page)
				return err
			}
			type row struct {
				Name    string `json:"name" yaml:"name"`
				Summary string `json:"summary" yaml:"summary"`
			}
			var rows []row
			for _, f := range functions.Table() {
				rows = append(rows, row{f.Name, f.Summary})
			}
			switch format {
			case "json":
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(rows)
			case "yaml":
				return yaml.NewEncoder(cmd.OutOrStdout()).Encode(rows)
			case "":
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				for _, r := range rows {
					fmt.Fprintf(w, "%s\t%s\n", r.Name, r.Summary)
				}
				return w.Flush()
			}
			return usageError{fmt.Errorf("unknown format %q: choose json or yaml", format)}
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "json or yaml (default: a table)")
	cmd.Flags().StringVar(&schema, "schema", "", "print the JSON Schema of RenderConfig, TokenExchange, AgentTrace, AgentCard, AsyncActor, Overcommit or OvercommitClass")
	return cmd
}
