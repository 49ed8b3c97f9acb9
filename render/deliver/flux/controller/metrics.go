package controller

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/flux/api"
)

// metrics of RenderedSources, beside those of controller-runtime. The first has
// the name and labels that dashboards of Flux read.
type metrics struct {
	durations *prometheus.HistogramVec
	attempts  *prometheus.CounterVec
	size      *prometheus.GaugeVec
}

// newMetrics registers them. A second controller in a process counts with the first.
func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gotk_reconcile_duration_seconds", Help: "The duration in seconds of a GitOps Toolkit resource reconciliation.",
			Buckets: prometheus.ExponentialBuckets(10e-3, 3, 10)}, []string{"kind", "name", "namespace"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "armature_rendered_source_attempts_total", Help: "Reconciliations of RenderedSources, by the reason of their condition Ready."}, []string{"name", "namespace", "reason"}),
		size: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "armature_rendered_source_archive_bytes", Help: "Size of the published archive."}, []string{"name", "namespace"}),
	}
	err := multi.Errors(register(registry, &m.durations), register(registry, &m.attempts), register(registry, &m.size))
	return m, err
}

// register a collector, or take the one that is registered.
func register[C prometheus.Collector](registry prometheus.Registerer, collector *C) error {
	err := registry.Register(*collector)
	var before prometheus.AlreadyRegisteredError
	if !errors.As(err, &before) {
		return err
	}
	existing, ok := before.ExistingCollector.(C)
	if !ok {
		return err
	}
	*collector = existing
	return nil
}

func (m *metrics) reconciled(source *api.RenderedSource, took time.Duration) {
	m.durations.WithLabelValues(api.Kind, source.Name, source.Namespace).Observe(took.Seconds())
}

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
