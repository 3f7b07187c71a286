package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/exporters/otlp"
	"github.com/graylink/graylink/internal/kubenode"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nodeagent/health/healthtest"
)

// logReceiver is an OTLP/gRPC server that keeps the log records it gets.
type logReceiver struct {
	collectorpb.UnimplementedLogsServiceServer
	mu  sync.Mutex
	got []*logspb.LogRecord
}

func (c *logReceiver) Export(_ context.Context, q *collectorpb.ExportLogsServiceRequest) (*collectorpb.ExportLogsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range proto.CloneOf(q).GetResourceLogs() {
		for _, s := range r.GetScopeLogs() {
			c.got = append(c.got, s.GetLogRecords()...)
		}
	}
	return &collectorpb.ExportLogsServiceResponse{}, nil
}

func (c *logReceiver) records() []*logspb.LogRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

func plain(v *commonpb.AnyValue) string {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return x.StringValue
	case *commonpb.AnyValue_BoolValue:
		return fmt.Sprint(x.BoolValue)
	case *commonpb.AnyValue_ArrayValue:
		var all []string
		for _, e := range x.ArrayValue.GetValues() {
			all = append(all, plain(e))
		}
		return "[" + strings.Join(all, " ") + "]"
	}
	return fmt.Sprintf("%T", v.GetValue())
}

// TestEventsArriveAsLogRecords checks the way of events from files of a tree to a receiver.
func TestEventsArriveAsLogRecords(t *testing.T) {
	c := &logReceiver{}
	address := serveOTLP(t, func(s *grpc.Server) { collectorpb.RegisterLogsServiceServer(s, c) })
	logs, err := otlp.NewLogs(otlp.Options{Endpoint: address, Insecure: true, Timeout: 20 * time.Second}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- logs.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	observed := healthtest.Start.Add(time.Hour)
	p := newPatient(t, "h100", func(o *health.Options) {
		o.Sinks = append(o.Sinks, func(e nichealth.Event) {
			r := otlp.Event{Name: nichealth.Name, At: e.GeneratedTimestamp, Observed: observed, Level: e.LogLevel(), Text: e.Message, Attributes: e.LogAttributes()}
			logs.Offer(r.LogRecord())
		})
	})
	p.PollFor(3 * time.Second)
	p.RunSteps("set mlx5_0/1 state 1: DOWN")
	p.PollFor(3 * time.Second)
	p.RunSteps("set mlx5_0/1 state 4: ACTIVE")
	p.PollFor(3 * time.Second)
	until(t, "two records", func() bool { return len(c.records()) >= 2 })
	got := c.records()
	if len(got) != 2 {
		t.Fatalf("%d records, want 2: %v", len(got), got)
	}
	for i, want := range []struct {
		severity logspb.SeverityNumber
		text     string
		fields   map[string]string
	}{
		{logspb.SeverityNumber_SEVERITY_NUMBER_ERROR, "Port mlx5_0 port 1: state DOWN - no connectivity", map[string]string{"agent": "graylink-node", "componentClass": "NIC",
			"checkName": nichealth.CheckRDMA, "isFatal": "true", "isHealthy": "false", "recommendedAction": "REPLACE_VM", "entitiesImpacted": "[NICPort:mlx5_0_port1]", "errorCode": "[state_down]", "nodeName": "h1"}},
		{logspb.SeverityNumber_SEVERITY_NUMBER_INFO, "Port mlx5_0 port 1: state is not DOWN any more", map[string]string{"agent": "graylink-node", "componentClass": "NIC",
			"checkName": nichealth.CheckRDMA, "isFatal": "false", "isHealthy": "true", "recommendedAction": "NONE", "entitiesImpacted": "[NICPort:mlx5_0_port1]", "errorCode": "[state_down]", "nodeName": "h1"}},
	} {
		r := got[i]
		at := time.Unix(0, int64(r.GetTimeUnixNano())).UTC()
		if r.GetSeverityNumber() != want.severity || r.GetBody().GetStringValue() != want.text || r.GetEventName() != "nic_health" || r.GetObservedTimeUnixNano() != uint64(observed.UnixNano()) {
			t.Errorf("record %d: %v", i, r)
		}
		if from := healthtest.Start.Add(time.Duration(3+3*i) * time.Second); at.Before(from) || at.After(from.Add(3*time.Second)) {
			t.Errorf("record %d: time %v, want within 3 s of %v", i, at, from)
		}
		fields := map[string]string{}
		for _, a := range r.GetAttributes() {
			fields[a.GetKey()] = plain(a.GetValue())
		}
		if fmt.Sprint(fields) != fmt.Sprint(want.fields) {
			t.Errorf("record %d: %v, want %v", i, fields, want.fields)
		}
	}
}

func TestKubernetesSeries(t *testing.T) {
	stats := kubenode.Stats{Requests: map[kubenode.Request]uint64{{Object: kubenode.ObjectEvent, Result: kubenode.ResultRetry}: 3}, Dropped: map[kubenode.Drop]uint64{kubenode.DropOld: 2}, Queued: 5}
	from := &sources{readState: (&madeUp{}).read, kubernetes: func() kubenode.Stats { return stats }, now: func() time.Time { return healthtest.Start }}
	s := newGatherer(from, []constructor{{"kubernetes", newKubernetesCollector}}, newRuns(), false)
	text := func() string {
		families, err := s.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, f := range families {
			if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
	if got := text(); strings.Contains(got, "\ngraylink_node_kubernetes_condition_age_seconds ") {
		t.Errorf("an age of what was never written:\n%s", got)
	}
	stats.Written = healthtest.Start.Add(-90 * time.Second)
	for _, want := range []string{`graylink_node_kubernetes_requests_total{object="event",result="retry"} 3`, `graylink_node_kubernetes_dropped_events_total{reason="too_old"} 2`,
		"graylink_node_kubernetes_queued_events 5", "graylink_node_kubernetes_condition_age_seconds 90"} {
		if got := text(); !strings.Contains(got, want) {
			t.Errorf("want %s in\n%s", want, got)
		}
	}
	if problems, err := testutil.GatherAndLint(s); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
