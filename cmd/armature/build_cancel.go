package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/cmd/internal/cli"
)

func buildCancelCommand() *cobra.Command {
	return buildVerbCommand("cancel", "Stop the run of an AgentBuild, and start no further run",
		"is cancelled",
		func(cmd *cobra.Command, c *client.Client, b *api.AgentBuild) error {
			return c.Cancel(cmd.Context(), b)
		})
}

func buildRerunCommand() *cobra.Command {
	return buildVerbCommand("rerun", "Build again, from the current revision", "is started again",
		func(cmd *cobra.Command, c *client.Client, b *api.AgentBuild) error {
			return c.Rerun(cmd.Context(), b, time.Now())
		})
}

func buildDeleteCommand() *cobra.Command {
	return buildVerbCommand("delete",
		"Delete an AgentBuild and its runs, but not the images that were pushed", "deleted",
		func(cmd *cobra.Command, c *client.Client, b *api.AgentBuild) error {
			return c.Delete(cmd.Context(), b.Name)
		})
}

// buildVerbCommand returns a command that runs do on one AgentBuild and prints that it is done.
func buildVerbCommand(verb, short, done string,
	do func(cmd *cobra.Command, c *client.Client, b *api.AgentBuild) error) *cobra.Command {
	var k cli.Cluster
	cmd := &cobra.Command{
		Use:               verb + " NAME",
		Short:             short,
		Example:           "  armature build " + verb + " weather -n team1",
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: completeBuilds(&k),
		RunE: named(&k, func(cmd *cobra.Command, c *client.Client, b *api.AgentBuild) error {
			if err := do(cmd, c, b); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "agentbuild %s/%s %s\n", b.Namespace, b.Name, done)
			return nil
		}),
	}
	k.Flags(cmd)
	return cmd
}
