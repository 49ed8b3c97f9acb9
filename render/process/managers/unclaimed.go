package managers

import (
	"cmp"
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/armature-dev/armature/render/process"
)

// ReportUnclaimed lets the default shard look for objects whose label names a shard that nobody
// leads: report writes into their status why nothing is done.
func ReportUnclaimed(mgr ctrl.Manager, o process.Options, lease string, all client.ObjectList, report func(context.Context, client.ObjectKey, error) error) error {
	if o.Shard.Key == "" || o.Shard.Value != "" || !o.LeaderElection {
		return nil
	}
	after := cmp.Or(o.UnclaimedAfter, 2*time.Minute)
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(after):
			}
			if err := reportUnclaimed(ctx, mgr, o, lease, all, after, report); err != nil && ctx.Err() == nil {
				o.Log.Error(err, "looking for objects whose shard has no controller")
			}
		}
	}))
}

func reportUnclaimed(ctx context.Context, mgr ctrl.Manager, o process.Options, lease string, all client.ObjectList, after time.Duration, report func(context.Context, client.ObjectKey, error) error) error {
	live, led := mgr.GetAPIReader(), map[string]bool{}
	gvk, err := mgr.GetClient().GroupVersionKindFor(all)
	if err != nil {
		return err
	}
	labelled, err := labels.Parse(o.Shard.Key)
	if err != nil {
		return err
	}
	namespaces := o.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(gvk)
		for more := true; more; more = page.Continue != "" {
			if err := live.List(ctx, page, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: labelled}, client.Limit(500), client.Continue(page.Continue)); err != nil {
				return err
			}
			for i := range page.Items {
				shard := process.Shard{Key: o.Shard.Key, Value: page.Items[i].Labels[o.Shard.Key]}
				if _, known := led[shard.Value]; !known {
					l := &coordinationv1.Lease{}
					err := live.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: shard.Lease(lease)}, l)
					if client.IgnoreNotFound(err) != nil {
						return err
					}
					led[shard.Value] = err == nil && shard.Value != "" && l.Spec.RenewTime != nil && time.Since(l.Spec.RenewTime.Time) < after
				}
				if led[shard.Value] {
					continue
				}
				problem := fmt.Errorf("no controller looks after %s=%s\n  hint: set this label to a shard that has one, remove it, or start one with --shard", shard.Key, shard.Value)
				if err := report(ctx, client.ObjectKeyFromObject(&page.Items[i]), problem); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					return err
				}
			}
		}
	}
	return nil
}
