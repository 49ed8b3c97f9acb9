package main

import (
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/cmd/internal/localbuild"
)

// buildCommand returns `armature build`, which plans, runs and watches AgentBuilds.
func buildCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Plan, run and watch AgentBuilds",
		Example: `  armature build plan build.yaml --graph     print what would run
  armature build run build.yaml --wait       build it and wait for the image
  armature build describe weather -n team1   why it failed`,
	}
	cmd.PersistentFlags().String("api-group", api.DefaultGroup, "API group of AgentBuild")
	cli.Group(cmd, buildPlanCommand(), buildLintCommand(), buildRunCommand(), buildListCommand(),
		buildDescribeCommand(), buildLogsCommand(), buildCancelCommand(), buildRerunCommand(),
		buildDeleteCommand(), localbuild.PruneCommand(), localbuild.TestCommand())
	return cmd
}
