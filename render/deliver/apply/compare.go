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

// compare completes a plan that contains the objects of the package by comparing them with the
// cluster. It writes nothing: conflicts come from a dry run without force.
func compare(ctx context.Context, c *Cluster, p *Plan) (*Plan, error) {
	var err error
	// The inventory is read first, because a later write of another client changes its version.
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
	found, err := findLive(ctx, c, p.Package, p.Steps)
	if err != nil {
		return nil, err
	}
	for _, s := range p.Steps {
		s.seen.live = found[s.ID]
	}
	p.Steps = slices.DeleteFunc(p.Steps,
		func(s *Step) bool { return s.want.author == nil && s.seen.live == nil })
	for _, find := range []func(context.Context, *Cluster, *Plan) error{
		findRetained, findScaled, tryAll} {
		if err := find(ctx, c, p); err != nil {
			return nil, err
		}
	}
	p.decideAll()
	return p, nil
}

// stepsOf returns a step for each object of an inventory. It omits objects whose CRD was deleted,
// since they were deleted with it.
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

// findLive returns the live objects of some steps. It finds objects with the labels of the package
// by one LIST per kind, and the remaining ones by one GET each.
func findLive(ctx context.Context, c *Cluster, p Package, steps []*Step) (map[ID]liveObject, error) {
	kinds := make(map[schema.GroupVersionKind][]string) // the namespaces of each kind
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

// inParallel calls do for each step in parallel. It returns all errors, but starts no further call
// after the API server has failed to answer.
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
				stop() // the remaining requests would fail as well
			}
			return nil
		})
	}
	_ = group.Wait() // failed contains all errors
	return multi.Errors(failed...)
}

// prepare computes the object to send, now that the live object is known. The digest excludes
// fields that are left to other managers, so that an autoscaler does not change it.
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

// tryAll sends a dry run of each object that may change to the API server.
func tryAll(ctx context.Context, c *Cluster, p *Plan) error {
	var changing []*Step
	for _, s := range p.wanted {
		if err := s.prepare(); err != nil {
			return err
		}
		if s.want.later {
			s.dry.untried = "once its CRD is there"
		} else if p.mayChange(s) {
			changing = append(changing, s)
		}
	}
	err := inParallel(ctx, changing, func(ctx context.Context, s *Step) error {
		try(ctx, c, p, s)
		if s.dry.refusal != nil && !answered(s.dry.refusal) {
			return fmt.Errorf("asking about %s: %w", s.Title(), brief{s.dry.refusal})
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	for _, s := range changing {
		if s.dry.refusal != nil {
			if s.dry.untried = p.needs(s); s.dry.untried != "" {
				s.dry.refusal = nil
			}
		}
	}
	return nil
}

// mayChange reports whether an object needs a dry run. If neither the object nor the ownership of
// its fields changed since the last apply, a write would change nothing.
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

// foreign reports whether an object belongs to another package from which it may not be taken.
func (p *Plan) foreign(live liveObject) bool {
	o := owner(live)
	return o != (Package{}) && o != p.Package && !slices.Contains(p.opt.Adopt, o)
}

// try sends a dry run of an object, with force if the user allows it. If a field is immutable, it
// also finds out whether the object could be created again before the existing one is deleted. An
// object whose namespace comes with the package is tried in another namespace. There only an
// invalid object counts as an error, not a forbidden or a missing one.
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
		// These fields are about to become ours, so only another value is a conflict. The API
		// server also reports a conflict between 1000m and 1.
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

// needs returns the reason why a refusal does not count: the package itself provides what the
// object needs, or the API server cannot try the object. It returns "" if the refusal counts.
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
