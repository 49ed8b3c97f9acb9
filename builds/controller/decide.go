package controller

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/runs"
)

// order is what is to be done about a build, decided from what was seen alone.
type order struct {
	// start a run, or nil.
	start *attempt
	// attest the run, which succeeded: until then its image does not count.
	attest bool
	// cancel is the run to stop, or nil, and lost the pod that it is stopped for, or nil.
	cancel *runs.Run
	lost   *runs.Lost
	// problem keeps a run from starting.
	problem error
	// prune are the finished runs to delete.
	prune []runs.Run
	// after is when to look again; zero is never.
	after time.Duration

	// What status shows, unless acting changes it.
	phase           api.Phase
	reason, message string
	// run that status speaks of, or nil.
	run *runs.Run
	// ignore today's inputs for good (onChange: Ignore).
	ignore bool
	// refused: the run succeeded, and is not attested for good.
	refused bool
	// restored: status speaks again of a run that is gone.
	restored bool
}

// attempt is a run that is to be started.
type attempt struct {
	why    api.Trigger
	number int32
	// commit to build again; empty resolves the revision.
	commit string
	// ref is the branch that the commit was the head of; empty where that is not known.
	ref string
}

// defaultBackoff before the first retry, and the longest wait.
const (
	defaultBackoff = 30 * time.Second
	maxBackoff     = time.Hour
)

// decide is pure: equal observations yield equal decisions.
func decide(s *seen) order {
	var o order
	switch {
	case s.active != nil:
		o = underWay(s)
	case s.build.Spec.Cancel && (s.due != "" || s.last == nil && s.build.Status.Phase == ""):
		o = order{run: s.last, phase: api.PhaseCancelled, reason: api.ReasonCancelled, message: "spec.cancel is true, so nothing is started"}
	case s.due != "" && s.problem != nil:
		o = order{problem: s.problem, run: s.last, phase: api.PhaseFailed}
	case s.due != "":
		o = order{start: &attempt{why: s.due, number: 1}, run: s.last, phase: api.PhasePending, reason: api.ReasonPending}
		if s.due == api.TriggerTemplate {
			o.start.commit = s.knownCommit()
			if source := s.build.Status.Source; source != nil && o.start.commit != "" && source.Git.CommitSHA == o.start.commit {
				o.start.ref = source.Git.Ref
			}
		}
	case s.last == nil:
		o = gone(s)
	default:
		o = ended(s)
	}
	prune, expires := prunable(s)
	o.prune, o.after = prune, sooner(o.after, expires)
	return o
}

// underWay: a run has not ended.
func underWay(s *seen) order {
	active, stopping := s.active, fmt.Sprintf("stopping run %s", s.active.Name)
	o := order{run: active, phase: api.PhaseBuilding, reason: api.ReasonRunning, message: fmt.Sprintf("run %s is under way", active.Name)}
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
		o.reason, o.message = api.ReasonChangeIgnored, o.message+"; the change of the spec is ignored, as onChange says"
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

// gone: nothing new is requested, and the last run does not exist any more. Status keeps what it
// reports of it. Where it reports a spec or a server that is no longer at fault, the run is reported
// again.
func gone(s *seen) order {
	status := s.build.Status
	failed := func(why string) order {
		return order{phase: api.PhaseFailed, reason: s.missing,
			message: fmt.Sprintf("%s; start again with `armature build rerun %s`", fmt.Sprintf(why, status.PipelineRunName), s.build.Name)}
	}
	switch s.missing {
	case api.ReasonRunDeleted:
		return failed("run %s was deleted before it ended")
	case api.ReasonRunForeign:
		return failed("somebody else changed run %s, so its result does not count")
	}
	ready := meta.FindStatusCondition(status.Conditions, api.ConditionReady)
	ofRun := meta.IsStatusConditionTrue(status.Conditions, api.ConditionRunExists) && (ready == nil || ready.Reason != api.ReasonRetrying)
	if status.LastRunPhase == "" || ofRun {
		return order{phase: status.Phase, message: status.Message}
	}
	o := order{phase: status.LastRunPhase, restored: true}
	switch o.phase {
	case api.PhaseSucceeded:
		o.reason, o.message = api.ReasonSucceeded, "built "+status.BuiltImage
	case api.PhaseCancelled:
		o.reason, o.message = api.ReasonCancelled, fmt.Sprintf("run %s was cancelled", status.PipelineRunName)
	default:
		o.reason, o.message = api.ReasonFailed, fmt.Sprintf("run %s failed", status.PipelineRunName)
	}
	return o
}

// ended: nothing new is requested, and the last run has ended.
func ended(s *seen) order {
	last := s.last
	switch {
	case last.UID == s.refused:
		o := order{run: last, refused: true, phase: api.PhaseFailed, reason: api.ReasonRunForeign}
		if c := meta.FindStatusCondition(s.build.Status.Conditions, api.ConditionAttested); c != nil {
			o.reason, o.message = c.Reason, c.Message
		}
		return o
	case last.Succeeded() && last.Attested() && last.UID != s.concluded:
		return order{run: last, attest: true, phase: api.PhaseBuilding, reason: api.ReasonAttesting,
			message: fmt.Sprintf("run %s succeeded, and is being attested", last.Name)}
	case last.Succeeded():
		return order{run: last, phase: api.PhaseSucceeded, reason: api.ReasonSucceeded, message: "the image was built"}
	case last.Cancelled():
		return order{run: last, phase: api.PhaseCancelled, reason: api.ReasonCancelled, message: fmt.Sprintf("run %s was cancelled", last.Name)}
	}
	return failed(s)
}

// failed: the run is tried again while the bound allows it, after a wait that doubles.
// Why it failed is in status first, which wakes the build again.
func failed(s *seen) order {
	last := s.last
	o := order{run: last, phase: api.PhaseFailed, reason: api.ReasonFailed, message: last.Condition().Message}
	if last.Lost != nil {
		o.message = last.Lost.Message
	}
	retries, failure := s.build.Spec.Retries, s.build.Status.FailureDetails
	if s.build.Spec.Cancel || retries == nil || retries.Limit == 0 || last.Name != s.recorded {
		return o
	}
	note := func(format string, args ...any) order {
		o.message = fmt.Sprintf("%s (attempt %d of %d, %s)", o.message, last.Attempt, retries.Limit+1, fmt.Sprintf(format, args...))
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
	case s.problem != nil:
		o.problem = s.problem
	default:
		o.start = &attempt{why: api.TriggerRetry, number: last.Attempt + 1, commit: last.Commit, ref: last.Ref}
	}
	return o
}

// sooner is the shorter of two waits; zero means no wait.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// prunable lists the finished runs beyond the limits, and when the next one
// expires. A run whose result is not yet in status is never among them.
func prunable(s *seen) (out []runs.Run, after time.Duration) {
	spec := s.build.Spec
	limits := struct {
		succeeded, failed       *int32
		ttlSucceeded, ttlFailed time.Duration
	}{ttlSucceeded: -1, ttlFailed: -1}
	if r := spec.Retention; r != nil {
		limits.succeeded, limits.failed = r.SucceededLimit, r.FailedLimit
		if r.TTLAfterSucceeded != nil {
			limits.ttlSucceeded = r.TTLAfterSucceeded.Duration
		}
		if r.TTLAfterFailed != nil {
			limits.ttlFailed = r.TTLAfterFailed.Duration
		}
	}
	if cleanup := spec.CleanupAfterBuild == nil || *spec.CleanupAfterBuild; cleanup && limits.succeeded == nil {
		limits.succeeded = new(int32)
	}
	succeeded, failed := int32(0), int32(0)
	for i, r := range s.runs {
		if !r.Done() || !r.DeletionTimestamp.IsZero() {
			continue
		}
		count, limit, ttl := &failed, limits.failed, limits.ttlFailed
		if r.Succeeded() && r.UID != s.refused {
			count, limit, ttl = &succeeded, limits.succeeded, limits.ttlSucceeded
		}
		*count++
		left := r.Finished().Add(ttl).Sub(s.now)
		switch {
		case i == 0 && r.Name != s.recorded && s.last != nil:
		case limit != nil && *count > *limit, ttl >= 0 && left <= 0:
			// A failed run that is still to be retried records the attempt.
			if i == 0 && s.last != nil && !r.Succeeded() && !r.Cancelled() && spec.Retries.Covers(r.Attempt, s.build.Status.FailureDetails) {
				continue
			}
			out = append(out, r)
		case ttl >= 0 && (after == 0 || left < after):
			after = left
		}
	}
	return out, after
}
