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

// followed are the resources that are listed and watched. Without a right to one of them in one
// namespace, a cache of several namespaces would never be complete, and no package of any
// namespace would be rendered.
var followed = []schema.GroupResource{
	{Group: api.GroupVersion.Group, Resource: "renderedsources"},
	{Group: FluxSources.Group, Resource: "externalartifacts"},
	{Group: FluxSources.Group, Resource: "gitrepositories"},
	{Group: FluxSources.Group, Resource: "ocirepositories"},
	{Group: FluxSources.Group, Resource: "buckets"},
}

// errGranted ends a manager that may watch one more namespace.
var errGranted = errors.New("a namespace was granted")

// rightsPeriod is how often the rights in namespaces that were denied are asked for.
const rightsPeriod = 10 * time.Second

// divide namespaces into those that the controller may follow, and the others. It is an
// error if it may follow none of them, since an empty list means all.
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

// lacking returns the first right that the controller does not have in a namespace, "" for none.
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

// awaitRights reports what is missing in namespaces that were denied, to the log and to
// the RenderedSources in there as far as the rights allow. It returns errGranted when one
// of them can be followed.
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

// unclaimed writes to a RenderedSource that its shard has no controller.
func (r *Reconciler) unclaimed(ctx context.Context, key client.ObjectKey, problem error) error {
	source := &api.RenderedSource{}
	if err := r.Live.Get(ctx, key, source); err != nil {
		return err
	}
	return r.finish(ctx, r.Client, source, source.DeepCopy(), process.Stalled(reasonShard, problem))
}

// deny writes to the RenderedSources of a namespace why nothing is published. Errors are
// those of missing rights, which the log has.
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
