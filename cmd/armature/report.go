package main

import (
	"cmp"
	"errors"
	"fmt"
	slashpath "path"
	"regexp"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/report/comment"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/compare"
	"github.com/armature-dev/armature/render/deliver/forge"
)

// reporting is `armature report`.
type reporting struct {
	cli.Input
	against, forge string
	number         string
	always         bool
}

func reportCommand() *cobra.Command {
	var r reporting
	cmd := &cobra.Command{
		Use:   "report PATH --pull-request NUMBER --against REVISION",
		Short: "Report lint findings and the effect of a change on a pull request",
		Long: `Report runs lint and diff --against on a package, and writes the result to a pull
request of the remote origin: as one comment, which is updated in place, and as the
status armature/package/PATH of its commit, which fails if lint finds an error.

Report sets the status of the commit that is checked out. It fails if that commit is not
the head of the pull request, or if a file differs from it.

If lint finds nothing and nothing changes, report writes no comment and removes an earlier
one; with --always, it writes one. The comment has a part for each package, and for each
AgentBuild whose spec.report has a credential of the same account.

Set GITHUB_TOKEN, GITLAB_TOKEN or GITEA_TOKEN, for the forge of the remote origin, to a
token. Report sends the token only to that host, over https.

The exit status is 0 without errors, 1 if a finding is an error, and 2 for wrong
usage.`,
		Example: `  armature report apps/weather --pull-request 7 --against origin/main
  armature report apps/weather --pull-request "$CI_MERGE_REQUEST_IID" --against "$CI_MERGE_REQUEST_DIFF_BASE_SHA" --forge gitlab`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(cmd *cobra.Command, given []string) error {
			return r.run(cmd, given[0])
		},
	}
	r.ConfigFlag(cmd, "PATH")
	f := cmd.Flags()
	f.StringVar(&r.number, "pull-request", "", "number of the pull request (required)")
	f.StringVar(&r.against, "against", "",
		"Git revision that the package is compared with (required)")
	f.BoolVar(&r.always, "always", false, "write a comment even without findings and changes")
	f.BoolVarP(&r.Quiet, "quiet", "q", false, "show errors and warnings only")
	forgeFlag(cmd, &r.forge, "forge")
	return cmd
}

// unsafeInPart are characters of a path that a part of a comment may not have.
var unsafeInPart = regexp.MustCompile(`[^A-Za-z0-9_./-]+`)

func (r *reporting) run(cmd *cobra.Command, path string) error {
	ctx := cmd.Context()
	number, err := strconv.Atoi(r.number)
	if err != nil || number <= 0 || r.against == "" {
		return cli.Usagef("--pull-request and --against: set the number of the pull request, and " +
			"the revision that it changes")
	}
	at, err := cli.FindRevision(ctx, path, "HEAD")
	if err != nil {
		return err
	}
	switch name, err := at.Differs(ctx); {
	case err != nil:
		return err
	case name != "":
		return fmt.Errorf("%s differs from commit %.12s, which would get the status\n"+
			"  hint: commit it, or check the pull request out into an empty folder",
			text.Printable(name), at.Commit)
	}
	f, err := forgeOf(ctx, at.Repository, r.forge, "report")
	if err != nil {
		return err
	}
	findings, _, err := lintPackage(cmd, &r.Input, path)
	if err != nil {
		return err
	}
	var changes *compare.Report
	diff := revisionDiff{Input: r.Input, against: r.against}
	switch compared, _, _, err := diff.compare(cmd, path); {
	case err == nil:
		changes = &compared
	case !errors.Is(err, cli.ErrFindings): // diff has printed them
		return err
	}
	name := cmp.Or(at.Path, ".")
	root, err := cli.RootOf(path)
	if err != nil {
		return err
	}
	of, err := cli.FindRevision(ctx, root, "HEAD")
	if err != nil {
		return err
	}
	for i := range findings { // paths in the repository, not on this machine
		if file := &findings[i].File; *file != "" {
			*file = slashpath.Join(of.Path, *file)
		}
	}
	body, quiet := comment.Package(name, findings, changes)
	if quiet && !r.always {
		body = ""
	}
	p, err := f.PullRequest(ctx, number)
	if err != nil {
		return fmt.Errorf("asking for pull request %d: %w", number, err)
	}
	if p.Commit != at.Commit { // it was pushed to since, or another commit is checked out
		return fmt.Errorf("pull request %d is at commit %.12s, but %.12s is checked out: only a "+
			"commit that was checked gets a status\n"+
			"  hint: check out the head of the pull request; actions/checkout does so with ref: "+
			"${{ github.event.pull_request.head.sha }}", number, text.Printable(p.Commit), at.Commit)
	}
	part := "package/" + unsafeInPart.ReplaceAllString(name, "-")
	part = part[:min(len(part), 200)]
	status := forge.Status{Commit: p.Commit, Ref: "refs/heads/" + p.Head,
		Context: "armature/" + part, State: forge.Success, Description: comment.Counts(findings),
		ID: part, Summary: body}
	if changes != nil {
		status.Description += "; " + changes.Summary()
	}
	failed := finding.Failed(findings)
	if failed {
		status.State = forge.Failure
	}
	if err := f.SetStatus(ctx, status); err != nil {
		return fmt.Errorf("setting the status of commit %.12s: %w", p.Commit, err)
	}
	if err := f.Comment(ctx, number, part, body); err != nil {
		return fmt.Errorf("commenting on pull request %d: %w", number, err)
	}
	if !r.Quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", text.Printable(p.URL), status.Description)
	}
	if failed {
		return cli.ErrFindings
	}
	return nil
}
