package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/controller/library"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/controller/turns"
	"github.com/armature-dev/armature/builds/failure"
)

// seen is everything that a decision about one build looks at.
type seen struct {
	build *api.AgentBuild
	// runs of this build, newest first.
	runs []runs.Run
	// template and steps; nil if problem says why.
	template *recipe.Template
	steps    map[string]*recipe.Step
	problem  error
	// want is what a run of today's spec and template would be made from.
	// TemplateHash is empty when the template could not be read.
	want api.Inputs
	// waits: a run for a changed template is due, and has to wait for its turn.
	waits bool
	// missing is why the run under way that status names is not to be seen:
	// api.ReasonRunDeleted or api.ReasonRunForeign. It is empty where it may be.
	missing string
	// moved: the build came from another shard, and the cache does not show its run yet.
	moved bool
	// lost is a pod that the run under way lost, or nil, which is looked for every lostAfter.
	lost      *runs.Lost
	lostAfter time.Duration
	now       time.Time
}

// observer gathers what concerns a build.
type observer struct {
	cache    client.Reader
	group    string // of AgentBuild
	runs     *runs.Store
	library  *library.Library
	rebuilds *turns.Rebuilds
	failures *failure.Reader
	kueue    *queue.Kueue // nil where Kueue is not asked
	// lostAfter is how long Tekton has to notice by itself that it lost a pod.
	lostAfter time.Duration
}

// observe a build by the caches; only a ConfigMap that changed, and the pods of a run under
// way, are read from the API server. It is nil when the build is gone.
func (o *observer) observe(ctx context.Context, key types.NamespacedName) (*seen, error) {
	o.library.Begin(key)
	build := &api.AgentBuild{}
	if err := o.cache.Get(ctx, key, build); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading AgentBuild %s: %w", key, err)
	}
	s := &seen{build: build, now: time.Now(), lostAfter: o.lostAfter}
	var err error
	if s.runs, err = o.runs.Cached(ctx, build); err != nil {
		return nil, err
	}
	if !build.DeletionTimestamp.IsZero() {
		return s, nil
	}
	if o.lacksRun(s) {
		if s.moved, err = o.runs.Move(ctx, build); s.moved || err != nil {
			return s, err
		}
	}
	if err := o.readInputs(ctx, s); err != nil {
		return s, err
	}
	if s.template != nil && s.template.Isolates() { // of the tenant's runs, only one from before is waited for
		s.runs = slices.DeleteFunc(s.runs, func(r runs.Run) bool {
			return !o.runs.IsIsolated(r) && (r.Done() || r.Inputs.SpecHash == s.want.SpecHash)
		})
	}
	if whyStart(s, knownInputs(s)) == api.TriggerTemplate {
		s.waits = !o.rebuilds.MayStart(key, s.now)
	} else {
		o.rebuilds.Leave(key)
	}
	if isMissing(s) { // or the cache is behind
		if s.missing, err = o.runs.Missing(ctx, build); err != nil {
			return nil, err
		}
	}
	s.lost = o.findLost(ctx, s)
	return s, nil
}

// lacksRun reports whether the run that status names, and that the next one depends on, may still be
// of the shard that its build was in.
func (o *observer) lacksRun(s *seen) bool {
	status := s.build.Status
	return o.runs.Shard.Key != "" && status.PipelineRunName != "" && status.Phase != api.PhaseSucceeded && status.Phase != api.PhaseCancelled &&
		!slices.ContainsFunc(s.runs, func(r runs.Run) bool { return r.Name == status.PipelineRunName })
}

// readInputs finds what a run would be made from. What a user must fix goes to s.problem;
// the error is for faults that may pass by themselves.
func (o *observer) readInputs(ctx context.Context, s *seen) error {
	s.want.Rerun = s.build.Annotations[api.RerunAnnotation(o.group)]
	found, err := o.library.Find(ctx, s.build)
	if err != nil {
		return err
	}
	s.template, s.steps, s.problem = found.Template, found.Steps, found.Problem
	if s.template == nil {
		s.want.SpecHash, _ = compose.InputHashes(s.build, recipe.NoTemplate(), nil)
		return nil
	}
	s.want.SpecHash, s.want.TemplateHash = compose.InputHashes(s.build, s.template, s.steps)
	s.want.SourceHash = compose.SourceHash(s.build, s.template)
	if !found.Complete || s.problem != nil {
		// Nothing can be built from this, so it does not cause another build: a
		// finished build stays as it is while somebody edits its steps.
		s.want.TemplateHash = ""
	}
	return nil
}

// findLost looks for a pod that a run under way lost, unless the run is stopped already. What
// cannot be read is looked at the next time: builds go on without it.
func (o *observer) findLost(ctx context.Context, s *seen) *runs.Lost {
	active := activeRun(s)
	if active == nil || active.CancelAsked() || isUnwanted(s) {
		return nil
	}
	lost, err := o.kueue.Evicted(ctx, s.build, active)
	if lost == nil && err == nil && s.now.Sub(active.CreationTimestamp.Time) >= o.lostAfter {
		lost, err = o.failures.Lost(ctx, active, s.now, o.lostAfter)
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "looking for lost pods", "run", active.Name)
	}
	return lost
}
