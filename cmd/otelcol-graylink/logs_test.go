//go:build collector

package main

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/graylink/graylink/exporters/otlp"
	"github.com/graylink/graylink/internal/nichealth"
)

// logsSink receives log records by the Collector's own receiver of OTLP at an address.
func logsSink(t *testing.T, protocol, address string) *consumertest.LogsSink {
	t.Helper()
	factory := otlpreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{protocol: map[string]any{"endpoint": address}}}).Unmarshal(cfg); err != nil {
		t.Fatal(err)
	}
	sink := &consumertest.LogsSink{}
	r, err := factory.CreateLogs(t.Context(), receivertest.NewNopSettings(factory.Type()), cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return sink
}

// TestHealthEventsThroughTheCollectorsReceiver checks that the Collector's own receiver can read pushed events.
func TestHealthEventsThroughTheCollectorsReceiver(t *testing.T) {
	for _, protocol := range []string{otlp.GRPC, otlp.HTTP} {
		t.Run(protocol, func(t *testing.T) {
			address := freePort(t)
			sink := logsSink(t, protocol, address)
			logs, err := otlp.NewLogs(otlp.Options{Endpoint: address, Protocol: protocol, Insecure: true, Identity: otlp.Identity{Service: "graylink-node", Host: "h1"}}, prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- logs.Run(ctx) }()
			at := time.Unix(1800000000, 42).UTC()
			e := nichealth.Event{Agent: nichealth.Agent, IsFatal: true, Message: "Port mlx5_0 port 1: state DOWN", ErrorCode: []string{nichealth.CodeDown},
				EntitiesImpacted: []nichealth.Entity{nichealth.PortEntity("mlx5_0", 1)}, GeneratedTimestamp: at}
			record := otlp.Event{Name: nichealth.Name, At: at, Observed: at.Add(time.Second), Level: e.LogLevel(), Text: e.Message, Attributes: e.LogAttributes()}
			logs.Offer(record.LogRecord())
			for end := time.Now().Add(30 * time.Second); sink.LogRecordCount() == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			}
			cancel()
			if err := <-ran; err != nil {
				t.Error(err)
			}
			// The end may cut off the acknowledgement, and what is not acknowledged is sent once more.
			if n := sink.LogRecordCount(); n < 1 || n > 2 {
				t.Fatalf("%d records, want 1, or 2 if its acknowledgement was lost", n)
			}
			of := sink.AllLogs()[0].ResourceLogs().At(0)
			if host, ok := of.Resource().Attributes().Get("host.name"); !ok || host.Str() != "h1" {
				t.Errorf("resource %v", of.Resource().Attributes().AsRaw())
			}
			got := of.ScopeLogs().At(0).LogRecords().At(0)
			fatal, _ := got.Attributes().Get("isFatal")
			entities, _ := got.Attributes().Get("entitiesImpacted")
			if got.EventName() != "nic_health" || got.SeverityNumber() != plog.SeverityNumberError || got.SeverityText() != "ERROR" || !got.Timestamp().AsTime().Equal(at) || !got.ObservedTimestamp().AsTime().Equal(at.Add(time.Second)) ||
				got.Body().Str() != "Port mlx5_0 port 1: state DOWN" || !fatal.Bool() || entities.AsString() != `["NICPort:mlx5_0_port1"]` {
				t.Errorf("event %q, severity %v %q, at %v, %q, %v", got.EventName(), got.SeverityNumber(), got.SeverityText(), got.Timestamp(), got.Body().Str(), got.Attributes().AsRaw())
			}
		})
	}
}
