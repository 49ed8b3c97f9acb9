package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	buildapi "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/writeback"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/deliver/hydrate"
	"github.com/armature-dev/armature/render/deliver/pin"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/source"
)

// passphraseVariable names the variable with the passphrase of --signing-key.
const passphraseVariable = "ARMATURE_SIGNING_PASSPHRASE"

// buildPinning is `armature pin-builds`.
type buildPinning struct {
	cli.Registry
	cli.Trust
	cli.Cluster
	lock         string
	check        bool
	format       string
	branch, into string
	via, forge   string
	key          string
	accept       []string
}

func pinBuildsCommand() *cobra.Command {
	var p buildPinning
	cmd := &cobra.Command{
		Use:   "pin-builds PATH",
		Short: "Write the images of finished AgentBuilds to armature.lock",
		Long: `Pin-builds writes the images of the finished AgentBuilds of a namespace to armature.lock.
PATH is a package or a lock. Only the entries of builds change. With --key or
--verify-policy, the images must be signed, and an attestation that the status of an AgentBuild
claims must be of this AgentBuild. Without them, nothing of the status is verified, and the commit
calls the images unattested.

With --branch, pin-builds commits the lock to that branch of the remote origin, changes only
the lines of builds, and leaves the working tree alone. With --pull-request BASE, it commits
to another branch and opens a pull request that merges it into BASE.

Pin-builds holds back an image that was removed from the lock, by a revert or by closing the
pull request, and an image whose source commit is older than that of the lock; --accept
overrides this. The author of the commit comes from Git's configuration, or from
GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL.

With --via api, the forge creates the commit with the account of the token in GITHUB_TOKEN,
GITLAB_TOKEN or GITEA_TOKEN, so that GitHub signs it.`,
		Example: `  armature pin-builds apps/ -n team1
  armature pin-builds apps/ -A --check
  armature pin-builds apps/ -n team1 --branch main --signing-key bot.key --verify-policy policy.yaml
  armature pin-builds apps/ -n team1 --branch main --via api
  armature pin-builds apps/ -n team1 --pull-request main`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			if given[0] == "-" {
				return errNoLock
			}
			if err := p.checkFlags(); err != nil {
				return err
			}
			if p.lock = given[0]; filepath.Ext(p.lock) != filepath.Ext(render.LockFile) {
				if p.lock, err = lockOf(given[0], ""); err != nil {
					return err
				}
			}
			if p.remote() {
				return p.commit(cmd)
			}
			return p.write(cmd, given[0])
		},
	}
	p.Registry.Flags(cmd)
	p.Trust.Flags(cmd)
	p.Cluster.Flags(cmd)
	p.AllFlag(cmd)
	f := cmd.Flags()
	f.String("api-group", buildapi.DefaultGroup, "API group of AgentBuild")
	f.BoolVar(&p.check, "check", false, "write nothing; fail if the lock is out of date")
	f.StringVar(&p.branch, "branch", "",
		"branch of the remote origin to write to, without refs/heads/ (default: the working "+
			"tree, or armature/pin/PATH with --pull-request)")
	f.StringVar(&p.into, "pull-request", "",
		"open a pull request that merges the commit into this branch, unless one is open")
	cli.WordFlag(cmd, &p.via, "via", "", "git",
		"git pushes the commit; api creates it on the forge of the remote origin, with the "+
			"account of the token; some forges sign it", "way", "git", "api")
	forgeFlag(cmd, &p.forge, "with --pull-request or --via api, the forge")
	f.StringVar(&p.key, "signing-key", "",
		"file with the SSH or OpenPGP key that signs the commit; its passphrase is in "+
			passphraseVariable)
	f.StringArrayVar(&p.accept, "accept", nil,
		"digest to write although it was removed from the lock or its commit is older; repeatable")
	cli.OutputFlag(cmd, &p.format, "text", "json", "yaml")
	return cmd
}

// remote reports whether a branch of the remote origin is written.
func (p *buildPinning) remote() bool { return p.branch+p.into != "" }

func (p *buildPinning) checkFlags() error {
	switch {
	case !p.remote() && (p.key != "" || len(p.accept) > 0 || p.forge != "" || p.via == "api"):
		return cli.Usagef(
			"--signing-key, --accept, --via and --forge require --branch or --pull-request")
	case p.remote() && p.check:
		return cli.Usagef(
			"--check compares the working tree: leave out --branch and --pull-request")
	case p.forge != "" && p.into == "" && p.via != "api":
		return cli.Usagef("--forge requires --pull-request or --via api")
	case p.via == "api" && p.key != "":
		return cli.Usagef("--via api commits by the account of the token: leave out --signing-key")
	}
	for _, digest := range p.accept {
		if !buildapi.IsDigest(digest) {
			return cli.Usagef("--accept %q: use a digest: sha256: and 64 hexadecimal digits", digest)
		}
	}
	return nil
}

// write writes the images of finished AgentBuilds to the lock in the working tree. Entries of other
// namespaces stay.
func (p *buildPinning) write(cmd *cobra.Command, path string) error {
	named := p.lock
	if filepath.Base(named) == render.LockFile {
		named = "" // it need not exist
	}
	lock, findings, err := source.FindLock(named, filepath.Dir(p.lock))
	if err != nil {
		return err
	}
	if err := new(cli.Input).Report(cmd, findings); err != nil {
		return err
	}
	before := api.ImageLockSpec{}
	if lock != nil {
		before = lock.Spec
	}
	after := before
	policy, err := p.Demanded(&p.Registry)
	if err != nil {
		return err
	}
	c, list, err := p.list(cmd)
	if err != nil {
		return err
	}
	verify, statements := verifier(policy), statements(policy, list)
	after.Builds = nil
	if !p.All {
		after.Builds = slices.DeleteFunc(slices.Clone(before.Builds),
			func(b api.LockedBuild) bool { return b.Namespace == c.Namespace })
	}
	for i := range list.Items {
		b := &list.Items[i]
		if built, ready := writeback.Of(b); ready {
			after.Builds = append(after.Builds, built.LockedBuild)
		} else if strings.Contains(b.Status.BuiltImage, "@sha256:") {
			after.Builds = append(after.Builds,
				api.LockedBuild{Namespace: b.Namespace, Name: b.Name, Image: b.Status.BuiltImage})
		}
	}
	slices.SortFunc(after.Builds, func(a, b api.LockedBuild) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	var refused error
	var unattested []string
	for i := range after.Builds {
		b := &after.Builds[i]
		found := attest.Statement{}
		err := verify(cmd.Context(), b.Image)
		if err == nil {
			found, err = statements(cmd.Context(), writeback.Built{LockedBuild: *b})
		}
		refused = multi.Errors(refused, err)
		if b.Commit != "" && found.Commit != "" {
			b.Commit = found.Commit
		}
		if found.Digest == "" && !slices.Contains(before.Builds, *b) {
			unattested = append(unattested, b.Namespace+"/"+b.Name)
		}
	}
	if refused != nil {
		return refused
	}
	changes := pin.Changes(before, after)
	if err := printPins(cmd, p.format, changes, nil); err != nil {
		return err
	}
	noteUnattested(cmd, unattested)
	namespace := " -n " + c.Namespace
	if p.All {
		namespace = " -A"
	}
	return writeLock(cmd, p.lock, lock, after, len(changes) > 0, p.check,
		"armature pin-builds "+path+namespace, nil)
}

// list lists the AgentBuilds.
func (p *buildPinning) list(cmd *cobra.Command) (*client.Client, *buildapi.AgentBuildList, error) {
	c, err := connect(cmd, &p.Cluster)
	if err != nil {
		return nil, nil, err
	}
	list, err := c.List(cmd.Context())
	return c, &list, err
}

// verifier returns a function that verifies the signature of an image, if the policy requires one.
func verifier(policy *sign.Policy) func(context.Context, string) error {
	return func(ctx context.Context, image string) error {
		if policy == nil {
			return nil
		}
		digest, err := name.NewDigest(image)
		if err != nil {
			return err
		}
		return cli.Check(policy)(ctx, digest)
	}
}

// statements returns a function that finds the verified statement about the image of a listed
// build. The policy says whose statements count; without a policy there are none.
func statements(policy *sign.Policy, list *buildapi.AgentBuildList) func(context.Context,
	writeback.Built) (attest.Statement, error) {
	return func(ctx context.Context, of writeback.Built) (none attest.Statement, _ error) {
		at := slices.IndexFunc(list.Items, func(b buildapi.AgentBuild) bool {
			return b.Namespace == of.Namespace && b.Name == of.Name
		})
		if at < 0 {
			return none, nil // an entry of another namespace
		}
		b := &list.Items[at]
		image, err := attest.ImageOf(b, of.Image)
		if err != nil || policy == nil {
			return none, err
		}
		all, err := sign.Provenances(ctx, image, *policy)
		found := none
		if err == nil {
			found, err = attest.Find(b, all)
		}
		if err != nil && b.Status.Attestation == nil {
			return none, nil // another builder may have attested it, which the policy judges
		}
		return found, err
	}
}

// noteUnattested prints which images have no verified attestation.
func noteUnattested(cmd *cobra.Command, builds []string) {
	if len(builds) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"armature: unattested, by the status of the AgentBuild alone: %s\n"+
				"  hint: use --verify-policy, which says whose attestations count\n",
			text.Printable(strings.Join(builds, ", ")))
	}
}

// commit writes the images of builds to the remote origin. Working tree, index and
// branches of the clone stay as they are.
func (p *buildPinning) commit(cmd *cobra.Command) error {
	ctx := cmd.Context()
	activity := cli.Begin(cmd.ErrOrStderr(), false, "reading the builds")
	defer activity.End()
	clone, u, err := p.update(ctx)
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
	policy, err := p.Demanded(&p.Registry)
	if err != nil {
		return err
	}
	verify := verifier(policy)
	u.Verify = func(ctx context.Context, b writeback.Built) error { return verify(ctx, b.Image) }
	u.Descends = func(ctx context.Context, b writeback.Built, older string) (bool, error) {
		source, err := cli.Repository(ctx, clone, b.Repository)
		if err != nil {
			return false, err
		}
		descends, err := source.Descends(ctx, b.Commit, older)
		if err != nil {
			err = fmt.Errorf("%w\n  hint: use --accept %s to write it without the comparison", err,
				b.Image[strings.LastIndex(b.Image, "@")+1:])
		}
		return descends, err
	}
	_, list, err := p.list(cmd)
	if err != nil {
		return err
	}
	u.Attested = statements(policy, list)
	var built []writeback.Built
	for i := range list.Items {
		if b, ok := writeback.Of(&list.Items[i]); ok {
			built = append(built, b)
		}
	}
	result, err := u.Write(ctx, built)
	activity.End()
	if refused := (*gitremote.RefusedError)(nil); (errors.As(err, &refused) ||
		errors.Is(err, forge.ErrRefused)) && p.into == "" {
		err = fmt.Errorf("%w\n  hint: if the branch is protected, use --pull-request %s", err, u.Branch)
	}
	if err != nil {
		return err
	}
	if err = p.printCommit(cmd, u, len(built), result); err == nil && proposal != nil &&
		result.Commit != "" {
		err = p.propose(cmd, to, *proposal, result)
	}
	for _, h := range result.Held {
		err = multi.Errors(err, h.Unconfirmed)
	}
	return err
}

// update returns the update of a package, with the path of its lock and the author of the commit.
func (p *buildPinning) update(ctx context.Context) (clone string, _ *writeback.Update, err error) {
	at, err := cli.FindRevision(ctx, filepath.Dir(p.lock), "HEAD")
	if err != nil {
		return "", nil, err
	}
	u := &writeback.Update{Branch: p.branch,
		Path: strings.TrimPrefix(at.Path+"/"+filepath.Base(p.lock), "/"), Accept: p.accept}
	if p.into != "" {
		u.Branch, u.Proposal = p.into, p.branch
		if u.Proposal == "" {
			u.Proposal = "armature/pin/" +
				strings.Trim(unsafeInBranch.ReplaceAllString(at.Path, "-"), "-/.")
			if at.Path == "" {
				u.Proposal += "root"
			}
		}
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

// identify sets the author and the signing key of the commit.
func (p *buildPinning) identify(ctx context.Context, clone string, u *writeback.Update) error {
	config := func(key string, more ...string) string {
		out, err := cli.RunGit(ctx, clone, nil,
			append(append([]string{"config"}, more...), "--default=", "--get", key)...)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	u.Name, u.Email = cmp.Or(os.Getenv("GIT_AUTHOR_NAME"), config("user.name")),
		cmp.Or(os.Getenv("GIT_AUTHOR_EMAIL"), config("user.email"))
	if u.Name == "" || u.Email == "" {
		return cli.Usagef("the commit has no author: set user.name and user.email of Git, or " +
			"GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL")
	}
	if p.key == "" {
		if config("commit.gpgsign", "--type=bool") == "true" {
			return cli.Usagef("this clone signs its commits (commit.gpgsign): name the key's " +
				"file with --signing-key, or set -c commit.gpgsign=false in GIT_CONFIG_PARAMETERS")
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

// printCommit prints which images were written and which were held back.
func (p *buildPinning) printCommit(cmd *cobra.Command, u *writeback.Update, builds int,
	result writeback.Result) error {
	var changes []pin.Change
	var unattested []string
	for _, b := range result.Changed {
		changes = append(changes, pin.Change{Build: b.Namespace + "/" + b.Name, Is: b.Image})
		if b.Attestation == "" {
			unattested = append(unattested, b.Namespace+"/"+b.Name)
		}
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
	if err := printPins(cmd, p.format, changes,
		map[string]any{"commit": result.Commit, "new": result.New, "held": held}); err != nil {
		return err
	}
	to := cmp.Or(u.Proposal, u.Branch)
	for i, h := range held {
		if result.Held[i].Unconfirmed != nil {
			continue // an error of the command
		}
		fmt.Fprintf(cmd.ErrOrStderr(),
			"armature: build %s is held back: %s\n  hint: build a newer commit, or use "+
				"--accept %s\n", h.Build, text.Printable(h.Why),
			h.Image[strings.LastIndex(h.Image, "@")+1:])
	}
	noteUnattested(cmd, unattested)
	switch {
	case result.New:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: pushed %.12s with %s\n", to, result.Commit,
			text.Count(len(changes), "image"))
	case result.Commit != "":
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %.12s has %s already\n", to, result.Commit,
			text.Count(len(changes), "image"))
	default:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s is up to date with %s\n", u.Branch, u.Path,
			text.Count(builds, "finished build"))
	}
	return nil
}

// propose opens the pull request of a commit.
func (p *buildPinning) propose(cmd *cobra.Command, to *hydrate.Branch, proposal hydrate.Proposal,
	result writeback.Result) error {
	ctx := cmd.Context()
	if _, err := cli.RunGit(ctx, to.Folder, nil, "fetch", "--quiet", "--no-tags",
		"--no-write-fetch-head", "origin", "refs/heads/"+to.Name); err != nil {
		return err
	}
	proposal.Title, proposal.Body = result.Text()
	return propose(cmd, to, result.Commit, proposal, false)
}
