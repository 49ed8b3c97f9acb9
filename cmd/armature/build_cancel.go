package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
)

func buildCancelCommand() *cobra.Command {
	return buildEditCommand("cancel", "Stop the run of an AgentBuild and start no other", "is cancelled",
		func(p *buildPatch, _ string) { p.Spec.Cancel = new(true) })
}

// buildPatch is a JSON merge patch of an AgentBuild.
type buildPatch struct {
	Metadata struct {
		// ResourceVersion lets the API server reject concurrent changes of two users.
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec struct {
		// Cancel is removed if it is nil.
		Cancel *bool `json:"cancel"`
	} `json:"spec"`
}

// buildEditCommand changes one AgentBuild.
func buildEditCommand(verb, short, done string, edit func(p *buildPatch, group string)) *cobra.Command {
	var k cluster
	cmd := &cobra.Command{
		Use:               verb + " NAME",
		Short:             short,
		Example:           "  armature build " + verb + " weather -n team1",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: k.completeBuilds,
		RunE: k.named(func(cmd *cobra.Command, c *connection, b *api.AgentBuild) error {
			var patch buildPatch
			patch.Metadata.ResourceVersion = b.ResourceVersion
			edit(&patch, c.group)
			data, err := json.Marshal(patch)
			if err == nil {
				_, err = c.Resource(c.builds()).Namespace(b.Namespace).Patch(cmd.Context(), b.Name, types.MergePatchType, data, metav1.PatchOptions{})
			}
			if err != nil {
				return fmt.Errorf("changing AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "agentbuild %s/%s %s\n", b.Namespace, b.Name, done)
			return nil
		}),
	}
	k.flags(cmd)
	return cmd
}
