package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/render/process/metrics"
)

// recorder has the metrics of the catalog, in addition to those of controller-runtime.
type recorder struct {
	set     metrics.Set
	asks    *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	writes  *prometheus.CounterVec
	follows *prometheus.GaugeVec
}

const (
	entriesGauge = "armature_catalog_entries"
	itemsGauge   = "armature_catalog_items"
	upGauge      = "armature_catalog_store_up"
)

func newMetrics(s store.Followed) *recorder {
	m := &recorder{}
	m.asks = m.set.Counter("armature_catalog_discoveries_total")
	m.seconds = m.set.Histogram("armature_catalog_discovery_duration_seconds")
	m.writes = m.set.Counter("armature_catalog_status_writes_total")
	m.follows = m.set.Gauge("armature_catalog_following")
	m.set.Count(func(ctx context.Context, set metrics.SetGauge) error {
		groups, err := s.Groups(ctx)
		var items int
		if err == nil {
			items, err = s.Items(ctx)
		}
		if err != nil { // the other metrics still count
			set(upGauge, 0)
			return nil
		}
		set(upGauge, 1)
		set(itemsGauge, float64(items))
		counts := map[[2]string]int{}
		for _, g := range groups {
			counts[[2]string{g.Resource, string(g.Health)}] += g.Entries
		}
		for of, n := range counts {
			set(entriesGauge, float64(n), of[:]...)
		}
		return nil
	}, entriesGauge, itemsGauge, upGauge)
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
