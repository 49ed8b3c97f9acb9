// Package writeback writes the images of finished builds into the armature.lock of a branch, with
// one commit per set of images. Its only state is Git: each write-back reads the history of the
// lock, including the images that people removed. If it is killed at any point, the next one
// continues it.
package writeback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation"

	buildapi "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/gitrepo"
)

// Built is the image of a finished AgentBuild.
type Built struct {
	api.LockedBuild
	// Repository of the source, in the form of gitrepo.
	Repository string
	// Run is the name of the PipelineRun that built it, from status.
	Run string
	// Attestation is the digest of its verified provenance, or empty if it is unattested. Write
	// sets it with Update.Attested.
	Attestation string
	// Finished is when the run ended.
	Finished time.Time
}

// key identifies the AgentBuild: namespace/name.
func (b Built) key() string { return b.Namespace + "/" + b.Name }

// digest returns the digest of the image.
func (b Built) digest() string { return b.Image[strings.LastIndex(b.Image, "@")+1:] }

// Of returns the image of an AgentBuild that is ready according to its status. ok is false for
// other builds, and for those of pull requests.
func Of(b *buildapi.AgentBuild) (built Built, ok bool) {
	s := b.Status
	if !meta.IsStatusConditionTrue(s.Conditions, buildapi.ConditionReady) ||
		!strings.Contains(s.BuiltImage, "@sha256:") ||
		s.Source == nil || s.CompletionTime == nil || s.ObservedGeneration != b.Generation ||
		b.Spec.Source.PullRequest != nil {
		return built, false
	}
	repository, err := gitrepo.Parse(b.Spec.Source.SourceRepository)
	if err != nil {
		return built, false
	}
	built = Built{Repository: repository.String(), Run: s.PipelineRunName,
		Finished: s.CompletionTime.Time,
		LockedBuild: api.LockedBuild{Namespace: b.Namespace, Name: b.Name, Image: s.BuiltImage,
			Commit: s.Source.Git.CommitSHA}}
	return built, true
}

// Update writes one lock on one branch.
type Update struct {
	Remote gitremote.Repository
	// Branch has the lock. It is without refs/heads/.
	Branch string
	// Path of the lock in the repository, with slashes.
	Path string
	// Proposal is the branch that gets the commit for a pull request into Branch. It is replaced
	// unless another author committed to it. If empty, Branch gets the commit.
	Proposal string
	// API creates the commit instead of Git. Its account is the author then, and Name, Email and
	// Sign are not used. Nil means Git.
	API forge.Forge
	// Name and Email of the author and committer.
	Name, Email string
	// Sign signs a commit. Equal commits get equal signatures. Nil leaves commits unsigned.
	Sign Signer
	// Attested returns the verified statement about an image of a build, or the zero Statement if
	// it is unattested. An image for which it returns an error is not written. Nil means that all
	// images are unattested.
	Attested func(ctx context.Context, b Built) (attest.Statement, error)
	// Verify verifies an image before it is written. Nil accepts all images.
	Verify func(ctx context.Context, b Built) error
	// Descends reports whether the commit of a build has another commit in its history.
	Descends func(ctx context.Context, b Built, older string) (bool, error)
	// Accept are digests of images that are written although they are held back.
	Accept []string
	// Written are images that are known, from a source other than Git, to have been written to
	// Branch. Rejected are the digests of pull requests that were closed unmerged.
	Written, Rejected []string
}

// Held is an image that is not written.
type Held struct {
	api.LockedBuild
	// Why is the reason, as a message.
	Why string
	// Unconfirmed is the error of Attested or of the check of status, or nil if the image is held
	// back for another reason. Accept does not override it.
	Unconfirmed error
}

// Result is the result of a write-back.
type Result struct {
	// Head is the commit of Branch that was read.
	Head string
	// Commit has the images. It is empty if there was nothing to write.
	Commit string
	// New is true if this write-back created Commit.
	New bool
	// Changed are the images that Commit adds, and Held those that it does not.
	Changed []Built
	Held    []Held
	// Message of the commit.
	Message string
}

const (
	maxTries = 10
	maxLock  = 4 << 20 // bytes of a lock that is read
)

// ErrNoBranch reports that the remote does not have the branch.
var ErrNoBranch = errors.New("the repository has no such branch")

// ForeignError reports that another author committed to the branch for a pull request.
type ForeignError struct{ Branch, Commit, Author string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("the branch %s has the commit %.12s of %s: it is left as it is\n"+
		"  hint: merge or delete the branch; the next write-back then starts a new one", e.Branch,
		e.Commit, e.Author)
}

// Check validates the fields, before anything is read.
func (u *Update) Check() error {
	var failed []error
	for _, name := range []string{u.Branch, cmp.Or(u.Proposal, "x")} {
		if err := plumbing.NewBranchReferenceName(name).Validate(); err != nil ||
			strings.HasPrefix(name, "-") || strings.HasPrefix(name, "refs/") {
			failed = append(failed, fmt.Errorf("%q is not a valid branch: use a name such as main",
				text.Shown(name)))
		}
	}
	if u.Proposal == u.Branch {
		failed = append(failed, errors.New("a pull request cannot merge a branch into itself"))
	}
	if !fs.ValidPath(u.Path) || u.Path == "." || strings.ContainsFunc(u.Path, unicode.IsControl) ||
		slices.Contains(strings.Split(strings.ToLower(u.Path), "/"), ".git") {
		failed = append(failed,
			fmt.Errorf("%q is not the path of a lock in the repository: use one such as "+
				"apps/armature.lock", text.Shown(u.Path)))
	}
	if u.API == nil &&
		(u.Name == "" || !strings.Contains(u.Email, "@") ||
			strings.ContainsAny(u.Name+u.Email, "<>") ||
			strings.ContainsFunc(u.Name+u.Email, unicode.IsControl)) {
		failed = append(failed,
			fmt.Errorf("%q is not a valid author: use a name and an address, as in Armature "+
				"<armature@example.com>", text.Shown(u.Name+" <"+u.Email+">")))
	}
	return multi.Errors(failed...)
}

// Write updates the lock to the images that were built, with at most one commit. If another writer
// moves the branch meanwhile, it starts again from the new state. After an error the branches are
// unchanged, or have the whole commit.
func (u *Update) Write(ctx context.Context, built []Built) (Result, error) {
	if err := u.Check(); err != nil {
		return Result{}, err
	}
	for try := 1; ; try++ {
		result, err := u.once(ctx, built)
		if err == nil || !errors.Is(err, gitremote.ErrMoved) && !errors.Is(err, forge.ErrMoved) ||
			try == maxTries {
			return result, err
		}
		select {
		case <-ctx.Done():
			return Result{}, ctx.Err()
		case <-time.After(time.Duration(try) * (50 + rand.N[time.Duration](200)) * time.Millisecond):
		}
	}
}

// once reads the branch and writes it.
func (u *Update) once(ctx context.Context, built []Built) (result Result, err error) {
	folder, err := os.MkdirTemp("", "armature-writeback-")
	if err != nil {
		return result, err
	}
	defer func() { err = multi.Errors(err, os.RemoveAll(folder)) }()
	c := &clone{from: u.Remote, path: u.Path,
		objects: filesystem.NewStorage(osfs.New(folder), cache.NewObjectLRU(4*cache.MiByte))}
	branches := []string{"refs/heads/" + u.Branch}
	if u.Proposal != "" {
		branches = append(branches, "refs/heads/"+u.Proposal)
	}
	tips, err := u.Remote.Fetch(ctx, c.objects, branches...)
	defer func() { err = u.moved(ctx, tips, branches, err) }()
	if err != nil {
		return result, err
	}
	head, ok := tips[branches[0]]
	if !ok {
		return result, fmt.Errorf("%w: %s", ErrNoBranch, u.Branch)
	}
	result.Head = head.String()
	states, err := c.history(ctx, head)
	if err != nil {
		return result, err
	}
	if err := u.choose(ctx, &result, states, built); err != nil || len(result.Changed) == 0 {
		return result, err
	}
	text, err := edit(states[0].text, u.Path, result.Changed)
	if err != nil {
		return result, err
	}
	result.Message = message(u.Path, result.Changed)
	if u.API != nil {
		result.Message += setTrailer(result.Changed)
	}
	onto := plumbing.ZeroHash
	if u.Proposal != "" {
		onto = tips[branches[1]]
		if same, err := u.proposed(ctx, c, head, onto, text); err != nil || same {
			result.Commit = onto.String()
			return result, err
		}
	}
	want := forge.Commit{Branch: u.Branch, Head: head.String(), Message: result.Message,
		Files: map[string][]byte{u.Path: text}}
	if u.Proposal == "" {
		onto = head
	} else if want.Branch, want.Base = u.Proposal, u.Branch; !onto.IsZero() {
		want.Replaces = onto.String()
	}
	if u.API != nil {
		result.Commit, err = u.API.Commit(ctx, want)
	} else {
		result.Commit, err = u.push(ctx, c, head, onto, want, result.Changed)
	}
	if err != nil {
		return Result{}, fmt.Errorf("writing the branch %s: %w", want.Branch, err)
	}
	result.New = true
	return result, nil
}

// moved returns the error of an attempt as ErrMoved if a branch has moved since it was read,
// because servers do not send the objects of a commit that is no longer on a branch.
func (u *Update) moved(ctx context.Context, tips map[string]plumbing.Hash, branches []string,
	err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, gitremote.ErrMoved) || len(tips) == 0 {
		return err
	}
	now, listErr := u.Remote.References(ctx)
	if listErr != nil ||
		!slices.ContainsFunc(branches, func(name string) bool { return now[name] != tips[name] }) {
		return err
	}
	return fmt.Errorf("%w: %w", gitremote.ErrMoved, err)
}

// choose sorts the images into those that are written and those that are held back.
func (u *Update) choose(ctx context.Context, result *Result, states []state, built []Built) error {
	built = slices.SortedFunc(slices.Values(built),
		func(a, b Built) int { return strings.Compare(a.key(), b.key()) })
	for _, b := range built {
		now := states[0].builds[b.key()]
		if now.Image == b.Image {
			continue
		}
		if err := u.confirm(ctx, &b); err != nil {
			if ctx.Err() != nil {
				return err
			}
			result.Held = append(result.Held, Held{b.LockedBuild, err.Error(), err})
			continue
		}
		why, err := u.holds(ctx, states, b, now)
		if err != nil {
			return err
		}
		if why == "" && u.Verify != nil {
			if err := u.Verify(ctx, b); err != nil {
				if ctx.Err() != nil {
					return err
				}
				why = "the policy refuses it: " + err.Error()
			}
		}
		if why != "" {
			result.Held = append(result.Held, Held{b.LockedBuild, why, nil})
			continue
		}
		result.Changed = append(result.Changed, b)
	}
	return nil
}

// confirm checks the form of an image in status, and takes the remaining facts from the verified
// statement.
func (u *Update) confirm(ctx context.Context, b *Built) error {
	fault := func(message string) error {
		at := finding.Place{Object: finding.Ref{Kind: buildapi.Kind, Namespace: b.Namespace,
			Name: b.Name}}
		return at.Fault(buildapi.ReasonNotAttested, message,
			"start again with `armature build rerun`")
	}
	if _, err := name.NewDigest(b.Image); err != nil || !buildapi.IsCommit(b.Commit) ||
		len(validation.IsDNS1123Subdomain(b.Run)) > 0 {
		return fault(
			"its status has an image, a commit or a run that the controller does not write")
	}
	if b.Attestation = ""; u.Attested == nil {
		return nil
	}
	found, err := u.Attested(ctx, *b)
	switch {
	case err != nil || found.Digest == "":
		return err
	case !found.Current:
		return fault("the image is attested as one of another spec")
	}
	b.Attestation, b.Repository, b.Commit, b.Finished =
		found.Digest, found.Repository, found.Commit, found.Finished
	return nil
}

// holds returns why an image is held back, or "" if it is not.
func (u *Update) holds(ctx context.Context, states []state, b Built,
	now api.LockedBuild) (why string, err error) {
	if slices.Contains(u.Accept, b.digest()) {
		return "", nil
	}
	if by := rejected(states, b); by != "" {
		return fmt.Sprintf("commit %.12s removed it from the lock", by), nil
	}
	if slices.Contains(u.Rejected, b.digest()) {
		return "a pull request with it was closed without a merge", nil
	}
	if slices.Contains(u.Written, b.Image) && !slices.ContainsFunc(states,
		func(s state) bool { return s.builds[b.key()].Image == b.Image }) {
		return "it was in the lock, and the history of the branch no longer has it", nil
	}
	if b.Attestation != "" && now.Image != "" {
		was, err := u.Attested(ctx, Built{LockedBuild: now})
		if err != nil && ctx.Err() != nil {
			return "", err
		}
		if err == nil && b.Finished.Before(was.Finished) {
			return "the image in the lock was built after it", nil
		}
	}
	if now.Commit == "" || now.Commit == b.Commit || u.Descends == nil {
		return "", nil
	}
	newer, err := u.Descends(ctx, b, now.Commit)
	if err != nil {
		return "", fmt.Errorf("comparing commits of %s: %w", b.Repository, err)
	}
	if !newer {
		return fmt.Sprintf(
			"its commit %.12s does not descend from the commit %.12s of the image in the lock",
			b.Commit, now.Commit), nil
	}
	return "", nil
}
