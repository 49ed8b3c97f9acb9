package controller

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/process/managers"
	"github.com/armature-dev/armature/render/process/metrics"
)

// recorder has the metrics that the controller adds to those of controller-runtime, which count
// reconciles, their errors and their duration (000, "Monitoring").
type recorder struct {
	set                                  metrics.Set
	runs, results, denials               *prometheus.CounterVec
	establish, rampUp, completion, asked *prometheus.HistogramVec
	traces                               *traces.Tracer
}

func newMetrics(cache client.Reader,
	buildOf func(metav1.Object) (types.NamespacedName, bool)) *recorder {
	var set metrics.Set
	r := &recorder{
		runs:       set.Counter("armature_build_runs_total"),
		results:    set.Counter("armature_build_results_total"),
		denials:    set.Counter("armature_build_denials_total"),
		establish:  set.Histogram("armature_build_establish_duration_seconds"),
		rampUp:     set.Histogram("armature_build_rampup_duration_seconds"),
		completion: set.Histogram("armature_build_completion_duration_seconds"),
		asked:      set.Histogram("armature_server_request_duration_seconds"),
	}
	set.Count(func(ctx context.Context, set metrics.SetGauge) error {
		return countBuilds(ctx, cache, buildOf, set)
	}, phasesGauge, queuedGauge, unreadyGauge, oldestGauge)
	for _, request := range []string{"commit", "poll", "attest"} {
		// Each series starts at 0; without it, the first failure would be no increase.
		for _, result := range []string{"good", "refused", "failed"} {
			r.asked.WithLabelValues(request, result)
		}
	}
	r.set = set
	return r
}

// request returns the function that records requests of a kind to servers.
func (m *recorder) request(kind string) managers.Observe {
	return func(err error, took time.Duration) {
		result := "good"
		if errors.As(err, new(*finding.Finding)) {
			result = "refused"
		} else if err != nil {
			result = "failed"
		}
		m.asked.WithLabelValues(kind, result).Observe(took.Seconds())
	}
}

func (m *recorder) created(b *api.AgentBuild, why api.Trigger, now time.Time) {
	m.runs.WithLabelValues(b.Namespace, b.Spec.Mode, string(why)).Inc()
	if b.Status.PipelineRunName == "" {
		m.establish.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(
			now.Sub(b.CreationTimestamp.Time).Seconds())
	}
}

func (m *recorder) denied(b *api.AgentBuild) {
	m.denials.WithLabelValues(b.Namespace, b.Spec.Mode).Inc()
}

func (m *recorder) finished(b *api.AgentBuild, r runs.Run, reason string) {
	m.results.WithLabelValues(b.Namespace, b.Spec.Mode, strings.ToLower(r.Outcome()), reason).Inc()
	if start := r.Status.StartTime; start != nil {
		m.rampUp.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(
			start.Sub(r.CreationTimestamp.Time).Seconds())
	}
	m.completion.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(
		r.Finished().Sub(r.CreationTimestamp.Time).Seconds())
}

// failureCounts is how long a build whose run failed counts as unready.
const failureCounts = 30 * time.Minute

// The names of the gauges of countBuilds.
const (
	phasesGauge  = "armature_builds"
	queuedGauge  = "armature_builds_queued"
	unreadyGauge = "armature_builds_unready"
	oldestGauge  = "armature_builds_oldest_wait_seconds"
)

// countBuilds counts builds and their runs in the cache.
func countBuilds(ctx context.Context, cache client.Reader,
	buildOf func(metav1.Object) (types.NamespacedName, bool), set metrics.SetGauge) error {
	var list api.AgentBuildList
	if err := cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	type key struct{ gauge, namespace, label string }
	found, now := map[key]float64{}, time.Now()
	wait := func(namespace, waitsFor string, since metav1.Time) {
		k := key{oldestGauge, namespace, waitsFor}
		found[k] = max(found[k], now.Sub(since.Time).Seconds())
	}
	for i := range list.Items {
		namespace, s := list.Items[i].Namespace, list.Items[i].Status
		found[key{phasesGauge, namespace, string(s.Phase)}]++
		if reason := unreadyReason(s, now); reason != "" {
			found[key{unreadyGauge, namespace, reason}]++
		}
		if !queue.Waits(s) {
			continue
		}
		found[key{queuedGauge, namespace, ""}]++
		// The condition Succeeded became Unknown when the build began to wait.
		if c := meta.FindStatusCondition(s.Conditions, api.ConditionSucceeded); c != nil {
			wait(namespace, "slot", c.LastTransitionTime)
		}
	}
	// Status reports the start of a run only at its end, so the runs are read.
	var all runs.PipelineRunList
	if err := cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for i := range all.Items {
		run := &all.Items[i]
		if build, ok := buildOf(run); ok && run.Status.StartTime == nil &&
			run.Status.CompletionTime == nil && run.Spec.Status == "" &&
			run.DeletionTimestamp == nil {
			wait(build.Namespace, "start", run.CreationTimestamp)
		}
	}
	for k, value := range found {
		labels := []string{k.namespace, k.label}
		if k.gauge == queuedGauge {
			labels = labels[:1]
		}
		set(k.gauge, value, labels...)
	}
	return nil
}

// unreadyReason returns why a build is not Ready, or "" if it is or if its run failed long ago.
func unreadyReason(s api.AgentBuildStatus, now time.Time) string {
	ready := meta.FindStatusCondition(s.Conditions, api.ConditionReady)
	ran := meta.IsStatusConditionTrue(s.Conditions, api.ConditionRunExists)
	if ready == nil || ready.Status == metav1.ConditionTrue || s.Phase == api.PhaseCancelled ||
		s.Phase == api.PhaseFailed && ran && s.CompletionTime != nil &&
			now.Sub(s.CompletionTime.Time) > failureCounts {
		return ""
	}
	return ready.Reason
}

// startSpan starts the span of a run before it is created. An annotation of the run carries the
// span, which later spans have as their parent.
func (m *recorder) startSpan(s *observation, why api.Trigger,
	run *tektonv1.PipelineRun) traces.Span {
	if m.traces == nil {
		return traces.Span{}
	}
	b := s.build
	last, parent := b.Status.TraceParent, b.Annotations[keys.AnnotationTrace]
	if len(s.runs) > 0 {
		last = traces.OfRun(s.runs[0].Annotations[runs.SpanContext])
	}
	switch {
	case why == api.TriggerRetry:
		parent = last
	case traces.Same(parent, last):
		parent = "" // It is of an earlier run.
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
		m.traces.Start(traces.Since(context.Background(), since, span.Parent()), "build.queue",
			"build", name).End(s.now, false)
	}
	return span
}

// endSpans creates the spans of a run when status reports its end.
func (m *recorder) endSpans(b *api.AgentBuild, r runs.Run, reason string) {
	parent := traces.OfRun(r.Annotations[runs.SpanContext])
	if m.traces == nil || parent == "" {
		return
	}
	span := func(name string, from, to time.Time, failed bool) {
		if to.Before(from) { // The clocks differ.
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
