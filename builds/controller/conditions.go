package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/builds/source/git"
)

// ending is how a run ended, according to its TaskRuns and pods.
type ending struct {
	tasks []api.TaskStatus
	// failure is nil for a run that did not fail.
	failure *api.FailureDetails
}

// statusOf gives the status that shows v. e is how its run ended; it is nil where status has
// that already, or the run has not ended. reason is that of the conditions; where it is
// empty, the current ones are kept. It is pure.
func statusOf(s *seen, v view, e *ending) (status *api.AgentBuildStatus, reason string) {
	status, reason = s.build.Status.DeepCopy(), v.reason
	status.ObservedGeneration = s.build.Generation
	status.Phase, status.Message = v.phase, api.Clip(v.message)
	if v.ignore {
		ignored := s.want
		status.Ignored = &ignored
	}
	if showsRun(s, v) {
		reason = showRun(s, v, e, status)
	}
	switch {
	case v.queued:
		showQueued(s, v, status)
		return status, api.ReasonQueued
	case v.problem != nil:
		reason = findings.Of(v.problem)[0].Rule
		status.Phase = api.PhaseFailed
		status.Message = api.Clip(v.problem.Error())
		status.FailureDetails = &api.FailureDetails{Reason: reason, Message: status.Message, Cause: causeOf(v, status)}
	}
	if reason != "" { // else the current conditions are kept
		showConditions(s, v, reason, status)
	}
	return status, reason
}

// showsRun reports whether status takes over what the view's run says. While the next run
// waits in the queue, status keeps what it has of the last one.
func showsRun(s *seen, v view) bool { return v.run != nil && !(v.queued && recorded(s, *v.run)) }

// hasEnded reports whether the view's run is over for status: a run of an attested mode that
// succeeded does not count before it is attested, whatever else the view is about.
func hasEnded(s *seen, v view) bool {
	_, over := concluded(s, *v.run)
	return v.run.Done() && (!v.run.Attested() || !v.run.Succeeded() || v.attestation != nil || over || isRefused(s, v))
}

// isNewEnd reports whether status does not have the end of the view's run yet.
func isNewEnd(s *seen, v view) bool {
	return showsRun(s, v) && hasEnded(s, v) && !recorded(s, *v.run)
}

// isRefused reports whether the view's run is not attested for good.
func isRefused(s *seen, v view) bool { return v.refused || refused(s, *v.run) }

// setter sets a condition.
type setter func(kind string, state metav1.ConditionStatus, reason, message string)

func setterOf(s *seen, status *api.AgentBuildStatus) setter {
	return func(kind string, state metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: kind, Status: state, Reason: reason, Message: api.Clip(message), ObservedGeneration: s.build.Generation})
	}
}

// showConditions with a reason.
func showConditions(s *seen, v view, reason string, status *api.AgentBuildStatus) {
	set := setterOf(s, status)
	ready := metav1.ConditionFalse
	if status.Phase == api.PhaseSucceeded {
		ready = metav1.ConditionTrue
	}
	set(api.ConditionReady, ready, reason, status.Message)
	if v.problem != nil {
		if slices.Contains(git.Reasons, reason) {
			set(api.ConditionVerified, metav1.ConditionFalse, reason, status.Message)
		}
		set(api.ConditionRunExists, metav1.ConditionFalse, reason, status.Message)
		set(api.ConditionSucceeded, metav1.ConditionFalse, reason, status.Message)
		return
	}
	switch {
	case v.run != nil:
		setAttested(v, reason, status, set)
		setVerified(*v.run, status, set)
		set(api.ConditionRunExists, metav1.ConditionTrue, "Created", fmt.Sprintf("run %s exists", v.run.Name))
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
	set(api.ConditionSucceeded, cmp.Or(succeeded, metav1.ConditionUnknown), reason, status.Message)
}

// causeOf the last run's failure, which decides whether it is tried again. It outlasts
// the details: a problem that keeps the next attempt from starting has its own.
func causeOf(v view, status *api.AgentBuildStatus) api.FailureCause {
	if v.run == nil || status.LastRunPhase != api.PhaseFailed || status.FailureDetails == nil {
		return ""
	}
	return status.FailureDetails.Cause
}

// showQueued: the build waits until its run may be created. What its last run says stays.
func showQueued(s *seen, v view, status *api.AgentBuildStatus) {
	status.Phase, status.Message = api.PhasePending, api.Clip(v.message)
	if c := meta.FindStatusCondition(status.Conditions, api.ConditionRunExists); c != nil && c.Status == metav1.ConditionFalse && c.Reason != api.ReasonQueued {
		// The details are of a problem that is solved, except the cause of the last failure.
		cause := causeOf(v, status)
		if status.FailureDetails = nil; cause != "" {
			status.FailureDetails = &api.FailureDetails{Reason: api.ReasonFailed, Cause: cause}
		}
	}
	set := setterOf(s, status)
	set(api.ConditionReady, metav1.ConditionFalse, api.ReasonQueued, status.Message)
	set(api.ConditionRunExists, metav1.ConditionFalse, api.ReasonQueued, status.Message)
	set(api.ConditionSucceeded, metav1.ConditionUnknown, api.ReasonQueued, status.Message)
}

// showRun writes what the run itself says, and gives the reason of the conditions.
func showRun(s *seen, v view, e *ending, status *api.AgentBuildStatus) (reason string) {
	run := *v.run
	if status.PipelineRunName != run.Name {
		status.Tasks, status.FailureDetails = nil, nil
		if status.Ignored != nil && !v.ignore && !ignored(s) {
			status.Ignored = nil
		}
	}
	inputs := run.Inputs
	status.PipelineRunName, status.PipelineRunUID, status.Inputs = run.Name, run.UID, &inputs
	if status.PipelineRunNamespace = ""; run.Namespace != s.build.Namespace {
		status.PipelineRunNamespace = run.Namespace
	}
	status.RunReason, status.Attempt, status.RunNumber = run.Trigger, run.Attempt, run.Number
	status.LastBuildTime = run.CreationTimestamp.DeepCopy()
	status.StartTime, status.CompletionTime = run.Status.StartTime.DeepCopy(), nil
	if source := sourceOf(s, run); source != nil {
		status.Source = source
	}
	if !hasEnded(s, v) {
		status.FailureDetails, status.LastRunPhase = nil, ""
		return v.reason
	}
	at := metav1.NewTime(run.Finished()).Rfc3339Copy()
	status.CompletionTime = &at
	if e != nil {
		status.Tasks = e.tasks
	}
	switch {
	case run.Succeeded():
		status.LastRunPhase, status.FailureDetails = api.PhaseSucceeded, nil
		message := v.message
		if isRefused(s, v) {
			status.LastRunPhase = api.PhaseFailed
			status.FailureDetails = &api.FailureDetails{Reason: v.reason, Message: api.Clip(message)}
		} else {
			message = showImage(s, v, status) + notes(status.Tasks)
		}
		status.Message = api.Clip(message)
		return v.reason
	case run.Cancelled():
		status.LastRunPhase = api.PhaseCancelled
		return v.reason
	}
	status.LastRunPhase = api.PhaseFailed
	if e != nil {
		status.FailureDetails = e.failure
	}
	if d := status.FailureDetails; d != nil {
		message := run.Condition().Message
		note, ok := strings.CutPrefix(v.message, message)
		if !ok {
			message, note = v.message, ""
		}
		status.Message = api.Clip(failure.Message(d, message, note) + notes(status.Tasks))
		return d.Reason
	}
	return v.reason
}

// notes are what tasks have for people, each after a semicolon.
func notes(tasks []api.TaskStatus) (text string) {
	for _, task := range tasks {
		if task.Message != "" {
			text += "; " + task.Message
		}
	}
	return text
}

// sourceOf a run; nil where its commit is not known.
func sourceOf(s *seen, run runs.Run) *api.SourceStatus {
	commit := run.Commit
	// A step that was given a revision of its own has cloned another commit.
	if cloned := run.Cloned(); git.IsFullSHA(cloned) {
		commit = cloned
	}
	if commit == "" {
		return nil
	}
	if commit != run.Commit {
		return &api.SourceStatus{Git: api.GitStatus{CommitSHA: commit}}
	}
	out := api.GitStatus{CommitSHA: commit, Ref: run.Ref, Verified: run.Verified}
	if s.template != nil {
		if revision := compose.Revision(s.build, s.template); !git.IsFullSHA(revision) && !strings.HasPrefix(revision, "refs/tags/") {
			out.BranchName = strings.TrimPrefix(revision, "refs/heads/")
		}
	}
	return &api.SourceStatus{Git: out}
}

// showImage writes what a run that succeeded built, and says so.
func showImage(s *seen, v view, status *api.AgentBuildStatus) (message string) {
	if v.attestation != nil {
		status.Attestation = v.attestation
	}
	image, platforms, err := v.run.Image()
	switch {
	case status.Attestation != nil && status.Attestation.RunUID == v.run.UID:
		if v.attestation != nil { // of the spec as it is
			status.Platforms = attestedPlatforms(s.build.Spec.Platforms, status.Attestation)
		}
		status.BuiltImage = status.Attestation.Image
		return "built and attested " + status.BuiltImage
	case err == nil:
		if status.BuiltImage != image {
			status.Attestation = nil // it is of the image before
		}
		status.BuiltImage, status.Platforms = image, platforms
		return "built " + image
	}
	return "the run succeeded, but " + err.Error() + ", so builtImage stays as it was"
}

// attestedPlatforms of an image that was built for some, none where it was not.
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

// setAttested writes the condition Attested of an attested mode's run; runs of other
// modes have none.
func setAttested(v view, reason string, status *api.AgentBuildStatus, set setter) {
	run, a := *v.run, status.Attestation
	switch {
	case !run.Attested():
		meta.RemoveStatusCondition(&status.Conditions, api.ConditionAttested)
	case v.refused:
		set(api.ConditionAttested, metav1.ConditionFalse, reason, v.message)
	case a != nil && a.RunUID == run.UID:
		set(api.ConditionAttested, metav1.ConditionTrue, api.ReasonAttested, fmt.Sprintf("%s by %s are signed%s", signedThings(a), a.BuilderID, judged(a.Policy)))
	case v.attesting, !run.Succeeded():
		set(api.ConditionAttested, metav1.ConditionUnknown, reason, status.Message)
	}
}

func signedThings(a *api.Attestation) string {
	if len(a.Platforms) > 0 {
		bills := ""
		if a.SBOM != "" || slices.ContainsFunc(a.Platforms, func(p api.PlatformAttestation) bool { return p.SBOMDigest != "" }) {
			bills = ", their SBOMs"
		}
		return fmt.Sprintf("the index, the images of %d platforms%s and their provenance", len(a.Platforms), bills)
	}
	if a.SBOM == "" {
		return "the image and its provenance"
	}
	return "the image, its SBOM and its provenance"
}

// judged says what the platform's policy thinks of an image.
func judged(v *api.PolicyVerdict) string {
	switch {
	case v == nil:
		return ""
	case v.Refusal != "":
		return fmt.Sprintf("; the policy %s refuses the image: %s", v.Policy, v.Refusal)
	}
	return fmt.Sprintf("; the policy %s accepts the image", v.Policy)
}

// setVerified writes the condition SourceVerified of a run; runs without a policy have none.
func setVerified(run runs.Run, status *api.AgentBuildStatus, set setter) {
	switch {
	case len(run.Verified) == 0:
		meta.RemoveStatusCondition(&status.Conditions, api.ConditionVerified)
	case status.Source == nil || status.Source.Git.CommitSHA != run.Commit:
		set(api.ConditionVerified, metav1.ConditionFalse, api.ReasonSourceReplaced, fmt.Sprintf("a step cloned another commit than %s, which was verified", run.Commit))
	default:
		var found []string
		for _, v := range run.Verified {
			text := "reachable from " + v.Ref
			if v.Signer != "" {
				text += " and signed by " + v.Signer
			}
			found = append(found, fmt.Sprintf("%s (policy %s)", text, v.Policy))
		}
		set(api.ConditionVerified, metav1.ConditionTrue, api.ReasonVerified, fmt.Sprintf("commit %s is %s", run.Commit, strings.Join(found, "; ")))
	}
}
