package otlp

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/graylink/graylink/internal/otelname"
)

// logReceiver is an OTLP/gRPC server of logs that gives scripted answers first, and accepts everything afterwards.
type logReceiver struct {
	collectorpb.UnimplementedLogsServiceServer
	mu       sync.Mutex
	answers  []func() (*collectorpb.ExportLogsServiceResponse, error)
	requests []*collectorpb.ExportLogsServiceRequest
	headers  metadata.MD
}

func (r *logReceiver) Export(ctx context.Context, q *collectorpb.ExportLogsServiceRequest) (*collectorpb.ExportLogsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.headers, _ = metadata.FromIncomingContext(ctx)
	if len(r.answers) > 0 {
		answer := r.answers[0]
		r.answers = r.answers[1:]
		if a, err := answer(); a != nil || err != nil {
			return a, err
		}
	}
	r.requests = append(r.requests, proto.CloneOf(q))
	return &collectorpb.ExportLogsServiceResponse{}, nil
}

// bodies returns the bodies of the accepted records.
func (r *logReceiver) bodies() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.requests {
		out = append(out, bodies(q)...)
	}
	return out
}

func bodies(m proto.Message) (out []string) {
	for _, rl := range m.(*collectorpb.ExportLogsServiceRequest).GetResourceLogs() {
		for _, sl := range rl.GetScopeLogs() {
			for _, l := range sl.GetLogRecords() {
				out = append(out, l.GetBody().GetStringValue())
			}
		}
	}
	return out
}

func serveLogs(t *testing.T, r *logReceiver, o ...grpc.ServerOption) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(o...)
	collectorpb.RegisterLogsServiceServer(s, r)
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

func newLogs(t *testing.T, o Options) (*Logs, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	l, err := NewLogs(o, r)
	if err != nil {
		t.Fatal(err)
	}
	return l, r
}

// start runs l. The returned function ends it and waits for the end.
func start(t *testing.T, l *Logs) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func logsWith(t *testing.T, s *scripted, o Options) *Logs {
	t.Helper()
	o.Endpoint, o.Insecure = "127.0.0.1:1", true
	l, _ := newLogs(t, o)
	if err := l.send.close(); err != nil {
		t.Fatal(err)
	}
	l.send = s
	return l
}

func record(body string) *logspb.LogRecord { return &logspb.LogRecord{Body: textValue(body)} }

func TestRecord(t *testing.T) {
	at, observed := time.Unix(1800000000, 5), time.Unix(1800000001, 7)
	for _, tc := range []struct {
		name           string
		event          Event
		severity, text string
		more           []string // fields as JSON has them
	}{
		{"an error", Event{Level: slog.LevelError, Text: "Port mlx5_0 port 1: state DOWN", Attributes: []slog.Attr{slog.String("agent", "graylink-node"), slog.Bool("isFatal", true), slog.Bool("isHealthy", false),
			slog.Any("errorCode", []string{"state_down", "second"})}}, "SEVERITY_NUMBER_ERROR", "ERROR", []string{
			`"timeUnixNano":"1800000000000000005"`, `"observedTimeUnixNano":"1800000001000000007"`, `"eventName":"nic_health"`,
			`"body":{"stringValue":"Port mlx5_0 port 1: state DOWN"}`, `{"key":"agent","value":{"stringValue":"graylink-node"}}`,
			`{"key":"isFatal","value":{"boolValue":true}}`, `{"key":"isHealthy","value":{"boolValue":false}}`,
			`{"key":"errorCode","value":{"arrayValue":{"values":[{"stringValue":"state_down"},{"stringValue":"second"}]}}}`,
		}},
		{"a warning", Event{Level: slog.LevelWarn}, "SEVERITY_NUMBER_WARN", "WARN", nil},
		{"information", Event{Level: slog.LevelInfo}, "SEVERITY_NUMBER_INFO", "INFO", nil},
		{"not UTF-8", Event{Text: "a\xffb", Attributes: []slog.Attr{slog.Any("errorCode", []string{"\xfe"})}}, "SEVERITY_NUMBER_INFO", "INFO", []string{`"body":{"stringValue":"a�b"}`}},
		{"no codes", Event{Attributes: []slog.Attr{slog.Any("errorCode", []string(nil))}}, "SEVERITY_NUMBER_INFO", "INFO", []string{`{"key":"errorCode","value":{"arrayValue":{}}}`}},
	} {
		e := tc.event
		e.Name, e.At, e.Observed = "nic_health", at, observed
		r := e.LogRecord()
		if _, err := proto.Marshal(r); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		b, err := protojson.Marshal(r)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		got := strings.ReplaceAll(strings.ReplaceAll(string(b), `": `, `":`), `, "`, `,"`) // protojson varies its spaces
		got = strings.ReplaceAll(got, ", {", ",{")
		for _, want := range append(tc.more, `"severityNumber":"`+tc.severity+`"`, `"severityText":"`+tc.text+`"`) {
			if !strings.Contains(got, want) {
				t.Errorf("%s: want %s in %s", tc.name, want, got)
			}
		}
		if len(r.GetAttributes()) != len(tc.event.Attributes) {
			t.Errorf("%s: %d attributes, want %d", tc.name, len(r.GetAttributes()), len(tc.event.Attributes))
		}
	}
	if r := (&Event{Observed: observed}).LogRecord(); r.GetTimeUnixNano() != 0 {
		t.Errorf("a time that is not known is %d, want absent", r.GetTimeUnixNano())
	}
}

// TestRule5WhatWaitsGoesTogether checks that records are sent within a second, and that no request has too many records
// or octets.
func TestRule5WhatWaitsGoesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		l := logsWith(t, s, Options{Interval: time.Hour})
		start(t, l)
		synctest.Wait()
		began := time.Now()
		for i := range 3 {
			l.Offer(record(fmt.Sprint(i)))
			time.Sleep(50 * time.Millisecond) // the events of one poll do not come at one moment
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.sent) != 1 || strings.Join(bodies(s.sent[0]), " ") != "0 1 2" || s.at[0].Sub(began) > time.Second {
			t.Fatalf("%d requests, want one with the three records within a second", len(s.sent))
		}
		for i := range maxRecords + 3 {
			l.Offer(record(fmt.Sprint(i)))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.sent) != 3 || len(bodies(s.sent[1])) != maxRecords || len(bodies(s.sent[2])) != 3 {
			t.Errorf("%d requests, want two more, of %d and 3 records", len(s.sent), maxRecords)
		}
		for range 4 {
			l.Offer(record(strings.Repeat("x", maxRequest/2-1000)))
		}
		l.Offer(record(strings.Repeat("y", maxRequest+1)))
		time.Sleep(time.Second)
		synctest.Wait()
		var sizes []int
		for _, q := range s.sent[3:] {
			sizes = append(sizes, len(bodies(q)))
		}
		if fmt.Sprint(sizes) != "[2 2 1]" {
			t.Errorf("large records go as %v, want [2 2 1]", sizes)
		}
		if l.queueLength() != 0 {
			t.Error("accepted records are still in the queue")
		}
	})
}

func TestRule5AFullQueueLosesItsOldestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{hang: true}
		l := logsWith(t, s, Options{Queue: 3})
		start(t, l)
		l.Offer(record("0"))
		time.Sleep(time.Second) // the attempt hangs
		for i := 1; i < 5; i++ {
			l.Offer(record(fmt.Sprint(i)))
		}
		s.mu.Lock()
		s.hang = false
		s.mu.Unlock()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := strings.Join(bodies(s.sent[len(s.sent)-1]), " "); got != "2 3 4" || value(t, l.series.dropped) != 2 || l.queueLength() != 0 {
			t.Errorf("%s came, %v dropped, %d wait; want the newest three, 2 and none", got, value(t, l.series.dropped), l.queueLength())
		}
	})
}

// TestRule5WhatIsTakenIsSettledOnce checks records that are dropped while their request is being sent. They count as
// dropped, and no newer ones are removed with them.
func TestRule5WhatIsTakenIsSettledOnce(t *testing.T) {
	l := logsWith(t, &scripted{}, Options{Queue: 3})
	for i := range 3 {
		l.Offer(record(fmt.Sprint(i)))
	}
	_, first, items, _ := l.nextRequest()
	l.Offer(record("3"))
	l.Offer(record("4"))
	l.removeSettled(first, items)
	request, _, _, _ := l.nextRequest()
	if got := strings.Join(bodies(request), " "); got != "3 4" {
		t.Errorf("%q waits, want 3 4", got)
	}
}

func TestRule5TheEndSendsWhatWaits(t *testing.T) {
	for _, tc := range []struct {
		name    string
		script  *scripted
		dropped float64
	}{
		{"taken", &scripted{}, 0},
		{"refused for now", &scripted{answers: []error{retryable{err: errors.New("not now")}, retryable{err: errors.New("not now")}}}, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := logsWith(t, tc.script, Options{})
			stop := start(t, l)
			synctest.Wait()
			l.Offer(record("a"))
			l.Offer(record("b"))
			stop()
			if len(tc.script.sent) != 1 || strings.Join(bodies(tc.script.sent[0]), " ") != "a b" || value(t, l.series.dropped) != tc.dropped || l.queueLength() != 0 {
				t.Errorf("%s: %d requests, %v dropped, %d wait", tc.name, len(tc.script.sent), value(t, l.series.dropped), l.queueLength())
			}
		})
	}
}

// TestLogsOverGRPC checks TLS, headers, a retry, a throttle, and a push that is accepted in part, with a real server.
func TestLogsOverGRPC(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.pair(t, x509.ExtKeyUsageServerAuth)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	throttled, err := status.New(codes.ResourceExhausted, "slow down").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(10 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	fail := func(s *status.Status) func() (*collectorpb.ExportLogsServiceResponse, error) {
		return func() (*collectorpb.ExportLogsServiceResponse, error) { return nil, s.Err() }
	}
	r := &logReceiver{}
	r.answers = append(r.answers, fail(throttled), fail(throttled))
	address := serveLogs(t, r, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}})))
	l, registry := newLogs(t, Options{Endpoint: address, TLS: TLSFiles{CA: write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})))},
		HeadersFile: write(t, "headers", "x-scope-orgid: fabric\n"), Timeout: 20 * time.Second, Identity: Identity{Service: "graylink-node", Host: "h1"}})
	start(t, l)
	l.Offer(record("first"))
	until(t, "the record, after two refusals", func() bool { return len(r.bodies()) == 1 })
	until(t, "the count of the refusals", func() bool { return value(t, l.series.pushes.WithLabelValues(resultRetry)) == 2 })
	r.mu.Lock()
	got := r.requests[0].GetResourceLogs()[0]
	header := r.headers.Get("x-scope-orgid")
	r.answers = append(r.answers, func() (*collectorpb.ExportLogsServiceResponse, error) {
		return &collectorpb.ExportLogsServiceResponse{PartialSuccess: &collectorpb.ExportLogsPartialSuccess{RejectedLogRecords: 2, ErrorMessage: "too old"}}, nil
	}, fail(status.New(codes.InvalidArgument, "no")))
	r.mu.Unlock()
	if len(header) != 1 || header[0] != "fabric" {
		t.Errorf("header %v, want fabric", header)
	}
	if a := got.GetResource().GetAttributes(); len(a) != 2 || a[0].GetValue().GetStringValue() != "graylink-node" || a[1].GetValue().GetStringValue() != "h1" {
		t.Errorf("resource %v", a)
	}
	l.Offer(record("taken in part"))
	until(t, "the partial success", func() bool { return value(t, l.series.pushes.WithLabelValues(resultPartial)) == 1 })
	l.Offer(record("refused"))
	until(t, "the refusal", func() bool { return value(t, l.series.pushes.WithLabelValues(resultFailed)) == 1 })
	if value(t, l.series.rejected) != 3 || l.queueLength() > 0 && len(r.bodies()) != 1 {
		t.Errorf("%v records rejected, want 3", value(t, l.series.rejected))
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestLogsOverHTTP checks that requests go to the path of logs.
func TestLogsOverHTTP(t *testing.T) {
	var mu sync.Mutex
	var paths []string
	var got []string
	refuse := 1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
		if refuse > 0 {
			refuse--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		b, err := io.ReadAll(z)
		var q collectorpb.ExportLogsServiceRequest
		if err != nil || proto.Unmarshal(b, &q) != nil {
			t.Errorf("a request of %d octets: %v", len(b), err)
		}
		got = append(got, bodies(&q)...)
		b, err = proto.Marshal(&collectorpb.ExportLogsServiceResponse{PartialSuccess: &collectorpb.ExportLogsPartialSuccess{RejectedLogRecords: 1}})
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(b)
	}))
	defer server.Close()
	l, _ := newLogs(t, Options{Endpoint: server.URL, Protocol: HTTP, Insecure: true, Timeout: 20 * time.Second})
	start(t, l)
	l.Offer(record("a"))
	until(t, "the record", func() bool { return value(t, l.series.pushes.WithLabelValues(resultPartial)) == 1 })
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(paths) != "[/v1/logs /v1/logs]" || fmt.Sprint(got) != "[a]" || value(t, l.series.rejected) != 1 || value(t, l.series.pushes.WithLabelValues(resultRetry)) != 1 {
		t.Errorf("paths %v, records %v, %v rejected", paths, got, value(t, l.series.rejected))
	}
}

func TestWhereLogsGo(t *testing.T) {
	for _, tc := range []struct {
		o         Options
		want, err string
	}{
		{Options{Endpoint: "c:4317"}, "c:4317", ""},
		{Options{Endpoint: "c:4318", Protocol: HTTP}, "https://c:4318/v1/logs", ""},
		{Options{Endpoint: "http://c:4318/", Protocol: HTTP, Insecure: true}, "http://c:4318/v1/logs", ""},
		{Options{Endpoint: "https://c/v1/metrics", Protocol: HTTP}, "https://c/v1/logs", ""},
		{Options{Endpoint: "https://c/otlp/v1/metrics/", Protocol: HTTP}, "https://c/otlp/v1/logs", ""},
		{Options{Endpoint: "https://c/api/prom/push", Protocol: HTTP}, "https://c/v1/logs", ""},
		{Options{Endpoint: "https://c/x", LogsEndpoint: "https://d/y", Protocol: HTTP}, "https://d/y", ""},
		{Options{Endpoint: "c:4317", LogsEndpoint: "d:4317"}, "d:4317", ""},
		{Options{Endpoint: "c:4317", LogsEndpoint: "d"}, "", `endpoint "d": want host:port`},
		{Options{Endpoint: "c:4317", LogsEndpoint: "http://d:1", Protocol: HTTP}, "", "want https://"},
		{Options{Endpoint: "c:1/x?y", Protocol: HTTP}, "", "want host:port or a URL"},
	} {
		l, err := NewLogs(tc.o, prometheus.NewRegistry())
		switch {
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%+v: %v, want %q", tc.o, err, tc.err)
		case tc.err == "" && (err != nil || l.Target() != tc.want):
			t.Errorf("%+v: %v, want %s", tc.o, err, tc.want)
		}
		if l != nil {
			if s, ok := l.send.(*httpSender); ok && s.url != tc.want {
				t.Errorf("%+v: sent to %s, want %s", tc.o, s.url, tc.want)
			}
			l.send.close()
		}
	}
}

// TestMetricsAndLogsInOneRegistry checks that metrics and logs have series of different names.
func TestMetricsAndLogsInOneRegistry(t *testing.T) {
	r := prometheus.NewRegistry()
	o := Options{Endpoint: "127.0.0.1:1", Insecure: true}
	e, err := New(o, r)
	if err != nil {
		t.Fatal(err)
	}
	defer e.send.close()
	l, err := NewLogs(o, r)
	if err != nil {
		t.Fatal(err)
	}
	defer l.send.close()
	for family, want := range map[string]string{"graylink_otlp_pushes_total": "graylink.otlp.pushes {push}", "graylink_otlp_log_pushes_total": "graylink.otlp.log.pushes {push}",
		"graylink_otlp_log_dropped_records_total": "graylink.otlp.log.dropped_records {record}", "graylink_otlp_log_queued_records": "graylink.otlp.log.queued_records {record}",
		"graylink_otlp_log_rejected_records_total": "graylink.otlp.log.rejected_records {record}", "graylink_otlp_log_last_success_timestamp_seconds": "graylink.otlp.log.last_success_timestamp s"} {
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range families {
			if f.GetName() == family {
				found = true
				if name, unit := otelname.Metric(f.GetName(), f.GetType()); name+" "+unit != want {
					t.Errorf("%s is %s %s, want %s", family, name, unit, want)
				}
			}
		}
		if !found {
			t.Errorf("no %s", family)
		}
	}
}
