package access

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

// Own returns an Access in which every caller has the rights of the account of cfg, by
// SelfSubjectAccessReview. Only callers with a session of l are admitted.
func Own(cfg *rest.Config, l *Login) (Access, error) {
	c, err := authorizationclient.NewForConfig(cfg)
	if err != nil {
		return Access{}, fmt.Errorf("setting up access: %w", err)
	}
	return Access{Login: l, authz: own{c, cache.NewLRUExpireCache(10000)}}, nil
}

// own authorizes by the rights of this process.
type own struct {
	client  authorizationclient.AuthorizationV1Interface
	answers *cache.LRUExpireCache
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (o own) Authorize(ctx context.Context,
	a authorizer.Attributes) (authorizer.Decision, string, error) {
	attributes := authorizationv1.ResourceAttributes{Verb: a.GetVerb(), Group: a.GetAPIGroup(),
		Version: a.GetAPIVersion(), Resource: a.GetResource(), Subresource: a.GetSubresource(),
		Namespace: a.GetNamespace(), Name: a.GetName()}
	key, err := json.Marshal(attributes)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if allowed, ok := o.answers.Get(string(key)); ok {
		return decision(allowed.(bool)), "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	review := &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes}}
	answer, err := o.client.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	ttl := DenyTTL
	if answer.Status.Allowed {
		ttl = AllowTTL
	}
	o.answers.Add(string(key), answer.Status.Allowed, ttl)
	return decision(answer.Status.Allowed), "", nil
}

func decision(allowed bool) authorizer.Decision {
	if allowed {
		return authorizer.DecisionAllow
	}
	return authorizer.DecisionNoOpinion
}

// Whoami returns the name that Kubernetes has for the account of cfg, or "you" if it does not tell.
func Whoami(ctx context.Context, cfg *rest.Config) (string, error) {
	c, err := authenticationclient.NewForConfig(cfg)
	if err != nil {
		return "", fmt.Errorf("connecting to the cluster: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := c.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return "you", nil
	case err != nil:
		return "", fmt.Errorf("looking up your user in the cluster: %w", err)
	}
	return answer.Status.UserInfo.Username, nil
}
