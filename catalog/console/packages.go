package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/live"
	"github.com/armature-dev/armature/catalog/console/facts"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/deliver/health"
)

// packageView is a package as far as the caller may see it.
type packageView struct {
	Namespace, Name string
	Applied         time.Time
	Manager         string // of the last write of its inventory
	State           State
	Word            string // for the state
	Why             string
	Objects         []objectView
	Good            int // objects that are healthy
	inventory       *apply.Inventory
}

// Path of its page.
func (p packageView) Path() string { return path("packages", p.Namespace, p.Name) }

// Drifts are the objects with fields that others set.
func (p packageView) Drifts() (out []objectView) {
	for _, o := range p.Objects {
		if len(o.Drift) > 0 {
			out = append(out, o)
		}
	}
	return out
}

// renderedView is an object with what rendering added.
type renderedView struct {
	apply.Entry
	Added []facts.Added
}

// objectView is an object of a package.
type objectView struct {
	apply.Entry
	liveState
}

// liveState is how an object was found.
type liveState struct {
	State   State
	Word    string
	Message string
	// Drift are the fields that others set.
	Drift []facts.Drift
	// Rendered is an object that says what rendering added.
	Rendered bool
}

// survey is how the objects of all packages were last found.
type survey struct {
	mu        sync.Mutex
	at        time.Time
	running   bool
	objects   map[apply.ID]liveState
	resources map[schema.GroupKind]string // such as deployments.apps
	refused   map[schema.GroupKind]string // why a kind was not read
	read      map[types.UID]*apply.Inventory
	versions  map[types.UID]string
}

// surveyed is how long a survey is good. A later look at packages begins another one, and
// shows the last until it ends.
const surveyed = 15 * time.Second

// inventories of the packages that are watched, read once for each version.
func (c *Cluster) inventories(ctx context.Context) ([]*apply.Inventory, map[*apply.Inventory]*corev1.ConfigMap, error) {
	var list corev1.ConfigMapList
	if err := c.list(ctx, configMapsResource, &list); err != nil {
		return nil, nil, err
	}
	s := &c.survey
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read == nil {
		s.read, s.versions = map[types.UID]*apply.Inventory{}, map[types.UID]string{}
	}
	var all []*apply.Inventory
	of, kept := map[*apply.Inventory]*corev1.ConfigMap{}, map[types.UID]bool{}
	for i := range list.Items {
		cm := &list.Items[i]
		if s.versions[cm.UID] != cm.ResourceVersion {
			v, err := apply.ParseInventory(cm)
			if err != nil {
				c.log.Error(err, "reading an inventory")
			}
			s.read[cm.UID], s.versions[cm.UID] = v, cm.ResourceVersion
		}
		all, kept[cm.UID] = append(all, s.read[cm.UID]), true
		of[s.read[cm.UID]] = cm
	}
	maps.DeleteFunc(s.versions, func(uid types.UID, _ string) bool { return !kept[uid] })
	maps.DeleteFunc(s.read, func(uid types.UID, _ *apply.Inventory) bool { return !kept[uid] })
	return all, of, nil
}

// look gives the last survey, and begins another one where that is old. Only the first look
// waits for it.
func (c *Cluster) look(ctx context.Context, all []*apply.Inventory) (objects map[apply.ID]liveState, resources map[schema.GroupKind]string, refused map[schema.GroupKind]string) {
	s := &c.survey
	s.mu.Lock()
	first, due := s.at.IsZero(), !s.running && time.Since(s.at) > surveyed
	s.running = s.running || due
	s.mu.Unlock()
	if due {
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			c.take(ctx, all)
		}()
		if first {
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects, s.resources, s.refused
}

// take a survey: one list for each kind that packages have, of the objects that carry a
// package's label. Secrets are not read.
func (c *Cluster) take(ctx context.Context, all []*apply.Inventory) {
	kinds := map[schema.GroupKind]string{}
	for _, v := range all {
		for id, e := range v.Entries {
			kinds[id.GroupKind] = e.Version
		}
	}
	objects, resources, refused := map[apply.ID]liveState{}, map[schema.GroupKind]string{}, map[schema.GroupKind]string{}
	for gk, version := range kinds {
		if gk == (schema.GroupKind{Kind: "Secret"}) {
			resources[gk], refused[gk] = "secrets", "Secrets are not read"
			continue
		}
		m, err := c.live.RESTMapper().RESTMapping(gk, version)
		if err != nil {
			resources[gk], refused[gk] = strings.ToLower(gk.String()), "the cluster does not serve this kind"
			continue
		}
		resources[gk] = m.Resource.GroupResource().String()
		if err := c.listLabelled(ctx, m, objects); err != nil {
			refused[gk] = "the console cannot list " + resources[gk]
			if !apierrors.IsForbidden(err) {
				c.log.Error(err, "looking at packages", "resource", resources[gk])
			}
		}
	}
	s := &c.survey
	s.mu.Lock()
	defer s.mu.Unlock()
	if !reflect.DeepEqual(s.objects, objects) {
		c.changes.Add(1)
	}
	s.at, s.running, s.objects, s.resources, s.refused = time.Now(), false, objects, resources, refused
}

// listLabelled notes the objects of a kind that carry a package's label.
func (c *Cluster) listLabelled(ctx context.Context, m *meta.RESTMapping, into map[apply.ID]liveState) error {
	places := c.places()
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		places = []string{metav1.NamespaceAll}
	}
	for _, namespace := range places {
		options := metav1.ListOptions{LabelSelector: keys.LabelName, Limit: 500}
		for {
			list, err := c.Dynamic.Resource(m.Resource).Namespace(namespace).List(ctx, options)
			if err != nil {
				return err
			}
			for i := range list.Items {
				u := &list.Items[i]
				into[apply.ID{Namespace: u.GetNamespace(), Name: u.GetName(), GroupKind: m.GroupVersionKind.GroupKind()}] = stateOfObject(u)
			}
			if options.Continue = list.GetContinue(); options.Continue == "" {
				break
			}
		}
	}
	return nil
}

// stateOfObject is how a live object is.
func stateOfObject(u *unstructured.Unstructured) liveState {
	h := health.Checks(nil).Of(u)
	s := liveState{State: Building, Word: h.Status, Message: h.Message, Drift: facts.DriftOf(u), Rendered: facts.Rendered(u)}
	switch {
	case h.Good():
		s.State, s.Word, s.Message = Healthy, "Healthy", ""
	case h.Bad():
		s.State, s.Word = Failing, "Failed"
	case h.Status == "InProgress":
		s.Word = "In progress"
	}
	if len(s.Drift) > 0 && s.State == Healthy {
		s.State, s.Word = Drifted, "Drifted"
		s.Message = plural(len(s.Drift), "field") + " set by " + s.Drift[0].Manager
	}
	return s
}

// packages that the caller may see, with the objects that they may list.
func (v *Visit) packages() ([]packageView, error) {
	c := v.Console.Cluster
	if !c.Watches(configMapsResource) {
		return nil, nil
	}
	all, of, err := c.inventories(v.Context())
	if err != nil {
		return nil, err
	}
	visible, err := Visible(v, configMapsResource, all, func(i *apply.Inventory) string { return i.Namespace })
	if err != nil {
		return nil, err
	}
	objects, resources, refused := c.look(v.Context(), all)
	places := map[string][]string{}
	for _, i := range visible {
		for id := range i.Entries {
			if r := resources[id.GroupKind]; r != "" && !slices.Contains(places[r], id.Namespace) {
				places[r] = append(places[r], id.Namespace)
			}
		}
	}
	scope, err := v.Scope(places)
	if err != nil {
		return nil, err
	}
	var out []packageView
	for _, i := range visible {
		p := packageView{Namespace: i.Namespace, Name: i.Name, inventory: i}
		p.Manager, p.Applied = written(of[i])
		for _, e := range i.Sorted() {
			if !scope.Allows(store.Key{Resource: resources[e.GroupKind], Namespace: e.Namespace}) {
				continue
			}
			s, found := objects[e.ID]
			switch {
			case found:
			case refused[e.GroupKind] != "":
				s = liveState{State: Unknown, Word: "Not read", Message: refused[e.GroupKind]}
			default:
				s = liveState{State: Failing, Word: "Missing", Message: "it was applied and does not exist"}
			}
			p.Objects = append(p.Objects, objectView{e, s})
		}
		p.judge()
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b packageView) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// rendered are the objects of a package that say what rendering added. Each kind of them is listed
// once for all who look.
func (v *Visit) rendered(p packageView) (out []renderedView, err error) {
	c := v.Console.Cluster
	for _, o := range p.Objects {
		if !o.Rendered || len(out) == maxRendered {
			continue
		}
		key := "package/" + p.Namespace + "/" + p.Name + "/" + o.GroupKind.String() + "/" + o.Namespace
		all, err := live.Share(v.Context(), c.builds, key, surveyed, func(ctx context.Context) (map[string][]facts.Added, error) {
			m, err := c.live.RESTMapper().RESTMapping(o.GroupKind, o.Version)
			if err != nil {
				return nil, err
			}
			list, err := c.Dynamic.Resource(m.Resource).Namespace(o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.Set{keys.LabelName: p.Name, keys.LabelNamespace: p.Namespace}.String(), Limit: maxRendered})
			if err != nil {
				return nil, err
			}
			added := map[string][]facts.Added{}
			for i := range list.Items {
				added[list.Items[i].GetName()] = facts.AddedBy(&list.Items[i])
			}
			return added, nil
		})
		if err != nil && v.Context().Err() == nil {
			c.log.Error(err, "reading what rendering added", "kind", o.GroupKind.String())
			continue
		}
		if err != nil {
			return nil, err
		}
		if added := all[o.Name]; len(added) > 0 {
			out = append(out, renderedView{o.Entry, added})
		}
	}
	return out, nil
}

// maxRendered objects of a package are shown with what rendering added.
const maxRendered = 200

// judge sums up the objects of a package.
func (p *packageView) judge() {
	p.State, p.Word = Healthy, "Healthy"
	var worst *objectView
	for i, o := range p.Objects {
		if o.State == Healthy {
			p.Good++
		}
		if o.State != Unknown && severity(o.State) > severity(p.State) {
			p.State, p.Word, worst = o.State, o.Word, &p.Objects[i]
		}
	}
	if worst != nil {
		p.Why = strings.TrimSuffix(worst.GroupKind.Kind+" "+worst.Name+": "+cmp.Or(worst.Message, strings.ToLower(worst.Word)), ": ")
	}
	switch i := p.inventory; {
	case i.Deleting:
		p.State, p.Word, p.Why = Building, "Deleting", "a delete has begun"
	case !i.Complete && p.State != Failing:
		p.State, p.Word, p.Why = Degraded, "Incomplete", "the last apply did not end"
	case len(p.Objects) == 0:
		p.State, p.Word = Unknown, "Unknown"
	}
}

// finding says what is wrong with the package.
func (p *packageView) finding() (finding, bool) {
	f := finding{State: p.State, Kind: "package", Namespace: p.Namespace, Name: p.Name, Path: p.Path(), Why: p.Why, At: p.Applied}
	switch p.State {
	case Failing:
		f.Fix = "open the package to see the object; `kubectl describe` says more about its pods."
	case Degraded:
		f.Fix = "apply the package again: `armature apply` continues where it ended."
	case Drifted:
		f.Fix = "put the change into Git, or apply the package again with `--force-conflicts`."
	default:
		return f, false
	}
	return f, true
}

// written says who last wrote an object, and when.
func written(o metav1.Object) (manager string, at time.Time) {
	at = o.GetCreationTimestamp().Time
	for _, m := range o.GetManagedFields() {
		if m.Time != nil && !m.Time.Time.Before(at) {
			manager, at = m.Manager, m.Time.Time
		}
	}
	return manager, at
}

func packagesPage(v *Visit) (*Page, error) {
	all, err := v.packages()
	if err != nil {
		return nil, err
	}
	return &Page{Title: "Packages", Section: "/packages", Parts: []Part{{"packages", "packages", all}}}, nil
}

func packagePage(v *Visit) (*Page, error) {
	all, err := v.packages()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.Namespace == v.PathValue("namespace") && p.Name == v.PathValue("name") {
			rendered, err := v.rendered(p)
			return &Page{Title: p.Name, Section: "/packages", Parts: []Part{
				{"about", "package-about", p}, {"drift", "package-drift", p}, {"objects", "package-objects", p}, {"added", "package-added", rendered},
			}}, err
		}
	}
	return nil, fmt.Errorf("package: %w", store.ErrNotFound)
}
