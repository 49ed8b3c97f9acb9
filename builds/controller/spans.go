package controller

import (
	"context"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/functions/api/keys"
)

// startSpan of a run that is to be created. The run carries it: what comes later is below it.
func (m *recorder) startSpan(s *seen, a attempt, run *tektonv1.PipelineRun) traces.Span {
	if m.traces == nil {
		return traces.Span{}
	}
	b := s.build
	last, parent := b.Status.TraceParent, b.Annotations[keys.AnnotationTrace]
	if len(s.runs) > 0 {
		last = traces.OfRun(s.runs[0].Annotations[runs.SpanContext])
	}
	switch {
	case a.why == api.TriggerRetry:
		parent = last
	case traces.Same(parent, last):
		parent = "" // of a run before
	}
	since, waits := s.now, meta.FindStatusCondition(b.Status.Conditions, api.ConditionRunExists)
	waited := queue.Waits(b.Status) && waits != nil
	if waited {
		since = waits.LastTransitionTime.Time
	}
	name := client.ObjectKeyFromObject(b).String()
	span := m.traces.Start(traces.Since(context.Background(), since, parent), "build.start",
		"build", name, "run", run.Name, "reason", run.Annotations[keys.AnnotationTrigger])
	run.Annotations[runs.SpanContext] = span.Carrier()
	if waited {
		m.traces.Start(traces.Since(context.Background(), since, span.Parent()), "build.queue", "build", name).End(s.now, false)
	}
	return span
}

// endSpans of a run whose end status has now.
func (m *recorder) endSpans(b *api.AgentBuild, r runs.Run, reason string) {
	parent := traces.OfRun(r.Annotations[runs.SpanContext])
	if m.traces == nil || parent == "" {
		return
	}
	span := func(name string, from, to time.Time, failed bool) {
		if to.Before(from) { // by another clock
			to = from
		}
		m.traces.Start(traces.Since(context.Background(), from, parent), name,
			"build", client.ObjectKeyFromObject(b).String(), "run", r.Name, "commit", r.Commit,
			"result", r.Outcome(), "reason", reason).End(to, failed)
	}
	created, ended := r.CreationTimestamp.Time, r.Finished()
	if start := r.Status.StartTime; start == nil {
		span("build.wait", created, ended, !r.Succeeded())
	} else {
		span("build.wait", created, start.Time, false)
		span("build.run", start.Time, ended, !r.Succeeded())
	}
	if r.Attested() && r.Succeeded() {
		span("build.attest", ended, time.Now(), b.Status.LastRunPhase != api.PhaseSucceeded)
	}
}
