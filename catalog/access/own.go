package access

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/catalog/login"
)

// Own rights are those of the account that a configuration signs in as, whoever the caller is:
// they are asked for by SelfSubjectAccessReview. Only sessions of l are let in.
func Own(cfg *rest.Config, l *login.Login) (Access, error) {
	c, err := authorizationclient.NewForConfig(cfg)
	if err != nil {
		return Access{}, fmt.Errorf("setting up access: %w", err)
	}
	return Access{Login: l, authz: own{c, cache.NewLRUExpireCache(10000)}}, nil
}

// own asks what this process may do itself.
type own struct {
	client  authorizationclient.AuthorizationV1Interface
	answers *cache.LRUExpireCache
}

// Authorize as authorizer.UnconditionalAuthorizer.
func (o own) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	attributes := authorizationv1.ResourceAttributes{Verb: a.GetVerb(), Group: a.GetAPIGroup(), Version: a.GetAPIVersion(), Resource: a.GetResource(),
		Subresource: a.GetSubresource(), Namespace: a.GetNamespace(), Name: a.GetName()}
	key, err := json.Marshal(attributes)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if allowed, ok := o.answers.Get(string(key)); ok {
		return decision(allowed.(bool)), "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes}}
	answer, err := o.client.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	ttl := denyTTL
	if answer.Status.Allowed {
		ttl = allowTTL
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
