package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/armature-dev/armature/render/apply"
)

// The exit status of diff, as that of other programs of this name: 1 says that
// something differs, more than 1 that nobody knows.
const (
	statusDiffers = exitStatus(1)
	statusFailed  = exitStatus(3)
)

// diffCommand is `armature diff`: what an apply would change in the cluster.
func diffCommand() *cobra.Command {
	var k cluster
	var p pkg
	var opt apply.Options
	var format, color string
	var exitCode bool
	cmd := &cobra.Command{
		Use:   "diff PATH|-|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Show what apply would change in a cluster",
		Long: `Diff renders a package and shows what apply would change: a unified diff of each
object that would be created, changed or pruned. The API server computes it by
dry runs, so that its defaults do not show as differences. The values of Secrets
are masked.

The exit status is 0 where nothing differs and 1 where something does, as kubectl
diff's; with --exit-code=false it is 0 whatever differs. It is 2 for a wrong call,
and 3 where diff fails, for one because the cluster does not answer.`,
		Example: `  armature diff apps/weather -n team1
  armature diff apps/weather -n team1 -o json
  armature diff apps/weather -n team1 --exit-code=false`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, a []string) error {
			if color != "auto" && color != "always" && color != "never" {
				return usageError{fmt.Errorf("--color %q: use auto, always or never", color)}
			}
			c, id, objects, err := k.open(cmd, &p, a[0])
			if err != nil {
				return diffStatus(err)
			}
			plan, err := c.Plan(cmd.Context(), id, objects, opt)
			if err != nil {
				return diffStatus(err)
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			differs, err := printDiff(out, cmd.ErrOrStderr(), plan, format, colored(cmd.OutOrStdout(), color))
			if err := errors.Join(err, out.Flush()); err != nil {
				return diffStatus(err)
			}
			if differs && exitCode {
				return statusDiffers
			}
			return nil
		},
	}
	k.flags(cmd)
	p.flags(cmd)
	outputFlag(cmd, &format, "text", "text", "json", "yaml")
	cmd.Flags().BoolVar(&exitCode, "exit-code", true, "exit with 1 where something differs")
	cmd.Flags().StringVar(&color, "color", "auto", "auto, always or never")
	if err := cmd.RegisterFlagCompletionFunc("color", cobra.FixedCompletions([]string{"auto", "always", "never"}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag was added above
	}
	cmd.Flags().StringSliceVar(&opt.ForceConflicts, "force-conflicts", nil, "show fields taken over from these field managers")
	cmd.Flags().BoolVar(&opt.Recreate, "recreate", false, "show what would be recreated")
	return cmd
}

// diffStatus tells a failure from a difference.
func diffStatus(err error) error {
	if errors.As(err, &usageError{}) {
		return err
	}
	if !errors.Is(err, errFindings) {
		explain(err)
	}
	return statusFailed
}

func colored(out io.Writer, color string) bool {
	f, ok := out.(*os.File)
	return color == "always" || color == "auto" && ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""
}

// printDiff says whether anything differs. Problems go to problems.
func printDiff(out, problems io.Writer, plan *apply.Plan, format string, color bool) (differs bool, err error) {
	l := listingOf(plan, true)
	for i := range l.Objects {
		r := &l.Objects[i]
		if r.Action == apply.Unchanged || r.Action == apply.Skip {
			continue
		}
		differs = true
		if r.Diff, err = r.Step.Diff(); err != nil {
			return true, err
		}
		if format != "text" {
			continue
		}
		if r.Action == apply.Conflict || r.Action == apply.Refused {
			fmt.Fprintf(problems, "%s: %s: %s\n", r.Place(), r.Title(), r.Reason)
		}
		paint(out, r.Diff, color)
	}
	if format != "text" {
		return differs, printObjects(out, format, l)
	}
	return differs, nil
}

// paint writes a diff, in colours if asked.
func paint(out io.Writer, diff string, color bool) {
	if !color {
		io.WriteString(out, diff) // a bufio.Writer, whose Flush tells
		return
	}
	for line := range strings.Lines(diff) {
		code := ""
		switch {
		case strings.HasPrefix(line, "diff "), strings.HasPrefix(line, "--- "), strings.HasPrefix(line, "+++ "):
			code = "\033[1m"
		case strings.HasPrefix(line, "@@"):
			code = "\033[36m"
		case strings.HasPrefix(line, "-"):
			code = "\033[31m"
		case strings.HasPrefix(line, "+"):
			code = "\033[32m"
		}
		if code == "" {
			io.WriteString(out, line)
			continue
		}
		fmt.Fprintf(out, "%s%s\033[0m\n", code, strings.TrimSuffix(line, "\n"))
	}
}
