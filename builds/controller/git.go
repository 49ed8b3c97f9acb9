package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/skeema/knownhosts"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/krm"
)

// gitTimeout bounds one question to a Git server.
const gitTimeout = 20 * time.Second

// resolved is the commit of a revision.
type resolved struct {
	commit string
	branch string // when the revision names one
	// verified are the policies that the commit satisfies, in the order of the demands.
	verified []api.SourceVerification
}

// question about a repository: the commit of its revision, and whether that satisfies
// policies.
type question struct {
	repository, revision string
	// commit where it is known; then only the policies are asked about.
	commit  string
	demands []demand
}

// text of a question: questions that differ have another one.
func (q question) text() string {
	text := q.repository + "\n" + q.revision + "\n" + q.commit
	for _, d := range q.demands {
		text += "\n" + d.name + " " + d.digest
	}
	return text
}

var fullCommit = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// resolve answers a question; without policies a full SHA is used unchanged. The errors are
// those of questions.get.
func (g *resolver) resolve(b *api.AgentBuild, q question, secret *corev1.Secret, fresh bool) (resolved, error) {
	if q.commit == "" && fullCommit.MatchString(q.revision) {
		q.commit = q.revision
	}
	if q.commit != "" && len(q.demands) == 0 {
		return resolved{commit: q.commit}, nil
	}
	text := q.text() + "\n" + b.Spec.Source.RepoUser
	if secret != nil {
		text += "\n" + string(secret.UID) + secret.ResourceVersion
	}
	own := b.DeepCopy() // the reconcile goes on with its own
	answer, err := g.get(client.ObjectKeyFromObject(b), text, fresh, func(ctx context.Context) (resolved, error) {
		return ask(ctx, g.dial, own, q, secret)
	})
	var problem *krm.Finding
	if errors.As(err, &problem) { // asked for another build, perhaps
		mine := *problem
		mine.Place = place(b).At(mine.Field)
		return resolved{}, &mine
	}
	return answer, err
}

// ask a server: list the references of the repository, pick the revision's, and verify
// its commit.
func ask(ctx context.Context, dial Dial, b *api.AgentBuild, q question, secret *corev1.Secret) (resolved, error) {
	bad := func(reason, field, message, hint string) (resolved, error) {
		return resolved{}, place(b).At(field).Fault(reason, message, hint)
	}
	const repo, rev, creds = "spec.source.sourceRepository", "spec.source.sourceRevision", "spec.source.sourceCredentials"
	address, revision := compose.CloneURL(q.repository), q.revision
	endpoint, err := transport.NewEndpoint(address)
	if err != nil {
		return bad(api.ReasonInvalidBuild, repo, fmt.Sprintf("%q is not a Git URL", q.repository), "write it like https://host/path or git@host:path")
	}
	switch endpoint.Protocol {
	case "https", "http", "ssh":
	default:
		return bad(api.ReasonInvalidBuild, repo, fmt.Sprintf("the protocol %q is not supported", endpoint.Protocol), "use https or ssh")
	}
	auth, problem := gitAuth(b, endpoint, secret)
	if problem != nil {
		return resolved{}, problem
	}
	server, err := connect(ctx, dial, endpoint, auth)
	shown := redact(address)
	later := func(err error) error { // it may answer then
		return fmt.Errorf("asking %s for %q: %s", shown, revision, strings.ReplaceAll(err.Error(), address, shown))
	}
	switch {
	case err == nil:
	case errors.Is(err, errRefsTooLarge):
		return bad(api.ReasonRevisionNotFound, rev, fmt.Sprintf("%s has too many references: %v", shown, errRefsTooLarge), "write a full commit SHA, which is not looked up where no policy judges it")
	case errors.Is(err, ErrForbiddenAddress):
		return bad(api.ReasonInvalidBuild, repo, shown+" has an address that builds may not ask", "use another server, or let the operator allow the network in --git-allow-network of the controller")
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return bad(api.ReasonRevisionNotFound, repo, shown+" is an empty repository", "push a commit first")
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed),
		strings.Contains(err.Error(), "unable to authenticate"):
		if secret == nil {
			return bad(api.ReasonRepositoryPrivate, repo, shown+" demands a login", "name a Secret in "+creds)
		}
		return bad(api.ReasonGitAuthInvalid, creds, fmt.Sprintf("%s refuses the login of Secret %s", shown, secret.Name), "renew the Secret, or set spec.source.repoUser")
	case errors.Is(err, transport.ErrRepositoryNotFound):
		if secret == nil {
			return bad(api.ReasonRepositoryPrivate, repo, shown+" does not exist or is private", "correct the URL, or name a Secret in "+creds)
		}
		return bad(api.ReasonGitAuthInvalid, repo, fmt.Sprintf("%s does not exist, or Secret %s may not read it", shown, secret.Name), "correct the URL or the Secret")
	case knownhosts.IsHostKeyChanged(err), knownhosts.IsHostUnknown(err), strings.Contains(err.Error(), "knownhosts:"):
		return bad(api.ReasonGitAuthInvalid, creds, fmt.Sprintf("the host key of %s is not the one in the Secret's known_hosts", shown), "put the server's key there, as ssh-keyscan prints it")
	default:
		return resolved{}, later(err)
	}
	defer func() { _ = server.close() }()
	out := resolved{commit: q.commit}
	if out.commit == "" {
		if out = pick(server.refs, revision); out.commit == "" {
			hint := "use a branch, a tag, a full ref or a full commit SHA"
			if regexp.MustCompile(`^[0-9a-f]{4,39}$`).MatchString(revision) {
				hint = "a short SHA cannot be looked up: write the full one"
			}
			return bad(api.ReasonRevisionNotFound, rev, fmt.Sprintf("%s has no revision %q", shown, revision), hint)
		}
	}
	if out.verified, err = server.verify(ctx, b, shown, out.commit, q.demands, time.Now()); err != nil && !errors.As(err, new(*krm.Finding)) {
		return resolved{}, later(err)
	}
	return out, err
}

// pick the commit of a revision; it is empty where there is none.
func pick(refs *packp.AdvRefs, revision string) resolved {
	head := ""
	for _, target := range refs.Capabilities.Get(capability.SymRef) {
		if name, is := strings.CutPrefix(target, "HEAD:"); is {
			head = name
		}
	}
	if revision == "HEAD" && head != "" {
		revision = head
	}
	find := func(name string) (plumbing.Hash, bool) {
		if tag, is := strings.CutSuffix(name, "^{}"); is {
			hash, ok := refs.Peeled[tag]
			return hash, ok
		}
		if name == "HEAD" && refs.Head != nil {
			return *refs.Head, true
		}
		hash, ok := refs.References[name]
		return hash, ok
	}
	for _, name := range []string{revision + "^{}", revision, "refs/heads/" + revision, "refs/tags/" + revision + "^{}", "refs/tags/" + revision} {
		if hash, ok := find(name); ok {
			out := resolved{commit: hash.String()}
			if branch, is := strings.CutPrefix(name, "refs/heads/"); is {
				out.branch = branch
			}
			return out
		}
	}
	return resolved{}
}

// gitAuth makes the login that a Secret holds. The Secret's text goes nowhere
// else.
func gitAuth(b *api.AgentBuild, endpoint *transport.Endpoint, secret *corev1.Secret) (transport.AuthMethod, *krm.Finding) {
	const field = "spec.source.sourceCredentials.name"
	if endpoint.Protocol == "ssh" {
		if secret == nil {
			return nil, place(b).At("spec.source.sourceCredentials").Fault(api.ReasonRepositoryPrivate, "a repository over SSH needs a Secret",
				"name a Secret of type kubernetes.io/ssh-auth with known_hosts")
		}
		key, hosts := secret.Data[corev1.SSHAuthPrivateKey], secret.Data["known_hosts"]
		if len(key) == 0 || len(hosts) == 0 {
			return nil, place(b).At(field).Fault(api.ReasonSecretInvalid, fmt.Sprintf("Secret %s lacks ssh-privatekey or known_hosts", secret.Name),
				"put the key under ssh-privatekey and the output of ssh-keyscan under known_hosts")
		}
		user := endpoint.User
		if user == "" {
			user = "git"
		}
		auth, err := ssh.NewPublicKeys(user, key, "")
		if err != nil {
			return nil, place(b).At(field).Fault(api.ReasonSecretInvalid, fmt.Sprintf("the ssh-privatekey of Secret %s cannot be read", secret.Name),
				"use a private key without a passphrase")
		}
		known, err := hostKeys(hosts)
		if err != nil {
			return nil, place(b).At(field).Fault(api.ReasonSecretInvalid, fmt.Sprintf("the known_hosts of Secret %s cannot be read", secret.Name),
				"use the output of ssh-keyscan")
		}
		auth.HostKeyCallback = known.HostKeyCallback()
		auth.HostKeyAlgorithms = known.HostKeyAlgorithms(endpoint.Host + ":" + strconv.Itoa(cmp.Or(endpoint.Port, 22)))
		return auth, nil
	}
	if secret == nil {
		return nil, nil
	}
	user, password := b.Spec.Source.RepoUser, string(secret.Data[corev1.BasicAuthPasswordKey])
	if user == "" {
		user = strings.TrimSpace(string(secret.Data[corev1.BasicAuthUsernameKey]))
	}
	if user == "" {
		user = "git"
	}
	if token := secret.Data["token"]; len(token) > 0 {
		password = string(token)
	}
	if password = strings.TrimSpace(password); password == "" {
		return nil, place(b).At(field).Fault(api.ReasonSecretInvalid, fmt.Sprintf("Secret %s has neither a password nor a token", secret.Name),
			"put the token under token, or use a Secret of type kubernetes.io/basic-auth")
	}
	return &http.BasicAuth{Username: user, Password: password}, nil
}

// redact a URL's user and password.
func redact(address string) string {
	if u, err := url.Parse(address); err == nil && u.User != nil {
		u.User = nil
		return u.String()
	}
	return address
}

// hostKeys reads the lines of a known_hosts file. The library reads files only,
// and these lines are not secret.
func hostKeys(lines []byte) (*knownhosts.HostKeyDB, error) {
	file, err := os.CreateTemp("", "known_hosts-")
	if err != nil {
		return nil, err
	}
	_, err = file.Write(lines)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()))
	}
	known, err := ssh.NewKnownHostsDb(file.Name())
	return known, errors.Join(err, os.Remove(file.Name()))
}
