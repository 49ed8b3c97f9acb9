// Package controller publishes what RenderedSources render as ExternalArtifacts
// of Flux (RFC-0012). It fetches the archive of a source, renders it in memory,
// stores the result under the name of its digest and then points the
// ExternalArtifact to it, so that whatever fails or dies on the way leaves the
// last good artifact in place. It holds no lock while it waits for the network.
package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/deliver/flux/build"
)

// program introduces itself with this name.
const program = "armature-controller"

// requestedAt is Flux's annotation that asks for a reconciliation at once.
const requestedAt = "reconcile.fluxcd.io/requestedAt"

// Types and reasons of conditions, as Flux has them.
const (
	readyCondition       = "Ready"
	reconcilingCondition = "Reconciling"
	stalledCondition     = "Stalled"

	reasonSucceeded     = "Succeeded"
	reasonRetry         = "ProgressingWithRetry"
	reasonAccessDenied  = "AccessDenied"
	reasonSource        = "SourceNotReady"
	reasonFetch         = "FetchFailed"
	reasonInvalidSource = "InvalidArchive"
	reasonRender        = "RenderFailed"
	reasonPolicy        = "InvalidPolicy"
	reasonVerify        = "VerificationFailed"
	reasonStorage       = "StorageFailed"
	reasonPublish       = "PublishFailed"
	reasonConflict      = "NameConflict"
	reasonCycle         = "CyclicSource"
)

// How soon a failure that may pass is tried again: doubled each time.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

// attemptTimeout of all requests that one reconciliation makes.
const attemptTimeout = 3 * time.Minute

// previousFor is how long the archive before the published one is kept.
const previousFor = 10 * time.Minute

// Reconciler publishes RenderedSources.
type Reconciler struct {
	// Client reads sources from the cache, and writes.
	Client client.Client
	// Live reads what this controller writes, which in a cache may be a moment old:
	// a decision on that would be written a second time.
	Live   client.Reader
	Store  *Store
	Events events.EventRecorder
	Limits archive.Limits
	// Build identifies the running program: another one may render differently.
	Build string
	// Base is the address that archives are served at, such as
	// http://armature-sources.armature-system.svc.cluster.local.
	Base string

	// Registries carries requests about signatures; nil is oci.Transport().
	Registries http.RoundTripper
	// VerifyTimeout of all signatures of one render.
	VerifyTimeout time.Duration
	// CrossNamespace lets RenderedSources refer to sources of other namespaces.
	CrossNamespace bool

	fetcher *fetcher
	metrics *metrics
	// slots are for fetching and rendering, which take memory and CPU. Waiting for
	// registries takes none.
	slots   chan struct{}
	backoff workqueue.TypedRateLimiter[reconcile.Request]
}

// failure is why nothing new was published.
type failure struct {
	reason string
	// stalled says that trying again does not help: the source or the spec has to change.
	stalled bool
	err     error
}

// Reconcile one RenderedSource.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (result reconcile.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	source := &api.RenderedSource{}
	if err := r.Live.Get(ctx, request.NamespacedName, source); apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.forget(request)
	} else if err != nil {
		return reconcile.Result{}, err
	}
	if !source.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, r.finalize(ctx, source, request)
	}
	if source.Spec.Suspend {
		return reconcile.Result{}, nil
	}
	begun := time.Now()
	defer func() {
		r.metrics.durations.WithLabelValues(api.Kind, source.Name, source.Namespace).Observe(time.Since(begun).Seconds())
	}()
	if !controllerutil.ContainsFinalizer(source, keys.FinalizerSource) {
		before := source.DeepCopy()
		controllerutil.AddFinalizer(source, keys.FinalizerSource)
		if err := r.Client.Patch(ctx, source, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return reconcile.Result{}, fmt.Errorf("adding the finalizer: %w", err)
		}
	}
	before := source.DeepCopy()
	failed := r.attempt(ctx, source)
	r.report(source, before, failed)
	if !equality.Semantic.DeepEqual(before.Status, source.Status) {
		if err := r.Client.Status().Patch(ctx, source, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("writing status: %w", err)
		}
	}
	interval, err := time.ParseDuration(source.Spec.Interval)
	if err != nil || interval <= 0 {
		interval = 10 * time.Minute // which the CRD has as default
	}
	if failed != nil && !failed.stalled {
		return reconcile.Result{RequeueAfter: min(interval, r.backoff.When(request))}, nil
	}
	r.backoff.Forget(request)
	return reconcile.Result{RequeueAfter: interval}, nil
}

// forget what is kept of an object that was deleted.
func (r *Reconciler) forget(request reconcile.Request) error {
	r.backoff.Forget(request)
	r.metrics.forget(request.Namespace, request.Name)
	return r.Store.Remove(request.Namespace, request.Name)
}

// finalize withdraws the ExternalArtifact before its archives go. Consumers keep
// what they applied.
func (r *Reconciler) finalize(ctx context.Context, source *api.RenderedSource, request reconcile.Request) error {
	if !controllerutil.ContainsFinalizer(source, keys.FinalizerSource) {
		return nil
	}
	if err := r.withdraw(ctx, source); err != nil {
		return err
	}
	if err := r.forget(request); err != nil {
		return err
	}
	before := source.DeepCopy()
	controllerutil.RemoveFinalizer(source, keys.FinalizerSource)
	err := r.Client.Patch(ctx, source, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	return client.IgnoreNotFound(err)
}

// attempt to bring what is published up to date. It changes status.artifact when
// that has been published, and nothing else of the object.
func (r *Reconciler) attempt(ctx context.Context, source *api.RenderedSource) *failure {
	origin, failed := r.origin(ctx, source)
	if failed != nil {
		return failed
	}
	demanded, failed := r.demands(ctx, source)
	if failed != nil {
		return failed
	}
	inputs := inputsOf(r.Build, source, origin, demanded)
	last := source.Status.Artifact
	asked := source.Annotations[requestedAt] != source.Status.LastHandledReconcileAt
	if last != nil && last.Inputs == inputs && !asked && r.Store.Holds(source.Namespace, source.Name, last.Digest, last.Size) {
		last.URL = r.url(source, last.Digest)
		if failed := r.publish(ctx, source, last, origin); failed != nil {
			return failed
		}
		return collect(r.Store, source, last)
	}
	next, failed := r.render(ctx, source, origin, demanded)
	if failed != nil {
		return failed
	}
	next.Inputs = inputs
	if last != nil && last.Revision == next.Revision {
		next.LastUpdateTime = last.LastUpdateTime
	}
	if failed := r.publish(ctx, source, next, origin); failed != nil {
		return failed
	}
	source.Status.Artifact = next
	return collect(r.Store, source, next)
}

func originKey(source *api.RenderedSource) client.ObjectKey {
	ref := source.Spec.SourceRef
	return client.ObjectKey{Namespace: cmp.Or(ref.Namespace, source.Namespace), Name: ref.Name}
}

// origin is the artifact to render.
func (r *Reconciler) origin(ctx context.Context, source *api.RenderedSource) (*fluxArtifact, *failure) {
	ref, key := source.Spec.SourceRef, originKey(source)
	if key.Namespace != source.Namespace && !r.CrossNamespace {
		return nil, &failure{reasonAccessDenied, true, fmt.Errorf("%s %s is in another namespace: a RenderedSource may only refer to its own, unless the operator sets --no-cross-namespace-refs=false", ref.Kind, key)}
	}
	if failed := r.cycle(ctx, source); failed != nil {
		return nil, failed
	}
	o := newSource(ref.Kind)
	err := r.Client.Get(ctx, key, o)
	switch {
	case meta.IsNoMatchError(err):
		return nil, &failure{reasonSource, false, fmt.Errorf("the cluster has no %s: install Flux's source-controller", ref.Kind)}
	case apierrors.IsNotFound(err):
		return nil, &failure{reasonSource, false, fmt.Errorf("%s %s does not exist", ref.Kind, ref.Name)}
	case err != nil:
		return nil, &failure{reasonSource, false, fmt.Errorf("reading %s %s: %w", ref.Kind, ref.Name, err)}
	}
	artifact, err := artifactOf(o)
	switch {
	case err != nil:
		return nil, &failure{reasonSource, true, err}
	case artifact == nil:
		return nil, &failure{reasonSource, false, fmt.Errorf("%s %s has no artifact yet", ref.Kind, ref.Name)}
	}
	if err := r.fetcher.check(artifact.URL, ref.Kind, key); err != nil {
		return nil, &failure{reasonAccessDenied, true, err}
	}
	return artifact, nil
}

// inputsOf is a digest of all that a render depends on.
func inputsOf(program string, source *api.RenderedSource, origin *fluxArtifact, d demands) string {
	all := []string{program, origin.Digest, origin.Revision, source.Spec.Path, source.Spec.Config}
	if d.digest != "" {
		all = append(all, d.digest)
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // strings can be written as JSON
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// render fetches, renders, verifies and stores.
func (r *Reconciler) render(ctx context.Context, source *api.RenderedSource, origin *fluxArtifact, d demands) (*api.Artifact, *failure) {
	if failed := r.verifyOrigin(ctx, source, origin, d); failed != nil {
		return nil, failed
	}
	made, packed, failed := r.build(ctx, source, origin, d.images != nil)
	if failed != nil {
		return nil, failed
	}
	if failed := verifyImages(ctx, r.VerifyTimeout, origin, made.Images, d); failed != nil {
		return nil, failed
	}
	digest := archive.Digest(packed)
	if err := r.Store.Put(source.Namespace, source.Name, digest, packed); err != nil {
		return nil, &failure{reasonStorage, false, err}
	}
	return &api.Artifact{
		Revision: origin.Revision + "+" + digest, Digest: digest, Size: int64(len(packed)), URL: r.url(source, digest),
		LastUpdateTime: metav1.Now().Rfc3339Copy(), OriginRevision: origin.Revision,
		Objects: int32(made.Objects), Workloads: int32(made.Stats.Workloads),
	}, nil
}

// build fetches, renders and packs, in one of the slots.
func (r *Reconciler) build(ctx context.Context, source *api.RenderedSource, origin *fluxArtifact, images bool) (made build.Result, packed []byte, failed *failure) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return made, nil, &failure{reasonFetch, false, fmt.Errorf("no worker was free in time: %w", ctx.Err())}
	}
	data, err := r.fetcher.get(ctx, origin.URL, r.Limits.Archive)
	switch {
	case errors.Is(err, archive.ErrLimit):
		return made, nil, &failure{reasonInvalidSource, true, err}
	case err != nil:
		return made, nil, &failure{reasonFetch, false, err}
	}
	files, err := archive.Open(data, origin.Digest, r.Limits)
	if err != nil {
		// A source that moves on while it is fetched has another digest a moment later.
		return made, nil, &failure{reasonInvalidSource, !errors.Is(err, archive.ErrDigest), fmt.Errorf("the archive of %s: %w", origin.Revision, err)}
	}
	made = build.Run(files, build.Options{Path: source.Spec.Path, Config: source.Spec.Config, Images: images})
	if krm.Failed(made.Findings) {
		return made, nil, &failure{reasonRender, true, errors.New(summary(origin.Revision, made.Findings))}
	}
	packed, err = archive.Write(made.Files)
	if err != nil {
		return made, nil, &failure{reasonStorage, false, err}
	}
	made.Files = nil // packed has them
	return made, packed, nil
}

// url that an archive is served at.
func (r *Reconciler) url(source *api.RenderedSource, digest string) string {
	return r.Base + "/" + archivePath(source.Namespace, source.Name, digest)
}

// collect removes the archives that the published one replaces.
func collect(s *Store, source *api.RenderedSource, published *api.Artifact) *failure {
	if err := s.Collect(source.Namespace, source.Name, published.Digest, time.Now(), previousFor); err != nil {
		return &failure{reasonStorage, false, err}
	}
	return nil
}

// summary has the errors of a render, as many as a condition shows well.
func summary(revision string, findings []krm.Finding) string {
	var texts []string
	for _, f := range findings {
		if f.Severity == krm.Error {
			texts = append(texts, f.String())
		}
	}
	return list(revision+" does not render", texts)
}

// list has as many of texts as a condition shows well, below a title.
func list(title string, texts []string) string {
	var b strings.Builder
	b.WriteString(title)
	shown := 0
	for _, text := range texts {
		if len(texts) == 1 && len(text) > 1900 {
			text = text[:1900] + "…"
		}
		if b.Len()+len(text) < 2000 {
			b.WriteString("\n" + text)
			shown++
		}
	}
	if len(texts) > shown {
		fmt.Fprintf(&b, "\nand %d more", len(texts)-shown)
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// report writes the outcome into status, and what changed as an event.
func (r *Reconciler) report(source, before *api.RenderedSource, failed *failure) {
	s := &source.Status
	s.ObservedGeneration = source.Generation
	s.LastHandledReconcileAt = source.Annotations[requestedAt]
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: source.Generation})
	}
	if failed == nil || failed.stalled {
		meta.RemoveStatusCondition(&s.Conditions, reconcilingCondition)
	}
	if failed == nil || !failed.stalled {
		meta.RemoveStatusCondition(&s.Conditions, stalledCondition)
	}
	r.metrics.attempted(source, failed)
	if failed == nil {
		message := fmt.Sprintf("published %s of %s", krm.Count(int(s.Artifact.Objects), "object"), s.Artifact.OriginRevision)
		set(readyCondition, metav1.ConditionTrue, reasonSucceeded, message)
		if before.Status.Artifact == nil || before.Status.Artifact.Revision != s.Artifact.Revision || !meta.IsStatusConditionTrue(before.Status.Conditions, readyCondition) {
			emit(r.Events, source, corev1.EventTypeNormal, reasonSucceeded, message)
		}
		return
	}
	message := failed.err.Error()
	if s.Artifact != nil {
		message += "\n" + s.Artifact.OriginRevision + " stays published"
	}
	set(readyCondition, metav1.ConditionFalse, failed.reason, message)
	if failed.stalled {
		set(stalledCondition, metav1.ConditionTrue, failed.reason, message)
	} else {
		set(reconcilingCondition, metav1.ConditionTrue, reasonRetry, message)
	}
	if c := meta.FindStatusCondition(before.Status.Conditions, readyCondition); c == nil || c.Reason != failed.reason || c.Message != message {
		emit(r.Events, source, corev1.EventTypeWarning, failed.reason, message)
	}
}

// emit reports to users. The API takes 1 KiB.
func emit(to events.EventRecorder, source *api.RenderedSource, kind, reason, message string) {
	if len(message) > 1000 {
		message = strings.ToValidUTF8(message[:1000], "") + "…"
	}
	to.Eventf(source, nil, kind, reason, "Render", "%s", message)
}
