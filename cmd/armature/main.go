// Command armature is the whole tool: it renders AI-agent platforms at GitOps
// time, plans and runs their builds, and delivers and watches what was rendered.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	runtime.MemProfileRate = 0 // nobody can ask for a profile, although a library links what would write one
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	cmd := root()
	showAs(cmd, os.Args[0])
	os.Exit(run(ctx, cmd))
}

// showAs makes help and errors call a plugin as its users do: Flux runs it as
// flux-armature (RFC-0013), kubectl as kubectl-armature.
func showAs(root *cobra.Command, program string) {
	if host, ok := strings.CutSuffix(filepath.Base(program), "-armature"); ok && host != "" {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: host + " armature"}
	}
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
	printError(err)
	return 1
}

// errFindings is a failure that the findings on standard error have explained.
var errFindings = errors.New("findings of severity error")

// exitStatus is that of a command for which 1 does not mean failure, or which
// distinguishes more than success and failure.
type exitStatus int

func (s exitStatus) Error() string { return "exit status " + strconv.Itoa(int(s)) }

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

// group makes cmd a command that only has subcommands. Without one, or with a
// misspelt one, it is a wrong call that names what there is.
func group(cmd *cobra.Command, subcommands ...*cobra.Command) {
	cmd.AddCommand(subcommands...)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if len(given) > 0 {
			return unknownCommand(cmd, given[0])
		}
		var names []string
		for _, c := range subcommands {
			names = append(names, c.Name())
		}
		return usageError{fmt.Errorf("%s: name a subcommand: %s", cmd.CommandPath(), strings.Join(names, ", "))}
	}
}

// unknownCommand names the commands that were perhaps meant.
func unknownCommand(cmd *cobra.Command, given string) error {
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	problem := fmt.Sprintf("unknown command %q for %q", given, cmd.CommandPath())
	if meant := cmd.SuggestionsFor(given); len(meant) > 0 {
		problem += fmt.Sprintf(", did you mean %s?", strings.Join(meant, ", "))
	}
	return usageError{errors.New(problem)}
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
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"render", "Render:", []*cobra.Command{initCommand(), renderCommand(), uninjectCommand(), functionsCommand(), migrateCommand()}},
		{"review", "Review:", []*cobra.Command{verifyCommand(), lintCommand(), explainCommand(), diffCommand()}},
		{"deliver", "Deliver:", []*cobra.Command{pinCommand(), hydrateCommand(), pushCommand(), pullCommand(), tagCommand(), listCommand(),
			applyCommand(), deleteCommand(), inventoryCommand(), statusCommand()}},
		{"platform", "Build images and find agents:", []*cobra.Command{installCommand(), buildCommand(), catalogCommand()}},
	} {
		cmd.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
		}
		cmd.AddCommand(g.commands...)
	}
	cmd.AddCommand(append(releaseCommands(), versionCommand())...)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.RunE = func(c *cobra.Command, args []string) error { return c.Help() }
	cmd.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(c, args[0])
		}
		return nil
	}
	return cmd
}
