//go:build man

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/version"
)

// releaseCommands returns the commands that generate files of a release, which released programs
// lack: `go run -tags man ./cmd/armature man DIR` writes the manual. SOURCE_DATE_EPOCH is the date
// of its pages.
func releaseCommands() []*cobra.Command {
	return []*cobra.Command{{
		Use:   "man DIR",
		Short: "Write the manual, a page for each command",
		Args:  cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := os.MkdirAll(given[0], 0o755); err != nil {
				return fmt.Errorf("writing the manual: %w", err)
			}
			cmd.Root().DisableAutoGenTag = true
			header := doc.GenManHeader{Section: "1", Source: "armature " + version.String(),
				Manual: "Armature"}
			if err := doc.GenManTree(cmd.Root(), &header, given[0]); err != nil {
				return fmt.Errorf("writing the manual: %w", err)
			}
			return nil
		},
		Hidden: true,
	}}
}
