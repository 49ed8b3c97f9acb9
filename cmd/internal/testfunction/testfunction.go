// Package testfunction has the command that checks a KRM function.
package testfunction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/conformance"
)

// mostOutput is what a function may print.
const mostOutput = 64 << 20

// Command is `armature test-function`.
func Command() *cobra.Command {
	var format, config, input string
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "test-function -- COMMAND [ARG...]",
		Short: "Check that a program is a KRM function that hosts can rely on",
		Long: `Test-function runs a KRM function on lists of its own, and on the one of --input, and checks
the requirements of hosts such as kustomize and kpt. For each, it prints ok, failed or
skipped, with the observation and a hint. The exit status is 1 if a check failed.`,
		Example: `  armature test-function -- armature-fn inject
  armature test-function --config settings.yaml --input list.yaml -- ./my-function
  armature test-function -o json -- ./my-function`,
		Args: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return cli.Usagef("COMMAND is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, command []string) error {
			if limit <= 0 {
				return cli.Usagef("--timeout %s: use a positive duration", limit)
			}
			if config == "-" && input == "-" {
				return cli.Usagef("--config and --input cannot both be -")
			}
			texts := make([][]byte, 2)
			for i, f := range []struct{ flag, name string }{{"--input", input}, {"--config", config}} {
				var err error
				if f.name != "" {
					if texts[i], err = cli.ReadFile(cmd, f.flag, f.name); err != nil {
						return err
					}
				}
			}
			path, err := exec.LookPath(command[0])
			if err != nil {
				return fmt.Errorf("%w\n  hint: name a program, with a slash if it is not on the PATH", err)
			}
			checks, err := conformance.Test(cmd.Context(), program{path, command[1:], limit}, texts[0], texts[1])
			if cmd.Context().Err() != nil {
				return cli.ErrInterrupted
			}
			if err != nil {
				return err
			}
			return show(cmd, format, checks)
		},
	}
	cmd.Flags().StringVarP(&config, "config", "c", "", "a `FILE` with the functionConfig")
	cmd.Flags().StringVar(&input, "input", "", "a `FILE` with a ResourceList to run the function on (default: a built-in one)")
	cmd.Flags().DurationVar(&limit, "timeout", 30*time.Second, "maximum duration of a run of the function")
	cmd.Flags().SetInterspersed(false) // what is behind COMMAND is its own
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func show(cmd *cobra.Command, format string, checks []conformance.Check) (err error) {
	var content strings.Builder
	counts := make(map[conformance.Status]int)
	for _, c := range checks {
		if counts[c.Status]++; c.Status == conformance.Failed {
			err = cli.ErrFindings
		}
		fmt.Fprintf(&content, "%s: %s: %s\n", c.Status, c.Name, cli.OneLine(c.Seen))
		if c.Hint != "" {
			fmt.Fprintf(&content, "  hint: %s\n", c.Hint)
		}
	}
	if format != "text" {
		if failed := cli.PrintObjects(cmd.OutOrStdout(), format, map[string]any{"checks": checks}); failed != nil {
			return failed
		}
		return err
	}
	if _, failed := io.WriteString(cmd.OutOrStdout(), content.String()); failed != nil {
		return failed
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d ok, %d failed, %d skipped\n", text.Count(len(checks), "check"),
		counts[conformance.OK], counts[conformance.Failed], counts[conformance.Skipped])
	return err
}

// program is a function that is a program.
type program struct {
	path  string
	args  []string
	limit time.Duration
}

func (p program) Run(ctx context.Context, input []byte) (conformance.Answer, error) {
	within, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	cmd := exec.CommandContext(within, p.path, p.args...)
	out, words := &bounded{most: mostOutput, full: cancel}, &bounded{most: 64 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), out, words
	cmd.WaitDelay = time.Second // for those who have its pipes
	// The program ends with what it has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind
	}
	var ended *exec.ExitError
	switch {
	case out.more:
		return conformance.Answer{}, fmt.Errorf("it prints more than %d MiB", mostOutput>>20)
	case errors.Is(within.Err(), context.DeadlineExceeded):
		return conformance.Answer{}, fmt.Errorf("it was still running after %s", p.limit)
	case ctx.Err() != nil:
		return conformance.Answer{}, ctx.Err()
	case errors.Is(err, exec.ErrWaitDelay):
		return conformance.Answer{}, errors.New("it ended, but a child process still holds its output")
	case errors.As(err, &ended) && ended.ExitCode() < 0:
		return conformance.Answer{}, fmt.Errorf("it was ended: %s", ended)
	case err != nil && ended == nil && !errors.Is(err, syscall.EPIPE): // which does not read all
		return conformance.Answer{}, err
	}
	return conformance.Answer{Stdout: out.kept.Bytes(), Stderr: words.kept.Bytes(), Exit: cmd.ProcessState.ExitCode()}, nil
}

// bounded keeps the first bytes that are written. full is called once there are more.
type bounded struct {
	kept bytes.Buffer
	most int
	more bool
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.most-b.kept.Len())
	b.kept.Write(p[:keep])
	if keep < len(p) && !b.more {
		if b.more = true; b.full != nil {
			b.full()
		}
	}
	return len(p), nil
}
