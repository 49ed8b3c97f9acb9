package imageupdate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-git/go-git/v5/plumbing/transport"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	buildapi "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/builds/registry"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/writeback"
	"github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/process"
)

// update updates the branch, and records the result in status.
func (r *reconciler) update(ctx context.Context, u *api.ImageUpdate,
	builds map[string]*buildapi.AgentBuild, built []writeback.Built) error {
	began := time.Now()
	to := &writeback.Update{Branch: u.Spec.Branch, Path: cmp.Or(u.Spec.Path, "armature.lock"),
		Accept: u.Spec.Accept}
	if u.Spec.Author != nil {
		to.Name, to.Email = u.Spec.Author.Name, u.Spec.Author.Email
	}
	login := git.Login{
		Repository: u.Spec.Repository, Field: "spec.credentials", Reason: api.ReasonInvalid,
		Secret: types.NamespacedName{Namespace: u.Namespace, Name: u.Spec.Credentials.Name},
		Write:  u.Spec.Via != "api",
	}
	if u.Spec.Policy == "pullRequest" {
		to.Proposal = "armature/pin/" + u.Namespace + "/" + u.Name
	} else {
		to.Written = u.Status.Written
	}
	if err := to.Check(); err != nil {
		return process.Stalled(api.ReasonInvalid, err)
	}
	var err error
	if to.Remote, err = r.open(ctx, login); err != nil {
		return err
	}
	// Detect a silent server before this update occupies a writer.
	if _, err := to.Remote.References(ctx); err != nil &&
		!errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return err
	}
	to.Attested = r.statements(ctx, u, builds)
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var pulls forge.Forge
	if to.Proposal != "" || u.Spec.Via == "api" {
		if pulls, err = r.Forge(ctx, "spec.forge", u.Spec.Forge, login); err != nil {
			return err
		}
	}
	if u.Spec.Via == "api" {
		to.API = pulls
	}
	if to.Proposal != "" {
		if to.Rejected, err = writeback.Rejected(ctx, pulls, to.Proposal, to.Branch); err != nil {
			return err
		}
	}
	if to.Sign, err = r.signer(ctx, u); err != nil {
		return err
	}
	if to.Verify, err = r.verifier(ctx, u, builds); err != nil {
		return err
	}
	to.Descends = func(ctx context.Context, b writeback.Built, older string) (bool, error) {
		login := git.Login{
			Repository: b.Repository, Secret: types.NamespacedName{Namespace: b.Namespace},
			Field: "spec.source.sourceCredentials of AgentBuild " + b.Name, Reason: api.ReasonInvalid,
		}
		if s := builds[b.Name].Spec.Source.SourceCredentials; s != nil {
			login.Secret.Name = s.Name
		}
		source, err := r.open(ctx, login)
		if err != nil {
			return false, err
		}
		return source.Descends(ctx, b.Commit, older)
	}
	result, err := to.Write(ctx, built)
	if err != nil {
		return err
	}
	if err := r.record(ctx, u, to, pulls, result); err != nil {
		return err
	}
	for _, b := range result.Changed {
		r.Traces.Start(traces.Since(context.Background(), began,
			builds[b.Name].Status.TraceParent), "build.pin", "build", u.Namespace+"/"+b.Name,
			"imageupdate", u.Name, "commit", result.Commit, "pull_request", u.Status.PullRequest).
			End(time.Now(), false)
	}
	for _, h := range result.Held {
		if h.Unconfirmed != nil && !errors.As(h.Unconfirmed, new(*finding.Finding)) {
			return h.Unconfirmed // the registry may answer the next time
		}
	}
	for _, h := range result.Held {
		if h.Unconfirmed != nil {
			return process.Stalled(api.ReasonNotAttested,
				fmt.Errorf("%s of build %s is not written: %w", h.Image, h.Name, h.Unconfirmed))
		}
	}
	return nil
}

// statements returns a function that returns the statement about an image of a build. It asks the
// registries now, before this update occupies a writer. It defers images that status lists as
// written until they are written again.
func (r *reconciler) statements(ctx context.Context, u *api.ImageUpdate,
	builds map[string]*buildapi.AgentBuild) func(context.Context,
	writeback.Built) (attest.Statement, error) {
	type answer struct {
		attest.Statement
		error
	}
	known := make(map[string]answer) // by build and image
	for name, b := range builds {
		if image := b.Status.BuiltImage; !slices.Contains(u.Status.Written, image) {
			found, err := r.Statement(ctx, b, image)
			known[name+" "+image] = answer{found, err}
		}
	}
	return func(ctx context.Context, b writeback.Built) (attest.Statement, error) {
		if a, ok := known[b.Name+" "+b.Image]; ok {
			return a.Statement, a.error
		}
		return r.Statement(ctx, builds[b.Name], b.Image)
	}
}

// record records in status what was written, and opens the pull request.
func (r *reconciler) record(ctx context.Context, u *api.ImageUpdate, to *writeback.Update,
	pulls forge.Forge, result writeback.Result) error {
	u.Status.Held = nil
	for _, h := range result.Held[:min(len(result.Held), maxListed)] {
		u.Status.Held = append(u.Status.Held,
			api.HeldImage{Build: h.Name, Image: h.Image, Why: shorten(h.Why)})
	}
	u.Status.PullRequest = ""
	if result.Commit == "" {
		return nil
	}
	u.Status.Commit = result.Commit
	if to.Proposal == "" {
		for _, b := range result.Changed {
			u.Status.Written = append(slices.DeleteFunc(u.Status.Written,
				func(s string) bool { return s == b.Image }), b.Image)
		}
		u.Status.Written = u.Status.Written[max(0, len(u.Status.Written)-maxListed):]
		return nil
	}
	title, body := result.Text()
	made, _, err := pulls.Propose(ctx, forge.Proposal{Head: to.Proposal, Base: to.Branch,
		Title: title, Body: body, Refresh: true})
	if err != nil {
		return fmt.Errorf("the branch %s was written, but no pull request was opened: %w",
			to.Proposal, err)
	}
	u.Status.PullRequest = shorten(made.URL)
	return nil
}

func (r *reconciler) open(ctx context.Context, l git.Login) (gitremote.Repository, error) {
	to, err := r.Open(ctx, l)
	to.Limit = maxHistory
	return to, err
}

// signer returns the signer of the commits, or nil if they are not signed.
func (r *reconciler) signer(ctx context.Context, u *api.ImageUpdate) (writeback.Signer, error) {
	if u.Spec.SigningKey == nil {
		return nil, nil
	}
	secret, err := r.Secret(ctx, git.Login{
		Secret: types.NamespacedName{Namespace: u.Namespace, Name: u.Spec.SigningKey.Name},
		Field:  "spec.signingKey", Reason: api.ReasonInvalid}, compose.PurposeSigning)
	if err != nil {
		return nil, err
	}
	key, passphrase := secret.Data["identity"], secret.Data["password"]
	if len(key) == 0 {
		key, passphrase = secret.Data["git.asc"], secret.Data["passphrase"]
	}
	if len(key) == 0 {
		return nil, invalid("spec.signingKey: Secret %s has neither identity nor git.asc",
			u.Spec.SigningKey.Name)
	}
	sign, err := writeback.ReadSigner(key, passphrase)
	if err != nil {
		return nil, invalid("spec.signingKey: Secret %s: %w", u.Spec.SigningKey.Name, err)
	}
	return sign, nil
}

// verifier returns a function that verifies images by the policy, or nil without one. It contacts a
// private registry with the login that the build pushes with.
func (r *reconciler) verifier(ctx context.Context, u *api.ImageUpdate,
	builds map[string]*buildapi.AgentBuild) (func(context.Context, writeback.Built) error, error) {
	if u.Spec.Verify == nil {
		return nil, nil
	}
	key := types.NamespacedName{Namespace: u.Namespace, Name: u.Spec.Verify.Name}
	files, err := git.ReadFiles(ctx, r.Live, key)
	if apierrors.IsNotFound(err) {
		return nil, invalid("spec.verify: ConfigMap %s does not exist", key)
	} else if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	text, ok := files["policy.yaml"]
	if !ok {
		return nil, invalid("spec.verify: ConfigMap %s has no key policy.yaml with a VerifyPolicy",
			key)
	}
	policy, err := sign.ParsePolicy(text, files)
	if err != nil {
		return nil, invalid("spec.verify: ConfigMap %s: %w", key, err)
	}
	policy.Transport = oci.TransportTo(r.Dial)
	return func(ctx context.Context, b writeback.Built) error {
		image, err := attest.ImageOf(builds[b.Name], b.Image)
		if err != nil {
			return err
		}
		judged := policy
		judged.PlainHTTP = registry.IsPlainHTTP(r.PlainHTTP, image.RegistryStr())
		if judged.Keychain, err = registry.Login(ctx, r.Live, builds[b.Name]); err != nil {
			return err
		}
		_, err = sign.Verify(ctx, image, judged)
		if errors.Is(err, context.DeadlineExceeded) {
			return errors.New("its registry does not answer in time")
		}
		return err
	}, nil
}
