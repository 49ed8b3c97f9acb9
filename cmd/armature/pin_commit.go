package main

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/gitremote"
	"github.com/armature-dev/armature/builds/writeback"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/deliver/hydrate"
	"github.com/armature-dev/armature/render/deliver/pin"
)

// passphraseVariable has the passphrase of --signing-key.
const passphraseVariable = "ARMATURE_SIGNING_PASSPHRASE"

// committing is the part of `armature pin --from-builds` that writes a branch.
type committing struct {
	commit       bool
	into, branch string
	via, forge   string
	author, key  string
	accept       []string
}

func (c *committing) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.commit, "commit", false, "with --from-builds, push one commit with the images to the remote origin")
	f.StringVar(&c.into, "pull-request", "", "with --from-builds, push the commit to a branch of its own, and open a pull request that merges it into this one, unless one is open")
	f.StringVar(&c.branch, "branch", "", "branch to write to, without refs/heads/ (default: the one that is checked out, or armature/pin/PATH with --pull-request)")
	cli.WordFlag(cmd, &c.via, "via", "", "git", "git pushes the commit; api lets the forge of the remote origin make it, by the account of the token, and sign it where it does", "way", "git", "api")
	names, _ := forge.Names()
	cli.WordFlag(cmd, &c.forge, "forge", "", "", "with --pull-request or --via api, the forge of the remote origin: "+strings.Join(names, ", ")+" (default: by the name of its host)", "forge", names...)
	f.StringVar(&c.author, "author", "", "author of the commit, as NAME <ADDRESS> (default: Git's user.name and user.email)")
	f.StringVar(&c.key, "signing-key", "", "file with the SSH or OpenPGP key that signs the commit; its passphrase is in "+passphraseVariable)
	f.StringArrayVar(&c.accept, "accept", nil, "digest that is written although it is held back, because a person took it out again or its commit is older; repeatable")
}

// given reports whether a branch is to be written.
func (c *committing) given() bool { return c.commit || c.into != "" }

// check the flags, beside those of pin.
func (p *pinning) checkCommit() error {
	c := p.committing
	switch {
	case !c.given():
		if c.branch != "" || c.author != "" || c.key != "" || len(c.accept) > 0 || c.forge != "" || c.via == "api" {
			return cli.Usagef("--branch, --author, --signing-key, --accept, --via and --forge require --commit or --pull-request")
		}
		return nil
	case c.commit && c.into != "":
		return cli.Usagef("--commit writes the branch itself, and --pull-request another one: give one of them")
	case !p.fromBuilds:
		return cli.Usagef("--commit and --pull-request require --from-builds")
	case p.check || p.steps || p.platform != "":
		return cli.Usagef("--commit and --pull-request write the images of builds alone: --check, --steps and --platform are for the file")
	case c.forge != "" && c.into == "" && c.via != "api":
		return cli.Usagef("--forge requires --pull-request or --via api")
	case c.via == "api" && (c.author != "" || c.key != ""):
		return cli.Usagef("--via api commits by the account of the token: leave out --author and --signing-key")
	}
	for _, digest := range c.accept {
		if !digestForm.MatchString(digest) {
			return cli.Usagef("--accept %q: give a digest, which is sha256: and 64 hexadecimal digits", digest)
		}
	}
	return nil
}

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// runCommit writes the images of builds to the remote origin. Working tree, index and
// branches of the clone stay as they are.
func (p *pinning) runCommit(cmd *cobra.Command, path string) error {
	ctx := cmd.Context()
	shown := cli.Begin(cmd.ErrOrStderr(), false, "reading the builds")
	defer shown.End()
	clone, u, err := p.updateOf(ctx, path)
	if err != nil {
		return err
	}
	if p.via == "api" {
		if u.API, err = forgeOf(ctx, clone, p.forge, "--via api"); err != nil {
			return err
		}
	}
	to := &hydrate.Branch{Folder: clone, Name: u.Proposal, Push: true}
	var proposal *hydrate.Proposal
	if p.into != "" {
		if proposal, err = proposalTo(ctx, to, p.into, p.forge); err != nil {
			return err
		}
		if u.Rejected, err = writeback.Rejected(ctx, proposal.Forge, u.Proposal, p.into); err != nil {
			return err
		}
	}
	if p.Given() {
		policy, err := p.Read(&p.Registry)
		if err != nil {
			return err
		}
		check := cli.Check(policy)
		u.Verify = func(ctx context.Context, b writeback.Built) error {
			digest, err := name.NewDigest(b.Image)
			if err != nil {
				return err
			}
			return check(ctx, digest)
		}
	}
	u.Descends = func(ctx context.Context, b writeback.Built, older string) (bool, error) {
		source, err := cli.Repository(ctx, clone, b.Repository)
		if err != nil {
			return false, err
		}
		descends, err := source.Descends(ctx, b.Commit, older)
		if err != nil {
			err = fmt.Errorf("%w\n  hint: to write it without the comparison, give --accept %s", err, b.Image[strings.LastIndex(b.Image, "@")+1:])
		}
		return descends, err
	}
	c, err := connect(cmd, &p.Cluster)
	if err != nil {
		return err
	}
	list, err := c.List(ctx)
	if err != nil {
		return err
	}
	var built []writeback.Built
	for i := range list.Items {
		if b, ok := writeback.Of(&list.Items[i]); ok {
			built = append(built, b)
		}
	}
	result, err := u.Write(ctx, built)
	shown.End()
	if refused := (*gitremote.RefusedError)(nil); (errors.As(err, &refused) || errors.Is(err, forge.ErrRefused)) && p.commit {
		err = fmt.Errorf("%w\n  hint: if the branch is protected, use --pull-request %s", err, u.Branch)
	}
	if err != nil {
		return err
	}
	if err := p.printCommit(cmd, u, len(built), result); err != nil || proposal == nil || result.Commit == "" {
		return err
	}
	return p.propose(cmd, to, *proposal, result)
}

// updateOf a package: where its lock is, and who writes it.
func (p *pinning) updateOf(ctx context.Context, path string) (clone string, _ *writeback.Update, err error) {
	root, err := cli.RootOf(path)
	if err != nil {
		return "", nil, err
	}
	at, err := cli.FindRevision(ctx, root, "HEAD")
	if err != nil {
		return "", nil, err
	}
	lock := p.Lock
	if lock == "" {
		lock = filepath.Join(root, render.LockFile)
	}
	file, err := cli.FindRevision(ctx, filepath.Dir(lock), "HEAD")
	if err != nil {
		return "", nil, err
	}
	u := &writeback.Update{Branch: p.branch, Path: strings.TrimPrefix(file.Path+"/"+filepath.Base(lock), "/"), Accept: p.accept}
	if p.into != "" {
		u.Branch, u.Proposal = p.into, p.branch
		if u.Proposal == "" {
			u.Proposal = "armature/pin/" + strings.Trim(unsafeInBranch.ReplaceAllString(at.Path, "-"), "-/.")
			if at.Path == "" {
				u.Proposal += "root"
			}
		}
	} else if u.Branch == "" {
		out, err := cli.RunGit(ctx, at.Repository, nil, "symbolic-ref", "--quiet", "--short", "HEAD")
		if err != nil {
			return "", nil, cli.Usagef("no branch is checked out: name the one to write with --branch")
		}
		u.Branch = strings.TrimSpace(string(out))
	}
	if u.Remote, err = cli.Origin(ctx, at.Repository); err != nil {
		return "", nil, err
	}
	if p.via == "api" {
		return at.Repository, u, nil
	}
	return at.Repository, u, multi.Errors(p.identify(ctx, at.Repository, u), u.Check())
}

// unsafeInBranch are characters of a path that a branch should not have.
var unsafeInBranch = regexp.MustCompile(`[^A-Za-z0-9_/]+`)

// identify who writes and signs.
func (p *pinning) identify(ctx context.Context, clone string, u *writeback.Update) error {
	config := func(key string, more ...string) string {
		out, err := cli.RunGit(ctx, clone, nil, append(append([]string{"config"}, more...), "--default=", "--get", key)...)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	u.Name, u.Email = config("user.name"), config("user.email")
	if p.author != "" {
		address, err := mail.ParseAddress(p.author)
		if err != nil {
			return cli.Usagef("--author %q: write NAME <ADDRESS>", p.author)
		}
		u.Name, u.Email = address.Name, address.Address
	}
	if u.Name == "" || u.Email == "" {
		return cli.Usagef("the commit has no author: set user.name and user.email of Git, or give --author")
	}
	if p.key == "" {
		if config("commit.gpgsign", "--type=bool") == "true" {
			return cli.Usagef("this clone signs its commits (commit.gpgsign): name the key's file with --signing-key, or set -c commit.gpgsign=false in GIT_CONFIG_PARAMETERS")
		}
		return nil
	}
	key, err := os.ReadFile(p.key)
	if err != nil {
		return err
	}
	if u.Sign, err = writeback.ReadSigner(key, []byte(os.Getenv(passphraseVariable))); err != nil {
		return fmt.Errorf("--signing-key %s: %w", p.key, err)
	}
	return nil
}

// printCommit says what was written and what was not.
func (p *pinning) printCommit(cmd *cobra.Command, u *writeback.Update, builds int, result writeback.Result) error {
	changes := []pin.Change{}
	for _, b := range result.Changed {
		changes = append(changes, pin.Change{Build: b.Namespace + "/" + b.Name, Is: b.Image})
	}
	type heldBack struct {
		Build string `json:"build"`
		Image string `json:"image"`
		Why   string `json:"why"`
	}
	held := []heldBack{}
	for _, h := range result.Held {
		held = append(held, heldBack{h.Namespace + "/" + h.Name, h.Image, h.Why})
	}
	if p.format != "text" {
		if err := cli.PrintObjects(cmd.OutOrStdout(), p.format, map[string]any{"commit": result.Commit, "new": result.New, "changes": changes, "held": held}); err != nil {
			return err
		}
	} else if err := p.print(cmd.OutOrStdout(), changes, nil); err != nil {
		return err
	}
	to := u.Branch
	if u.Proposal != "" {
		to = u.Proposal
	}
	for _, h := range held {
		fmt.Fprintf(cmd.ErrOrStderr(), "armature: build %s is held back: %s\n  hint: build something newer, or give --accept %s\n", h.Build, krm.Printable(h.Why), h.Image[strings.LastIndex(h.Image, "@")+1:])
	}
	switch {
	case result.New:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: pushed %.12s with %s\n", to, result.Commit, krm.Count(len(changes), "image"))
	case result.Commit != "":
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %.12s has %s already\n", to, result.Commit, krm.Count(len(changes), "image"))
	default:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s is up to date with %s\n", u.Branch, u.Path, krm.Count(builds, "finished build"))
	}
	return nil
}

// propose the pull request of a commit.
func (p *pinning) propose(cmd *cobra.Command, to *hydrate.Branch, proposal hydrate.Proposal, result writeback.Result) error {
	ctx := cmd.Context()
	if _, err := cli.RunGit(ctx, to.Folder, nil, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "origin", "refs/heads/"+to.Name); err != nil {
		return err
	}
	proposal.Title, proposal.Body = result.Text()
	address, opened, err := to.Propose(ctx, result.Commit, proposal)
	if err != nil {
		return fmt.Errorf("the branch %s is written, and has no pull request: %w", to.Name, err)
	}
	if address != "" {
		word := "is open"
		if opened {
			word = "was opened"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: the pull request %s %s\n", to.Name, krm.Printable(address), word)
	}
	return nil
}
