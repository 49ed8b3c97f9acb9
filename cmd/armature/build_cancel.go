package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

func buildCancelCommand() *cobra.Command {
	return buildEditCommand("cancel", "Stop the run of an AgentBuild and start no other", "is cancelled",
		func(b *api.AgentBuild, _ string) { b.Spec.Cancel = true })
}

// buildEditCommand changes one AgentBuild. The API server rejects
// concurrent changes of two users.
func buildEditCommand(verb, short, done string, edit func(b *api.AgentBuild, group string)) *cobra.Command {
	var k cluster
	cmd := &cobra.Command{
		Use:               verb + " NAME",
		Short:             short,
		Example:           "  armature build " + verb + " weather -n team1",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: k.completeBuilds,
		RunE: k.named(func(cmd *cobra.Command, c *connection, b *api.AgentBuild) error {
			before := b.DeepCopy()
			edit(b, c.group)
			if err := c.Patch(cmd.Context(), b, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
				return fmt.Errorf("changing AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "agentbuild %s/%s %s\n", b.Namespace, b.Name, done)
			return nil
		}),
	}
	k.flags(cmd)
	return cmd
}
