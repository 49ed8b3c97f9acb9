package apply

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
)

// ErrNoInventory says that nothing was applied under this name.
var ErrNoInventory = errors.New("there is no inventory")

// PlanDelete says what Delete would do.
func (c *Cluster) PlanDelete(ctx context.Context, p Package, opt Options) (*Plan, error) {
	_, plan, err := c.beginDelete(ctx, p, opt)
	return plan, err
}

// Delete takes out all objects of a package, and its inventory last. What others
// made again, or what is marked to be kept, stays.
func (c *Cluster) Delete(ctx context.Context, p Package, opt Options) (*Plan, error) {
	c, err := c.session(opt.Tell, nil)
	if err != nil {
		return nil, err
	}
	_, plan, err := exclusively(ctx, func() (*application, *Plan, error) {
		before, known := c.leaseBefore(ctx, p)
		a, plan, err := c.beginDelete(ctx, p, opt)
		if err != nil {
			return nil, nil, err
		}
		a.before, a.beforeKnown = before, known
		if n := plan.Count(Refused); n > 0 {
			return a, plan, fmt.Errorf("nothing was deleted: %d of %d objects cannot be", n, len(plan.Steps))
		}
		return a, plan, nil
	}, (*application).deleteAll)
	return plan, err
}

func (c *Cluster) beginDelete(ctx context.Context, p Package, opt Options) (*application, *Plan, error) {
	if err := p.check(); err != nil {
		return nil, nil, fmt.Errorf("%w\n  hint: `armature inventory -A` lists all", err)
	}
	a := &application{Package: p, Options: opt, cluster: c, last: ownNamespace(p), depends: make(map[ID][]ID),
		mappings: make(map[ID]*meta.RESTMapping), seen: make(map[ID]liveObject)}
	c.kinds.forget()
	var err error
	if a.old, err = c.Inventory(ctx, p); err != nil {
		return nil, nil, err
	}
	if a.old.stored == nil {
		return nil, nil, fmt.Errorf("%w of a package %s\n  hint: `armature inventory -A` lists all", ErrNoInventory, p)
	}
	if err := a.observe(ctx, nil); err != nil {
		return nil, nil, err
	}
	return a, a.plan(), nil
}

// deleteAll keeps the namespace of the inventory until everything else is gone:
// the inventory goes with it.
func (a *application) deleteAll(ctx context.Context, p *Plan) error {
	own := a.last
	a.old.Complete, a.old.Deleting = false, true
	if err := a.cluster.save(ctx, a.old); err != nil {
		return err
	}
	gone, err := a.prune(ctx, p)
	if err != nil {
		return err
	}
	a.old.Entries = a.remaining(p, gone)
	if err := a.cluster.save(ctx, a.old); err != nil {
		return err
	}
	for id := range a.old.Entries {
		if id != own && !a.Wait {
			return nil // it has finalizers; the inventory names it until it is gone
		}
	}
	late, err := a.awaitPruned(ctx, p)
	for _, id := range late {
		delete(a.old.Entries, id)
	}
	if err != nil {
		return errors.Join(err, a.cluster.save(ctx, a.old))
	}
	a.gone = true
	for i := range p.Steps {
		if s := &p.Steps[i]; s.ID == own && s.Action == Prune {
			if _, err := a.cluster.delete(ctx, a.mappings[own], s); err != nil {
				return err
			}
			if a.Wait {
				return a.cluster.awaitGone(ctx, a.mappings[own], s, a.timeout())
			}
			return nil
		}
	}
	return a.cluster.forget(ctx, a.old)
}
