package controller

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attester"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/process/managers"
)

// outcome is what came of acting on an order.
type outcome struct {
	// created: a run now exists.
	created bool
	// problem is what a user must fix, or nil.
	problem error
	// again is when to look again; zero is never.
	again time.Duration
	// queued is what the build waits for, where its run may not be created yet.
	queued string
	// run is the name of that run.
	run string

	// Of attesting a run one is set; none while it is under way.
	attested *api.Attestation
	refused  *finding.Finding
	retried  error

	// tasks of a run that has ended, and why it failed, or nil.
	tasks   []api.TaskStatus
	failure *api.FailureDetails
}

// report changes what status shows to what came of acting: a run was attested, refused, or is still
// to be attested; or the next one waits in the queue.
func (o *order) report(status api.AgentBuildStatus, done outcome) {
	switch {
	case done.attested != nil:
		o.phase, o.reason, o.message = api.PhaseSucceeded, api.ReasonSucceeded, "the image was built and attested"
	case done.refused != nil:
		o.refused = true
		o.phase, o.reason, o.message = api.PhaseFailed, done.refused.Rule, done.refused.Error()
	case done.queued != "":
		o.phase, o.reason, o.message = api.PhasePending, api.ReasonQueued, done.queued
	case done.retried != nil:
		o.reason, o.message = api.ReasonRetrying, o.message+": it is tried again: "+done.retried.Error()
	case o.attest: // what an earlier attempt was reported with holds until the next one ends
		c := meta.FindStatusCondition(status.Conditions, api.ConditionAttested)
		if c != nil && status.PipelineRunUID == o.run.UID && c.Status == metav1.ConditionUnknown && c.Reason == api.ReasonRetrying {
			o.reason, o.message = c.Reason, c.Message
		}
	}
}

// attestRun attests a run, or looks what came of it.
func attestRun(a *attester.Attester, build *api.AgentBuild, run *runs.Run) outcome {
	answer, err := a.Attest(build, run)
	var later *managers.NotYet
	var problem *finding.Finding
	switch {
	case errors.As(err, &later):
		return outcome{again: later.Again, retried: later.Cause}
	case errors.As(err, &problem):
		return outcome{refused: problem}
	}
	return outcome{attested: &answer}
}
