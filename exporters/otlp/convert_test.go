package otlp

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
)

func TestBucketsAreOneLower(t *testing.T) {
	m, err := prometheus.NewConstNativeHistogram(prometheus.NewDesc("h", "h", nil, nil), 10, -4, map[int]int64{-5: 1, -4: 2, 1: 3}, map[int]int64{16: 1}, 3, 4, 1e-9, time.Unix(50, 0))
	if err != nil {
		t.Fatal(err)
	}
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		t.Fatal(err)
	}
	name, kind := "h", dto.MetricType_HISTOGRAM
	got := newConverter(time.Unix(40, 0), time.Unix(60, 0)).convertFamilies([]*dto.MetricFamily{{Name: &name, Type: &kind, Metric: []*dto.Metric{&d}}})
	if len(got) != 1 || got[0].GetExponentialHistogram().GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
		t.Fatalf("%v, want one cumulative exponential histogram", got)
	}
	p := got[0].GetExponentialHistogram().GetDataPoints()[0]
	// Prometheus bucket -5 is (2^(-6/16), 2^(-5/16)]; OTel numbers it -6.
	if p.GetPositive().GetOffset() != -6 || !slices.Equal(p.GetPositive().GetBucketCounts(), []uint64{1, 2, 0, 0, 0, 0, 3}) ||
		p.GetNegative().GetOffset() != 15 || !slices.Equal(p.GetNegative().GetBucketCounts(), []uint64{1}) {
		t.Errorf("buckets %v and %v", p.GetPositive(), p.GetNegative())
	}
	if p.GetScale() != 4 || p.GetZeroCount() != 3 || p.GetZeroThreshold() != 1e-9 || p.GetCount() != 10 || p.GetSum() != -4 ||
		p.GetStartTimeUnixNano() != 50e9 || p.GetTimeUnixNano() != 60e9 {
		t.Errorf("point %v", p)
	}
}

func TestClassicHistogramsAndSummaries(t *testing.T) {
	r := prometheus.NewRegistry()
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "classic_seconds", Help: "h", Buckets: []float64{1, 2, 5}})
	s := prometheus.NewSummary(prometheus.SummaryOpts{Name: "summed_seconds", Help: "s", Objectives: map[float64]float64{0.5: 0.01}})
	r.MustRegister(h, s)
	for _, v := range []float64{0.5, 1.5, 1.6, 4, 99} {
		h.Observe(v)
		s.Observe(v)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := newConverter(time.Unix(1, 0), time.Now()).convertFamilies(families)
	p := got[0].GetHistogram().GetDataPoints()[0]
	if !slices.Equal(p.GetExplicitBounds(), []float64{1, 2, 5}) || !slices.Equal(p.GetBucketCounts(), []uint64{1, 2, 1, 1}) || p.GetCount() != 5 || p.GetSum() != 106.6 {
		t.Errorf("classic histogram %v", p)
	}
	q := got[1].GetSummary().GetDataPoints()[0]
	if q.GetCount() != 5 || q.GetQuantileValues()[0].GetQuantile() != 0.5 || q.GetQuantileValues()[0].GetValue() != 1.6 {
		t.Errorf("summary %v", q)
	}
}
