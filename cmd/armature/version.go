package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/version"
)

func versionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  armature version
  armature version -o json`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format == "text" {
				_, err := io.WriteString(cmd.OutOrStdout(), versionLine())
				return err
			}
			return cli.PrintObjects(cmd.OutOrStdout(), format, map[string]string{
				"version": version.String(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				"goVersion": runtime.Version()})
		},
	}
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func versionLine() string {
	return fmt.Sprintf("armature %s %s/%s %s\n", version.String(), runtime.GOOS, runtime.GOARCH,
		runtime.Version())
}
