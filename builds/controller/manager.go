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

	"github.com/fluxcd/pkg/ssa"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
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
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/version"
)

// Options of a controller process.
type Options struct {
	Settings compose.Settings
	// Namespace of the controller: shared templates, and the leader's lease.
	Namespace string
	// Pod is the controller's own, in Namespace. Its image is that of the steps that ask
	// for the controller's; empty leaves Settings.ControllerImage as it is.
	Pod string
	// Namespaces to look after; empty means all, which needs cluster-wide rights.
	Namespaces []string
	// LeaderElection lets one replica of several work.
	LeaderElection bool
	// MetricsAddress and HealthAddress to listen on; "0" listens nowhere.
	MetricsAddress string
	HealthAddress  string
	// Concurrency is how many builds are worked on at once; zero means 8.
	Concurrency int
	// QPS of requests to the API server, which guards itself by priority and
	// fairness; zero means 500, which a burst of builds does not reach.
	QPS float32
	// WaitForChains keeps a run until Tekton Chains has signed it.
	WaitForChains bool
	// AttestKey names the Secret in Namespace with the key that attests, as cosign makes
	// it, or a key of a KMS, such as awskms:///alias/attest, whose program is on the PATH
	// (sign.KMSProgram). Empty means the Secret armature-attest-key.
	AttestKey string
	// Keyless makes the identity of the controller attest instead of a key; nil leaves it
	// at AttestKey.
	Keyless *Keyless
	// SummaryPolicy names the ConfigMap in Namespace with the VerifyPolicy by which attested
	// images get a verification summary; empty means that none does.
	SummaryPolicy string
	// ChainsKey names the ConfigMap in Namespace whose cosign.pub is the public key of
	// Tekton Chains, which then attests instead of the controller; empty means that the
	// controller does.
	ChainsKey string
	// Dial opens connections to Git servers and registries. It refuses with ErrForbiddenAddress
	// those that tenants may not have asked. It must be set.
	Dial Dial
	// RebuildRate is how many runs a minute a changed template or step starts; zero
	// means 10. Until a build's turn comes its result stays as it is.
	RebuildRate int
	// MaxRunning and MaxRunningPerNamespace are how many runs are under way at once, of
	// all builds and of those of one namespace; further ones wait in a queue. Zero is
	// unlimited. Where one is set, an annotation may lower a namespace's.
	MaxRunning, MaxRunningPerNamespace int
	// LostAfter is how long Tekton has to notice that it lost a pod, before the run is
	// stopped; zero means one minute.
	LostAfter time.Duration
	// LogLines of a failed step that status keeps; zero keeps none.
	LogLines int64
	Log      logr.Logger
}

// Keyless is how the controller signs by the identity of its workload. All fields are
// required.
type Keyless struct {
	// Token is a file with an OpenID token for the audience sigstore. It is read for each
	// run, and may be replaced at any time.
	Token string
	// TrustedRoot is a file with a trusted root of Sigstore in JSON, which vouches for the
	// authorities at Fulcio and Timestamps. It is read for each run.
	TrustedRoot string
	// Fulcio issues certificates to the identity, and Timestamps (RFC 3161) says that a
	// signature was made while its certificate was valid. They are URLs.
	Fulcio, Timestamps string
}

// DefaultAttestKey is the Secret whose key attests, where Options name none.
const DefaultAttestKey = "armature-attest-key"

// DefaultChainsKey is the ConfigMap with the public key of Tekton Chains, where it
// attests and nobody names another.
const DefaultChainsKey = "armature-chains-key"

// Scheme knows the kinds that the controller works with, AgentBuild in group.
func Scheme(group string) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), tektonv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	api.AddToScheme(scheme, group)
	return scheme, nil
}

// ownScheme is the controller's: it reads of a run only what it needs.
func ownScheme(group string) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	api.AddToScheme(scheme, group)
	tekton := tektonv1.SchemeGroupVersion
	scheme.AddKnownTypeWithName(tekton.WithKind("PipelineRun"), &PipelineRun{})
	scheme.AddKnownTypeWithName(tekton.WithKind("PipelineRunList"), &PipelineRunList{})
	scheme.AddKnownTypes(tekton, &tektonv1.TaskRun{}, &tektonv1.TaskRunList{})
	metav1.AddToGroupVersion(scheme, tekton)
	return scheme, nil
}

// runClient creates PipelineRuns.
func runClient(cfg *rest.Config, mgr ctrl.Manager) (rest.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = "/apis", &tektonv1.SchemeGroupVersion
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientForConfigAndClient(cfg, mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("setting up the client of PipelineRuns: %w", err)
	}
	return c, nil
}

// Run the controller until ctx ends.
func Run(ctx context.Context, cfg *rest.Config, o Options) error {
	if o.Settings.Group == "" {
		o.Settings.Group = api.DefaultGroup
	}
	if o.Dial == nil {
		return errors.New("no Dial says which Git servers may be asked")
	}
	if o.Concurrency == 0 {
		o.Concurrency = 8
	}
	cfg = rest.CopyConfig(cfg)
	if cfg.QPS = o.QPS; cfg.QPS == 0 {
		cfg.QPS = 500
	}
	cfg.Burst = int(2 * cfg.QPS)
	cfg.UserAgent = version.UserAgent("armature-controller")
	scheme, err := ownScheme(o.Settings.Group)
	if err != nil {
		return err
	}
	options := ctrl.Options{
		Scheme:                        scheme,
		Logger:                        o.Log,
		Cache:                         cacheOptions(o),
		Metrics:                       metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress:        o.HealthAddress,
		LeaderElection:                o.LeaderElection,
		LeaderElectionID:              "armature-builds",
		LeaderElectionNamespace:       o.Namespace,
		LeaderElectionReleaseOnCancel: true,
		Controller:                    config.Controller{UsePriorityQueue: ptr.To(true)},
	}
	if err := awaitTekton(ctx, cfg, options, o.Settings.Group); err != nil || ctx.Err() != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return fmt.Errorf("setting up the controller: %w", err)
	}
	// Before the cache of Secrets would be: none is ever listed.
	direct, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("setting up the client: %w", err)
	}
	key, err := readRunKey(ctx, direct, o.Namespace)
	if err != nil {
		return err
	}
	if o.Pod != "" {
		if o.Settings.ControllerImage, err = readImage(ctx, direct, types.NamespacedName{Namespace: o.Namespace, Name: o.Pod}); err != nil {
			return err
		}
	}
	logs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("setting up the log reader: %w", err)
	}
	runs, err := runClient(cfg, mgr)
	if err != nil {
		return err
	}
	r := &Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Runs: runs, Logs: logs,
		Apply:  ssa.NewResourceManager(mgr.GetClient(), nil, ssa.Owner{Field: "armature-controller", Group: keys.Group}),
		Events: mgr.GetEventRecorder("armature-controller"), Settings: o.Settings,
		Namespace: o.Namespace, Namespaces: o.Namespaces, RunKey: key, AttestKey: cmp.Or(o.AttestKey, DefaultAttestKey), Keyless: o.Keyless, SummaryPolicy: o.SummaryPolicy, ChainsKey: o.ChainsKey, WaitForChains: o.WaitForChains, LogLines: o.LogLines, lostAfter: cmp.Or(o.LostAfter, defaultLostAfter),
		metrics: newMetrics(mgr.GetClient()), rebuilds: newRebuilds(cmp.Or(o.RebuildRate, defaultRebuildRate)),
	}
	r.git.dial, r.woken = o.Dial, make(chan event.GenericEvent)
	r.git.wake = func(build types.NamespacedName) {
		select {
		case r.woken <- event.GenericEvent{Object: &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: build.Name}}}:
		case <-ctx.Done():
		}
	}
	r.queue = newQueue(o.MaxRunning, o.MaxRunningPerNamespace, r.git.wake)
	r.metrics.queue.of = r.queue
	r.attests.wake, r.attests.within, r.attests.over = r.git.wake, attestTimeout, ctx
	r.attests.most, r.attests.mostOfOne = attestRunning, attestRunningOfOne
	for _, c := range r.metrics.collectors() {
		if err := ctrlmetrics.Registry.Register(c); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	if err := r.setup(ctx, mgr, o.Concurrency); err != nil {
		return err
	}
	if err := errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("caches", cachesReady(mgr.GetCache())),
	); err != nil {
		return fmt.Errorf("setting up the probes: %w", err)
	}
	return mgr.Start(ctx)
}

// setup says what wakes a reconcile: the build, its runs, the ConfigMaps it was
// composed from, and the answer of its Git server.
func (r *Reconciler) setup(ctx context.Context, mgr ctrl.Manager, concurrency int) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &PipelineRun{}, ownerIndex, ownerOf); err != nil {
		return fmt.Errorf("indexing runs by their build: %w", err)
	}
	// All caches fill at once; the controller would start one after the other.
	for _, o := range []client.Object{&api.AgentBuild{}, configMapMetadata()} {
		if _, err := mgr.GetCache().GetInformer(ctx, o, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("setting up the cache of %T: %w", o, err)
		}
	}
	if r.queue != nil {
		if err := errors.Join(r.watchRuns(ctx, mgr.GetCache()), mgr.Add(manager.RunnableFunc(r.keepQueue))); err != nil {
			return fmt.Errorf("setting up the queue: %w", err)
		}
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("agentbuild").
		For(&api.AgentBuild{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: specChanged})).
		Watches(&PipelineRun{}, runEvents{}).
		WatchesRawSource(source.Channel(r.woken, &handler.EnqueueRequestForObject{})).
		WatchesMetadata(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.buildsOf)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			// Each failure doubles the wait; the whole has no bucket, since a burst
			// of builds is not a failure.
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, time.Minute),
			SkipNameValidation: ptr.To(true),
		}).
		Complete(r)
	if err != nil {
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

// completed names the last run that status holds the end of: a build is woken
// once more when that changes, to prune its runs.
func completed(o client.Object) string {
	b, ok := o.(*api.AgentBuild)
	if !ok || b.Status.CompletionTime == nil {
		return ""
	}
	return b.Status.PipelineRunName
}

// runEvents wake the build that owns a run, after builds that still lack one:
// in a burst every run exists before the first status is written.
type runEvents struct{}

func (runEvents) Create(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	enqueueOwner(e.Object, q)
}

func (runEvents) Update(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	before, ok1 := e.ObjectOld.(*PipelineRun)
	after, ok2 := e.ObjectNew.(*PipelineRun)
	if ok1 && ok2 && readRun(before).done() == readRun(after).done() && before.Spec.Status == after.Spec.Status &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) &&
		maps.Equal(before.Annotations, after.Annotations) && slices.Equal(ownerOf(before), ownerOf(after)) {
		return // progress inside the run, which is not in status
	}
	enqueueOwner(e.ObjectNew, q)
	if ok1 && ok2 && !slices.Equal(ownerOf(before), ownerOf(after)) {
		enqueueOwner(e.ObjectOld, q) // it lost its run
	}
}

func (runEvents) Delete(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	enqueueOwner(e.Object, q)
}

func (runEvents) Generic(context.Context, event.GenericEvent, workqueue.TypedRateLimitingInterface[reconcile.Request]) {
}

func enqueueOwner(o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	owner := metav1.GetControllerOf(o)
	if owner == nil || owner.Kind != api.Kind {
		return
	}
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}}
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority)}, request)
		return
	}
	q.Add(request)
}

// buildsOf a ConfigMap: all builds when any ever asked for that name. Most
// ConfigMaps of a cluster concern none.
func (r *Reconciler) buildsOf(ctx context.Context, o client.Object) []reconcile.Request {
	if !r.texts.matters(o.GetName()) {
		return nil
	}
	var list api.AgentBuildList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing the builds that a ConfigMap concerns", "configMap", o.GetName())
		return nil
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

// cacheOptions keep little: our runs without their specs, builds without managed
// fields, ConfigMaps by metadata alone.
func cacheOptions(o Options) cache.Options {
	mine := labels.SelectorFromSet(labels.Set{compose.LabelManagedBy: compose.ManagedBy})
	out := cache.Options{
		DefaultTransform:            slim,
		ReaderFailOnMissingInformer: false,
		ByObject: map[client.Object]cache.ByObject{
			&PipelineRun{}: {Label: mine, Transform: slimRun},
		},
	}
	if len(o.Namespaces) > 0 {
		out.DefaultNamespaces = map[string]cache.Config{}
		shared := map[string]cache.Config{o.Namespace: {}}
		for _, n := range o.Namespaces {
			out.DefaultNamespaces[n] = cache.Config{}
			shared[n] = cache.Config{}
		}
		out.ByObject[&corev1.ConfigMap{}] = cache.ByObject{Namespaces: shared}
	}
	return out
}

// slim drops what nobody reads from an object that enters the cache.
func slim(in any) (any, error) {
	if o, ok := in.(client.Object); ok {
		o.SetManagedFields(nil)
		if a := o.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
			delete(a, corev1.LastAppliedConfigAnnotation)
			o.SetAnnotations(a)
		}
	}
	if m, ok := in.(*metav1.PartialObjectMetadata); ok {
		m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil
	}
	return in, nil
}

// cachesReady answers the readiness probe: a controller without its caches would
// decide on nothing.
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
