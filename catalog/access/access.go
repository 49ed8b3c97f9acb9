// Package access asks Kubernetes who a caller of the catalog is and what they may list.
package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/armature-dev/armature/catalog/store"
)

// Access asks Kubernetes who a caller is and what they may list. Its zero value refuses every
// caller.
type Access struct {
	// Login finds the sessions of callers; nil means that there are none.
	Login *Login

	authn authenticator.Request
	authz authorizer.UnconditionalAuthorizer
}

// How long an answer of Kubernetes about rights is cached. A revoked right ends after this time.
const (
	AllowTTL = 30 * time.Second
	DenyTTL  = 10 * time.Second
)

// New returns an Access that asks authn who a caller is, and authz what they may do.
func New(authn authenticator.Request, authz authorizer.UnconditionalAuthorizer) Access {
	return Access{authn: authn, authz: authz}
}

// Cookie holds the token of a person who signed in on the page.
const Cookie = "armature-catalog"

// Unknown is the error for a caller whom Kubernetes does not know. Its text is for the caller.
type Unknown string

func (u Unknown) Error() string { return string(u) }

// Tokens reports whether callers may send tokens.
func (a Access) Tokens() bool { return a.authn != nil }

// Caller returns the caller of a request. A cookie counts only for requests that change nothing.
func (a Access) Caller(r *http.Request) (user.Info, error) {
	return a.caller(r, r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// Actor returns the caller of a request that may change something. The server has to know that no
// other site made the browser send it.
func (a Access) Actor(r *http.Request) (user.Info, error) { return a.caller(r, true) }

func (a Access) caller(r *http.Request, cookies bool) (user.Info, error) {
	headed := r.Header.Get("Authorization") != ""
	if a.Login != nil && cookies && !headed {
		session, err := a.Login.Who(r)
		if err == nil {
			// Kubernetes adds this group to each caller that it knows.
			return &user.DefaultInfo{Name: session.Name,
				Groups: append(session.Groups, user.AllAuthenticated)}, nil
		}
		if !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
	}
	if a.authn == nil {
		return nil, Unknown("nobody is let in without a session")
	}
	r = r.Clone(r.Context())
	if c, err := r.Cookie(Cookie); err == nil && cookies && !headed {
		r.Header.Set("Authorization", "Bearer "+c.Value)
	}
	answer, ok, err := a.authn.AuthenticateRequest(r)
	if err != nil || !ok {
		// The error may quote the token.
		if r.Header.Get("Authorization") != "" {
			return nil, Unknown("Kubernetes does not know this token, or it has expired")
		}
		return nil, Unknown("send a Kubernetes token: Authorization: Bearer …")
	}
	return answer.User, nil
}

// May reports whether a caller may do something with a resource, such as
// agentbuilds.agent.kagenti.dev or pods/log, in a namespace; "" is all of them. An empty name
// is any object.
func (a Access) May(ctx context.Context, who user.Info,
	verb, resource, namespace, name string) (bool, error) {
	if a.authz == nil {
		return false, Unknown("nobody may do anything")
	}
	plural, group, _ := strings.Cut(resource, ".")
	plural, sub, _ := strings.Cut(plural, "/")
	decision, _, err := a.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: verb, APIGroup: group, APIVersion: "*", Resource: plural, Subresource: sub,
		Namespace: namespace, Name: name, ResourceRequest: true,
	})
	if err != nil && decision != authorizer.DecisionAllow {
		return false, fmt.Errorf("asking whether %s may %s %s: %w", who.GetName(), verb, resource, err)
	}
	return decision == authorizer.DecisionAllow, nil
}

// maxReviews is the maximum number of concurrent reviews for one caller.
const maxReviews = 16

// Scope returns what a caller may list of the given namespaces of each resource: the whole
// resource, or else some of the namespaces. Kubernetes' answers are cached for AllowTTL and
// DenyTTL.
func (a Access) Scope(ctx context.Context, who user.Info,
	places map[string][]string) (store.Scope, error) {
	out := store.Scope{}
	var mu sync.Mutex
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(maxReviews)
	check := func(resource, namespace string, found func()) {
		group.Go(func() error {
			ok, err := a.May(asking, who, "list", resource, namespace, "")
			mu.Lock()
			defer mu.Unlock()
			if ok && err == nil {
				found()
			}
			return err
		})
	}
	for resource := range places {
		check(resource, "", func() { out[resource] = store.Namespaces{All: true} })
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
				check(resource, namespace, func() {
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
