package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/hydrate"
)

// hydration is `armature hydrate`.
type hydration struct {
	input
	branch, repo string
	push         bool
	into, forge  string // the pull request
	images       imageGate

	found []krm.Finding // of all packages, with files as they are found from the working folder
}

func hydrateCommand() *cobra.Command {
	var h hydration
	cmd := &cobra.Command{
		Use:   "hydrate DIR... --branch BRANCH",
		Short: "Render packages to a branch, as Argo CD's source hydrator does",
		Long: `Hydrate renders packages as the commit HEAD has them, and writes the result to a branch
for Argo CD and GitOps Promoter: in the folder of each package manifest.yaml,
README.md and hydrator.metadata, at the root hydrator.metadata and .gitattributes,
and in refs/notes/hydrator.metadata which commit was rendered.

It writes one commit, and only where a manifest differs. A package whose folder the
source no longer has is removed. Files that hydrate did not write stay; where one is
in the way, nothing is written. Any error in a package, and a package without
objects, keeps everything back. Objects annotated
config.kubernetes.io/local-config stay in the source. The working tree and the index
do not change.

Without --push the branch is that of the clone. With it, hydrate starts from the
remote origin's, and starts again if somebody else pushes at the same time. A new
branch NAME-next begins at NAME, where that exists.

Commits are made by the identity of Git's configuration, and are signed where
commit.gpgsign is true.

With --pull-request BASE, hydrate then opens a pull request that merges the branch into
BASE, unless one is open or there is nothing to merge. The environment variable
GITHUB_TOKEN, GITLAB_TOKEN or GITEA_TOKEN, of the forge that the remote origin is on,
has the token for it, which is sent to that host by https only.

With --verify-images every image of the packages has to have a digest and to satisfy
the policy, or nothing is written.`,
		Example: `  armature hydrate apps/weather --branch environments/prod
  armature hydrate apps/weather apps/search --branch environments/prod-next --push
  armature hydrate apps/weather --branch environments/prod --verify-images policy.yaml
  armature hydrate apps/weather --branch hydrated --push --pull-request environments/prod`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(cmd *cobra.Command, given []string) error {
			err := h.run(cmd, given)
			if errors.Is(err, context.Canceled) {
				return errInterrupted
			}
			return err
		},
	}
	h.flags(cmd)
	h.images.flag(cmd)
	f := cmd.Flags()
	f.StringVar(&h.branch, "branch", "", "branch to write to, without refs/heads/ (required)")
	f.BoolVar(&h.push, "push", false, "read and write the branch of the remote origin")
	f.StringVar(&h.into, "pull-request", "", "with --push, open a pull request that merges the branch into this one, unless one is open")
	names, _ := hydrate.Forges()
	f.StringVar(&h.forge, "forge", "", "with --pull-request, what the remote origin is on: "+strings.Join(names, ", ")+" (default: by the name of its host)")
	completeFlag(cmd, "forge", names...)
	f.StringVar(&h.repo, "repo", "", "URL of the source, which the branch names (default: the remote origin's, without a login)")
	return cmd
}

func (h *hydration) run(cmd *cobra.Command, given []string) error {
	ctx := cmd.Context()
	if h.branch == "" {
		return usageError{errors.New("--branch: name the branch to write to")}
	}
	if err := h.images.open(); err != nil {
		return err
	}
	var packages []revision
	var paths []string
	for i, dir := range given {
		r, err := findRevision(ctx, dir, "HEAD")
		if err != nil {
			return err
		}
		if i > 0 && r.repository != packages[0].repository {
			return usageError{fmt.Errorf("%s and %s are in different repositories", given[0], dir)}
		}
		packages, paths = append(packages, r), append(paths, r.path)
	}
	to, err := h.target(ctx, packages[0])
	if err != nil {
		return err
	}
	if err := to.Check(ctx, paths...); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return usageError{err}
	}
	proposal, err := h.proposal(ctx, to)
	if err != nil {
		return err
	}
	if err := h.uncommitted(cmd, packages[0].repository, paths); err != nil {
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
	h.place = place{} // found names files as they are
	if err := h.report(cmd, h.found); err != nil {
		return err
	}
	for i, p := range rendered {
		if len(p.Manifest) == 0 {
			return fmt.Errorf("%s renders no objects, and an empty folder would remove what runs: nothing was written", given[i])
		}
	}
	result, err := to.Write(ctx, rendered)
	if err != nil {
		return err
	}
	if !h.quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s written, %d unchanged, %d removed\n", h.branch, count(len(result.Written), "package"), len(rendered)-len(result.Written), len(result.Removed))
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), result.Commit); err != nil || proposal == nil {
		return err
	}
	address, opened, err := to.Propose(ctx, result.Commit, *proposal)
	if err != nil {
		return fmt.Errorf("the branch %s is written, and has no pull request: %w", h.branch, err)
	}
	if h.quiet {
		return nil
	}
	switch {
	case opened:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: opened the pull request %s\n", h.branch, krm.Printable(address))
	case address != "":
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: the pull request %s is open\n", h.branch, krm.Printable(address))
	default:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s has all of it\n", h.branch, h.into)
	}
	return nil
}

// proposal is the pull request that is asked for; nil for none.
func (h *hydration) proposal(ctx context.Context, to *hydrate.Branch) (*hydrate.Proposal, error) {
	switch {
	case h.into == "" && h.forge == "":
		return nil, nil
	case h.into == "":
		return nil, usageError{errors.New("--forge requires --pull-request")}
	case !h.push:
		return nil, usageError{errors.New("--pull-request requires --push")}
	case h.into == h.branch:
		return nil, usageError{fmt.Errorf("--pull-request: %s cannot be merged into itself", h.branch)}
	}
	base := *to
	base.Name = h.into
	if err := base.Check(ctx); err != nil {
		return nil, usageError{fmt.Errorf("--pull-request: %w", err)}
	}
	names, variables := hydrate.Forges()
	forge := h.forge
	if forge == "" {
		remote, err := hydrate.OriginURL(ctx, to.Folder)
		if err != nil {
			return nil, err
		}
		if forge = hydrate.ForgeOf(remote); forge == "" {
			return nil, usageError{fmt.Errorf("--pull-request: name what the remote origin is on with --forge: %s", strings.Join(names, ", "))}
		}
	}
	if !slices.Contains(names, forge) {
		return nil, usageError{fmt.Errorf("unknown --forge %q: use one of %s", forge, strings.Join(names, ", "))}
	}
	token := os.Getenv(variables[forge])
	if token == "" {
		return nil, usageError{fmt.Errorf("--pull-request: the environment variable %s is empty: set it to a token that may open pull requests", variables[forge])}
	}
	return &hydrate.Proposal{Forge: forge, Base: h.into, Token: token}, nil
}

// target is the branch, of the repository that the first package is in.
func (h *hydration) target(ctx context.Context, r revision) (*hydrate.Branch, error) {
	to := &hydrate.Branch{Folder: r.repository, Name: h.branch, Commit: r.commit, Push: h.push}
	var err error
	if h.repo != "" {
		to.URL, err = hydrate.PublicURL(h.repo)
	} else {
		to.URL, err = hydrate.OriginURL(ctx, r.repository)
	}
	if err != nil {
		return nil, err
	}
	if to.URL == "" {
		return nil, usageError{errors.New("the repository has no remote origin: name the URL of the source with --repo")}
	}
	if h.repo != "" {
		to.Flags = append(to.Flags, "--repo", to.URL)
	}
	for _, flag := range [...]struct{ name, file string }{{"--config", h.config}, {"--lock", h.lock}} {
		if flag.file == "" {
			continue
		}
		at, err := findRevision(ctx, flag.file, "HEAD")
		if err != nil {
			return nil, err
		}
		to.Flags = append(to.Flags, flag.name, at.path)
	}
	return to, nil
}

// uncommitted warns where the packages in the working tree are not those that are rendered.
func (h *hydration) uncommitted(cmd *cobra.Command, repository string, paths []string) error {
	words := []string{"--no-optional-locks", "status", "--porcelain", "--no-renames", "--"}
	for _, p := range paths {
		words = append(words, ":(top,literal)"+p)
	}
	out, err := runGit(cmd.Context(), repository, nil, words...)
	if err != nil {
		return err
	}
	if len(out) > 0 && h.talks() {
		fmt.Fprintln(cmd.ErrOrStderr(), "armature: what is not committed is not rendered: HEAD is")
	}
	return nil
}

// render renders a package as its revision has it.
func (h *hydration) render(cmd *cobra.Command, dir string, r revision) (p hydrate.Package, err error) {
	ctx := cmd.Context()
	stage, err := os.MkdirTemp("", "armature-hydrate-")
	if err != nil {
		return p, err
	}
	defer os.RemoveAll(stage)
	in := h.input
	for _, file := range [...]*string{&in.config, &in.lock} {
		if *file, err = committed(ctx, *file, stage); err != nil {
			return p, err
		}
	}
	if found, err := r.extract(ctx, stage); err != nil {
		return p, err
	} else if !found {
		return p, fmt.Errorf("%s has no manifests in HEAD: correct the path, or commit them first", dir)
	}
	root := filepath.Join(stage, filepath.FromSlash(r.path))
	if info, err := os.Stat(root); err != nil {
		return p, err
	} else if !info.IsDir() {
		return p, usageError{fmt.Errorf("%s is a file: name the folder of the package", dir)}
	}
	shown := begin(cmd.ErrOrStderr(), h.quiet, "reading "+dir)
	defer shown.end()
	src, opt, findings, err := in.open(cmd, root, "")
	if err != nil {
		return p, err
	}
	if c := opt.Config; c != nil && c.Spec.Asya != nil && c.Spec.Asya.RuntimeScriptFile != nil {
		if err := r.extractFile(ctx, *c.Spec.Asya.RuntimeScriptFile, stage); err != nil {
			return p, err
		}
		if src, opt, findings, err = in.open(cmd, root, ""); err != nil {
			return p, err
		}
	}
	in.folder = dir // and not the stage, which nobody knows
	if file := (&manifests{place: in.place}).kustomization(src); file != "" {
		return p, fmt.Errorf("%s has to be built first\n  hint: let CI commit the result of kustomize build, or let Argo CD's hydrator use the plugin", file)
	}
	var result render.Result
	if !krm.Failed(findings) {
		opt.ObjectsOnly = true
		if result, err = render.Run(interruptibleSource(cmd, shown.reading("rendering "+dir, src)), opt); err != nil {
			return p, err
		}
	}
	h.found = append(h.found, in.locate(append(findings, result.Findings...))...)
	if err := h.images.pass(ctx, &in.place, src, result.Files); err != nil {
		return p, err
	}
	p.Path = r.path
	p.Manifest, err = hydrate.Manifest(result.Files)
	return p, err
}

// committed gives a file of the repository as HEAD has it, "" for "".
func committed(ctx context.Context, file, stage string) (string, error) {
	if file == "" {
		return "", nil
	}
	r, err := findRevision(ctx, file, "HEAD")
	if err != nil {
		return "", err
	}
	if found, err := r.extract(ctx, stage); err != nil {
		return "", err
	} else if !found {
		return "", fmt.Errorf("%s is not in HEAD: commit it first", file)
	}
	return filepath.Join(stage, filepath.FromSlash(r.path)), nil
}
