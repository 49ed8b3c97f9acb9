// Package metrics lists the metrics of all controllers and their alerts. The controllers register
// the metrics, and a test generates docs/operate.md and templates/install/monitoring from the list.
package metrics

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric is a row of the list.
type Metric struct {
	Name    string
	Group   string // group of the dashboard: builds, sources, catalog or controllers
	Type    string // counter, gauge or histogram
	Help    string
	Labels  string // separated by spaces
	Buckets []float64
	// Foreign is the program or library that exports the metric, if it is not Armature.
	Foreign string
	Alerts  []Alert
}

// Alert is an alert on a metric. Expr is PromQL and may read other metrics as well. Only the leader
// counts events, while all replicas report what their caches have.
type Alert struct {
	Name, Expr, For, Severity string
	// Summary may contain templates of Prometheus. Remedy is plain text with code in backquotes.
	Summary, Remedy string
}

// All returns the list.
func All() []Metric { return list }

// Set has the metrics of a controller, which registers them together.
type Set []prometheus.Collector

// Counter returns the counter of a row, which must exist.
func (s *Set) Counter(name string) *prometheus.CounterVec {
	m := row(name, "counter")
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: m.Help},
		strings.Fields(m.Labels))
	*s = append(*s, c)
	return c
}

// Gauge returns the gauge of a row, which must exist.
func (s *Set) Gauge(name string) *prometheus.GaugeVec {
	m := row(name, "gauge")
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: m.Help}, strings.Fields(m.Labels))
	*s = append(*s, g)
	return g
}

// Histogram returns the histogram of a row, which must exist.
func (s *Set) Histogram(name string) *prometheus.HistogramVec {
	m := row(name, "histogram")
	options := prometheus.HistogramOpts{Name: name, Help: m.Help, Buckets: m.Buckets}
	h := prometheus.NewHistogramVec(options, strings.Fields(m.Labels))
	*s = append(*s, h)
	return h
}

// SetGauge sets a gauge for the values of its labels.
type SetGauge func(gauge string, value float64, labels ...string)

// Count adds the gauges of rows, which must exist. count sets them whenever they are scraped.
func (s *Set) Count(count func(context.Context, SetGauge) error, gauges ...string) {
	c := counted{map[string]*prometheus.Desc{}, count}
	for _, name := range gauges {
		m := row(name, "gauge")
		c.gauges[name] = prometheus.NewDesc(name, m.Help, strings.Fields(m.Labels), nil)
	}
	*s = append(*s, c)
}

// counted is a collector whose gauges are counted whenever they are scraped.
type counted struct {
	gauges map[string]*prometheus.Desc
	count  func(context.Context, SetGauge) error
}

func (c counted) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.gauges {
		out <- d
	}
}

func (c counted) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := c.count(ctx, func(gauge string, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(c.gauges[gauge], prometheus.GaugeValue, value, labels...)
	})
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
}

// row returns a row of the list. It panics if the row does not exist.
func row(name, kind string) Metric {
	i := slices.IndexFunc(list, func(m Metric) bool {
		return m.Name == name && m.Type == kind && m.Foreign == ""
	})
	if i < 0 {
		panic("no " + kind + " " + name + " in render/process/metrics: add a row")
	}
	return list[i]
}
