package controller

import (
	"sync"

	fluxmetrics "github.com/fluxcd/pkg/runtime/metrics"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/process"
)

// metrics of RenderedSources, beside those of controller-runtime.
type metrics struct {
	flux     *fluxmetrics.Recorder // durations, which dashboards of Flux read
	attempts *prometheus.CounterVec
	size     *prometheus.GaugeVec
}

// newMetrics registers the metrics. A second controller in a process counts with the first.
var newMetrics = sync.OnceValues(func() (*metrics, error) {
	m := &metrics{
		flux: fluxmetrics.NewRecorder(),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "armature_rendered_source_attempts_total",
			Help: "Reconciliations of RenderedSources, by the reason of their condition Ready.",
		}, []string{"name", "namespace", "reason"}),
		size: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "armature_rendered_source_archive_bytes", Help: "Size of the published archive.",
		}, []string{"name", "namespace"}),
	}
	return m, process.Register(append(m.flux.Collectors(), m.attempts, m.size)...)
})

// reference names a RenderedSource for Flux's metrics.
func reference(namespace, name string) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: api.Kind, Namespace: namespace, Name: name}
}

func (m *metrics) attempted(source *api.RenderedSource, reason string) {
	m.attempts.WithLabelValues(source.Name, source.Namespace, reason).Inc()
	if source.Status.Artifact != nil {
		m.size.WithLabelValues(source.Name, source.Namespace).Set(float64(source.Status.Artifact.Size))
	}
}

func (m *metrics) forget(namespace, name string) {
	m.flux.DeleteDuration(reference(namespace, name))
	labels := prometheus.Labels{"name": name, "namespace": namespace}
	m.attempts.DeletePartialMatch(labels)
	m.size.DeletePartialMatch(labels)
}
