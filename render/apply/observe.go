package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type liveObject = *unstructured.Unstructured

var (
	getOptions = metav1.GetOptions{}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// few is how many objects of a kind are worth a request each; more are listed.
const few = 5

// kindOf are the objects of one kind that a package has, or had.
type kindOf struct {
	mapping *meta.RESTMapping
	ids     map[ID]bool
}

func (k *kindOf) namespaces() []string {
	all := map[string]bool{}
	for id := range k.ids {
		all[id.Namespace] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// look finds the live objects of the given names. Objects that carry the
// package's labels come with one LIST for each kind; a name that is not among
// them is looked for by itself.
func (c *Cluster) look(ctx context.Context, p Package, kinds []*kindOf) (map[ID]liveObject, error) {
	found := make(map[ID]liveObject)
	var lock sync.Mutex
	add := func(k *kindOf, u liveObject) {
		id := ID{Namespace: u.GetNamespace(), Name: u.GetName(), GroupKind: k.mapping.GroupVersionKind.GroupKind()}
		lock.Lock()
		defer lock.Unlock()
		if k.ids[id] {
			found[id] = u
		}
	}
	group, listing := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, k := range kinds {
		group.Go(func() error {
			listed, err := c.list(listing, k.mapping, k.namespaces(), labels.SelectorFromSet(p.Labels()).String())
			for i := range listed {
				add(k, &listed[i])
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	group, ctx = errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, k := range kinds {
		missing := make(map[string][]ID)
		for id := range k.ids {
			if found[id] == nil {
				missing[id.Namespace] = append(missing[id.Namespace], id)
			}
		}
		for namespace, ids := range missing {
			group.Go(func() error { return c.lookAt(ctx, k, namespace, ids, add) })
		}
	}
	return found, group.Wait()
}

// lookAt gets objects one by one, where they exist.
func (c *Cluster) lookAt(ctx context.Context, k *kindOf, namespace string, ids []ID, add func(*kindOf, liveObject)) error {
	if len(ids) > few {
		list, err := c.metadata.Resource(k.mapping.Resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing %s: %w", k.mapping.Resource.Resource, err)
		}
		exists := make(map[string]bool, len(list.Items))
		for _, item := range list.Items {
			exists[item.Name] = true
		}
		ids = slices.DeleteFunc(ids, func(id ID) bool { return !exists[id.Name] })
	}
	for _, id := range ids {
		u, err := c.live(ctx, k.mapping, id)
		if err != nil {
			return err
		}
		if u != nil {
			add(k, u)
		}
	}
	return nil
}

// list gives the objects of a kind in some namespaces: with one request where
// that is allowed, else with one for each namespace.
func (c *Cluster) list(ctx context.Context, m *meta.RESTMapping, namespaces []string, selector string) ([]unstructured.Unstructured, error) {
	options := metav1.ListOptions{LabelSelector: selector}
	if len(namespaces) != 1 {
		all, err := c.dynamic.Resource(m.Resource).List(ctx, options)
		if err == nil {
			return all.Items, nil
		}
		if !apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("listing %s: %w", m.Resource.Resource, plain(err))
		}
	}
	var items []unstructured.Unstructured
	for _, n := range namespaces {
		list, err := c.at(m, n).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing %s in namespace %q: %w", m.Resource.Resource, n, plain(err))
		}
		items = append(items, list.Items...)
	}
	return items, nil
}

// observe gathers what a plan needs: who is live, who scales whom, and what the
// API server says to objects that may have to change.
func (a *application) observe(ctx context.Context, want []*object) error {
	byKind := make(map[string]*kindOf)
	note := func(m *meta.RESTMapping, id ID) {
		key := m.Resource.String()
		if byKind[key] == nil {
			byKind[key] = &kindOf{mapping: m, ids: make(map[ID]bool)}
		}
		byKind[key].ids[id] = true
	}
	wanted := make(map[ID]bool)
	for _, o := range want {
		wanted[o.id] = true
		note(o.mapping, o.id)
	}
	for id, e := range a.old.Entries {
		if wanted[id] || a.wanted[id] != nil {
			continue
		}
		m, err := a.cluster.anyVersion(id.GroupKind, e.Version)
		if errors.Is(err, errNotServed) {
			continue // its CRD is gone, and it with it
		}
		if err != nil {
			return fmt.Errorf("looking for %s: %w", title(id), err)
		}
		a.mappings[id] = m
		note(m, id)
	}
	found, err := a.cluster.look(ctx, a.Package, slices.Collect(maps.Values(byKind)))
	if err != nil {
		return err
	}
	maps.Copy(a.seen, found)
	if err := a.others(ctx); err != nil {
		return err
	}
	if err := a.autoscalers(ctx, want); err != nil {
		return err
	}
	if err := a.namespaces(ctx, want); err != nil {
		return err
	}
	return a.tryAll(ctx, want)
}

// tryAll asks the API server, by a dry run, for each object that may change.
func (a *application) tryAll(ctx context.Context, want []*object) error {
	group, trying := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, o := range want {
		if err := o.prepare(a.seen[o.id], a.scaled[o.id]); err != nil {
			return err
		}
		if !a.needsTrial(o) {
			continue
		}
		group.Go(func() error {
			if a.isNew(o) {
				o.refusal = a.cluster.tryElsewhere(trying, o, a.elsewhere())
				return trying.Err()
			}
			o.trial, o.refusal = a.cluster.try(trying, o)
			if a.mayForce(o) {
				o.force, o.taken = true, conflictsOf(o.refusal)
				o.trial, o.refusal = a.cluster.try(trying, o)
			}
			if len(o.former) > 0 && o.refusal != nil {
				a.cluster.tryInherited(trying, o, a.seen[o.id])
			}
			if o.refusal != nil && !answered(o.refusal) {
				return fmt.Errorf("asking about %s: %w", title(o.id), brief{o.refusal})
			}
			if len(o.former) > 0 && o.refusal == nil {
				o.lost = abandoned(o, a.seen[o.id])
			}
			return trying.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, o := range want {
		if o.refusal == nil {
			continue
		}
		if o.untried = a.needs(o); o.untried != "" {
			o.refusal = nil
		}
	}
	return nil
}

func (a *application) needsTrial(o *object) bool {
	live := a.seen[o.id]
	switch {
	case o.policy.ignore, o.bad != nil:
		return false
	case live == nil:
		return true
	case o.policy.ifNotPresent, a.foreign(live), live.GetDeletionTimestamp() != nil:
		return false
	case len(o.former) > 0:
		return true
	}
	sealed := a.old.Entries[o.id].Seal
	return sealed == "" || sealed != seal(o.digest, live)
}

// isNew reports whether an object's namespace comes with the package, so that a
// dry run cannot know it.
func (a *application) isNew(o *object) bool {
	namespace := ID{Name: o.id.Namespace, GroupKind: namespaceKind}
	return o.id.Namespace != "" && a.wanted[namespace] != nil && a.seen[namespace] == nil
}

// namespaces makes sure that those of new objects are there, or come with the
// package.
func (a *application) namespaces(ctx context.Context, want []*object) error {
	asked := map[string]bool{"": true}
	var missing []string
	for _, o := range want {
		id := ID{Name: o.id.Namespace, GroupKind: namespaceKind}
		if a.seen[o.id] != nil || asked[id.Name] || a.wanted[id] != nil {
			continue
		}
		asked[id.Name] = true
		_, err := a.cluster.dynamic.Resource(namespaces).Get(ctx, id.Name, getOptions)
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, id.Name)
		case apierrors.IsForbidden(err): // the API server says so when the object comes
		case err != nil:
			return fmt.Errorf("looking for namespace %s: %w", id.Name, err)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("namespace not found: %s\n  hint: create it, add it to the package, or choose another with --namespace", strings.Join(missing, ", "))
	}
	return nil
}

// foreign reports whether an object belongs to another package that we may not
// take it from.
func (a *application) foreign(live liveObject) bool {
	o := owner(live)
	return o != (Package{}) && o != a.Package && !slices.Contains(a.Adopt, o)
}
