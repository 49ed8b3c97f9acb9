package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	lintrules "github.com/armature-dev/armature/functions/lint"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/lint"
)

func lintCommand() *cobra.Command {
	var in input
	var format string
	var rules bool
	cmd := &cobra.Command{
		Use:   "lint PATH|-",
		Short: "Find mistakes in a package that a cluster would show only later",
		Long: `Lint renders a package in memory and checks the result: clashing ports, references
to missing objects, pods that their namespace refuses. It writes nothing. Findings
go to standard output with the author's file and line.

Kustomizations in the package are read for the names, namespaces and images that they
set and for the ConfigMaps and Secrets that they generate, not for their patches.

spec.lint in armature.yaml sets the severity of each rule; the annotation
` + keys.LintIgnore + ` on an object names rules that skip it.
docs/lint.md has a section for each rule.

The exit status is 0 without errors, 1 with an error among the findings, 2 for a
wrong call.`,
		Example: `  armature lint apps/
  kustomize build . | armature lint -c armature.yaml -
  armature lint apps/ -o sarif > lint.sarif
  armature lint --rules`,
		Args: args(func(cmd *cobra.Command, given []string) error {
			if rules {
				return cobra.ExactArgs(0)(cmd, given)
			}
			return cobra.ExactArgs(1)(cmd, given)
		}),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			if rules {
				return listRules(cmd, format)
			}
			if !slices.Contains(host.Formats(), format) {
				return usageError{fmt.Errorf("unknown format %q for --output: choose from %s", format, strings.Join(host.Formats(), ", "))}
			}
			in.format = "text"
			shown := begin(cmd.ErrOrStderr(), in.quiet, "reading "+args[0])
			defer shown.end()
			src, opt, findings, err := in.open(cmd, args[0], "")
			if err != nil {
				return err
			}
			if list, err := resourceList(src, opt); err != nil {
				return err
			} else if list != nil {
				opt.Config, findings = list.Config, append(findings, list.Findings...)
			}
			var stats render.Stats
			if !krm.Failed(findings) {
				var found []krm.Finding
				if found, stats, err = lint.Run(interruptibleSource(cmd, shown.reading("lint", src)), opt); err != nil {
					return err
				}
				findings = append(findings, found...)
			}
			shown.end()
			return reportLint(cmd, format, in.quiet, in.locate(findings), stats)
		},
	}
	cmd.Flags().StringVarP(&in.config, "config", "c", "", "RenderConfig to use (default: armature.yaml at the root of PATH)")
	cmd.Flags().StringVarP(&format, "output", "o", "text", "write findings as "+strings.Join(host.Formats(), ", "))
	cmd.Flags().BoolVarP(&in.quiet, "quiet", "q", false, "show errors and warnings only")
	cmd.Flags().BoolVar(&rules, "rules", false, "list the rules with their default severities (-o json, yaml)")
	complete(cmd, "output", host.Formats())
	return cmd
}

// complete offers the values of a flag.
func complete(cmd *cobra.Command, flag string, values []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag has been defined
	}
}

// interruptibleSource stops between two files when the user presses Ctrl-C.
func interruptibleSource(cmd *cobra.Command, src render.Source) render.Source {
	read := src.Read
	if read != nil {
		src.Read = func(file string, buf []byte) ([]byte, error) {
			if cmd.Context().Err() != nil {
				return nil, errInterrupted
			}
			return read(file, buf)
		}
	}
	return src
}

func reportLint(cmd *cobra.Command, format string, quiet bool, findings []krm.Finding, stats render.Stats) error {
	seen := make(map[krm.Severity]int)
	for _, f := range findings {
		seen[f.Severity]++
	}
	if quiet {
		findings = slices.DeleteFunc(findings, func(f krm.Finding) bool { return f.Severity == krm.Info })
	}
	if err := host.WriteFindings(cmd.OutOrStdout(), format, findings); err != nil {
		return err
	}
	if !quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "linted %s: %s, %s, %d for information\n", count(stats.Documents, "document"),
			count(seen[krm.Error], "error"), count(seen[krm.Warning], "warning"), seen[krm.Info])
	}
	if seen[krm.Error] > 0 {
		return errFindings
	}
	return nil
}

func listRules(cmd *cobra.Command, format string) error {
	type row struct {
		Name     string `json:"name" yaml:"name"`
		Severity string `json:"severity" yaml:"severity"`
		Summary  string `json:"summary" yaml:"summary"`
	}
	var rows []row
	for _, r := range lintrules.Rules() {
		rows = append(rows, row{r.Name, string(r.Severity), r.Summary})
	}
	switch format {
	case "json":
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(rows)
	case "yaml":
		return yaml.NewEncoder(cmd.OutOrStdout()).Encode(rows)
	case "text":
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		for _, r := range rows {
			fmt.Fprintf(w, "%s\t%s\t%s\n", r.Name, r.Severity, r.Summary)
		}
		return w.Flush()
	}
	return usageError{fmt.Errorf("unknown format %q for --rules: choose from text, json, yaml", format)}
}
