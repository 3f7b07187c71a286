package ncclreceiver

import (
	"bytes"
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
	"github.com/graylink/graylink/internal/ccl/follow"
	"github.com/graylink/graylink/receivers/internal/metadatatest"
)

var update = flag.Bool("update", false, "write metadata.yaml anew")

func load(t *testing.T, file string) (*Config, error) {
	t.Helper()
	m, err := confmaptest.LoadConf(file)
	if err != nil {
		t.Fatal(err)
	}
	c := NewFactory().CreateDefaultConfig().(*Config)
	if err := m.Unmarshal(c); err != nil {
		return nil, err
	}
	return c, c.Validate()
}

func TestConfig(t *testing.T) {
	c, err := load(t, "testdata/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Config: follow.Config{Dir: "/var/lib/graylink-collectives", RAS: "127.0.0.1:28028", Job: "t7", Node: "h1"}, Interval: 5 * time.Second}
	if *c != want {
		t.Errorf("%+v\nwant %+v", *c, want)
	}
}

// TestBadConfigs checks that the error for each file contains the file's first line.
func TestBadConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := bytes.Cut(text, []byte("\n"))
		want := strings.TrimPrefix(string(first), "# ")
		if _, err := load(t, f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", f, err, want)
		}
	}
}

// flatten returns the values of metrics by their names and labels in Prometheus.
func flatten(t *testing.T, m pmetric.Metrics) map[string]float64 {
	t.Helper()
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	out := map[string]float64{}
	list := m.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
	for i := range list.Len() {
		m := list.At(i)
		kind := otlptranslator.MetricType(otlptranslator.MetricTypeGauge)
		var points pmetric.NumberDataPointSlice
		if m.Type() == pmetric.MetricTypeSum {
			kind, points = otlptranslator.MetricTypeMonotonicCounter, m.Sum().DataPoints()
		} else {
			points = m.Gauge().DataPoints()
		}
		name, err := namer.Build(otlptranslator.Metric{Name: m.Name(), Unit: m.Unit(), Type: kind})
		if err != nil {
			t.Fatal(err)
		}
		for j := range points.Len() {
			key := name
			for k, v := range points.At(j).Attributes().All() {
				key += "," + k + "=" + v.Str()
			}
			if _, twice := out[key]; twice {
				t.Errorf("%s is there twice", key)
			}
			out[key] = points.At(j).DoubleValue()
		}
	}
	return out
}

// TestFilesBecomeMetrics checks that a receiver that the factory made reads files, and that what it passes on are the points
// of the Follower.
func TestFilesBecomeMetrics(t *testing.T) {
	dir := t.TempDir()
	d := ccltest.Dump{AtNS: time.Now().UnixNano(), Comm: ccl.Comm{Comm: "0x7f8c", Name: "DP 0", NRanks: 8}, Dropped: 3, Ops: []*ccl.Op{{Op: "AllReduce", ExecNS: ccl.KnownNanos(5000)}}}
	if err := os.WriteFile(filepath.Join(dir, "h1-pid1.log"), ccltest.AppendDump(nil, "v4.2", d), 0o600); err != nil {
		t.Fatal(err)
	}
	c := NewFactory().CreateDefaultConfig().(*Config)
	c.Dir, c.Job, c.Interval = dir, "t7", 20*time.Millisecond
	sink := &consumertest.MetricsSink{}
	made, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	last := func() map[string]float64 {
		if all := sink.AllMetrics(); len(all) > 0 {
			return flatten(t, all[len(all)-1])
		}
		return nil
	}
	const operations = "fabric_collective_operations_total,comm_name=DP 0,job_name=t7,op=AllReduce"
	const missing = "fabric_collective_dropped_total,reason=writer" // is counted when a poll has ended
	for end := time.Now().Add(time.Minute); last()[operations] != 1 || last()[missing] != 3; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %v", last())
		}
	}
	if err := made.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{}
	for _, p := range made.(*ncclReceiver).Agent.CollectPoints(time.Now()) {
		key := p.Name
		for i, l := range p.Labels {
			key += "," + l + "=" + p.Values[i]
		}
		want[key] = p.Value
	}
	if got := last(); !maps.Equal(got, want) {
		t.Errorf("%v\nare passed on, and not %v", got, want)
	}
}

// TestBadStart checks that a start with a configuration that cannot be used fails, and can be followed by a shutdown.
func TestBadStart(t *testing.T) {
	r := newReceiver(receivertest.NewNopSettings(Type), &Config{Config: follow.Config{RAS: "10.0.0.1:1"}, Interval: time.Second}, consumertest.NewNop())
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("the start: %v", err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

var attributes = map[string]string{
	"comm_name": "Name of the communicator, or its identifier where the library does not know the name.", "job_name": "Job, empty if it is unknown.", "kind": "Operation (op) or sum of transfers (edge).",
	"op": "Kind of operation, as NCCL names it.", "reason": "Why operations are missing or a file is not read.", "result": "Result of the query.",
}

// TestMetadata checks that metadata.yaml describes the code; -update writes it.
func TestMetadata(t *testing.T) {
	var all []metadatatest.Family
	for _, f := range follow.Families() {
		all = append(all, metadatatest.Family{Name: f.Name, Help: f.Help, Counter: f.Counter, Labels: f.Labels})
	}
	metadatatest.CheckMetadata(t, NewFactory(), all, attributes, *update)
}
