package serve

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/catalog/store"
)

// Access asks Kubernetes who a caller is and what they may list.
type Access struct {
	authn authenticator.Request
	authz authorizer.Authorizer
}

// How long an answer of Kubernetes is cached. A revoked right ends after this
// time.
const (
	tokenTTL = 30 * time.Second
	allowTTL = 30 * time.Second
	denyTTL  = 10 * time.Second
)

// Kubernetes checks tokens by TokenReview and rights by SubjectAccessReview.
func Kubernetes(cfg *rest.Config) (Access, error) {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return Access{}, fmt.Errorf("setting up access: %w", err)
	}
	backoff := &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 3}
	authn, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous: &apiserver.AnonymousAuthConfig{Enabled: false}, CacheTTL: tokenTTL,
		TokenAccessReviewClient: c.AuthenticationV1(), TokenAccessReviewTimeout: 10 * time.Second, WebhookRetryBackoff: backoff,
	}.New()
	if err != nil {
		return Access{}, fmt.Errorf("setting up authentication: %w", err)
	}
	authz, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: c.AuthorizationV1(), AllowCacheTTL: allowTTL, DenyCacheTTL: denyTTL, WebhookRetryBackoff: backoff,
	}.New()
	if err != nil {
		return Access{}, fmt.Errorf("setting up authorization: %w", err)
	}
	return Access{authn, authz}, nil
}

// cookie holds the token of a person who signed in on the page.
const cookie = "armature-catalog"

// scope of a request's caller, or a problem with status 401.
func (s *Server) scope(r *http.Request) (store.Scope, error) {
	who, err := s.Access.caller(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	places, err := s.Store.Places(ctx)
	if err != nil {
		return nil, err
	}
	return s.Access.scope(r.Context(), who, places)
}

func (a Access) caller(r *http.Request) (user.Info, error) {
	if a.authn == nil {
		return nil, &problem{http.StatusUnauthorized, "nobody is let in: the catalog does not know whom to ask"}
	}
	r = r.Clone(r.Context())
	if c, err := r.Cookie(cookie); err == nil && r.Header.Get("Authorization") == "" && r.Method == http.MethodGet {
		r.Header.Set("Authorization", "Bearer "+c.Value)
	}
	answer, ok, err := a.authn.AuthenticateRequest(r)
	if err != nil || !ok {
		// The error may quote the token.
		if r.Header.Get("Authorization") != "" {
			return nil, &problem{http.StatusUnauthorized, "Kubernetes does not know this token, or it has expired"}
		}
		return nil, &problem{http.StatusUnauthorized, "send a Kubernetes token: Authorization: Bearer …"}
	}
	return answer.User, nil
}

// maxReviews is the maximum number of concurrent reviews for one caller.
const maxReviews = 16

// scope is what a caller may list: a resource as a whole, else in the namespaces
// that have entries of it. Kubernetes' answers are remembered for allowTTL and
// denyTTL.
func (a Access) scope(ctx context.Context, who user.Info, places map[string][]string) (store.Scope, error) {
	out := store.Scope{}
	var mu sync.Mutex
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(maxReviews)
	look := func(resource, namespace string, found func()) {
		group.Go(func() error {
			ok, err := a.mayList(asking, who, resource, namespace)
			mu.Lock()
			defer mu.Unlock()
			if ok && err == nil {
				found()
			}
			return err
		})
	}
	for resource := range places {
		look(resource, "", func() { out[resource] = store.Namespaces{All: true} })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	group, asking = errgroup.WithContext(ctx)
	group.SetLimit(maxReviews)
	whole := maps.Clone(out)
	for resource, namespaces := range places {
		for _, namespace := range namespaces {
			if !whole[resource].All {
				look(resource, namespace, func() {
					out[resource] = store.Namespaces{Names: append(out[resource].Names, namespace)}
				})
			}
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, seen := range out {
		slices.Sort(seen.Names)
	}
	return out, nil
}

func (a Access) mayList(ctx context.Context, who user.Info, resource, namespace string) (bool, error) {
	name, group, _ := strings.Cut(resource, ".")
	decision, _, err := a.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: "list", APIGroup: group, APIVersion: "*", Resource: name, Namespace: namespace, ResourceRequest: true,
	})
	if err != nil && decision != authorizer.DecisionAllow {
		return false, fmt.Errorf("asking whether %s may list %s: %w", who.GetName(), resource, err)
	}
	return decision == authorizer.DecisionAllow, nil
}

type scopeKey struct{}

func withScope(ctx context.Context, scope store.Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, scope)
}

// scopeOf a request; without one nothing is seen.
func scopeOf(ctx context.Context) store.Scope {
	scope, _ := ctx.Value(scopeKey{}).(store.Scope)
	return scope
}
