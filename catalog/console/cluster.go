package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	buildclient "github.com/armature-dev/armature/builds/client"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/console/resources"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/process"
)

// Cluster watches objects of a cluster for a console, and reads others.
type Cluster struct {
	group     string // of AgentBuild
	builds    *buildclient.Reader
	own       access.Access // the console's own rights
	cache     cache.Cache
	live      client.Client
	objects   *resources.Reader
	discovery discovery.DiscoveryInterface
	log       logr.Logger
	changes   atomic.Int64
	survey    survey

	watched    sync.Map // resources
	namespaces []string // that are watched; empty means all
}

// ClusterOptions say which objects of a cluster are watched.
type ClusterOptions struct {
	// Namespaces to watch; empty means all.
	Namespaces []string
	// Group of AgentBuild; empty means the default.
	Group string
	// BuildNamespace has the isolated runs of builds. If it is empty, the status of a build says
	// where they are, and a caller needs the rights to read them there.
	BuildNamespace string
	Log            logr.Logger
}

// The resources whose rights decide what is shown in addition to the catalog. The resource of
// AgentBuilds depends on their group: Cluster.Builds returns it.
const (
	updatesResource    = "imageupdates." + keys.Group
	configMapsResource = "configmaps"
)

// NewCluster returns a Cluster, which watches nothing before Run.
func NewCluster(cfg *rest.Config, o ClusterOptions) (*Cluster, error) {
	c := &Cluster{group: cmp.Or(o.Group, api.DefaultGroup), log: o.Log, namespaces: o.Namespaces}
	scheme := runtime.NewScheme()
	api.AddToScheme(scheme, c.group)
	err := multi.Errors(updates.AddToScheme(scheme), corev1.AddToScheme(scheme))
	if err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	inventories, err := labels.NewRequirement(keys.LabelInventory, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	options := cache.Options{Scheme: scheme, DefaultTransform: process.Slim,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: {Label: labels.NewSelector().Add(*inventories), Transform: brief},
		}}
	for _, n := range o.Namespaces {
		if options.DefaultNamespaces == nil {
			options.DefaultNamespaces = map[string]cache.Config{}
		}
		options.DefaultNamespaces[n] = cache.Config{}
	}
	var errs [6]error
	c.cache, errs[0] = cache.New(cfg, options)
	c.live, errs[1] = client.New(cfg, client.Options{Scheme: scheme})
	c.objects, errs[2] = resources.NewReader(cfg)
	c.discovery, errs[3] = discovery.NewDiscoveryClientForConfig(cfg)
	c.builds, errs[4] = buildclient.NewReader(cfg, c.group)
	c.own, errs[5] = access.Own(cfg, nil)
	if err := multi.Errors(errs[:]...); err != nil {
		return nil, fmt.Errorf("watching the cluster: %w", err)
	}
	c.builds.BuildNamespace = o.BuildNamespace
	return c, nil
}

// brief reduces the metadata of an inventory to what pages show: its name, and who applied it when.
func brief(in any) (any, error) {
	o, ok := in.(*metav1.PartialObjectMetadata)
	if !ok {
		return in, nil
	}
	manager, at := written(o)
	label := map[string]string{keys.LabelInventory: o.Labels[keys.LabelInventory]}
	o.ObjectMeta = metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID,
		ResourceVersion: o.ResourceVersion, CreationTimestamp: o.CreationTimestamp, Labels: label,
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: manager,
			Time: &metav1.Time{Time: at}}}}
	return o, nil
}

// kinds returns the watched kinds, by resource.
func (c *Cluster) kinds() map[string]client.Object {
	agent, inventory := &unstructured.Unstructured{}, &metav1.PartialObjectMetadata{}
	agent.SetGroupVersionKind(agentKind)
	inventory.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	return map[string]client.Object{
		agentsResource: agent, configMapsResource: inventory, c.Builds(): &api.AgentBuild{},
		updatesResource: &updates.ImageUpdate{},
	}
}

// places returns the namespaces to list: "" is all of them.
func (c *Cluster) places() []string {
	if len(c.namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return c.namespaces
}

// Builds returns the resource of AgentBuilds.
func (c *Cluster) Builds() string { return "agentbuilds." + c.group }

// again is how long Run waits before it retries a kind that the cluster lacks, or that may not be
// listed.
const again = 30 * time.Second

// Run watches until ctx ends. A kind that is missing, or that may not be listed, is retried, and
// does not prevent others from being watched.
func (c *Cluster) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for resource, object := range c.kinds() {
		group.Go(func() {
			for ctx.Err() == nil {
				err := c.tryList(ctx, object)
				if err == nil {
					err = c.watch(ctx, resource, object)
				}
				if err == nil || ctx.Err() != nil {
					return
				}
				if !meta.IsNoMatchError(err) {
					c.log.Info("this kind is not shown", "resource", resource, "reason",
						err.Error(), "again", again.String())
				}
				select {
				case <-ctx.Done():
				case <-time.After(again):
				}
			}
		})
	}
	err := c.cache.Start(ctx)
	group.Wait()
	return err
}

// tryList lists one object of a kind in each namespace.
func (c *Cluster) tryList(ctx context.Context, object client.Object) error {
	kind, err := c.live.GroupVersionKindFor(object)
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	for _, namespace := range c.places() {
		if err == nil {
			err = c.live.List(ctx, list, client.Limit(1), client.InNamespace(namespace))
		}
	}
	return err
}

// watch watches one kind from now on.
func (c *Cluster) watch(ctx context.Context, resource string, object client.Object) error {
	informer, err := c.cache.GetInformer(ctx, object)
	if err != nil {
		return err
	}
	change := func(any) { c.changes.Add(1) }
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: change,
		UpdateFunc: func(_, now any) { change(now) }, DeleteFunc: change}); err != nil {
		return err
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	c.watched.Store(resource, true)
	change(nil)
	return nil
}

// version returns a number that changes with the watched objects.
func (c *Cluster) version() int64 {
	if c == nil {
		return 0
	}
	return c.changes.Load()
}

// Watches reports whether a resource is watched: false while the cluster lacks it, or the
// console may not list it.
func (c *Cluster) Watches(resource string) bool {
	if c == nil {
		return false
	}
	_, watched := c.watched.Load(resource)
	return watched
}

// list lists the watched objects of a resource. They are shared: do not change them.
func (c *Cluster) list(ctx context.Context, resource string, into client.ObjectList,
	options ...client.ListOption) error {
	if !c.Watches(resource) {
		return nil
	}
	if err := c.cache.List(ctx, into, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("reading %s: %w", resource, err)
	}
	return nil
}

// build returns a copy of a build that is watched.
func (c *Cluster) build(ctx context.Context, namespace, name string) (*api.AgentBuild, error) {
	switch {
	case len(c.namespaces) > 0 && !slices.Contains(c.namespaces, namespace):
		return nil, store.ErrNotFound
	case !c.Watches(c.Builds()):
		return nil, errors.New("builds are not watched")
	}
	b := &api.AgentBuild{}
	err := c.cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, b)
	if apierrors.IsNotFound(err) {
		err = store.ErrNotFound
	}
	return b, err
}

// builds returns the builds that the caller may list, by namespace and name. They are shared: do
// not change them.
func (v *Visit) builds(options ...client.ListOption) ([]*api.AgentBuild, error) {
	c := v.Console.Cluster
	if c == nil {
		return nil, nil
	}
	var list api.AgentBuildList
	if err := c.list(v.Context(), c.Builds(), &list, options...); err != nil {
		return nil, err
	}
	return mine(v, c.Builds(), list.Items)
}

// ImageUpdates returns the ImageUpdates that the caller may list.
func (v *Visit) ImageUpdates(options ...client.ListOption) ([]updates.ImageUpdate, error) {
	var list updates.ImageUpdateList
	if err := v.Console.Cluster.list(v.Context(), updatesResource, &list, options...); err != nil {
		return nil, err
	}
	all, err := mine(v, updatesResource, list.Items)
	return values(all), err
}

// mine returns the objects that the caller may list, by namespace and name.
func mine[T any, P interface {
	*T
	metav1.Object
}](v *Visit, resource string, all []T) ([]P, error) {
	objects := make([]P, len(all))
	for i := range all {
		objects[i] = &all[i]
	}
	seen, err := Visible(v, resource, objects, P.GetNamespace)
	slices.SortFunc(seen, func(a, b P) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()),
			strings.Compare(a.GetName(), b.GetName()))
	})
	return seen, err
}

func values[T any, P interface{ *T }](all []P) (out []T) {
	for _, one := range all {
		out = append(out, *one)
	}
	return out
}
