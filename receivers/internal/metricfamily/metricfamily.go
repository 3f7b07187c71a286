// Package metricfamily makes OpenTelemetry metrics of families that have Prometheus' names, the same
// for every receiver.
package metricfamily

import (
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/graylink/graylink/exporters/otlp"
)

// OTLPName is a family's name and unit in OpenTelemetry, by the rules of exporters/otlp.
func OTLPName(prometheus string, counter bool) (name, unit string) {
	kind := dto.MetricType_GAUGE
	if counter {
		kind = dto.MetricType_COUNTER
	}
	return otlp.MetricName(prometheus, kind)
}

// InitMetric makes m the family, and returns where its points go: of a cumulative monotonic sum for
// a counter, of a gauge otherwise.
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
