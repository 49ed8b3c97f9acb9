package git

import (
	"context"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing/transport"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/gitrepo"
	"github.com/armature-dev/armature/render/process"
)

// Access opens repositories and forges with the Secrets of tenants, for the controllers of
// triggers, reports and ImageUpdates.
type Access struct {
	process.Options
	// Live reads from the API server.
	Live client.Reader
	// Dial opens connections to Git servers; see gitremote.Dial.
	Dial gitremote.Dial
	// Forges opens the APIs of forges.
	Forges *forge.Clients
	// PlainHTTP lists hosts that a login is sent to over http as well.
	PlainHTTP []string
	// Group is the API group of AgentBuild. FieldOwner is the field manager of writes.
	Group, FieldOwner string
	// Traces records the traces of builds. It may be nil.
	Traces *traces.Tracer
}

// Login says how a repository is opened.
type Login struct {
	Repository string
	// Secret has the login. If it has no name, there is none. Field is the field that names it.
	Secret types.NamespacedName
	Field  string
	// User of a token; see gitremote.Login.
	User string
	// Write requests a token of a GitHub App that may push.
	Write bool
	// Reason of a failure that lasts until the spec or the Secret changes.
	Reason string
}

func (l Login) stalled(format string, args ...any) error {
	return process.Stalled(l.Reason, fmt.Errorf(format, args...))
}

// Open returns a repository with its login.
func (a Access) Open(ctx context.Context, l Login) (to gitremote.Repository, _ error) {
	parsed, err := gitrepo.Parse(l.Repository)
	if err != nil {
		return to, l.stalled("%w\n  hint: %s", err, gitrepo.Hint)
	}
	to = gitremote.Repository{URL: parsed.String(), Dial: a.Dial}
	endpoint, err := transport.NewEndpoint(to.URL)
	if err != nil || l.Secret.Name == "" {
		return to, err
	}
	secret, err := a.Secret(ctx, l, compose.PurposeGit)
	if err != nil {
		return to, err
	}
	data, unfit := gitremote.Take(secret, to.URL, a.PlainHTTP)
	if unfit != nil {
		return to, l.stalled("%s: %w", l.Field, unfit)
	}
	if app, err := forge.CredentialOf(l.Secret.Namespace, data); err == nil && app.App != nil {
		token, err := a.Forges.GitToken(ctx, to.URL, app, l.Write)
		if err != nil {
			return to, err
		}
		data = map[string][]byte{corev1.BasicAuthUsernameKey: []byte("x-access-token"),
			corev1.BasicAuthPasswordKey: []byte(token)}
	}
	if to.Auth, unfit = gitremote.Login(endpoint, l.User, secret.Name, data); unfit != nil {
		return to, l.stalled("%s: %w", l.Field, unfit)
	}
	return to, nil
}

// Forge opens the API of a repository's server. kind is its kind, and field the field that names
// the kind.
func (a Access) Forge(ctx context.Context, field, kind string, l Login) (forge.Forge, error) {
	secret, err := a.Secret(ctx, l, compose.PurposeGit)
	if err != nil {
		return nil, err
	}
	if _, unfit := gitremote.MayHave(secret, l.Repository); unfit != nil {
		return nil, l.stalled("%s: %w", l.Field, unfit)
	}
	login, err := forge.CredentialOf(l.Secret.Namespace, secret.Data) // it is sent only over https
	if err != nil {
		return nil, l.stalled("%s: Secret %s: %w", l.Field, l.Secret, err)
	}
	f, err := a.Forges.Open(kind, l.Repository, login)
	if err != nil {
		return nil, l.stalled("%s: %w", field, err)
	}
	return f, nil
}

// Secret reads the Secret of a login. If it does not exist or is not marked for the purpose, the
// failure is stalled.
func (a Access) Secret(ctx context.Context, l Login,
	purpose compose.Purpose) (*corev1.Secret, error) {
	var secret corev1.Secret
	switch err := a.Live.Get(ctx, l.Secret, &secret); {
	case apierrors.IsNotFound(err):
		return nil, l.stalled("%s: Secret %s does not exist", l.Field, l.Secret)
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", l.Secret, err)
	case !purpose.Fits(secret.Type, secret.Labels):
		return nil, l.stalled("%s: Secret %s is not marked for this\n  hint: %s", l.Field,
			l.Secret, purpose.Hint())
	}
	return &secret, nil
}

// login returns the credentials in a Secret. Findings and errors repeat no text of it.
func login(b *api.AgentBuild, endpoint *transport.Endpoint,
	secret *corev1.Secret) (transport.AuthMethod, *finding.Finding) {
	at := compose.Place(b).At(credentialsField)
	if secret == nil && endpoint.Protocol == "ssh" {
		return nil, at.Fault(api.ReasonRepositoryPrivate, "a repository over SSH needs a Secret",
			"name a Secret of type kubernetes.io/ssh-auth with known_hosts")
	}
	if secret == nil {
		return nil, nil
	}
	auth, unfit := gitremote.Login(endpoint, b.Spec.Source.RepoUser, secret.Name, secret.Data)
	if unfit != nil {
		at = compose.Place(b).At(credentialsField + ".name")
		return nil, at.Fault(api.ReasonSecretInvalid, unfit.Message, unfit.Hint)
	}
	return auth, nil
}
