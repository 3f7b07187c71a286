// Package csig publishes what in-band signals of flows say (internal/csig/observe) as Prometheus series.
package csig

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/points"
)

// Source has statistics of in-band signals.
type Source interface {
	// SignalStats returns the statistics of this moment, which do not change after that.
	SignalStats() *observe.Stats
}

// Collector converts the statistics of a source to series. It implements prometheus.Collector.
type Collector struct {
	source  Source
	profile *csig.Profile
	descs   map[*points.Family]*prometheus.Desc
}

// NewCollector returns a collector of the statistics of a source, which reads tags by a profile.
func NewCollector(s Source, p *csig.Profile) *Collector {
	c := &Collector{source: s, profile: p, descs: map[*points.Family]*prometheus.Desc{}}
	for _, f := range observe.Families() {
		c.descs[f] = prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
	}
	return c
}

// Describe sends all possible families.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect sends the samples of this moment.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.source.SignalStats().AppendPoints(nil, c.profile) {
		kind := prometheus.GaugeValue
		if p.Counter {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(c.descs[p.Family], kind, p.Value, p.Values...)
	}
}
