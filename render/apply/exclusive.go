package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// exclusively carries out what propose plans, with the lease of the package. Where
// somebody else wrote between the plan and the lease, the plan is made again with
// it. A plan that writes nothing needs none.
func exclusively(ctx context.Context, propose func() (*application, *Plan, error), carryOut func(*application, context.Context, *Plan) error) (*application, *Plan, error) {
	agreed := make(map[ID]bool)
	for {
		a, plan, err := propose()
		if err != nil || a.idle(plan) {
			return a, plan, err
		}
		if err := a.agree(plan, agreed); err != nil {
			return a, plan, err
		}
		existed, err := a.makeOwnNamespace(ctx, plan)
		if err != nil {
			return a, plan, err
		}
		l, untouched, err := a.cluster.acquire(ctx, a.Package, a.before, a.Options)
		if err != nil {
			return a, plan, err
		}
		if !untouched || !a.beforeKnown || existed {
			made := a.made
			a, plan, err = propose()
			switch {
			case err != nil, a.idle(plan):
				l.release(ctx)
				return a, plan, err
			case !agrees(plan, agreed):
				l.release(ctx) // others do not have to wait for the user
				continue
			}
			a.made = made
		}
		outside := a.cluster
		if a.cluster, err = a.cluster.session(a.Tell, l); err == nil {
			err = carryOut(a, ctx, plan)
		}
		a.cluster = outside
		if a.gone {
			l.remove(ctx)
		} else {
			l.release(ctx)
		}
		return a, plan, err
	}
}

// agree asks for what a plan deletes, once.
func (a *application) agree(p *Plan, agreed map[ID]bool) error {
	if a.Confirm != nil && (len(agreed) == 0 || !agrees(p, agreed)) {
		if err := a.Confirm(p); err != nil {
			return err
		}
	}
	for _, s := range p.Destructive() {
		agreed[s.ID] = true
	}
	return nil
}

// agrees reports whether a plan deletes nothing that was not agreed to.
func agrees(p *Plan, agreed map[ID]bool) bool {
	return !slices.ContainsFunc(p.Destructive(), func(s Step) bool { return !agreed[s.ID] })
}

// idle reports whether a plan leaves the cluster and the inventory as they are.
func (a *application) idle(p *Plan) bool {
	if a.last != (ID{}) {
		return false // a delete takes out the inventory at least
	}
	if slices.ContainsFunc(p.Steps, Step.changes) {
		return false
	}
	return a.old.stored != nil && a.old.Complete && maps.Equal(a.remaining(p, nil), a.old.Entries) && maps.Equal(a.hooksDone(), a.old.Hooks)
}

// ownNamespace is the namespace that the inventory is in.
func ownNamespace(p Package) ID { return ID{Name: p.Namespace, GroupKind: namespaceKind} }

// makeOwnNamespace creates the namespace that the inventory and the lease are in,
// where it comes with the package: the only write before the lease. It says whether
// somebody else was faster.
func (a *application) makeOwnNamespace(ctx context.Context, p *Plan) (existed bool, err error) {
	if !slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Action == Create && s.ID == ownNamespace(a.Package) }) {
		return false, nil
	}
	labels := make(map[string]any)
	for k, v := range a.Labels() {
		labels[k] = v
	}
	bare := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": a.Namespace, "labels": labels}}}
	_, err = a.cluster.dynamic.Resource(namespaces).Create(ctx, bare, metav1.CreateOptions{FieldManager: FieldManager})
	if apierrors.IsAlreadyExists(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("creating namespace %s: %w", a.Namespace, brief{err})
	}
	a.made = true
	return false, nil
}
