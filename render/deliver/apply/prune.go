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

// This file handles objects that the inventory has and the package no longer has: findRetained
// lists what pruning them would delete with them, decidePrune decides, rankPruned orders, and prune
// deletes.

// findRetained records which namespaces and CRDs that the package no longer has hold objects of
// other packages, by their inventories. If the user may not list the inventories of all namespaces,
// it reads only those in the namespace to be pruned.
func findRetained(ctx context.Context, c *Cluster, p *Plan) error {
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
				s.seen.retained = append(s.seen.retained, "the inventory of "+v.Package.String())
			}
			for id := range v.Entries {
				if s.GroupKind == namespaceKind && id.Namespace == s.Name ||
					s.GroupKind == crdKind && id.GroupKind == kindOf(s.seen.live) {
					s.seen.retained = append(s.seen.retained, title(id)+" of "+v.Package.String())
				}
			}
		}
		slices.Sort(s.seen.retained)
	}
	return nil
}

// decidePrune returns the action for an object that the inventory has and the package no longer
// has. It is pure. An object that another client created under the same name has another UID, or
// lacks our label, and survives.
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
		s.after.stays = true
		return Skip,
			"not pruned: it contains the inventory of this package, so `armature delete` deletes it"
	case len(s.seen.retained) > 0:
		retained := s.seen.retained
		if len(retained) > 3 {
			retained = append(retained[:3:3], fmt.Sprintf("and %d more", len(retained)-3))
		}
		return Refused, fmt.Sprintf("pruning it would delete objects of other packages: %s; "+
			"allow that with --allow prune-shared", strings.Join(retained, ", "))
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

// prune deletes the object of a step. It waits for finalizers with Options.Wait, and whenever other
// objects have to stay until this one is deleted, because they may have to finalize it.
func prune(ctx context.Context, c *Cluster, opt Options, s *Step) error {
	exists, err := remove(ctx, c, s)
	if err != nil {
		return fmt.Errorf("deleting %s: %w", s.Title(), brief{err})
	}
	if exists && (len(s.want.depends) > 0 || opt.Wait) {
		err = awaitGone(ctx, c, opt, s)
		exists = err != nil
	}
	s.after.deleted = !exists
	return err
}

// remove deletes an object if it is still the one that was planned. It reports whether the object
// still exists.
func remove(ctx context.Context, c *Cluster, s *Step) (exists bool, err error) {
	if err := ctx.Err(); err != nil {
		return true, err
	}
	policy, uid := client.PropagationPolicy(metav1.DeletePropagationBackground), s.seen.live.GetUID()
	if s.Action == Run {
		// The pods end before the hook runs again.
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

// awaitGone waits until a deleted object no longer exists.
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
