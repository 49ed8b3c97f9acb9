// Package imageupdate reconciles ImageUpdates: it runs builds/writeback whenever a build of the
// namespace has finished.
package imageupdate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	buildapi "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/writeback"
	"github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/managers"
)

// Options are the options of the controller. ImageUpdates of a shard write the builds of all
// shards: those of their own shard as soon as they have finished, and others at the interval.
type Options struct {
	git.Access
	// Statement returns the platform's attestation of an image of a build; see attester.Verifier.
	// It is required.
	Statement func(ctx context.Context, build *buildapi.AgentBuild,
		image string) (attest.Statement, error)
}

const (
	// workers is the number of concurrent reconciles, of which a namespace has one. Only writers of
	// them read histories and write, because a history may take memory and disk. A server that does
	// not answer occupies no writer.
	workers, writers = 16, 2
	// maxSilence is the longest pause of a server in an answer.
	maxSilence = 20 * time.Second
	// maxHistory bounds the history of a repository, in bytes of packs.
	maxHistory = 64 << 20
	// maxTime bounds one write-back with all its conversations.
	maxTime = 2 * time.Minute
	// maxInvalid is the time after which an invalid Secret or policy is read again.
	maxInvalid = 30 * time.Second
	// maxListed bounds the lists in status, and maxText each text in it, in bytes.
	maxListed, maxText = 100, 1024
)

type reconciler struct {
	client.Client
	Options
	events  events.EventRecorder
	writing chan struct{} // a semaphore of writers
}

// Setup adds the controller to a manager whose cache has AgentBuilds. It does nothing in a cluster
// without the CRD of ImageUpdate.
func Setup(mgr ctrl.Manager, o Options) error {
	if _, err := mgr.GetRESTMapper().RESTMapping(api.GroupVersion.WithKind(api.Kind).GroupKind(),
		api.GroupVersion.Version); meta.IsNoMatchError(err) {
		mgr.GetLogger().Info("the cluster has no ImageUpdate, so no image is written back: apply " +
			"the CRDs of this release")
		return nil
	} else if err != nil {
		return fmt.Errorf("looking for ImageUpdate: %w", err)
	}
	o.Dial = impatient(o.Dial, maxSilence)
	r := &reconciler{Client: mgr.GetClient(), Options: o,
		events: mgr.GetEventRecorder(o.FieldOwner), writing: make(chan struct{}, writers)}
	fair := managers.NewFairness(workers, 1) // slow servers of one namespace occupy one worker
	err := ctrl.NewControllerManagedBy(mgr).
		Named("imageupdate").
		For(&api.ImageUpdate{},
			builder.WithPredicates(
				predicate.NewPredicateFuncs(func(u client.Object) bool { return o.Shard.Has(u) }),
				predicate.Or(predicate.GenerationChangedPredicate{},
					predicate.LabelChangedPredicate{}))).
		Watches(&buildapi.AgentBuild{}, handler.EnqueueRequestsFromMapFunc(r.updatesOf),
			builder.WithPredicates(predicate.Funcs{
				UpdateFunc: func(e event.UpdateEvent) bool {
					before, after :=
						e.ObjectOld.(*buildapi.AgentBuild), e.ObjectNew.(*buildapi.AgentBuild)
					was, wasReady := writeback.Of(before)
					is, isReady := writeback.Of(after)
					return wasReady != isReady || was.Image != is.Image || was.Commit != is.Commit
				},
				// The lock keeps the image of a deleted build.
				DeleteFunc: func(event.DeleteEvent) bool { return false },
			})).
		WithOptions(fair.Options(time.Second, 5*time.Minute)).
		Complete(fair.Share(r.Reconcile))
	if err != nil {
		return fmt.Errorf("setting up the controller of ImageUpdates: %w", err)
	}
	return nil
}

// updatesOf returns the ImageUpdates of a build's namespace that name the build, or all builds.
func (r *reconciler) updatesOf(ctx context.Context, o client.Object) (out []reconcile.Request) {
	var all api.ImageUpdateList
	if err := r.List(ctx, &all, client.InNamespace(o.GetNamespace())); err != nil {
		return nil // reads of the cache do not fail
	}
	for _, u := range all.Items {
		if covers(&u, o.GetName()) && r.Shard.Has(&u) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&u)})
		}
	}
	return out
}

func covers(u *api.ImageUpdate, build string) bool {
	return len(u.Spec.Builds) == 0 || slices.Contains(u.Spec.Builds, build)
}

// Reconcile reconciles one ImageUpdate.
func (r *reconciler) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	var u api.ImageUpdate
	if err := r.Get(ctx, request.NamespacedName, &u); err != nil || u.DeletionTimestamp != nil ||
		!r.Shard.Has(&u) {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := u.DeepCopy()
	u.Status.ObservedGeneration = u.Generation
	if u.Spec.Suspend {
		r.report(&u, metav1.ConditionFalse, api.ReasonSuspended, "spec.suspend is true")
		return reconcile.Result{}, r.patch(ctx, before, &u)
	}
	builds, built, set, err := r.builds(ctx, &u)
	if err != nil {
		return reconcile.Result{}, err
	}
	interval, err := time.ParseDuration(u.Spec.Interval)
	if err != nil || interval <= 0 {
		interval = 10 * time.Minute
	}
	ready := meta.FindStatusCondition(before.Status.Conditions, api.ConditionReady)
	if last := before.Status.LastChecked; last != nil && ready != nil &&
		ready.Reason != api.ReasonFailed && ready.Reason != api.ReasonInvalid &&
		before.Status.Set == set &&
		before.Status.ObservedGeneration == u.Generation && time.Since(last.Time) < interval {
		return reconcile.Result{RequeueAfter: interval - time.Since(last.Time) + time.Second}, nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, maxTime,
		fmt.Errorf("it took more than %s", maxTime))
	defer cancel()
	err = r.update(limited, &u, builds, built)
	if ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	if err != nil && limited.Err() != nil {
		err = context.Cause(limited)
	}
	failed := failureOf(&u, err)
	r.outcome(&u, failed)
	if failed != nil && !failed.Stalled {
		return reconcile.Result{}, multi.Errors(r.patch(ctx, before, &u), failed)
	}
	now := metav1.Now()
	u.Status.Set, u.Status.LastChecked = set, &now
	if err := r.patch(ctx, before, &u); err != nil {
		return reconcile.Result{}, err
	}
	if failed != nil && failed.Reason == api.ReasonInvalid {
		interval = min(interval, maxInvalid) // a Secret or a policy is not watched
	}
	return reconcile.Result{RequeueAfter: interval}, nil
}

// builds returns the finished builds by name, their images, and a digest of the images.
func (r *reconciler) builds(ctx context.Context,
	u *api.ImageUpdate) (found map[string]*buildapi.AgentBuild, built []writeback.Built, set string,
	err error) {
	var all buildapi.AgentBuildList
	from := client.Reader(r)
	if r.Shard.Key != "" {
		from = r.Live
	}
	if err := from.List(ctx, &all, client.InNamespace(u.Namespace)); err != nil {
		return nil, nil, "", err
	}
	found = make(map[string]*buildapi.AgentBuild)
	var lines []string
	for i := range all.Items {
		b := &all.Items[i]
		if one, ready := writeback.Of(b); ready && covers(u, b.Name) {
			found[b.Name], built = b, append(built, one)
			lines = append(lines, one.Name+" "+one.Image+" "+one.Commit)
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return found, built, fmt.Sprintf("sha256:%x", sum), nil
}

// failureOf returns the error of an update as a failure, or nil.
func failureOf(u *api.ImageUpdate, err error) *process.Failure {
	stalled := func(reason string) *process.Failure { return process.Stalled(reason, err) }
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*process.Failure)):
	case errors.As(err, new(*gitremote.RefusedError)), errors.Is(err, forge.ErrRefused):
		if u.Spec.Policy != "pullRequest" {
			err = fmt.Errorf("%w\n  hint: if the branch is protected, set policy: pullRequest", err)
		}
		return stalled(api.ReasonRefused)
	case errors.As(err, new(*writeback.ForeignError)):
		return stalled(api.ReasonForeign)
	case errors.Is(err, writeback.ErrNoBranch), errors.Is(err, gitremote.ErrForbiddenAddress),
		errors.Is(err, forge.ErrUnauthorized), errors.Is(err, forge.ErrNotFound):
		return stalled(api.ReasonInvalid)
	}
	return process.FailureOf(err, api.ReasonFailed)
}

// invalid returns a failure that lasts until the spec, a Secret or a ConfigMap changes.
func invalid(format string, args ...any) *process.Failure {
	return process.Stalled(api.ReasonInvalid, fmt.Errorf(format, args...))
}

// outcome reports the result of an update in the condition.
func (r *reconciler) outcome(u *api.ImageUpdate, failed *process.Failure) {
	switch {
	case failed != nil:
		r.report(u, metav1.ConditionFalse, failed.Reason, failed.Error())
	case len(u.Status.Held) > 0:
		h := u.Status.Held[0]
		text := fmt.Sprintf("%s of build %s is held back: %s\n  hint: build a newer commit, or "+
			"list its digest in spec.accept", h.Image, h.Build, h.Why)
		if more := len(u.Status.Held) - 1; more > 0 {
			text = fmt.Sprintf("%s (and %d more, in status.held)", text, more)
		}
		r.report(u, metav1.ConditionFalse, api.ReasonHeldBack, text)
	case u.Status.PullRequest != "":
		r.report(u, metav1.ConditionTrue, api.ReasonProposed,
			"the pull request "+u.Status.PullRequest+" has the images")
	default:
		r.report(u, metav1.ConditionTrue, api.ReasonUpToDate,
			"the lock has the image of each finished build")
	}
}

// report sets the condition, and records an event if it changes.
func (r *reconciler) report(u *api.ImageUpdate, status metav1.ConditionStatus, reason, message string) {
	message = shorten(message)
	conditions := process.Conditions{List: &u.Status.Conditions, Generation: u.Generation}
	if conditions.Set(api.ConditionReady, status, reason, message) {
		kind := corev1.EventTypeNormal
		if status != metav1.ConditionTrue {
			kind = corev1.EventTypeWarning
		}
		r.events.Eventf(u, nil, kind, reason, "WriteBack", "%s", message)
	}
}

// shorten makes a text printable and cuts it to maxText bytes. Servers and policies may be its
// authors.
func shorten(content string) string {
	return text.Cut(text.Plain(content), maxText)
}

// patch writes the changes of the status.
func (r *reconciler) patch(ctx context.Context, before, after *api.ImageUpdate) error {
	err := r.Status().Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(r.FieldOwner))
	return client.IgnoreNotFound(err)
}

// impatient returns a Dial whose connections fail if nothing arrives for the given time. It returns
// nil for nil.
func impatient(dial gitremote.Dial, silence time.Duration) gitremote.Dial {
	if dial == nil {
		return nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &connection{Conn: c, silence: silence}, nil
	}
}

// connection is a connection whose reads fail after a silence.
type connection struct {
	net.Conn
	silence time.Duration
}

func (c *connection) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}
