package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/armature-dev/armature/catalog/store"
)

// metrics of the catalog, beside those of controller-runtime.
type metrics struct {
	asks    *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	writes  *prometheus.CounterVec
	follows *prometheus.GaugeVec
	entries *entryCollector
}

func newMetrics(s store.Store) *metrics {
	labels := []string{"resource"}
	return &metrics{
		asks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "armature_catalog_discoveries_total", Help: "Queries of agents and servers, by result."}, append(labels, "result")),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "armature_catalog_discovery_duration_seconds", Help: "How long an agent or a server took to answer.", Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 5, 10, 30, 60}}, labels),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "armature_catalog_status_writes_total", Help: "Status writes to the API server."}, labels),
		follows: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "armature_catalog_following", Help: "1 if a kind is watched, 0 if watching it fails; kinds without a CRD are absent."}, labels),
		entries: &entryCollector{
			store:   s,
			entries: prometheus.NewDesc("armature_catalog_entries", "Entries of the catalog by health.", []string{"resource", "health"}, nil),
			up:      prometheus.NewDesc("armature_catalog_store_up", "1 if the store answers, 0 if it does not.", nil, nil),
			items:   prometheus.NewDesc("armature_catalog_items", "Skills, tools, resources and prompts of all entries.", nil, nil),
		},
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.asks, m.seconds, m.writes, m.follows, m.entries}
}

func (m *metrics) asked(resource string, failed bool, took time.Duration) {
	result := "good"
	if failed {
		result = "failed"
	}
	m.asks.WithLabelValues(resource, result).Inc()
	m.seconds.WithLabelValues(resource).Observe(took.Seconds())
}

func (m *metrics) followed(resource string, found bool, err error) {
	switch {
	case err != nil:
		m.follows.WithLabelValues(resource).Set(0)
	case found:
		m.follows.WithLabelValues(resource).Set(1)
	default:
		m.follows.DeleteLabelValues(resource)
	}
}

// entryCollector counts when it is asked, in the store.
type entryCollector struct {
	store              store.Store
	entries, items, up *prometheus.Desc
}

func (c *entryCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.entries
	out <- c.items
	out <- c.up
}

func (c *entryCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	counts, items, err := c.store.Counts(ctx)
	if err != nil { // the other metrics still count
		out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 0)
		return
	}
	out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 1)
	for _, n := range counts {
		out <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(n.Entries), n.Resource, string(n.Health))
	}
	out <- prometheus.MustNewConstMetric(c.items, prometheus.GaugeValue, float64(items))
}
