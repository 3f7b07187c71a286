package otlp

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

type answer func(context.Context, *collectorpb.ExportMetricsServiceRequest) (*collectorpb.ExportMetricsServiceResponse, error)

// receiver is an OTLP/gRPC server that gives scripted answers.
type receiver struct {
	collectorpb.UnimplementedMetricsServiceServer
	mu       sync.Mutex
	answer   answer
	requests []*collectorpb.ExportMetricsServiceRequest
	headers  metadata.MD
}

func (r *receiver) Export(ctx context.Context, q *collectorpb.ExportMetricsServiceRequest) (*collectorpb.ExportMetricsServiceResponse, error) {
	r.mu.Lock()
	r.requests = append(r.requests, proto.CloneOf(q))
	r.headers, _ = metadata.FromIncomingContext(ctx)
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		return answer(ctx, q)
	}
	return &collectorpb.ExportMetricsServiceResponse{}, nil
}

func (r *receiver) answers(a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = a
}

func (r *receiver) received() []*collectorpb.ExportMetricsServiceRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// serve runs a receiver on a port of the loopback until the test ends.
func serve(t *testing.T, r *receiver, at string, o ...grpc.ServerOption) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(o...)
	collectorpb.RegisterMetricsServiceServer(s, r)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func newExporter(t *testing.T, o Options) (*Exporter, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	e, err := New(o, r)
	if err != nil {
		t.Fatal(err)
	}
	return e, r
}

// run runs e until the test ends.
func run(t *testing.T, e *Exporter) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func value(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	return testutil.ToFloat64(c)
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("%s: not within 30 s", what)
}

// scripted is a sender without a network.
type scripted struct {
	mu      sync.Mutex
	answers []error // answers to the next attempts; nil after the last one
	sent    []proto.Message
	at      []time.Time
	partial partialSuccess
	hang    bool
}

func (s *scripted) export(ctx context.Context, q proto.Message) (partialSuccess, error) {
	s.mu.Lock()
	s.sent, s.at = append(s.sent, q), append(s.at, time.Now())
	hang := s.hang
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return partialSuccess{}, retryable{err: ctx.Err()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.answers) > 0 {
		err := s.answers[0]
		s.answers = s.answers[1:]
		return partialSuccess{}, err
	}
	return s.partial, nil
}

func (s *scripted) close() error { return nil }

func withSender(t *testing.T, s *scripted, o Options) *Exporter {
	t.Helper()
	o.Endpoint, o.Insecure = "127.0.0.1:1", true
	e, _ := newExporter(t, o)
	if err := e.send.close(); err != nil {
		t.Fatal(err)
	}
	e.send = s
	return e
}

// TestRule3RetriesWaitLongerEachTime checks the waits: a second, then twice as long up to half a minute, each shortened by
// up to a half.
func TestRule3RetriesWaitLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := retryable{err: errors.New("not now")}
		s := &scripted{answers: []error{again, again, again, again, again, again, again, nil}}
		e := withSender(t, s, Options{Interval: time.Hour, Queue: 3})
		first := &push{}
		e.enqueue(first)
		run(t, e)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if len(s.at) != 8 || value(t, e.series.pushes.WithLabelValues(resultRetry)) != 7 || value(t, e.series.pushes.WithLabelValues(resultOK)) != 1 {
			t.Fatalf("%d attempts, want 8: seven retries and a success", len(s.at))
		}
		for i, most := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			most *= time.Second
			if d := s.at[i+1].Sub(s.at[i]); d < most/2 || d > most {
				t.Errorf("wait %d: %v, want %v to %v", i, d, most/2, most)
			}
		}
		if e.queueLength() != 0 {
			t.Error("an accepted push is still in the queue")
		}
	})
}

func TestRule3TheReceiverSaysWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answers: []error{retryable{err: errors.New("busy"), after: 77 * time.Second}, retryable{err: errors.New("busy"), after: 24 * time.Hour}}}
		e := withSender(t, s, Options{Interval: time.Hour})
		e.enqueue(&push{})
		run(t, e)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if len(s.at) != 3 || s.at[1].Sub(s.at[0]) != 77*time.Second || s.at[2].Sub(s.at[1]) != maxThrottle {
			t.Errorf("attempts at %v, want waits of 77 s and %v", s.at, maxThrottle)
		}
	})
}

func TestRule3OtherFailuresDropThePush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answers: []error{errors.New("no")}}
		e := withSender(t, s, Options{Interval: time.Hour})
		e.enqueue(&push{points: 12})
		e.enqueue(&push{points: 13})
		run(t, e)
		synctest.Wait()
		if len(s.sent) != 2 || value(t, e.series.pushes.WithLabelValues(resultFailed)) != 1 || value(t, e.series.rejected) != 12 || value(t, e.series.pushes.WithLabelValues(resultOK)) != 1 {
			t.Errorf("%d attempts, %v failed, %v points", len(s.sent), value(t, e.series.pushes.WithLabelValues(resultFailed)), value(t, e.series.rejected))
		}
	})
}

// TestRule1AFullQueueLosesItsOldest checks that with a receiver that never answers, the queue keeps the newest pushes, and
// that the others are counted.
func TestRule1AFullQueueLosesItsOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{hang: true}
		gathered := 0
		e := withSender(t, s, Options{Interval: 10 * time.Second, Queue: 4, Gather: []prometheus.Gatherer{prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			gathered++
			return []*dto.MetricFamily{{Name: proto.String("up"), Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{}}}}, nil
		})}})
		run(t, e)
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		e.mu.Lock()
		queued := len(e.queue)
		e.mu.Unlock()
		if queued != 4 || gathered != 60 || value(t, e.series.dropped) != 56 {
			t.Errorf("%d gathered, %d queued, %v dropped; want 60, 4 and 56", gathered, queued, value(t, e.series.dropped))
		}
		s.mu.Lock()
		last := s.sent[len(s.sent)-1]
		s.mu.Unlock()
		if last == s.sent[0] {
			t.Error("the first push is still being tried, though it was dropped")
		}
	})
}

func TestRule4WhatWasTakenInPartIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{partial: partialSuccess{5, "too old"}}
		e := withSender(t, s, Options{Interval: time.Hour})
		e.enqueue(&push{points: 9})
		run(t, e)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(s.sent) != 1 || value(t, e.series.pushes.WithLabelValues(resultPartial)) != 1 || value(t, e.series.rejected) != 5 {
			t.Errorf("%d attempts, %v points rejected", len(s.sent), value(t, e.series.rejected))
		}
	})
}

// TestLargePushesAreSplit checks that no push is larger than receivers accept, and that every metric is in one of them.
func TestLargePushesAreSplit(t *testing.T) {
	e := withSender(t, &scripted{}, Options{})
	var metrics []*metricspb.Metric
	for i := range 10 {
		m := &metricspb.Metric{Name: strings.Repeat(string(rune('a'+i)), 1<<20), Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: make([]*metricspb.NumberDataPoint, i)}}}
		for j := range i {
			m.GetGauge().DataPoints[j] = &metricspb.NumberDataPoint{}
		}
		metrics = append(metrics, m)
	}
	var names []string
	total := 0
	pushes := e.splitMetrics(metrics)
	for _, p := range pushes {
		if n := proto.Size(p.request); n > 4<<20 {
			t.Errorf("a push of %d octets", n)
		}
		for _, m := range p.request.GetResourceMetrics()[0].GetScopeMetrics()[0].GetMetrics() {
			names = append(names, m.GetName()[:1])
		}
		total += p.points
	}
	if got := strings.Join(names, ""); len(pushes) != 5 || got != "abcdefghij" || total != 45 {
		t.Errorf("%d pushes with %s, %d points", len(pushes), got, total)
	}
}
