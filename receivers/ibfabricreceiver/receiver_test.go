package ibfabricreceiver

import (
	"bytes"
	"context"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/exporters/ibfabric"
	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibmad/madsim"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
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
	want := ibagent.DefaultConfig()
	want.Name, want.Device, want.Interval, want.Listen, want.Redundancy = "s1", "ibsim:sim/h0", 2*time.Second, "10.0.0.1:9873", 2
	want.TLS = ibagent.TLS{CA: "ca.pem", Cert: "cert.pem", Key: "key.pem"}
	want.Metrics = []string{"PortCountersExtended", "PortXmitWait"}
	want.Assignments = map[string][]string{"s1": {"leaf1", "22#1-6"}}
	want.MKeyFile = "m_key"
	if !reflect.DeepEqual(c.Config, want) {
		t.Errorf("%+v\nwant %+v", c.Config, want)
	}
}

// TestTheFactoryOpensDevicesOfThisHost: a device that the host lacks is an error of the start, which names it.
func TestTheFactoryOpensDevicesOfThisHost(t *testing.T) {
	c := NewFactory().CreateDefaultConfig().(*Config)
	c.Name, c.Device, c.Listen = "s1", "none_0", "127.0.0.1:0"
	r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err == nil || !strings.Contains(err.Error(), "none_0") {
		t.Errorf("the start: %v", err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestBadConfigs checks that the error for each file contains the file's first line.
func TestBadConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) < 10 {
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

// running returns a receiver on a fabric in memory whose ports have been read twice.
func running(t *testing.T) (*ibReceiver, *Config, *consumertest.MetricsSink) {
	f := madsim.FatTree(2, 2, 2, madsim.Options{})
	f.SetVendor("spine0", madsim.QDR)
	f.SetVendor("spine1", madsim.DDR)
	f.SetCounter("leaf0", 1, ibmad.AttrPortCountersExtended, "PortXmitData", 0, 1<<40)
	f.SetCounter("leaf1", 1, ibmad.AttrPortCountersExtended, "SymbolErrorCounter", 0, 9)
	f.SetCounter("spine1", 1, ibmad.AttrPortCounters, "SymbolErrorCounter", 0, 65535)
	sink := &consumertest.MetricsSink{}
	c := NewFactory().CreateDefaultConfig().(*Config)
	c.Name, c.Interval, c.Timeout, c.Retries = "s", 200*time.Millisecond, 5*time.Millisecond, 0
	files := pkitest.New(t, "s")
	c.TLS = ibagent.TLS{CA: files.CA, Cert: files.Cert, Key: files.Key}
	open := func(string) (ibmad.Transport, error) { return f.AttachTransport("h0"), nil }
	r := newReceiver(receivertest.NewNopSettings(Type), c, sink, open)
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		rated := 0
		if all := sink.AllMetrics(); len(all) > 0 {
			for _, m := range flatten(t, all[len(all)-1]) {
				if strings.HasSuffix(m.family, "_port_receive_rate_bytes_per_second") {
					rated += len(m.points)
				}
			}
		}
		if rated == 2*(2+2)+2*2+4 {
			return r, c, sink
		}
		if time.Now().After(end) {
			t.Fatalf("%d ports have rates", rated)
		}
	}
}

type flat struct {
	family  string
	counter bool
	points  map[string]float64 // by labels
}

// flatten converts metrics to Prometheus, as exporters of the Collector do.
func flatten(t *testing.T, m pmetric.Metrics) map[string]flat {
	t.Helper()
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	out := map[string]flat{}
	list := m.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
	for i := range list.Len() {
		m := list.At(i)
		kind := otlptranslator.MetricType(otlptranslator.MetricTypeGauge)
		var points pmetric.NumberDataPointSlice
		if m.Type() == pmetric.MetricTypeSum {
			kind, points = otlptranslator.MetricTypeMonotonicCounter, m.Sum().DataPoints()
			if m.Sum().AggregationTemporality() != pmetric.AggregationTemporalityCumulative || !m.Sum().IsMonotonic() {
				t.Errorf("%s is not a counter", m.Name())
			}
		} else {
			points = m.Gauge().DataPoints()
		}
		name, err := namer.Build(otlptranslator.Metric{Name: m.Name(), Unit: m.Unit(), Type: kind})
		if err != nil {
			t.Fatal(err)
		}
		f := flat{name, kind == otlptranslator.MetricTypeMonotonicCounter, map[string]float64{}}
		for j := range points.Len() {
			p := points.At(j)
			var labels []string
			for k, v := range p.Attributes().All() {
				labels = append(labels, k+"="+v.Str())
			}
			slices.Sort(labels)
			f.points[strings.Join(labels, ",")] = p.DoubleValue()
			if p.Timestamp() == 0 || f.counter && (p.StartTimestamp() == 0 || p.StartTimestamp() > p.Timestamp()) {
				t.Errorf("%s: times %v to %v", name, p.StartTimestamp(), p.Timestamp())
			}
		}
		if _, twice := out[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		out[name] = f
	}
	return out
}

// TestPushedIsWhatIsScraped checks that an agent's points, by OTLP and back to Prometheus, are those of the
// exporter's collector.
func TestPushedIsWhatIsScraped(t *testing.T) {
	r, _, _ := running(t)
	if err := r.Shutdown(t.Context()); err != nil { // so that nothing is counted between the two
		t.Fatal(err)
	}
	now := time.Now()
	pushed := flatten(t, buildMetrics(r.Agent.CollectPoints(now), r.Agent.Expiries(), r.Began, now))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(ibfabric.NewCollector(r.Agent.(*ibagent.Agent), func() time.Time { return now }), certificates.NewCollector(r.Agent))
	scraped, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(scraped) != len(pushed) {
		t.Errorf("%d families are scraped and %d pushed", len(scraped), len(pushed))
	}
	for _, f := range scraped {
		p, ok := pushed[f.GetName()]
		if !ok || p.counter != (f.GetType() == dto.MetricType_COUNTER) || len(p.points) != len(f.Metric) {
			t.Errorf("%s, a %v with %d samples, is pushed as %d, counter %v", f.GetName(), f.GetType(), len(f.Metric), len(p.points), p.counter)
			continue
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			want := m.GetGauge().GetValue()
			if m.Counter != nil {
				want = m.Counter.GetValue()
			}
			if got, ok := p.points[strings.Join(labels, ",")]; !ok || got != want {
				t.Errorf("%s{%v} is %v scraped and %v pushed", f.GetName(), labels, want, got)
			}
		}
	}
	for name, want := range map[string]float64{
		"fabric_switch_port_transmit_bytes_total|port=1,switch=leaf0": 1 << 42,
		"fabric_switch_port_symbol_errors_total|port=1,switch=leaf1":  9,
		"fabric_switch_port_symbol_errors_total|port=1,switch=spine1": 65535,
	} {
		family, labels, _ := strings.Cut(name, "|")
		if got, ok := pushed[family].points[labels]; !ok || math.Abs(got-want) > 1e6*want/1e12 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	// Counters that vendors lack are absent.
	for family, there := range map[string]map[string]bool{
		"fabric_switch_port_transmit_unicast_packets_total": {"port=1,switch=leaf0": true, "port=1,switch=spine0": false, "port=1,switch=spine1": false},
		"fabric_switch_port_sl_receive_bytes_total":         {"port=1,sl=0,switch=leaf0": true, "port=1,sl=0,switch=spine0": false, "port=1,sl=0,switch=spine1": false},
		"fabric_switch_port_transmit_packets_total":         {"port=1,switch=leaf0": true, "port=1,switch=spine0": true, "port=1,switch=spine1": true},
	} {
		for labels, want := range there {
			if _, got := pushed[family].points[labels]; got != want {
				t.Errorf("%s{%s}: there %v, want %v", family, labels, got, want)
			}
		}
	}
}

// TestCertificates checks that the ends of the certificates in use are passed on, also those of files that are
// replaced. When files are removed, the old certificates remain in use.
func TestCertificates(t *testing.T) {
	r, config, sink := running(t)
	tls := &config.TLS
	files := pkitest.Files{CA: tls.CA, Cert: tls.Cert, Key: tls.Key}
	ends := func(what string) {
		t.Helper()
		want := map[string]float64{}
		for file, use := range map[string]string{tls.CA: pki.UseAuthority, tls.Cert: pki.UseCertificate} {
			labels, end := pkitest.Labels(t, file, use)
			want[labels] = end
		}
		var got map[string]float64
		for limit := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			all := sink.AllMetrics()
			if got = flatten(t, all[len(all)-1])[pki.ExpirySeries].points; maps.Equal(got, want) {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
		}
	}
	ends("at first")
	files.Renew(t)
	ends("replaced")
	if err := os.Remove(tls.CA); err != nil {
		t.Fatal(err)
	}
	if got := len(r.Agent.Expiries()); got != 2 {
		t.Errorf("%d certificates in use, want 2", got)
	}
}

var attributes = map[string]string{
	"counter": "Query and field of a counter.", "guid": "GUID of the node.", "kind": "Kind of error of a failed query.", "lane": "Physical lane.", "lid": "LID by which the port is queried.",
	"nic": "NIC, as node/device.", "port": "Number of the switch's port.", "reason": "Reason of the error or discard.", "remote": "Element at the other end of the cable.", "remote_lid": "LID at the other end.",
	"remote_port": "Port number at the other end.", "result": "Result.", "sampler": "Component id of a sampler.", "sl": "Service level.", "switch": "Name of the switch.",
	"vendor": "IEEE company id of the node.", "vl": "Virtual lane.",
	"description": "Description of the node.", "remote_description": "Description of the node at the other end.", "trap": "Number of the trap.",
}

// TestMetadata checks that metadata.yaml describes the code; -update writes it.
func TestMetadata(t *testing.T) {
	var all []metadatatest.Family
	for _, f := range ibagent.Families {
		all = append(all, metadatatest.Family{Name: f.Name, Help: f.Help, Counter: f.Counter, Labels: f.Labels})
	}
	metadatatest.CheckMetadata(t, NewFactory(), append(all, metadatatest.CertificateFamilies()...), attributes, *update)
}
