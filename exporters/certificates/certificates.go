// Package certificates publishes when the certificates in use expire.
package certificates

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/pki"
)

// Families returns the descriptions of what a Collector publishes.
func Families() []*prometheus.Desc { return []*prometheus.Desc{expiry, life} }

var (
	expiry = prometheus.NewDesc(pki.ExpirySeries, pki.ExpiryHelp, pki.ExpiryLabels(), nil)
	life   = prometheus.NewDesc(pki.LifeSeries, pki.LifeHelp, pki.ExpiryLabels(), nil)
)

// Collector publishes the certificates of several sources. A process registers one.
type Collector struct {
	mu      sync.Mutex
	sources []pki.Source
}

// NewCollector returns a collector of sources.
func NewCollector(sources ...pki.Source) *Collector { return &Collector{sources: sources} }

// Add adds sources.
func (c *Collector) Add(sources ...pki.Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources = append(c.sources, sources...)
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range Families() {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	sources := c.sources[:len(c.sources):len(c.sources)]
	c.mu.Unlock()
	for _, e := range pki.Expiries(sources...) {
		ch <- prometheus.MustNewConstMetric(expiry, prometheus.GaugeValue, float64(e.At.Unix()), e.Labels()...)
		ch <- prometheus.MustNewConstMetric(life, prometheus.GaugeValue, e.Life.Seconds(), e.Labels()...)
	}
}
