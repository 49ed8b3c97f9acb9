package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/restmapper"

	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/deliver/health"
)

// survey has the last known state of packages and their objects. Each namespace with inventories
// has its own stock, so that the objects of one tenant do not affect others.
type survey struct {
	mu      sync.Mutex
	first   chan struct{} // closed after the first survey
	running bool
	ended   time.Time
	stocks  map[string]*stock // by the namespace of the inventories

	unpacking sync.Mutex // of an inventory, which takes memory; no page waits for it

	kinds   meta.RESTMapper // that the cluster serves
	kindsAt time.Time
}

// stock has the packages of a namespace.
type stock struct {
	version   uint64 // of its inventories
	at        time.Time
	took      time.Duration
	packages  map[types.UID]*contents
	objects   map[apply.ID]liveState
	resources map[schema.GroupKind]string // such as deployments.apps
	// looked has a place for each kind and namespace that its inventories name, up to a bound, with
	// why it was not read.
	looked map[place]string
	text   int
}

// place is a kind in a namespace.
type place struct {
	schema.GroupKind
	Namespace string
}

// contents is the content of a package's inventory.
type contents struct {
	Complete, Deleting bool
	Entries            []apply.Entry // in order
	// Unread says why there are no entries.
	Unread string
}

// Bounds of a survey. If a namespace exceeds them, the rest of its objects is "not read".
const (
	surveyed      = 15 * time.Second // how long a survey is valid; a later page begins another one
	resurveyed    = 2 * time.Second  // the same, if an inventory changed
	surveyTime    = time.Minute      // of all
	stockTime     = 10 * time.Second // of a namespace
	maxStocks     = 4                // namespaces that are read at the same time
	maxStockBytes = 64 << 20         // of the objects of a namespace, as they are transferred
	maxStockText  = 1 << 20          // of the stored state, without a line for each
	maxEntries    = 10_000           // objects of the packages of a namespace
	maxAllEntries = 50_000           // and of all packages
	// pairs of a kind and a namespace that the packages of one may name
	maxPlaces = 100
	firstWait = 3 * time.Second // of a page, for the first survey
)

// stocksOf returns the last survey, and begins another one of the namespaces whose survey is old.
// Pages wait only for the first one.
func (c *Cluster) stocksOf(ctx context.Context, versions map[string]uint64) map[string]*stock {
	s := &c.survey
	s.mu.Lock()
	if s.first == nil {
		s.first, s.stocks = make(chan struct{}), map[string]*stock{}
	}
	if due := s.due(versions); !s.running && len(due) > 0 {
		s.running = true
		go c.resurvey(context.WithoutCancel(ctx), due, versions)
	}
	first := s.first
	s.mu.Unlock()
	if len(versions) > 0 {
		select {
		case <-first:
		case <-ctx.Done():
		case <-time.After(firstWait):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.stocks)
}

// due returns the namespaces to survey, those first that took the least time before.
func (s *survey) due(versions map[string]uint64) (due []string) {
	for namespace, version := range versions {
		have := s.stocks[namespace]
		if have == nil || time.Since(have.at) > max(surveyed, 2*have.took) ||
			version != have.version && time.Since(s.ended) > resurveyed {
			due = append(due, namespace)
		}
	}
	took := func(namespace string) time.Duration {
		if have := s.stocks[namespace]; have != nil {
			return have.took
		}
		return 0
	}
	slices.SortFunc(due, func(a, b string) int {
		return cmp.Or(cmp.Compare(took(a), took(b)), cmp.Compare(a, b))
	})
	return due
}

// resurvey surveys some namespaces.
func (c *Cluster) resurvey(ctx context.Context, due []string, versions map[string]uint64) {
	s := &c.survey
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		maps.DeleteFunc(s.stocks, func(namespace string, _ *stock) bool {
			return versions[namespace] == 0
		})
		s.running, s.ended = false, time.Now()
		select {
		case <-s.first:
		default:
			close(s.first)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	c.survive("looking at packages", func() {
		served := c.served()
		var group errgroup.Group
		group.SetLimit(maxStocks)
		for _, namespace := range due {
			group.Go(func() error {
				c.survive("looking at the packages of namespace "+namespace, func() {
					c.keep(namespace, c.stockOf(ctx, namespace, versions[namespace], served))
				})
				return nil
			})
		}
		_ = group.Wait() // each has logged its own
	})
}

// survive runs the work of a goroutine. It logs a panic, which would otherwise end the console.
func (c *Cluster) survive(what string, do func()) {
	defer func() {
		if cause := recover(); cause != nil {
			c.log.Error(fmt.Errorf("panic: %v\n%s", cause, debug.Stack()), what)
		}
	}()
	do()
}

// served returns the kinds that the cluster serves. It queries them once for all kinds that
// inventories name.
func (c *Cluster) served() meta.RESTMapper {
	s := &c.survey
	s.mu.Lock()
	kinds, fresh := s.kinds, time.Since(s.kindsAt) < again
	s.mu.Unlock()
	if fresh {
		return kinds
	}
	groups, err := restmapper.GetAPIGroupResources(c.discovery)
	if err != nil {
		c.log.Error(err, "asking which kinds the cluster serves")
		if kinds != nil {
			return kinds
		}
	}
	kinds = restmapper.NewDiscoveryRESTMapper(groups)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds, s.kindsAt = kinds, time.Now()
	return kinds
}

// keep stores a stock. It also bounds the number of objects of all packages together.
func (c *Cluster) keep(namespace string, found *stock) {
	s := &c.survey
	s.mu.Lock()
	defer s.mu.Unlock()
	others := 0
	for name, have := range s.stocks {
		if name != namespace {
			others += have.entries()
		}
	}
	if others+found.entries() > maxAllEntries {
		found.objects = nil
		for _, p := range found.packages {
			p.Entries, p.Unread =
				nil, fmt.Sprintf("all packages together name more than %d objects", maxAllEntries)
		}
	}
	old := s.stocks[namespace]
	s.stocks[namespace] = found
	if old == nil || !reflect.DeepEqual(old.objects, found.objects) ||
		!reflect.DeepEqual(old.packages, found.packages) {
		c.changes.Add(1)
	}
}

func (s *stock) entries() (n int) {
	for _, p := range s.packages {
		n += len(p.Entries)
	}
	return n
}

// stockOf reads a namespace: its inventories, and one list for each kind and namespace that they
// name, of the objects that carry the labels of its packages.
func (c *Cluster) stockOf(ctx context.Context, namespace string, version uint64,
	served meta.RESTMapper) *stock {
	began := time.Now()
	s := &stock{version: version, packages: map[types.UID]*contents{},
		objects: map[apply.ID]liveState{}, resources: map[schema.GroupKind]string{},
		looked: map[place]string{}}
	defer func() { s.at, s.took = time.Now(), time.Since(began) }()
	ctx, cancel := context.WithTimeout(ctx, stockTime)
	defer cancel()
	left := int64(maxStockBytes)
	if err := c.inventories(ctx, namespace, s, &left); err != nil {
		c.log.Error(err, "reading the inventories of packages", "namespace", namespace)
		return s
	}
	wanted := map[apply.ID]bool{}
	versions := map[schema.GroupKind]string{}
	for _, uid := range slices.Sorted(maps.Keys(s.packages)) {
		for _, e := range s.packages[uid].Entries {
			at := place{e.GroupKind, e.Namespace}
			if _, known := s.looked[at]; !known && len(s.looked) == maxPlaces {
				continue
			}
			s.looked[at], versions[e.GroupKind], wanted[e.ID] = "", e.Version, true
		}
	}
	places := slices.SortedFunc(maps.Keys(s.looked), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Namespace, b.Namespace))
	})
	for _, at := range places {
		s.looked[at] = c.readPlace(ctx, namespace, at, versions[at.GroupKind], served, wanted, s, &left)
	}
	return s
}

// inventories reads the inventories of a namespace.
func (c *Cluster) inventories(ctx context.Context, namespace string, s *stock, left *int64) error {
	entries := 0
	return c.objects.Each(ctx, corev1.SchemeGroupVersion.WithResource("configmaps"), namespace,
		keys.LabelInventory, left, func(raw []byte) error {
			var cm corev1.ConfigMap
			if err := json.Unmarshal(raw, &cm); err != nil {
				return err
			}
			if !resources.IsWhole(raw) {
				return nil // it stays unread
			}
			c.survey.unpacking.Lock()
			read, err := apply.ParseInventory(&cm)
			c.survey.unpacking.Unlock()
			if err != nil {
				c.log.Error(err, "reading an inventory")
			}
			p := &contents{Complete: read.Complete, Deleting: read.Deleting}
			s.packages[cm.UID] = p
			if entries += len(read.Entries); entries > maxEntries {
				entries -= len(read.Entries)
				p.Unread = fmt.Sprintf("the packages of this namespace name more than %d objects",
					maxEntries)
				return nil
			}
			p.Entries = read.Sorted()
			return nil
		})
}

// readPlace reads the objects of a kind in a namespace, and returns why it could not.
func (c *Cluster) readPlace(ctx context.Context, of string, at place, version string,
	served meta.RESTMapper, wanted map[apply.ID]bool, s *stock, left *int64) (refused string) {
	if at.GroupKind == (schema.GroupKind{Kind: "Secret"}) {
		s.resources[at.GroupKind] = "secrets"
		return "Secrets are not read"
	}
	m, err := served.RESTMapping(at.GroupKind, version)
	if err != nil { // it may have been applied in a version that is no longer served
		m, err = served.RESTMapping(at.GroupKind)
	}
	if err != nil {
		s.resources[at.GroupKind] = strings.ToLower(at.GroupKind.String())
		return "the cluster does not serve this kind"
	}
	s.resources[at.GroupKind] = m.Resource.GroupResource().String()
	if m.Scope.Name() == meta.RESTScopeNameNamespace && len(c.namespaces) > 0 &&
		!slices.Contains(c.namespaces, at.Namespace) {
		return "the console does not watch namespace " + at.Namespace
	}
	if *left <= 0 || ctx.Err() != nil {
		return notAll(of)
	}
	err = c.objects.Each(ctx, m.Resource, at.Namespace, keys.LabelNamespace+"="+of, left,
		func(raw []byte) error {
			u := &unstructured.Unstructured{}
			if err := utiljson.Unmarshal(raw, &u.Object); err != nil {
				return err
			}
			id := apply.ID{Namespace: u.GetNamespace(), Name: u.GetName(), GroupKind: at.GroupKind}
			if !wanted[id] {
				return nil
			}
			u.SetGroupVersionKind(m.GroupVersionKind)
			if !resources.IsWhole(raw) {
				s.objects[id] = liveState{State: Unknown, Word: "Not read",
					Message: "it is too large to check"}
				return nil
			}
			s.note(id, stateOfObject(u))
			return nil
		})
	switch {
	case err == nil:
		return ""
	case errors.Is(err, resources.ErrSpent), ctx.Err() != nil:
		return notAll(of)
	case apierrors.IsForbidden(err):
		return "the console cannot list " + s.resources[at.GroupKind]
	case !errors.Is(err, resources.ErrTooLarge):
		c.log.Error(err, "looking at packages", "resource", s.resources[at.GroupKind], "namespace",
			at.Namespace)
	}
	return "the console cannot read all " + s.resources[at.GroupKind] + " here: " + err.Error()
}

func notAll(namespace string) string {
	return "the objects of the packages of namespace " + namespace +
		" are more or larger than the console reads"
}

// note records the state of an object, briefly if much was recorded before.
func (s *stock) note(id apply.ID, is liveState) {
	for _, d := range is.Drift {
		s.text += len(d.Manager) + len(d.Field) + len(d.Value)
	}
	if s.text += len(is.Message); s.text > maxStockText {
		is.Message = resources.Clip(100, is.Message)
		is.Drift = slices.Clone(is.Drift[:min(len(is.Drift), 1)])
		for i := range is.Drift {
			is.Drift[i].Field, is.Drift[i].Value =
				resources.Clip(100, is.Drift[i].Field), resources.Clip(100, is.Drift[i].Value)
		}
	}
	s.objects[id] = is
}

// stateOfObject returns the state of a live object.
func stateOfObject(u *unstructured.Unstructured) liveState {
	h := health.Checks(nil).Of(u)
	s := liveState{State: Building, Word: resources.Clip(40, h.Status),
		Message: resources.Clip(300, h.Message), Drift: resources.DriftOf(u), Rendered: resources.Rendered(u)}
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
		s.Message = resources.Plural(len(s.Drift), "field") + " set by " + s.Drift[0].Manager
	}
	return s
}

// state returns the state of an object of a package.
func (s *stock) state(e apply.Entry) liveState {
	is, found := s.objects[e.ID]
	refused := s.looked[place{e.GroupKind, e.Namespace}]
	switch {
	case found:
		return is
	case refused != "":
		return liveState{State: Unknown, Word: "Not read", Message: refused}
	}
	return liveState{State: Failing, Word: "Missing", Message: "it was applied and does not exist"}
}
