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
	// rebuilds limits the rate of runs that start because a template or step changed: an upgrade of
	// the shipped steps concerns every build of a cluster. Namespaces take turns.
	rebuilds    *managers.Questions[struct{}]
	rebuildRate *rate.Limiter
	// waits says when a build with a problem is looked at again.
	waits workqueue.TypedRateLimiter[types.NamespacedName]
	// lostAfter is how long Tekton has to notice that it lost a pod.
	lostAfter time.Duration
	// waitForChains keeps a run until Tekton Chains has signed it.
	waitForChains bool
}

// result says how a decision was carried out.
type result struct {
	// created reports whether a run was created or released.
	created bool
	// failed is why a run was not created or not attested. It is stalled if a user must act.
	failed *process.Failure
	// queued is what the build waits for while the run named run may not be created yet.
	queued, run string
	// again is when to reconcile again; zero is never.
	again    time.Duration
	attested *api.Attestation
	// tasks are the tasks of a run that has ended, and details say why it failed, or are nil.
	tasks   []api.TaskStatus
	details *api.FailureDetails
}

// Reconcile reconciles one AgentBuild.
func (r *Reconciler) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	s, err := r.observe(ctx, request.NamespacedName)
	switch {
	case err != nil:
		// The status of an observed generation stays while a server is down.
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
		// The event of the run may have arrived already.
		return reconcile.Result{RequeueAfter: time.Second}, nil
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
		if !o.attest { // Secrets, quotas and policies change without an event.
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
			return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // The cache is stale.
		}
		return reconcile.Result{}, err
	}
	for _, old := range o.prune {
		if r.waitForChains && old.Annotations[compose.ChainsSigned] == "" {
			continue // Chains has not signed it yet.
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

// again returns when to reconcile again after an error, and reports an error that lasts.
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

// leave removes a build that does not wait from the queue. Servers are asked again the next time.
func (r *Reconciler) leave(ctx context.Context, build types.NamespacedName) {
	r.git.Forget(build)
	r.pushes.Forget(build)
	r.queue.Leave(ctx, build)
}

// forget drops all that is kept about a build that does not exist any more.
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
	current := &api.AgentBuild{}
	err := r.runs.Live.Get(ctx, build, current)
	switch {
	case err == nil && !r.runs.Shard.Has(current):
		return r.runs.HandOver(ctx, current)
	case apierrors.IsNotFound(err):
		if _, err = r.runs.Sweep(ctx, build, ""); err == nil {
			deleted := &api.AgentBuild{}
			deleted.Namespace, deleted.Name = build.Namespace, build.Name
			err = r.kueue.Settle(ctx, deleted, nil, "")
		}
	}
	return err
}

// finalize deletes the runs of a build that is being deleted, even if the user orphans them, and
// then removes the finalizer.
func (r *Reconciler) finalize(ctx context.Context, build *api.AgentBuild) error {
	if !controllerutil.ContainsFinalizer(build, api.Finalizer(r.settings.Group)) {
		return nil
	}
	owned, err := r.runs.Owned(ctx, build)
	// Without Tekton's CRDs there are no runs to delete.
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return err
	}
	for _, run := range owned {
		if err := r.runs.Delete(ctx, run); err != nil {
			return err
		}
	}
	return release(ctx, r.client, build, r.settings.Group)
}
