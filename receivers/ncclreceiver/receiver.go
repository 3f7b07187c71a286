package ncclreceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/graylink/graylink/internal/ccl/follow"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
)

// buildMetrics returns the points under OpenTelemetry's names (exporters/otlp's rules).
func buildMetrics(points []follow.Point, _ []pki.Expiry, began, now time.Time) pmetric.Metrics {
	out := metricfamily.NewBatch("github.com/graylink/graylink/receivers/ncclreceiver", func(f *follow.Family) metricfamily.Family {
		return metricfamily.Family{Name: f.Name, Help: f.Help, Counter: f.Counter}
	})
	for _, p := range points {
		labels := out.AddPoint(p.Family, p.Value, now, began)
		for i, l := range p.Labels {
			labels.PutStr(l, p.Values[i])
		}
	}
	return out.Metrics
}
