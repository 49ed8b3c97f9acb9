// Package controller publishes rendered sources as ExternalArtifacts of Flux (RFC-0012). It fetches
// the archive of a source, renders it in memory, stores the result under the name of its digest,
// and then points the ExternalArtifact to it. After a failure or a crash, the last good artifact
// stays published. It holds no lock while it waits for the network.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/deliver/flux/build"
	"github.com/armature-dev/armature/render/process"
)

// program is the name of this program in requests and objects.
const program = "armature-controller"

// These are the reasons of conditions, in addition to those of Flux.
const (
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
	reasonShard         = "NoShard"
)

const (
	// firstRetry and lastRetry bound the backoff of a temporary failure.
	firstRetry, lastRetry = time.Second, 5 * time.Minute
	// attemptTimeout bounds all requests of one reconciliation.
	attemptTimeout = 3 * time.Minute
	// previousFor is how long the archive before the published one is retained.
	previousFor = 10 * time.Minute
	// defaultInterval is the default of the CRD.
	defaultInterval = 10 * time.Minute
)

// Reconciler publishes RenderedSources.
type Reconciler struct {
	Options
	// Client reads sources from the cache, and writes.
	Client client.Client
	// Live reads the objects that this controller writes, since a stale cache would lead to a
	// second write.
	Live   client.Reader
	Store  *Store
	Events events.EventRecorder
	// Build identifies the running program, since another one may render differently.
	Build string
	// Base is the address at which archives are served, such as
	// http://armature-sources.armature-system.svc.cluster.local.
	Base string

	// Registries sends requests about signatures. Nil is oci.Transport().
	Registries http.RoundTripper

	fetcher *fetcher
	metrics *recorder
	// renders bounds fetching and rendering, which need memory, unlike waiting for registries.
	renders *semaphore.Weighted
	backoff workqueue.TypedRateLimiter[reconcile.Request]
}

// Reconcile reconciles one RenderedSource.
func (r *Reconciler) Reconcile(ctx context.Context,
	request reconcile.Request) (result reconcile.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	source := &api.RenderedSource{}
	if err := r.Live.Get(ctx, request.NamespacedName, source); apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.forget(request)
	} else if err != nil {
		return reconcile.Result{}, err
	}
	if !r.Shard.Has(source) {
		return r.leave(source, request)
	}
	if !source.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, r.finalize(ctx, source, request)
	}
	if source.Spec.Suspend {
		return reconcile.Result{}, nil
	}
	begun := time.Now()
	defer func() {
		r.metrics.flux.RecordDuration(reference(source.Namespace, source.Name), begun)
	}()
	if err := mark(ctx, r.Client, source, controllerutil.AddFinalizer); err != nil {
		return reconcile.Result{}, fmt.Errorf("adding the finalizer: %w", err)
	}
	before := source.DeepCopy()
	failed := r.attempt(ctx, source)
	if err := r.finish(ctx, r.Client, source, before, failed); err != nil {
		return reconcile.Result{}, err
	}
	interval, err := time.ParseDuration(source.Spec.Interval)
	if err != nil || interval <= 0 {
		interval = defaultInterval
	}
	if failed != nil && !failed.Stalled {
		return reconcile.Result{RequeueAfter: min(interval, r.backoff.When(request))}, nil
	}
	r.backoff.Forget(request)
	return reconcile.Result{RequeueAfter: interval}, nil
}

// forget removes the state of an object that was deleted.
func (r *Reconciler) forget(request reconcile.Request) error {
	r.backoff.Forget(request)
	r.metrics.forget(request.Namespace, request.Name)
	return r.Store.Remove(request.Namespace, request.Name)
}

// leave leaves a RenderedSource to another shard. It retains the archives until the other shard has
// published one, because consumers fetch them from here.
func (r *Reconciler) leave(source *api.RenderedSource,
	request reconcile.Request) (reconcile.Result, error) {
	if a := source.Status.Artifact; a != nil && a.URL == r.url(source, a.Digest) {
		return reconcile.Result{RequeueAfter: previousFor}, nil
	}
	return reconcile.Result{}, r.forget(request)
}

// finalize deletes the ExternalArtifact before its archives. Consumers keep the objects that they
// applied.
func (r *Reconciler) finalize(ctx context.Context, source *api.RenderedSource,
	request reconcile.Request) error {
	if !controllerutil.ContainsFinalizer(source, keys.FinalizerSource) {
		return nil
	}
	if err := r.withdraw(ctx, source); err != nil {
		return err
	}
	if err := r.forget(request); err != nil {
		return err
	}
	return client.IgnoreNotFound(mark(ctx, r.Client, source, controllerutil.RemoveFinalizer))
}

// mark adds or removes the finalizer.
func mark(ctx context.Context, c client.Client, source *api.RenderedSource,
	change func(client.Object, string) bool) error {
	before := source.DeepCopy()
	if !change(source, keys.FinalizerSource) {
		return nil
	}
	return c.Patch(ctx, source,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// attempt renders and publishes the current source and spec. Of the object, it changes only
// status.artifact, after that was published.
func (r *Reconciler) attempt(ctx context.Context, source *api.RenderedSource) *process.Failure {
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
	requested := source.Annotations[meta.ReconcileRequestAnnotation] !=
		source.Status.LastHandledReconcileAt
	if last != nil && last.Inputs == inputs && !requested &&
		r.Store.Holds(source.Namespace, source.Name, last.Digest, last.Size) {
		last.URL = r.url(source, last.Digest)
		return r.publish(ctx, source, last, origin)
	}
	next, failed := r.render(ctx, source, origin, demanded)
	if failed != nil {
		return failed
	}
	next.Inputs = inputs
	if last != nil && last.Revision == next.Revision {
		next.LastUpdateTime = last.LastUpdateTime
	}
	return r.publish(ctx, source, next, origin)
}

func originKey(source *api.RenderedSource) client.ObjectKey {
	ref := source.Spec.SourceRef
	return client.ObjectKey{Namespace: cmp.Or(ref.Namespace, source.Namespace), Name: ref.Name}
}

// origin returns the artifact to render.
func (r *Reconciler) origin(ctx context.Context,
	source *api.RenderedSource) (*meta.Artifact, *process.Failure) {
	ref, key := source.Spec.SourceRef, originKey(source)
	if key.Namespace != source.Namespace && !r.CrossNamespace {
		return nil, process.Stalled(reasonAccessDenied,
			fmt.Errorf("%s %s is in another namespace: a RenderedSource "+
				"may only refer to its own, unless the operator sets "+
				"--no-cross-namespace-refs=false",
				ref.Kind, key))
	}
	if failed := r.cycle(ctx, source); failed != nil {
		return nil, failed
	}
	unready := func(text string, args ...any) (*meta.Artifact, *process.Failure) {
		return nil, process.Retry(reasonSource, fmt.Errorf(text, args...))
	}
	o := newSource(ref.Kind)
	err := r.Client.Get(ctx, key, o)
	switch {
	case apimeta.IsNoMatchError(err):
		return unready("the cluster has no %s: install Flux's source-controller", ref.Kind)
	case apierrors.IsNotFound(err):
		return unready("%s %s does not exist", ref.Kind, ref.Name)
	case err != nil:
		return unready("reading %s %s: %w", ref.Kind, ref.Name, err)
	}
	artifact, err := artifactOf(o)
	switch {
	case err != nil:
		return nil, process.Stalled(reasonSource, err)
	case artifact == nil:
		return unready("%s %s has no artifact yet", ref.Kind, ref.Name)
	}
	if err := r.fetcher.check(artifact.URL, ref.Kind, key); err != nil {
		return nil, process.Stalled(reasonAccessDenied, err)
	}
	return artifact, nil
}

// inputsOf returns a digest of all inputs of a render.
func inputsOf(program string, source *api.RenderedSource, origin *meta.Artifact, d demands) string {
	return archive.Digest(fmt.Appendf(nil, "%q", []string{program, origin.Digest, origin.Revision,
		source.Spec.Path, source.Spec.Config, d.digest}))
}

// render verifies, fetches, renders and stores a source.
func (r *Reconciler) render(ctx context.Context, source *api.RenderedSource, origin *meta.Artifact,
	d demands) (*api.Artifact, *process.Failure) {
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
		return nil, process.Retry(reasonStorage, err)
	}
	return &api.Artifact{
		Revision: origin.Revision + "+" + digest, Digest: digest, Size: int64(len(packed)),
		URL: r.url(source, digest), LastUpdateTime: metav1.Now().Rfc3339Copy(),
		OriginRevision: origin.Revision, Objects: int32(made.Objects),
		Workloads: int32(made.Stats.Workloads),
	}, nil
}

// build fetches, renders and packs a source. r.renders bounds the concurrent builds.
func (r *Reconciler) build(ctx context.Context, source *api.RenderedSource, origin *meta.Artifact,
	images bool) (made build.Result, packed []byte, failed *process.Failure) {
	if err := r.renders.Acquire(ctx, 1); err != nil {
		return made, nil, process.Retry(reasonFetch,
			fmt.Errorf("no worker was free in time: %w", err))
	}
	defer r.renders.Release(1)
	data, err := r.fetcher.get(ctx, origin.URL, archive.DefaultLimits.Archive)
	if errors.Is(err, archive.ErrLimit) {
		return made, nil, process.Stalled(reasonInvalidSource, err)
	} else if err != nil {
		return made, nil, process.Retry(reasonFetch, err)
	}
	files, err := archive.Open(data, origin.Digest, archive.DefaultLimits)
	if err != nil {
		// A source that changes while it is fetched has another digest: retry.
		err = fmt.Errorf("the archive of %s: %w", origin.Revision, err)
		return made, nil, &process.Failure{Reason: reasonInvalidSource,
			Stalled: !errors.Is(err, archive.ErrDigest), Err: err}
	}
	made = build.Run(files, build.Options{Path: source.Spec.Path, Config: source.Spec.Config,
		Images: images})
	var texts []string
	for _, f := range made.Findings {
		if f.Severity == finding.Error {
			texts = append(texts, f.String())
		}
	}
	if len(texts) > 0 {
		return made, nil, process.Stalled(reasonRender,
			errors.New(list(origin.Revision+" does not render", texts)))
	}
	packed, err = archive.Write(made.Files)
	if err != nil {
		return made, nil, process.Retry(reasonStorage, err)
	}
	made.Files = nil // free the memory: packed has the files
	return made, packed, nil
}

// url returns the address at which an archive is served.
func (r *Reconciler) url(source *api.RenderedSource, digest string) string {
	return r.Base + "/" + archivePath(source.Namespace, source.Name, digest)
}

// list returns a title and as many texts as fit well into a condition.
func list(title string, texts []string) string {
	var b strings.Builder
	b.WriteString(title)
	shown := 0
	for _, one := range texts {
		if len(texts) == 1 {
			one = text.Cut(one, 1900)
		}
		if b.Len()+len(one) < 2000 {
			b.WriteString("\n" + one)
			shown++
		}
	}
	if len(texts) > shown {
		fmt.Fprintf(&b, "\nand %d more", len(texts)-shown)
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// finish writes the result to status if it differs, and records a change as an event.
func (r *Reconciler) finish(ctx context.Context, c client.Client,
	source, before *api.RenderedSource, failed *process.Failure) error {
	s := &source.Status
	s.ObservedGeneration = source.Generation
	s.LastHandledReconcileAt = source.Annotations[meta.ReconcileRequestAnnotation]
	was := apimeta.FindStatusCondition(before.Status.Conditions, meta.ReadyCondition)
	reason, kind, message, isNew := meta.SucceededReason, corev1.EventTypeNormal, "", false
	if failed == nil {
		message = fmt.Sprintf("published %s of %s", text.Count(int(s.Artifact.Objects), "object"),
			s.Artifact.OriginRevision)
		old := before.Status.Artifact
		isNew = old == nil || old.Revision != s.Artifact.Revision || was == nil ||
			was.Status != metav1.ConditionTrue
	} else {
		reason, kind, message = failed.Reason, corev1.EventTypeWarning, failed.Error()
		if s.Artifact != nil {
			message += "\n" + s.Artifact.OriginRevision + " stays published"
		}
		isNew = was == nil || was.Reason != reason || was.Message != message
	}
	r.metrics.attempted(source, reason)
	process.Conditions{List: &s.Conditions, Generation: source.Generation}.Report(failed, reason,
		message)
	if isNew {
		r.Events.Eventf(source, nil, kind, reason, "Render", "%s",
			text.Cut(message, 1000)) // the API accepts 1 KiB
	}
	if equality.Semantic.DeepEqual(before.Status, *s) {
		return nil
	}
	err := c.Status().Patch(ctx, source, client.MergeFrom(before))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing status: %w", err)
	}
	return nil
}
