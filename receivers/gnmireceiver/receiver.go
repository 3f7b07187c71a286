package gnmireceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/graylink/graylink/internal/gnmi"
	"github.com/graylink/graylink/internal/gnmi/preset"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
)

// buildMetrics returns the points under OpenTelemetry's names (exporters/otlp's rules), each with its switch's
// time, and the certificates in use.
func buildMetrics(points []gnmi.Point, expiries []pki.Expiry, began, now time.Time) pmetric.Metrics {
	out := metricfamily.NewBatch("github.com/graylink/graylink/receivers/gnmireceiver", func(f *preset.Family) metricfamily.Family {
		return metricfamily.Family{Name: f.Name, Help: f.Help, Counter: f.Kind == preset.Counter}
	})
	for _, p := range points {
		since := p.Since
		if since.IsZero() {
			since = began
		}
		labels := out.AddPoint(p.Family, p.Value, p.At, since)
		labels.EnsureCapacity(1 + len(p.Values))
		if p.Switch != "" {
			labels.PutStr("switch", p.Switch)
		}
		for i, l := range p.Family.Labels {
			labels.PutStr(l, p.Values[i])
		}
	}
	out.AddExpiries(expiries, now)
	return out.Metrics
}
