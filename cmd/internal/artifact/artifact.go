// Package artifact has the commands of rendered packages in a registry.
package artifact

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/deliver/oci"
)

// Command returns `armature artifact`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "artifact",
		Short: "Store rendered packages in a registry, fetch and verify them",
		Example: `  armature artifact push apps/ oci://registry.example/fleet/agents:v1
  armature artifact verify oci://registry.example/fleet/agents:v1 --key cosign.pub
  armature artifact pull oci://registry.example/fleet/agents:v1 agents/ --verify-policy policy.yaml`,
	}
	cli.Group(cmd, pushCommand(), pullCommand(), listCommand(), tagCommand(), verifyCommand(),
		attestCommand())
	return cmd
}

func pullCommand() *cobra.Command {
	var r cli.Registry
	var t cli.Trust
	var format string
	cmd := &cobra.Command{
		Use:   "pull oci://REGISTRY/REPOSITORY:TAG FOLDER",
		Short: "Fetch a rendered package from a registry into a new folder",
		Long: `Pull fetches a rendered package. It verifies the signature before it fetches the
content, and checks all of the content before it writes anything: it refuses names
outside of the folder, links, devices, and archives that unpack to more than 1 GiB.`,
		Example: `  armature artifact pull oci://registry.example/fleet/agents:v1 agents/
  armature artifact pull oci://registry.example/fleet/agents:v1 agents/ --verify-policy policy.yaml`,
		Args: cli.ArtifactArgs(2, 0),
		RunE: func(cmd *cobra.Command, given []string) error {
			activity := cli.Begin(cmd.ErrOrStderr(), false, "pulling "+given[0])
			defer activity.End()
			policy, err := t.Demanded(&r)
			if err != nil {
				return err
			}
			opt := r.Options(activity, "pulling "+given[0])
			opt.Verify = cli.CheckPackage(policy)
			result, err := oci.Pull(cmd.Context(), given[0], given[1], opt)
			activity.End()
			if err != nil {
				return err
			}
			return cli.PrintArtifact(cmd, format, result.Ref, result,
				fmt.Sprintf("pulled %s to %s\n", weight(result), given[1]))
		},
	}
	r.Flags(cmd)
	t.Flags(cmd)
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func tagCommand() *cobra.Command {
	var r cli.Registry
	var format string
	cmd := &cobra.Command{
		Use:     "tag oci://REGISTRY/REPOSITORY:TAG TAG",
		Short:   "Give a rendered package in a registry another tag",
		Example: `  armature artifact tag oci://registry.example/fleet/agents:v1 production`,
		Args:    cli.ArtifactArgs(2, 0),
		RunE: func(cmd *cobra.Command, given []string) error {
			result, err := oci.Tag(cmd.Context(), given[0], given[1], r.Options(nil, ""))
			if err != nil {
				return err
			}
			return cli.PrintArtifact(cmd, format, result.Ref, result, "")
		},
	}
	r.Flags(cmd)
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func listCommand() *cobra.Command {
	var r cli.Registry
	var format string
	cmd := &cobra.Command{
		Use:     "list oci://REGISTRY/REPOSITORY",
		Short:   "List the rendered packages of a repository in a registry",
		Example: `  armature artifact list oci://registry.example/fleet/agents`,
		Args:    cli.ArtifactArgs(1, 0),
		RunE: func(cmd *cobra.Command, given []string) error {
			activity := cli.Begin(cmd.ErrOrStderr(), false, "listing "+given[0])
			list, err := oci.List(cmd.Context(), given[0], r.Options(nil, ""))
			activity.End()
			if err != nil {
				return err
			}
			l := cli.Listing{Columns: []string{"TAG", "DIGEST", "REVISION", "CREATED", "SOURCE"},
				Objects: list, Empty: "no packages in " + given[0]}
			for _, a := range list {
				l.Add(given[0]+":"+a.Tag, a.Tag, a.Digest, a.Revision, a.Created, a.Source)
			}
			return l.Print(cmd, format)
		},
	}
	r.Flags(cmd)
	cli.ListFlag(cmd, &format)
	return cmd
}
