package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
)

// metrics that the controller adds to those of controller-runtime, which count
// reconciles, their errors and their duration (000, "Monitoring").
type metrics struct {
	runs       *prometheus.CounterVec
	results    *prometheus.CounterVec
	denials    *prometheus.CounterVec
	establish  *prometheus.HistogramVec
	rampUp     *prometheus.HistogramVec
	completion *prometheus.HistogramVec
	builds     *buildCollector
}

func newMetrics(cache client.Reader) *metrics {
	seconds := []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200}
	labels := []string{"namespace", "mode"}
	return &metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "armature_build_runs_total", Help: "PipelineRuns that were created, by why."}, append(labels, "trigger")),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "armature_build_results_total", Help: "Runs that ended, by result and reason."}, append(labels, "result", "reason")),
		denials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "armature_build_denials_total", Help: "Runs that the API server refused."}, labels),
		establish: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "armature_build_establish_duration_seconds", Help: "From the creation of an AgentBuild to its first PipelineRun.", Buckets: seconds}, labels),
		rampUp: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "armature_build_rampup_duration_seconds", Help: "From the creation of a PipelineRun to its start.", Buckets: seconds}, labels),
		completion: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "armature_build_completion_duration_seconds", Help: "From the creation of a PipelineRun to its end.", Buckets: seconds}, labels),
		builds: &buildCollector{cache: cache, phases: prometheus.NewDesc("armature_builds", "AgentBuilds by phase.", []string{"namespace", "phase"}, nil),
			queued: prometheus.NewDesc("armature_builds_queued", "AgentBuilds that wait for a place, of namespaces where any does.", []string{"namespace"}, nil)},
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.runs, m.results, m.denials, m.establish, m.rampUp, m.completion, m.builds}
}

func (m *metrics) created(b *api.AgentBuild, why api.Trigger, now time.Time) {
	m.runs.WithLabelValues(b.Namespace, b.Spec.Mode, string(why)).Inc()
	if b.Status.PipelineRunName == "" {
		m.establish.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(now.Sub(b.CreationTimestamp.Time).Seconds())
	}
}

func (m *metrics) denied(b *api.AgentBuild) {
	m.denials.WithLabelValues(b.Namespace, b.Spec.Mode).Inc()
}

func (m *metrics) finished(b *api.AgentBuild, r runs.Run, reason string) {
	outcome := "failed"
	switch {
	case r.Succeeded():
		outcome = "succeeded"
	case r.Cancelled():
		outcome = "cancelled"
	}
	m.results.WithLabelValues(b.Namespace, b.Spec.Mode, outcome, reason).Inc()
	if start := r.Status.StartTime; start != nil {
		m.rampUp.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(start.Sub(r.CreationTimestamp.Time).Seconds())
	}
	m.completion.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(r.Finished().Sub(r.CreationTimestamp.Time).Seconds())
}

// buildCollector counts builds when it is asked, from the cache.
type buildCollector struct {
	cache          client.Reader
	phases, queued *prometheus.Desc
}

func (c *buildCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.phases
	out <- c.queued
}

func (c *buildCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var list api.AgentBuildList
	if err := c.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		out <- prometheus.NewInvalidMetric(c.phases, err)
		return
	}
	phases, waiting := map[[2]string]int{}, map[string]int{}
	for i := range list.Items {
		phases[[2]string{list.Items[i].Namespace, string(list.Items[i].Status.Phase)}]++
		if queue.Waits(list.Items[i].Status) {
			waiting[list.Items[i].Namespace]++
		}
	}
	for key, n := range phases {
		out <- prometheus.MustNewConstMetric(c.phases, prometheus.GaugeValue, float64(n), key[0], key[1])
	}
	for namespace, n := range waiting {
		out <- prometheus.MustNewConstMetric(c.queued, prometheus.GaugeValue, float64(n), namespace)
	}
}
