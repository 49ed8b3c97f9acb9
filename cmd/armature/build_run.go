package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/cmd/internal/localbuild"
	"github.com/armature-dev/armature/functions/text"
)

func buildRunCommand() *cobra.Command {
	var k cli.Cluster
	var wait bool
	var limit time.Duration
	var here bool
	var local localbuild.Build
	cmd := &cobra.Command{
		Use:   "run FILE...",
		Short: "Run the AgentBuilds of a file: on a cluster, or with --local on this machine",
		Long: `Apply the AgentBuilds of a file to a cluster, and wait for their images if asked.

With --local, the steps run as containers in BuildKit, without a cluster. Run uses the BuildKit
at BUILDKIT_HOST, docker buildx, or a buildkitd that it starts and stops. It refuses a build
that needs a cluster before it starts any step. A local build is not attested, so no policy
accepts it as a build of the platform.`,
		Example: `  armature build run examples/builds/weather.yaml
  armature build run build.yaml --local --source . --destination docker
  armature build run build.yaml --local --mode dev --destination layout=image/
  armature build run build.yaml -n team1 --wait --timeout 20m`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			group := cmd.Flag("api-group").Value.String()
			if err := local.Only(cmd, here); err != nil {
				return err
			}
			var c *client.Client
			var err error
			if !here {
				if c, err = connect(cmd, &k); err != nil {
					return err
				}
				group, c.Door = c.Group, doorAt(cmd, &k, knownCatalog())
			}
			builds, err := readBuilds(cmd, group, given...)
			if err != nil {
				return err
			}
			for _, b := range builds {
				if k.Namespace != "" && b.Namespace != "" && b.Namespace != k.Namespace {
					return fmt.Errorf("%s: metadata.namespace: is %q, but --namespace is %q\n"+
						"  hint: omit one of the two", b.Place, b.Namespace, k.Namespace)
				}
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), limit,
				fmt.Errorf("the build did not finish within %s\n  hint: increase --timeout", limit))
			defer cancel()
			if here {
				return local.Run(ctx, cmd, builds)
			}
			generations := make([]int64, len(builds))
			for i, b := range builds {
				if b.Namespace == "" {
					b.Namespace = c.Namespace
				}
				if generations[i], err = c.Apply(ctx, b.AgentBuild); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "agentbuild %s/%s applied\n", b.Namespace, b.Name)
			}
			if !wait {
				return nil
			}
			failed := 0
			for i, b := range builds {
				err := await(ctx, cmd, c, b.AgentBuild, generations[i])
				if err != nil && !errors.Is(err, client.ErrNotBuilt) {
					return err
				}
				if err != nil {
					failed++
					fmt.Fprintf(cmd.ErrOrStderr(),
						"agentbuild %s/%s was not built\n  hint: see `armature build describe "+
							"%s -n %s`\n", b.Namespace, b.Name, b.Name, b.Namespace)
				}
			}
			if failed > 0 {
				return cli.ErrFindings
			}
			return nil
		},
	}
	k.Flags(cmd)
	local.Flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&here, "local", false, "build on this machine with BuildKit, without a cluster")
	f.BoolVar(&wait, "wait", false,
		"wait until each image is built, and show its tasks; the exit status is 1 if a build fails")
	f.DurationVar(&limit, "timeout", time.Hour, "how long to wait")
	return cmd
}

// await waits for the end of a build. It prints each change of its state and of its tasks once.
func await(ctx context.Context, cmd *cobra.Command, c *client.Client, b *api.AgentBuild,
	generation int64) error {
	name := b.Namespace + "/" + b.Name
	activity := cli.Begin(cmd.ErrOrStderr(), false, "waiting for "+name)
	defer func() { activity.End() }()
	printed := map[string]bool{}
	last := ""
	return c.Await(ctx, b, generation, func(now *api.AgentBuild) {
		var lines []string
		tasks, _ := c.Tasks(ctx, now) // a user who may not read them sees the state of the build
		for _, t := range tasks {
			if line := fmt.Sprintf("%s %s: %s", name, t.Name, t.State); t.State != "Pending" &&
				t.State != "Skipped" && !printed[now.Status.PipelineRunName+line] {
				printed[now.Status.PipelineRunName+line] = true
				if d := took(t); d != "" {
					line += " in " + d
				}
				lines = append(lines, text.Printable(line))
			}
		}
		if line := fmt.Sprintf("%s %s: %s", name, now.Status.Phase,
			text.Plain(now.Status.Message)); line != last {
			last = line
			lines = append(lines, line)
		}
		if len(lines) == 0 {
			return
		}
		activity.End()
		for _, line := range lines {
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
		activity = cli.Begin(cmd.ErrOrStderr(), false, fmt.Sprintf("%s is %s", name, now.Status.Phase))
	})
}
