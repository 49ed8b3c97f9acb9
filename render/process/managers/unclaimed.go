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

// Unclaimed finds objects whose label names a shard without a leader. It runs in the default shard.
type Unclaimed struct {
	process.Options
	// Lease is the name of the lease of the default shard's leader.
	Lease string
	// Kind is the list of the kind to look for.
	Kind client.ObjectList
	// Report writes to the status of an object why it is not reconciled.
	Report func(ctx context.Context, object client.ObjectKey, problem error) error
}

// Setup adds the search to the manager of the default shard, and does nothing in other shards.
func (u Unclaimed) Setup(mgr ctrl.Manager) error {
	if u.Shard.Key == "" || u.Shard.Value != "" || !u.LeaderElection {
		return nil
	}
	u.UnclaimedAfter = cmp.Or(u.UnclaimedAfter, 2*time.Minute)
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(u.UnclaimedAfter):
			}
			if err := u.search(ctx, mgr); err != nil && ctx.Err() == nil {
				u.Log.Error(err, "looking for objects whose shard has no controller")
			}
		}
	}))
}

// search checks all objects that have the label.
func (u Unclaimed) search(ctx context.Context, mgr ctrl.Manager) error {
	gvk, err := mgr.GetClient().GroupVersionKindFor(u.Kind)
	if err != nil {
		return err
	}
	labelled, err := labels.Parse(u.Shard.Key)
	if err != nil {
		return err
	}
	namespaces := u.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	led := make(map[string]bool)
	for _, namespace := range namespaces {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(gvk)
		for more := true; more; more = page.Continue != "" {
			err := mgr.GetAPIReader().List(ctx, page, client.InNamespace(namespace),
				client.MatchingLabelsSelector{Selector: labelled}, client.Limit(500),
				client.Continue(page.Continue))
			if err != nil {
				return err
			}
			for i := range page.Items {
				if err := u.check(ctx, mgr.GetAPIReader(), &page.Items[i], led); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// check reports an object if its shard has no leader. led caches which shards have one.
func (u Unclaimed) check(ctx context.Context, live client.Reader, o client.Object,
	led map[string]bool) error {
	shard := process.Shard{Key: u.Shard.Key, Value: o.GetLabels()[u.Shard.Key]}
	if _, known := led[shard.Value]; !known {
		lease := &coordinationv1.Lease{}
		err := live.Get(ctx, client.ObjectKey{Namespace: u.Namespace, Name: shard.Lease(u.Lease)}, lease)
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		led[shard.Value] = err == nil && shard.Value != "" &&
			lease.Spec.RenewTime != nil && time.Since(lease.Spec.RenewTime.Time) < u.UnclaimedAfter
	}
	if led[shard.Value] {
		return nil
	}
	err := u.Report(ctx, client.ObjectKeyFromObject(o),
		fmt.Errorf("no controller looks after %s=%s\n"+
			"  hint: set this label to a shard that has one, remove it, or start one with --shard",
			shard.Key, shard.Value))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
