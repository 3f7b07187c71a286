// Package otlp pushes the series of Prometheus registries to an OpenTelemetry receiver. The series have OTel's names
// (names.go), and exponential histograms in place of native ones. Health events of NICs are pushed as log records
// (logs.go).
//
// The rules of the push:
//
//  1. At every interval the families are gathered and queued. A full queue drops its oldest push, which is counted.
//     Sums are cumulative, so a lost push costs resolution and no counts.
//  2. The oldest push is sent first. It stays in the queue until the receiver has answered it, so a push that waits for
//     a retry can be dropped as well.
//  3. A failure that the OTLP specification calls retryable is retried. The first retry comes after a second, and each
//     further one after twice the time up to half a minute, or when the receiver states. Any other failure drops the
//     push.
//  4. A push that the receiver accepted in part is not sent again.
//  5. Log records are queued as they come, and the records in the queue share a request. A full queue drops its oldest
//     record. At the end the queue is sent once more, and records that remain then are counted as dropped.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Identity holds the attributes of the resource that pushes describe.
type Identity struct {
	Service  string // service.name
	Version  string // service.version
	Host     string // host.name
	Instance string // service.instance.id
}

// Options holds the options of a push. Endpoint, Gather and the service of Identity are required.
type Options struct {
	Endpoint string // host:port, or a URL
	// LogsEndpoint is the endpoint of log records, in the same forms. If it is empty, they go to the endpoint of the
	// metrics, and with HTTP to the path of logs there (see NewLogs).
	LogsEndpoint string
	Protocol     string // GRPC, which is the default, or HTTP (binary protobuf)
	Interval     time.Duration
	Timeout      time.Duration // limit on one attempt
	TLS          TLSFiles
	Insecure     bool // plain text instead of TLS

	// HeadersFile holds "name: value" lines that are sent with every push, mostly credentials. It is read for each
	// push, so that it can be replaced.
	HeadersFile string

	// Gather holds the gatherers whose families are pushed. If several have a family of the same name, the first one is
	// used.
	Gather []prometheus.Gatherer

	Identity Identity

	// Start is the start of the counts that have no start of their own. The default is the start of the process.
	Start time.Time
	// Queue limits the number of pushes, or log records, in the queue.
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
	maxThrottle  = 5 * time.Minute // the longest wait that a receiver can ask for

	// maxRequest is in octets, before compression. Receivers built on gRPC accept 4 MiB by default.
	maxRequest = 3 << 20
)

// Exporter pushes series. Its method Run does the work.
type Exporter struct {
	pusher[*push]
	o           Options
	resource    *resourcepb.Resource
	gatherFails prometheus.Counter
}

// push represents one request of series.
type push struct {
	request *collectorpb.ExportMetricsServiceRequest
	points  int
}

// New returns an Exporter whose own series are registered in r. It returns an error if an option is not valid. It does
// not contact the receiver.
func New(o Options, r prometheus.Registerer) (*Exporter, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if o.Queue == 0 {
		o.Queue = defaultQueue
	}
	e := &Exporter{o: o, resource: o.buildResource()}
	e.pusher = pusher[*push]{signal: metricsSignal, limit: o.Queue, timeout: o.Timeout, log: o.Log,
		batch: func(oldest []*push) (proto.Message, int, int) { return oldest[0].request, 1, oldest[0].points }}
	var err error
	if e.send, err = newSender(o, metricsSignal); err != nil {
		return nil, err
	}
	e.gatherFails = prometheus.NewCounter(prometheus.CounterOpts{Name: "graylink_otlp_gather_errors_total", Help: "Gatherings that failed in part or completely."})
	err = e.setUpSeries(r, seriesNames{prefix: "graylink_otlp_", items: "pushes", parts: "points", droppedHelp: "Pushes dropped because the queue was full.",
		rejectedHelp: "Data points that the receiver rejected, in part of a push or with all of it."})
	if err == nil {
		err = registerAll(r, e.gatherFails)
	}
	if err != nil {
		return nil, errors.Join(err, e.send.close())
	}
	return e, nil
}

// setDefaults fills in the options that are not set, except for the queue.
func (o *Options) setDefaults() error {
	if o.Protocol == "" {
		o.Protocol = GRPC
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Timeout == 0 {
		o.Timeout = min(defaultTimeout, o.Interval)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Interval < 0 || o.Timeout < 0 {
		return fmt.Errorf("OTLP interval %v, timeout %v: want positive durations", o.Interval, o.Timeout)
	}
	return nil
}

// buildScope returns the instrumentation scope of the pushes.
func (o *Options) buildScope() *commonpb.InstrumentationScope {
	return &commonpb.InstrumentationScope{Name: "github.com/graylink/graylink/exporters/otlp", Version: o.Identity.Version}
}

// buildResource returns the resource that the pushes describe.
func (o *Options) buildResource() *resourcepb.Resource {
	r, id := &resourcepb.Resource{}, &o.Identity
	for _, a := range [][2]string{{"service.name", id.Service}, {"service.version", id.Version}, {"service.instance.id", id.Instance}, {"host.name", id.Host}} {
		if a[1] != "" {
			r.Attributes = append(r.Attributes, stringAttribute(a[0], a[1]))
		}
	}
	return r
}

// Run pushes until ctx ends. It drops the pushes that are in the queue then.
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
			for _, p := range e.gatherPushes(now) {
				e.enqueue(p)
			}
		}
	}
}

// gatherPushes gathers the families and makes pushes of them.
func (e *Exporter) gatherPushes(now time.Time) []*push {
	var families []*dto.MetricFamily
	seen := map[string]bool{}
	for _, g := range e.o.Gather {
		more, err := g.Gather()
		if err != nil {
			e.gatherFails.Inc()
			e.o.Log.Warn("cannot gather all series for OTLP", "err", err)
		}
		for _, f := range more {
			if !seen[f.GetName()] {
				seen[f.GetName()] = true
				families = append(families, f)
			}
		}
	}
	return e.splitMetrics(newConverter(e.o.Start, now).convertFamilies(families))
}

// splitMetrics makes pushes of at most maxRequest octets each. A single metric is never split.
func (e *Exporter) splitMetrics(metrics []*metricspb.Metric) []*push {
	scope := e.o.buildScope()
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
		last.points += countPoints(m)
	}
	return out
}

func countPoints(m *metricspb.Metric) int {
	return len(m.GetSum().GetDataPoints()) + len(m.GetGauge().GetDataPoints()) + len(m.GetSummary().GetDataPoints()) +
		len(m.GetHistogram().GetDataPoints()) + len(m.GetExponentialHistogram().GetDataPoints())
}
