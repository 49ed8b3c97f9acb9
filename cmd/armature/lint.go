package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/lint"
	"github.com/armature-dev/armature/render/source"
)

func lintCommand() *cobra.Command {
	var in cli.Input
	var format, color string
	var rules bool
	cmd := &cobra.Command{
		Use:   "lint PATH|-",
		Short: "Find mistakes in a package before it reaches a cluster",
		Long: `Lint renders a package in memory and checks the result: clashing ports, references
to missing objects, pods that their namespace refuses. It writes nothing. Findings
go to standard output with the author's file and line.

Lint builds each kustomization that no other kustomization uses, but without network,
plugins and charts. It checks other files as they are.

spec.lint in armature.yaml sets the severity of each rule; the annotation
` + keys.LintIgnore + ` on an object names rules that skip it.
docs/reference/lint.md has a section for each rule.

The exit status is 0 without errors, 1 if a finding is an error, and 2 for wrong
usage.`,
		Example: `  armature lint apps/
  kustomize build . | armature lint -c armature.yaml -
  armature lint apps/ -o sarif > lint.sarif
  armature lint --rules`,
		Args: cli.Args(func(cmd *cobra.Command, given []string) error {
			if rules {
				return cobra.ExactArgs(0)(cmd, given)
			}
			return cobra.ExactArgs(1)(cmd, given)
		}),

		RunE: func(cmd *cobra.Command, args []string) error {
			if rules {
				return listRules(cmd, format)
			}
			if err := cli.Among("output", "format", format, host.Formats()); err != nil {
				return err
			}
			findings, stats, err := lintPackage(cmd, &in, args[0])
			if err != nil {
				return err
			}
			return reportLint(cmd, format, color, in.Quiet, in.Locate(findings), stats)
		},
	}
	in.ConfigFlag(cmd, "PATH")
	cmd.Flags().StringVarP(&format, "output", "o", "text",
		"output format: "+strings.Join(host.Formats(), ", ")+"; with --rules "+
			strings.Join(ruleFormats, ", "))
	cli.ColorFlag(cmd, &color)
	cmd.Flags().BoolVarP(&in.Quiet, "quiet", "q", false, "show errors and warnings only")
	cmd.Flags().BoolVar(&rules, "rules", false, "list the rules with their default severities")
	cli.CompleteFlag(cmd, "output", host.Formats)
	return cmd
}

// lintPackage lints a package.
func lintPackage(cmd *cobra.Command, in *cli.Input,
	path string) (findings []finding.Finding, stats render.Stats, err error) {
	activity := cli.Begin(cmd.ErrOrStderr(), in.Quiet, "reading "+path)
	defer activity.End()
	src, opt, findings, err := in.Open(cmd, path, "")
	if err != nil {
		return nil, stats, err
	}
	if list, err := resourceList(src, opt, in.Config); err != nil {
		return nil, stats, err
	} else if list != nil {
		opt.Config, findings = list.Config, append(findings, list.Findings...)
	}
	refused := func(f finding.Finding) bool {
		return f.Severity == finding.Error && f.Rule != source.LinkRule && f.Rule != source.ChartRule
	}
	// A finding about a link or a chart does not prevent the check of the other files.
	if !slices.ContainsFunc(findings, refused) {
		found, counted, err := lint.Run(cli.InterruptibleSource(cmd, activity.Reading("lint", src)), opt)
		if err != nil {
			return nil, stats, err
		}
		findings, stats = append(findings, found...), counted
		if stats.Documents == 0 && !finding.Failed(findings) {
			return nil, stats, cli.ErrNoManifests(path)
		}
	}
	return findings, stats, nil
}

func reportLint(cmd *cobra.Command, format, color string, quiet bool, findings []finding.Finding,
	stats render.Stats) error {
	seen := make(map[finding.Severity]int)
	for _, f := range findings {
		seen[f.Severity]++
	}
	if quiet {
		findings = slices.DeleteFunc(findings,
			func(f finding.Finding) bool { return f.Severity == finding.Info })
	}
	out := cmd.OutOrStdout()
	if format == "text" && cli.Colored(out, color) {
		var text strings.Builder
		if err := host.WriteFindings(&text, format, findings); err != nil {
			return err
		}
		if err := cli.Paint(out, text.String(), severityColor); err != nil {
			return err
		}
	} else if err := host.WriteFindings(out, format, findings); err != nil {
		return err
	}
	if !quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "linted %s: %s, %s, %d for information\n",
			text.Count(stats.Documents, "document"), text.Count(seen[finding.Error], "error"),
			text.Count(seen[finding.Warning], "warning"), seen[finding.Info])
	}
	if seen[finding.Error] > 0 {
		return cli.ErrFindings
	}
	return nil
}

// severityColor returns the color of a line of findings.
func severityColor(line string) string {
	switch {
	case strings.Contains(line, ": error: "), strings.HasPrefix(line, "error: "):
		return cli.Red
	case strings.Contains(line, ": warning: "), strings.HasPrefix(line, "warning: "):
		return cli.Yellow
	}
	return ""
}

func listRules(cmd *cobra.Command, format string) error {
	type row struct {
		Name     string `json:"name" yaml:"name"`
		Severity string `json:"severity" yaml:"severity"`
		Summary  string `json:"summary" yaml:"summary"`
	}
	l := cli.Listing{}
	rows := []row{}
	for _, r := range lintrules.Rules() {
		rows = append(rows, row{r.Name, string(r.Severity), r.Summary})
		l.Add(r.Name, r.Name, string(r.Severity), r.Summary)
	}
	l.Objects = rows
	if err := cli.Among("output", "format", format,
		append([]string{"text"}, ruleFormats...)); err != nil {
		return err
	}
	return l.Print(cmd, format)
}

var ruleFormats = []string{"wide", "name", "json", "yaml"}
