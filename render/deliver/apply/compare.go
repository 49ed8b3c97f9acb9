package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fluxcd/cli-utils/pkg/object"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// compare completes a plan that has the objects of the package: it asks the cluster what
// an apply would change. It writes nothing: the API server says by a dry run without
// force what would be a conflict.
func compare(ctx context.Context, c *Cluster, p *Plan) (*Plan, error) {
	var err error
	// first: a later write by others changes its version
	if p.old, err = c.Inventory(ctx, p.Package); err != nil {
		return nil, err
	}
	p.wanted = make(map[ID]*Step)
	for _, s := range p.Steps {
		if s.want.local == "" {
			p.wanted[s.ID] = s
		}
	}
	former, err := stepsOf(ctx, c, p.old.Entries)
	if err != nil {
		return nil, err
	}
	p.Steps = append(p.Steps,
		slices.DeleteFunc(former, func(s *Step) bool { return p.wanted[s.ID] != nil })...)
	found, err := look(ctx, c, p.Package, p.Steps)
	if err != nil {
		return nil, err
	}
	for _, s := range p.Steps {
		s.seen.live = found[s.ID]
	}
	p.Steps = slices.DeleteFunc(p.Steps,
		func(s *Step) bool { return s.want.author == nil && s.seen.live == nil })
	for _, find := range []func(context.Context, *Cluster, *Plan) error{
		findHeld, findScaled, tryAll} {
		if err := find(ctx, c, p); err != nil {
			return nil, err
		}
	}
	p.decideAll()
	return p, nil
}

// stepsOf returns the objects of an inventory. It omits those whose CRD was deleted, since they
// were deleted with it.
func stepsOf(ctx context.Context, c *Cluster, entries map[ID]Entry) (steps []*Step, err error) {
	for _, e := range inOrder(entries) {
		m, err := c.served(e.GroupKind.WithVersion(e.Version))
		if err == nil {
			steps = append(steps,
				&Step{ID: e.ID, Version: e.Version, seen: observed{reads: m.GroupVersionKind}})
		} else if !errors.Is(err, errNotServed) {
			return nil, fmt.Errorf("looking for %s: %w", title(e.ID), err)
		}
	}
	return steps, nil
}

// look finds the live objects of some steps: those that carry the package's labels by one
// LIST for each kind, and the others one by one.
func look(ctx context.Context, c *Cluster, p Package, steps []*Step) (map[ID]liveObject, error) {
	kinds := make(map[schema.GroupVersionKind][]string) // their namespaces
	for _, s := range steps {
		if in := kinds[s.seen.reads]; s.seen.reads.Kind != "" && !slices.Contains(in, s.Namespace) {
			kinds[s.seen.reads] = append(in, s.Namespace)
		}
	}
	found := make(map[ID]liveObject)
	var lock sync.Mutex
	group, listing := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for gvk, namespaces := range kinds {
		group.Go(func() error {
			labelled, err := c.list(listing, gvk, namespaces, client.MatchingLabels(p.Labels()))
			lock.Lock()
			defer lock.Unlock()
			for i := range labelled {
				found[object.UnstructuredToObjMetadata(&labelled[i])] = &labelled[i]
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	missing := slices.DeleteFunc(slices.Clone(steps), func(s *Step) bool {
		return found[s.ID] != nil || s.seen.reads.Kind == ""
	})
	return found, inParallel(ctx, missing, func(ctx context.Context, s *Step) error {
		u, err := c.get(ctx, s.seen.reads, s.ID)
		if u != nil {
			lock.Lock()
			defer lock.Unlock()
			found[s.ID] = u
		}
		return err
	})
}

// inParallel does something to each of some steps. All that fails is reported, but
// nothing more is sent to an API server that does not answer.
func inParallel(ctx context.Context, steps []*Step, do func(context.Context, *Step) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var failed []error
	var lock sync.Mutex
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, s := range steps {
		group.Go(func() error {
			err := do(ctx, s)
			lock.Lock()
			defer lock.Unlock()
			if err != nil && (ctx.Err() == nil || len(failed) == 0) {
				failed = append(failed, err)
			}
			if err != nil && !answered(err) {
				stop() // the others would fail as well
			}
			return nil
		})
	}
	_ = group.Wait() // failed has all
	return multi.Errors(failed...)
}

// prepare settles what is sent, now that the live object is known. The digest is
// of the author's object without what is left to others, so that it does not move
// with an autoscaler.
func (s *Step) prepare() error {
	var ignored [][]string
	if s.want.policy, s.want.bad = policyOf(s.want.author); s.want.bad == nil {
		ignored, s.want.bad = fields.Ignored(s.want.author)
	}
	if s.seen.scaled {
		ignored = append(ignored, []string{"spec", "replicas"})
	}
	s.seen.former = fields.ClientSide(s.seen.live)
	without := s.want.author
	if len(ignored) > 0 {
		without = s.want.author.DeepCopy()
		fields.Leave(without, nil, nil, ignored)
		if s.seen.live != nil {
			s.want.body = s.want.author.DeepCopy()
			fields.Leave(s.want.body, s.seen.live, func(manager, operation string) bool {
				return fields.Ours(manager, operation) ||
					s.seen.former.Has(manager) && operation == fields.Update
			}, ignored)
		}
	}
	var err error
	s.want.digest, err = fields.DigestOf(without)
	s.seen.seal = fields.Seal(s.want.digest, s.seen.live)
	return err
}

// tryAll asks the API server, by a dry run, for each object that may change.
func tryAll(ctx context.Context, c *Cluster, p *Plan) error {
	var some []*Step
	for _, s := range p.wanted {
		if err := s.prepare(); err != nil {
			return err
		}
		if s.want.later {
			s.dry.untried = "once its CRD is there"
		} else if p.mayChange(s) {
			some = append(some, s)
		}
	}
	err := inParallel(ctx, some, func(ctx context.Context, s *Step) error {
		try(ctx, c, p, s)
		if s.dry.refusal != nil && !answered(s.dry.refusal) {
			return fmt.Errorf("asking about %s: %w", s.Title(), brief{s.dry.refusal})
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	for _, s := range some {
		if s.dry.refusal != nil {
			if s.dry.untried = p.needs(s); s.dry.untried != "" {
				s.dry.refusal = nil
			}
		}
	}
	return nil
}

// mayChange reports whether to ask about an object. Where neither it nor who owns its
// fields changed since the last apply, a write would change nothing.
func (p *Plan) mayChange(s *Step) bool {
	switch {
	case s.want.policy.ignore, s.want.bad != nil:
		return false
	case s.seen.live == nil, s.want.hook != nil:
		return true
	case s.want.policy.ifNotPresent, p.foreign(s.seen.live),
		s.seen.live.GetDeletionTimestamp() != nil:
		return false
	}
	e := p.old.Entries[s.ID]
	return len(s.seen.former) > 0 || e.Seal == "" || e.Seal != s.seen.seal ||
		e.UID != s.seen.live.GetUID()
}

// foreign reports whether an object belongs to another package that we may not
// take it from.
func (p *Plan) foreign(live liveObject) bool {
	o := owner(live)
	return o != (Package{}) && o != p.Package && !slices.Contains(p.opt.Adopt, o)
}

// try is a dry run of an object, with force where the user allows it. Where a field of
// it is immutable, it also finds out whether the object could be created again, before
// anybody deletes it. An object whose namespace comes with the package is tried in
// another one, where it can only be wrong by itself: what is forbidden or missing there
// does not count.
func try(ctx context.Context, c *Cluster, p *Plan, s *Step) {
	home := p.wanted[ID{Name: s.Namespace, GroupKind: namespaceKind}]
	switch {
	case home != nil && home.seen.live == nil:
		s.dry.refusal = tryUnder(ctx, c, s, metav1.NamespaceDefault)
		if answered(s.dry.refusal) && !apierrors.IsInvalid(s.dry.refusal) &&
			!apierrors.IsBadRequest(s.dry.refusal) &&
			!strings.Contains(s.dry.refusal.Error(), badPatch) {
			s.dry.refusal = nil
		}
		return
	case s.want.hook != nil:
		s.dry.refusal = tryUnder(ctx, c, s, s.Namespace)
		return
	}
	s.dry.force, s.dry.taken = false, nil
	s.dry.object, s.dry.refusal = submit(ctx, c, s.want.body, false, client.DryRunAll)
	if p.mayForce(s) {
		s.dry.force, s.dry.taken = true, conflictsOf(s.dry.refusal)
		s.dry.object, s.dry.refusal = submit(ctx, c, s.want.body, true, client.DryRunAll)
	}
	if immutable(s.dry.refusal) && !precious(s.ID) {
		s.dry.fits = tryUnder(ctx, c, s, s.Namespace) == nil
	}
	conflicts := conflictsOf(s.dry.refusal)
	if len(conflicts) > 0 && !slices.ContainsFunc(conflicts,
		func(f FieldConflict) bool { return !s.seen.former.Has(f.Manager) }) {
		// These fields are about to be ours, so that only another value is a conflict:
		// the API server calls 1000m and 1 one as well.
		if trial, err := submit(ctx, c, s.want.body, true, client.DryRunAll); err == nil &&
			fields.EqualButLabels(s.seen.live, trial) {
			s.dry.object, s.dry.refusal = trial, nil
		}
	}
}

// tryUnder creates the object under another name, in a dry run.
func tryUnder(ctx context.Context, c *Cluster, s *Step, namespace string) error {
	const suffix = "-armature-try"
	probe := s.want.author.DeepCopy()
	probe.SetName(s.Name[:min(len(s.Name), 63-len(suffix))] + suffix)
	probe.SetNamespace(namespace)
	_, err := submit(ctx, c, probe, false, client.DryRunAll)
	return err
}

// needs says why a refusal does not count: because the package itself brings what
// the object needs, or because the API server cannot try it. "" where it counts.
func (p *Plan) needs(s *Step) string {
	if apierrors.IsBadRequest(s.dry.refusal) &&
		strings.Contains(s.dry.refusal.Error(), "does not support dry run") {
		return "not checked in advance: a webhook does not support dry runs"
	}
	for _, other := range p.wanted {
		defines := other.GroupKind == crdKind && kindOf(other.want.body) == s.GroupKind
		switch {
		case other.want.later, other.want.hook != nil:
		case defines &&
			(other.seen.live == nil ||
				other.dry.object != nil && !fields.Equal(other.seen.live, other.dry.object)),
			other.seen.live == nil && other.rank.compare(s.rank) < 0 && missing(s.dry.refusal) &&
				strings.Contains(s.dry.refusal.Error(), other.Name):
			return "not checked in advance: " + other.Title() + " comes with it"
		}
	}
	return ""
}

// missing reports whether a refusal is about an object that does not exist, which admission
// plugins report as forbidden.
func missing(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}
