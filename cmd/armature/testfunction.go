package main

import (
	"cmp"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/conformance"
)

func testFunctionCommand() *cobra.Command {
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
				return fmt.Errorf(
					"%w\n  hint: name a program, with a slash if it is not on the PATH", err)
			}
			checks, err := conformance.Test(cmd.Context(), conformance.Program{Path: path,
				Args: command[1:], Limit: limit}, texts[0], texts[1])
			if cmd.Context().Err() != nil {
				return cli.ErrInterrupted
			}
			if err != nil {
				return err
			}
			return printChecks(cmd, format, checks)
		},
	}
	cmd.Flags().StringVarP(&config, "config", "c", "", "a `FILE` with the functionConfig")
	cmd.Flags().StringVar(&input, "input", "",
		"a `FILE` with a ResourceList to run the function on (default: a built-in one)")
	cmd.Flags().DurationVar(&limit, "timeout", 30*time.Second,
		"maximum duration of a run of the function")
	cmd.Flags().SetInterspersed(false) // flags after COMMAND belong to it
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func printChecks(cmd *cobra.Command, format string, checks []conformance.Check) (err error) {
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
	if failed := cli.PrintAs(cmd, format, content.String(),
		map[string]any{"checks": checks}); failed != nil || format != "text" {
		return cmp.Or(failed, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d ok, %d failed, %d skipped\n",
		text.Count(len(checks), "check"), counts[conformance.OK], counts[conformance.Failed],
		counts[conformance.Skipped])
	return err
}
