package node

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/otlptranslator"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/exporters/otlp"
	"github.com/graylink/graylink/internal/otelname"
)

// receiver is an OTLP/gRPC server that keeps the metrics it receives.
type receiver struct {
	collectorpb.UnimplementedMetricsServiceServer
	mu  sync.Mutex
	got *collectorpb.ExportMetricsServiceRequest
}

func (c *receiver) Export(_ context.Context, q *collectorpb.ExportMetricsServiceRequest) (*collectorpb.ExportMetricsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = proto.CloneOf(q)
	return &collectorpb.ExportMetricsServiceResponse{}, nil
}

// serveOTLP runs a real OTLP receiver until the test ends, and returns its address.
func serveOTLP(t *testing.T, register func(*grpc.Server)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// pushed pushes the gatherers' series to a real OTLP receiver, and returns the metrics that it receives.
func pushed(t *testing.T, protocol string, gs ...prometheus.Gatherer) []*metricspb.Metric {
	t.Helper()
	c := &receiver{}
	address := serveOTLP(t, func(s *grpc.Server) { collectorpb.RegisterMetricsServiceServer(s, c) })
	e, err := otlp.New(otlp.Options{Endpoint: address, Protocol: protocol, Insecure: true, Interval: 20 * time.Millisecond, Timeout: 20 * time.Second,
		Gather: gs, Start: time.Unix(1700000000, 0)}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- e.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	var got *collectorpb.ExportMetricsServiceRequest
	until(t, "a push", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		got = c.got
		return got != nil
	})
	t.Logf("a push of %d octets", proto.Size(got))
	if n := proto.Size(got); n > 4<<20 {
		t.Errorf("a push of %d octets: receivers take 4 MiB by default", n)
	}
	return got.GetResourceMetrics()[0].GetScopeMetrics()[0].GetMetrics()
}

func attributesText(kv []*commonpb.KeyValue) string {
	slices.SortFunc(kv, func(a, b *commonpb.KeyValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	var s []string
	for _, a := range kv {
		s = append(s, fmt.Sprintf("%s=%q", a.GetKey(), a.GetValue().GetStringValue()))
	}
	return strings.Join(s, ",")
}

// sample represents one series as scraped or pushed: its value, or its count, sum and buckets.
type sample struct {
	kind       otlptranslator.MetricType
	value, sum float64
	since      int64 // Unix nanoseconds; 0 means that there is none
	buckets    []bucketOf
}

func notEmpty(b []bucketOf) []bucketOf {
	return slices.DeleteFunc(b, func(b bucketOf) bool { return b.n == 0 })
}

// scraped decodes what Prometheus would scrape.
func scraped(t *testing.T, gs ...prometheus.Gatherer) map[string]sample {
	t.Helper()
	out := map[string]sample{}
	for _, g := range gs {
		for _, f := range decode(t, encode(t, g, expfmt.NewFormat(expfmt.TypeProtoDelim))) {
			for _, m := range f.GetMetric() {
				var s sample
				switch f.GetType() {
				case dto.MetricType_COUNTER:
					s = sample{kind: otlptranslator.MetricTypeMonotonicCounter, value: m.GetCounter().GetValue()}
				case dto.MetricType_GAUGE:
					s = sample{kind: otlptranslator.MetricTypeGauge, value: m.GetGauge().GetValue()}
				case dto.MetricType_HISTOGRAM:
					h := m.GetHistogram()
					s = sample{kind: otlptranslator.MetricTypeExponentialHistogram, value: float64(h.GetSampleCount()), sum: h.GetSampleSum(),
						since: h.GetCreatedTimestamp().AsTime().UnixNano(), buckets: notEmpty(bucketsOf(h))}
				}
				out[f.GetName()+"{"+series(m)+"}"] = s
			}
		}
	}
	return out
}

// received decodes the metrics of an OTLP receiver by the names and the bucket bounds of the OTel data model:
// https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram
func received(t *testing.T, metrics []*metricspb.Metric) map[string]sample {
	t.Helper()
	out := map[string]sample{}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	for _, m := range metrics {
		kind := map[bool]otlptranslator.MetricType{true: otlptranslator.MetricTypeMonotonicCounter}[m.GetSum() != nil]
		switch {
		case m.GetGauge() != nil:
			kind = otlptranslator.MetricTypeGauge
		case m.GetExponentialHistogram() != nil:
			kind = otlptranslator.MetricTypeExponentialHistogram
		}
		name, err := namer.Build(otlptranslator.Metric{Name: m.GetName(), Unit: m.GetUnit(), Type: kind})
		if err != nil {
			t.Fatal(err)
		}
		for _, unit := range []string{"_total", "_seconds", "_bytes", "_ratio"} {
			if strings.HasSuffix(m.GetName(), unit) {
				t.Errorf("%s: a unit or _total in the name", m.GetName())
			}
		}
		add := func(kv []*commonpb.KeyValue, s sample) {
			key := name + "{" + attributesText(kv) + "}"
			if _, twice := out[key]; twice {
				t.Errorf("%s came twice", key)
			}
			s.kind = kind
			out[key] = s
		}
		for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
			add(p.GetAttributes(), sample{value: p.GetAsDouble()})
			if (p.GetStartTimeUnixNano() != 0) != (m.GetSum() != nil) {
				t.Errorf("%s: start time %d", name, p.GetStartTimeUnixNano())
			}
		}
		for _, p := range m.GetExponentialHistogram().GetDataPoints() {
			if m.GetExponentialHistogram().GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE || p.GetScale() != 4 {
				t.Errorf("%s: %v, scale %d", name, m.GetExponentialHistogram().GetAggregationTemporality(), p.GetScale())
			}
			base := math.Exp2(math.Exp2(-float64(p.GetScale())))
			var all []bucketOf
			for i, n := range p.GetPositive().GetBucketCounts() {
				low := float64(int(p.GetPositive().GetOffset()) + i)
				all = append(all, bucketOf{math.Pow(base, low), math.Pow(base, low+1), float64(n)})
			}
			for i, n := range p.GetNegative().GetBucketCounts() {
				low := float64(int(p.GetNegative().GetOffset()) + i)
				all = append(all, bucketOf{-math.Pow(base, low+1), -math.Pow(base, low), float64(n)})
			}
			zero := bucketOf{-p.GetZeroThreshold(), p.GetZeroThreshold(), float64(p.GetZeroCount())}
			slices.SortFunc(all, func(a, b bucketOf) int { return int(math.Copysign(1, a.low-b.low)) })
			if len(p.GetNegative().GetBucketCounts()) == 0 && len(p.GetPositive().GetBucketCounts()) > 0 {
				zero.low = 0
			}
			at, _ := slices.BinarySearchFunc(all, 0.0, func(b bucketOf, v float64) int { return int(math.Copysign(1, b.low-v)) })
			all = slices.Insert(all, at, zero)
			add(p.GetAttributes(), sample{value: float64(p.GetCount()), sum: p.GetSum(), since: int64(p.GetStartTimeUnixNano()), buckets: notEmpty(all)})
		}
	}
	return out
}

func sameSample(a, b sample) bool {
	return a.kind == b.kind && a.value == b.value && a.sum == b.sum && a.since == b.since &&
		slices.EqualFunc(a.buckets, b.buckets, func(a, b bucketOf) bool {
			near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-12*math.Abs(a) }
			return a.n == b.n && near(a.low, b.low) && near(a.high, b.high)
		})
}

// TestScrapeAndPushAgree checks that scrapes and pushes have the same series, values and buckets.
func TestScrapeAndPushAgree(t *testing.T) {
	for name, m := range map[string]*madeUp{"small": smallNode(), "fleet": fleetNode(16)} {
		if testing.Short() && name == "fleet" {
			continue // under the race detector; make test runs both without it
		}
		metrics, nics, edges := m.gatherers()
		want := scraped(t, nics, edges, metrics) // in this order, /metrics has the runs of all
		got := received(t, pushed(t, otlp.GRPC, disjoint{metrics, nics, edges}))
		for k, w := range want {
			if g, ok := got[k]; !ok {
				t.Errorf("%s: %s did not come", name, k)
			} else if !sameSample(w, g) {
				t.Errorf("%s: %s: %+v came, want %+v", name, k, g, w)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d series came, want %d", name, len(got), len(want))
		}
	}
}

// TestEverySeriesHasAUnitOrCounts finds counters that were forgotten in the table of names: they have neither a unit
// nor a counted thing.
func TestEverySeriesHasAUnitOrCounts(t *testing.T) {
	for _, e := range expositions(smallNode()) {
		for _, f := range gather(t, e.own) {
			name, unit := otelname.Metric(f.GetName(), f.GetType())
			if f.GetType() != dto.MetricType_GAUGE && (unit == "" || unit == "1") {
				t.Errorf("%s is %s in %q", f.GetName(), name, unit)
			}
		}
	}
}
