// Package controller fills the catalog: it asks agents for their cards and MCP
// servers for their tools, stores what they answer and reports it in status. One
// reconciler serves all kinds (source 002). It asks the network outside of any
// transaction and holds no lock; the store orders its writers.
package controller

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
)

// Reconciler brings objects and the catalog together.
type Reconciler struct {
	// Client reads from the caches and writes to the API server.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Store of the catalog.
	Store store.Store
	// Events reports to users what went wrong; nil reports nothing.
	Events events.EventRecorder
	// Dial opens connections to agents and servers.
	Dial ask.Dial
	// Roots are trusted with agents' certificates; nil is the system's.
	Roots *x509.CertPool
	// ServerPeriod is how often MCP servers are asked; zero means 2 minutes.
	ServerPeriod time.Duration
	// CardTimeout bounds the fetch of one card; zero means 10 seconds.
	CardTimeout time.Duration
	// CardKeys is a folder with the keys that verify agent cards, as cardkeys.Read reads
	// them; "" is none.
	CardKeys string
	// Now is the time; nil is time.Now.
	Now func() time.Time

	memory   *ask.Budget
	backoff  workqueue.TypedRateLimiter[store.Key]
	metrics  *metrics
	cardKeys keyFolder
}

// How long to wait before a failed agent or server is queried again: doubled each time.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 10 * time.Minute
)

// storeTimeout of what one reconcile asks of the store at a time: one that hangs
// must not occupy the workers forever.
const storeTimeout = 30 * time.Second

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Init readies a reconciler whose fields are set.
func (r *Reconciler) Init() *Reconciler {
	if r.Dial == nil {
		r.Dial = ask.GuardedDial(nil)
	}
	if r.CardTimeout == 0 {
		r.CardTimeout = 10 * time.Second
	}
	if r.ServerPeriod == 0 {
		r.ServerPeriod = 2 * time.Minute
	}
	r.memory = ask.NewBudget()
	r.backoff = workqueue.NewTypedItemExponentialFailureRateLimiter[store.Key](firstRetry, lastRetry)
	r.metrics = newMetrics(r.Store)
	return r
}

// answer is what asking for one object's agent or server gave.
type answer struct {
	entry store.Entry
	// replace says that the entry's items are all there are; else those stored
	// before stay.
	replace bool
	// err is why not all went well.
	err error
	// next is when to ask again while all goes well; zero is never.
	next time.Duration
	// write puts what was found into the object's status; nil changes nothing.
	write func()
	// lock is how a server's tools compare with the lock of its package.
	lock lock
}

// fail keeps the last good answer and says what went wrong.
func (a *answer) fail(err error) {
	a.err = err
	a.entry.Health, a.entry.Message = store.Failing, ask.Reason(err)
}

// asking one kind of object. before is what the catalog knows, without items; memory
// is held for what is answered, until it is stored.
type asking func(r *Reconciler, ctx context.Context, o client.Object, before store.Entry, memory *ask.Share) (answer, error)

// Reconcile one object of a kind.
func (r *Reconciler) Reconcile(ctx context.Context, k Kind, request reconcile.Request) (reconcile.Result, error) {
	key := store.Key{Resource: k.Resource, Namespace: request.Namespace, Name: request.Name}
	o := k.New()
	if err := r.Client.Get(ctx, request.NamespacedName, o); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("reading %s %s: %w", k.Resource, request, err)
		}
		r.backoff.Forget(key)
		storing, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		return reconcile.Result{}, r.Store.Delete(storing, key)
	}
	before, err := known(ctx, r.Store, key, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	began := time.Now()
	memory := r.memory.Share(request.Namespace)
	defer memory.Release()
	a, err := k.ask(r, ctx, o, before, memory)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s %s: %w", k.Resource, request, err)
	}
	r.metrics.asked(k.Resource, a, time.Since(began))
	if err := r.keep(ctx, a, before); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.report(ctx, o, a, before); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return reconcile.Result{RequeueAfter: time.Second}, nil // the cache is behind
		}
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: r.after(key, a)}, nil
}

// known is what the catalog knows of an object: what is stored, else what its
// status reports, which is stored at once.
func known(ctx context.Context, s store.Store, key store.Key, o client.Object) (store.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	stored, err := s.Summary(ctx, key)
	if err == nil && stored.UID == string(o.GetUID()) {
		return stored, nil
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return stored, err
	}
	e := kinds.New(o, store.Entry{})
	_, err = s.Replace(ctx, e)
	return e, err
}

// keep what was answered.
func (r *Reconciler) keep(ctx context.Context, a answer, before store.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	e := a.entry
	e.Changed = r.now()
	if !a.replace {
		e.Counts = before.Counts
		_, err := r.Store.Upsert(ctx, e)
		return err
	}
	_, err := r.Store.Replace(ctx, e)
	return err
}

// after is when to ask again: after the period, or sooner and then ever later
// for one that fails. Jitter spreads those that began at once.
func (r *Reconciler) after(key store.Key, a answer) time.Duration {
	if a.err == nil {
		r.backoff.Forget(key)
		if a.next == 0 {
			return 0
		}
		return wait.Jitter(a.next, 0.1)
	}
	return wait.Jitter(r.backoff.When(key), 0.2)
}

// report writes what changed to status and as an event.
func (r *Reconciler) report(ctx context.Context, o client.Object, a answer, before store.Entry) error {
	if a.write != nil {
		old := o.DeepCopyObject().(client.Object)
		a.write()
		if err := r.Client.Status().Patch(ctx, o, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("writing the status of %s %s/%s: %w", a.entry.Resource, o.GetNamespace(), o.GetName(), err)
		}
		r.metrics.wrote(a.entry.Resource)
	}
	if r.Events != nil && before.ToolLock != a.entry.ToolLock && a.entry.ToolLock == store.ToolsDrifted {
		r.Events.Eventf(o, nil, corev1.EventTypeWarning, string(store.ToolsDrifted), "Discover", "%s", a.lock.message)
	}
	if r.Events != nil && a.entry.Signature == api.SignatureInvalid && before.Signature != a.entry.Signature {
		r.Events.Eventf(o, nil, corev1.EventTypeWarning, "CardSignatureInvalid", "Verify", "the card of a pod is not the one that was signed")
	}
	if r.Events == nil || before.Health == a.entry.Health && before.Message == a.entry.Message {
		return nil
	}
	switch a.entry.Health {
	case store.Failing, store.Degraded:
		r.Events.Eventf(o, nil, corev1.EventTypeWarning, "DiscoveryFailed", "Discover", "%s", a.entry.Message)
	case store.Healthy:
		r.Events.Eventf(o, nil, corev1.EventTypeNormal, "Discovered", "Discover", "%s", found(a.entry))
	}
	return nil
}

// found describes what an entry offers, such as "2 skills".
func found(e store.Entry) string {
	counts := map[string]int{}
	for _, i := range e.Items {
		counts[i.Kind]++
	}
	var parts []string
	for _, kind := range []string{store.Skill, store.Tool, store.Resource, store.Prompt} {
		switch n := counts[kind]; {
		case n == 1:
			parts = append(parts, "1 "+kind)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", n, kind))
		}
	}
	if len(parts) == 0 {
		return "answered"
	}
	return strings.Join(parts, ", ")
}

// condition states whether the last answer was good.
func condition(list *[]metav1.Condition, kind string, generation int64, a answer, now time.Time) {
	c := metav1.Condition{Type: kind, ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now).Rfc3339Copy()}
	switch a.entry.Health {
	case store.Healthy:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Discovered", found(a.entry)
	case store.Degraded:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Degraded", a.entry.Message
	case store.Unknown:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "Pending", a.entry.Message
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "DiscoveryFailed", a.entry.Message
	}
	meta.SetStatusCondition(list, c)
}

// serverKind is what differs between the kinds of MCP servers.
type serverKind struct {
	// endpoint says where a server is, and notes it in its entry.
	endpoint func(context.Context, *Reconciler, client.Object, *store.Entry) (ask.Endpoint, error)
	// status gives the write of what was found, or nil where the status says it.
	status func(client.Object, answer, time.Time) func()
}

var remoteServer = serverKind{
	endpoint: func(ctx context.Context, r *Reconciler, object client.Object, e *store.Entry) (ask.Endpoint, error) {
		o := object.(*kagent.RemoteMCPServer)
		e.URL, e.Protocol = o.Spec.URL, kinds.Protocol(o.Spec.Protocol == kagent.SSE)
		at, err := ask.RemoteEndpoint(ctx, r.Live, o)
		at.Description = o.Spec.Description
		return at, err
	},
	status: func(object client.Object, a answer, now time.Time) func() {
		o := object.(*kagent.RemoteMCPServer)
		want := o.DeepCopyObject().(*kagent.RemoteMCPServer).Status
		want.ObservedGeneration = o.Generation
		if a.replace {
			want.DiscoveredTools = statusTools(a.entry.Items)
		}
		condition(&want.Conditions, kagent.ConditionAccepted, o.Generation, a, now)
		lockCondition(&want.Conditions, o, a, now)
		if equality.Semantic.DeepEqual(want, o.Status) {
			return nil
		}
		return func() { o.Status = want }
	},
}

var server = serverKind{
	endpoint: func(ctx context.Context, r *Reconciler, object client.Object, e *store.Entry) (ask.Endpoint, error) {
		e.URL = kinds.ServiceOf(object.(*kagent.MCPServer))
		if err := r.noteImages(ctx, e); err != nil {
			return ask.Endpoint{}, err
		}
		return ask.Endpoint{URL: e.URL, Timeout: 30 * time.Second, Terminate: true}, nil
	},
	status: func(object client.Object, a answer, now time.Time) func() {
		o := object.(*kagent.MCPServer)
		want := o.DeepCopyObject().(*kagent.MCPServer).Status
		condition(&want.Conditions, api.ConditionDiscovered, o.Generation, a, now)
		lockCondition(&want.Conditions, o, a, now)
		if equality.Semantic.DeepEqual(want, o.Status) {
			return nil
		}
		return func() { o.Status = want }
	},
}

// askServer lists what an MCP server of a kind offers.
func askServer(k serverKind) asking {
	return func(r *Reconciler, ctx context.Context, o client.Object, before store.Entry, memory *ask.Share) (answer, error) {
		a := answer{entry: kinds.New(o, before), next: r.ServerPeriod}
		at, err := k.endpoint(ctx, r, o, &a.entry)
		var found *ask.Discovery
		if err == nil {
			found, err = ask.Discover(ctx, r.Dial, at, memory)
		}
		if err == nil {
			a.lock, err = r.judgeLock(ctx, o, before, found.Items, memory)
		}
		if err != nil && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			return a, err // the API server's, not the MCP server's
		}
		if err != nil {
			a.fail(err)
		} else {
			a.entry.ToolLock = a.lock.state
			found.Fill(&a.entry, at)
			a.entry.Fetched, a.replace, a.next = r.now(), true, max(a.next, found.Fresh)
		}
		a.write = k.status(o, a, r.now())
		return a, nil
	}
}

// Limits of the tools in a status: 1000 of 512 bytes fit into an object.
const (
	maxStatusTools       = 1000
	maxStatusDescription = 512
)

func statusTools(items []store.Item) (out []kagent.MCPTool) {
	for _, i := range items {
		if i.Kind != store.Tool || len(out) == maxStatusTools {
			continue
		}
		out = append(out, kagent.MCPTool{Name: clip(i.Name, 256), Description: clip(i.Description, maxStatusDescription)})
	}
	return out
}

func clip(text string, limit int) string {
	if len(text) <= limit {
		return strings.ToValidUTF8(text, "")
	}
	return strings.ToValidUTF8(text[:limit-3], "") + "…"
}

// askNobody stores what an object says. kagent's Agent is one: kagent runs it.
func (r *Reconciler) askNobody(_ context.Context, o client.Object, _ store.Entry, _ *ask.Share) (answer, error) {
	return answer{entry: kinds.New(o, store.Entry{}), replace: true, next: r.ServerPeriod}, nil
}
