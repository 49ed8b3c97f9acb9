package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/render/process/metrics"
)

// recorder keeps the metrics of the catalog, beside those of controller-runtime.
type recorder struct {
	set     metrics.Set
	asks    *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	writes  *prometheus.CounterVec
	follows *prometheus.GaugeVec
	entries *entryCollector
}

func newMetrics(s store.Store) *recorder {
	var set metrics.Set
	m := &recorder{
		asks:    set.Counter("armature_catalog_discoveries_total"),
		seconds: set.Histogram("armature_catalog_discovery_duration_seconds"),
		writes:  set.Counter("armature_catalog_status_writes_total"),
		follows: set.Gauge("armature_catalog_following"),
		entries: &entryCollector{
			store:   s,
			entries: metrics.Desc("armature_catalog_entries"),
			up:      metrics.Desc("armature_catalog_store_up"),
			items:   metrics.Desc("armature_catalog_items"),
		},
	}
	m.set = append(set, m.entries)
	return m
}

func (m *recorder) asked(resource string, failed bool, took time.Duration) {
	result := "good"
	if failed {
		result = "failed"
	}
	m.asks.WithLabelValues(resource, result).Inc()
	m.seconds.WithLabelValues(resource).Observe(took.Seconds())
}

func (m *recorder) followed(resource string, found bool, err error) {
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
	groups, err := c.store.Groups(ctx)
	var items int
	if err == nil {
		items, err = c.store.Items(ctx)
	}
	if err != nil { // the other metrics still count
		out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 0)
		return
	}
	out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 1)
	counts := map[[2]string]int{}
	for _, g := range groups {
		counts[[2]string{g.Resource, string(g.Health)}] += g.Entries
	}
	for of, n := range counts {
		out <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(n), of[:]...)
	}
	out <- prometheus.MustNewConstMetric(c.items, prometheus.GaugeValue, float64(items))
}
