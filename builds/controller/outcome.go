package controller

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attester"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/controller/turns"
	"github.com/armature-dev/armature/functions/finding"
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
	// retrying is what an earlier attempt was reported with, which holds until the next
	// one ends.
	retrying *metav1.Condition
}

// view is what status shows.
type view struct {
	phase   api.Phase
	reason  string
	message string
	// run that status speaks of, or nil.
	run *runs.Run
	// problem keeps a run from starting.
	problem error
	// ignore today's inputs for good (onChange: Ignore).
	ignore bool
	// attesting: the run succeeded, and is not attested yet.
	attesting bool
	// refused: the run succeeded, and is not attested for good.
	refused bool
	// attestation of the run, where acting has made one.
	attestation *api.Attestation
	// queued: the run that is to be started waits until it may be created.
	queued bool
	// restored: status speaks again of a run that is gone.
	restored bool
}

// after gives the view after acting on an order: a run was attested, refused, or is still to
// be attested; or the next one waits in the queue.
func after(o order, done outcome) view {
	v := o.shows
	v.problem, v.attesting = done.problem, o.attest && done.attested == nil && done.refused == nil
	switch {
	case done.attested != nil:
		v.attestation = done.attested
		v.phase, v.reason, v.message = api.PhaseSucceeded, api.ReasonSucceeded, "the image was built and attested"
	case done.refused != nil:
		v.refused = true
		v.phase, v.reason, v.message = api.PhaseFailed, done.refused.Rule, done.refused.Error()
	case done.queued != "":
		v.queued, v.phase, v.reason, v.message = true, api.PhasePending, api.ReasonQueued, done.queued
	case done.retried != nil:
		v.reason, v.message = api.ReasonRetrying, v.message+": it is tried again: "+done.retried.Error()
	case done.retrying != nil:
		v.reason, v.message = done.retrying.Reason, done.retrying.Message
	}
	return v
}

// attestRun attests a run, or looks what came of it.
func attestRun(a *attester.Attester, build *api.AgentBuild, run *runs.Run) outcome {
	answer, err := a.Attest(build, run)
	var later *turns.NotYet
	var problem *finding.Finding
	switch {
	case errors.As(err, &later):
		return outcome{again: later.Again, retried: later.Cause, retrying: lastAttempt(build.Status, run.UID)}
	case errors.As(err, &problem):
		return outcome{refused: problem}
	}
	return outcome{attested: &answer}
}

// lastAttempt is what status says of an earlier attempt to attest a run, nil for nothing.
func lastAttempt(status api.AgentBuildStatus, run types.UID) *metav1.Condition {
	c := meta.FindStatusCondition(status.Conditions, api.ConditionAttested)
	if c == nil || status.PipelineRunUID != run || c.Status != metav1.ConditionUnknown || c.Reason != api.ReasonRetrying {
		return nil
	}
	return c
}
