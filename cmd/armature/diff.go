package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/compare"
	"github.com/armature-dev/armature/render/page"
)

// The exit status of diff, as that of other programs of this name: 1 says that
// something differs, more than 1 that nobody knows.
const (
	statusDiffers = exitStatus(1)
	statusFailed  = exitStatus(3)
)

// diffCommand is `armature diff`: what a change means against a Git revision, or
// what an apply would change in a cluster.
func diffCommand() *cobra.Command {
	var revision revisionDiff
	var live clusterDiff
	var format string
	var exitCode bool
	cmd := &cobra.Command{
		Use:   "diff PATH [--against REVISION] | PATH|-|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Show what changes against a Git revision (--against) or in a cluster",
		Long: `With --against, diff renders a package as it was in a Git revision and as it is,
and reports what the difference means: which workloads roll, which need a restart,
which only reload their files, and which identities, permissions and images change.
It needs no cluster, and does not change the working tree. To compare with the point
at which a branch left main: --against "$(git merge-base main HEAD)".

Without --against, diff renders a package and shows what apply would change in a
cluster: a unified diff of each object that would be created, changed or pruned. The
API server computes it by dry runs, so that its defaults do not show as differences.
The values of Secrets are masked.

With -o html, diff prints one page for a browser: what needs a restart, and the lines
that differ of each object. The page loads nothing and runs no script; the values of
Secrets are masked in it.

Nothing is written in either case. With --exit-code the exit status is 1 where
something differs and 0 where nothing does, as kubectl diff's, which is the default
in a cluster; with --exit-code=false it is 0 whatever differs, as git diff's, which
is the default with --against. It is 2 for a wrong call, and 3 where diff fails, for
example because one of the two does not render or the cluster does not answer.`,
		Example: `  armature diff apps/ --against main
  armature diff apps/ --against v1.2.0 --to v1.3.0
  armature diff apps/ --against origin/main -o markdown >> "$GITHUB_STEP_SUMMARY"
  armature diff apps/ --against origin/main -o html > changes.html
  armature diff apps/ --against HEAD --exit-code

  armature diff apps/weather -n team1
  armature diff apps/weather -n team1 -o json
  armature diff oci://registry.example/fleet/weather:v1 -n team1 --exit-code=false`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	cmd.Flags().StringVar(&revision.against, "against", "", "Git revision to compare with, instead of a cluster")
	cmd.Flags().StringVar(&revision.to, "to", "", "with --against, Git revision to compare (default: the working tree)")
	ofRevision := flagNames(cmd)
	live.flags(cmd)
	ofCluster := slices.DeleteFunc(flagNames(cmd), func(name string) bool { return slices.Contains(ofRevision, name) || name == "config" })
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 where something differs (default: true in a cluster, false with --against)")
	cmd.Flags().StringVarP(&format, "output", "o", "text", "text, html or json; with --against markdown, in a cluster yaml")
	formats := func() []string {
		if revision.against != "" {
			return append(compare.Formats(), "html")
		}
		return []string{"text", "json", "yaml", "html"}
	}
	if err := cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return formats(), cobra.ShellCompDirectiveNoFileComp
	}); err != nil {
		panic(err) // the flag was added above
	}
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		other, reason, diff := ofRevision, "requires --against", live.run
		if cmd.Flags().Changed("against") {
			other, reason, diff = ofCluster, "is for a cluster and not for --against", revision.run
		} else if !cmd.Flags().Changed("exit-code") {
			exitCode = true
		}
		if cmd.Flags().Changed("against") && revision.against == "" {
			return usageError{errors.New("--against: name a Git revision")}
		}
		if err := flagsAmong(cmd, func(name string) bool { return !slices.Contains(other, name) }, reason); err != nil {
			return err
		}
		if !slices.Contains(formats(), format) {
			return usageError{fmt.Errorf("unknown format %q for --output: choose from %s", format, strings.Join(formats(), ", "))}
		}
		revision.config = live.pkg.config
		differs, err := diff(cmd, given[0], format)
		switch {
		case err == nil && differs && exitCode:
			return statusDiffers
		case err == nil, errors.As(err, &usageError{}):
			return err
		case !errors.Is(err, errFindings):
			printError(err)
		}
		return statusFailed
	}
	return cmd
}

// revisionDiff compares a package with itself in another revision.
type revisionDiff struct {
	input
	against, to string
}

func (d *revisionDiff) run(cmd *cobra.Command, path, format string) (differs bool, err error) {
	if path == "-" {
		return false, usageError{errors.New("standard input has no revisions: name a file or folder of a repository")}
	}
	d.format = "text"
	before, was, err := d.renderRevision(cmd, path, d.against)
	if err != nil {
		return false, err
	}
	after, is, err := d.renderRevision(cmd, path, d.to)
	if err != nil {
		return false, err
	}
	if !was && !is {
		return false, fmt.Errorf("%s has no manifests, neither in %s nor in %s: correct the path", path, d.against, side(d.to))
	}
	report := compare.Packages(before, after)
	if format == "html" {
		changes, err := page.ChangesOf(fmt.Sprintf("%s: %s against %s", path, side(d.to), d.against), &report)
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
	}
	return !report.Empty(), nil
}

// side names one of the two that are compared.
func side(ref string) string {
	if ref == "" {
		return "the working tree"
	}
	return ref
}

// renderRevision renders the package as a revision has it, or as the working
// tree has it where none is named. A package that is not found there is empty.
func (in *input) renderRevision(cmd *cobra.Command, path, ref string) (p compare.Package, found bool, err error) {
	input := *in
	if ref == "" {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			_, err := findRevision(cmd.Context(), path, "HEAD")
			return p, false, err // deleted
		}
		p, err = input.render(cmd, path, ref, nil)
		return p, true, err
	}
	stage, err := os.MkdirTemp("", "armature-diff-")
	if err != nil {
		return p, false, err
	}
	defer os.RemoveAll(stage)
	r, err := findRevision(cmd.Context(), path, ref)
	if err != nil {
		return p, false, err
	}
	if input.config, err = in.configOf(cmd, ref, stage); err != nil {
		return p, false, err
	}
	if found, err = r.extract(cmd.Context(), stage); err != nil || !found {
		return p, false, err
	}
	p, err = input.render(cmd, filepath.Join(stage, filepath.FromSlash(r.path)), ref, func(file string) error {
		return r.extractFile(cmd.Context(), file, stage)
	})
	return p, true, err
}

// render renders one of the two sides. Fetch brings a file that is not a manifest;
// nil where all files are there.
func (in *input) render(cmd *cobra.Command, path, ref string, fetch func(file string) error) (p compare.Package, err error) {
	shown := begin(cmd.ErrOrStderr(), in.quiet, "reading "+path)
	defer shown.end()
	src, opt, findings, err := in.open(cmd, path, "")
	if err != nil {
		return p, err
	}
	if c := opt.Config; c != nil && c.Spec.Asya != nil && c.Spec.Asya.RuntimeScriptFile != nil && fetch != nil {
		if err := fetch(*c.Spec.Asya.RuntimeScriptFile); err != nil {
			return p, err
		}
		if src, opt, findings, err = in.open(cmd, path, ""); err != nil {
			return p, err
		}
	}
	if !krm.Failed(findings) {
		var found []krm.Finding
		if p, found, err = compare.Render(interruptibleSource(cmd, shown.reading("rendering "+side(ref), src)), opt); err != nil {
			return p, err
		}
		findings = append(findings, found...)
	}
	shown.end()
	if krm.Failed(findings) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s does not render:\n", side(ref))
		if in.quiet = true; fetch != nil {
			in.folder = "" // the folder of a revision is nobody's
		}
		return compare.Package{}, in.report(cmd, findings)
	}
	return p, nil
}

// configOf gives the named configuration as a revision has it. A revision
// without it, or without a name, takes the defaults.
func (in *input) configOf(cmd *cobra.Command, ref, stage string) (string, error) {
	if in.config == "" {
		return "", nil
	}
	r, err := findRevision(cmd.Context(), in.config, ref)
	if err != nil {
		return "", err
	}
	found, err := r.extract(cmd.Context(), stage)
	if err != nil || !found {
		return "", err
	}
	return filepath.Join(stage, filepath.FromSlash(r.path)), nil
}
