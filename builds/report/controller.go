package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/report/comment"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/managers"
)

const (
	// workers is the number of concurrent reports, and maxTime bounds each.
	workers, maxTime = 8, time.Minute
	// maxInvalid is the time after which an invalid Secret or a refusal of a forge is retried.
	maxInvalid = 2 * time.Minute
	// maxLeave is how long a forge that does not answer may delay the deletion of a build.
	maxLeave = 5 * time.Minute
)

type reconciler struct {
	client.Client
	git.Access
	events events.EventRecorder
}

// Setup adds the controller to a manager whose cache has AgentBuilds.
func Setup(mgr ctrl.Manager, a git.Access) error {
	r := &reconciler{mgr.GetClient(), a, mgr.GetEventRecorder(a.FieldOwner)}
	fair := managers.NewFairness(workers, workers/4)
	concerned := predicate.NewPredicateFuncs(func(o client.Object) bool {
		b := o.(*api.AgentBuild)
		return b.Spec.Report != nil || b.Status.Report != nil
	})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("report").
		For(&api.AgentBuild{}, builder.WithPredicates(concerned)).
		WithOptions(fair.Options(time.Second, 5*time.Minute)).
		Complete(fair.Share(r.Reconcile))
	if err != nil {
		return fmt.Errorf("setting up the reports: %w", err)
	}
	return nil
}

// Reconcile reports the current state of a build. It may skip intermediate states.
func (r *reconciler) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	var b api.AgentBuild
	if err := r.Get(ctx, request.NamespacedName, &b); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	late := fmt.Errorf("the forge did not answer within %s", maxTime)
	limited, cancel := context.WithTimeoutCause(ctx, maxTime, late)
	defer cancel()
	deleted := !b.DeletionTimestamp.IsZero()
	var err error
	switch {
	case deleted:
		err = r.finish(limited, &b)
	case b.Spec.Report == nil:
		err = r.record(ctx, &b, nil)
	default:
		err = r.show(limited, &b)
	}
	if again, failed := r.problem(ctx, &b, err); failed != nil || again > 0 {
		if !deleted || ctx.Err() != nil || time.Since(b.DeletionTimestamp.Time) < maxLeave {
			return reconcile.Result{RequeueAfter: again}, failed
		}
	}
	if deleted || !unfinished(b.Status.Report) {
		err = r.finalizer(ctx, &b, controllerutil.RemoveFinalizer)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	return reconcile.Result{}, nil
}

// notReported is the reason of failures that the author of a build has to correct.
const notReported = "NotReported"

// problem records the error of a report in status if the author of the build has to correct it.
// again is the wait until the next attempt, unless the error is returned and retried by its
// backoff.
func (r *reconciler) problem(ctx context.Context, b *api.AgentBuild,
	failed error) (again time.Duration, err error) {
	if failed == nil {
		return 0, nil
	}
	var limited *forge.LimitedError
	switch {
	case ctx.Err() != nil, apierrors.IsConflict(failed):
		return 0, failed
	case errors.As(failed, &limited):
		return max(time.Until(limited.Until), time.Second), nil
	}
	known := errors.As(failed, new(*process.Failure))
	for _, kind := range []error{forge.ErrUnauthorized, forge.ErrNotFound, forge.ErrRefused} {
		known = known || errors.Is(failed, kind)
	}
	if !known {
		return 0, failed
	}
	last := lastOf(b)
	text := api.Clip(failed.Error())
	if last.Problem != text {
		last.Problem = text
		r.events.Eventf(b, nil, corev1.EventTypeWarning, notReported, "Report", "%s", text)
	}
	return maxInvalid, r.record(ctx, b, last)
}

// show reports the statuses that the forge does not have yet.
func (r *reconciler) show(ctx context.Context, b *api.AgentBuild) error {
	send := plan(b, api.SkippedAnnotation(r.Group))
	if len(send) == 0 {
		return nil
	}
	f, err := Forge(ctx, r.Access, b)
	if err != nil {
		return err
	}
	for _, s := range send {
		next, isRun := lastOf(b), s.ID != skippedID(s.Commit)
		if isRun && !s.State.Done() { // record it first, so that it is finished even after a crash
			next.Commit, next.Run, next.State = s.Commit, s.ID, string(s.State)
			if err := r.finalizer(ctx, b, controllerutil.AddFinalizer); err != nil {
				return err
			}
			if err := r.record(ctx, b, next); err != nil {
				return err
			}
		}
		if err := f.SetStatus(ctx, s); err != nil {
			return fmt.Errorf("setting the status %s of commit %.12s: %w", s.Context, s.Commit, err)
		}
		next = lastOf(b)
		next.Problem = ""
		if isRun {
			if s.State == forge.Success || s.State == forge.Failure || s.State == forge.Error {
				if err := r.comment(ctx, f, b, s); err != nil {
					return err
				}
			}
			next.Commit, next.Run, next.State, next.Sum = s.Commit, s.ID, string(s.State), sum(s)
		} else {
			next.Skipped = s.Commit
		}
		if err := r.record(ctx, b, next); err != nil {
			return err
		}
	}
	return nil
}

// comment comments on the pull requests whose head was built.
func (r *reconciler) comment(ctx context.Context, f forge.Forge, b *api.AgentBuild,
	s forge.Status) error {
	body := ""
	if s.State != forge.Success || b.Spec.Report.Comment == "Always" {
		body = comment.Build(b)
	}
	if p := b.Spec.Source.PullRequest; p != nil {
		return f.Comment(ctx, int(p.Number), "build/"+strings.TrimPrefix(s.Context, "armature/"), body)
	}
	branch, ok := strings.CutPrefix(s.Ref, "refs/heads/")
	if !ok {
		return nil
	}
	pulls, err := f.PullRequests(ctx, branch)
	if err != nil {
		return fmt.Errorf("looking for pull requests of %s: %w", branch, err)
	}
	for _, p := range pulls {
		if !p.Open || p.Fork || !strings.HasPrefix(s.Commit, p.Commit) || p.Commit == "" {
			continue
		}
		if err := f.Comment(ctx, p.Number, "build/"+b.Namespace+"/"+b.Name, body); err != nil {
			return fmt.Errorf("commenting on pull request %d: %w", p.Number, err)
		}
	}
	return nil
}

// finish cancels the status of a build that is being deleted.
func (r *reconciler) finish(ctx context.Context, b *api.AgentBuild) error {
	last := b.Status.Report
	if b.Spec.Report == nil || !unfinished(last) {
		return nil
	}
	f, err := Forge(ctx, r.Access, b)
	if err != nil {
		return err
	}
	return f.SetStatus(ctx, forge.Status{
		Commit: last.Commit, Context: Context(b), ID: last.Run, State: forge.Cancelled,
		Description: "the build was deleted",
	})
}

// Forge opens the forge of a build's repository, with the credentials of spec.report.
func Forge(ctx context.Context, a git.Access, b *api.AgentBuild) (forge.Forge, error) {
	if b.Spec.Report == nil {
		return nil, process.Stalled(notReported, errors.New("spec.report is not set"))
	}
	return a.Forge(ctx, "spec.report", b.Spec.Report.Kind, git.Login{
		Repository: b.Spec.Source.SourceRepository, Field: "spec.report.credentials",
		Secret: types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Report.Credentials.Name},
		Reason: notReported,
	})
}

// record records in status what was reported.
func (r *reconciler) record(ctx context.Context, b *api.AgentBuild, report *api.ReportStatus) error {
	if was := b.Status.Report; was == report || was != nil && report != nil && *was == *report {
		return nil
	}
	before := b.DeepCopy()
	b.Status.Report = report
	err := r.Status().Patch(ctx, b, client.MergeFrom(before), client.FieldOwner(r.FieldOwner))
	return client.IgnoreNotFound(err)
}

// finalizer adds or removes the finalizer, which delays the deletion of a build until its status is
// finished.
func (r *reconciler) finalizer(ctx context.Context, b *api.AgentBuild,
	change func(client.Object, string) bool) error {
	before := b.DeepCopy()
	if !change(b, api.ReportFinalizer(r.Group)) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return r.Patch(ctx, b, patch, client.FieldOwner(r.FieldOwner))
}
