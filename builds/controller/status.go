package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
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
)

// maxMessage of a condition or a status, in bytes; the API server refuses a
// condition's message above 32 KiB.
const maxMessage = 4096

// writeStatus writes what was observed, and the problem that keeps a run from
// starting, if it differs from the current status.
// A build with a run gets its finalizer first.
func (r *Reconciler) writeStatus(ctx context.Context, s *seen, v verdict, problem error) error {
	if v.phase == "" {
		return nil
	}
	want := s.build.Status.DeepCopy()
	reason := r.fill(ctx, s, v, problem, want)
	if finalizer := api.Finalizer(s.group); v.current != nil && !controllerutil.ContainsFinalizer(s.build, finalizer) {
		before := s.build.DeepCopy()
		controllerutil.AddFinalizer(s.build, finalizer)
		if err := r.Client.Patch(ctx, s.build, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("adding the finalizer to AgentBuild %s/%s: %w", s.build.Namespace, s.build.Name, err)
		}
	}
	if equality.Semantic.DeepEqual(want, &s.build.Status) {
		return nil
	}
	old := s.build.Status
	before := s.build.DeepCopy()
	s.build.Status = *want
	if err := r.Client.Status().Patch(ctx, s.build, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("writing the status of AgentBuild %s/%s: %w", s.build.Namespace, s.build.Name, err)
	}
	r.created.Delete(client.ObjectKeyFromObject(s.build)) // its UID is in status, if it has a run
	r.report(s, v, reason, old)
	return nil
}

// fill status from the verdict, the problem and the run. reason is that of the
// conditions; where it is empty, the current ones are kept.
func (r *Reconciler) fill(ctx context.Context, s *seen, v verdict, problem error, status *api.AgentBuildStatus) (reason string) {
	reason = v.reason
	status.ObservedGeneration = s.build.Generation
	status.Phase = v.phase
	status.Message = clip(v.message)
	if v.ignore {
		ignored := s.want
		status.Ignored = &ignored
	}
	if v.current != nil && !(v.queued && recorded(s, *v.current)) {
		reason = r.fillRun(ctx, s, v, status)
	}
	if v.queued {
		return fillQueued(s, v, status)
	}
	if problem != nil {
		reason = compose.Findings(problem)[0].Rule
		status.Phase = api.PhaseFailed
		status.Message = clip(problem.Error())
		status.FailureDetails = &api.FailureDetails{Reason: reason, Message: status.Message, Cause: causeOf(v, status)}
	}
	if reason == "" {
		return "" // the current status is kept, conditions and all
	}
	set := func(kind string, state metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: kind, Status: state, Reason: reason, Message: clip(message), ObservedGeneration: s.build.Generation})
	}
	ready := map[api.Phase]metav1.ConditionStatus{api.PhaseSucceeded: metav1.ConditionTrue}[status.Phase]
	if ready == "" {
		ready = metav1.ConditionFalse
	}
	set(api.ConditionReady, ready, reason, status.Message)
	if v.current != nil && problem == nil {
		setAttested(v, reason, status, set)
		setVerified(*v.current, status, set)
	} else if problem != nil && slices.Contains(sourceReasons, reason) {
		set(api.ConditionVerified, metav1.ConditionFalse, reason, status.Message)
	}
	switch {
	case problem != nil:
		set(api.ConditionRunExists, metav1.ConditionFalse, reason, status.Message)
		set(api.ConditionSucceeded, metav1.ConditionFalse, reason, status.Message)
		return reason
	case v.current != nil:
		set(api.ConditionRunExists, metav1.ConditionTrue, "Created", fmt.Sprintf("run %s exists", v.current.Name))
	case v.restored:
		set(api.ConditionRunExists, metav1.ConditionTrue, "Created", fmt.Sprintf("run %s was created", status.PipelineRunName))
		if status.FailureDetails = nil; status.Phase == api.PhaseFailed {
			status.FailureDetails = &api.FailureDetails{Reason: reason, Message: status.Message}
		}
	case status.Phase == api.PhaseCancelled || reason == api.ReasonRunDeleted || reason == api.ReasonRunForeign:
		set(api.ConditionRunExists, metav1.ConditionFalse, reason, status.Message)
	}
	succeeded := map[api.Phase]metav1.ConditionStatus{
		api.PhaseSucceeded: metav1.ConditionTrue, api.PhaseFailed: metav1.ConditionFalse, api.PhaseCancelled: metav1.ConditionFalse,
	}[status.Phase]
	if succeeded == "" {
		succeeded = metav1.ConditionUnknown
	}
	set(api.ConditionSucceeded, succeeded, reason, status.Message)
	return reason
}

// causeOf the last run's failure, which decides whether it is tried again. It outlasts
// the details: a problem that keeps the next attempt from starting has its own.
func causeOf(v verdict, status *api.AgentBuildStatus) api.FailureCause {
	if v.current == nil || status.LastRunPhase != api.PhaseFailed || status.FailureDetails == nil {
		return ""
	}
	return status.FailureDetails.Cause
}

// fillQueued writes that the build waits for a place, over what its last run says.
func fillQueued(s *seen, v verdict, status *api.AgentBuildStatus) (reason string) {
	status.Phase, status.Message = api.PhasePending, clip(v.message)
	if c := meta.FindStatusCondition(status.Conditions, api.ConditionRunExists); c != nil && c.Status == metav1.ConditionFalse && c.Reason != api.ReasonQueued {
		// They were of a problem that is solved, but for what the last run failed of.
		cause := causeOf(v, status)
		if status.FailureDetails = nil; cause != "" {
			status.FailureDetails = &api.FailureDetails{Reason: api.ReasonFailed, Cause: cause}
		}
	}
	for kind, state := range map[string]metav1.ConditionStatus{api.ConditionReady: metav1.ConditionFalse, api.ConditionRunExists: metav1.ConditionFalse, api.ConditionSucceeded: metav1.ConditionUnknown} {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: kind, Status: state, Reason: api.ReasonQueued, Message: status.Message, ObservedGeneration: s.build.Generation})
	}
	return api.ReasonQueued
}

// fillRun writes what the run itself says, and gives the reason of the conditions.
func (r *Reconciler) fillRun(ctx context.Context, s *seen, v verdict, status *api.AgentBuildStatus) (reason string) {
	message := v.message
	run := *v.current
	fresh := status.PipelineRunName != run.Name
	inputs := run.inputs
	status.PipelineRunName, status.PipelineRunUID, status.Inputs = run.Name, run.UID, &inputs
	status.RunReason, status.Attempt, status.RunNumber = run.trigger, run.attempt, run.number
	status.LastBuildTime = run.CreationTimestamp.DeepCopy()
	status.StartTime, status.CompletionTime = run.Status.StartTime.DeepCopy(), nil
	if fresh {
		status.Tasks, status.FailureDetails = nil, nil
		if status.Ignored != nil && !v.ignore && !ignored(s) {
			status.Ignored = nil
		}
	}
	commit := run.commit
	// A step that was given a revision of its own has cloned another commit.
	if cloned := exact(run, "CHAINS-GIT_COMMIT"); fullCommit.MatchString(cloned) {
		commit = cloned
	}
	if commit != "" {
		git := api.GitStatus{CommitSHA: commit}
		if commit == run.commit {
			git.Ref, git.Verified = run.ref, run.verified
		}
		if s.template != nil && commit == run.commit {
			if revision := compose.Revision(s.build, s.template); !fullCommit.MatchString(revision) && !strings.HasPrefix(revision, "refs/tags/") {
				git.BranchName = strings.TrimPrefix(revision, "refs/heads/")
			}
		}
		status.Source = &api.SourceStatus{Git: git}
	}
	// Whatever else the verdict is about, a run that has to be attested does not count before.
	_, over := concluded(s, run)
	declined := v.refused || refused(s, run)
	if !run.done() || pledged(run) && run.succeeded() && v.attestation == nil && !declined && !over {
		status.FailureDetails, status.LastRunPhase = nil, ""
		return v.reason
	}
	switch {
	case declined:
		status.LastRunPhase = api.PhaseFailed
	case run.succeeded():
		status.LastRunPhase = api.PhaseSucceeded
	case run.cancelled():
		status.LastRunPhase = api.PhaseCancelled
	default:
		status.LastRunPhase = api.PhaseFailed
	}
	at := metav1.NewTime(run.finished()).Rfc3339Copy()
	status.CompletionTime = &at
	if run.succeeded() {
		status.FailureDetails = nil
		if v.attestation != nil {
			status.Attestation = v.attestation
		}
		switch image, platforms, err := builtImage(run); {
		case declined:
			status.FailureDetails = &api.FailureDetails{Reason: v.reason, Message: clip(message)}
		case status.Attestation != nil && status.Attestation.RunUID == run.UID:
			if v.attestation != nil { // of the spec as it is
				status.Platforms = attestedPlatforms(s.build.Spec.Platforms, status.Attestation)
				if status.Platforms == nil && err == nil { // of an index that Chains attested
					status.Platforms = platforms
				}
			}
			status.BuiltImage = status.Attestation.Image
			message = "built and attested " + status.BuiltImage
		case err == nil:
			if status.BuiltImage != image {
				status.Attestation = nil // it is of the image before
			}
			status.BuiltImage, status.Platforms = image, platforms
			message = "built " + image
		default:
			message = "the run succeeded, but " + err.Error() + ", so builtImage stays as it was"
		}
		status.Message = clip(message)
	}
	if recorded(s, run) && !fresh {
		// The tasks and the failure were read when the run ended.
		if d := status.FailureDetails; d != nil && !run.succeeded() && !run.cancelled() {
			status.Message = clip(failureMessage(d, message))
			return d.Reason
		}
		return v.reason
	}
	tasks, failed := r.tasks(ctx, run)
	status.Tasks = tasks
	if !run.succeeded() && !run.cancelled() {
		status.FailureDetails = r.failure(ctx, run, failed)
		status.Message = clip(failureMessage(status.FailureDetails, message))
		return status.FailureDetails.Reason
	}
	return v.reason
}

// failureMessage puts the place, the exit code and a remedy in front of the note on retries.
func failureMessage(d *api.FailureDetails, message string) string {
	if d.Task == "" {
		return message
	}
	text := fmt.Sprintf("task %s", d.Task)
	if d.Step != "" {
		text += fmt.Sprintf(", step %s", d.Step)
	}
	if d.ExitCode != nil {
		text += fmt.Sprintf(", exit code %d", *d.ExitCode)
	}
	if remedy := remedy(d.LogTail); remedy != "" {
		text += ": " + remedy
	}
	return text + ": " + message
}

// tasks reads the TaskRuns of a run that ended, from the API server, since no
// watch of them is kept. The failed one is returned too.
func (r *Reconciler) tasks(ctx context.Context, run run) (out []api.TaskStatus, failed *tektonv1.TaskRun) {
	for _, child := range run.Status.ChildReferences {
		if child.Kind != "TaskRun" {
			continue
		}
		var task tektonv1.TaskRun
		state := api.TaskStatus{Name: child.PipelineTaskName, State: "Unknown"}
		if err := r.Live.Get(ctx, client.ObjectKey{Namespace: run.Namespace, Name: child.Name}, &task); err != nil {
			log.FromContext(ctx).V(1).Info("a task's state cannot be read", "taskRun", child.Name, "error", err.Error())
		} else {
			state = taskState(child.PipelineTaskName, &task)
			if state.State == "Failed" && (failed == nil || task.Status.CompletionTime.Before(failed.Status.CompletionTime)) {
				failed = task.DeepCopy()
			}
		}
		out = appendTask(out, state)
	}
	for _, skipped := range run.Status.SkippedTasks {
		out = appendTask(out, api.TaskStatus{Name: skipped.Name, State: "Skipped", Reason: string(skipped.Reason)})
	}
	return out, failed
}

// appendTask keeps names unique: a matrix has several TaskRuns a task, and the
// worst of them counts.
func appendTask(list []api.TaskStatus, state api.TaskStatus) []api.TaskStatus {
	i := slices.IndexFunc(list, func(t api.TaskStatus) bool { return t.Name == state.Name })
	if i < 0 {
		return append(list, state)
	}
	if list[i].State == "Succeeded" {
		list[i] = state
	}
	return list
}

func taskState(name string, task *tektonv1.TaskRun) api.TaskStatus {
	state := api.TaskStatus{Name: name, State: "Pending", StartTime: task.Status.StartTime, CompletionTime: task.Status.CompletionTime}
	c := task.Status.GetCondition("Succeeded")
	switch {
	case c == nil:
	case c.IsTrue():
		state.State = "Succeeded"
	case c.IsFalse() && c.Reason == tektonv1.TaskRunReasonCancelled.String():
		state.State, state.Reason = "Cancelled", c.Reason
	case c.IsFalse():
		state.State, state.Reason = "Failed", c.Reason
	default:
		state.State = "Running"
	}
	return state
}

// failure is where and why a run failed, with the last lines of the step.
func (r *Reconciler) failure(ctx context.Context, run run, task *tektonv1.TaskRun) *api.FailureDetails {
	if run.lost != nil {
		return run.lost.failure()
	}
	c := run.condition()
	d := &api.FailureDetails{Reason: api.ReasonFailed, Message: clip(c.Message)}
	if c.Reason == tektonv1.PipelineRunReasonTimedOut.String() {
		d.Reason = api.ReasonTimeout
	} else if c.Reason != tektonv1.PipelineRunReasonFailed.String() && c.Reason != "" {
		d.Reason = c.Reason // such as CouldntGetTask: Tekton could not run it
	}
	if task == nil {
		return d
	}
	for _, child := range run.Status.ChildReferences {
		if child.Name == task.Name {
			d.Task = child.PipelineTaskName
		}
	}
	tc := task.Status.GetCondition("Succeeded")
	if d.Reason == api.ReasonFailed || d.Reason == api.ReasonTimeout {
		d.Message = clip(tc.Message)
	}
	switch {
	case tc.Reason == tektonv1.TaskRunReasonTimedOut.String():
		d.Reason = api.ReasonTimeout
	default:
		d.Cause = podCause(tc.Reason, tc.Message)
		if d.Cause == "" && tc.Reason == reasonSidecarFailed && r.podIsGone(ctx, task.Namespace, task.Status.PodName) {
			d.Cause = api.CausePodFailed
		}
		if d.Cause == api.CauseEvicted || tc.Reason == tektonv1.TaskRunReasonPodEvicted.String() {
			d.Reason = api.ReasonEvicted
		}
	}
	for _, step := range task.Status.Steps {
		if step.Terminated == nil || step.Terminated.ExitCode == 0 {
			continue
		}
		code := step.Terminated.ExitCode
		d.Step, d.ExitCode = step.Name, &code
		d.Location = &api.FailureLocation{Pod: task.Status.PodName, Container: step.Container}
		switch {
		case step.Terminated.Reason == "OOMKilled":
			d.Reason = api.ReasonOutOfMemory
		case step.Name == scanStep && code == scanFoundCode:
			d.Reason = api.ReasonVulnerable
		}
		log := r.logTail(ctx, task.Namespace, d.Location)
		if d.Reason != api.ReasonEvicted { // which the pod's message explains
			d.Cause = cmp.Or(d.Cause, stepCause(step.Terminated, log))
		}
		d.LogTail = log[max(0, len(log)-int(r.LogLines)):]
		if len(d.LogTail) == 0 {
			d.LogTail = nil
		}
		break
	}
	return d
}

// podIsGone reports whether a pod is deleted, or being deleted. One that cannot be read may
// be there.
func (r *Reconciler) podIsGone(ctx context.Context, namespace, name string) bool {
	pod := metadataOf("v1", "Pod")
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)
	return apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil
}

// The shipped scan step, and the exit code of grype if it found something at
// or above --fail-on.
const (
	scanStep      = "vulnerability-scan"
	scanFoundCode = 2
)

// causeLines are read of a log at least, to see what a step ended with.
const causeLines = 5

// logTail reads the last lines of a container's log. A log that is gone is no
// error: the failure itself is known.
func (r *Reconciler) logTail(ctx context.Context, namespace string, at *api.FailureLocation) []string {
	if r.Logs == nil || at.Pod == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	limit, lines := int64(maxMessage), max(r.LogLines, causeLines)
	data, err := r.Logs.CoreV1().Pods(namespace).GetLogs(at.Pod, &corev1.PodLogOptions{Container: at.Container, TailLines: &lines, LimitBytes: &limit}).DoRaw(ctx)
	if err != nil {
		log.FromContext(ctx).V(1).Info("the log of the failed step cannot be read", "pod", at.Pod, "error", err.Error())
		return nil
	}
	text := strings.TrimRight(api.Plain(string(data)), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// report what changed as events and metrics. A build that succeeds has one event,
// when it is done.
func (r *Reconciler) report(s *seen, v verdict, reason string, old api.AgentBuildStatus) {
	status := s.build.Status
	if old.Phase == status.Phase && old.Message == status.Message {
		return
	}
	switch status.Phase {
	case api.PhaseFailed:
		r.event(s, corev1.EventTypeWarning, reason, "Build", status.Message)
	case api.PhaseSucceeded:
		r.event(s, corev1.EventTypeNormal, reason, "Build", status.Message)
	case api.PhaseCancelled:
		r.event(s, corev1.EventTypeNormal, reason, "Cancel", status.Message)
	}
	if v.current != nil && v.current.done() && status.CompletionTime != nil && (old.CompletionTime == nil || old.PipelineRunName != status.PipelineRunName) {
		r.metrics.finished(s, *v.current, reason)
	}
}

func (r *Reconciler) event(s *seen, kind, reason, action, message string) {
	if len(message) > 1000 {
		message = message[:1000] // the API server's limit is 1 KiB
	}
	r.Events.Eventf(s.build, nil, kind, reason, action, "%s", strings.ToValidUTF8(message, ""))
}

// retrying reports that the API server or a Git server does not answer. It is best
// effort: the same server may refuse this, too.
func (r *Reconciler) retrying(ctx context.Context, s *seen, cause error) {
	if apierrors.IsConflict(cause) {
		return
	}
	status := s.build.Status.DeepCopy()
	message := clip("it is tried again: " + cause.Error())
	if c := meta.FindStatusCondition(status.Conditions, api.ConditionReady); c != nil && c.Reason == api.ReasonRetrying && c.ObservedGeneration == s.build.Generation {
		return // reported already; the wording may differ each time
	}
	if status.Phase == "" || status.ObservedGeneration != s.build.Generation {
		status.Phase = api.PhasePending
	}
	status.ObservedGeneration = s.build.Generation
	status.Message = message
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: api.ConditionReady, Status: metav1.ConditionFalse, Reason: api.ReasonRetrying, Message: message, ObservedGeneration: s.build.Generation})
	before := s.build.DeepCopy()
	s.build.Status = *status
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := r.Client.Status().Patch(ctx, s.build, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		log.FromContext(ctx).V(1).Info("the status could not be written either", "error", err.Error())
		return
	}
	r.event(s, corev1.EventTypeWarning, api.ReasonRetrying, "Build", message)
}

// clip bounds a text and makes it plain: much of it was written by strangers.
func clip(text string) string {
	text = api.Plain(text)
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-3], "") + "…"
}
