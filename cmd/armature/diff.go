package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/compare"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/page"
	"github.com/armature-dev/armature/render/source"
)

// The exit status of diff is that of other programs with this name: 1 if there is a difference, 2
// if the comparison failed.
const (
	statusDiffers = cli.ExitStatus(1)
	statusFailed  = cli.ExitStatus(2)
)

// diffCommand returns `armature diff`, which compares a package with a Git revision or with a
// cluster.
func diffCommand() *cobra.Command {
	var revision revisionDiff
	var live clusterDiff
	var format string
	var exitCode bool
	cmd := &cobra.Command{
		Use:   "diff PATH [--against REVISION] | PATH|-|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Show what changes against a Git revision (--against) or in a cluster",
		Long: `With --against, diff renders a package from a Git revision and from the working tree, and
reports the effect of the difference: which workloads roll, which need a restart, which
only reload their files, and which identities, permissions and images change. It shows
changes of the tools in armature.lock word by word. It needs no cluster, and does not
change the working tree. To compare with the commit at which a branch left main:
--against "$(git merge-base main HEAD)".

Without --against, diff renders a package and shows what apply would change in a
cluster: a unified diff of each object that would be created, changed or pruned. The
API server computes it by dry runs, so its defaults do not count as differences.
The values of Secrets are masked.

With -o html, diff prints one page for a browser: the workloads that need a restart, and the
changed lines of each object. The page loads nothing and runs no script; the values of
Secrets are masked in it.

Diff writes nothing. With --exit-code, the exit status is 1 if there is a difference and 0
if there is none, as with kubectl diff; this is the default in a cluster. With
--exit-code=false, it is 0 in both cases, as with git diff; this is the default with
--against. It is 2 for wrong usage and if diff fails, for example because a side does not
render or the cluster does not answer.`,
		Example: `  armature diff apps/ --against main
  armature diff apps/ --against v1.2.0 --to v1.3.0
  armature diff apps/ --against origin/main -o markdown >> "$GITHUB_STEP_SUMMARY"
  armature diff apps/ --against origin/main -o html > changes.html
  armature diff apps/ --against HEAD --exit-code

  armature diff apps/weather -n team1
  armature diff apps/weather -n team1 -o json
  armature diff oci://registry.example/fleet/weather:v1 -n team1 --exit-code=false`,
		Args: cli.Args(cobra.ExactArgs(1)),
	}
	cmd.Flags().StringVar(&revision.against, "against", "",
		"Git revision to compare with, instead of a cluster")
	cmd.Flags().StringVar(&revision.to, "to", "",
		"with --against, Git revision to compare (default: the working tree)")
	ofRevision := cli.FlagNames(cmd)
	live.flags(cmd)
	ofCluster := slices.DeleteFunc(cli.FlagNames(cmd),
		func(name string) bool { return slices.Contains(ofRevision, name) || name == "config" })
	cmd.Flags().BoolVar(&exitCode, "exit-code", false,
		"exit with 1 if anything differs (default: true in a cluster, false with --against)")
	cmd.Flags().StringVarP(&format, "output", "o", "text",
		"text, html or json; with --against markdown, in a cluster yaml")
	formats := func() []string {
		if revision.against != "" {
			return append(compare.Formats(), "html")
		}
		return []string{"text", "json", "yaml", "html"}
	}
	cli.CompleteFlag(cmd, "output", formats)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		other, reason, diff := ofRevision, "requires --against", live.run
		if cmd.Flags().Changed("against") {
			other, reason, diff = ofCluster, "cannot be combined with --against", revision.run
		} else if !cmd.Flags().Changed("exit-code") {
			exitCode = true
		}
		if cmd.Flags().Changed("against") && revision.against == "" {
			return cli.Usagef("--against: name a Git revision")
		}
		if err := cli.FlagsAmong(cmd, func(name string) bool {
			return !slices.Contains(other, name)
		}, reason); err != nil {
			return err
		}
		if err := cli.Among("output", "format", format, formats()); err != nil {
			return err
		}
		revision.Config = live.Config
		differs, err := diff(cmd, given[0], format)
		switch {
		case err == nil && differs && exitCode:
			return statusDiffers
		case err == nil, cli.IsUsage(err):
			return err
		case !errors.Is(err, cli.ErrFindings):
			cli.PrintError(err)
		}
		return statusFailed
	}
	return cmd
}

// revisionDiff compares a package with itself in another revision.
type revisionDiff struct {
	cli.Input
	against, to string
}

func (d *revisionDiff) run(cmd *cobra.Command, path, format string) (differs bool, err error) {
	if path == "-" {
		return false, cli.Usagef(
			"standard input has no revisions: name a file or folder of a repository")
	}
	report, before, after, err := d.compare(cmd, path)
	if err != nil {
		return false, err
	}
	if format == "html" {
		changes, err := page.ChangesOf(fmt.Sprintf("%s: %s against %s", path, side(d.to),
			d.against), &report)
		if err == nil {
			err = page.Diff(cmd.OutOrStdout(), changes)
		}
		return !report.Empty(), err
	}
	if err := report.Write(cmd.OutOrStdout(), format); err != nil {
		return false, err
	}
	if format == "text" {
		fmt.Fprintln(cmd.ErrOrStderr(), report.Summary())
		return !report.Empty(), d.derived(cmd, before, after)
	}
	return !report.Empty(), nil
}

// derived prints the findings about policies that only one side has. They say what policies that
// are only reported would allow.
func (d *revisionDiff) derived(cmd *cobra.Command, before, after []finding.Finding) error {
	print := func(title string, of, but []finding.Finding) error {
		known := map[string]bool{}
		for _, f := range but {
			known[f.Object.String()+f.Message] = true
		}
		of = slices.DeleteFunc(slices.Clone(of), func(f finding.Finding) bool {
			return !strings.HasPrefix(f.Rule, "policies/") || known[f.Object.String()+f.Message]
		})
		if len(of) == 0 {
			return nil
		}
		fmt.Fprintln(cmd.ErrOrStderr(), title)
		return host.WriteFindings(cmd.ErrOrStderr(), "text", d.Locate(of))
	}
	return multi.Errors(print("policies no longer:", before, after),
		print("policies now:", after, before))
}

// compare renders and compares both sides. before and after are their findings.
func (d *revisionDiff) compare(cmd *cobra.Command,
	path string) (report compare.Report, before, after []finding.Finding, err error) {
	old, before, foundOld, err := d.render(cmd, path, d.against)
	if err != nil {
		return report, nil, nil, err
	}
	now, after, foundNew, err := d.render(cmd, path, d.to)
	if err != nil {
		return report, nil, nil, err
	}
	if !foundOld && !foundNew {
		return report, nil, nil, fmt.Errorf(
			"%s has no manifests, neither in %s nor in %s: correct the path", path, d.against, side(d.to))
	}
	return compare.Packages(old, now), before, after, nil
}

// side returns the name of a side for people.
func side(ref string) string {
	if ref == "" {
		return "the working tree"
	}
	return ref
}

// render renders the package of a revision, or of the working tree if ref is empty. A package that
// does not exist there is empty.
func (d *revisionDiff) render(cmd *cobra.Command,
	path, ref string) (p compare.Package, findings []finding.Finding, found bool, err error) {
	in := d.Input
	activity := cli.Begin(cmd.ErrOrStderr(), in.Quiet, "reading "+path)
	defer activity.End()
	var src render.Source
	var opt render.Options
	if ref == "" {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			_, err := cli.FindRevision(cmd.Context(), path, "HEAD")
			return p, nil, false, err // deleted
		}
		found = true
		src, opt, findings, err = in.Open(cmd, path, "")
	} else {
		var stage string
		if stage, err = os.MkdirTemp("", "armature-diff-"); err != nil {
			return p, nil, false, err
		}
		defer os.RemoveAll(stage)
		var r cli.Revision
		if r, err = cli.FindRevision(cmd.Context(), path, ref); err != nil {
			return p, nil, false, err
		}
		if in.Config, err = cli.FileOf(cmd.Context(), in.Config, ref, stage); err != nil {
			return p, nil, false, err
		}
		src, opt, findings, found, err = in.OpenRevision(cmd, r, stage)
	}
	if err != nil || !found {
		return p, nil, false, err
	}
	if !finding.Failed(findings) {
		var more []finding.Finding
		if p, more, err = compare.Render(cli.InterruptibleSource(cmd,
			activity.Reading("rendering "+side(ref), src)), opt); err != nil {
			return p, nil, false, err
		}
		findings = append(findings, more...)
		if opt.Lock != nil {
			folder := in.Folder
			if in.Lock != "" {
				folder = filepath.Dir(in.Lock)
			}
			p.Tools.Locked = opt.Lock.Spec.Tools
			if p.Tools.Definitions, more, err = source.FindTools(folder, opt.Lock); err != nil {
				return p, nil, false, err
			}
			findings = append(findings, more...)
		}
	}
	activity.End()
	if finding.Failed(findings) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s does not render:\n", side(ref))
		if in.Quiet = true; ref != "" {
			in.Folder = "" // the folder of a revision is temporary
		}
		return compare.Package{}, nil, false, in.Report(cmd, findings)
	}
	return p, findings, true, nil
}

// clusterDiff compares a package with the objects of a cluster.
type clusterDiff struct {
	cli.Cluster
	cli.Package
	opt   apply.Options
	color string
}

func (d *clusterDiff) flags(cmd *cobra.Command) {
	d.Cluster.Flags(cmd)
	d.Package.Flags(cmd)
	cli.ColorFlag(cmd, &d.color)
	cli.AllowFlag(cmd, &d.opt, cli.AllowConflicts, cli.AllowRecreate)
}

func (d *clusterDiff) run(cmd *cobra.Command, path, format string) (differs bool, err error) {
	c, id, objects, err := d.Cluster.Open(cmd, &d.Package, path)
	if errors.Is(err, cli.ErrNoKubeconfig) {
		return false, fmt.Errorf(
			"%w, or compare with a Git revision: armature diff %s --against REVISION", err, path)
	}
	if err != nil {
		return false, err
	}
	plan, err := c.Plan(cmd.Context(), id, objects, d.opt)
	if err != nil {
		return false, err
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	differs, err = printDiff(out, cmd.ErrOrStderr(), plan, format,
		cli.Colored(cmd.OutOrStdout(), d.color))
	return differs, multi.Errors(err, out.Flush())
}

// printDiff prints the differences and reports whether there are any. It writes conflicts and
// refusals to problems.
func printDiff(out, problems io.Writer, plan *apply.Plan, format string,
	color bool) (differs bool, err error) {
	l := cli.ListPlan(plan, true)
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
		if !color {
			_, err = io.WriteString(out, r.Diff)
		} else {
			err = cli.Paint(out, r.Diff, diffColor)
		}
		if err != nil {
			return true, err
		}
	}
	switch format {
	case "text":
		return differs, nil
	case "html":
		return differs, page.Diff(out, changesOf(l))
	}
	return differs, cli.PrintObjects(out, format, l)
}

// changesOf converts a listing with diffs for the HTML page.
func changesOf(l cli.PlanListing) page.Changes {
	c := page.Changes{Title: "Package " + l.Package.Name + " in namespace " + l.Package.Namespace}
	var counts []string
	for _, action := range slices.Sorted(maps.Keys(l.Summary)) {
		counts = append(counts, fmt.Sprintf("%d %s", l.Summary[action], action))
	}
	c.Summary = strings.Join(counts, ", ")
	for i := range l.Objects {
		if r := &l.Objects[i]; r.Action != apply.Unchanged && r.Action != apply.Skip {
			c.Changes = append(c.Changes, page.Change{Object: r.Title(), Effect: string(r.Action),
				Headline: r.Reason, Lines: r.Diff})
		}
	}
	return c
}

// diffColor returns the color of a line of a unified diff.
func diffColor(line string) string {
	switch {
	case strings.HasPrefix(line, "diff "), strings.HasPrefix(line, "--- "),
		strings.HasPrefix(line, "+++ "):
		return cli.Bold
	case strings.HasPrefix(line, "@@"):
		return cli.Cyan
	case strings.HasPrefix(line, "-"):
		return cli.Red
	case strings.HasPrefix(line, "+"):
		return cli.Green
	}
	return ""
}
