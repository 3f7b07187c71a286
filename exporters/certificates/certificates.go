// Package certificates publishes when the certificates in use expire.
package certificates

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/pki"
)

// Families returns the descriptions of what a Collector publishes.
func Families() []*prometheus.Desc { return slices.Clone(families) }

// families has the description of each of pki.ExpiryGauges.
var families = func() (out []*prometheus.Desc) {
	for _, g := range pki.ExpiryGauges {
		out = append(out, prometheus.NewDesc(g.Name, g.Help, pki.ExpiryLabels(), nil))
	}
	return out
}()

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
	for _, d := range families {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	sources := c.sources[:len(c.sources):len(c.sources)]
	c.mu.Unlock()
	for _, e := range pki.Expiries(sources...) {
		for i, g := range pki.ExpiryGauges {
			ch <- prometheus.MustNewConstMetric(families[i], prometheus.GaugeValue, g.Value(e), e.Labels()...)
		}
	}
}
