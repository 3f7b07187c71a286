package otlp

import (
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/graylink/graylink/internal/otelname"
)

// converter turns Prometheus families into OTLP metrics.
type converter struct {
	start uint64 // start of counts that have no start of their own, in Unix nanoseconds
	now   uint64
}

func newConverter(start, now time.Time) converter {
	return converter{start: uint64(start.UnixNano()), now: uint64(now.UnixNano())}
}

// convertFamilies converts families. A family may have native and classic histograms at the same time, and becomes two
// metrics then.
func (c converter) convertFamilies(families []*dto.MetricFamily) []*metricspb.Metric {
	var out []*metricspb.Metric
	for _, f := range families {
		name, unit := otelname.Metric(f.GetName(), f.GetType())
		add := func(m *metricspb.Metric) {
			m.Name, m.Unit, m.Description = name, unit, f.GetHelp()
			out = append(out, m)
		}
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			add(&metricspb.Metric{Data: &metricspb.Metric_Sum{Sum: &metricspb.Sum{DataPoints: c.counterPoints(f), IsMonotonic: true,
				AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE}}})
		case dto.MetricType_GAUGE, dto.MetricType_UNTYPED:
			add(&metricspb.Metric{Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: c.gaugePoints(f)}}})
		case dto.MetricType_SUMMARY:
			add(&metricspb.Metric{Data: &metricspb.Metric_Summary{Summary: &metricspb.Summary{DataPoints: c.summaryPoints(f)}}})
		case dto.MetricType_HISTOGRAM:
			native, classic := c.histogramPoints(f)
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

func labelAttributes(m *dto.Metric) []*commonpb.KeyValue {
	out := make([]*commonpb.KeyValue, len(m.GetLabel()))
	for i, l := range m.GetLabel() {
		out[i] = stringAttribute(l.GetName(), l.GetValue())
	}
	return out
}

func stringAttribute(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
}

// startTime returns the start of a cumulative count in Unix nanoseconds.
func (c converter) startTime(created *timestamppb.Timestamp) uint64 {
	if created == nil {
		return c.start
	}
	return uint64(created.AsTime().UnixNano())
}

// sampleTime returns the time of a sample in Unix nanoseconds.
func (c converter) sampleTime(m *dto.Metric) uint64 {
	if m.TimestampMs != nil {
		return uint64(m.GetTimestampMs()) * uint64(time.Millisecond)
	}
	return c.now
}

func (c converter) counterPoints(f *dto.MetricFamily) []*metricspb.NumberDataPoint {
	out := make([]*metricspb.NumberDataPoint, len(f.Metric))
	for i, m := range f.Metric {
		out[i] = &metricspb.NumberDataPoint{Attributes: labelAttributes(m), StartTimeUnixNano: c.startTime(m.GetCounter().GetCreatedTimestamp()), TimeUnixNano: c.sampleTime(m),
			Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: m.GetCounter().GetValue()}}
	}
	return out
}

func (c converter) gaugePoints(f *dto.MetricFamily) []*metricspb.NumberDataPoint {
	out := make([]*metricspb.NumberDataPoint, len(f.Metric))
	for i, m := range f.Metric {
		v := m.GetGauge().GetValue()
		if m.Untyped != nil {
			v = m.GetUntyped().GetValue()
		}
		out[i] = &metricspb.NumberDataPoint{Attributes: labelAttributes(m), TimeUnixNano: c.sampleTime(m), Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: v}}
	}
	return out
}

func (c converter) summaryPoints(f *dto.MetricFamily) []*metricspb.SummaryDataPoint {
	out := make([]*metricspb.SummaryDataPoint, len(f.Metric))
	for i, m := range f.Metric {
		s := m.GetSummary()
		p := &metricspb.SummaryDataPoint{Attributes: labelAttributes(m), StartTimeUnixNano: c.startTime(s.GetCreatedTimestamp()), TimeUnixNano: c.sampleTime(m),
			Count: s.GetSampleCount(), Sum: s.GetSampleSum()}
		for _, q := range s.GetQuantile() {
			p.QuantileValues = append(p.QuantileValues, &metricspb.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()})
		}
		out[i] = p
	}
	return out
}

func (c converter) histogramPoints(f *dto.MetricFamily) (native []*metricspb.ExponentialHistogramDataPoint, classic []*metricspb.HistogramDataPoint) {
	for _, m := range f.Metric {
		h := m.GetHistogram()
		since, at, sum := c.startTime(h.GetCreatedTimestamp()), c.sampleTime(m), h.GetSampleSum()
		if h.Schema == nil {
			p := &metricspb.HistogramDataPoint{Attributes: labelAttributes(m), StartTimeUnixNano: since, TimeUnixNano: at, Count: h.GetSampleCount(), Sum: &sum}
			p.ExplicitBounds, p.BucketCounts = classicBuckets(h)
			classic = append(classic, p)
			continue
		}
		// Schema and scale are the same number, because Prometheus native histograms and OTel's exponential ones share the base
		// 2^(2^-scale).
		native = append(native, &metricspb.ExponentialHistogramDataPoint{Attributes: labelAttributes(m), StartTimeUnixNano: since, TimeUnixNano: at,
			Count: h.GetSampleCount(), Sum: &sum, Scale: h.GetSchema(), ZeroCount: h.GetZeroCount(), ZeroThreshold: h.GetZeroThreshold(),
			Positive: denseBuckets(h.GetPositiveSpan(), h.GetPositiveDelta()), Negative: denseBuckets(h.GetNegativeSpan(), h.GetNegativeDelta())})
	}
	return native, classic
}

// denseBuckets converts spans and deltas to one run of counts. A bucket with index i ends at base^i in Prometheus and begins
// there in OTel, so the indices differ by one.
func denseBuckets(spans []*dto.BucketSpan, deltas []int64) *metricspb.ExponentialHistogramDataPoint_Buckets {
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

// classicBuckets converts cumulative counts to counts per bucket. The last count is for values above every bound.
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
