package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/compare"
)

// The exit status of diff, as that of other programs of this name: 1 says that
// something differs, more than 1 that nobody knows.
const (
	statusDiffers = exitStatus(1)
	statusFailed  = exitStatus(3)
)

// diffCommand compares with a Git revision here, and with a cluster in
// armature-remote.
func diffCommand() *cobra.Command {
	cmd := companion("diff", "Show what changes against a Git revision (--against) or in a cluster")
	remote, complete := cmd.RunE, cmd.ValidArgsFunction
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		local := compareCommand()
		local.SetArgs(given)
		local.SetIn(cmd.InOrStdin())
		local.SetOut(cmd.OutOrStdout())
		local.SetErr(cmd.ErrOrStderr())
		if againstRevision(given) {
			return diffStatus(cmd, local.ExecuteContext(cmd.Context()))
		}
		if len(given) > 0 && (given[0] == "--help" || given[0] == "-h") {
			if err := local.Help(); err != nil {
				return err
			}
			if _, err := companionProgram(); err != nil {
				return nil // what there is without it has been said
			}
			fmt.Fprint(cmd.OutOrStdout(), "\nWithout --against:\n\n")
		}
		return diffStatus(cmd, remote(cmd, given))
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, given []string, partial string) ([]string, cobra.ShellCompDirective) {
		switch {
		case strings.HasPrefix(partial, "--a"):
			return []string{"--against"}, cobra.ShellCompDirectiveNoFileComp
		case againstRevision(given):
			local, out := compareCommand(), new(strings.Builder)
			local.SetArgs(append(append([]string{cobra.ShellCompRequestCmd}, given...), partial))
			local.SetOut(out)
			local.SetErr(io.Discard)
			if local.ExecuteContext(cmd.Context()) != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return completions(out.String())
		}
		return complete(cmd, given, partial)
	}
	return cmd
}

// diffStatus tells a failure from a difference.
func diffStatus(cmd *cobra.Command, err error) error {
	var status exitStatus
	if err == nil || errors.As(err, &status) || errors.As(err, &usageError{}) {
		return err
	}
	if !errors.Is(err, errFindings) {
		fmt.Fprintf(cmd.ErrOrStderr(), "armature: %v\n", err)
	}
	return statusFailed
}

func againstRevision(given []string) bool {
	return slices.ContainsFunc(given, func(arg string) bool { return arg == "--against" || strings.HasPrefix(arg, "--against=") })
}

func compareCommand() *cobra.Command {
	in := input{format: "text"}
	var against, to, format string
	var exitCode bool
	cmd := &cobra.Command{
		Use:   "armature diff PATH --against REF", // it has no parent that would say so
		Short: "Say what a change means for what runs",
		Long: `Diff renders a package as it was in a Git revision and as it is, and says what the
difference means: which workloads roll, which need a restart, which only reload
their files, and which identities, permissions and images change. Nothing is
written; the working tree is not touched.

To compare with the point at which a branch left main:
--against "$(git merge-base main HEAD)".

The exit status is 0 whatever differs, as git diff's; with --exit-code it is 1
where something does. It is 2 for a wrong call, and 3 where diff fails, for one
because one of the two does not render.`,
		Example: `  armature diff apps/ --against main
  armature diff apps/ --against v1.2.0 --to v1.3.0
  armature diff apps/ --against origin/main -o markdown >> "$GITHUB_STEP_SUMMARY"
  armature diff apps/ --against HEAD --exit-code`,
		Args:          args(cobra.ExactArgs(1)),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(compare.Formats(), format) {
				return usageError{fmt.Errorf("unknown format %q for --output: choose from %s", format, strings.Join(compare.Formats(), ", "))}
			}
			if args[0] == "-" {
				return usageError{errors.New("standard input has no revisions: name a file or folder of a repository")}
			}
			before, was, err := in.renderRevision(cmd, args[0], against)
			if err != nil {
				return err
			}
			after, is, err := in.renderRevision(cmd, args[0], to)
			if err != nil {
				return err
			}
			if !was && !is {
				return fmt.Errorf("%s has no manifests, neither in %s nor in %s: correct the path", args[0], against, side(to))
			}
			report := compare.Packages(before, after)
			if err := report.Write(cmd.OutOrStdout(), format); err != nil {
				return err
			}
			if format == "text" {
				fmt.Fprintln(cmd.ErrOrStderr(), report.Summary())
			}
			if exitCode && !report.Empty() {
				return statusDiffers
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "Git revision to compare with")
	cmd.Flags().StringVar(&to, "to", "", "Git revision to compare (default: the working tree)")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 where something differs")
	cmd.Flags().StringVarP(&in.config, "config", "c", "", "RenderConfig to use, as each revision has it (default: armature.yaml at the root of PATH)")
	cmd.Flags().StringVarP(&format, "output", "o", "text", strings.Join(compare.Formats(), ", "))
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	complete(cmd, "output", compare.Formats())
	return cmd
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

// render renders one of the two sides. Fetch brings a file that is no manifest;
// nil where all files are there.
func (in *input) render(cmd *cobra.Command, path, ref string, fetch func(file string) error) (p compare.Package, err error) {
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
		if p, found, err = compare.Render(interruptibleSource(cmd, src), opt); err != nil {
			return p, err
		}
		findings = append(findings, found...)
	}
	if krm.Failed(findings) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s does not render:\n", side(ref))
		in.quiet = true
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
