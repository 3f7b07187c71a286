package csigreceiver

import (
	"bytes"
	"context"
	"encoding/hex"
	"flag"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/unix"
	"github.com/graylink/graylink/internal/unix/vethtest"
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
	want := &Config{Profile: "/etc/graylink/csig.yml", Interfaces: []string{"eth1", "eth2"}, Topology: "/etc/graylink/topology.yaml",
		Senders: []string{"10.9.0.0/16"}, Node: "h1", StampPort: 8620, SourcePort: 40000, Flows: 100, NewLocators: 50, BufferBytes: 1 << 20,
		Interval: 5 * time.Second}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v\nwant %+v", c, want)
	}
}

// TestBadConfigs checks that the error for each file contains the file's first line.
func TestBadConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) < 12 {
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

// flatten returns the values of metrics by their names and labels in Prometheus, and their time.
func flatten(t *testing.T, m pmetric.Metrics) (values map[string]float64, at time.Time) {
	t.Helper()
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	values = map[string]float64{}
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
			if _, twice := values[key]; twice {
				t.Errorf("%s is there twice", key)
			}
			values[key], at = points.At(j).DoubleValue(), points.At(j).Timestamp().AsTime()
		}
	}
	return values, at
}

// frame returns a frame of a probe of flow 3 with a compact tag (share, code 23, locator 1) from an address to 10.0.0.2.
func frame(t testing.TB, from string) []byte {
	t.Helper()
	const macs, tag, ip, udp = "020000000002020000000001", "88b52b810800", "4500001c0000000040110000" + "000000000a000002", "c003035e00080000"
	b, err := hex.DecodeString(macs + tag + ip + udp)
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddr(from).As4()
	copy(b[30:], a[:])
	return b
}

// wide returns a frame of RoCE data with a wide tag (delay, code 10, locator 3) from 10.0.0.1 to 10.0.0.2.
func wide(t testing.TB) []byte {
	t.Helper()
	const macs, tag = "020000000002020000000001", "88b6000320000a000800"
	const ip, udp = "4500001c0000000040110000" + "0a0000010a000002", "c00312b700080000"
	b, err := hex.DecodeString(macs + tag + ip + udp)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const topology = `version: 1
nodes:
  - name: h1
    nics:
      - {device: eth1, addresses: [10.0.0.1]}
  - name: h2
    nics:
      - {device: eth1, addresses: [10.0.0.2]}
switches:
  - {name: leaf1, role: leaf}
links:
  - {a: h1/eth1, b: "leaf1:dn1", speed_gbps: 100}
  - {a: h2/eth1, b: "leaf1:dn2", speed_gbps: 100}
`

// config returns a configuration with the topology and a profile.
func config(t testing.TB) *Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(file, []byte(topology), 0o600); err != nil {
		t.Fatal(err)
	}
	c := defaultConfig()
	c.Profile, c.Topology, c.Node = "testdata/profile.yml", file, "h2"
	return c
}

const (
	packets  = "fabric_csig_packets_total,direction=forward,dst=h2/eth1,flow=3,format=compact,locator=1,signal=share,src=h1/eth1"
	lower    = "fabric_csig_available_ratio,bound=lower,direction=forward,dst=h2/eth1,flow=3,src=h1/eth1"
	upper    = "fabric_csig_available_ratio,bound=upper,direction=forward,dst=h2/eth1,flow=3,src=h1/eth1"
	stranger = "fabric_csig_dropped_total,nic=%,reason=stranger"
	captured = "graylink_csig_captured_packets_total,nic=%"
)

// TestFileBecomesMetrics checks that a file is passed on by the times of its frames.
func TestFileBecomesMetrics(t *testing.T) {
	start := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	c := config(t)
	c.Topology, c.Senders = "", []string{"10.0.0.0/30", "10.0.1.1/32"}
	c.File, c.Interval = filepath.Join(t.TempDir(), "a.pcap"), time.Second
	out, err := os.Create(c.File)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(out)
	if err := w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, from := range []string{"10.0.0.1", "10.0.0.1", "10.0.0.9", "10.0.1.1"} {
		f := frame(t, from)
		at := start.Add(time.Duration(i) * 700 * time.Millisecond)
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(f), Length: len(f)}, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	sink := &consumertest.MetricsSink{}
	r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); len(sink.AllMetrics()) < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within a minute")
		}
	}
	if err := r.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	const flow = "direction=forward,dst=10.0.0.2,flow=3"
	const shares = "fabric_csig_available_ratio,bound=lower," + flow
	const counts = "fabric_csig_packets_total," + flow + ",format=compact,locator=1,signal=share"
	const strangers = "fabric_csig_dropped_total,nic=a.pcap,reason=stranger"
	for i, want := range []map[string]float64{
		{shares + ",src=10.0.0.1": 0.56, counts + ",src=10.0.0.1": 2, strangers: 0},
		{counts + ",src=10.0.0.1": 2, strangers: 1},
		{shares + ",src=10.0.1.1": 0.56, counts + ",src=10.0.0.1": 2, counts + ",src=10.0.1.1": 1, strangers: 1},
	} {
		got, at := flatten(t, sink.AllMetrics()[i])
		if want := start.Add(time.Duration(i+1) * time.Second); !at.Equal(want) {
			t.Errorf("the metrics of second %d are of %v", i+1, at)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("second %d: %s is %v, want %v", i+1, k, got[k], v)
			}
		}
		for k := range got {
			if strings.HasPrefix(k, shares) && want[k] == 0 {
				t.Errorf("second %d has %s", i+1, k)
			}
		}
	}
}

// receive makes a receiver of the far interface in a function that runs in its namespace.
func receive(t *testing.T, c *Config, fn func(near int, sink *consumertest.MetricsSink)) {
	vethtest.Run(t, func(near, _ int) {
		c.Interfaces = []string{vethtest.Far}
		sink := &consumertest.MetricsSink{}
		r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, sink)
		if err != nil {
			t.Error(err)
			return
		}
		if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
			t.Error(err)
			return
		}
		fn(near, sink)
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestInterfaceBecomesMetrics checks that tagged frames of both formats that an interface receives are counted once, and have values.
func TestInterfaceBecomesMetrics(t *testing.T) {
	c := config(t)
	c.Interval = 100 * time.Millisecond
	receive(t, c, func(near int, sink *consumertest.MetricsSink) {
		from, err := unix.OpenPacket(0, 0, 64)
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		send := func(f []byte) {
			if err := from.Send(near, f); err != nil {
				t.Error(err)
			}
		}
		seen := map[string]float64{}
		own := frame(t, "10.0.0.1")
		sent := 0.0
		const data = "fabric_csig_packets_total,direction=forward,dst=h2/eth1,flow=data,format=wide,locator=3,signal=delay,src=h1/eth1"
		nic := func(s string) string { return strings.Replace(s, "%", "h2/"+vethtest.Far, 1) }
		ready := func() bool {
			return seen[lower] == 0.56 && seen[upper] == 0.6 && seen[packets] == sent && seen[data] == sent && seen[nic(stranger)] == sent &&
				seen[nic(captured)] == 3*sent
		}
		for end := time.Now().Add(time.Minute); !ready(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("not within a minute, of %v: %v", sent, seen)
				return
			}
			if sent < 300 {
				sent++
				send(own)
				send(wide(t))
				send(frame(t, "10.0.0.9"))
			}
			if all := sink.AllMetrics(); len(all) > 0 {
				values, _ := flatten(t, all[len(all)-1])
				maps.Copy(seen, values) // a value is there for a second; the counts are those of now
			}
		}
	})
}

// TestBadStarts checks that a start with what cannot be used fails, names the key or file, and can be followed by a shutdown.
func TestBadStarts(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		"interfaces[0]: nosuch0": func(c *Config) { c.Interfaces = []string{"nosuch0"} },
		"nosuch.yml":             func(c *Config) { c.Profile = "testdata/nosuch.yml" },
		"nosuch.yaml":            func(c *Config) { c.Topology = "testdata/nosuch.yaml" },
		"file: open":             func(c *Config) { c.Interfaces, c.File = nil, "testdata/nosuch.pcap" },
	} {
		c := config(t)
		c.Interfaces = []string{"lo"}
		change(c)
		r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, consumertest.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context(), componenttest.NewNopHost()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

var attributes = map[string]string{
	"address":   "Address of a switch.",
	"bound":     "lower: the value is at least this; upper: it is below this.",
	"direction": "forward (of probes and data) or reverse (of replies).",
	"dst":       "NIC at the far end of the flow.",
	"flow":      "Number of the flow, or data for packets that are no probes.",
	"format":    "Format of the tag: compact or wide.",
	"hash":      "Hash of the profile.",
	"locator":   "Locator in the tag; 0 means that no port replaced the value.",
	"nic":       "NIC, or file, at which frames were captured.",
	"port":      "Port. Of a port that is down, with the name of the switch and a colon before it.",
	"reason":    "Why tags are not used.",
	"signal":    "Signal of the tag: bandwidth, share, delay or queue.",
	"src":       "NIC that probes or sends.",
	"switch":    "Switch of the port.",
}

// TestMetadata checks that metadata.yaml describes the code; -update writes it.
func TestMetadata(t *testing.T) {
	var all []metadatatest.Family
	for _, f := range observe.Families() {
		all = append(all, metadatatest.Family{Name: f.Name, Help: f.Help, Counter: f.Counter, Labels: f.Labels})
	}
	slices.SortFunc(all, func(a, b metadatatest.Family) int { return strings.Compare(a.Name, b.Name) })
	metadatatest.CheckMetadata(t, NewFactory(), all, attributes, *update)
}
