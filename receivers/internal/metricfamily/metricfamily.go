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
	"github.com/graylink/graylink/internal/points"
)

// OTLPName returns a family's name and unit in OpenTelemetry, by the rules of exporters/otlp.
func OTLPName(prometheus string, counter bool) (name, unit string) {
	kind := dto.MetricType_GAUGE
	if counter {
		kind = dto.MetricType_COUNTER
	}
	return otelname.Metric(prometheus, kind)
}

// Family has the properties of a family in Prometheus.
type Family struct {
	Name, Help string
	Counter    bool // a gauge otherwise
}

// initMetric gives m the properties of the family, and returns where its points go: of a cumulative monotonic
// sum for a counter, of a gauge otherwise.
func (f *Family) initMetric(m pmetric.Metric) pmetric.NumberDataPointSlice {
	name, unit := OTLPName(f.Name, f.Counter)
	m.SetName(name)
	m.SetUnit(unit)
	m.SetDescription(f.Help)
	if !f.Counter {
		return m.SetEmptyGauge().DataPoints()
	}
	sum := m.SetEmptySum()
	sum.SetIsMonotonic(true)
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	return sum.DataPoints()
}

// Batch collects points by their families, which are of type F.
type Batch[F comparable] struct {
	Metrics  pmetric.Metrics
	describe func(F) Family
	scope    pmetric.MetricSlice
	lists    map[F]pointList
}

// pointList has the points of a family.
type pointList struct {
	points  pmetric.NumberDataPointSlice
	counter bool
}

// NewBatch returns an empty batch of a scope.
func NewBatch[F comparable](scope string, describe func(F) Family) *Batch[F] {
	b := &Batch[F]{Metrics: pmetric.NewMetrics(), describe: describe, lists: map[F]pointList{}}
	s := b.Metrics.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	s.Scope().SetName(scope)
	b.scope = s.Metrics()
	return b
}

// AddPoint adds a point and returns its labels. A counter runs since then.
func (b *Batch[F]) AddPoint(f F, v float64, at, since time.Time) pcommon.Map {
	list, there := b.lists[f]
	if !there {
		family := b.describe(f)
		list = pointList{family.initMetric(b.scope.AppendEmpty()), family.Counter}
		b.lists[f] = list
	}
	d := list.points.AppendEmpty()
	d.SetDoubleValue(v)
	d.SetTimestamp(pcommon.NewTimestampFromTime(at))
	if list.counter {
		d.SetStartTimestamp(pcommon.NewTimestampFromTime(since))
	}
	return d.Attributes()
}

// BuildPoints returns points under OpenTelemetry's names (exporters/otlp's rules). Counters run since began.
func BuildPoints(scope string, all []points.Point, began, now time.Time) pmetric.Metrics {
	out := NewBatch(scope, func(f *points.Family) Family { return Family{Name: f.Name, Help: f.Help, Counter: f.Counter} })
	for i := range all {
		p := &all[i]
		labels := out.AddPoint(p.Family, p.Value, now, began)
		for k, name := range p.Labels {
			labels.PutStr(name, p.Values[k])
		}
	}
	return out.Metrics
}

// AddExpiries adds the families of certificates in use. It returns the number of points.
func (b *Batch[F]) AddExpiries(expiries []pki.Expiry, now time.Time) int {
	if len(expiries) == 0 {
		return 0
	}
	labels := pki.ExpiryLabels()
	for _, g := range pki.ExpiryGauges {
		family := Family{Name: g.Name, Help: g.Help}
		points := family.initMetric(b.scope.AppendEmpty())
		for _, e := range expiries {
			p := points.AppendEmpty()
			p.SetDoubleValue(g.Value(e))
			p.SetTimestamp(pcommon.NewTimestampFromTime(now))
			for i, v := range e.Labels() {
				p.Attributes().PutStr(labels[i], v)
			}
		}
	}
	return len(expiries) * len(pki.ExpiryGauges)
}
