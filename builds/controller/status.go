package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/copies"
)

// write writes the status that shows a decision and its result, if it differs from the current one.
// A build with a run gets its finalizer first.
func (r *Reconciler) write(ctx context.Context, s *observation, o decision, done result) error {
	if o.phase == "" {
		return nil
	}
	if o.shown && o.over && o.run.Name != s.recorded {
		done.tasks, done.details = r.failures.Read(ctx, *o.run)
	}
	want, reason := statusOf(s, o, done)
	if finalizer := api.Finalizer(r.settings.Group); o.run != nil &&
		!controllerutil.ContainsFinalizer(s.build, finalizer) {
		before := s.build.DeepCopy()
		controllerutil.AddFinalizer(s.build, finalizer)
		if err := r.client.Patch(ctx, s.build, client.MergeFromWithOptions(before,
			client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("adding the finalizer to AgentBuild %s/%s: %w", s.build.Namespace,
				s.build.Name, err)
		}
	}
	if equality.Semantic.DeepEqual(want, &s.build.Status) {
		return nil
	}
	old := s.build.Status
	if err := r.patch(ctx, s, want); err != nil {
		return fmt.Errorf("writing the status of AgentBuild %s/%s: %w", s.build.Namespace,
			s.build.Name, err)
	}
	r.announce(s, o, reason, old)
	return nil
}

func (r *Reconciler) patch(ctx context.Context, s *observation,
	status *api.AgentBuildStatus) error {
	before := s.build.DeepCopy()
	s.build.Status = *status
	return r.client.Status().Patch(ctx, s.build,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// announce reports changes as events and metrics. A build that succeeds has one event, at its end.
func (r *Reconciler) announce(s *observation, o decision, reason string, old api.AgentBuildStatus) {
	status := s.build.Status
	if old.Phase == status.Phase && old.Message == status.Message {
		return
	}
	if o.run != nil && o.run.Done() && status.CompletionTime != nil &&
		(old.CompletionTime == nil || old.PipelineRunName != status.PipelineRunName) {
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

func (r *Reconciler) event(s *observation, kind, reason, action, message string) {
	// The API server's limit is 1 KiB.
	r.events.Eventf(s.build, nil, kind, reason, action, "%s", text.Cut(message, 1000))
}

// retrying reports in status that the API server or a Git server does not answer. It is best
// effort: the API server may refuse this write too.
func (r *Reconciler) retrying(ctx context.Context, s *observation, cause error) {
	if apierrors.IsConflict(cause) {
		return
	}
	status := copies.Of(&s.build.Status)
	message := api.Clip("it is tried again: " + cause.Error())
	if c := meta.FindStatusCondition(status.Conditions, api.ConditionReady); c != nil &&
		c.Reason == api.ReasonRetrying && c.ObservedGeneration == s.build.Generation {
		return // It is reported already. The text of the error may differ each time.
	}
	if status.Phase == "" || status.ObservedGeneration != s.build.Generation {
		status.Phase = api.PhasePending
	}
	status.ObservedGeneration = s.build.Generation
	status.Message = message
	setterOf(s.build, status)(api.ConditionReady, metav1.ConditionFalse, api.ReasonRetrying, message)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := r.patch(ctx, s, status); err != nil {
		log.FromContext(ctx).V(1).Info("the status could not be written either", "error", err.Error())
		return
	}
	r.event(s, corev1.EventTypeWarning, api.ReasonRetrying, "Build", message)
}

// statusOf returns the status that shows a decision and its result, and the reason of its
// conditions. If the reason is empty, the current conditions are kept. It is pure.
func statusOf(s *observation, o decision,
	done result) (status *api.AgentBuildStatus, reason string) {
	status, reason = copies.Of(&s.build.Status), o.reason
	status.ObservedGeneration = s.build.Generation
	status.Phase, status.Message = o.phase, api.Clip(o.message)
	if o.ignore {
		ignored := s.want
		status.Ignored = &ignored
	}
	if o.shown {
		reason = showRun(s, o, done, status)
	}
	// The cause of the last run's failure decides about a retry. It outlasts the details: a problem
	// that prevents the next attempt has details of its own.
	var cause api.FailureCause
	if d := status.FailureDetails; o.run != nil && status.LastRunPhase == api.PhaseFailed && d != nil {
		cause = d.Cause
	}
	switch exists := meta.FindStatusCondition(status.Conditions, api.ConditionRunExists); {
	case done.queued != "": // The report of the last run stays.
		reason = api.ReasonQueued
		status.Phase, status.Message = o.phase, api.Clip(o.message)
		// The details of a solved problem go.
		if exists != nil && exists.Status == metav1.ConditionFalse &&
			exists.Reason != api.ReasonQueued {
			if status.FailureDetails = nil; cause != "" {
				status.FailureDetails = &api.FailureDetails{Reason: api.ReasonFailed, Cause: cause}
			}
		}
	case o.held:
		reason = done.failed.Reason
		status.Phase, status.Message = api.PhaseFailed, api.Clip(done.failed.Error())
		status.FailureDetails = &api.FailureDetails{Reason: reason, Message: status.Message, Cause: cause}
	}
	if reason != "" {
		setConditions(s, o, done, reason, status)
	}
	return status, reason
}

// setterOf returns the function that sets the conditions of a build.
func setterOf(b *api.AgentBuild, status *api.AgentBuildStatus) func(kind string,
	is metav1.ConditionStatus, reason, message string) {
	conditions := process.Conditions{List: &status.Conditions, Generation: b.Generation}
	return func(kind string, is metav1.ConditionStatus, reason, message string) {
		conditions.Set(kind, is, reason, api.Clip(message))
	}
}

// setConditions writes all conditions.
func setConditions(s *observation, o decision, done result, reason string,
	status *api.AgentBuildStatus) {
	set := setterOf(s.build, status)
	ready := metav1.ConditionFalse
	if status.Phase == api.PhaseSucceeded {
		ready = metav1.ConditionTrue
	}
	set(api.ConditionReady, ready, reason, status.Message)
	switch {
	case done.queued != "" || o.held:
		if o.held && slices.Contains(git.Reasons, reason) {
			set(api.ConditionVerified, metav1.ConditionFalse, reason, status.Message)
		}
		set(api.ConditionRunExists, metav1.ConditionFalse, reason, status.Message)
	case o.run != nil:
		run, a := *o.run, status.Attestation
		switch {
		case !run.Attested():
			meta.RemoveStatusCondition(&status.Conditions, api.ConditionAttested)
		case o.refused:
			set(api.ConditionAttested, metav1.ConditionFalse, reason, o.message)
		case a != nil && a.RunUID == run.UID:
			set(api.ConditionAttested, metav1.ConditionTrue, api.ReasonAttested,
				fmt.Sprintf("%s by %s are signed%s", signedThings(a), a.BuilderID, judged(a.Policy)))
		case o.attest && done.attested == nil, !run.Succeeded():
			set(api.ConditionAttested, metav1.ConditionUnknown, reason, status.Message)
		}
		if why, message, ok := verified(run, status); why == "" {
			meta.RemoveStatusCondition(&status.Conditions, api.ConditionVerified)
		} else {
			set(api.ConditionVerified, ok, why, message)
		}
		set(api.ConditionRunExists, metav1.ConditionTrue, "Created",
			fmt.Sprintf("run %s exists", run.Name))
	case o.restored:
		set(api.ConditionRunExists, metav1.ConditionTrue, "Created",
			fmt.Sprintf("run %s was created", status.PipelineRunName))
		if status.FailureDetails = nil; status.Phase == api.PhaseFailed {
			status.FailureDetails = &api.FailureDetails{Reason: reason, Message: status.Message}
		}
	case status.Phase == api.PhaseCancelled || reason == api.ReasonRunDeleted ||
		reason == api.ReasonRunForeign:
		set(api.ConditionRunExists, metav1.ConditionFalse, reason, status.Message)
	}
	succeeded := map[api.Phase]metav1.ConditionStatus{
		api.PhaseSucceeded: metav1.ConditionTrue, api.PhaseFailed: metav1.ConditionFalse,
		api.PhaseCancelled: metav1.ConditionFalse,
	}[status.Phase]
	set(api.ConditionSucceeded, cmp.Or(succeeded, metav1.ConditionUnknown), reason, status.Message)
}

// showRun updates status from the run, and returns the reason of the conditions.
func showRun(s *observation, o decision, done result,
	status *api.AgentBuildStatus) (reason string) {
	run := *o.run
	if status.PipelineRunName != run.Name {
		status.Tasks, status.FailureDetails = nil, nil
		if status.Ignored != nil && !o.ignore && !s.ignored {
			status.Ignored = nil
		}
	}
	inputs := run.Inputs
	status.PipelineRunName, status.PipelineRunUID, status.Inputs = run.Name, run.UID, &inputs
	if status.PipelineRunNamespace = ""; run.Namespace != s.build.Namespace {
		status.PipelineRunNamespace = run.Namespace
	}
	status.RunReason, status.Attempt, status.RunNumber = run.Trigger, run.Attempt, run.Number
	status.LastBuildTime, status.TraceParent =
		run.CreationTimestamp.DeepCopy(), traces.OfRun(run.Annotations[runs.SpanContext])
	status.StartTime, status.CompletionTime = run.Status.StartTime.DeepCopy(), nil
	if source := sourceOf(s, run); source != nil {
		status.Source = source
	}
	if !o.over {
		status.FailureDetails, status.LastRunPhase = nil, ""
		return o.reason
	}
	at := metav1.NewTime(run.Finished()).Rfc3339Copy()
	status.CompletionTime = &at
	isNew := run.Name != s.recorded
	if isNew {
		status.Tasks = done.tasks
	}
	switch {
	case run.Succeeded() && (o.refused || run.UID == s.refused):
		status.LastRunPhase, status.FailureDetails =
			api.PhaseFailed, &api.FailureDetails{Reason: o.reason, Message: api.Clip(o.message)}
		return o.reason
	case run.Succeeded():
		status.LastRunPhase, status.FailureDetails = api.PhaseSucceeded, nil
		status.Message = api.Clip(showImage(s, o, done, status) + notes(status.Tasks))
		return o.reason
	case run.Cancelled():
		status.LastRunPhase = api.PhaseCancelled
		return o.reason
	}
	status.LastRunPhase = api.PhaseFailed
	if isNew {
		status.FailureDetails = done.details
	}
	if d := status.FailureDetails; d != nil {
		message := run.Condition().Message
		note, ok := strings.CutPrefix(o.message, message)
		if !ok {
			message, note = o.message, ""
		}
		status.Message = api.Clip(failure.Message(d, message, note) + notes(status.Tasks))
		return d.Reason
	}
	return o.reason
}

// notes joins the messages of tasks, each after a semicolon.
func notes(tasks []api.TaskStatus) (text string) {
	for _, task := range tasks {
		if task.Message != "" {
			text += "; " + task.Message
		}
	}
	return text
}

// sourceOf returns the source of a run, or nil if its commit is not known.
func sourceOf(s *observation, run runs.Run) *api.SourceStatus {
	commit := run.Commit
	// A clone step with a revision parameter of its own clones another commit.
	if cloned := run.Cloned(); api.IsCommit(cloned) {
		commit = cloned
	}
	if commit == "" {
		return nil
	}
	if commit != run.Commit {
		return &api.SourceStatus{Git: api.GitStatus{CommitSHA: commit}}
	}
	out := api.GitStatus{CommitSHA: commit, Ref: run.Ref, Verified: run.Verified}
	if s.Template != nil {
		if revision := compose.Revision(s.build, s.Template); !api.IsCommit(revision) &&
			!strings.HasPrefix(revision, "refs/tags/") {
			out.BranchName = strings.TrimPrefix(revision, "refs/heads/")
		}
	}
	return &api.SourceStatus{Git: out}
}

// showImage updates status with the image of a run that succeeded, and returns the message.
func showImage(s *observation, o decision, done result,
	status *api.AgentBuildStatus) (message string) {
	image, platforms, err := o.run.Image()
	if a := done.attested; a != nil { // The platforms are those of the current spec.
		status.Attestation, status.Platforms = a, attestedPlatforms(s.build.Spec.Platforms, a)
	}
	switch a := status.Attestation; {
	case a != nil && a.RunUID == o.run.UID:
		status.BuiltImage = a.Image
		return "built and attested " + a.Image
	case err == nil:
		if status.BuiltImage != image {
			status.Attestation = nil // It is for the previous image.
		}
		status.BuiltImage, status.Platforms = image, platforms
		return "built " + image
	}
	return "the run succeeded, but " + err.Error() + ", so builtImage stays as it was"
}

// attestedPlatforms returns the platforms of an attested image that was built for some, or nil.
func attestedPlatforms(platforms []string, a *api.Attestation) (out []api.PlatformStatus) {
	for _, p := range a.Platforms {
		out = append(out, api.PlatformStatus{Platform: p.Platform, Digest: p.Digest})
	}
	if len(platforms) == 1 {
		_, digest, _ := strings.Cut(a.Image, "@")
		out = []api.PlatformStatus{{Platform: platforms[0], Digest: digest}}
	}
	return out
}

func signedThings(a *api.Attestation) string {
	if len(a.Platforms) > 0 {
		bills := ""
		if a.SBOM != "" || slices.ContainsFunc(a.Platforms,
			func(p api.PlatformAttestation) bool { return p.SBOMDigest != "" }) {
			bills = ", their SBOMs"
		}
		return fmt.Sprintf("the index, the images of %d platforms%s and their provenance",
			len(a.Platforms), bills)
	}
	if a.SBOM == "" {
		return "the image and its provenance"
	}
	return "the image, its SBOM and its provenance"
}

// judged returns the verdict of the platform's policy on an image, as a part of a sentence.
func judged(v *api.PolicyVerdict) string {
	switch {
	case v == nil:
		return ""
	case v.Refusal != "":
		return fmt.Sprintf("; the policy %s refuses the image: %s", v.Policy, v.Refusal)
	}
	return fmt.Sprintf("; the policy %s accepts the image", v.Policy)
}

// verified returns the condition SourceVerified of a run. Without a policy, the reason is empty.
func verified(run runs.Run,
	status *api.AgentBuildStatus) (reason, message string, is metav1.ConditionStatus) {
	switch {
	case len(run.Verified) == 0:
		return "", "", ""
	case status.Source == nil || status.Source.Git.CommitSHA != run.Commit:
		return api.ReasonSourceReplaced, fmt.Sprintf(
			"a step cloned another commit than %s, which was verified",
			run.Commit), metav1.ConditionFalse
	}
	var found []string
	for _, v := range run.Verified {
		text := "reachable from " + v.Ref
		if v.Signer != "" {
			text += " and signed by " + v.Signer
		}
		found = append(found, fmt.Sprintf("%s (policy %s)", text, v.Policy))
	}
	return api.ReasonVerified, fmt.Sprintf("commit %s is %s", run.Commit,
		strings.Join(found, "; ")), metav1.ConditionTrue
}
