// Package metricfamily converts families with Prometheus' names to OpenTelemetry metrics, in the same way for
// every receiver.
package metricfamily

import (
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/graylink/graylink/internal/otelname"
	"github.com/graylink/graylink/internal/pki"
)

// OTLPName returns a family's name and unit in OpenTelemetry, by the rules of exporters/otlp.
func OTLPName(prometheus string, counter bool) (name, unit string) {
	kind := dto.MetricType_GAUGE
	if counter {
		kind = dto.MetricType_COUNTER
	}
	return otelname.Metric(prometheus, kind)
}

// InitMetric gives m the properties of the family, and returns where its points go: of a cumulative monotonic
// sum for a counter, of a gauge otherwise.
func InitMetric(m pmetric.Metric, prometheus, help string, counter bool) pmetric.NumberDataPointSlice {
	name, unit := OTLPName(prometheus, counter)
	m.SetName(name)
	m.SetUnit(unit)
	m.SetDescription(help)
	if !counter {
		return m.SetEmptyGauge().DataPoints()
	}
	sum := m.SetEmptySum()
	sum.SetIsMonotonic(true)
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	return sum.DataPoints()
}

// AddExpiries adds the family of certificates in use to the metrics of a scope. It returns the number of points.
func AddExpiries(to pmetric.MetricSlice, expiries []pki.Expiry, now time.Time) int {
	if len(expiries) == 0 {
		return 0
	}
	points := InitMetric(to.AppendEmpty(), pki.ExpirySeries, pki.ExpiryHelp, false)
	labels := pki.ExpiryLabels()
	for _, e := range expiries {
		p := points.AppendEmpty()
		p.SetDoubleValue(float64(e.At.Unix()))
		p.SetTimestamp(pcommon.NewTimestampFromTime(now))
		for i, v := range e.Labels() {
			p.Attributes().PutStr(labels[i], v)
		}
	}
	return len(expiries)
}
