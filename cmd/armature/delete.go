package main

import (
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// deleteCommand returns `armature delete`, which deletes a package from a cluster.
func deleteCommand() *cobra.Command {
	var k cli.Cluster
	var r cli.Report
	var opt apply.Options
	var dryRun, yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete the objects of an applied package, by its inventory",
		Long: `Delete removes all objects of a package from the cluster, in the reverse order of
apply, and its inventory last. It keeps objects that another client recreated under the
same name, and objects whose annotations say so.`,
		Example: `  armature delete weather -n team1
  armature delete weather -n team1 --dry-run
  armature delete weather -n team1 --yes --timeout 0`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: k.CompletePackages,
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := checkTimeout(&opt); err != nil {
				return err
			}
			c, namespace, err := k.Applier()
			if err != nil {
				return err
			}
			id := apply.Package{Namespace: namespace, Name: a[0]}
			if dryRun {
				plan, err := c.PlanDelete(cmd.Context(), id, opt)
				return r.Print(cmd, plan, true, err)
			}
			progress := cli.NewProgress(cmd.ErrOrStderr())
			opt.Tell, opt.Confirm = progress.Line, cli.Confirmation(cmd, yes, false)
			plan, err := c.Delete(cmd.Context(), id, opt)
			progress.End()
			return r.Print(cmd, plan, false, err)
		},
	}
	k.Flags(cmd)
	r.Flags(cmd)
	timeoutFlag(cmd, &opt)
	cli.AllowFlag(cmd, &opt, cli.AllowPruneShared)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be deleted")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
