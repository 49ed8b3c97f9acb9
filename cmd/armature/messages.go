// Command armature-remote carries out the commands of `armature` that talk to
// clusters and registries, so that the program that renders stays small.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/compose"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "armature", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(buildCommand(), installCommand(), applyCommand(), diffCommand(), deleteCommand(), inventoryCommand(), statusCommand(), exportCommand())
	root.AddCommand(pushCommand(), pullCommand(), tagCommand(), listCommand(), verifyCommand(), pinCommand(), catalogCommand())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	os.Exit(run(ctx, root))
}

// run gives the exit status: 0 done, 1 findings or failure, 2 usage.
func run(ctx context.Context, root *cobra.Command) int {
	cmd, err := root.ExecuteContextC(ctx)
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, errFindings):
		return 1
	case errors.As(err, &usageError{}):
		fmt.Fprintf(os.Stderr, "armature: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return 2
	}
	explain(err)
	return 1
}

// explain writes an error to standard error. A registry's words may be in it.
func explain(err error) { fmt.Fprint(os.Stderr, harmless(explanation(err))) }

// harmless keeps what strangers wrote from steering a terminal.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}

// oneLine keeps it from steering a table as well.
func oneLine(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(harmless(text))
}

// explanation gives each of several errors its own lines. Words that somebody
// put around several stay around them.
func explanation(err error) string {
	switch e := err.(type) {
	case *multierror.Error:
		var all strings.Builder
		for _, one := range e.Errors {
			all.WriteString(explanation(one))
		}
		return all.String()
	case *compose.Problem:
		if e.Place == "build" { // it has no place
			return e.Message + "\n"
		}
	}
	return strings.TrimRight(err.Error(), "\n") + "\n"
}

// errFindings is a failure that standard error has explained.
var errFindings = errors.New("findings of severity error")

// usageError is a command line that makes no sense: exit status 2.
type usageError struct{ error }

// args wraps cobra's check so that a wrong call exits with 2.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
		}
		return nil
	}
}
