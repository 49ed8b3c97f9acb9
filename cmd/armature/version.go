package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/render/version"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  armature version",
		Args:    args(cobra.ExactArgs(0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "armature %s %s/%s %s\n", version.String(), runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	}
}
