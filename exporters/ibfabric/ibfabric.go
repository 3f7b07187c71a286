// Package ibfabric publishes the readings of the samplers of an InfiniBand fabric, and the state of the
// sampling, as Prometheus series, without a Collector.
package ibfabric

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/pki"
)

// Collector converts an agent's points to series.
type Collector struct {
	agent *ibagent.Agent
	now   func() time.Time
	descs map[*ibagent.Family]*prometheus.Desc
}

// NewCollector returns a collector of an agent's points.
func NewCollector(a *ibagent.Agent, now func() time.Time) *Collector {
	c := &Collector{agent: a, now: now, descs: map[*ibagent.Family]*prometheus.Desc{}}
	for _, f := range ibagent.Families {
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

// Collect sends the current samples. They have no times of their own: readings that are too old are absent.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.agent.CollectPoints(c.now()) {
		desc := c.descs[p.Family]
		switch {
		case !p.Counter:
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, p.Value, p.Values...)
		case p.Since.IsZero():
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, p.Value, p.Values...)
		default:
			ch <- prometheus.MustNewConstMetricWithCreatedTimestamp(desc, prometheus.CounterValue, p.Value, p.Since, p.Values...)
		}
	}
}

// NewHandler serves /metrics, /-/healthy and /-/ready. It publishes the certificates of the agent, and those of
// used.
func NewHandler(a *ibagent.Agent, used ...pki.Source) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(a, time.Now), certificates.NewCollector(append(used, a)...), version.NewCollector("graylink_ib"),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("healthy\n")) })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.CheckReady(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	return mux
}
