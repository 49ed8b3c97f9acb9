package main

import (
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/text"
)

func buildLintCommand() *cobra.Command {
	var strict bool
	var format string
	cmd := &cobra.Command{
		Use:   "lint [DIR]...",
		Short: "Check templates and steps without a build",
		Long: `Lint checks the template and step ConfigMaps of folders, or the shipped ones. It
reads each strictly, validates it with Tekton's own rules and composes it with a
build that sets every parameter. Templates of a folder may use the shipped steps.`,
		Example: `  armature build lint my-templates/
  armature build lint --strict my-templates/ team-steps/
  armature build lint my-templates/ -o json`,
		RunE: func(cmd *cobra.Command, dirs []string) error {
			library, err := manifest.Shipped()
			if err != nil {
				return err
			}
			only := library.ConfigMaps
			if len(dirs) > 0 {
				only = map[string]templates.ConfigMap{}
				for _, dir := range dirs {
					own, err := manifest.OpenFolder(dir)
					if err != nil {
						return err
					}
					maps.Copy(only, own.ConfigMaps)
				}
				maps.Copy(library.ConfigMaps, only)
			}
			checked, warnings, err := library.Lint(only)
			if format != "text" {
				return printBuildLint(cmd.OutOrStdout(), format, strict, checked, warnings, err)
			}
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+w)
			}
			if err != nil {
				return err
			}
			if strict && len(warnings) > 0 {
				return errors.New(text.Count(len(warnings), "warning"))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s checked, all good\n",
				text.Count(checked, "ConfigMap"))
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail on warnings too")
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

// buildLint is the report for programs.
type buildLint struct {
	Checked  int                `json:"checked"` // templates and steps
	Problems []buildLintProblem `json:"problems"`
	Warnings []string           `json:"warnings"`
}

type buildLintProblem struct {
	Place   string `json:"place"` // of the ConfigMap, with key and line
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// printBuildLint prints the report. The exit status is 1 with problems, or with warnings if strict
// is set, as in text.
func printBuildLint(out io.Writer, format string, strict bool, checked int, warnings []string,
	problems error) error {
	report := buildLint{Checked: checked, Problems: []buildLintProblem{},
		Warnings: append([]string{}, warnings...)}
	for _, f := range findings.Of(problems) {
		report.Problems = append(report.Problems,
			buildLintProblem{f.Place.String(), f.Field, f.Message, f.Hint})
	}
	if err := cli.PrintObjects(out, format, report); err != nil {
		return err
	}
	if problems != nil || strict && len(warnings) > 0 {
		return cli.ErrFindings
	}
	return nil
}
