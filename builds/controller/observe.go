package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/controller/library"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
)

// observation is all that a decision about one build depends on.
type observation struct {
	build *api.AgentBuild
	// runs are the runs of this build, newest first.
	runs []runs.Run
	library.Definitions
	// want are the inputs of a run of the current spec and template. TemplateHash is empty if the
	// template could not be read.
	want api.Inputs
	// missing is why the run under way that status names was not found: api.ReasonRunDeleted or
	// api.ReasonRunForeign. It is empty if the run may exist.
	missing string
	// moved reports whether the build came from another shard and the cache lacks its run yet.
	moved bool
	// lost is a pod that the run under way lost, or nil. It is looked for every lostAfter.
	lost      *runs.Lost
	lostAfter time.Duration
	now       time.Time

	// judge derives the following fields from the runs and from status.

	// active is the run that has not ended, or nil.
	active *runs.Run
	// last is the last run, or nil if status names a later one that was deleted, for example a
	// success that was cleaned up after an older failure.
	last *runs.Run
	// known are the inputs of the last run, from the run or, if it was deleted, from status.
	known *api.Inputs
	// due is why a run has to start now; empty if none has to.
	due api.Trigger
	// ignored reports whether a change to the current inputs was ignored during a run.
	ignored bool
	// recorded is the name of the run whose result is in status. A Pending build that waits in the
	// queue keeps the result of its last run.
	recorded string
	// concluded is the run whose outcome is in status. refused is the same run if it succeeded and
	// its attestation has failed for good.
	concluded, refused types.UID
	// unwanted reports whether the spec asks to stop a run under way.
	unwanted bool
}

// judge derives from the runs, status and current inputs what a decision needs.
func judge(s *observation) {
	status := s.build.Status
	for i, r := range s.runs {
		// An older run than the last is a copy: a run starts only after the previous one has ended.
		if !r.Done() && r.DeletionTimestamp.IsZero() && r.Number >= status.RunNumber {
			s.active = &s.runs[i]
			break
		}
	}
	s.known = status.Inputs
	if len(s.runs) > 0 && s.runs[0].Number >= status.RunNumber {
		s.last, s.known = &s.runs[0], &s.runs[0].Inputs
	}
	if i := status.Ignored; i != nil {
		s.ignored = i.SpecHash == s.want.SpecHash && i.Rerun == s.want.Rerun &&
			(i.TemplateHash == s.want.TemplateHash || s.want.TemplateHash == "")
	}
	switch {
	case s.known == nil:
		s.due = api.TriggerConfig
	case s.ignored:
	case s.known.SpecHash != s.want.SpecHash:
		s.due = api.TriggerConfig
	case s.known.Rerun != s.want.Rerun:
		s.due = api.TriggerManual
	case s.want.TemplateHash != "" && s.known.TemplateHash != s.want.TemplateHash &&
		s.build.Spec.OnTemplateChange != api.TemplateIgnore:
		s.due = api.TriggerTemplate
	}
	if status.CompletionTime == nil {
		return
	}
	if status.Phase != api.PhaseBuilding && status.Phase != api.PhasePending ||
		queue.Waits(status) && status.LastRunPhase != "" {
		s.recorded = status.PipelineRunName
	}
	if status.LastRunPhase != "" {
		s.concluded = status.PipelineRunUID
	}
	for _, r := range s.runs {
		if r.UID == s.concluded && r.Succeeded() && r.Attested() &&
			status.LastRunPhase == api.PhaseFailed {
			s.refused = r.UID
		}
	}
}

// knownCommit returns the commit of the last run, or "" if the template names another source now.
func knownCommit(s *observation) string {
	if s.known == nil || s.known.SourceHash != s.want.SourceHash {
		return ""
	}
	return s.known.Commit
}

// observe reads the state of a build from the caches. Only changed ConfigMaps and the pods of a run
// under way are read from the API server. It returns nil if the build does not exist.
func (r *Reconciler) observe(ctx context.Context, key types.NamespacedName) (*observation, error) {
	r.library.Begin(key)
	build := &api.AgentBuild{}
	if err := r.client.Get(ctx, key, build); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading AgentBuild %s: %w", key, err)
	}
	s := &observation{build: build, now: time.Now(), lostAfter: r.lostAfter}
	var err error
	if s.runs, err = r.runs.Cached(ctx, build); err != nil {
		return nil, err
	}
	if !build.DeletionTimestamp.IsZero() {
		return s, nil
	}
	if r.lacksRun(s) {
		if s.moved, err = r.runs.Move(ctx, build); s.moved || err != nil {
			return s, err
		}
	}
	if err := r.readInputs(ctx, s); err != nil {
		return s, err
	}
	// Of the runs in the tenant's namespace, only one of an earlier spec is waited for.
	if s.Template != nil && s.Template.Isolates() {
		s.runs = slices.DeleteFunc(s.runs, func(run runs.Run) bool {
			return !r.runs.IsIsolated(run) && (run.Done() || run.Inputs.SpecHash == s.want.SpecHash)
		})
	}
	judge(s)
	if s.due != api.TriggerTemplate {
		r.rebuilds.Forget(key)
	} else if _, err := r.rebuilds.Get(key, key.Name, nil,
		func(ctx context.Context) (struct{}, error) {
			return struct{}{}, r.rebuildRate.Wait(ctx)
		}); err != nil {
		s.due = "" // The build is woken when it is its turn.
	}
	s.unwanted = build.Spec.Cancel || s.due != "" && build.Spec.OnChange == api.ChangeCancel
	// Either the run was deleted or the cache is stale.
	if s.active == nil && s.last == nil && s.due == "" && build.Status.Phase == api.PhaseBuilding {
		if s.missing, err = r.runs.Missing(ctx, build); err != nil {
			return nil, err
		}
	}
	s.lost = r.findLost(ctx, s)
	return s, nil
}

// lacksRun reports whether the run that status names, and that the next run depends on, may still
// have the label of the build's previous shard.
func (r *Reconciler) lacksRun(s *observation) bool {
	status := s.build.Status
	return r.runs.Shard.Key != "" && status.PipelineRunName != "" &&
		status.Phase != api.PhaseSucceeded && status.Phase != api.PhaseCancelled &&
		!slices.ContainsFunc(s.runs, func(r runs.Run) bool {
			return r.Name == status.PipelineRunName
		})
}

// readInputs reads the inputs of a run. It stores what a user must fix in s.Problem, and returns
// errors that a retry may resolve.
func (r *Reconciler) readInputs(ctx context.Context, s *observation) (err error) {
	s.want.Rerun = s.build.Annotations[api.RerunAnnotation(r.settings.Group)]
	if s.Definitions, err = r.library.Find(ctx, s.build); err != nil {
		return err
	}
	if s.Template == nil {
		s.want.SpecHash, _ = compose.InputHashes(s.build, templates.NoTemplate(), nil)
		return nil
	}
	s.want.SpecHash, s.want.TemplateHash = compose.InputHashes(s.build, s.Template, s.Steps)
	s.want.SourceHash = compose.SourceHash(s.build, s.Template)
	if !s.Complete || s.Problem != nil {
		// Invalid inputs start no run: a finished build stays as it is while its steps are edited.
		s.want.TemplateHash = ""
	}
	return nil
}

// findLost looks for a pod that a run under way lost, unless the run is stopped already. It logs
// errors and does not return them: the build continues, and the next reconcile looks again.
func (r *Reconciler) findLost(ctx context.Context, s *observation) *runs.Lost {
	active := s.active
	if active == nil || active.CancelAsked() || s.unwanted {
		return nil
	}
	lost, err := r.kueue.Evicted(ctx, s.build, active)
	if lost == nil && err == nil && s.now.Sub(active.CreationTimestamp.Time) >= r.lostAfter {
		lost, err = r.failures.Lost(ctx, active, s.now, r.lostAfter)
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "looking for lost pods", "run", active.Name)
	}
	return lost
}
