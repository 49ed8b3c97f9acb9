// Package apply applies the objects of a rendered package to a cluster, and prunes objects that the
// package no longer contains, by server-side apply. Its main steps are propose, exclusively and
// carryOut:
//
//	read     the package: kinds, hooks, order
//	compare  load the inventory; one LIST per kind; a dry run of each object that may have changed.
//	         A conflict or refusal ends the apply here, with nothing written
//	confirm  what is deleted
//	acquire  the lease: no other client applies the package until the second save
//	save     the inventory, as the union of the previous and the desired objects
//	perform  the steps of each rank in parallel: namespaces and CRDs, hooks that run before, the
//	         other stages, pruning in reverse order, and, when all is healthy, hooks that run after
//	save     the inventory, reduced to the existing objects
//	nudge    pods that mount a changed ConfigMap
//	wait     until all objects are healthy
//
// A process that dies at any point leaves an inventory that names at least all objects that it
// created, so that the next apply or delete finishes the work.
package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
	"github.com/armature-dev/armature/render/deliver/health"
)

// Options control an apply or delete. The zero value takes no objects or fields from others.
type Options struct {
	// ForceConflicts names the field managers whose fields may be taken over.
	ForceConflicts []string
	// Adopt names the packages whose objects may be taken over.
	Adopt []Package
	// Recreate deletes and creates objects whose change an immutable field forbids.
	Recreate bool
	// Replace allows a plan that prunes every object that the package had. Such a plan is most
	// likely another package under the same name.
	Replace bool
	// PruneShared allows pruning namespaces and CRDs that hold objects of other packages, which are
	// deleted with them.
	PruneShared bool
	// Wait until all objects are healthy and pruned objects are deleted.
	Wait bool
	// Timeout of each wait; 0 is five minutes.
	Timeout time.Duration
	// HealthChecks decide in place of kstatus whether objects of their kinds are healthy.
	HealthChecks health.Checks
	// Nudge pods that mount a changed ConfigMap, so that they see the change immediately.
	Nudge bool
	// Confirm is called before the first write of a plan that deletes something. Nil agrees to
	// every plan. An error ends the apply.
	Confirm func(*Plan) error
	// Tell receives progress messages from several goroutines. It may be nil. Messages that should
	// be kept begin with "warning: " or "nudged ".
	Tell func(string)
}

func (o Options) tell(format string, args ...any) {
	if o.Tell != nil {
		o.Tell(fmt.Sprintf(format, args...))
	}
}

func (o Options) timeout() time.Duration { return cmp.Or(o.Timeout, 5*time.Minute) }

// ErrRefused means that a plan cannot be carried out and nothing was written. The steps of the plan
// contain the reasons.
var ErrRefused = errors.New("nothing was applied")

// Plan reports what Apply would do. It sends a dry run of every object that would
// be created or changed to the API server.
func (c *Cluster) Plan(ctx context.Context, p Package, objects []Object,
	opt Options) (*Plan, error) {
	c, err := c.session(ctx, nil)
	if err != nil {
		return nil, err
	}
	return propose(ctx, c, p, objects, opt)
}

// Apply applies a package. It returns the plan with what was done, or with what would have been
// done if the error is ErrRefused.
func (c *Cluster) Apply(ctx context.Context, p Package, objects []Object,
	opt Options) (*Plan, error) {
	c, err := c.session(ctx, opt.Tell)
	if err != nil {
		return nil, err
	}
	plan, began, err := exclusively(ctx, c, opt,
		func() (*Plan, error) { return propose(ctx, c, p, objects, opt) })
	if err == nil && opt.Wait {
		began = true
		err = wait(ctx, c, p, plan.applied(), false, opt)
	}
	if began && err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: the next apply finishes the work (%v)", ctx.Err())
	}
	return plan, err
}

func propose(ctx context.Context, c *Cluster, p Package, objects []Object,
	opt Options) (*Plan, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%w\n  hint: choose another with --name", err)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("there are no objects to apply\n  hint: to remove the package, "+
			"run `armature delete %s`", p.Name)
	}
	steps, err := read(ctx, c, p, objects)
	if err != nil {
		return nil, err
	}
	return compare(ctx, c, &Plan{Package: p, Steps: steps, opt: opt})
}

// exclusively acquires the lease of the package and carries out the plan that propose returns. If
// another client wrote between the plan and the lease, it plans again. A plan that writes nothing
// needs no lease.
func exclusively(ctx context.Context, c *Cluster, opt Options,
	propose func() (*Plan, error)) (plan *Plan, began bool, err error) {
	agreed := make(map[ID]bool)
	agrees := func(p *Plan) bool {
		return !slices.ContainsFunc(p.Destructive(), func(s *Step) bool { return !agreed[s.ID] })
	}
	checked := func() (*Plan, error) {
		plan, err := propose()
		if err == nil {
			err = plan.check()
		}
		return plan, err
	}
	for {
		if plan, err = checked(); err != nil || plan.idle() {
			return plan, false, err
		}
		if opt.Confirm != nil && !agrees(plan) {
			if err := opt.Confirm(plan); err != nil {
				return plan, false, err
			}
		}
		for _, s := range plan.Destructive() {
			agreed[s.ID] = true
		}
		// The only write before the lease: the namespace that it and the inventory are in.
		if s := plan.wanted[plan.Package.ownNamespace()]; s != nil && s.Action == Create {
			if err := do(ctx, c, plan, s); err != nil {
				return plan, false, err
			}
		}
		l, err := acquire(ctx, c, plan.Package, opt)
		if err != nil {
			return plan, false, err
		}
		now, err := c.Inventory(ctx, plan.Package)
		if err == nil && (!now.Complete || now.version() != plan.old.version()) {
			if plan, err = checked(); err == nil && !agrees(plan) {
				l.release(false) // others do not have to wait for the user
				continue
			}
		}
		if began = err == nil && !plan.idle(); began {
			c.requests.lease = l
			err = carryOut(ctx, c, plan)
			c.requests.lease = nil
		}
		l.release(plan != nil && plan.deleted)
		return plan, began, err
	}
}

// carryOut carries out a plan, without the final wait. A delete removes the namespace of the
// inventory, and with it the inventory, last; it keeps the inventory while finalizers keep other
// objects.
func carryOut(ctx context.Context, c *Cluster, p *Plan) error {
	p.old.Entries, p.old.Complete, p.old.Deleting = p.union(), false, p.deletes
	if err := save(ctx, c, p.old); err != nil {
		return err
	}
	for _, group := range p.groups() {
		if group[0].rank.stage == home && len(p.remaining()) > 1 {
			break
		}
		if err := perform(ctx, c, p, group); err != nil {
			return err
		}
	}
	p.old.Entries, p.old.Hooks, p.old.Complete = p.remaining(), p.hooksDone(), !p.deletes
	if last := len(p.Steps) - 1; p.deletes &&
		(len(p.old.Entries) == 0 || p.Steps[last].rank.stage == home && p.Steps[last].Done) {
		p.deleted = true
		err := c.client.Delete(ctx, p.old.stored, client.Preconditions{UID: &p.old.stored.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting the inventory of %s: %w", p.Package, brief{err})
		}
		return nil
	}
	if err := save(ctx, c, p.old); err != nil {
		return err
	}
	if p.opt.Nudge && !p.deletes {
		nudge(ctx, c, p)
	}
	return nil
}

// perform carries out the steps of one rank in parallel, as soon as their dependencies are ready.
// It returns when new CRDs are served and hooks have run.
func perform(ctx context.Context, c *Cluster, p *Plan, group []*Step) error {
	work := slices.DeleteFunc(having(group, Create, Change, Recreate, Run, Prune),
		func(s *Step) bool { return s.Done })
	if err := awaitNeeded(ctx, c, p, work); err != nil {
		return err
	}
	var done atomic.Int32
	err := inParallel(ctx, work, func(ctx context.Context, s *Step) error {
		if s.Action == Prune {
			return prune(ctx, c, p.opt, s)
		}
		if err := do(ctx, c, p, s); err != nil {
			return err
		}
		p.opt.tell("applying %s: %d of %d", s.rank.name(), done.Add(1), len(work))
		return nil
	})
	if err != nil {
		return err
	}
	crds := slices.DeleteFunc(having(work, Create, Change),
		func(s *Step) bool { return s.GroupKind != crdKind })
	if err := wait(ctx, c, p.Package, crds, false, p.opt); err != nil {
		return err
	}
	return complete(ctx, c, p, having(work, Run))
}

// awaitNeeded waits until the dependencies of some steps are ready. Hooks that run after the other
// objects depend on the health of all of them.
func awaitNeeded(ctx context.Context, c *Cluster, p *Plan, work []*Step) error {
	var needed []*Step
	var waiting []string
	for _, s := range having(work, Create, Change, Recreate, Run) {
		if s.rank.stage == postHooks {
			return wait(ctx, c, p.Package, p.applied(), false, p.opt)
		}
		for _, id := range s.want.depends {
			needed = append(needed, p.wanted[id])
		}
		if len(s.want.depends) > 0 {
			waiting = append(waiting,
				s.Place()+": "+s.Title()+": not applied, because a dependency is not ready")
		}
	}
	slices.SortFunc(needed, func(x, y *Step) int { return compareIDs(x.ID, y.ID) })
	err := wait(ctx, c, p.Package, slices.Compact(needed), true, p.opt)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return multi.Errors(err, each("", waiting))
}

// union returns the entries of the inventory before the first write: all previous and all desired
// objects. Objects that are recreated lose their UID, because they will get another one.
func (p *Plan) union() map[ID]Entry {
	entries := maps.Clone(p.old.Entries)
	for _, s := range having(p.Steps, Create, Change, Recreate, Run, Unchanged) {
		if s.Action == Unchanged && s.want.hook != nil {
			continue
		}
		e := Entry{ID: s.ID, Version: s.Version}
		if s.seen.live != nil && (s.Action == Change || s.Action == Unchanged) {
			e.UID = s.seen.live.GetUID()
		}
		entries[s.ID] = e
	}
	return entries
}

// remaining returns the entries of the inventory after the steps that were done.
func (p *Plan) remaining() map[ID]Entry {
	entries := make(map[ID]Entry)
	for _, s := range p.Steps {
		e, had := p.old.Entries[s.ID]
		switch {
		case s.want.local != "", s.after.deleted,
			s.want.author == nil && s.Action == Skip && !s.after.stays:
			continue
		case s.want.hook != nil && s.after.written != nil:
			e = Entry{ID: s.ID, Version: s.Version, UID: s.after.written.GetUID()}
		case s.want.author != nil && s.Action != Skip && s.want.hook == nil && s.now() != nil:
			e = Entry{ID: s.ID, Version: s.Version, UID: s.now().GetUID(), Seal: s.seen.seal}
			if s.after.written != nil {
				e.Seal = fields.Seal(s.want.digest, s.after.written)
			}
		case !had:
			continue
		}
		entries[s.ID] = e
	}
	return entries
}
