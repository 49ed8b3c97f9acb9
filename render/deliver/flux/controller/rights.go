package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/process"
)

// followed are the resources that are listed and watched. If a right to one of them in one
// namespace is missing, the cache of all namespaces never syncs, and no package is rendered.
var followed = []schema.GroupResource{
	{Group: api.GroupVersion.Group, Resource: "renderedsources"},
	{Group: FluxSources.Group, Resource: "externalartifacts"},
	{Group: FluxSources.Group, Resource: "gitrepositories"},
	{Group: FluxSources.Group, Resource: "ocirepositories"},
	{Group: FluxSources.Group, Resource: "buckets"},
}

// errGranted ends a manager that may watch one more namespace.
var errGranted = errors.New("a namespace was granted")

// rightsPeriod is the interval of checks for the rights in denied namespaces.
const rightsPeriod = 10 * time.Second

// divide divides namespaces into those that the controller may follow and those that are denied. It
// returns an error if all are denied, since an empty list means all namespaces.
func divide(ctx context.Context, c client.Client,
	namespaces []string) (allowed, denied []string, err error) {
	var why []string
	for _, n := range namespaces {
		missing, err := lacking(ctx, c, n)
		switch {
		case err != nil:
			return nil, nil, err
		case missing == "":
			allowed = append(allowed, n)
		default:
			denied, why = append(denied, n), append(why, missing)
		}
	}
	if len(namespaces) > 0 && len(allowed) == 0 {
		return nil, nil, fmt.Errorf("no namespace is left to watch: the controller %s",
			strings.Join(why, "; it "))
	}
	return allowed, denied, nil
}

// lacking returns the first right that the controller lacks in a namespace, or "".
func lacking(ctx context.Context, c client.Client, namespace string) (string, error) {
	for _, r := range followed {
		for _, verb := range []string{"list", "watch"} {
			review := &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: namespace, Verb: verb, Group: r.Group, Resource: r.Resource,
					},
				}}
			if err := c.Create(ctx, review); err != nil {
				return "", fmt.Errorf("asking for the rights in namespace %s: %w", namespace, err)
			}
			if !review.Status.Allowed {
				return fmt.Sprintf("may not %s %s in namespace %s", verb, r, namespace), nil
			}
		}
	}
	return "", nil
}

// awaitRights reports the missing rights in denied namespaces to the log and, as far as the rights
// allow, to their RenderedSources. It returns errGranted when one of the namespaces was granted.
func (r *Reconciler) awaitRights(ctx context.Context, direct client.Client,
	denied []string) error {
	reported := map[string]string{}
	err := wait.PollUntilContextCancel(ctx, rightsPeriod, true,
		func(ctx context.Context) (bool, error) {
			for _, n := range denied {
				missing, err := lacking(ctx, direct, n)
				switch {
				case err != nil && ctx.Err() == nil:
					r.Log.Error(err, "a namespace is left out", "namespace", n)
				case err == nil && missing == "":
					return false, errGranted
				case err == nil:
					if reported[n] != missing {
						r.Log.Error(errors.New(missing), "a namespace is left out: apply its "+
							"Role, as armature install --scope namespaced --watch prints it",
							"namespace", n)
						reported[n] = missing
					}
					r.deny(ctx, direct, n, missing)
				}
			}
			return false, nil
		})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// unclaimed reports in a RenderedSource that its shard has no controller.
func (r *Reconciler) unclaimed(ctx context.Context, key client.ObjectKey, problem error) error {
	source := &api.RenderedSource{}
	if err := r.Live.Get(ctx, key, source); err != nil {
		return err
	}
	return r.finish(ctx, r.Client, source, source.DeepCopy(), process.Stalled(reasonShard, problem))
}

// deny reports in the RenderedSources of a namespace why nothing is published. It ignores errors,
// which are those of missing rights, because the log has them.
func (r *Reconciler) deny(ctx context.Context, direct client.Client, namespace, missing string) {
	var all api.RenderedSourceList
	if err := direct.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return
	}
	for i := range all.Items {
		source := &all.Items[i]
		if source.Spec.Suspend || !r.Shard.Has(source) || !source.DeletionTimestamp.IsZero() {
			continue
		}
		err := fmt.Errorf("the controller %s: its operator applies the Role for this namespace", missing)
		_ = r.finish(ctx, direct, source, source.DeepCopy(), process.Retry(reasonAccessDenied, err))
	}
}
