package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/render/oci"
)

func pullCommand() *cobra.Command {
	var r registryFlags
	var t trustFlags
	var format string
	cmd := &cobra.Command{
		Use:   "pull oci://REGISTRY/REPOSITORY:TAG FOLDER",
		Short: "Fetch a rendered package from a registry into a new folder",
		Long: `Pull fetches a rendered package. It verifies the signature before it fetches the
content, and checks all of the content before it writes anything: it refuses names
outside of the folder, links, devices, and archives that unpack to more than 1 GiB.`,
		Example: `  armature pull oci://registry.example/fleet/agents:v1 agents/
  armature pull oci://registry.example/fleet/agents:v1 agents/ --verify-policy policy.yaml`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := artifact(given[0]); err != nil {
				return err
			}
			shown := begin(cmd.ErrOrStderr(), false, "pulling "+given[0])
			defer shown.end()
			opt := r.options(shown, "pulling "+given[0])
			if t.given() {
				policy, err := t.read(&r)
				if err != nil {
					return err
				}
				opt.Verify = check(policy.OfPackages())
			}
			result, err := oci.Pull(cmd.Context(), given[0], given[1], opt)
			shown.end()
			if err != nil {
				return err
			}
			if format != "text" {
				return printObjects(cmd.OutOrStdout(), format, result)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "pulled %d files, %d KiB, to %s\n", result.Files, (result.Bytes+1023)>>10, given[1])
			_, err = fmt.Fprintln(cmd.OutOrStdout(), oci.Scheme+result.Ref)
			return err
		},
	}
	r.flags(cmd)
	t.flags(cmd)
	outputFlag(cmd, &format, "text", "text", "yaml", "json")
	return cmd
}

func tagCommand() *cobra.Command {
	var r registryFlags
	var format string
	cmd := &cobra.Command{
		Use:     "tag oci://REGISTRY/REPOSITORY:TAG TAG",
		Short:   "Give a rendered package in a registry another tag",
		Example: `  armature tag oci://registry.example/fleet/agents:v1 production`,
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := artifact(given[0]); err != nil {
				return err
			}
			result, err := oci.Tag(cmd.Context(), given[0], given[1], r.options(nil, ""))
			if err != nil {
				return err
			}
			if format != "text" {
				return printObjects(cmd.OutOrStdout(), format, result)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), oci.Scheme+result.Ref)
			return err
		},
	}
	r.flags(cmd)
	outputFlag(cmd, &format, "text", "text", "yaml", "json")
	return cmd
}

func listCommand() *cobra.Command {
	var r registryFlags
	var format string
	cmd := &cobra.Command{
		Use:     "list oci://REGISTRY/REPOSITORY",
		Short:   "List the rendered packages of a repository in a registry",
		Example: `  armature list oci://registry.example/fleet/agents`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := artifact(given[0]); err != nil {
				return err
			}
			shown := begin(cmd.ErrOrStderr(), false, "listing "+given[0])
			list, err := oci.List(cmd.Context(), given[0], r.options(nil, ""))
			shown.end()
			if err != nil {
				return err
			}
			if format != "table" {
				return printObjects(cmd.OutOrStdout(), format, list)
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(table, "TAG\tDIGEST\tREVISION\tCREATED\tSOURCE")
			for _, a := range list {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", oneLine(a.Tag), a.Digest, oneLine(a.Revision), oneLine(a.Created), oneLine(a.Source))
			}
			return table.Flush()
		},
	}
	r.flags(cmd)
	outputFlag(cmd, &format, "table", "table", "yaml", "json")
	return cmd
}
