package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
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
	builds     *phaseCollector
	queue      *queueCollector
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
		builds: &phaseCollector{cache: cache, desc: prometheus.NewDesc("armature_builds", "AgentBuilds by phase.", []string{"namespace", "phase"}, nil)},
		queue:  &queueCollector{desc: prometheus.NewDesc("armature_builds_queued", "AgentBuilds that wait for a place, of namespaces where any does.", []string{"namespace"}, nil)},
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.runs, m.results, m.denials, m.establish, m.rampUp, m.completion, m.builds, m.queue}
}

func (m *metrics) created(s *seen, why api.Trigger, now time.Time) {
	b := s.build
	m.runs.WithLabelValues(b.Namespace, b.Spec.Mode, string(why)).Inc()
	if b.Status.PipelineRunName == "" {
		m.establish.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(now.Sub(b.CreationTimestamp.Time).Seconds())
	}
}

func (m *metrics) denied(s *seen) {
	m.denials.WithLabelValues(s.build.Namespace, s.build.Spec.Mode).Inc()
}

func (m *metrics) finished(s *seen, r run, reason string) {
	b := s.build
	outcome := "failed"
	switch {
	case r.succeeded():
		outcome = "succeeded"
	case r.cancelled():
		outcome = "cancelled"
	}
	m.results.WithLabelValues(b.Namespace, b.Spec.Mode, outcome, reason).Inc()
	if start := r.Status.StartTime; start != nil {
		m.rampUp.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(start.Sub(r.CreationTimestamp.Time).Seconds())
	}
	m.completion.WithLabelValues(b.Namespace, b.Spec.Mode).Observe(r.finished().Sub(r.CreationTimestamp.Time).Seconds())
}

// phaseCollector counts builds when it is asked, from the cache.
type phaseCollector struct {
	cache client.Reader
	desc  *prometheus.Desc
}

func (c *phaseCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

func (c *phaseCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var list api.AgentBuildList
	if err := c.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		out <- prometheus.NewInvalidMetric(c.desc, err)
		return
	}
	counts := map[[2]string]int{}
	for i := range list.Items {
		counts[[2]string{list.Items[i].Namespace, string(list.Items[i].Status.Phase)}]++
	}
	for key, n := range counts {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), key[0], key[1])
	}
}

// queueCollector counts the builds in the queue when it is asked.
type queueCollector struct {
	of   *queue
	desc *prometheus.Desc
}

func (c *queueCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

func (c *queueCollector) Collect(out chan<- prometheus.Metric) {
	for namespace, n := range c.of.lengths() {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), namespace)
	}
}
