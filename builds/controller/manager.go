package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attester"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/library"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/builds/registry"
	"github.com/armature-dev/armature/builds/report"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/trigger"
	"github.com/armature-dev/armature/builds/writeback/imageupdate"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/copies"
	"github.com/armature-dev/armature/render/process/managers"
)

// Options are the options of the controller. Namespace also has the shared templates.
type Options struct {
	process.Options
	Settings compose.Settings
	// Pod is the name of the controller's own pod, in Namespace. Steps that ask for the
	// controller's image get the image of this pod; "" keeps Settings.ControllerImage.
	Pod string
	// Concurrency is how many builds are reconciled at the same time; zero means 8.
	Concurrency int
	// WaitForChains keeps a run until Tekton Chains has signed it.
	WaitForChains bool
	// Attest configures attestation of the images of attested modes.
	Attest attester.Options
	// Dial opens connections to Git servers and registries. It returns
	// gitremote.ErrForbiddenAddress for addresses that tenants may not reach. Required.
	Dial gitremote.Dial
	// RebuildRate is how many runs a changed template or step starts in a minute; zero means 10. A
	// build keeps its result until its turn.
	RebuildRate int
	// MaxRunning and MaxRunningPerNamespace limit the runs under way, in total and in one
	// namespace; further builds wait in a queue. Zero is unlimited. If one is set, an annotation of
	// a Namespace may lower its limit.
	MaxRunning, MaxRunningPerNamespace int
	// Isolated limits the isolated runs of each namespace of builds.
	Isolated runs.Limits
	// QueueName is the LocalQueue of Kueue that admits the runs of builds without the label
	// kueue.x-k8s.io/queue-name; empty disables Kueue.
	QueueName string
	// LostAfter is how long Tekton has to notice that it lost a pod before the run is stopped; zero
	// means one minute.
	LostAfter time.Duration
	// WebhookAddress accepts webhooks for spec.trigger, for example :9292; empty accepts none.
	// WebhookCertDir has its tls.crt and tls.key; empty serves plain HTTP.
	WebhookAddress, WebhookCertDir string
	// LogLines is how many lines of a failed step's log status keeps; zero keeps none.
	LogLines int64
	// Traces creates the spans of builds; nil creates none.
	Traces *traces.Tracer
}

// fieldOwner is the controller's name in managed fields, and lease the name of its leader's lease.
const (
	fieldOwner = "armature-controller"
	lease      = "armature-builds"
)

// newScheme returns the scheme of the controller, with AgentBuild in group. Its PipelineRun has
// only the fields that the controller reads.
func newScheme(group string) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	api.AddToScheme(scheme, group)
	if err := updates.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	tekton := tektonv1.SchemeGroupVersion
	copies.AddKind[runs.PipelineRun](scheme, tekton)
	scheme.AddKnownTypes(tekton, &tektonv1.TaskRun{}, &tektonv1.TaskRunList{}, &tektonv1.Pipeline{})
	return scheme, nil
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, cfg *rest.Config, o Options) error {
	o.Settings.Group = cmp.Or(o.Settings.Group, api.DefaultGroup)
	if o.Dial == nil {
		return errors.New("no Dial says which Git servers may be asked")
	}
	o.Concurrency = cmp.Or(o.Concurrency, 8)
	o.LostAfter, o.RebuildRate = cmp.Or(o.LostAfter, time.Minute), cmp.Or(o.RebuildRate, 10)
	o.Settings.ShardLabel = o.Shard.Key
	cfg = o.Client(cfg, fieldOwner, 500) // A burst of builds stays below this rate.
	scheme, err := newScheme(o.Settings.Group)
	if err != nil {
		return err
	}
	options := managers.Options(o.Options, scheme, lease)
	options.Controller = config.Controller{UsePriorityQueue: ptr.To(true)}
	limitCache(&options.Cache, o)
	if err := awaitTekton(ctx, cfg, options, o.Settings.Group); err != nil || ctx.Err() != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return fmt.Errorf("setting up the controller: %w", err)
	}
	store := &runs.Store{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Shard: o.Shard,
		BuildNamespace: o.Settings.BuildNamespace, Instance: o.Settings.Instance(o.Namespace),
	}
	// This client reads and creates PipelineRuns with their specs.
	store.Tekton, err = process.RESTClient(cfg, "/apis", tektonv1.SchemeGroupVersion)
	if err != nil {
		return fmt.Errorf("setting up the client of PipelineRuns: %w", err)
	}
	if o.Pod != "" {
		if o.Settings.ControllerImage, err = readImage(ctx, mgr.GetAPIReader(),
			types.NamespacedName{Namespace: o.Namespace, Name: o.Pod}); err != nil {
			return err
		}
	}
	logs, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("setting up the log reader: %w", err)
	}
	woken := make(chan event.GenericEvent)
	r := newReconciler(ctx, o, mgr, store, logs, func(build types.NamespacedName) {
		select {
		case woken <- event.GenericEvent{
			Object: &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace,
				Name: build.Name}}}:
		case <-ctx.Done():
		}
	})
	if err := process.Register(r.metrics.set...); err != nil {
		return err
	}
	if err := r.setup(ctx, mgr, woken, o.Concurrency); err != nil {
		return err
	}
	access := git.Access{
		Options: o.Options, Live: mgr.GetAPIReader(), Dial: o.Dial,
		Forges: &forge.Clients{Dial: o.Dial}, PlainHTTP: o.Settings.PlainHTTPHosts,
		Group: o.Settings.Group, FieldOwner: fieldOwner, Traces: o.Traces,
	}
	err = multi.Errors(
		imageupdate.Setup(mgr, imageupdate.Options{Access: access,
			Statement: attester.NewVerifier(r.attester, r.library).Statement}),
		report.Setup(mgr, access),
		trigger.Setup(mgr, trigger.Options{Access: access, Address: o.WebhookAddress,
			CertDir: o.WebhookCertDir, Observe: r.metrics.request("poll")}))
	if err != nil {
		return err
	}
	unclaimed := func(ctx context.Context, key client.ObjectKey, problem error) error {
		b := &api.AgentBuild{}
		if err := mgr.GetAPIReader().Get(ctx, key, b); err != nil {
			return err
		}
		r.retrying(ctx, &observation{build: b}, problem)
		return nil
	}
	if err := multi.Errors(
		managers.Unclaimed{Options: o.Options, Lease: lease, Kind: &api.AgentBuildList{},
			Report: unclaimed}.Setup(mgr),
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("caches", cachesReady(mgr.GetCache())),
	); err != nil {
		return fmt.Errorf("setting up the probes: %w", err)
	}
	return mgr.Start(ctx)
}

// newReconciler returns a Reconciler with its dependencies. wake requests a reconcile of a build.
func newReconciler(ctx context.Context, o Options, mgr ctrl.Manager, store *runs.Store,
	logs typedcorev1.PodsGetter, wake func(types.NamespacedName)) *Reconciler {
	cached, live := mgr.GetClient(), mgr.GetAPIReader()
	metrics := newMetrics(cached, store.BuildOf)
	metrics.traces, o.Attest.Observe = o.Traces, metrics.request("attest")
	r := &Reconciler{
		starter: starter{
			settings: o.Settings, client: cached, live: live, runs: store, metrics: metrics,
			verdicts: &compose.Verdicts{},
			library: &library.Library{
				Cache: cached, Live: live, Namespace: o.Namespace,
				Watched: func(namespace string) bool {
					return len(o.Namespaces) == 0 || namespace == o.Namespace ||
						slices.Contains(o.Namespaces, namespace)
				},
			},
			git:    git.NewResolver(ctx, live, o.Dial, wake, metrics.request("commit")),
			pushes: registry.NewPushes(ctx, live, o.Settings.PlainHTTPHosts, o.Dial, wake),
			attester: attester.New(ctx, o.Attest, o.Namespace, o.Settings.PlainHTTPHosts, store,
				o.Dial, wake),
			queue: &queue.Queue{
				Max: o.MaxRunning, PerNamespace: o.MaxRunningPerNamespace, Isolated: o.Isolated,
				Cache: cached, Live: live, SlotOf: store.SlotOf, Wake: wake,
			},
		},
		events:   mgr.GetEventRecorder(fieldOwner),
		failures: &failure.Reader{Live: live, Logs: logs, LogLines: o.LogLines},
		rebuilds: managers.NewQuestions[struct{}](ctx, managers.QuestionOptions{
			Name: "rebuild", Workers: 4, MostOfOne: 1, Timeout: time.Hour, Wake: wake,
		}),
		rebuildRate: rate.NewLimiter(rate.Limit(float64(o.RebuildRate)/60), o.RebuildRate),
		waits: workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](
			firstRecheck, lastRecheck),
		lostAfter: o.LostAfter, waitForChains: o.WaitForChains,
	}
	if o.Shard.Key != "" {
		r.queue.IsolatedOf = store.IsolatedOf
	}
	if o.QueueName != "" {
		r.kueue = &queue.Kueue{
			QueueName: o.QueueName, Runs: store, Cache: mgr.GetCache(), Client: cached,
			FieldOwner: fieldOwner,
		}
	}
	return r
}

// setup adds the controller to a manager. A change of a build, of its runs or of the ConfigMaps
// that it is composed from starts a reconcile, as does a build that is received from woken.
func (r *Reconciler) setup(ctx context.Context, mgr ctrl.Manager, woken <-chan event.GenericEvent,
	concurrency int) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &runs.PipelineRun{}, runs.OwnerIndex,
		r.runs.IndexOf); err != nil {
		return fmt.Errorf("indexing runs by their build: %w", err)
	}
	// All caches fill at the same time; the controller would start one after the other.
	for _, o := range []client.Object{&api.AgentBuild{}, process.MetadataOf("v1", "ConfigMap")} {
		if _, err := mgr.GetCache().GetInformer(ctx, o, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("setting up the cache of %T: %w", o, err)
		}
	}
	c := ctrl.NewControllerManagedBy(mgr).
		Named("agentbuild").
		For(&api.AgentBuild{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: specChanged})).
		Watches(&runs.PipelineRun{}, r.runEvents()).
		WatchesRawSource(source.Channel(woken, &handler.EnqueueRequestForObject{})).
		WatchesMetadata(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.library.Seekers)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			// Each failure doubles the wait. There is no limit of the total rate, because a burst
			// of builds is not a failure.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				100*time.Millisecond, time.Minute),
			SkipNameValidation: ptr.To(true),
		})
	if r.queue.Limited() {
		next := handler.EnqueueRequestsFromMapFunc(r.queue.NextRequests)
		for _, o := range []client.Object{&api.AgentBuild{}, &runs.PipelineRun{}} {
			if err := mgr.GetFieldIndexer().IndexField(ctx, o, queue.Index, queue.IndexOf); err != nil {
				return fmt.Errorf("indexing what the queue counts: %w", err)
			}
			c.Watches(o, next, builder.WithPredicates(queue.Leaves))
		}
		if err := mgr.Add(manager.RunnableFunc(r.queue.Watch)); err != nil {
			return fmt.Errorf("setting up the queue: %w", err)
		}
	}
	if r.kueue != nil {
		if err := mgr.GetFieldIndexer().IndexField(ctx, queue.NewWorkload(), runs.OwnerIndex,
			r.runs.IndexOf); err != nil {
			return fmt.Errorf(
				"indexing the Workloads of Kueue, which --queue-name asks to admit runs: %w", err)
		}
		c.Watches(queue.NewWorkload(), r.runEvents())
	}
	if err := c.Complete(r); err != nil {
		return fmt.Errorf("setting up the controller: %w", err)
	}
	return nil
}

// specChanged ignores the controller's own writes of status and finalizer.
func specChanged(e event.UpdateEvent) bool {
	a, b := e.ObjectOld, e.ObjectNew
	return a.GetGeneration() != b.GetGeneration() ||
		(a.GetDeletionTimestamp() == nil) != (b.GetDeletionTimestamp() == nil) ||
		!maps.Equal(a.GetAnnotations(), b.GetAnnotations()) ||
		completed(a) != completed(b)
}

// completed returns the name of the last run whose end is in status. When it changes, the build is
// reconciled once more to prune its runs.
func completed(o client.Object) string {
	b, ok := o.(*api.AgentBuild)
	if !ok || b.Status.CompletionTime == nil {
		return ""
	}
	return b.Status.PipelineRunName
}

// runEvents returns the handler that enqueues the build of a run with low priority: in a burst
// every run is created before the first status is written.
func (r *Reconciler) runEvents() handler.Funcs {
	type queued = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queued) {
			// A new held run is about to be released.
			if age := time.Since(e.Object.GetCreationTimestamp().Time); !r.isHeld(e.Object) ||
				age > firstRecheck {
				r.enqueueBuild(e.Object, q)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queued) {
			before, ok1 := e.ObjectOld.(*runs.PipelineRun)
			after, ok2 := e.ObjectNew.(*runs.PipelineRun)
			sameOwner := slices.Equal(r.runs.IndexOf(e.ObjectOld), r.runs.IndexOf(e.ObjectNew))
			if ok1 && ok2 && sameOwner && runs.Read(before).Done() == runs.Read(after).Done() &&
				before.Spec.Status == after.Spec.Status &&
				(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) &&
				maps.Equal(before.Annotations, after.Annotations) {
				return // Status does not report progress within the run.
			}
			r.enqueueBuild(e.ObjectNew, q)
			if !sameOwner {
				r.enqueueBuild(e.ObjectOld, q) // This build lost its run.
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queued) {
			if !r.isHeld(e.Object) {
				r.enqueueBuild(e.Object, q)
			}
		},
	}
}

// isHeld reports whether an isolated run may not begin yet.
func (r *Reconciler) isHeld(o client.Object) bool {
	return r.runs.IsIsolated(o) && o.GetAnnotations()[keys.AnnotationHeld] != ""
}

func (r *Reconciler) enqueueBuild(o client.Object,
	q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	build, ok := r.runs.BuildOf(o)
	if !ok {
		return
	}
	request := reconcile.Request{NamespacedName: build}
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority)}, request)
		return
	}
	q.Add(request)
}

// limitCache restricts the cache to the builds and runs of the shard, to runs without their specs,
// and to the metadata of ConfigMaps.
func limitCache(c *cache.Options, o Options) {
	c.DefaultTransform = slim
	own := cache.ByObject{
		Label:     labels.SelectorFromSet(labels.Set{compose.LabelManagedBy: compose.ManagedBy}),
		Transform: runs.Slim}
	shard := o.Shard.Selector()
	if shard != nil {
		requirements, _ := shard.Requirements()
		own.Label = own.Label.Add(requirements...)
	}
	if len(o.Namespaces) > 0 && o.Settings.BuildNamespace != "" {
		own.Namespaces = maps.Clone(c.DefaultNamespaces)
		own.Namespaces[o.Settings.BuildNamespace] = cache.Config{}
	}
	c.ByObject = map[client.Object]cache.ByObject{&runs.PipelineRun{}: own,
		&api.AgentBuild{}: {Label: shard}}
	if o.QueueName != "" {
		c.ByObject[queue.NewWorkload()] = cache.ByObject{Namespaces: own.Namespaces}
	}
	if len(o.Namespaces) > 0 {
		shared := maps.Clone(c.DefaultNamespaces)
		shared[o.Namespace] = cache.Config{}
		c.ByObject[&corev1.ConfigMap{}] = cache.ByObject{Namespaces: shared}
	}
}

func slim(in any) (any, error) {
	if m, ok := in.(*metav1.PartialObjectMetadata); ok {
		m.Annotations, m.OwnerReferences = nil, nil
		maps.DeleteFunc(m.Labels, library.NotShared)
	}
	return process.Slim(in)
}

// cachesReady returns the readiness check that fails until the caches are filled.
func cachesReady(c cache.Cache) healthz.Checker {
	return func(request *http.Request) error {
		ctx, cancel := context.WithTimeout(request.Context(), time.Second)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}
}

// ownContainer is the name of the controller's container. Others of the pod may be injected.
const ownContainer = "controller"

// readImage returns the image of the controller's own pod. Steps that run a command of the
// controller use this image, however the controller was installed.
func readImage(ctx context.Context, c client.Reader, name types.NamespacedName) (string, error) {
	var pod corev1.Pod
	if err := c.Get(ctx, name, &pod); err != nil {
		return "", fmt.Errorf(
			"reading the controller's own image from Pod %s, whose name is in POD_NAME: %w", name, err)
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == ownContainer {
			return container.Image, nil
		}
	}
	return "", fmt.Errorf("Pod %s, whose name is in POD_NAME, has no container %q: give the "+
		"controller's container that name", name, ownContainer)
}
