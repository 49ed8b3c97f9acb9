// Command armature renders AI-agent platforms at GitOps time.
package main

import (
	"os"

	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{Use: "armature", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(buildCommand(), installCommand())
	os.Exit(execute(root))
}
