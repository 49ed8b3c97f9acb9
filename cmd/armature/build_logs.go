package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/cmd/internal/cli"
)

func buildLogsCommand() *cobra.Command {
	var k cli.Cluster
	var opt client.LogOptions
	catalog := knownCatalog()
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the logs of an AgentBuild's last run, task by task",
		Long: `Print the logs of an AgentBuild's last run, task by task. Control
sequences, such as colours, are shown as escapes. Logs of a run in the platform's namespace
come through the console (--catalog-server, or ARMATURE_CATALOG), unless you may read them there.`,
		Example: `  armature build logs weather -n team1
  armature build logs weather --follow
  armature build logs weather --task buildkit-build --tail 20`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: completeBuilds(&k),
		RunE: named(&k, func(cmd *cobra.Command, c *client.Client, b *api.AgentBuild) error {
			if opt.Since < 0 {
				return cli.Usagef("--since %s: use a positive duration", opt.Since)
			}
			c.Door = doorAt(cmd, &k, catalog)
			opt.Out, opt.Err = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return c.Logs(cmd.Context(), b.Name, opt)
		}),
	}
	k.Flags(cmd)
	f := cmd.Flags()
	catalog.Flags(f, "catalog-server", doorUsage)
	f.BoolVarP(&opt.Follow, "follow", "f", false, "follow the logs until the run ends")
	f.StringVar(&opt.Task, "task", "", "task whose logs to print (default: all)")
	f.Int64Var(&opt.Tail, "tail", -1, "number of last lines of each step to print; -1 prints all")
	f.DurationVar(&opt.Since, "since", time.Duration(0),
		"print only lines newer than this duration, such as 5m; 0 prints all")
	return cmd
}
