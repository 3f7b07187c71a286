package gnmireceiver

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/goleak"

	"github.com/graylink/graylink/internal/gnmi"
	"github.com/graylink/graylink/internal/gnmi/gnmitest"
	"github.com/graylink/graylink/internal/gnmi/preset"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
	"github.com/graylink/graylink/receivers/internal/metadatatest"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
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
	want := gnmi.DefaultConfig()
	want.Preset, want.Interval, want.Mode, want.Encoding, want.Queue, want.MaxSeries = "cumulus", 5*time.Second, "poll", "JSON", 64, 1000
	want.Targets = []gnmi.Target{{Address: "10.0.0.1:9339", Name: "leaf1"}, {Address: "leaf2.example:9339"}}
	want.TLS = gnmi.TLS{CA: "ca.pem", Cert: "cert.pem", Key: "key.pem", Server: "leaf"}
	want.UsernameFile, want.PasswordFile = "user", "password"
	want.Paths = []preset.UserPath{{Path: "/interfaces/interface[name={port}]/state/counters/in-ebp-pkts", Metric: "fabric_switch_port_ebp_packets_total", Type: "counter", Unit: "none"}}
	want.DialOut = gnmi.DialOut{Listen: "0.0.0.0:9340", TLS: gnmi.ServerTLS{Cert: "cert.pem", Key: "key.pem", ClientCA: "ca.pem"}, TokenFile: "token", ByAddress: true,
		Targets:    []gnmi.Caller{{ID: "leaf3.example", Name: "leaf3", Certificate: "agg1", Address: "10.0.0.0/8"}},
		MaxTargets: 10, MaxConnections: 20, MaxStreams: 30, MaxMessage: 4096}
	if !reflect.DeepEqual(c.Config, want) {
		t.Errorf("%+v\nwant %+v", c.Config, want)
	}
}

// TestBadConfigs checks that the error for each file contains the file's first line.
func TestBadConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) < 20 {
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

// TestExample checks that the receivers of deploy/otelcol/gnmi.yaml are valid.
func TestExample(t *testing.T) {
	m, err := confmaptest.LoadConf("../../deploy/otelcol/gnmi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := m.Sub("receivers")
	if err != nil {
		t.Fatal(err)
	}
	for name := range all.ToStringMap() {
		one, err := all.Sub(name)
		if err != nil {
			t.Fatal(err)
		}
		c := NewFactory().CreateDefaultConfig().(*Config)
		if err := one.Unmarshal(c); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if err := c.Validate(); err != nil || len(c.Targets) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// flatten converts metrics to Prometheus, as exporters of the Collector do.
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
		for j := range points.Len() {
			p := points.At(j)
			var labels []string
			for k, v := range p.Attributes().All() {
				labels = append(labels, k+"="+v.Str())
			}
			slices.Sort(labels)
			if p.Timestamp() == 0 || kind == otlptranslator.MetricTypeMonotonicCounter && (p.StartTimestamp() == 0 || p.StartTimestamp() > p.Timestamp()) {
				t.Errorf("%s: times %v to %v", name, p.StartTimestamp(), p.Timestamp())
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			if _, twice := out[key]; twice {
				t.Errorf("%s is there twice", key)
			}
			out[key] = p.DoubleValue()
		}
	}
	return out
}

// TestLifecycle checks that a started receiver passes on what the switch sent, under the names that a
// Prometheus would scrape and with the switch's time, and that nothing remains after Shutdown.
func TestLifecycle(t *testing.T) {
	defer goleak.VerifyNone(t)
	at := time.Now().Add(-2 * time.Second)
	sw, err := gnmitest.Start("sonic", gnmitest.ExampleState(at), gnmitest.Faults{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sw.Stop()
	c := NewFactory().CreateDefaultConfig().(*Config)
	c.Preset, c.Interval, c.TLS.Insecure, c.Targets = "sonic", time.Second, true, []gnmi.Target{{Address: sw.Address, Name: "leaf1"}}
	sink := &consumertest.MetricsSink{}
	r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Errorf("shut down before it was started: %v", err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"fabric_switch_port_pfc_receive_frames_total{port=Ethernet8,priority=3,switch=leaf1}":                                 1201,
		"fabric_switch_port_neighbor_info{port=Ethernet8,remote=spine1,remote_chassis=,remote_port=Ethernet1/7,switch=leaf1}": 1,
		"fabric_switch_port_oper_up{port=Ethernet8,switch=leaf1}":                                                             1,
		"graylink_gnmi_target_up{switch=leaf1}":                                                                               1,
		"graylink_gnmi_connects_total{switch=leaf1}":                                                                          1,
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		missing := "no metrics"
		if all := sink.AllMetrics(); len(all) > 0 {
			got := flatten(t, all[len(all)-1])
			missing = ""
			for k, v := range want {
				if x, ok := got[k]; !ok || x != v {
					missing += fmt.Sprintf("%s is %v, %v, want %v\n", k, x, ok, v)
				}
			}
		}
		if missing == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatal(missing)
		}
	}
	for range 2 {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestCertificates checks that the certificates of both directions are passed on, each once, as their files are
// at present.
func TestCertificates(t *testing.T) {
	own, callers := pkitest.New(t), pkitest.New(t)
	c := NewFactory().CreateDefaultConfig().(*Config)
	c.Interval, c.TLS = time.Second, gnmi.TLS{CA: own.CA, Cert: own.Cert, Key: own.Key}
	c.Targets = []gnmi.Target{{Address: "127.0.0.1:1", Name: "leaf1"}, {Address: "127.0.0.1:2", Name: "leaf2"}}
	c.DialOut.Listen, c.DialOut.TLS = "127.0.0.1:0", gnmi.ServerTLS{Cert: own.Cert, Key: own.Key, ClientCA: callers.CA}
	if err := c.Validate(); err != nil {
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
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	uses := map[string]string{own.CA: pki.UseAuthority, own.Cert: pki.UseCertificate, callers.CA: pki.UseAuthority}
	ends := func(what string) {
		t.Helper()
		want := map[string]float64{}
		for file, use := range uses {
			labels, end := pkitest.Labels(t, file, use)
			want[pki.ExpirySeries+"{"+labels+"}"] = end
		}
		var got map[string]float64
		for limit := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if all := sink.AllMetrics(); len(all) > 0 {
				got = flatten(t, all[len(all)-1])
				maps.DeleteFunc(got, func(series string, _ float64) bool { return !strings.HasPrefix(series, pki.ExpirySeries) })
				if maps.Equal(got, want) {
					return
				}
			}
			if time.Now().After(limit) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
		}
	}
	ends("at first")
	own.Renew(t)
	ends("replaced")
	if err := os.Remove(own.CA); err != nil {
		t.Fatal(err)
	}
	delete(uses, own.CA)
	ends("removed")
}

// TestNames checks that every family has a distinct name in OpenTelemetry, which converts back to its own.
func TestNames(t *testing.T) {
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	for _, f := range gnmi.PointFamilies() {
		name, unit := metricfamily.OTLPName(f.Name, f.Kind == preset.Counter)
		kind := otlptranslator.MetricType(otlptranslator.MetricTypeGauge)
		if f.Kind == preset.Counter {
			kind = otlptranslator.MetricTypeMonotonicCounter
		}
		if back, err := namer.Build(otlptranslator.Metric{Name: name, Unit: unit, Type: kind}); err != nil || back != f.Name {
			t.Errorf("%s is %s in %q, and that is %s (%v)", f.Name, name, unit, back, err)
		}
	}
}

var attributes = map[string]string{
	"address_family": "ipv4 or ipv6.", "protocol": "Origin of the routes, as the switch names it.", "vrf": "Network instance.",
	"class": "Class of the policer.", "cpu": "Index of the processor.", "kind": "Kind of error.", "lane": "Physical lane.", "port": "Name of the switch's port.", "priority": "Priority of IEEE 802.1Q.",
	"reason": "Reason of the error or discard.", "remote": "Name of the system at the other end of the cable.", "remote_chassis": "Chassis at the other end of the cable.", "remote_port": "Port at the other end of the cable.",
	"dscp_map": "Name of the map of DSCP to classes.", "queue_map": "Name of the map of classes to queues.", "pfc": "Priorities with PFC, as the switch has them.",
	"ecn_profile": "Profile by which the queue marks.", "profile": "Name of the profile.", "ecn": "What the profile marks, as the switch names it.",
	"min_threshold": "Queue length in octets from which packets are marked.", "max_threshold": "Queue length in octets from which all are.", "probability": "Share of marked packets at the upper threshold in percent.",
	"switch": "Name of the switch.", "tc": "Queue, as the switch names it.", "window": "Window of the maximum: since_clear, periodic, or minutes.",
}

// TestMetadata checks that metadata.yaml describes the code; -update writes it.
func TestMetadata(t *testing.T) {
	var all []metadatatest.Family
	for _, f := range gnmi.PointFamilies() {
		labels := f.Labels
		if gnmi.OfSwitch(f) {
			labels = append([]string{"switch"}, labels...)
		}
		all = append(all, metadatatest.Family{Name: f.Name, Help: f.Help, Counter: f.Kind == preset.Counter, Labels: labels})
	}
	metadatatest.CheckMetadata(t, NewFactory(), append(all, metadatatest.CertificateFamilies()...), attributes, *update)
}
