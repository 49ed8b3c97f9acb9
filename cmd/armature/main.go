// Command armature is the whole tool: it renders AI-agent platforms at GitOps time, plans and runs
// their builds, and delivers and watches the rendered objects.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/artifact"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/cmd/internal/discovery"
	"github.com/armature-dev/armature/render/version"
)

func main() {
	// A linked library could write memory profiles, but no option asks for one.
	runtime.MemProfileRate = 0
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	cmd := root()
	showAs(cmd, os.Args[0])
	os.Exit(cli.Run(ctx, cmd))
}

// showAs makes help and errors call a plugin as its users do: Flux runs it as
// flux-armature (RFC-0013), kubectl as kubectl-armature.
func showAs(root *cobra.Command, program string) {
	if host, ok := strings.CutSuffix(filepath.Base(program), "-armature"); ok && host != "" {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: host + " armature"}
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "armature",
		Short: "Render AI-agent platforms at GitOps time",
		Long: `Armature adds identity, configuration and policy to AI-agent workloads when their
manifests are rendered, so that Git shows what runs. Commands also accept PATH and FILE
as -f, like kubectl.`,
		Example: `  armature init                         write armature.yaml and the wiring for your tools
  armature render apps/ -d rendered/    render a folder
  kustomize build . | armature render - render a stream
  armature verify rendered/             fail if an opted-in workload is not rendered`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetVersionTemplate(versionLine())
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"render", "Render:", []*cobra.Command{initCommand(), renderCommand(), uninjectCommand(),
			functionsCommand(), migrateCommand()}},
		{"review", "Review:", []*cobra.Command{verifyCommand(), lintCommand(), checkCommand(),
			explainCommand(), diffCommand(), reportCommand(), testFunctionCommand()}},
		{"deliver", "Deliver:", []*cobra.Command{pinCommand(), pinBuildsCommand(), toolsCommand(),
			cardCommand(), skillCommand(), hydrateCommand(), artifact.Command(), applyCommand(),
			deleteCommand(), statusCommand()}},
		{"platform", "Build images and find agents:", []*cobra.Command{installCommand(),
			buildCommand(), discovery.CatalogCommand(), discovery.ConsoleCommand()}},
	} {
		cmd.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
		}
		cmd.AddCommand(g.commands...)
	}
	cmd.AddCommand(append(releaseCommands(), versionCommand())...)
	cmd.SetFlagErrorFunc(cli.FlagError)
	cmd.RunE = func(c *cobra.Command, args []string) error { return c.Help() }
	cmd.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return cli.UnknownCommand(c, args[0])
		}
		return nil
	}
	return cmd
}

func versionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  armature version
  armature version -o json`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.PrintAs(cmd, format, versionLine(), map[string]string{
				"version": version.String(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				"goVersion": runtime.Version()})
		},
	}
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func versionLine() string {
	return fmt.Sprintf("armature %s %s/%s %s\n", version.String(), runtime.GOOS, runtime.GOARCH,
		runtime.Version())
}
