package localbuild

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/local"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
)

// TestCommand returns `armature build test`.
func TestCommand() *cobra.Command {
	var l Build
	cmd := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run steps and templates on this machine, and compare their results",
		Long: `Test runs each BuildTest of the files with BuildKit, like armature build run --local, and
compares its results and its output with the expectations in the file:

  apiVersion: ` + keys.V1alpha1 + `
  kind: BuildTest
  metadata: {name: finds-the-dockerfile}
  spec:
    step: check-dockerfile-step           # or build: the spec of an AgentBuild
    parameters: {subfolder-path: app}
    source: testdata/app                  # relative to this file
    expect:
      result: Succeeded                   # or Failed
      results: {has-dockerfile: "true"}   # of a build: {TASK.NAME: value}
      logs: [found Dockerfile]            # parts of lines`,
		Example: `  armature build test my-templates/tests/*.yaml --templates my-templates/
  armature build test step-test.yaml --logs`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, files []string) error {
			group := cmd.Flag("api-group").Value.String()
			var tests []manifest.Test
			for _, file := range files {
				data, err := cli.ReadFile(cmd, "the tests", file)
				if err != nil {
					return err
				}
				found, err := manifest.Tests(file, data, group)
				if err != nil {
					return err
				}
				tests = append(tests, found...)
			}
			library, err := l.open(cmd)
			if err != nil {
				return err
			}
			return withDaemon(cmd.Context(), func(daemon *local.Daemon) error {
				return l.tryAll(cmd, daemon, library, tests)
			})
		},
	}
	l.stepFlags(cmd, "")
	return cmd
}

// tryAll runs the tests, and prints the result of each.
func (l *Build) tryAll(cmd *cobra.Command, daemon *local.Daemon, library *manifest.Library,
	tests []manifest.Test) error {
	failed := 0
	for _, t := range tests {
		began := time.Now()
		wrong, err := l.try(cmd.Context(), cmd, daemon, library, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		word := "ok  "
		if len(wrong) > 0 {
			word = "FAIL"
			failed++
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s (%s)\n", word, t.Name,
			time.Since(began).Round(10*time.Millisecond))
		for _, line := range wrong {
			fmt.Fprintln(cmd.OutOrStdout(), "     "+text.Printable(line))
		}
	}
	if failed > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d of %s failed\n", failed, text.Count(len(tests), "test"))
		return cli.ErrFindings
	}
	return nil
}

// try runs a test, and returns how its results differ from its expectations.
func (l *Build) try(ctx context.Context, cmd *cobra.Command, daemon *local.Daemon,
	library *manifest.Library, t manifest.Test) (wrong []string, err error) {
	folder := filepath.Dir(t.Place.File)
	var given []string
	for _, secret := range slices.Sorted(maps.Keys(t.Spec.Secrets)) {
		given = append(given, secret+"="+filepath.Join(folder, t.Spec.Secrets[secret]))
	}
	secrets, err := readSecrets(given)
	if err != nil {
		return nil, err
	}
	b := Build{settings: l.settings}
	options := local.Options{}
	if t.Spec.Source != "" {
		source := filepath.Join(folder, t.Spec.Source)
		if _, err := os.Stat(source); err != nil {
			return nil, err
		}
		if t.Spec.Step == "" {
			b.source = source
		} else {
			options.Source = source
		}
	}
	var logs strings.Builder
	var last []string
	options.Report = func(e local.Event) {
		if e.State == "" {
			line := fmt.Sprintf("[%s : %s] %s", e.Task, e.Step, e.Line)
			logs.WriteString(e.Line + "\n")
			if last = append(last, line); len(last) > 10 {
				last = last[1:]
			}
			if l.logs {
				fmt.Fprintln(cmd.OutOrStdout(), text.Printable(line))
			}
		}
	}
	results, err := b.once(ctx, daemon, library, t.Build, secrets, options, nil)
	var step *local.StepError
	if err != nil && !errors.As(err, &step) {
		return nil, err
	}
	expect := t.Spec.Expect
	got := "Succeeded"
	if step != nil {
		got = "Failed"
	}
	if got != expect.Result {
		wrong = append(wrong, fmt.Sprintf("it %s, but %s is expected", strings.ToLower(got),
			expect.Result))
		if step != nil {
			wrong = append(wrong, step.Error())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(expect.Results)) {
		task, result, found := strings.Cut(name, ".")
		if !found {
			task, result = "step", name
		}
		value, given := "", false
		if results != nil {
			value, given = results.Tasks[task][result]
		}
		if want := expect.Results[name]; !given {
			wrong = append(wrong, fmt.Sprintf("the result %s is missing, but %q is expected", name, want))
		} else if value != want {
			wrong = append(wrong, fmt.Sprintf("the result %s is %q, but %q is expected", name,
				value, want))
		}
	}
	for _, part := range expect.Logs {
		if !strings.Contains(logs.String(), part) {
			wrong = append(wrong, fmt.Sprintf("no line has %q", part))
		}
	}
	if len(wrong) > 0 && !l.logs {
		wrong = append(wrong, last...)
	}
	return wrong, nil
}
