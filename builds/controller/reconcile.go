// Package controller builds the images that AgentBuilds ask for. One reconcile is: observe, decide,
// act, status. Decisions are recorded in the names and the annotations of the runs, so that a
// restart, a second replica or a lost answer never starts a second run.
package controller

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/managers"
)

// Reconciler brings AgentBuilds and their runs together.
type Reconciler struct {
	starter
	events   events.EventRecorder
	failures *failure.Reader
	// rebuilds starts so many runs a minute whose template or step changed: an upgrade of the shipped
	// steps concerns every build of a cluster at once. Namespaces take turns.
	rebuilds    *managers.Questions[struct{}]
	rebuildRate *rate.Limiter
	waits       workqueue.TypedRateLimiter[types.NamespacedName] // of builds with a problem
	// lostAfter is how long Tekton has to notice by itself that it lost a pod.
	lostAfter time.Duration
	// waitForChains keeps a run until Tekton Chains has signed it.
	waitForChains bool
}

// result says how a decision was carried out.
type result struct {
	// created: a run now exists.
	created bool
	// failed is why nothing did, or why a run is not attested. It is stalled where a user must act.
	failed *process.Failure
	// queued is what the build waits for, where its run, of that name, may not be created yet.
	queued, run string
	// again is when to look again; zero is never.
	again    time.Duration
	attested *api.Attestation
	// tasks of a run that has ended, and why it failed, or nil.
	tasks   []api.TaskStatus
	details *api.FailureDetails
}

// Reconcile one AgentBuild.
func (r *Reconciler) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	s, err := r.observe(ctx, request.NamespacedName)
	switch {
	case err != nil:
		// A build that was judged before is not doubted because a server is down.
		if s != nil && s.build.Status.ObservedGeneration != s.build.Generation {
			r.retrying(ctx, s, err)
		}
		return reconcile.Result{}, err
	case s == nil:
		r.forget(ctx, request.NamespacedName)
		return reconcile.Result{}, r.sweepGone(ctx, request.NamespacedName)
	case !s.build.DeletionTimestamp.IsZero():
		r.leave(ctx, request.NamespacedName)
		if err := r.kueue.Settle(ctx, s.build, nil, ""); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, r.finalize(ctx, s.build)
	}
	if s.moved {
		return reconcile.Result{RequeueAfter: time.Second}, nil // its event may come before
	}
	if wait, err := r.runs.Sweep(ctx, request.NamespacedName, s.build.UID); wait || err != nil {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, err
	}
	o := decide(s)
	done, err := r.act(ctx, s, o)
	var later *managers.NotYet
	switch {
	case errors.As(err, new(*finding.Finding)):
		done = result{failed: process.Stalled(findings.Of(err)[0].Rule, findings.Join(err))}
		if !o.attest { // some remedies come without an event: a Secret, a quota, a policy
			done.again = r.waits.When(request.NamespacedName)
		}
	case o.attest && errors.As(err, &later):
		if done.again = later.Again; later.Cause != nil {
			done.failed = process.Retry(api.ReasonRetrying, later.Cause)
		}
	case err != nil:
		return r.again(ctx, s, err)
	}
	if done.created {
		r.waits.Forget(request.NamespacedName)
		// The run's own event brings the status, after other builds' runs exist.
		return reconcile.Result{RequeueAfter: done.again}, nil
	}
	if done.queued == "" {
		r.leave(ctx, request.NamespacedName)
	}
	if err := r.kueue.Settle(ctx, s.build, s.runs, done.run); err != nil {
		return reconcile.Result{}, err
	}
	settle(&o, s, done)
	if err := r.write(ctx, s, o, done); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // the cache is behind
		}
		return reconcile.Result{}, err
	}
	for _, old := range o.prune {
		if r.waitForChains && old.Annotations[compose.ChainsSigned] == "" {
			continue // Chains still has to sign it
		}
		if err := r.runs.Delete(ctx, old); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: sooner(o.after, done.again)}, nil
}

// act carries out a decision.
func (r *Reconciler) act(ctx context.Context, s *observation, o decision) (result, error) {
	switch {
	case o.cancel != nil:
		return result{}, r.runs.Cancel(ctx, o.cancel, o.lost)
	case o.start != nil:
		return r.start(ctx, s, o.start)
	case o.attest:
		answer, err := r.attester.Attest(s.build, o.run)
		if err == nil {
			return result{attested: &answer}, nil
		}
		return result{}, err
	}
	return result{}, o.problem
}

// again says when to look again after an error, and reports one that lasts.
func (r *Reconciler) again(ctx context.Context, s *observation,
	err error) (reconcile.Result, error) {
	var later *managers.NotYet
	if !errors.As(err, &later) {
		r.retrying(ctx, s, err)
		return reconcile.Result{}, err
	}
	if later.Cause != nil || later.Waited > managers.Patience {
		r.retrying(ctx, s, err)
	}
	return reconcile.Result{RequeueAfter: later.Again}, nil
}

// leave the queue: the build does not wait. The next time, servers are asked again.
func (r *Reconciler) leave(ctx context.Context, build types.NamespacedName) {
	r.git.Forget(build)
	r.pushes.Forget(build)
	r.queue.Leave(ctx, build)
}

// forget a build that is gone.
func (r *Reconciler) forget(ctx context.Context, build types.NamespacedName) {
	r.leave(ctx, build)
	r.waits.Forget(build)
	r.rebuilds.Forget(build)
	r.attester.Forget(build)
}

// sweepGone deletes the runs of a build that no longer exists, because its finalizer may have been
// removed. A build that is not in this controller's cache may still exist, in another shard.
func (r *Reconciler) sweepGone(ctx context.Context, build types.NamespacedName) error {
	if r.runs.BuildNamespace == "" && r.runs.Shard.Key == "" {
		return nil
	}
	left := &api.AgentBuild{}
	err := r.runs.Live.Get(ctx, build, left)
	switch {
	case err == nil && !r.runs.Shard.Has(left):
		return r.runs.HandOver(ctx, left)
	case apierrors.IsNotFound(err):
		if _, err = r.runs.Sweep(ctx, build, ""); err == nil {
			err = r.kueue.Settle(ctx,
				&api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace,
					Name: build.Name}}, nil, "")
		}
	}
	return err
}

// finalize deletes the runs of a build that is being deleted, even when the
// user orphans them, then lets it go.
func (r *Reconciler) finalize(ctx context.Context, build *api.AgentBuild) error {
	if !controllerutil.ContainsFinalizer(build, api.Finalizer(r.settings.Group)) {
		return nil
	}
	owned, err := r.runs.Owned(ctx, build)
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) { // without Tekton
		return err
	}
	for _, run := range owned {
		if err := r.runs.Delete(ctx, run); err != nil {
			return err
		}
	}
	return release(ctx, r.client, build, r.settings.Group)
}
