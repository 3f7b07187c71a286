package otlp

import (
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// converter turns Prometheus families into OTLP metrics.
type converter struct {
	start uint64 // of what does not say itself when it began, Unix nanoseconds
	now   uint64
}

func newConverter(start, now time.Time) converter {
	return converter{start: uint64(start.UnixNano()), now: uint64(now.UnixNano())}
}

// metrics converts families. One may hold native and classic histograms at a
// time and is then two metrics.
func (c converter) metrics(families []*dto.MetricFamily) []*metricspb.Metric {
	var out []*metricspb.Metric
	for _, f := range families {
		name, unit := Name(f.GetName(), f.GetType())
		add := func(m *metricspb.Metric) {
			m.Name, m.Unit, m.Description = name, unit, f.GetHelp()
			out = append(out, m)
		}
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			add(&metricspb.Metric{Data: &metricspb.Metric_Sum{Sum: &metricspb.Sum{DataPoints: c.counters(f), IsMonotonic: true,
				AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE}}})
		case dto.MetricType_GAUGE, dto.MetricType_UNTYPED:
			add(&metricspb.Metric{Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: c.gauges(f)}}})
		case dto.MetricType_SUMMARY:
			add(&metricspb.Metric{Data: &metricspb.Metric_Summary{Summary: &metricspb.Summary{DataPoints: c.summaries(f)}}})
		case dto.MetricType_HISTOGRAM:
			native, classic := c.histograms(f)
			if len(native) > 0 {
				add(&metricspb.Metric{Data: &metricspb.Metric_ExponentialHistogram{ExponentialHistogram: &metricspb.ExponentialHistogram{
					DataPoints: native, AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE}}})
			}
			if len(classic) > 0 {
				add(&metricspb.Metric{Data: &metricspb.Metric_Histogram{Histogram: &metricspb.Histogram{
					DataPoints: classic, AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE}}})
			}
		}
	}
	return out
}

func attributes(m *dto.Metric) []*commonpb.KeyValue {
	out := make([]*commonpb.KeyValue, len(m.GetLabel()))
	for i, l := range m.GetLabel() {
		out[i] = attribute(l.GetName(), l.GetValue())
	}
	return out
}

func attribute(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
}

// since is when a cumulative count began.
func (c converter) since(created *timestamppb.Timestamp) uint64 {
	if created == nil {
		return c.start
	}
	return uint64(created.AsTime().UnixNano())
}

// at is when a sample was taken.
func (c converter) at(m *dto.Metric) uint64 {
	if m.TimestampMs != nil {
		return uint64(m.GetTimestampMs()) * uint64(time.Millisecond)
	}
	return c.now
}

func (c converter) counters(f *dto.MetricFamily) []*metricspb.NumberDataPoint {
	out := make([]*metricspb.NumberDataPoint, len(f.Metric))
	for i, m := range f.Metric {
		out[i] = &metricspb.NumberDataPoint{Attributes: attributes(m), StartTimeUnixNano: c.since(m.GetCounter().GetCreatedTimestamp()), TimeUnixNano: c.at(m),
			Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: m.GetCounter().GetValue()}}
	}
	return out
}

func (c converter) gauges(f *dto.MetricFamily) []*metricspb.NumberDataPoint {
	out := make([]*metricspb.NumberDataPoint, len(f.Metric))
	for i, m := range f.Metric {
		v := m.GetGauge().GetValue()
		if m.Untyped != nil {
			v = m.GetUntyped().GetValue()
		}
		out[i] = &metricspb.NumberDataPoint{Attributes: attributes(m), TimeUnixNano: c.at(m), Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: v}}
	}
	return out
}

func (c converter) summaries(f *dto.MetricFamily) []*metricspb.SummaryDataPoint {
	out := make([]*metricspb.SummaryDataPoint, len(f.Metric))
	for i, m := range f.Metric {
		s := m.GetSummary()
		p := &metricspb.SummaryDataPoint{Attributes: attributes(m), StartTimeUnixNano: c.since(s.GetCreatedTimestamp()), TimeUnixNano: c.at(m),
			Count: s.GetSampleCount(), Sum: s.GetSampleSum()}
		for _, q := range s.GetQuantile() {
			p.QuantileValues = append(p.QuantileValues, &metricspb.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()})
		}
		out[i] = p
	}
	return out
}

func (c converter) histograms(f *dto.MetricFamily) (native []*metricspb.ExponentialHistogramDataPoint, classic []*metricspb.HistogramDataPoint) {
	for _, m := range f.Metric {
		h := m.GetHistogram()
		since, at, sum := c.since(h.GetCreatedTimestamp()), c.at(m), h.GetSampleSum()
		if h.Schema == nil {
			p := &metricspb.HistogramDataPoint{Attributes: attributes(m), StartTimeUnixNano: since, TimeUnixNano: at, Count: h.GetSampleCount(), Sum: &sum}
			p.ExplicitBounds, p.BucketCounts = classicBuckets(h)
			classic = append(classic, p)
			continue
		}
		// Schema and scale are the same number: Prometheus native histograms
		// and OTel's exponential ones share the base 2^(2^-scale).
		native = append(native, &metricspb.ExponentialHistogramDataPoint{Attributes: attributes(m), StartTimeUnixNano: since, TimeUnixNano: at,
			Count: h.GetSampleCount(), Sum: &sum, Scale: h.GetSchema(), ZeroCount: h.GetZeroCount(), ZeroThreshold: h.GetZeroThreshold(),
			Positive: dense(h.GetPositiveSpan(), h.GetPositiveDelta()), Negative: dense(h.GetNegativeSpan(), h.GetNegativeDelta())})
	}
	return native, classic
}

// dense writes spans and deltas as one run of counts. A bucket with index i
// ends at base^i in Prometheus and begins there in OTel, hence the difference
// of one.
func dense(spans []*dto.BucketSpan, deltas []int64) *metricspb.ExponentialHistogramDataPoint_Buckets {
	if len(spans) == 0 {
		return nil
	}
	size := 0
	for i, s := range spans {
		if size += int(s.GetLength()); i > 0 {
			size += int(s.GetOffset())
		}
	}
	b := &metricspb.ExponentialHistogramDataPoint_Buckets{Offset: spans[0].GetOffset() - 1, BucketCounts: make([]uint64, 0, size)}
	count, next := int64(0), 0
	for i, s := range spans {
		if i > 0 {
			for range s.GetOffset() {
				b.BucketCounts = append(b.BucketCounts, 0)
			}
		}
		for range s.GetLength() {
			count += deltas[next]
			next++
			b.BucketCounts = append(b.BucketCounts, uint64(count))
		}
	}
	return b
}

// classicBuckets turns cumulative counts into counts per bucket, the last one
// being what is above every bound.
func classicBuckets(h *dto.Histogram) (bounds []float64, counts []uint64) {
	before := uint64(0)
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			continue
		}
		bounds = append(bounds, b.GetUpperBound())
		counts = append(counts, b.GetCumulativeCount()-before)
		before = b.GetCumulativeCount()
	}
	return bounds, append(counts, h.GetSampleCount()-before)
}
