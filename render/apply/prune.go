package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// prune deletes what the plan says, wave by wave from the last. It gives the
// objects that are gone; others have finalizers that take their time. What an object
// depends on is deleted once that object is gone, since it may see to its end.
func (a *application) prune(ctx context.Context, p *Plan) (gone map[ID]bool, err error) {
	gone = make(map[ID]bool)
	byRank := make(map[rank][]*Step)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action == Prune && s.ID != a.last {
			byRank[s.rank] = append(byRank[s.rank], s)
		}
	}
	var lock sync.Mutex
	for _, r := range slices.Backward(slices.SortedFunc(maps.Keys(byRank), rank.compare)) {
		if err := a.awaitDependencies(ctx, p, byRank[r]); err != nil {
			return gone, err
		}
		var failed *multierror.Error
		var group errgroup.Group
		group.SetLimit(parallel)
		for _, s := range byRank[r] {
			group.Go(func() error {
				left, err := a.cluster.delete(ctx, a.mappings[s.ID], s)
				if left && err == nil && s.needs {
					a.tell("waiting until %s is gone", title(s.ID))
					err = a.cluster.awaitGone(ctx, a.mappings[s.ID], s, a.timeout())
					left = err != nil
				}
				lock.Lock()
				defer lock.Unlock()
				gone[s.ID] = err == nil && !left
				failed = multierror.Append(failed, err)
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return gone, err
		}
		if err := failed.ErrorOrNil(); err != nil {
			return gone, err
		}
	}
	return gone, nil
}

// delete one object, if it is still the one that the plan saw. It says whether
// the object is still there.
func (c *Cluster) delete(ctx context.Context, m *meta.RESTMapping, s *Step) (left bool, err error) {
	if err := ctx.Err(); err != nil {
		return true, err
	}
	uid, policy := s.live.GetUID(), metav1.DeletePropagationBackground
	if s.Action == Run {
		policy = metav1.DeletePropagationForeground // its pods end before it runs again
	}
	err = c.at(m, s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &policy})
	switch {
	case apierrors.IsNotFound(err):
		s.Done = s.Action == Prune
		return false, nil
	case apierrors.IsConflict(err):
		s.Action, s.Reason = Skip, "not pruned: somebody else deleted it and made it again"
		return false, nil
	case err != nil:
		return true, fmt.Errorf("deleting %s: %w", title(s.ID), brief{err})
	}
	s.Done = s.Action == Prune
	now, err := c.live(ctx, m, s.ID)
	return now != nil && now.GetUID() == uid, err
}

// remove deletes an object that is to be created again, and waits until it is gone.
func (a *application) remove(ctx context.Context, s *Step) error {
	left, err := a.cluster.delete(ctx, s.want.mapping, s)
	if err != nil || !left {
		return err
	}
	a.tell("waiting until %s is gone", title(s.ID))
	return a.cluster.awaitGone(ctx, s.want.mapping, s, a.timeout())
}

func (c *Cluster) awaitGone(ctx context.Context, m *meta.RESTMapping, s *Step, patience time.Duration) error {
	var finalizers []string
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		now, err := c.live(ctx, m, s.ID)
		if now == nil || err != nil || now.GetUID() != s.live.GetUID() {
			return err == nil, err
		}
		finalizers = now.GetFinalizers()
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until %s is gone (its finalizers are %v): %w", title(s.ID), finalizers, err)
	}
	return nil
}

// awaitPruned waits for pruned objects whose finalizers take their time.
func (a *application) awaitPruned(ctx context.Context, p *Plan) (gone []ID, err error) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if _, left := a.old.Entries[s.ID]; s.Action != Prune || s.ID == a.last || !left {
			continue
		}
		a.tell("waiting until %s is gone", title(s.ID))
		if err := a.cluster.awaitGone(ctx, a.mappings[s.ID], s, a.timeout()); err != nil {
			return gone, err
		}
		gone = append(gone, s.ID)
	}
	return gone, nil
}

// forgetPruned waits for pruned objects and takes them out of the inventory, which
// somebody else may have written in the meantime.
func (a *application) forgetPruned(ctx context.Context, p *Plan) error {
	gone, err := a.awaitPruned(ctx, p)
	if err != nil || len(gone) == 0 {
		return err
	}
	l, _, err := a.cluster.acquire(ctx, a.Package, nil, a.Options)
	if err != nil {
		return err
	}
	defer l.release(ctx)
	c, err := a.cluster.session(a.Tell, l)
	if err != nil {
		return err
	}
	now, err := c.Inventory(ctx, a.Package)
	if err != nil || !now.Exists() {
		return err
	}
	for _, id := range gone {
		if now.Entries[id].UID == a.old.Entries[id].UID {
			delete(now.Entries, id)
		}
	}
	return c.save(ctx, now)
}
