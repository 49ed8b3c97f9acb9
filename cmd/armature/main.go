// Command armature renders AI-agent platforms at GitOps time.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, root()))
}

// run gives the exit status: 0 done, 1 findings or failure, 2 usage.
func run(ctx context.Context, root *cobra.Command) int {
	cmd, err := root.ExecuteContextC(ctx)
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFindings):
		return 1
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usageError{}):
		fmt.Fprintf(os.Stderr, "armature: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return 2
	}
	fmt.Fprintf(os.Stderr, "armature: %v\n", err)
	return 1
}

// errFindings is a failure that the findings on standard error have explained.
var errFindings = errors.New("findings of severity error")

// usageError is a command line that makes no sense: exit status 2.
type usageError struct{ error }

// args wraps cobra's check so that a wrong call exits with 2.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// artifacts reports whether a command line is about an artifact in a registry.
func artifacts(given []string) bool {
	return slices.ContainsFunc(given, func(a string) bool { return strings.HasPrefix(a, "oci://") })
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "armature",
		Short: "Render AI-agent platforms at GitOps time",
		Long: `Armature puts identity, configuration and policy around AI-agent workloads when
their manifests are rendered, so that what Git shows is what runs.`,
		Example: `  armature init                         write armature.yaml and the wiring for your tools
  armature render apps/ -o rendered/    render a folder
  kustomize build . | armature render - render a stream
  armature verify rendered/             fail where something opted in and was not rendered`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	verify := verifyCommand()
	if artifacts(os.Args[1:]) {
		verify = companion("verify", verify.Short) // with flags of its own
	}
	cmd.AddCommand(renderCommand(), uninjectCommand(), verify, lintCommand(), explainCommand(), diffCommand(), migrateCommand(), functionsCommand(), initCommand(), versionCommand(),
		companion("build", "Plan, run and watch AgentBuilds"), companion("install", "Print the manifests of the build controller"),
		companion("apply", "Render a package and apply it to a cluster, with inventory and pruning"),
		companion("delete", "Delete the objects of an applied package, by its inventory"),
		companion("inventory", "List the packages that were applied, or the objects of one and their health"),
		companion("status", "Show how actors, agents and injected workloads fare in a cluster"),
		companion("push", "Render a package and store it in a registry, as an artifact that Flux takes"),
		companion("pull", "Fetch a rendered package from a registry into a new folder"),
		companion("tag", "Give a rendered package in a registry another tag"),
		companion("list", "List the rendered packages of a repository in a registry"),
		companion("pin", "Resolve the images of a package to digests, in armature.lock"),
		companion("catalog", "List and search the agents and tools that run"))
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.RunE = func(c *cobra.Command, args []string) error { return c.Help() }
	cmd.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("unknown command %q", args[0])}
		}
		return nil
	}
	return cmd
}
