package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/failure"
)

// reporter writes the status of builds, with its events and metrics.
type reporter struct {
	client   client.Client
	group    string // of AgentBuild
	failures *failure.Reader
	events   events.EventRecorder
	metrics  *recorder
}

// write the status that shows an order and what came of it, if it differs from the current one.
// A build with a run gets its finalizer first.
func (r *reporter) write(ctx context.Context, s *seen, o order, done outcome) error {
	if o.phase == "" {
		return nil
	}
	if showsRun(s, o, done) && hasEnded(s, o, done) && o.run.Name != s.recorded {
		done.tasks, done.failure = r.failures.Read(ctx, *o.run)
	}
	want, reason := statusOf(s, o, done)
	if finalizer := api.Finalizer(r.group); o.run != nil && !controllerutil.ContainsFinalizer(s.build, finalizer) {
		before := s.build.DeepCopy()
		controllerutil.AddFinalizer(s.build, finalizer)
		if err := r.client.Patch(ctx, s.build, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("adding the finalizer to AgentBuild %s/%s: %w", s.build.Namespace, s.build.Name, err)
		}
	}
	if equality.Semantic.DeepEqual(want, &s.build.Status) {
		return nil
	}
	old := s.build.Status
	if err := r.patch(ctx, s, want); err != nil {
		return fmt.Errorf("writing the status of AgentBuild %s/%s: %w", s.build.Namespace, s.build.Name, err)
	}
	r.announce(s, o, reason, old)
	return nil
}

func (r *reporter) patch(ctx context.Context, s *seen, status *api.AgentBuildStatus) error {
	before := s.build.DeepCopy()
	s.build.Status = *status
	return r.client.Status().Patch(ctx, s.build, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// announce what changed as events and metrics. A build that succeeds has one event,
// when it is done.
func (r *reporter) announce(s *seen, o order, reason string, old api.AgentBuildStatus) {
	status := s.build.Status
	if old.Phase == status.Phase && old.Message == status.Message {
		return
	}
	if o.run != nil && o.run.Done() && status.CompletionTime != nil && (old.CompletionTime == nil || old.PipelineRunName != status.PipelineRunName) {
		r.metrics.finished(s.build, *o.run, reason)
		r.metrics.endSpans(s.build, *o.run, reason)
	}
	switch status.Phase {
	case api.PhaseFailed:
		r.event(s, corev1.EventTypeWarning, reason, "Build", status.Message)
	case api.PhaseSucceeded:
		r.event(s, corev1.EventTypeNormal, reason, "Build", status.Message)
	case api.PhaseCancelled:
		r.event(s, corev1.EventTypeNormal, reason, "Cancel", status.Message)
	}
}

func (r *reporter) event(s *seen, kind, reason, action, message string) {
	if len(message) > 1000 {
		message = message[:1000] // the API server's limit is 1 KiB
	}
	r.events.Eventf(s.build, nil, kind, reason, action, "%s", strings.ToValidUTF8(message, ""))
}

// retrying reports that the API server or a Git server does not answer. It is best
// effort: the same server may refuse this, too.
func (r *reporter) retrying(ctx context.Context, s *seen, cause error) {
	if apierrors.IsConflict(cause) {
		return
	}
	status := s.build.Status.DeepCopy()
	message := api.Clip("it is tried again: " + cause.Error())
	if c := meta.FindStatusCondition(status.Conditions, api.ConditionReady); c != nil && c.Reason == api.ReasonRetrying && c.ObservedGeneration == s.build.Generation {
		return // reported already; the wording may differ each time
	}
	if status.Phase == "" || status.ObservedGeneration != s.build.Generation {
		status.Phase = api.PhasePending
	}
	status.ObservedGeneration = s.build.Generation
	status.Message = message
	setCondition(s.build, status, api.ConditionReady, metav1.ConditionFalse, api.ReasonRetrying, message)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := r.patch(ctx, s, status); err != nil {
		log.FromContext(ctx).V(1).Info("the status could not be written either", "error", err.Error())
		return
	}
	r.event(s, corev1.EventTypeWarning, api.ReasonRetrying, "Build", message)
}
