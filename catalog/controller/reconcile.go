// Package controller fills the catalog: it asks agents for their cards and MCP servers for their
// tools, stores what they answer and reports it in status. One reconciler serves all kinds of
// catalog/kinds (source 002). It queries the network outside of any transaction and holds no lock;
// the store orders its writers.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/process"
)

// Reconciler brings objects and the catalog together.
type Reconciler struct {
	kinds.Asker
	// Shard of the objects to ask.
	Shard process.Shard
	// Events reports errors to users; nil reports nothing.
	Events events.EventRecorder

	memory  *answers.Budget
	backoff workqueue.TypedRateLimiter[store.Key]
	metrics *recorder
}

// How long to wait before a failed agent or server is queried again: doubled each time.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 10 * time.Minute
)

// storeTimeout limits each request to the store: a store that hangs must not occupy the workers
// forever.
const storeTimeout = 30 * time.Second

// Init prepares a reconciler whose fields are set. By default, addresses are guarded, a card has 10
// seconds, and MCP servers are asked every 2 minutes.
func (r *Reconciler) Init() *Reconciler {
	if r.Dial == nil {
		r.Dial = ask.GuardedDial(nil)
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	r.CardTimeout = cmp.Or(r.CardTimeout, 10*time.Second)
	r.ServerPeriod = cmp.Or(r.ServerPeriod, 2*time.Minute)
	r.memory = ask.NewBudget()
	r.backoff = workqueue.NewTypedItemExponentialFailureRateLimiter[store.Key](firstRetry, lastRetry)
	r.metrics = newMetrics(r.Store)
	return r
}

// Reconcile reconciles one object of a kind.
func (r *Reconciler) Reconcile(ctx context.Context, k kinds.Kind,
	request reconcile.Request) (reconcile.Result, error) {
	key := store.Key{Resource: k.Resource, Namespace: request.Namespace, Name: request.Name}
	o := k.New()
	if err := r.Client.Get(ctx, request.NamespacedName, o); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("reading %s %s: %w", k.Resource, request, err)
		}
		r.backoff.Forget(key)
		if r.Shard.Key != "" {
			have := &metav1.PartialObjectMetadata{}
			have.SetGroupVersionKind(k.GVK)
			if err := r.Live.Get(ctx, request.NamespacedName, have); !apierrors.IsNotFound(err) {
				return reconcile.Result{}, err // another shard asks it now
			}
		}
		storing, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		return reconcile.Result{}, r.Store.Delete(storing, key)
	}
	before, err := known(ctx, r.Store, k, key, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	began := time.Now()
	memory := r.memory.Share(request.Namespace)
	defer memory.Release()
	a, err := k.Ask(ctx, &r.Asker, o, before, memory)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s %s: %w", k.Resource, request, err)
	}
	r.metrics.asked(k.Resource, a.Failure != nil, time.Since(began))
	if err := r.keep(ctx, a, before); err != nil {
		return reconcile.Result{}, err
	}
	err = r.report(ctx, k, o, a, before)
	if apierrors.IsConflict(err) { // once more: the next answer will equal the stored one
		have := k.New()
		if live := r.Live.Get(ctx, request.NamespacedName, have); live == nil &&
			have.GetUID() == o.GetUID() && have.GetGeneration() == o.GetGeneration() &&
			maps.Equal(have.GetAnnotations(), o.GetAnnotations()) {
			err = r.report(ctx, k, have, a, before)
		}
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil // the cache is behind
	} else if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: r.after(key, a)}, nil
}

// unclaimed reports in the catalog, in status and as an event that the shard of an object has no
// leader.
func (r *Reconciler) unclaimed(ctx context.Context, k kinds.Kind, name client.ObjectKey,
	problem error) error {
	o := k.New()
	if err := r.Live.Get(ctx, name, o); err != nil {
		return err
	}
	before, err := known(ctx, r.Store, k, store.Key{Resource: k.Resource, Namespace: name.Namespace,
		Name: name.Name}, o)
	if err != nil {
		return err
	}
	a := k.Unasked(o, before, problem)
	return multi.Errors(r.keep(ctx, a, before), r.report(ctx, k, o, a, before))
}

// known returns the stored entry of an object, or else the one in its status, which it stores.
func known(ctx context.Context, s store.Followed, k kinds.Kind, key store.Key,
	o client.Object) (store.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	stored, err := s.Summary(ctx, key)
	if err == nil && stored.UID == string(o.GetUID()) {
		return stored, nil
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return stored, err
	}
	e := k.Entry(o, store.Entry{})
	_, err = s.Put(ctx, e, true)
	return e, err
}

// keep stores an answer.
func (r *Reconciler) keep(ctx context.Context, a *kinds.Answer, before store.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	e := a.Entry
	e.Changed = r.Now()
	if !a.Complete {
		e.Counts = before.Counts
	}
	_, err := r.Store.Put(ctx, e, a.Complete)
	return err
}

// after returns when to ask again: after the period or, after a failure, with a backoff. Jitter
// spreads requests that began together.
func (r *Reconciler) after(key store.Key, a *kinds.Answer) time.Duration {
	if a.Failure == nil {
		r.backoff.Forget(key)
		if a.Next == 0 {
			return 0
		}
		return wait.Jitter(a.Next, 0.1)
	}
	return wait.Jitter(r.backoff.When(key), 0.2)
}

// report writes changes to status and as an event.
func (r *Reconciler) report(ctx context.Context, k kinds.Kind, o client.Object, a *kinds.Answer,
	before store.Entry) error {
	old := o.DeepCopyObject().(client.Object)
	if k.Report(o, a, r.Now()) && !equality.Semantic.DeepEqual(old, o) {
		patch := client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})
		if err := r.Client.Status().Patch(ctx, o, patch); err != nil {
			return fmt.Errorf("writing the status of %s %s/%s: %w", k.Resource, o.GetNamespace(),
				o.GetName(), err)
		}
		r.metrics.writes.WithLabelValues(k.Resource).Inc()
	}
	if r.Events == nil {
		return nil
	}
	warn := func(reason, action, message string) {
		r.Events.Eventf(o, nil, corev1.EventTypeWarning, reason, action, "%s", message)
	}
	if a.Entry.ToolLock == store.ToolsDrifted && before.ToolLock != a.Entry.ToolLock {
		warn(string(store.ToolsDrifted), "Discover", a.Lock.Message)
	}
	if a.Entry.Signature == api.SignatureInvalid && before.Signature != a.Entry.Signature {
		warn("CardSignatureInvalid", "Verify", "the card of a pod is not the one that was signed")
	}
	if before.Health == a.Entry.Health && before.Message == a.Entry.Message {
		return nil
	}
	switch a.Entry.Health {
	case store.Failing, store.Degraded:
		warn("DiscoveryFailed", "Discover", a.Entry.Message)
	case store.Healthy:
		r.Events.Eventf(o, nil, corev1.EventTypeNormal, "Discovered", "Discover", "%s", a.Found())
	}
	return nil
}
