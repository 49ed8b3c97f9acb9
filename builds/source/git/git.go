// Package git finds the commit of a build's revision, and whether the policies for its source
// accept it. Git servers are not trusted: requests run outside of the reconciles, and answers are
// bounded in size and time.
package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/skeema/knownhosts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/gitrepo"
	"github.com/armature-dev/armature/render/process/managers"
)

// Commit is the commit that a revision names.
type Commit struct {
	SHA    string
	Branch string // "" if the revision does not name a branch
	// Verified are the policies that the commit satisfies, in the order of the question.
	Verified []api.SourceVerification
}

// Question asks for the commit of a repository's revision, and whether policies accept it.
type Question struct {
	Repository, Revision string
	// Commit is set if the commit is known: then only the policies are checked.
	Commit   string
	Policies []Policy
	// Rerun is the request to build again, or "". An earlier answer is not reused for it.
	Rerun string
}

// key returns a key that identifies the question.
func (q Question) key() string {
	text := q.Repository + "\n" + q.Revision + "\n" + q.Commit + "\n" + q.Rerun
	for _, p := range q.Policies {
		text += "\n" + p.Key.String() + " " + p.Digest
	}
	return text
}

const (
	// serverTimeout bounds one question to a Git server.
	serverTimeout = 20 * time.Second
	// workers is the number of concurrent questions, and workersOfOne that of one namespace.
	workers, workersOfOne = 12, 3
	// answerKeeps is how long an answer is reused for other builds of the same burst.
	answerKeeps = 2 * time.Second
)

// Resolver asks Git servers for commits.
type Resolver struct {
	questions *managers.Questions[Commit]
	dial      gitremote.Dial
	live      client.Reader // of the API server
}

// NewResolver returns a resolver that reads Secrets and policies with live, and calls wake
// with each build whose answer has arrived, until ctx ends. observe may be nil.
func NewResolver(ctx context.Context, live client.Reader, dial gitremote.Dial,
	wake func(types.NamespacedName), observe managers.Observe) *Resolver {
	return &Resolver{live: live, dial: dial,
		questions: managers.NewQuestions[Commit](ctx, managers.QuestionOptions{
			Name: "commit", Workers: workers, MostOfOne: workersOfOne, Timeout: serverTimeout,
			Shared: answerKeeps, Wake: wake, Observe: observe,
		})}
}

// Forget drops the question of a build that was deleted or has its run.
func (r *Resolver) Forget(build types.NamespacedName) { r.questions.Forget(build) }

// Resolve answers a question. Without policies, it returns a full SHA unchanged. secret has the
// login of the repository, and may be nil. An answer is kept for inputs until the build is
// forgotten. The errors are those of managers.Questions.
func (r *Resolver) Resolve(b *api.AgentBuild, q Question, secret *corev1.Secret,
	inputs api.Inputs) (Commit, error) {
	if q.Commit == "" && api.IsCommit(q.Revision) { // no Git server is needed
		q.Commit = q.Revision
	}
	if q.Commit != "" && len(q.Policies) == 0 {
		return Commit{SHA: q.Commit}, nil
	}
	key := q.key() + "\n" + b.Spec.Source.RepoUser
	var seen *metav1.ObjectMeta
	if secret != nil {
		seen = &metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name,
			UID: secret.UID, ResourceVersion: secret.ResourceVersion}
		key += "\n" + string(seen.UID) + seen.ResourceVersion
	}
	// A waiting question keeps little in memory: it reads the Secret and the policies when its turn
	// comes. If they have changed, the build asks a new question.
	own := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}}
	own.Spec.Source.RepoUser = b.Spec.Source.RepoUser
	q.Policies = slices.Clone(q.Policies)
	for i := range q.Policies {
		q.Policies[i].files = nil
	}
	build := client.ObjectKeyFromObject(b)
	answer, err := r.questions.Get(build, key, inputs, func(ctx context.Context) (Commit, error) {
		secret, err := unchanged(ctx, r.live, seen)
		if err != nil {
			return Commit{}, err
		}
		again := q
		if again.Policies, err = ReadPolicies(ctx, r.live, own, q.Policies); err != nil {
			return Commit{}, err
		}
		for i, p := range again.Policies {
			if p.Digest != q.Policies[i].Digest {
				return Commit{}, fmt.Errorf("ConfigMap %s has changed", p.Key)
			}
		}
		return ask(ctx, r.dial, own, again, secret)
	})
	var problem *finding.Finding
	if errors.As(err, &problem) { // the question may be that of another build
		mine := *problem
		mine.Place = compose.Place(b).At(mine.Field)
		return Commit{}, &mine
	}
	return answer, err
}

// unchanged reads a Secret, and returns an error if it differs from the version that was seen. It
// returns nil if seen is nil.
func unchanged(ctx context.Context, live client.Reader,
	seen *metav1.ObjectMeta) (*corev1.Secret, error) {
	if seen == nil {
		return nil, nil
	}
	key, secret := client.ObjectKey{Namespace: seen.Namespace, Name: seen.Name}, &corev1.Secret{}
	if err := live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	if secret.UID != seen.UID || secret.ResourceVersion != seen.ResourceVersion {
		return nil, fmt.Errorf("Secret %s has changed", key)
	}
	return secret, nil
}

// These are the fields that findings about a source name.
const (
	repositoryField  = "spec.source.sourceRepository"
	revisionField    = "spec.source.sourceRevision"
	credentialsField = "spec.source.sourceCredentials"
)

// ask lists the references of the repository, picks the one of the revision, and verifies its
// commit.
func ask(ctx context.Context, dial gitremote.Dial, b *api.AgentBuild, q Question,
	secret *corev1.Secret) (Commit, error) {
	repository, err := gitrepo.Parse(q.Repository)
	if err != nil {
		return Commit{}, compose.Place(b).At(repositoryField).Fault(api.ReasonInvalidBuild,
			err.Error(), gitrepo.Hint)
	}
	shown := repository.String()
	endpoint, err := transport.NewEndpoint(shown)
	if err != nil {
		return Commit{}, fmt.Errorf("reading the URL %s: %w", shown, err)
	}
	auth, problem := login(b, endpoint, secret)
	if problem != nil {
		return Commit{}, problem
	}
	temporary := func(err error) error { // a later attempt may succeed
		return fmt.Errorf("asking %s for %q: %s", shown, q.Revision, err.Error())
	}
	connected, err := gitremote.Repository{URL: shown, Auth: auth, Dial: dial}.Connect(ctx)
	if err != nil {
		return Commit{}, cmp.Or(connectFault(b, shown, secret, err), temporary(err))
	}
	server := &server{connected}
	defer func() { _ = server.Close() }()
	out := Commit{SHA: q.Commit}
	if out.SHA == "" {
		if out = pick(server.Refs, q.Revision); out.SHA == "" {
			return Commit{}, noRevision(b, shown, q.Revision, server.Refs)
		}
	}
	out.Verified, err = server.verify(ctx, b, shown, out.SHA, q.Policies, time.Now())
	if err != nil && !errors.As(err, new(*finding.Finding)) {
		return Commit{}, temporary(err)
	}
	return out, err
}

// connectFault returns the finding about a server that could not be reached, or nil if a later
// attempt may succeed.
func connectFault(b *api.AgentBuild, shown string, secret *corev1.Secret, err error) error {
	bad := func(reason, field, message, hint string) error {
		return compose.Place(b).At(field).Fault(reason, message, hint)
	}
	switch {
	case errors.Is(err, gitremote.ErrRefsTooLarge):
		return bad(api.ReasonRevisionNotFound, revisionField,
			fmt.Sprintf("%s has too many references: %v", shown, gitremote.ErrRefsTooLarge),
			"write a full commit SHA, which is not looked up unless a policy checks it")
	case errors.Is(err, gitremote.ErrForbiddenAddress):
		return bad(api.ReasonInvalidBuild, repositoryField,
			shown+" has an address that builds may not ask",
			"use another server, or let the operator allow the network in --git-allow-network of "+
				"the controller")
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return bad(api.ReasonRevisionNotFound, repositoryField, shown+" is an empty repository",
			"push a commit first")
	case errors.Is(err, transport.ErrAuthenticationRequired),
		errors.Is(err, transport.ErrAuthorizationFailed),
		strings.Contains(err.Error(), "unable to authenticate"):
		if secret == nil {
			return bad(api.ReasonRepositoryPrivate, repositoryField,
				shown+" is private or does not exist: the server requires a login",
				"correct the URL, or name a Secret in "+credentialsField)
		}
		return bad(api.ReasonGitAuthInvalid, credentialsField,
			fmt.Sprintf("%s refuses the login of Secret %s", shown, secret.Name),
			"renew the Secret, or set spec.source.repoUser")
	case errors.Is(err, transport.ErrRepositoryNotFound):
		if secret == nil {
			return bad(api.ReasonRepositoryNotFound, repositoryField,
				shown+" does not exist or is private",
				"correct the URL, or name a Secret in "+credentialsField)
		}
		return bad(api.ReasonGitAuthInvalid, repositoryField,
			fmt.Sprintf("%s does not exist, or Secret %s may not read it", shown, secret.Name),
			"correct the URL or the Secret")
	case knownhosts.IsHostKeyChanged(err), knownhosts.IsHostUnknown(err),
		strings.Contains(err.Error(), "knownhosts:"):
		return bad(api.ReasonGitAuthInvalid, credentialsField,
			fmt.Sprintf("the host key of %s is not the one in the Secret's known_hosts", shown),
			"put the server's key there, as ssh-keyscan prints it")
	}
	return nil
}

var shortSHA = regexp.MustCompile(`^[0-9a-f]{4,39}$`)

// noRevision returns the finding about a revision that does not exist. It suggests a similar branch
// or tag, or else the default branch.
func noRevision(b *api.AgentBuild, shown, revision string, refs *packp.AdvRefs) error {
	hint := "use a branch, a tag, a full ref or a full commit SHA"
	if shortSHA.MatchString(revision) {
		hint = "a short SHA cannot be looked up: write the full one"
	}
	if meant := similar(revision, refs); meant != "" {
		hint = fmt.Sprintf("did you mean %s?", meant)
	} else if branch := headOf(refs); branch != "" && len(branch) <= maxShownRef {
		hint += "; the default branch is " +
			text.Printable(strings.TrimPrefix(branch, "refs/heads/"))
	}
	message := fmt.Sprintf("%s has no revision %q", shown, revision)
	return compose.Place(b).At(revisionField).Fault(api.ReasonRevisionNotFound, message, hint)
}

// maxShownRef is the longest name of a server's reference that a finding repeats, in bytes.
const maxShownRef = 100

// similar returns the first branch or tag by name that differs from a revision by a typing error.
// It treats main and master as similar.
func similar(revision string, refs *packp.AdvRefs) (name string) {
	other := map[string]string{"main": "master", "master": "main"}[revision]
	for ref := range refs.References {
		short, branch := strings.CutPrefix(ref, "refs/heads/")
		if !branch {
			short = strings.TrimPrefix(ref, "refs/tags/")
		}
		near := short == other || strings.EqualFold(short, revision) || text.Near(short, revision)
		if len(short) > maxShownRef || short == ref || !near {
			continue
		}
		if name == "" || short < name {
			name = short
		}
	}
	return text.Printable(name)
}

// headOf returns the full name of the default branch, or "" if the server does not report it.
func headOf(refs *packp.AdvRefs) (branch string) {
	for _, target := range refs.Capabilities.Get(capability.SymRef) {
		if name, is := strings.CutPrefix(target, "HEAD:"); is {
			branch = name
		}
	}
	return branch
}

// pick returns the commit of a revision, or the zero value if no reference has its name.
func pick(refs *packp.AdvRefs, revision string) Commit {
	if head := headOf(refs); revision == "HEAD" && head != "" {
		revision = head
	} else if revision == "HEAD" && refs.Head != nil {
		return Commit{SHA: refs.Head.String()}
	}
	revision = strings.TrimSuffix(revision, "^{}")
	for _, name := range []string{revision, "refs/heads/" + revision, "refs/tags/" + revision} {
		hash, ok := refs.Peeled[name]
		if !ok {
			hash, ok = refs.References[name]
		}
		if branch, is := strings.CutPrefix(name, "refs/heads/"); ok && is {
			return Commit{SHA: hash.String(), Branch: branch}
		} else if ok {
			return Commit{SHA: hash.String()}
		}
	}
	return Commit{}
}
