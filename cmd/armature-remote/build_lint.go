package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/manifest"
)

func buildLintCommand() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "lint [DIR]...",
		Short: "Check templates and steps by themselves",
		Long: `Check the template and step ConfigMaps of folders, or the shipped ones: each is
read strictly, judged by Tekton's own rules and composed with a build that gives
every parameter. Steps of a folder may lean on the shipped ones.`,
		Example: `  armature build lint my-templates/
  armature build lint --strict my-templates/ team-steps/`,
		RunE: func(cmd *cobra.Command, dirs []string) error {
			library, err := manifest.Shipped()
			if err != nil {
				return err
			}
			only := library.ConfigMaps
			if len(dirs) > 0 {
				own := &manifest.Library{}
				for _, dir := range dirs {
					if err := errors.Join(own.AddDir(os.DirFS(dir), dir), library.AddDir(os.DirFS(dir), dir)); err != nil {
						return err
					}
				}
				only = own.ConfigMaps
			}
			checked, warnings, err := library.Lint(only)
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+w)
			}
			if err != nil {
				return err
			}
			if checked == 0 {
				return errors.New("no template and no step was found\n  hint: give a folder with ConfigMaps that hold template.yaml or task-spec.yaml")
			}
			if strict && len(warnings) > 0 {
				return fmt.Errorf("%d warnings", len(warnings))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d templates and steps are good\n", checked)
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "let warnings fail, too")
	return cmd
}
