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
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/process"
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

// ReadSecret reads a Secret that a field names. One that does not exist, or is not meant for the
// purpose, is a failure with a reason that another Secret ends.
func ReadSecret(ctx context.Context, live client.Reader, key types.NamespacedName, field string,
	purpose compose.Purpose, reason string) (*corev1.Secret, error) {
	var secret corev1.Secret
	switch err := live.Get(ctx, key, &secret); {
	case apierrors.IsNotFound(err):
		return nil, process.Stalled(reason, fmt.Errorf("%s: Secret %s does not exist", field, key))
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	case !purpose.Fits(secret.Type, secret.Labels):
		return nil, process.Stalled(reason,
			fmt.Errorf("%s: Secret %s is not marked for this\n  hint: %s", field, key, purpose.Hint()))
	}
	return &secret, nil
}
