package controller

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/managers"
)

// Options configures a catalog controller.
type Options struct {
	process.Options
	// Store to fill, and whether other replicas serve the same one.
	Store  store.Followed
	Shared bool
	// Concurrency is how many agents and servers of a kind are asked at once; zero means 32.
	Concurrency int
	// ServerPeriod is how often MCP servers are asked; zero means 2 minutes.
	ServerPeriod time.Duration
	// Dial opens connections to agents and servers; nil is GuardedDial(nil).
	Dial ask.Dial
	// Roots are trusted with agents' certificates; nil is the system's.
	Roots *x509.CertPool
	// CardKeys is that of kinds.Asker.
	CardKeys string
}

// Scheme has the kinds of the catalog, except kagent's Agent, whose type is kagent's own. It is
// built once and shared: do not add to it.
var Scheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	err := multi.Errors(clientgoscheme.AddToScheme(scheme), kinds.AddToScheme(scheme))
	if err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	return scheme, nil
})

// lease is the name of the leader's Lease.
const lease = "armature-catalog"

// Run runs the controller until ctx ends.
func Run(ctx context.Context, cfg *rest.Config, o Options) error {
	o.Concurrency = cmp.Or(o.Concurrency, 32)
	cfg = o.Client(cfg, ask.Program, 200)
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	options := managers.Options(o.Options, scheme, lease)
	options.Client = client.Options{Cache: &client.CacheOptions{Unstructured: true}}
	// This applies to the kinds of the catalog, which ByObject cannot name, as their CRDs may be
	// missing.
	options.Cache.DefaultLabelSelector = o.Shard.Selector()
	options.Cache.ByObject = map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Label: labels.Everything(), Transform: slimPod}}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return fmt.Errorf("setting up the catalog: %w", err)
	}
	r := (&Reconciler{Shard: o.Shard, Events: mgr.GetEventRecorder(ask.Program), Asker: kinds.Asker{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: o.Store,
		Dial: o.Dial, Roots: o.Roots, ServerPeriod: o.ServerPeriod, CardKeys: o.CardKeys,
	}}).Init()
	if err := process.Register(r.metrics.set...); err != nil {
		return err
	}
	if err := multi.Errors(
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			return r.follow(ctx, mgr, o)
		})),
		mgr.AddHealthzCheck("ping", healthz.Ping),
		// A store that does not answer leaves the replica ready: the API reports it.
		mgr.AddReadyzCheck("store", func(*http.Request) error {
			select {
			case <-mgr.Elected():
				return nil
			default:
			}
			if o.Shared || !o.LeaderElection {
				return nil
			}
			return errors.New("another replica leads, and the store of this one stays empty: it " +
				"is a file, so run one replica, or set --catalog-store-file to a PostgreSQL")
		}),
	); err != nil {
		return fmt.Errorf("setting up the catalog: %w", err)
	}
	return mgr.Start(ctx)
}

// How often a missing CRD is looked for, and when a kind that cannot be followed is retried,
// doubled each time.
const (
	crdPeriod   = 30 * time.Second
	firstFollow = time.Second
	lastFollow  = 30 * time.Second
)

// follow watches each kind as soon as its CRD exists, until ctx ends. A kind that cannot be listed
// or swept is retried, and does not prevent others from being followed.
func (r *Reconciler) follow(ctx context.Context, mgr ctrl.Manager, o Options) error {
	var group sync.WaitGroup
	for _, k := range kinds.All() {
		group.Go(func() { r.followKind(ctx, mgr, k, o) })
	}
	group.Wait()
	return nil
}

func (r *Reconciler) followKind(ctx context.Context, mgr ctrl.Manager, k kinds.Kind, o Options) {
	log := ctrl.LoggerFrom(ctx).WithValues("resource", k.Resource)
	started, limiter :=
		false, workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstFollow, lastFollow)
	for ctx.Err() == nil { // it ends, and a cache that was filling with it
		found, err := r.followOnce(ctx, mgr, k, o, &started)
		if ctx.Err() != nil || err == nil && found {
			return
		}
		wait := crdPeriod
		if err != nil {
			wait = limiter.When(k.Resource)
			log.Error(err,
				"this kind cannot be watched; the catalog serves the entries that it has", "again",
				wait.String())
		} else {
			limiter.Forget(k.Resource)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// followOnce starts the controller of a kind, then deletes the entries of objects that were deleted
// while no controller ran. found reports whether the kind exists.
func (r *Reconciler) followOnce(ctx context.Context, mgr ctrl.Manager, k kinds.Kind, o Options,
	started *bool) (found bool, err error) {
	defer func() { r.metrics.followed(k.Resource, found, err) }()
	_, err = mgr.GetRESTMapper().RESTMapping(k.GVK.GroupKind(), k.GVK.Version)
	if meta.IsNoMatchError(err) {
		// A kind that the API server lacks has no objects.
		_, err = r.Store.Sweep(ctx, k.Resource, func() (map[string]bool, error) { return nil, nil })
		return false, err
	}
	if err == nil && !*started {
		if err = r.start(ctx, mgr, k, o); err == nil {
			*started = true
		}
	}
	if err == nil {
		err = r.sweep(ctx, k, o)
	}
	return true, err
}

// start starts the controller of a kind. The caches come first: a controller that ends while it
// waits for them logs that as an error. Before them, start tests whether their objects can be
// listed: controller-runtime's caches wait for each other, so a cache that cannot fill would
// prevent every other controller from starting.
func (r *Reconciler) start(ctx context.Context, mgr ctrl.Manager, k kinds.Kind, o Options) error {
	watched, lists := []client.Object{k.New()}, []client.ObjectList{listOf(k)}
	if k.SelectsPods {
		watched, lists = append(watched, &corev1.Pod{}), append(lists, &corev1.PodList{})
	}
	for _, l := range lists {
		if err := listAll(ctx, r.Live, o.Namespaces, l, client.Limit(1)); err != nil {
			return err
		}
	}
	for _, object := range watched {
		if _, err := mgr.GetCache().GetInformer(ctx, object); err != nil {
			return err
		}
	}
	unclaimed := func(ctx context.Context, name client.ObjectKey, problem error) error {
		return r.unclaimed(ctx, k, name, problem)
	}
	return multi.Errors(
		r.setup(mgr, k, o.Concurrency),
		managers.Unclaimed{Options: o.Options, Lease: lease, Kind: listOf(k),
			Report: unclaimed}.Setup(mgr),
	)
}

// sweep deletes the entries of objects that no longer exist.
func (r *Reconciler) sweep(ctx context.Context, k kinds.Kind, o Options) error {
	swept, err := r.Store.Sweep(ctx, k.Resource, func() (map[string]bool, error) {
		// Metadata alone, from the API server: the cache may be a moment behind.
		l := listOf(k)
		if err := listAll(ctx, r.Live, o.Namespaces, l); err != nil {
			return nil, err
		}
		keep := map[string]bool{}
		err := meta.EachListItem(l, func(o runtime.Object) error {
			m, err := meta.Accessor(o)
			if err == nil {
				keep[string(m.GetUID())] = true
			}
			return err
		})
		return keep, err
	})
	if err == nil && swept > 0 {
		ctrl.LoggerFrom(ctx).Info("swept entries of objects that are gone", "resource", k.Resource,
			"entries", swept)
	}
	return err
}

// listOf returns an empty list of the metadata of a kind's objects.
func listOf(k kinds.Kind) client.ObjectList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(k.ListKind())
	return l
}

// listAll lists the objects of the watched namespaces.
func listAll(ctx context.Context, live client.Reader, namespaces []string, l client.ObjectList,
	how ...client.ListOption) error {
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	var items []runtime.Object
	for _, n := range namespaces {
		if err := live.List(ctx, l, append(how, client.InNamespace(n))...); err != nil {
			return fmt.Errorf("listing existing objects: %w", err)
		}
		some, err := meta.ExtractList(l)
		if err != nil {
			return err
		}
		items = append(items, some...)
	}
	return meta.SetList(l, items)
}

// setup sets up the controller of a kind. A reconcile is triggered by the object itself, and for
// cards the pods that they select.
func (r *Reconciler) setup(mgr ctrl.Manager, k kinds.Kind, concurrency int) error {
	fair := managers.NewFairness(concurrency, concurrency/4)
	b := ctrl.NewControllerManagedBy(mgr).
		Named(strings.ReplaceAll(k.Resource, ".", "-")).
		For(k.New(), builder.WithPredicates(predicate.Funcs{UpdateFunc: specChanged})).
		// The backoff is short, so that the controller resumes soon after the store is back.
		WithOptions(fair.Options(100*time.Millisecond, lastFollow))
	if k.SelectsPods {
		b = b.Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(cardsOf(k, r.Client)),
			builder.WithPredicates(predicate.Funcs{UpdateFunc: podChanged}))
	}
	return b.Complete(
		fair.Share(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			return r.Reconcile(ctx, k, request)
		}))
}

// specChanged passes updates that changed generation or labels (002, "Event Filtering"), or the
// lock of a server's tools, but not the controller's own writes of status.
func specChanged(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
		!maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
		e.ObjectOld.GetAnnotations()[keys.ToolsDigest] !=
			e.ObjectNew.GetAnnotations()[keys.ToolsDigest]
}

// podChanged passes updates that change which pods are queried.
func podChanged(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*corev1.Pod)
	after, ok2 := e.ObjectNew.(*corev1.Pod)
	return !ok1 || !ok2 || kinds.PodReady(before) != kinds.PodReady(after) ||
		before.Status.PodIP != after.Status.PodIP || !maps.Equal(before.Labels, after.Labels)
}

// cardsOf returns a function that maps a pod to the cards of its namespace whose selector selects
// it. A card with a targetRef uses its workload's selector, which only its sync knows.
func cardsOf(k kinds.Kind, cache client.Client) handler.MapFunc {
	return func(ctx context.Context, pod client.Object) (out []reconcile.Request) {
		empty, err := cache.Scheme().New(k.ListKind())
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "listing cards", "resource", k.Resource)
			return nil
		}
		cards := empty.(client.ObjectList)
		err = cache.List(ctx, cards, client.InNamespace(pod.GetNamespace()),
			client.UnsafeDisableDeepCopy)
		if err == nil {
			err = meta.EachListItem(cards, func(card runtime.Object) error {
				o := card.(client.Object)
				spec, status := kinds.CardOf(o)
				selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
				if err == nil &&
					(selector.Matches(labels.Set(pod.GetLabels())) || spec.TargetRef != nil ||
						asked(status, pod.GetName())) {
					out = append(out,
						reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
				}
				return nil
			})
		}
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "listing the cards that a pod concerns", "pod",
				client.ObjectKeyFromObject(pod))
		}
		return out
	}
}

// asked reports whether a status names the pod, regardless of its current labels.
func asked(status *api.AgentCardStatus, pod string) bool {
	return slices.ContainsFunc(status.Cards,
		func(c api.FetchedCard) bool { return c.PodName == pod })
}

// slimPod reduces a pod to the fields that say whether and where to query it.
func slimPod(in any) (any, error) {
	pod, ok := in.(*corev1.Pod)
	if !ok {
		return in, nil
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
		DeletionTimestamp: pod.DeletionTimestamp,
	}}
	out.Status.PodIP = pod.Status.PodIP
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		out.Status.ContainerStatuses = append(out.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: c.Name, ImageID: c.ImageID})
	}
	return out, nil
}
