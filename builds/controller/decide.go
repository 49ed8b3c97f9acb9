package controller

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/runs"
)

// decision is what to do for a build. It depends on the observation alone.
type decision struct {
	// start is the input of the run to start, or nil.
	start *compose.Input
	// attest says that the run succeeded and has to be attested. Its image does not count before.
	attest bool
	// cancel is the run to stop, or nil. lost is the lost pod that is the reason, or nil.
	cancel *runs.Run
	lost   *runs.Lost
	// problem prevents a run from starting.
	problem error
	// prune are the finished runs to delete.
	prune []runs.Run
	// after is when to reconcile again; zero is never.
	after time.Duration

	// The following fields are what status shows, unless acting changes it.
	phase           api.Phase
	reason, message string
	// run is the run that status reports, or nil.
	run *runs.Run
	// ignore says to ignore the current inputs for good (onChange: Ignore).
	ignore bool
	// refused says that the run succeeded and its attestation has failed for good.
	refused bool
	// restored says that status reports a deleted run again.
	restored bool
	// shown says that status is updated from the run. While the next run waits in the queue, status
	// keeps what it has of the last one.
	shown bool
	// over says that the run has ended for status. A run of an attested mode that succeeded is over
	// once its attestation has succeeded or failed for good.
	over bool
	// held says that a problem prevents a run from starting.
	held bool
}

// startOf returns the input of the next run of a build.
func startOf(s *observation, why api.Trigger, attempt int32) *compose.Input {
	in := &compose.Input{
		Build: s.build, Template: s.Template, Steps: s.Steps, Attempt: attempt,
		Number: s.build.Status.RunNumber + 1, Resolves: true,
		Resolved: compose.Resolved{Trigger: why},
	}
	if len(s.runs) > 0 {
		in.Number = max(in.Number, s.runs[0].Number+1)
	}
	return in
}

// defaultBackoff is the wait before the first retry, and maxBackoff the longest wait.
const (
	defaultBackoff = 30 * time.Second
	maxBackoff     = time.Hour
)

// decide returns the decision for an observation. It is pure.
func decide(s *observation) decision {
	var o decision
	switch {
	case s.active != nil:
		o = underWay(s)
	case s.build.Spec.Cancel && (s.due != "" || s.last == nil && s.build.Status.Phase == ""):
		o = decision{run: s.last, phase: api.PhaseCancelled, reason: api.ReasonCancelled,
			message: "spec.cancel is true, so nothing is started"}
	case s.due != "" && s.Problem != nil:
		o = decision{problem: s.Problem, run: s.last, phase: api.PhaseFailed}
	case s.due != "":
		o = decision{start: startOf(s, s.due, 1), run: s.last, phase: api.PhasePending,
			reason: api.ReasonPending}
		if s.due == api.TriggerTemplate {
			o.start.Commit = knownCommit(s)
			if source := s.build.Status.Source; source != nil && o.start.Commit != "" &&
				source.Git.CommitSHA == o.start.Commit {
				o.start.Ref = source.Git.Ref
			}
		}
	case s.last == nil:
		o = deleted(s)
	default:
		o = ended(s)
	}
	prune, expires := prunable(s)
	o.prune, o.after = prune, sooner(o.after, expires)
	return o
}

// underWay decides for a build with a run that has not ended.
func underWay(s *observation) decision {
	active, stopping := s.active, fmt.Sprintf("stopping run %s", s.active.Name)
	o := decision{run: active, phase: api.PhaseBuilding, reason: api.ReasonRunning,
		message: fmt.Sprintf("run %s is under way", active.Name)}
	if s.unwanted {
		o.message = stopping
		if !active.CancelAsked() {
			o.cancel = active
		}
		return o
	}
	if active.CancelAsked() {
		o.message = stopping
		if active.Lost != nil {
			o.message += ": " + active.Lost.Message
		}
	}
	o.ignore = s.due != "" && s.build.Spec.OnChange == api.ChangeIgnore
	switch {
	case o.ignore || s.ignored:
		o.reason, o.message = api.ReasonChangeIgnored,
			o.message+"; the change of the spec is ignored, as onChange says"
	case s.due != "":
		o.reason, o.message = api.ReasonQueued, o.message+"; the change is built after it"
	}
	if active.CancelAsked() {
		return o
	}
	o.after = s.lostAfter
	if s.lost != nil {
		o.cancel, o.lost = active, s.lost
		o.message = stopping + ": " + s.lost.Message
	}
	return o
}

// deleted decides for a build without a new request whose last run was deleted. Status keeps its
// report of the run, and reports the run again after a problem of the spec or a server was solved.
func deleted(s *observation) decision {
	status := s.build.Status
	if why := map[string]string{
		api.ReasonRunDeleted: "run %s was deleted before it ended",
		api.ReasonRunForeign: "somebody else changed run %s, so its result does not count",
	}[s.missing]; why != "" {
		return decision{phase: api.PhaseFailed, reason: s.missing,
			message: fmt.Sprintf(why+"; start again with `armature build rerun %s`",
				status.PipelineRunName, s.build.Name)}
	}
	ready := meta.FindStatusCondition(status.Conditions, api.ConditionReady)
	ofRun := meta.IsStatusConditionTrue(status.Conditions, api.ConditionRunExists) &&
		(ready == nil || ready.Reason != api.ReasonRetrying)
	if status.LastRunPhase == "" || ofRun {
		return decision{phase: status.Phase, message: status.Message}
	}
	o := decision{phase: status.LastRunPhase, restored: true}
	switch o.phase {
	case api.PhaseSucceeded:
		o.reason, o.message = api.ReasonSucceeded, "built "+status.BuiltImage
	case api.PhaseCancelled:
		o.reason, o.message = api.ReasonCancelled, fmt.Sprintf("run %s was cancelled",
			status.PipelineRunName)
	default:
		o.reason, o.message = api.ReasonFailed, fmt.Sprintf("run %s failed", status.PipelineRunName)
	}
	return o
}

// ended decides for a build without a new request whose last run has ended.
func ended(s *observation) decision {
	last := s.last
	switch {
	case last.UID == s.refused:
		o := decision{run: last, refused: true, phase: api.PhaseFailed,
			reason: api.ReasonRunForeign}
		if c := meta.FindStatusCondition(s.build.Status.Conditions,
			api.ConditionAttested); c != nil {
			o.reason, o.message = c.Reason, c.Message
		}
		return o
	case last.Succeeded() && last.Attested() && last.UID != s.concluded:
		return decision{run: last, attest: true, phase: api.PhaseBuilding,
			reason:  api.ReasonAttesting,
			message: fmt.Sprintf("run %s succeeded, and is being attested", last.Name)}
	case last.Succeeded():
		return decision{run: last, phase: api.PhaseSucceeded, reason: api.ReasonSucceeded,
			message: "the image was built"}
	case last.Cancelled():
		return decision{run: last, phase: api.PhaseCancelled, reason: api.ReasonCancelled,
			message: fmt.Sprintf("run %s was cancelled", last.Name)}
	}
	return failed(s)
}

// failed decides about a retry of a failed run: spec.retries limits the attempts, and the wait
// doubles each time. The cause of the failure is written to status first, which wakes the build.
func failed(s *observation) decision {
	last := s.last
	o := decision{run: last, phase: api.PhaseFailed, reason: api.ReasonFailed,
		message: last.Condition().Message}
	if last.Lost != nil {
		o.message = last.Lost.Message
	}
	retries, failure := s.build.Spec.Retries, s.build.Status.FailureDetails
	if s.build.Spec.Cancel || retries == nil || retries.Limit == 0 || last.Name != s.recorded {
		return o
	}
	note := func(format string, args ...any) decision {
		o.message = fmt.Sprintf("%s (attempt %d of %d, %s)", o.message, last.Attempt,
			retries.Limit+1, fmt.Sprintf(format, args...))
		return o
	}
	switch {
	case last.Attempt > retries.Limit:
		return note("no more retries")
	case !retries.Covers(last.Attempt, failure):
		return note("not tried again: spec.retries.after does not list Any")
	}
	wait := defaultBackoff
	if retries.Backoff != nil {
		wait = retries.Backoff.Duration
	}
	for range last.Attempt - 1 {
		wait = min(2*wait, maxBackoff)
	}
	if wait := last.Finished().Add(min(wait, maxBackoff)).Sub(s.now); wait > 0 {
		o.after = wait
	}
	switch {
	case o.after > 0:
		return note("tried again after %s", wait)
	case s.Problem != nil:
		o.problem = s.Problem
	default:
		o.start = startOf(s, api.TriggerRetry, last.Attempt+1)
		o.start.Commit, o.start.Ref = last.Commit, last.Ref
	}
	return o
}

// sooner returns the shorter of two waits; zero means no wait.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// prunable returns the finished runs beyond the limits, and when the next one expires. It excludes
// a run whose result is not in status yet.
func prunable(s *observation) (out []runs.Run, after time.Duration) {
	spec, keep := s.build.Spec, api.Retention{}
	if spec.Retention != nil {
		keep = *spec.Retention
	}
	if cleanup := spec.CleanupAfterBuild == nil || *spec.CleanupAfterBuild; cleanup &&
		keep.SucceededLimit == nil {
		keep.SucceededLimit = new(int32)
	}
	succeeded, failed := int32(0), int32(0)
	for i, r := range s.runs {
		if !r.Done() || !r.DeletionTimestamp.IsZero() {
			continue
		}
		count, limit, ttl := &failed, keep.FailedLimit, keep.TTLAfterFailed
		if r.Succeeded() && r.UID != s.refused {
			count, limit, ttl = &succeeded, keep.SucceededLimit, keep.TTLAfterSucceeded
		}
		*count++
		var left time.Duration
		if ttl != nil {
			left = r.Finished().Add(ttl.Duration).Sub(s.now)
		}
		switch {
		case i == 0 && r.Name != s.recorded && s.last != nil:
		case limit != nil && *count > *limit, ttl != nil && left <= 0:
			// A failed run that will be retried records the attempt.
			if i == 0 && s.last != nil && !r.Succeeded() && !r.Cancelled() &&
				spec.Retries.Covers(r.Attempt, s.build.Status.FailureDetails) {
				continue
			}
			out = append(out, r)
		case ttl != nil && (after == 0 || left < after):
			after = left
		}
	}
	return out, after
}

// settle updates a decision with the result of acting: a run was attested or refused or still has
// to be attested, or the next run waits in the queue.
func settle(o *decision, s *observation, done result) {
	switch {
	case done.attested != nil:
		o.phase, o.reason, o.message =
			api.PhaseSucceeded, api.ReasonSucceeded, "the image was built and attested"
	case done.queued != "":
		o.phase, o.reason, o.message = api.PhasePending, api.ReasonQueued, done.queued
	case !o.attest:
	case done.failed != nil && done.failed.Stalled:
		o.refused = true
		o.phase, o.reason, o.message = api.PhaseFailed, done.failed.Reason, done.failed.Error()
	case done.failed != nil:
		o.reason, o.message =
			done.failed.Reason, o.message+": it is tried again: "+done.failed.Error()
	default: // The report of an earlier attempt stays until the next one ends.
		status := s.build.Status
		c := meta.FindStatusCondition(status.Conditions, api.ConditionAttested)
		if c != nil && status.PipelineRunUID == o.run.UID && c.Status == metav1.ConditionUnknown &&
			c.Reason == api.ReasonRetrying {
			o.reason, o.message = c.Reason, c.Message
		}
	}
	o.held = done.failed != nil && !o.attest
	if run := o.run; run != nil {
		o.shown = done.queued == "" || run.Name != s.recorded
		o.over = run.Done() && (!run.Attested() || !run.Succeeded() || done.attested != nil ||
			run.UID == s.concluded || o.refused)
	}
}
