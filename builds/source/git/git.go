// Package git finds the commit of a build's revision, and whether the policies for its source
// accept it. Git servers are not trusted: requests run outside of the reconciles, and answers are
// bounded in size and time.
package git

import (
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

// Commit that a revision names.
type Commit struct {
	SHA    string
	Branch string // where the revision names one
	// Verified are the policies that the commit satisfies, in the order of the question.
	Verified []api.SourceVerification
}

// Question about a repository: the commit of its revision, and whether policies accept it.
type Question struct {
	Repository, Revision string
	// Commit, if it is known already; then only the policies are checked.
	Commit   string
	Policies []Policy
	// Rerun is the request to build again, if that is why: an earlier answer does not serve it.
	Rerun string
}

// key of a question: questions that differ have different ones.
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
	// workers ask Git servers at once, and workersOfOne of them for one namespace.
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
func NewResolver(
	ctx context.Context, live client.Reader, dial gitremote.Dial, wake func(types.NamespacedName),
	observe managers.Observe,
) *Resolver {
	return &Resolver{live: live, dial: dial,
		questions: managers.NewQuestions[Commit](ctx, managers.QuestionOptions{
			Name: "commit", Workers: workers, MostOfOne: workersOfOne, Timeout: serverTimeout,
			Shared: answerKeeps, Wake: wake, Observe: observe,
		})}
}

// Forget drops the question of a build that was deleted or has its run.
func (r *Resolver) Forget(build types.NamespacedName) { r.questions.Forget(build) }

// Resolve answers a question; without policies a full SHA is used unchanged. The secret is
// the login of the repository, nil for none. An answer stays for inputs until the build is
// forgotten. The errors are those of managers.Questions.
func (r *Resolver) Resolve(b *api.AgentBuild, q Question, secret *corev1.Secret,
	inputs api.Inputs) (Commit, error) {
	if q.Commit == "" && api.IsCommit(q.Revision) { // which needs no Git server
		q.Commit = q.Revision
	}
	if q.Commit != "" && len(q.Policies) == 0 {
		return Commit{SHA: q.Commit}, nil
	}
	key := q.key() + "\n" + b.Spec.Source.RepoUser
	var asWas *metav1.ObjectMeta
	if secret != nil {
		asWas = &metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name,
			UID: secret.UID, ResourceVersion: secret.ResourceVersion}
		key += "\n" + string(asWas.UID) + asWas.ResourceVersion
	}
	// A waiting question keeps little in memory: it reads Secret and policies when its turn comes.
	// If they have changed, it is another question, which the build asks next.
	own := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}}
	own.Spec.Source.RepoUser = b.Spec.Source.RepoUser
	q.Policies = slices.Clone(q.Policies)
	for i := range q.Policies {
		q.Policies[i].files = nil
	}
	build := client.ObjectKeyFromObject(b)
	answer, err := r.questions.Get(build, key, inputs, func(ctx context.Context) (Commit, error) {
		secret, err := unchanged(ctx, r.live, asWas)
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
	if errors.As(err, &problem) { // asked for another build, perhaps
		mine := *problem
		mine.Place = compose.Place(b).At(mine.Field)
		return Commit{}, &mine
	}
	return answer, err
}

// unchanged reads a Secret, which must be as it was; nil is none.
func unchanged(ctx context.Context, live client.Reader,
	was *metav1.ObjectMeta) (*corev1.Secret, error) {
	if was == nil {
		return nil, nil
	}
	key, secret := types.NamespacedName{Namespace: was.Namespace, Name: was.Name}, &corev1.Secret{}
	if err := live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	if secret.UID != was.UID || secret.ResourceVersion != was.ResourceVersion {
		return nil, fmt.Errorf("Secret %s has changed", key)
	}
	return secret, nil
}

// Fields that the findings of a source name.
const (
	repositoryField  = "spec.source.sourceRepository"
	revisionField    = "spec.source.sourceRevision"
	credentialsField = "spec.source.sourceCredentials"
)

// ask a server: list the references of the repository, pick the revision's, and verify
// its commit.
func ask(
	ctx context.Context, dial gitremote.Dial, b *api.AgentBuild, q Question, secret *corev1.Secret,
) (Commit, error) {
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
	later := func(err error) error { // it may answer then
		return fmt.Errorf("asking %s for %q: %s", shown, q.Revision, err.Error())
	}
	connected, err := gitremote.Repository{URL: shown, Auth: auth, Dial: dial}.Connect(ctx)
	if err != nil {
		if fault := connectFault(b, shown, secret, err); fault != nil {
			return Commit{}, fault
		}
		return Commit{}, later(err)
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
		return Commit{}, later(err)
	}
	return out, err
}

// connectFault returns what a user has to do about a server that could not be reached, or nil if
// it may answer later.
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

// noRevision names the branch or tag that was meant, or else the default branch.
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

// maxShownRef bounds a name of the server's that is repeated, in bytes.
const maxShownRef = 100

// similar returns the branch or tag that differs from a revision by a typing error, the first by
// name. It takes main and master for each other.
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

// headOf returns the full name of the default branch, "" if the server does not say.
func headOf(refs *packp.AdvRefs) (branch string) {
	for _, target := range refs.Capabilities.Get(capability.SymRef) {
		if name, is := strings.CutPrefix(target, "HEAD:"); is {
			branch = name
		}
	}
	return branch
}

// pick the commit of a revision; the zero value if no reference has its name.
func pick(refs *packp.AdvRefs, revision string) (out Commit) {
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
		if ok {
			out.SHA = hash.String()
			if branch, is := strings.CutPrefix(name, "refs/heads/"); is {
				out.Branch = branch
			}
			return out
		}
	}
	return out
}
