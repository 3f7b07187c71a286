package otlp

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// defaultLogQueue is in records. A node with 64 NICs that all fail and recover makes that many in sixteen rounds.
	defaultLogQueue = 2048
	// maxRecords limits the records of a request, as in batches of OpenTelemetry's SDKs (maxExportBatchSize).
	maxRecords = 512
	// logLinger lets the events of one poll share a request.
	logLinger = 200 * time.Millisecond
	// flushTime limits the last attempt, which is made when the process ends.
	flushTime = 5 * time.Second
)

// Logs pushes log records. Its method Run does the work.
type Logs struct {
	pusher[*logspb.LogRecord]
	o        Options
	resource *resourcepb.Resource
	target   string
}

// NewLogs returns Logs whose own series are registered in r. It ignores the options Gather, Start and Interval, because
// records are sent as they come. It returns an error if an option is not valid. It does not contact the receiver.
func NewLogs(o Options, r prometheus.Registerer) (*Logs, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if o.Queue == 0 {
		o.Queue = defaultLogQueue
	}
	var err error
	if o.Endpoint, err = logsEndpoint(o); err != nil {
		return nil, err
	}
	l := &Logs{o: o, resource: o.buildResource(), target: o.Endpoint}
	l.pusher = pusher[*logspb.LogRecord]{signal: logsSignal, limit: o.Queue, timeout: o.Timeout, linger: logLinger, log: o.Log, batch: l.batchRequest}
	if l.send, err = newSender(o, logsSignal); err != nil {
		return nil, err
	}
	err = l.setUpSeries(r, seriesNames{prefix: "graylink_otlp_log_", items: "records", parts: "records", droppedHelp: "Log records dropped because the queue was full or because the process ended.",
		rejectedHelp: "Log records that the receiver rejected, in part of a push or with all of it."})
	if err != nil {
		return nil, errors.Join(err, l.send.close())
	}
	return l, nil
}

// logsEndpoint returns the endpoint of log records. It is LogsEndpoint if that is set, or else the endpoint of the metrics.
// Logs cannot use the path of the metrics' endpoint. A path that ends in the path of metrics ends in the path of logs
// instead. Any other path is dropped, which leads to /v1/logs on the same host.
func logsEndpoint(o Options) (string, error) {
	if o.LogsEndpoint != "" {
		return o.LogsEndpoint, nil
	}
	u, err := parseEndpoint(o, metricsSignal)
	if err != nil || o.Protocol == GRPC {
		return o.Endpoint, err
	}
	before, ok := strings.CutSuffix(strings.TrimRight(u.Path, "/"), metricsSignal.path)
	if !ok {
		before = ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: before + logsSignal.path}).String(), nil
}

// Target returns the destination of the records, for messages.
func (l *Logs) Target() string { return l.target }

// Offer queues a record. It never blocks.
func (l *Logs) Offer(r *logspb.LogRecord) { l.enqueue(r) }

// Run pushes until ctx ends, and then sends what is in the queue once. An attempt that the end interrupts is made again, so
// the receiver may get its records twice.
func (l *Logs) Run(ctx context.Context) error {
	l.sendLoop(ctx)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	for {
		request, first, items, parts := l.nextRequest()
		if request == nil {
			break
		}
		if _, retry := l.attemptSend(last, request, parts); retry {
			l.log.Warn("log records lost at shutdown", "records", l.discardQueue())
			break
		}
		l.removeSettled(first, items)
	}
	return l.send.close()
}

// batchRequest returns a request with as many of the oldest records as may share one, but with at least one.
func (l *Logs) batchRequest(oldest []*logspb.LogRecord) (request proto.Message, items, parts int) {
	n, size := 0, 0
	for n < min(len(oldest), maxRecords) {
		size += proto.Size(oldest[n])
		if n > 0 && size > maxRequest {
			break
		}
		n++
	}
	return &collectorpb.ExportLogsServiceRequest{ResourceLogs: []*logspb.ResourceLogs{{
		Resource:  l.resource,
		ScopeLogs: []*logspb.ScopeLogs{{Scope: l.o.buildScope(), LogRecords: oldest[:n]}},
	}}}, n, n
}

// Event represents an event that is pushed as a log record.
type Event struct {
	Name string
	// At is the time when the event happened, or zero if that is not known. Observed is the time when it was observed.
	At, Observed time.Time
	Level        slog.Level
	Text         string
	Attributes   []slog.Attr // strings, booleans and lists of strings
}

// LogRecord returns the event as a log record. It replaces invalid UTF-8 in strings, because the protocol requires valid
// UTF-8 and the kernel's log may contain other bytes.
func (e *Event) LogRecord() *logspb.LogRecord {
	severity, text := logspb.SeverityNumber_SEVERITY_NUMBER_INFO, "INFO"
	switch {
	case e.Level >= slog.LevelError:
		severity, text = logspb.SeverityNumber_SEVERITY_NUMBER_ERROR, "ERROR"
	case e.Level >= slog.LevelWarn:
		severity, text = logspb.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
	}
	r := &logspb.LogRecord{EventName: e.Name, ObservedTimeUnixNano: uint64(e.Observed.UnixNano()), SeverityNumber: severity, SeverityText: text, Body: textValue(e.Text)}
	if !e.At.IsZero() {
		r.TimeUnixNano = uint64(e.At.UnixNano())
	}
	for _, a := range e.Attributes {
		var v *commonpb.AnyValue
		switch x := a.Value.Any().(type) {
		case bool:
			v = &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: x}}
		case []string:
			v = textListValue(x)
		default:
			v = textValue(a.Value.String())
		}
		r.Attributes = append(r.Attributes, &commonpb.KeyValue{Key: a.Key, Value: v})
	}
	return r
}

func textValue(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: strings.ToValidUTF8(s, "\uFFFD")}}
}

func textListValue(list []string) *commonpb.AnyValue {
	a := &commonpb.ArrayValue{}
	for _, s := range list {
		a.Values = append(a.Values, textValue(s))
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: a}}
}
