package controller

import (
	"sync"

	"github.com/fluxcd/pkg/apis/meta"
	fluxmetrics "github.com/fluxcd/pkg/runtime/metrics"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/metrics"
)

// recorder records the metrics of RenderedSources.
type recorder struct {
	flux        *fluxmetrics.Recorder // durations, for dashboards of Flux
	attempts    *prometheus.CounterVec
	size, ready *prometheus.GaugeVec
}

// newMetrics registers the metrics. Several controllers in a process share them.
var newMetrics = sync.OnceValues(func() (*recorder, error) {
	var set metrics.Set
	m := &recorder{
		flux:     fluxmetrics.NewRecorder(),
		attempts: set.Counter("armature_rendered_source_attempts_total"),
		size:     set.Gauge("armature_rendered_source_archive_bytes"),
		ready:    set.Gauge("armature_rendered_source_ready"),
	}
	return m, process.Register(append(m.flux.Collectors(), set...)...)
})

// reference returns a reference to a RenderedSource for Flux's metrics.
func reference(namespace, name string) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: api.Kind, Namespace: namespace, Name: name}
}

func (m *recorder) attempted(source *api.RenderedSource, reason string) {
	m.attempts.WithLabelValues(source.Name, source.Namespace, reason).Inc()
	ready := map[bool]float64{true: 1}[reason == meta.SucceededReason]
	m.ready.WithLabelValues(source.Name, source.Namespace).Set(ready)
	if source.Status.Artifact != nil {
		m.size.WithLabelValues(source.Name, source.Namespace).Set(
			float64(source.Status.Artifact.Size))
	}
}

func (m *recorder) forget(namespace, name string) {
	m.flux.DeleteDuration(reference(namespace, name))
	labels := prometheus.Labels{"name": name, "namespace": namespace}
	m.attempts.DeletePartialMatch(labels)
	m.size.DeletePartialMatch(labels)
	m.ready.DeletePartialMatch(labels)
}
