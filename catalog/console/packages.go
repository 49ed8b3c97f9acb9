package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
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
	// Left are the objects of kinds and namespaces beyond what the console reads.
	Left     int
	contents *contents // nil if it is not read yet
}

// Path returns the path of its page.
func (p packageView) Path() string { return resources.Path("packages", p.Namespace, p.Name) }

// Drifts returns the objects with fields that other managers set.
func (p packageView) Drifts() (out []objectView) {
	for _, o := range p.Objects {
		if len(o.Drift) > 0 {
			out = append(out, o)
		}
	}
	return out
}

// renderedView is an object with the parts that rendering added.
type renderedView struct {
	apply.Entry
	Added []resources.Added
}

// objectView is an object of a package.
type objectView struct {
	apply.Entry
	liveState
}

// liveState is the state of a live object.
type liveState struct {
	State   State
	Word    string
	Message string
	// Drift are the fields that other managers set.
	Drift []resources.Drift
	// Rendered reports whether the object records what rendering added.
	Rendered bool
}

// packages returns the packages that the caller may see, with the objects that they may list.
func (v *Visit) packages() ([]packageView, error) {
	c := v.Console.Cluster
	if !c.Watches(configMapsResource) {
		return nil, nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	if err := c.list(v.Context(), configMapsResource, list); err != nil {
		return nil, err
	}
	visible, err := Visible(v, configMapsResource, list.Items,
		func(m metav1.PartialObjectMetadata) string { return m.Namespace })
	if err != nil {
		return nil, err
	}
	stocks := c.stocksOf(v.Context(), resources.VersionsOf(list.Items))
	places := map[string][]string{}
	for namespace := range resources.VersionsOf(visible) {
		if s := stocks[namespace]; s != nil {
			for at := range s.looked {
				if r := s.resources[at.GroupKind]; !slices.Contains(places[r], at.Namespace) {
					places[r] = append(places[r], at.Namespace)
				}
			}
		}
	}
	scope, err := v.Scope(places)
	if err != nil {
		return nil, err
	}
	var out []packageView
	for i := range visible {
		p := packageView{Namespace: visible[i].Namespace,
			Name: visible[i].Labels[keys.LabelInventory]}
		p.Manager, p.Applied = written(&visible[i])
		if s := stocks[p.Namespace]; s != nil && s.packages[visible[i].UID] != nil {
			p.contents = s.packages[visible[i].UID]
			for _, e := range p.contents.Entries {
				if _, looked := s.looked[place{e.GroupKind, e.Namespace}]; !looked {
					p.Left++
				} else if scope.Allows(store.Key{Resource: s.resources[e.GroupKind],
					Namespace: e.Namespace}) {
					p.Objects = append(p.Objects, objectView{e, s.state(e)})
				}
			}
		}
		p.judge()
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b packageView) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// rendered returns the objects of a package that record what rendering added. Each of their kinds
// is listed once for all callers.
func (v *Visit) rendered(p packageView) (out []renderedView, err error) {
	c := v.Console.Cluster
	for _, o := range p.Objects {
		if !o.Rendered || len(out) == maxRendered {
			continue
		}
		key := "package/" + p.Namespace + "/" + p.Name + "/" + o.GroupKind.String() + "/" + o.Namespace
		all, err := client.Share(v.Context(), c.builds, key, surveyed,
			func(ctx context.Context) (map[string][]resources.Added, error) {
				return c.added(ctx, p, o)
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

// added returns what rendering added to the objects of a package with the kind and namespace of
// like, by name.
func (c *Cluster) added(ctx context.Context, p packageView,
	like objectView) (map[string][]resources.Added, error) {
	served := c.served()
	m, err := served.RESTMapping(like.GroupKind, like.Version)
	if err != nil {
		m, err = served.RESTMapping(like.GroupKind)
	}
	if err != nil {
		return nil, err
	}
	added, text, left := map[string][]resources.Added{}, 0, int64(maxRenderedBytes)
	selector := labels.Set{keys.LabelName: p.Name, keys.LabelNamespace: p.Namespace}.String()
	err = c.objects.Each(ctx, m.Resource, like.Namespace, selector, &left, func(raw []byte) error {
		u := &unstructured.Unstructured{}
		if err := utiljson.Unmarshal(raw, &u.Object); err != nil {
			return err
		}
		parts := resources.AddedBy(u)
		for _, a := range parts {
			text += len(a.What) + len(a.Value) + len(a.Was) + len(a.Text)
		}
		if text > maxRenderedText || len(added) == maxRendered {
			return resources.ErrSpent
		}
		added[u.GetName()] = parts
		return nil
	})
	// The objects that were read before the limit are shown.
	if errors.Is(err, resources.ErrSpent) || errors.Is(err, resources.ErrTooLarge) {
		c.log.Info("what rendering added is not shown of all objects", "package", p.Name,
			"namespace", p.Namespace, "kind", like.GroupKind.String(), "reason", err.Error())
		err = nil
	}
	return added, err
}

// Bounds of the parts that rendering added to a package: objects that are shown, bytes that are
// read of objects of one kind, and bytes that are shown of them.
const (
	maxRendered      = 200
	maxRenderedBytes = 16 << 20
	maxRenderedText  = 512 << 10
)

// judge sets the state of a package by its objects.
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
		p.Why = strings.TrimSuffix(worst.GroupKind.Kind+" "+worst.Name+": "+
			cmp.Or(worst.Message, strings.ToLower(worst.Word)), ": ")
	}
	switch i := p.contents; {
	case i == nil:
		p.State, p.Word, p.Why = Unknown, "Not read", "the console has not read its inventory yet"
	case i.Deleting:
		p.State, p.Word, p.Why = Building, "Deleting", "a delete has begun"
	case !i.Complete && p.State != Failing:
		p.State, p.Word, p.Why = Degraded, "Incomplete", "the last apply did not end"
	case i.Unread != "":
		p.State, p.Word, p.Why = Unknown, "Not read", i.Unread
	case len(p.Objects) == 0:
		p.State, p.Word = Unknown, "Unknown"
	}
}

// about returns a finding about the package.
func (p *packageView) about(why string) finding {
	return finding{State: p.State, Kind: "package", Namespace: p.Namespace, Name: p.Name,
		Path: p.Path(), Why: why, At: p.Applied}
}

// finding returns the problem of the package, if it has one.
func (p *packageView) finding() (finding, bool) {
	f := p.about(p.Why)
	switch p.State {
	case Failing:
		f.Fix = "open the package to see the object; `kubectl describe` says more about its pods."
	case Degraded:
		f.Fix = "apply the package again: `armature apply` continues where it ended."
	case Drifted:
		f.Fix = "put the change into Git, or apply the package again with `--allow " +
			"conflicts=MANAGER`."
	default:
		return f, false
	}
	return f, true
}

// written returns who last wrote an object, and when.
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
	return &Page{Title: "Packages", Section: "/packages",
		Parts: []Part{{"packages", "packages", all}}}, nil
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
				{"about", "package-about", p}, {"drift", "package-drift", p},
				{"objects", "package-objects", p}, {"added", "package-added", rendered},
			}}, err
		}
	}
	return nil, fmt.Errorf("package: %w", store.ErrNotFound)
}
