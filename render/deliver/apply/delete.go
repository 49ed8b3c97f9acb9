package apply

import (
	"context"
	"errors"
	"fmt"
)

// ErrNoInventory means that no package with this name was applied.
var ErrNoInventory = errors.New("there is no inventory")

// PlanDelete reports what Delete would do.
func (c *Cluster) PlanDelete(ctx context.Context, p Package, opt Options) (*Plan, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%w\n  hint: `armature status --packages -A` lists all", err)
	}
	plan, err := compare(ctx, c, &Plan{Package: p, opt: opt, deletes: true})
	if err == nil && !plan.old.Exists() {
		return nil, fmt.Errorf(
			"%w of a package %s\n  hint: `armature status --packages -A` lists all", ErrNoInventory, p)
	}
	return plan, err
}

// Delete deletes all objects of a package, and its inventory last. It keeps objects that another
// client recreated or that are marked to be kept.
func (c *Cluster) Delete(ctx context.Context, p Package, opt Options) (*Plan, error) {
	c, err := c.session(ctx, opt.Tell)
	if err != nil {
		return nil, err
	}
	plan, _, err := exclusively(ctx, c, opt,
		func() (*Plan, error) { return c.PlanDelete(ctx, p, opt) })
	return plan, err
}
