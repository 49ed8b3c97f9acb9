package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/armature-dev/armature/builds/api"
)

func buildListCommand() *cobra.Command {
	var k cluster
	var format string
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List AgentBuilds",
		Example: `  armature build list -n team1
  armature build list -A -o json`,
		Args:              args(cobra.NoArgs),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := k.connect(cmd)
			if err != nil {
				return err
			}
			namespace := c.namespace
			if all {
				namespace = ""
			}
			list, err := c.listBuilds(cmd.Context(), namespace)
			if err != nil {
				return c.failed("listing AgentBuilds", err)
			}
			if format != "table" {
				// Typed clients leave the kind out, and what is printed must be appliable.
				list.SetGroupVersionKind(api.GroupVersion(c.group).WithKind(api.Kind + "List"))
				for i := range list.Items {
					list.Items[i].SetGroupVersionKind(api.GroupVersion(c.group).WithKind(api.Kind))
				}
				return printObjects(cmd.OutOrStdout(), format, list)
			}
			var text strings.Builder
			table := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
			fmt.Fprintln(table, "NAMESPACE\tNAME\tMODE\tPHASE\tRUN\tIMAGE\tAGE")
			for _, b := range list.Items {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Namespace, b.Name, b.Spec.Mode, b.Status.Phase,
					b.Status.PipelineRunName, b.Status.BuiltImage, duration.HumanDuration(time.Since(b.CreationTimestamp.Time)))
			}
			if err := table.Flush(); err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), api.Plain(text.String()))
			return err
		},
	}
	k.flags(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list those of all namespaces")
	outputFlag(cmd, &format, "table", "table", "yaml", "json")
	return cmd
}
