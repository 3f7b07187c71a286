package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/exporters/otlp"
	"github.com/graylink/graylink/internal/nichealth"
)

// logCollector is an OTLP/gRPC server that keeps the log records it gets.
type logCollector struct {
	collectorpb.UnimplementedLogsServiceServer
	mu  sync.Mutex
	got []*logspb.LogRecord
}

func (c *logCollector) Export(_ context.Context, q *collectorpb.ExportLogsServiceRequest) (*collectorpb.ExportLogsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range proto.CloneOf(q).GetResourceLogs() {
		for _, s := range r.GetScopeLogs() {
			c.got = append(c.got, s.GetLogRecords()...)
		}
	}
	return &collectorpb.ExportLogsServiceResponse{}, nil
}

func (c *logCollector) records() []*logspb.LogRecord {
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

// TestEventsArriveAsLogRecords: from files of a tree to a receiver.
func TestEventsArriveAsLogRecords(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &logCollector{}
	server := grpc.NewServer()
	collectorpb.RegisterLogsServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	logs, err := otlp.NewLogs(otlp.Options{Endpoint: l.Addr().String(), Insecure: true, Timeout: 20 * time.Second}, prometheus.NewRegistry())
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
	observed := healthStart.Add(time.Hour)
	p := newPatient(t, "h100", func(o *HealthOptions) {
		o.Sinks = append(o.Sinks, func(e nichealth.Event) { logs.Offer(otlp.HealthRecord(&e, observed)) })
	})
	p.run(3 * time.Second)
	p.do("set mlx5_0/1 state 1: DOWN")
	p.run(3 * time.Second)
	p.do("set mlx5_0/1 state 4: ACTIVE")
	p.run(3 * time.Second)
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
		if from := healthStart.Add(time.Duration(3+3*i) * time.Second); at.Before(from) || at.After(from.Add(3*time.Second)) {
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
