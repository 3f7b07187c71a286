package coordinator

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/enroll"
)

// enrollmentCollector publishes what became of the calls of nodes that enroll.
type enrollmentCollector struct{ service *enroll.Service }

var enrollments = newDesc("graylink_coordinator_enrollments_total", "Requests for a certificate, by what the node proved its name with, and by result.", "proof", "result")

// Describe implements prometheus.Collector.
func (*enrollmentCollector) Describe(ch chan<- *prometheus.Desc) { ch <- enrollments }

// Collect implements prometheus.Collector.
func (c *enrollmentCollector) Collect(ch chan<- prometheus.Metric) {
	for o, n := range c.service.Stats() {
		sink{ch}.sendCounter(enrollments, n, o.Proof, o.Result)
	}
}
