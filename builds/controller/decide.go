package controller

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
)

// order is what is to be done about a build, decided from what was seen alone. What comes
// of acting on it is an outcome, and what status shows then is a view.
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
	// shows is the view where acting changes nothing of it.
	shows view
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

// decide is pure: the same observation gives the same order.
func decide(s *seen) order {
	var o order
	active, last, why := activeRun(s), lastRun(s), due(s)
	switch {
	case active != nil:
		o = underWay(s, active)
	case s.build.Spec.Cancel && (why != "" || last == nil && s.build.Status.Phase == ""):
		o.shows = view{run: last, phase: api.PhaseCancelled, reason: api.ReasonCancelled, message: "spec.cancel is true, so nothing is started"}
	case why != "" && s.problem != nil:
		o.problem, o.shows = s.problem, view{run: last, phase: api.PhaseFailed}
	case why != "":
		o.start = &attempt{why: why, number: 1}
		if why == api.TriggerTemplate {
			o.start.commit = knownCommit(s, knownInputs(s))
			o.start.ref = knownRef(s, o.start.commit)
		}
		o.shows = view{run: last, phase: api.PhasePending, reason: api.ReasonPending}
	case last == nil:
		o.shows = gone(s)
	default:
		o = ended(s, *last)
	}
	prune, expires := prunable(s)
	o.prune, o.after = prune, sooner(o.after, expires)
	return o
}

// underWay: a run has not ended.
func underWay(s *seen, active *runs.Run) order {
	o := order{shows: view{run: active, phase: api.PhaseBuilding, reason: api.ReasonRunning, message: fmt.Sprintf("run %s is under way", active.Name)}}
	show, stopping := &o.shows, fmt.Sprintf("stopping run %s", active.Name)
	if isUnwanted(s) {
		show.message = stopping
		if !active.CancelAsked() {
			o.cancel = active
		}
		return o
	}
	if active.CancelAsked() {
		show.message = stopping
		if active.Lost != nil {
			show.message += ": " + active.Lost.Message
		}
	}
	show.ignore = due(s) != "" && s.build.Spec.OnChange == api.ChangeIgnore
	switch {
	case show.ignore || ignored(s):
		show.reason, show.message = api.ReasonChangeIgnored, show.message+"; the change of the spec is ignored, as onChange says"
	case due(s) != "":
		show.reason, show.message = api.ReasonQueued, show.message+"; the change is built after it"
	}
	if active.CancelAsked() {
		return o
	}
	o.after = s.lostAfter
	if s.lost != nil {
		o.cancel, o.lost = active, s.lost
		show.message = stopping + ": " + s.lost.Message
	}
	return o
}

// isUnwanted reports whether a run under way is to be stopped, as the build says.
func isUnwanted(s *seen) bool {
	return s.build.Spec.Cancel || due(s) != "" && s.build.Spec.OnChange == api.ChangeCancel
}

// isMissing reports whether status has a run in progress that the API server does not have.
func isMissing(s *seen) bool {
	return activeRun(s) == nil && lastRun(s) == nil && due(s) == "" && s.build.Status.Phase == api.PhaseBuilding
}

// gone: nothing new is requested, and the last run does not exist any more.
func gone(s *seen) view {
	v, name := kept(s.build.Status), s.build.Status.PipelineRunName
	switch s.missing {
	case api.ReasonRunDeleted:
		v.message = fmt.Sprintf("run %s was deleted before it ended; start again with `armature build rerun %s`", name, s.build.Name)
	case api.ReasonRunForeign:
		v.message = fmt.Sprintf("somebody else changed run %s, so its result does not count; start again with `armature build rerun %s`", name, s.build.Name)
	default:
		return v
	}
	v.phase, v.reason = api.PhaseFailed, s.missing
	return v
}

// kept is what status reports of a run that is gone. Where it reports a spec or a
// server that is no longer at fault, that run is reported again.
func kept(status api.AgentBuildStatus) view {
	ready := meta.FindStatusCondition(status.Conditions, api.ConditionReady)
	ofRun := meta.IsStatusConditionTrue(status.Conditions, api.ConditionRunExists) && (ready == nil || ready.Reason != api.ReasonRetrying)
	if status.LastRunPhase == "" || ofRun {
		return view{phase: status.Phase, message: status.Message}
	}
	v := view{phase: status.LastRunPhase, restored: true}
	switch v.phase {
	case api.PhaseSucceeded:
		v.reason, v.message = api.ReasonSucceeded, "built "+status.BuiltImage
	case api.PhaseCancelled:
		v.reason, v.message = api.ReasonCancelled, fmt.Sprintf("run %s was cancelled", status.PipelineRunName)
	default:
		v.reason, v.message = api.ReasonFailed, fmt.Sprintf("run %s failed", status.PipelineRunName)
	}
	return v
}

// ended: nothing new is requested, and the last run has ended.
func ended(s *seen, last runs.Run) order {
	v := view{run: &last}
	switch _, over := concluded(s, last); {
	case refused(s, last):
		v.refused, v.phase, v.reason = true, api.PhaseFailed, api.ReasonRunForeign
		if c := meta.FindStatusCondition(s.build.Status.Conditions, api.ConditionAttested); c != nil {
			v.reason, v.message = c.Reason, c.Message
		}
	case last.Succeeded() && last.Attested() && !over:
		v.phase, v.reason = api.PhaseBuilding, api.ReasonAttesting
		v.message = fmt.Sprintf("run %s succeeded, and is being attested", last.Name)
		return order{attest: true, shows: v}
	case last.Succeeded():
		v.phase, v.reason, v.message = api.PhaseSucceeded, api.ReasonSucceeded, "the image was built"
	case last.Cancelled():
		v.phase, v.reason, v.message = api.PhaseCancelled, api.ReasonCancelled, fmt.Sprintf("run %s was cancelled", last.Name)
	default:
		return failed(s, last)
	}
	return order{shows: v}
}

// failed: the run is tried again while the bound allows it, after a wait that doubles.
// Why it failed is in status first, which wakes the build again.
func failed(s *seen, last runs.Run) order {
	o := order{shows: view{run: &last, phase: api.PhaseFailed, reason: api.ReasonFailed, message: last.Condition().Message}}
	if last.Lost != nil {
		o.shows.message = last.Lost.Message
	}
	retries, failure := s.build.Spec.Retries, s.build.Status.FailureDetails
	if s.build.Spec.Cancel || retries == nil || retries.Limit == 0 || !recorded(s, last) {
		return o
	}
	note := func(format string, args ...any) order {
		o.shows.message = fmt.Sprintf("%s (attempt %d of %d, %s)", o.shows.message, last.Attempt, retries.Limit+1, fmt.Sprintf(format, args...))
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

func activeRun(s *seen) *runs.Run {
	for i := range s.runs {
		// One that is older than the last is a copy: each waits for the one before.
		if !s.runs[i].Done() && s.runs[i].DeletionTimestamp.IsZero() && s.runs[i].Number >= s.build.Status.RunNumber {
			return &s.runs[i]
		}
	}
	return nil
}

// knownInputs of the last run, from the run itself or, when it is gone, from
// status.
func knownInputs(s *seen) *api.Inputs {
	if last := lastRun(s); last != nil {
		return &last.Inputs
	}
	return s.build.Status.Inputs
}

// knownCommit is the commit of the last run. It is empty if the template names another
// source now.
func knownCommit(s *seen, known *api.Inputs) string {
	if known.SourceHash != s.want.SourceHash {
		return ""
	}
	return known.Commit
}

// knownRef is the ref of the last run, if that was made of the commit.
func knownRef(s *seen, commit string) string {
	if source := s.build.Status.Source; source != nil && commit != "" && source.Git.CommitSHA == commit {
		return source.Git.Ref
	}
	return ""
}

// lastRun of a build. It is nil when status knows of a later one that is gone,
// as when a success was cleaned up and an older failure is kept.
func lastRun(s *seen) *runs.Run {
	if len(s.runs) == 0 || s.runs[0].Number < s.build.Status.RunNumber {
		return nil
	}
	return &s.runs[0]
}

// nextNumber of a run.
func nextNumber(s *seen) int32 {
	n := s.build.Status.RunNumber
	if len(s.runs) > 0 {
		n = max(n, s.runs[0].Number)
	}
	return n + 1
}

// due is why a run is to be started now; empty where none is. A run for a changed template
// waits for its turn.
func due(s *seen) api.Trigger {
	why := whyStart(s, knownInputs(s))
	if why == api.TriggerTemplate && s.waits {
		return ""
	}
	return why
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
		if r.Succeeded() && !refused(s, r) {
			count, limit, ttl = &succeeded, limits.succeeded, limits.ttlSucceeded
		}
		*count++
		left := r.Finished().Add(ttl).Sub(s.now)
		switch {
		case i == 0 && !recorded(s, r) && lastRun(s) != nil:
		case limit != nil && *count > *limit, ttl >= 0 && left <= 0:
			// A failed run that is still to be retried records the attempt.
			if i == 0 && lastRun(s) != nil && !r.Succeeded() && !r.Cancelled() && spec.Retries.Covers(r.Attempt, s.build.Status.FailureDetails) {
				continue
			}
			out = append(out, r)
		case ttl >= 0 && (after == 0 || left < after):
			after = left
		}
	}
	return out, after
}

// concluded reports whether status has the end of a run, and how it ended.
func concluded(s *seen, r runs.Run) (api.Phase, bool) {
	status := s.build.Status
	if status.PipelineRunUID != r.UID || status.CompletionTime == nil {
		return "", false
	}
	return status.LastRunPhase, status.LastRunPhase != ""
}

// refused reports whether a run succeeded and was not attested for good.
func refused(s *seen, r runs.Run) bool {
	phase, is := concluded(s, r)
	return is && r.Succeeded() && r.Attested() && phase == api.PhaseFailed
}

// recorded reports whether status holds the result of a finished run. A build that
// waits in the queue for its next one is Pending, and holds it as well.
func recorded(s *seen, r runs.Run) bool {
	status := s.build.Status
	return status.PipelineRunName == r.Name && status.CompletionTime != nil &&
		(status.Phase != api.PhaseBuilding && status.Phase != api.PhasePending || queue.Waits(status) && status.LastRunPhase != "")
}
