package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fluxcd/pkg/runtime/predicates"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/managers"
	"github.com/armature-dev/armature/render/version"
)

// Options are the options of a process that publishes RenderedSources.
type Options struct {
	process.Options
	// Dir is the folder in which archives are stored.
	Dir string
	// Address serves archives, such as :9090.
	Address string
	// AdvertisedAddress is the host and port at which consumers reach Address. It defaults to the
	// address of the listener.
	AdvertisedAddress string
	// CrossNamespace lets RenderedSources refer to sources of other namespaces.
	CrossNamespace bool
	// Hosts from which archives of sources may be fetched, with or without a port.
	Hosts []string
	// Dial opens connections to the registries that manifests name. Nil dials any address.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// VerifyTimeout bounds the verification of all signatures of one package. Zero means one
	// minute.
	VerifyTimeout time.Duration
}

const (
	// concurrency is the number of packages that are rendered concurrently.
	concurrency = 2
	// waiting is the number of packages that may wait for registries, a quarter of them in one
	// namespace.
	waiting = 32 * concurrency
)

// Scheme returns a scheme with RenderedSource. Flux's kinds are read without Go types.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, multi.Errors(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme))
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, cfg *rest.Config, o Options) (err error) {
	o.VerifyTimeout = cmp.Or(o.VerifyTimeout, time.Minute)
	cfg = o.Client(cfg, program, 200)
	scheme, err := Scheme()
	fingerprint, err2 := version.Fingerprint()()
	measured, err3 := newMetrics()
	direct, err4 := client.New(cfg, client.Options{Scheme: scheme})
	if err := multi.Errors(err, err2, err3, err4); err != nil {
		return fmt.Errorf("setting up RenderedSources: %w", err)
	}
	store, err := OpenStore(o.Dir)
	if err != nil {
		return err
	}
	defer func() { err = multi.Errors(err, store.Close()) }()
	base := Reconciler{
		Options: o, Store: store, Build: fingerprint, fetcher: newFetcher(o.Hosts),
		metrics: measured, renders: semaphore.NewWeighted(concurrency),
		backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry,
			lastRetry),
	}
	if o.Dial != nil {
		base.Registries = oci.TransportTo(o.Dial)
	}
	for {
		allowed, denied, err := divide(ctx, direct, o.Namespaces)
		if err != nil {
			return err
		}
		r := base
		r.Namespaces = allowed
		if err := r.run(ctx, cfg, direct, denied); !errors.Is(err, errGranted) {
			return err
		}
		o.Log.Info("starting again, with the namespaces that were granted")
	}
}

// run runs the controller until ctx ends, or returns errGranted when a denied namespace was
// granted.
func (r *Reconciler) run(ctx context.Context, cfg *rest.Config, direct client.Client,
	denied []string) error {
	const lease = "armature-sources"
	options := managers.Options(r.Options.Options, direct.Scheme(), lease)
	options.Cache.DefaultTransform = slim
	if shard := r.Shard.Selector(); shard != nil { // then the CRD has to exist
		options.Cache.ByObject = map[client.Object]cache.ByObject{
			&api.RenderedSource{}: {Label: shard}}
	}
	options.Client = client.Options{Cache: &client.CacheOptions{Unstructured: true}}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return fmt.Errorf("setting up RenderedSources: %w", err)
	}
	r.Client, r.Live, r.Events = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(program)
	var serving atomic.Bool
	lead := func(ctx context.Context) error { return r.lead(ctx, mgr, &serving) }
	rights := func(ctx context.Context) error { return r.awaitRights(ctx, direct, denied) }
	if err := multi.Errors(
		mgr.Add(manager.RunnableFunc(lead)),
		mgr.Add(manager.RunnableFunc(rights)),
		managers.Unclaimed{Options: r.Options.Options, Lease: lease,
			Kind: &api.RenderedSourceList{}, Report: r.unclaimed}.Setup(mgr),
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("archives", func(*http.Request) error {
			if !serving.Load() {
				return errors.New("another replica leads, and serves the archives")
			}
			return nil
		}),
	); err != nil {
		return fmt.Errorf("setting up RenderedSources: %w", err)
	}
	return mgr.Start(ctx)
}

// lead serves archives and reconciles. Only the leader does so.
func (r *Reconciler) lead(ctx context.Context, mgr ctrl.Manager, serving *atomic.Bool) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", r.Address)
	if err != nil {
		return fmt.Errorf("serving archives: %w", err)
	}
	host := cmp.Or(r.AdvertisedAddress, l.Addr().String())
	r.Base = "http://" + host
	r.Log.Info("serving archives", "address", l.Addr().String(), "advertised", host)
	all, both := errgroup.WithContext(ctx)
	all.Go(func() error { return r.Store.server(l).Start(both) })
	all.Go(func() error { return r.follow(both, mgr) })
	serving.Store(true)
	if err := all.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("publishing RenderedSources: %w", err)
	}
	return nil
}

// crdPeriod is the interval of checks for a kind that the cluster lacks.
const crdPeriod = 5 * time.Second

// follow watches RenderedSources as soon as the kinds that they need exist, and each kind of source
// as soon as it exists. It does not wait for the kinds of sources.
func (r *Reconciler) follow(ctx context.Context, mgr ctrl.Manager) error {
	rendered, published :=
		api.GroupVersion.WithKind(api.Kind), FluxSources.WithKind(externalArtifact)
	if err := await(ctx, mgr, rendered, published); err != nil {
		return err
	}
	if err := sweep(ctx, r); err != nil {
		return err
	}
	c, err := r.setup(mgr)
	if err != nil {
		return err
	}
	for _, kind := range sourceKinds {
		if kind == externalArtifact {
			continue // setup watches it
		}
		go func() {
			err := await(ctx, mgr, FluxSources.WithKind(kind))
			if err == nil {
				err = c.Watch(source.Kind[client.Object](mgr.GetCache(), newSource(kind),
					handler.EnqueueRequestsFromMapFunc(r.renderedFrom),
					predicate.Funcs{UpdateFunc: artifactChanged}))
			}
			if err != nil && ctx.Err() == nil {
				r.Log.Error(err, "this kind of source is not watched: its changes are seen at "+
					"each interval", "kind", kind)
			}
		}()
	}
	return nil
}

// await waits until the cluster has all kinds.
func await(ctx context.Context, mgr ctrl.Manager, kinds ...schema.GroupVersionKind) error {
	reported := false
	return wait.PollUntilContextCancel(ctx, crdPeriod, true, func(context.Context) (bool, error) {
		for _, kind := range kinds {
			_, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
			if err != nil && !reported {
				mgr.GetLogger().Info("waiting for a kind that the cluster lacks",
					"kind", kind.GroupKind().String(), "why", err.Error())
			}
			if reported = err != nil; reported {
				return false, nil
			}
		}
		return true, nil
	})
}

// sweep removes archives of RenderedSources that were deleted while no controller ran.
func sweep(ctx context.Context, r *Reconciler) error {
	namespaces := r.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	exists := map[types.NamespacedName]bool{}
	for _, n := range namespaces {
		var all api.RenderedSourceList
		if err := r.Live.List(ctx, &all, client.InNamespace(n)); err != nil {
			return fmt.Errorf("listing RenderedSources: %w", err)
		}
		for i := range all.Items {
			exists[client.ObjectKeyFromObject(&all.Items[i])] = true
		}
	}
	return r.Store.Sweep(func(namespace, name string) bool {
		return exists[types.NamespacedName{Namespace: namespace, Name: name}]
	})
}

// setup builds the controller. A RenderedSource, the artifact that it publishes and the one that it
// renders trigger a reconcile.
func (r *Reconciler) setup(mgr ctrl.Manager) (controller.Controller, error) {
	fair := managers.NewFairness(waiting, waiting/4)
	requested := predicate.Or(predicate.GenerationChangedPredicate{},
		predicates.ReconcileRequestedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("renderedsource").
		For(&api.RenderedSource{}, builder.WithPredicates(requested)).
		Owns(newSource(externalArtifact),
			builder.WithPredicates(predicate.NewPredicateFuncs(r.publishes))).
		Watches(newSource(externalArtifact), handler.EnqueueRequestsFromMapFunc(r.renderedFrom),
			builder.WithPredicates(predicate.Funcs{UpdateFunc: artifactChanged})).
		WithOptions(fair.Options(firstRetry, lastRetry)).
		Build(fair.Share(r.Reconcile))
}

// publishes reports whether an ExternalArtifact has the name of a RenderedSource of the shard.
func (r *Reconciler) publishes(o client.Object) bool {
	err := r.Client.Get(context.Background(), client.ObjectKeyFromObject(o), &api.RenderedSource{},
		client.UnsafeDisableDeepCopy)
	return r.Shard.Key == "" || !apierrors.IsNotFound(err)
}

// artifactChanged reports whether a source has another artifact.
func artifactChanged(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*unstructured.Unstructured)
	after, ok2 := e.ObjectNew.(*unstructured.Unstructured)
	return !ok1 || !ok2 || !equality.Semantic.DeepEqual(rawArtifact(before), rawArtifact(after))
}

// rawArtifact returns status.artifact of a source, or nil if it has none.
func rawArtifact(source *unstructured.Unstructured) any {
	artifact, _, _ := unstructured.NestedFieldNoCopy(source.Object, "status", "artifact")
	return artifact
}

// renderedFrom returns the RenderedSources of a source.
func (r *Reconciler) renderedFrom(ctx context.Context, o client.Object) (out []reconcile.Request) {
	namespace := o.GetNamespace()
	if r.CrossNamespace {
		namespace = metav1.NamespaceAll
	}
	var all api.RenderedSourceList
	if err := r.Client.List(ctx, &all, client.InNamespace(namespace),
		client.UnsafeDisableDeepCopy); err != nil {
		key := client.ObjectKeyFromObject(o)
		ctrl.LoggerFrom(ctx).Error(err, "listing the RenderedSources of a source", "source", key)
		return nil
	}
	kind := o.GetObjectKind().GroupVersionKind().Kind
	for i := range all.Items {
		if all.Items[i].Spec.SourceRef.Kind == kind &&
			originKey(&all.Items[i]) == client.ObjectKeyFromObject(o) {
			out = append(out,
				reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return out
}

// slim removes from a cached source everything except its artifact.
func slim(in any) (any, error) {
	if u, ok := in.(*unstructured.Unstructured); ok && u.GetKind() != externalArtifact {
		artifact := rawArtifact(u)
		delete(u.Object, "spec")
		delete(u.Object, "status")
		if artifact != nil {
			u.Object["status"] = map[string]any{"artifact": artifact}
		}
	}
	return process.Slim(in)
}
