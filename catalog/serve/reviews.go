package serve

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/catalog/access"
)

// tokenTTL is how long an answer of Kubernetes about a token is cached.
const tokenTTL = 30 * time.Second

// Kubernetes returns an Access that checks tokens by TokenReview and rights by SubjectAccessReview.
func Kubernetes(cfg *rest.Config) (access.Access, error) {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return access.Access{}, fmt.Errorf("setting up access: %w", err)
	}
	backoff := &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 3}
	authn, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous: &apiserver.AnonymousAuthConfig{Enabled: false}, CacheTTL: tokenTTL,
		TokenAccessReviewClient: c.AuthenticationV1(), TokenAccessReviewTimeout: 10 * time.Second,
		WebhookRetryBackoff: backoff,
	}.New()
	if err != nil {
		return access.Access{}, fmt.Errorf("setting up authentication: %w", err)
	}
	authz, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: c.AuthorizationV1(), AllowCacheTTL: access.AllowTTL,
		DenyCacheTTL: access.DenyTTL, WebhookRetryBackoff: backoff,
	}.New()
	if err != nil {
		return access.Access{}, fmt.Errorf("setting up authorization: %w", err)
	}
	return access.New(authn, authz), nil
}
