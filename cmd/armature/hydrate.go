package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/deliver/gitrun"
	"github.com/armature-dev/armature/render/deliver/hydrate"
)

// hydration is `armature hydrate`.
type hydration struct {
	cli.Input
	branch, repo string
	push         bool
	into, forge  string // the pull request
	images       cli.ImageGate

	found []finding.Finding // of all packages, with paths relative to the working folder
}

func hydrateCommand() *cobra.Command {
	var h hydration
	cmd := &cobra.Command{
		Use:   "hydrate DIR... --branch BRANCH",
		Short: "Render packages to a branch, as Argo CD's source hydrator does",
		Long: `Hydrate renders packages as they are in the commit HEAD, and writes the result to a
branch for Argo CD and GitOps Promoter: manifest.yaml, README.md and hydrator.metadata
in the folder of each package, hydrator.metadata and .gitattributes at the root, and
the rendered commit in refs/notes/hydrator.metadata.

It writes one commit, and only if a manifest differs. It removes a package whose folder is
no longer in the source. It keeps files that it did not write; if it would have to overwrite
one, it writes nothing. It also writes nothing if a package has an error or no objects.
Objects annotated config.kubernetes.io/local-config stay in the source. The working tree
and the index do not change.

Without --push, hydrate writes the local branch. With --push, it starts from the branch of
the remote origin, and retries if another client pushes at the same time. A new branch
NAME-next starts at NAME, if that exists.

The author of commits comes from Git's configuration. They are signed if
commit.gpgsign is true.

With --pull-request BASE, hydrate then opens a pull request that merges the branch into
BASE, unless one is open or there is nothing to merge. Set GITHUB_TOKEN, GITLAB_TOKEN or
GITEA_TOKEN, for the forge of the remote origin, to a token. Hydrate sends the token only
to that host, over https.

With --verify-images, every image in the packages must have a digest and satisfy the
policy, or nothing is written.`,
		Example: `  armature hydrate apps/weather --branch environments/prod
  armature hydrate apps/weather apps/search --branch environments/prod-next --push
  armature hydrate apps/weather --branch environments/prod --verify-images policy.yaml
  armature hydrate apps/weather --branch hydrated --push --pull-request environments/prod`,
		Args:              cli.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(cmd *cobra.Command, given []string) error {
			err := h.run(cmd, given)
			if errors.Is(err, context.Canceled) {
				return cli.ErrInterrupted
			}
			return err
		},
	}
	h.Flags(cmd)
	h.images.Flag(cmd)
	f := cmd.Flags()
	f.StringVar(&h.branch, "branch", "", "branch to write to, without refs/heads/ (required)")
	f.BoolVar(&h.push, "push", false, "read and write the branch of the remote origin")
	f.StringVar(&h.into, "pull-request", "",
		"with --push, open a pull request that merges the branch into this one, unless one is open")
	forgeFlag(cmd, &h.forge, "with --pull-request, the forge")
	f.StringVar(&h.repo, "repo", "",
		"URL of the source, which the branch names (default: the remote origin's, without a login)")
	return cmd
}

func (h *hydration) run(cmd *cobra.Command, given []string) error {
	ctx := cmd.Context()
	if h.branch == "" {
		return cli.Usagef("--branch: name the branch to write to")
	}
	if err := h.images.Open(); err != nil {
		return err
	}
	var packages []cli.Revision
	var paths []string
	for i, dir := range given {
		r, err := cli.FindRevision(ctx, dir, "HEAD")
		if err != nil {
			return err
		}
		if i > 0 && r.Repository != packages[0].Repository {
			return cli.Usagef("%s and %s are in different repositories", given[0], dir)
		}
		packages, paths = append(packages, r), append(paths, r.Path)
	}
	to, err := h.target(ctx, packages[0])
	if err != nil {
		return err
	}
	if err := to.Check(ctx, paths...); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return cli.Usage(err)
	}
	proposal, err := h.proposal(ctx, to)
	if err != nil {
		return err
	}
	if err := h.uncommitted(cmd, packages[0].Repository, paths); err != nil {
		return err
	}
	var rendered []hydrate.Package
	for i, r := range packages {
		p, err := h.render(cmd, given[i], r)
		if err != nil {
			return err
		}
		rendered = append(rendered, p)
	}
	h.Place = cli.Place{} // the paths in found are final
	if err := h.Report(cmd, h.found); err != nil {
		return err
	}
	for i, p := range rendered {
		if len(p.Manifest) == 0 {
			return fmt.Errorf("%s renders no objects, and an empty folder would delete the "+
				"running objects: nothing was written", given[i])
		}
	}
	result, err := to.Write(ctx, rendered)
	if err != nil {
		return err
	}
	if !h.Quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s written, %d unchanged, %d removed\n", h.branch,
			text.Count(len(result.Written), "package"), len(rendered)-len(result.Written),
			len(result.Removed))
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), result.Commit); err != nil || proposal == nil {
		return err
	}
	return propose(cmd, to, result.Commit, *proposal, h.Quiet)
}

// proposal returns the requested pull request, or nil if none is requested.
func (h *hydration) proposal(ctx context.Context, to *hydrate.Branch) (*hydrate.Proposal, error) {
	switch {
	case h.into == "" && h.forge == "":
		return nil, nil
	case h.into == "":
		return nil, cli.Usagef("--forge requires --pull-request")
	case !h.push:
		return nil, cli.Usagef("--pull-request requires --push")
	case h.into == h.branch:
		return nil, cli.Usagef("--pull-request: %s cannot be merged into itself", h.branch)
	}
	base := *to
	base.Name = h.into
	if err := base.Check(ctx); err != nil {
		return nil, cli.Usagef("--pull-request: %w", err)
	}
	return proposalTo(ctx, to, h.into, h.forge)
}

// proposalTo returns a pull request into a branch. If kind is empty, the name of the host decides
// which forge it is.
func proposalTo(ctx context.Context, to *hydrate.Branch,
	into, kind string) (*hydrate.Proposal, error) {
	f, err := forgeOf(ctx, to.Folder, kind, "--pull-request")
	return &hydrate.Proposal{Proposal: forge.Proposal{Base: into}, Forge: f}, err
}

// propose opens the pull request of a commit of a branch, unless one is open.
func propose(cmd *cobra.Command, to *hydrate.Branch, commit string, p hydrate.Proposal,
	quiet bool) error {
	address, opened, err := to.Propose(cmd.Context(), commit, p)
	if err != nil {
		return fmt.Errorf("the branch %s was written, but no pull request was opened: %w", to.Name, err)
	}
	done := p.Base + " has all changes already"
	if opened {
		done = "the pull request " + text.Printable(address) + " was opened"
	} else if address != "" {
		done = "the pull request " + text.Printable(address) + " is open"
	}
	if !quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", to.Name, done)
	}
	return nil
}

// forgeFlag adds --forge, whose description begins with usage.
func forgeFlag(cmd *cobra.Command, kind *string, usage string) {
	names, _ := forge.Names()
	cli.WordFlag(cmd, kind, "forge", "", "", usage+" of the remote origin: "+
		strings.Join(names, ", ")+" (default: by the name of its host)", "forge", names...)
}

// forgeOf returns the forge of the remote origin of a clone, with the token of the environment.
// flag names the flag that needs it, for errors.
func forgeOf(ctx context.Context, clone, kind, flag string) (forge.Forge, error) {
	names, variables := forge.Names()
	remote, err := gitrun.OriginURL(ctx, clone)
	if err != nil {
		return nil, err
	}
	if kind == "" {
		if kind = forge.Of(remote); kind == "" {
			return nil, cli.Usagef("%s: name the forge of the remote origin with --forge: %s", flag,
				strings.Join(names, ", "))
		}
	}
	token := os.Getenv(variables[kind])
	if token == "" {
		return nil, cli.Usagef(
			"%s: the environment variable %s is empty: set it to a token for the repository", flag,
			variables[kind])
	}
	return new(forge.Clients).Open(kind, remote, forge.Credential{Token: token})
}

// target returns the branch to write to, in the repository of the first package.
func (h *hydration) target(ctx context.Context, r cli.Revision) (*hydrate.Branch, error) {
	to := &hydrate.Branch{Folder: r.Repository, Name: h.branch, Commit: r.Commit, Push: h.push}
	var err error
	if h.repo != "" {
		to.URL, err = gitrun.PublicURL(h.repo)
	} else {
		to.URL, err = gitrun.OriginURL(ctx, r.Repository)
	}
	if err != nil {
		return nil, err
	}
	if to.URL == "" {
		return nil, cli.Usagef(
			"the repository has no remote origin: name the URL of the source with --repo")
	}
	if h.repo != "" {
		to.Flags = append(to.Flags, "--repo", to.URL)
	}
	for _, flag := range [...]struct{ name, file string }{{"--config", h.Config}, {"--lock", h.Lock}} {
		if flag.file == "" {
			continue
		}
		at, err := cli.FindRevision(ctx, flag.file, "HEAD")
		if err != nil {
			return nil, err
		}
		to.Flags = append(to.Flags, flag.name, at.Path)
	}
	return to, nil
}

// uncommitted warns if the packages in the working tree differ from those that are rendered.
func (h *hydration) uncommitted(cmd *cobra.Command, repository string, paths []string) error {
	words := []string{"--no-optional-locks", "status", "--porcelain", "--no-renames",
		"--ignore-submodules=all", "--"}
	for _, p := range paths {
		words = append(words, ":(top,literal)"+p)
	}
	out, err := cli.RunGit(cmd.Context(), repository, nil, words...)
	if err != nil {
		return err
	}
	if len(out) > 0 && h.Talks() {
		fmt.Fprintln(cmd.ErrOrStderr(), "armature: uncommitted changes are not rendered: HEAD is")
	}
	return nil
}

// render renders a package of a revision.
func (h *hydration) render(cmd *cobra.Command, dir string,
	r cli.Revision) (p hydrate.Package, err error) {
	ctx := cmd.Context()
	stage, err := os.MkdirTemp("", "armature-hydrate-")
	if err != nil {
		return p, err
	}
	defer os.RemoveAll(stage)
	in := h.Input
	for _, file := range [...]*string{&in.Config, &in.Lock} {
		name := *file
		if *file, err = cli.FileOf(ctx, name, "HEAD", stage); err != nil {
			return p, err
		} else if *file == "" && name != "" {
			return p, fmt.Errorf("%s is not in HEAD: commit it first", name)
		}
	}
	activity := cli.Begin(cmd.ErrOrStderr(), h.Quiet, "reading "+dir)
	defer activity.End()
	src, opt, findings, found, err := in.OpenRevision(cmd, r, stage)
	if err != nil {
		return p, err
	} else if !found {
		return p, fmt.Errorf("%s has no manifests in HEAD: correct the path, or commit them first", dir)
	}
	if src.Folder == "" {
		return p, cli.Usagef("%s is a file: name the folder of the package", dir)
	}
	in.Folder = dir // for findings, instead of the temporary stage
	if file := in.Kustomization(src); file != "" {
		return p, fmt.Errorf("%s has to be built first\n  hint: let CI commit the result of "+
			"kustomize build, or let Argo CD's own kustomize build it (kustomize.buildOptions: "+
			"--enable-alpha-plugins --enable-exec)", file)
	}
	var result render.Result
	if !finding.Failed(findings) {
		opt.ObjectsOnly = true
		if result, err = render.Run(cli.InterruptibleSource(cmd,
			activity.Reading("rendering "+dir, src)), opt); err != nil {
			return p, err
		}
	}
	h.found = append(h.found, in.Locate(append(findings, result.Findings...))...)
	if err := h.images.Pass(ctx, &in.Place, src, result.Files, opt.Config); err != nil {
		return p, err
	}
	p.Path = r.Path
	p.Manifest, err = hydrate.Manifest(result.Files)
	return p, err
}
