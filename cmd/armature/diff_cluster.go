package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/armature-dev/armature/render/apply"
	"github.com/armature-dev/armature/render/page"
)

// clusterDiff compares a package with what a cluster has.
type clusterDiff struct {
	cluster
	pkg
	opt   apply.Options
	color string
}

func (d *clusterDiff) flags(cmd *cobra.Command) {
	d.cluster.flags(cmd)
	d.pkg.flags(cmd)
	f := cmd.Flags()
	choiceFlag(cmd, &d.color, "color", "auto", "auto", "always", "never")
	f.StringSliceVar(&d.opt.ForceConflicts, "force-conflicts", nil, "show fields taken over from these field managers")
	f.BoolVar(&d.opt.Recreate, "recreate", false, "show what would be recreated")
}

func (d *clusterDiff) run(cmd *cobra.Command, path, format string) (differs bool, err error) {
	c, id, objects, err := d.cluster.open(cmd, &d.pkg, path)
	if err != nil {
		return false, err
	}
	plan, err := c.Plan(cmd.Context(), id, objects, d.opt)
	if err != nil {
		return false, err
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	differs, err = printDiff(out, cmd.ErrOrStderr(), plan, format, colored(cmd.OutOrStdout(), d.color))
	return differs, errors.Join(err, out.Flush())
}

func colored(out io.Writer, color string) bool {
	f, ok := out.(*os.File)
	return color == "always" || color != "never" && ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""
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
	switch format {
	case "text":
		return differs, nil
	case "html":
		return differs, page.Diff(out, changesOf(l))
	}
	return differs, printObjects(out, format, l)
}

// changesOf gives what a page shows of a listing with diffs.
func changesOf(l listing) page.Changes {
	c := page.Changes{Title: "Package " + l.Package.Name + " in namespace " + l.Package.Namespace}
	var counts []string
	for _, action := range slices.Sorted(maps.Keys(l.Summary)) {
		counts = append(counts, fmt.Sprintf("%d %s", l.Summary[action], action))
	}
	c.Summary = strings.Join(counts, ", ")
	for i := range l.Objects {
		if r := &l.Objects[i]; r.Action != apply.Unchanged && r.Action != apply.Skip {
			c.Changes = append(c.Changes, page.Change{Object: r.Title(), Effect: string(r.Action), Headline: r.Reason, Lines: r.Diff})
		}
	}
	return c
}

// paint writes a diff, in colours if asked.
func paint(out io.Writer, diff string, color bool) {
	if !color {
		io.WriteString(out, diff) // a bufio.Writer, whose Flush returns the error
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
