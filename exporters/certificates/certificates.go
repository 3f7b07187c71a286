// Package certificates publishes when the certificates in use expire.
package certificates

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/pki"
)

var expiryDesc = prometheus.NewDesc("graylink_certificate_expiry_timestamp_seconds", "Time at which a certificate in use ends, by its file, use and serial number.", []string{"file", "use", "serial"}, nil)

// collector publishes the expiry of a keeper's certificates.
type collector struct{ keeper *pki.Keeper }

// NewCollector returns a collector of a keeper's certificates. It reads the files again when they have
// changed.
func NewCollector(k *pki.Keeper) prometheus.Collector { return collector{k} }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) { ch <- expiryDesc }

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.keeper.Expiries() {
		ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, float64(e.At.Unix()), e.File, e.Use, e.Serial)
	}
}
