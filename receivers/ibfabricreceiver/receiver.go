package ibfabricreceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
)

// buildMetrics returns the points under OpenTelemetry's names (exporters/otlp's rules), and the certificates in
// use.
func buildMetrics(points []ibagent.Point, expiries []pki.Expiry, began, now time.Time) pmetric.Metrics {
	out := metricfamily.NewBatch("github.com/graylink/graylink/receivers/ibfabricreceiver", func(f *ibagent.Family) metricfamily.Family {
		return metricfamily.Family{Name: f.Name, Help: f.Help, Counter: f.Counter}
	})
	for _, p := range points {
		labels := out.AddPoint(p.Family, p.Value, timeOr(p.At, now), timeOr(p.Since, began))
		for i, l := range p.Labels {
			labels.PutStr(l, p.Values[i])
		}
	}
	out.AddExpiries(expiries, now)
	return out.Metrics
}

func timeOr(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}
