package controller

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/process"
)

// metrics of RenderedSources, beside those of controller-runtime. The first has
// the name and labels that dashboards of Flux read.
type metrics struct {
	durations *prometheus.HistogramVec
	attempts  *prometheus.CounterVec
	size      *prometheus.GaugeVec
}

// newMetrics registers them. A second controller in a process counts with the first.
var newMetrics = sync.OnceValues(func() (*metrics, error) {
	m := &metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gotk_reconcile_duration_seconds", Help: "The duration in seconds of a GitOps Toolkit resource reconciliation.",
			Buckets: prometheus.ExponentialBuckets(10e-3, 3, 10)}, []string{"kind", "name", "namespace"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "armature_rendered_source_attempts_total", Help: "Reconciliations of RenderedSources, by the reason of their condition Ready."}, []string{"name", "namespace", "reason"}),
		size: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "armature_rendered_source_archive_bytes", Help: "Size of the published archive."}, []string{"name", "namespace"}),
	}
	return m, process.Register(m.durations, m.attempts, m.size)
})

func (m *metrics) attempted(source *api.RenderedSource, failed *failure) {
	reason := reasonSucceeded
	if failed != nil {
		reason = failed.reason
	}
	m.attempts.WithLabelValues(source.Name, source.Namespace, reason).Inc()
	if source.Status.Artifact != nil {
		m.size.WithLabelValues(source.Name, source.Namespace).Set(float64(source.Status.Artifact.Size))
	}
}

func (m *metrics) forget(namespace, name string) {
	labels := prometheus.Labels{"name": name, "namespace": namespace}
	m.durations.DeletePartialMatch(labels)
	m.attempts.DeletePartialMatch(labels)
	m.size.DeletePartialMatch(labels)
}
