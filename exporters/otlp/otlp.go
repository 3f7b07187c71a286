// Package otlp pushes what Prometheus registries gather to an OpenTelemetry
// receiver: the same series under OTel's names (names.go), with exponential
// histograms for native ones.
//
// The rules of the push:
//
//  1. Every interval the families are gathered and queued. A full queue loses
//     its oldest push, which is counted; sums are cumulative, so that a lost
//     push loses resolution and no counts.
//  2. The oldest push is sent first. It stays in the queue until the receiver
//     has answered it, so that what waits for a retry can be dropped as well.
//  3. A failure that the OTLP specification calls retryable is retried, first
//     after a second, then after twice as long each time up to half a minute, or
//     when the receiver says; any other failure drops the push.
//  4. What a receiver took in part is not sent again.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// Protocols of a push.
const (
	GRPC = "grpc"
	HTTP = "http"
)

// Options say what is pushed where. Endpoint, Gather and Service are required.
type Options struct {
	Endpoint string // host:port, or a URL
	Protocol string // GRPC (unless told otherwise) or HTTP (binary protobuf)
	Interval time.Duration
	Timeout  time.Duration // of one attempt
	TLS      TLSFiles
	Insecure bool // plain text instead of TLS

	// HeadersFile holds "name: value" lines sent with every push: credentials,
	// mostly. It is read for each, so that it can be replaced.
	HeadersFile string

	// Gather is what is pushed. Of families with the same name only the first
	// gatherer's is.
	Gather []prometheus.Gatherer

	Service  string // service.name
	Version  string // service.version
	Host     string // host.name
	Instance string // service.instance.id

	// Start is when the counts began that do not say so themselves; the
	// beginning of the process.
	Start time.Time
	// Queue is how many pushes wait at most.
	Queue int
	Log   *slog.Logger
}

// Defaults of Options.
const (
	DefaultInterval = 10 * time.Second
	defaultTimeout  = 10 * time.Second
	defaultQueue    = 12

	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
	maxThrottle  = 5 * time.Minute // the longest wait a receiver can ask for

	// maxRequest is in octets, before compression. Receivers built on gRPC take
	// 4 MiB unless told otherwise.
	maxRequest = 3 << 20
)

// Exporter pushes. Run does the work.
type Exporter struct {
	o        Options
	resource *resourcepb.Resource
	send     sender
	series   series

	mu    sync.Mutex
	queue []*push
	more  chan struct{} // has an element when the queue may have grown
}

// push is one request and its place in the queue.
type push struct {
	request *collectorpb.ExportMetricsServiceRequest
	points  int
}

// series are the exporter's own.
type series struct {
	pushes               *prometheus.CounterVec
	dropped, gatherFails prometheus.Counter
	rejected             prometheus.Counter
	lastSuccess          prometheus.Gauge
}

// Results of one attempt to push, by the label result.
const (
	resultOK      = "success"
	resultPartial = "partial"
	resultRetry   = "retry"
	resultFailed  = "failed"
)

// New returns an Exporter whose own series are in r. It fails when an option
// cannot be used; whether there is a receiver shows later.
func New(o Options, r prometheus.Registerer) (*Exporter, error) {
	if o.Protocol == "" {
		o.Protocol = GRPC
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Timeout == 0 {
		o.Timeout = min(defaultTimeout, o.Interval)
	}
	if o.Queue == 0 {
		o.Queue = defaultQueue
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Interval < 0 || o.Timeout < 0 {
		return nil, fmt.Errorf("OTLP interval %v, timeout %v: want positive durations", o.Interval, o.Timeout)
	}
	e := &Exporter{o: o, more: make(chan struct{}, 1), resource: &resourcepb.Resource{}}
	for _, a := range [][2]string{{"service.name", o.Service}, {"service.version", o.Version}, {"service.instance.id", o.Instance}, {"host.name", o.Host}} {
		if a[1] != "" {
			e.resource.Attributes = append(e.resource.Attributes, attribute(a[0], a[1]))
		}
	}
	var err error
	if e.send, err = newSender(o); err != nil {
		return nil, err
	}
	if err := e.register(r); err != nil {
		return nil, errors.Join(err, e.send.close())
	}
	return e, nil
}

func (e *Exporter) register(r prometheus.Registerer) error {
	s := &e.series
	s.pushes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "graylink_otlp_pushes_total", Help: "Attempts to push, by result."}, []string{"result"})
	for _, result := range []string{resultOK, resultPartial, resultRetry, resultFailed} {
		s.pushes.WithLabelValues(result)
	}
	s.dropped = prometheus.NewCounter(prometheus.CounterOpts{Name: "graylink_otlp_dropped_pushes_total", Help: "Pushes dropped because the queue was full."})
	s.gatherFails = prometheus.NewCounter(prometheus.CounterOpts{Name: "graylink_otlp_gather_errors_total", Help: "Gatherings that failed, in part or whole."})
	s.rejected = prometheus.NewCounter(prometheus.CounterOpts{Name: "graylink_otlp_rejected_points_total", Help: "Data points the receiver did not take, of pushes it took in part or refused."})
	s.lastSuccess = prometheus.NewGauge(prometheus.GaugeOpts{Name: "graylink_otlp_last_success_timestamp_seconds", Help: "When the receiver last took a push; 0: never yet."})
	queued := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "graylink_otlp_queued_pushes", Help: "Pushes that wait."}, func() float64 {
		e.mu.Lock()
		defer e.mu.Unlock()
		return float64(len(e.queue))
	})
	for _, c := range []prometheus.Collector{s.pushes, s.dropped, s.gatherFails, s.rejected, s.lastSuccess, queued} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("OTLP series: %w", err)
		}
	}
	return nil
}

// Run pushes until ctx ends. What waits then is dropped.
func (e *Exporter) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { e.gatherLoop(ctx) })
	wg.Go(func() { e.sendLoop(ctx) })
	wg.Wait()
	return e.send.close()
}

func (e *Exporter) gatherLoop(ctx context.Context) {
	tick := time.NewTicker(e.o.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, p := range e.gather(now) {
				e.enqueue(p)
			}
		}
	}
}

// gather makes pushes of what there is now.
func (e *Exporter) gather(now time.Time) []*push {
	var families []*dto.MetricFamily
	seen := map[string]bool{}
	for _, g := range e.o.Gather {
		more, err := g.Gather()
		if err != nil {
			e.series.gatherFails.Inc()
			e.o.Log.Warn("gather for OTLP", "err", err)
		}
		for _, f := range more {
			if !seen[f.GetName()] {
				seen[f.GetName()] = true
				families = append(families, f)
			}
		}
	}
	return e.split(newConverter(e.o.Start, now).metrics(families))
}

// split makes pushes of maxRequest octets at most, as far as whole metrics let
// it.
func (e *Exporter) split(metrics []*metricspb.Metric) []*push {
	scope := &commonpb.InstrumentationScope{Name: "github.com/graylink/graylink/exporters/otlp", Version: e.o.Version}
	var out []*push
	var last *push
	var into *metricspb.ScopeMetrics
	size := 0
	for _, m := range metrics {
		n := proto.Size(m)
		if last == nil || size+n > maxRequest {
			into, size = &metricspb.ScopeMetrics{Scope: scope}, 0
			last = &push{request: &collectorpb.ExportMetricsServiceRequest{ResourceMetrics: []*metricspb.ResourceMetrics{{
				Resource: e.resource, ScopeMetrics: []*metricspb.ScopeMetrics{into}}}}}
			out = append(out, last)
		}
		size += n
		into.Metrics = append(into.Metrics, m)
		last.points += points(m)
	}
	return out
}

func points(m *metricspb.Metric) int {
	return len(m.GetSum().GetDataPoints()) + len(m.GetGauge().GetDataPoints()) + len(m.GetSummary().GetDataPoints()) +
		len(m.GetHistogram().GetDataPoints()) + len(m.GetExponentialHistogram().GetDataPoints())
}

func (e *Exporter) enqueue(p *push) {
	e.mu.Lock()
	e.queue = append(e.queue, p)
	if len(e.queue) > e.o.Queue {
		e.queue = append(e.queue[:0:0], e.queue[1:]...)
		e.series.dropped.Inc()
	}
	e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// oldest is the push to send next; nil when none waits.
func (e *Exporter) oldest() *push {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		return nil
	}
	return e.queue[0]
}

// settle takes p out of the queue, unless it was dropped meanwhile.
func (e *Exporter) settle(p *push) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) > 0 && e.queue[0] == p {
		e.queue = e.queue[1:]
	}
}

func (e *Exporter) sendLoop(ctx context.Context) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		p := e.oldest()
		if p == nil {
			select {
			case <-ctx.Done():
			case <-e.more:
			}
			continue
		}
		wait, retry := e.attempt(ctx, p)
		if !retry {
			e.settle(p)
			backoff = firstBackoff
			continue
		}
		if wait == 0 {
			// Up to a half less, so that a fleet does not come back at once.
			wait = backoff - rand.N(backoff/2)
			backoff = min(2*backoff, maxBackoff)
		}
		pause := time.NewTimer(min(wait, maxThrottle))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// attempt sends a push once. retry says whether it is to be sent again, not
// before wait has passed if the receiver asked for that.
func (e *Exporter) attempt(ctx context.Context, p *push) (wait time.Duration, retry bool) {
	attempt, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	partial, err := e.send.export(attempt, p.request)
	var again retryable
	switch {
	case err == nil && (partial.GetRejectedDataPoints() > 0 || partial.GetErrorMessage() != ""):
		e.series.rejected.Add(float64(max(0, partial.GetRejectedDataPoints())))
		e.o.Log.Warn("the OTLP receiver took a push in part", "rejected_points", partial.GetRejectedDataPoints(), "message", partial.GetErrorMessage())
		if partial.GetRejectedDataPoints() > 0 {
			e.series.pushes.WithLabelValues(resultPartial).Inc()
			return 0, false
		}
		fallthrough // a message without rejections is advice
	case err == nil:
		e.series.pushes.WithLabelValues(resultOK).Inc()
		e.series.lastSuccess.SetToCurrentTime()
		return 0, false
	case ctx.Err() != nil:
		return 0, true
	case errors.As(err, &again):
		e.series.pushes.WithLabelValues(resultRetry).Inc()
		e.o.Log.Warn("OTLP push; it will be tried again", "err", err)
		return again.after, true
	default:
		e.series.pushes.WithLabelValues(resultFailed).Inc()
		e.series.rejected.Add(float64(p.points))
		e.o.Log.Error("OTLP push", "err", err)
		return 0, false
	}
}
