package git

import (
	"github.com/go-git/go-git/v5/plumbing/transport"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/finding"
)

// login returns the credentials of a Secret. Findings and errors have none of its text.
func login(
	b *api.AgentBuild, endpoint *transport.Endpoint, secret *corev1.Secret,
) (transport.AuthMethod, *finding.Finding) {
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
