// Package controller builds the images that AgentBuilds ask for. One reconcile
// is: observe, decide, act, status. Decisions are recorded in the names and the
// annotations of the runs, so that a restart, a second replica or a lost answer
// never starts a second run.
package controller

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attester"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/render/process/managers"
)

// Reconciler brings AgentBuilds and their runs together. Each of its steps has what it
// needs, and nothing else.
type Reconciler struct {
	observer observer
	starter  starter
	attester *attester.Attester
	reporter reporter

	client client.Client
	group  string // of AgentBuild
	runs   *runs.Store
	kueue  *queue.Kueue // nil where Kueue is not asked
	// waitForChains keeps a run until Tekton Chains has signed it.
	waitForChains bool
}

// Reconcile one AgentBuild.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	s, err := r.observer.observe(ctx, request.NamespacedName)
	switch {
	case err != nil:
		// A build that was judged before is not doubted because a server is down.
		if s != nil && s.build.Status.ObservedGeneration != s.build.Generation {
			r.reporter.retrying(ctx, s, err)
		}
		return reconcile.Result{}, err
	case s == nil:
		r.forget(ctx, request.NamespacedName)
		return reconcile.Result{}, r.sweepGone(ctx, request.NamespacedName)
	case !s.build.DeletionTimestamp.IsZero():
		r.starter.leave(ctx, request.NamespacedName)
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
	if err != nil {
		return r.again(ctx, s, err)
	}
	if done.created {
		// The run's own event brings the status, after other builds' runs exist.
		return reconcile.Result{RequeueAfter: done.again}, nil
	}
	if done.queued == "" {
		r.starter.leave(ctx, request.NamespacedName)
	}
	if err := r.kueue.Settle(ctx, s.build, s.runs, done.run); err != nil {
		return reconcile.Result{}, err
	}
	o.report(s.build.Status, done)
	if err := r.reporter.write(ctx, s, o, done); err != nil {
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

// act does what was ordered.
func (r *Reconciler) act(ctx context.Context, s *seen, o order) (outcome, error) {
	switch {
	case o.cancel != nil:
		return outcome{}, r.runs.Cancel(ctx, o.cancel, o.lost)
	case o.start != nil:
		return r.starter.start(ctx, s, *o.start)
	case o.attest:
		return attestRun(r.attester, s.build, o.run), nil
	case o.problem != nil && o.after == 0:
		return r.starter.hold(s.build, o.problem), nil
	}
	return outcome{problem: o.problem}, nil
}

// again says when to look again after an error, and reports one that lasts.
func (r *Reconciler) again(ctx context.Context, s *seen, err error) (reconcile.Result, error) {
	var later *managers.NotYet
	if !errors.As(err, &later) {
		r.reporter.retrying(ctx, s, err)
		return reconcile.Result{}, err
	}
	if later.Cause != nil || later.Waited > managers.Patience {
		r.reporter.retrying(ctx, s, err)
	}
	return reconcile.Result{RequeueAfter: later.Again}, nil
}

// forget a build that is gone.
func (r *Reconciler) forget(ctx context.Context, build types.NamespacedName) {
	r.starter.forget(ctx, build)
	r.observer.rebuilds.Forget(build)
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
			err = r.kueue.Settle(ctx, &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: build.Name}}, nil, "")
		}
	}
	return err
}

// finalize deletes the runs of a build that is being deleted, even when the
// user orphans them, then lets it go.
func (r *Reconciler) finalize(ctx context.Context, build *api.AgentBuild) error {
	if !controllerutil.ContainsFinalizer(build, api.Finalizer(r.group)) {
		return nil
	}
	owned, err := r.runs.Owned(ctx, build)
	if err != nil && !noTekton(err) {
		return err
	}
	for _, run := range owned {
		if err := r.runs.Delete(ctx, run); err != nil {
			return err
		}
	}
	return release(ctx, r.client, build, r.group)
}
