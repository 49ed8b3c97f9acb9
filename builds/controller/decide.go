package controller

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/armature-dev/armature/builds/api"
)

// verdict is what is to be done about a build, decided from what was seen alone.
// It does not change once it is reached: what comes of acting is an outcome.
type verdict struct {
	// start says why a run is to be started; empty starts none.
	start   api.Trigger
	attempt int32
	// commit to build again; empty resolves the revision.
	commit string
	// ref is the branch that the commit was the head of; empty where that is not known.
	ref string
	// attest the run, which succeeded: until then its image does not count.
	attest bool
	// cancel is the run to stop, or nil, and lost the pod that it is stopped for, or nil.
	cancel *run
	lost   *lostPod
	// missing: status speaks of a run under way that is not to be seen.
	missing bool
	// ignore today's inputs for good (onChange: Ignore).
	ignore bool
	// prune are the finished runs to delete.
	prune []run
	// after is when to look again; zero is never.
	after time.Duration

	// phase, reason and message for status.
	phase   api.Phase
	reason  string
	message string
	// current is the run that status speaks of, or nil.
	current *run
	// problem keeps a run from starting.
	problem error
	// refused: the run succeeded, and is not attested for good.
	refused bool
	// attestation of the run, where acting has made one.
	attestation *api.Attestation
	// queued: the run that is to be started waits for a place.
	queued bool
	// restored: status speaks again of a run that is gone.
	restored bool
}

// defaultBackoff before the first retry, and the longest wait.
const (
	defaultBackoff = 30 * time.Second
	maxBackoff     = time.Hour
)

// decide is pure: the same observation gives the same verdict.
func decide(s *seen) verdict {
	v := verdict{}
	spec, status := s.build.Spec, s.build.Status
	v.current = lastRun(s)
	active := activeRun(s)
	known := knownInputs(s)
	trigger := whyStart(s, known)
	v.prune, v.after = prunable(s)
	if trigger == api.TriggerTemplate && s.turn > 0 {
		trigger = "" // others come first
		v.after = sooner(v.after, s.turn)
	}

	switch {
	case active != nil && (spec.Cancel || trigger != "" && spec.OnChange == api.ChangeCancel):
		v.current, v.phase, v.reason = active, api.PhaseBuilding, api.ReasonRunning
		v.message = fmt.Sprintf("stopping run %s", active.Name)
		if !active.cancelAsked() {
			v.cancel = active
		}
		return v
	case active != nil && trigger != "" && spec.OnChange == api.ChangeIgnore:
		v.ignore = true
		fallthrough
	case active != nil:
		v.current, v.phase, v.reason = active, api.PhaseBuilding, api.ReasonRunning
		v.message = fmt.Sprintf("run %s is under way", active.Name)
		if active.cancelAsked() {
			v.message = fmt.Sprintf("stopping run %s", active.Name)
			if active.lost != nil {
				v.message += ": " + active.lost.Message
			}
		}
		switch {
		case v.ignore || ignored(s):
			v.reason, v.message = api.ReasonChangeIgnored, v.message+"; the change of the spec is ignored, as onChange says"
		case trigger != "":
			v.reason, v.message = api.ReasonQueued, v.message+"; the change is built after it"
		}
		return v
	case spec.Cancel && (trigger != "" || v.current == nil && status.Phase == ""):
		v.phase, v.reason, v.message = api.PhaseCancelled, api.ReasonCancelled, "spec.cancel is true, so nothing is started"
		return v
	case trigger != "" && s.problem != nil:
		v.phase, v.problem = api.PhaseFailed, s.problem
		return v
	case trigger != "":
		v.start, v.attempt = trigger, 1
		if trigger == api.TriggerTemplate {
			v.commit = knownCommit(s, known)
			v.ref = knownRef(s, v.commit)
		}
		v.phase, v.reason = api.PhasePending, api.ReasonPending
		return v
	}

	// Nothing new is requested: report the state of the last run.
	if v.current == nil {
		v.missing = status.Phase == api.PhaseBuilding
		v.keep(status)
		return v
	}
	last := *v.current
	switch _, over := concluded(s, last); {
	case refused(s, last):
		v.refused, v.phase, v.reason = true, api.PhaseFailed, api.ReasonRunForeign
		if c := meta.FindStatusCondition(status.Conditions, api.ConditionAttested); c != nil {
			v.reason, v.message = c.Reason, c.Message
		}
	case last.succeeded() && pledged(last) && !over:
		v.attest, v.phase, v.reason = true, api.PhaseBuilding, api.ReasonAttesting
		v.message = fmt.Sprintf("run %s succeeded, and is being attested", last.Name)
	case last.succeeded():
		v.phase, v.reason, v.message = api.PhaseSucceeded, api.ReasonSucceeded, "the image was built"
	case last.cancelled():
		v.phase, v.reason, v.message = api.PhaseCancelled, api.ReasonCancelled, fmt.Sprintf("run %s was cancelled", last.Name)
	default:
		v.phase, v.reason = api.PhaseFailed, api.ReasonFailed
		v.message = last.condition().Message
		if last.lost != nil {
			v.message = last.lost.Message
		}
		if !spec.Cancel {
			v.retry(s, last)
		}
	}
	return v
}

// retry a failed run while the bound allows it, after a wait that doubles. What
// the run failed of is in status first, which wakes the build again.
func (v *verdict) retry(s *seen, last run) {
	retries, failure := s.build.Spec.Retries, s.build.Status.FailureDetails
	if retries == nil || retries.Limit == 0 || !recorded(s, last) {
		return
	}
	switch {
	case last.attempt > retries.Limit:
		v.message = fmt.Sprintf("%s (attempt %d of %d, no more retries)", v.message, last.attempt, retries.Limit+1)
		return
	case !retries.Covers(last.attempt, failure):
		v.message = fmt.Sprintf("%s (attempt %d of %d, not tried again: spec.retries.after does not list Any)", v.message, last.attempt, retries.Limit+1)
		return
	}
	wait := defaultBackoff
	if retries.Backoff != nil {
		wait = retries.Backoff.Duration
	}
	for range last.attempt - 1 {
		wait = min(2*wait, maxBackoff)
	}
	due := last.finished().Add(min(wait, maxBackoff)).Sub(s.now)
	if due > 0 {
		v.message = fmt.Sprintf("%s (attempt %d of %d, tried again after %s)", v.message, last.attempt, retries.Limit+1, wait)
		v.after = sooner(v.after, due)
		return
	}
	if s.problem != nil {
		v.problem = s.problem
		return
	}
	v.start, v.attempt, v.commit, v.ref = api.TriggerRetry, last.attempt+1, last.commit, last.ref
}

// reported is the verdict for status, after acting on it: a run was attested, refused,
// or is still to be; or the next one waits for a place.
func (v verdict) reported(done outcome) verdict {
	switch {
	case done.attested != nil:
		v.attest, v.attestation = false, done.attested
		v.phase, v.reason, v.message = api.PhaseSucceeded, api.ReasonSucceeded, "the image was built and attested"
	case done.refused != nil:
		v.attest, v.refused = false, true
		v.phase, v.reason, v.message = api.PhaseFailed, done.refused.Rule, done.refused.Error()
	case done.queued != "":
		v.queued, v.phase, v.reason, v.message = true, api.PhasePending, api.ReasonQueued, done.queued
	case errors.As(done.retried, new(*chainsSilent)):
		v.reason, v.message = api.ReasonChainsNotSigned, v.message+": "+done.retried.Error()
	case done.retried != nil:
		v.reason, v.message = api.ReasonRetrying, v.message+": it is tried again: "+done.retried.Error()
	case done.retrying != nil:
		v.reason, v.message = done.retrying.Reason, done.retrying.Message
	}
	return v
}

// keep what status reports of a run that is gone. Where it reports a spec or a
// server that is no longer at fault, it reports that run again.
func (v *verdict) keep(status api.AgentBuildStatus) {
	v.phase, v.message = status.Phase, status.Message
	ready := meta.FindStatusCondition(status.Conditions, api.ConditionReady)
	ofRun := meta.IsStatusConditionTrue(status.Conditions, api.ConditionRunExists) && (ready == nil || ready.Reason != api.ReasonRetrying)
	if status.LastRunPhase == "" || ofRun {
		return
	}
	v.phase = status.LastRunPhase
	switch v.phase {
	case api.PhaseSucceeded:
		v.reason, v.message = api.ReasonSucceeded, "built "+status.BuiltImage
	case api.PhaseCancelled:
		v.reason, v.message = api.ReasonCancelled, fmt.Sprintf("run %s was cancelled", status.PipelineRunName)
	default:
		v.reason, v.message = api.ReasonFailed, fmt.Sprintf("run %s failed", status.PipelineRunName)
	}
	v.restored = true
}

// sooner is the shorter of two waits; zero means no wait.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func activeRun(s *seen) *run {
	for i := range s.runs {
		// One that is older than the last is a copy: each waits for the one before.
		if !s.runs[i].done() && s.runs[i].DeletionTimestamp.IsZero() && s.runs[i].number >= s.build.Status.RunNumber {
			return &s.runs[i]
		}
	}
	return nil
}

// knownInputs of the last run, from the run itself or, when it is gone, from
// status.
func knownInputs(s *seen) *api.Inputs {
	if last := lastRun(s); last != nil {
		return &last.inputs
	}
	return s.build.Status.Inputs
}

// knownCommit is what a build was made of before; empty when the template now
// names another source.
func knownCommit(s *seen, known *api.Inputs) string {
	commit := known.Commit
	if source := s.build.Status.Source; commit == "" && source != nil {
		commit = source.Git.CommitSHA // written before inputs recorded it
	}
	if known.SourceHash != "" && known.SourceHash != s.want.SourceHash {
		return ""
	}
	return commit
}

// knownRef of a commit that the build was made of before.
func knownRef(s *seen, commit string) string {
	if source := s.build.Status.Source; source != nil && commit != "" && source.Git.CommitSHA == commit {
		return source.Git.Ref
	}
	return ""
}

// lastRun of a build. It is nil when status knows of a later one that is gone,
// as when a success was cleaned up and an older failure is kept.
func lastRun(s *seen) *run {
	if len(s.runs) == 0 || s.runs[0].number < s.build.Status.RunNumber {
		return nil
	}
	return &s.runs[0]
}

// nextNumber of a run.
func nextNumber(s *seen) int32 {
	n := s.build.Status.RunNumber
	if len(s.runs) > 0 {
		n = max(n, s.runs[0].number)
	}
	return n + 1
}

// whyStart is the reason why the last run is out of date; empty if it is not.
func whyStart(s *seen, known *api.Inputs) api.Trigger {
	switch {
	case known == nil:
		return api.TriggerConfig
	case ignored(s):
		return ""
	case known.SpecHash != s.want.SpecHash:
		return api.TriggerConfig
	case known.Rerun != s.want.Rerun:
		return api.TriggerManual
	case s.want.TemplateHash != "" && known.TemplateHash != s.want.TemplateHash && s.build.Spec.OnTemplateChange != api.TemplateIgnore:
		return api.TriggerTemplate
	}
	return ""
}

// ignored reports whether today's inputs were set aside while a run was under way.
func ignored(s *seen) bool {
	i := s.build.Status.Ignored
	return i != nil && i.SpecHash == s.want.SpecHash && i.Rerun == s.want.Rerun &&
		(i.TemplateHash == s.want.TemplateHash || s.want.TemplateHash == "")
}

// prunable lists the finished runs beyond the limits, and when the next one
// expires. A run whose result is not yet in status is never among them.
func prunable(s *seen) (out []run, after time.Duration) {
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
		if !r.done() || !r.DeletionTimestamp.IsZero() {
			continue
		}
		count, limit, ttl := &failed, limits.failed, limits.ttlFailed
		if r.succeeded() && !refused(s, r) {
			count, limit, ttl = &succeeded, limits.succeeded, limits.ttlSucceeded
		}
		*count++
		left := r.finished().Add(ttl).Sub(s.now)
		switch {
		case i == 0 && !recorded(s, r) && lastRun(s) != nil:
		case limit != nil && *count > *limit, ttl >= 0 && left <= 0:
			// A failed run that is still to be retried records the attempt.
			if i == 0 && lastRun(s) != nil && !r.succeeded() && !r.cancelled() && spec.Retries.Covers(r.attempt, s.build.Status.FailureDetails) {
				continue
			}
			out = append(out, r)
		case ttl >= 0 && (after == 0 || left < after):
			after = left
		}
	}
	return out, after
}

// recorded reports whether status holds the result of a finished run. A build that
// waits in the queue for its next one is Pending, and holds it as well.
func recorded(s *seen, r run) bool {
	status := s.build.Status
	return status.PipelineRunName == r.Name && status.CompletionTime != nil &&
		(status.Phase != api.PhaseBuilding && status.Phase != api.PhasePending || queued(status) && status.LastRunPhase != "")
}
