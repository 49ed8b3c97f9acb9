package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	poll "k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// This file is what becomes of an object that the inventory has and the package no longer
// has: findHeld asks what would go with it, decidePrune decides, rankPruned orders, and prune
// deletes.

// findHeld notes which namespaces and CRDs that the package has no more hold objects
// of other packages, by their inventories. Of a namespace these are listed in it alone
// where that is not allowed everywhere.
func findHeld(ctx context.Context, c *Cluster, p *Plan) error {
	for _, s := range p.Steps {
		if s.want.author != nil || s.GroupKind != namespaceKind && s.GroupKind != crdKind ||
			p.opt.PruneShared {
			continue
		}
		all, err := c.Inventories(ctx, "")
		if apierrors.IsForbidden(err) && s.GroupKind == namespaceKind {
			all, err = c.Inventories(ctx, s.Name)
		}
		if err != nil && all == nil {
			return fmt.Errorf(
				"looking for what goes with %s: %w\n  hint: --allow prune-shared does not look",
				s.Title(), err)
		}
		for _, v := range all {
			if v.Package == p.Package {
				continue
			}
			if s.GroupKind == namespaceKind && v.Namespace == s.Name {
				s.seen.held = append(s.seen.held, "the inventory of "+v.Package.String())
			}
			for id := range v.Entries {
				if s.GroupKind == namespaceKind && id.Namespace == s.Name ||
					s.GroupKind == crdKind && id.GroupKind == kindOf(s.seen.live) {
					s.seen.held = append(s.seen.held, title(id)+" of "+v.Package.String())
				}
			}
		}
		slices.Sort(s.seen.held)
	}
	return nil
}

// decidePrune is pure: what to do about an object that the inventory has and the
// package no longer has. An object that somebody else made under the same name has
// another UID, or no label of ours, and survives.
func (p *Plan) decidePrune(s *Step) (Action, string) {
	policy, err := policyOf(s.seen.live)
	uid := p.old.Entries[s.ID].UID
	switch {
	case owner(s.seen.live) != p.Package:
		return Skip, "not pruned: it no longer has the labels of this package"
	case uid != "" && uid != s.seen.live.GetUID():
		return Skip, "not pruned: another client deleted and recreated it"
	case uid == "" && fields.Of(s.seen.live, fields.Ours) == nil:
		return Skip, "not pruned: it was not made by armature"
	case err != nil:
		return Skip, "not pruned: " + err.Error()
	case policy.keep:
		return Skip, "not pruned: its annotations keep it"
	case s.ID == p.Package.ownNamespace() && !p.deletes:
		s.after.ours = true
		return Skip,
			"not pruned: it contains the inventory of this package, so `armature delete` deletes it"
	case len(s.seen.held) > 0:
		held := s.seen.held
		if len(held) > 3 {
			held = append(held[:3:3], fmt.Sprintf("and %d more", len(held)-3))
		}
		return Refused, fmt.Sprintf("pruning it would delete objects of other packages: %s; "+
			"allow that with --allow prune-shared", strings.Join(held, ", "))
	}
	return Prune, ""
}

// rankPruned orders pruned objects by the dependencies of the live objects, in reverse.
// Dependencies that cannot be read, or that close a cycle, are ignored. A delete prunes the
// namespace of the inventory last.
func (p *Plan) rankPruned() {
	steps := make(map[ID]*Step)
	for _, s := range p.Steps {
		if s.want.author == nil {
			steps[s.ID] = s
		}
	}
	for _, s := range steps {
		if all, err := parseDependencies(s.seen.live.GetAnnotations()[dependsOn]); err == nil &&
			s.Action == Prune && stageOf(s.GroupKind) > 0 {
			s.want.depends = slices.DeleteFunc(all, func(id ID) bool {
				return id == s.ID || steps[id] == nil || steps[id].Action != Prune
			})
		}
	}
	rankAll(steps)
	for _, s := range steps {
		s.rank = rank{pruned - s.rank.stage, -s.rank.wave}
		if s.ID == p.Package.ownNamespace() && p.deletes {
			s.rank = rank{stage: home}
		}
	}
}

// prune deletes the object of a step. With Options.Wait it waits for finalizers, and also if
// other objects have to stay until it is gone, because they may have to finalize it.
func prune(ctx context.Context, c *Cluster, opt Options, s *Step) error {
	left, err := remove(ctx, c, s)
	if err != nil {
		return fmt.Errorf("deleting %s: %w", s.Title(), brief{err})
	}
	if left && (len(s.want.depends) > 0 || opt.Wait) {
		err = awaitGone(ctx, c, opt, s)
		left = err != nil
	}
	s.after.gone = !left
	return err
}

// remove deletes an object if it is still the one that the plan saw. It reports whether the
// object is still there.
func remove(ctx context.Context, c *Cluster, s *Step) (left bool, err error) {
	if err := ctx.Err(); err != nil {
		return true, err
	}
	policy, uid := client.PropagationPolicy(metav1.DeletePropagationBackground), s.seen.live.GetUID()
	if s.Action == Run {
		// its pods end before it runs again
		policy = client.PropagationPolicy(metav1.DeletePropagationForeground)
	}
	err = c.client.Delete(ctx, s.seen.live, policy, client.Preconditions{UID: &uid})
	switch {
	case apierrors.IsConflict(err):
		s.Action, s.Reason = Skip, "not pruned: another client deleted and recreated it"
		return false, nil
	case err != nil && !apierrors.IsNotFound(err):
		return true, err
	}
	s.Done = s.Action == Prune
	if err != nil {
		return false, nil
	}
	now, err := c.get(ctx, s.seen.live.GroupVersionKind(), s.ID)
	return now != nil && now.GetUID() == s.seen.live.GetUID(), err
}

// awaitGone waits until an object that was deleted is gone.
func awaitGone(ctx context.Context, c *Cluster, opt Options, s *Step) error {
	opt.tell("waiting until %s is gone", s.Title())
	var finalizers []string
	err := poll.PollUntilContextTimeout(ctx, 200*time.Millisecond, opt.timeout(), true,
		func(ctx context.Context) (bool, error) {
			now, err := c.get(ctx, s.seen.live.GroupVersionKind(), s.ID)
			if now == nil || err != nil || now.GetUID() != s.seen.live.GetUID() {
				return err == nil, err
			}
			finalizers = now.GetFinalizers()
			return false, nil
		})
	if err != nil {
		return fmt.Errorf("waiting until %s is gone (its finalizers are %v): %w", s.Title(),
			finalizers, err)
	}
	return nil
}
