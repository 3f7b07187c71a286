package ufmreceiver

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
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

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
	"github.com/graylink/graylink/internal/ufm"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
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
	want := &Config{Endpoint: "https://ufm.example", Auth: Auth{TokenFile: "token"}, TLS: TLS{CAFile: "ca.pem", ServerName: "ufm"}, Interval: 20 * time.Second,
		InventoryInterval: 10 * time.Minute, Timezone: "Europe/Oslo", Remembered: 20_000, Subnet: "ib0", Optics: ufm.OpticsUnits{Power: "dBm", Bias: "mA"}, NumShards: 3, Shard: 2, Timeout: time.Minute, Retries: 1, MaxBody: 1 << 28,
		Telemetry: []Telemetry{{Endpoint: "http://ufm.example:9001", Path: "/csv/metrics", Interval: 30 * time.Second},
			{Endpoint: "http://ufm.example:9002", Path: "/csv/cset/converted_enterprise", Interval: 5 * time.Minute}},
		Columns: map[string]ufm.DeclaredColumn{"infiniband_CBW": {Metric: "congested_rate", Type: "gauge", Unit: "By/s", Scale: 1.25e8}}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v\nwant %+v", c, want)
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
		_, err = load(t, f)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", f, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: the error has the password: %v", f, err)
		}
	}
}

func TestFormats(t *testing.T) {
	for path, want := range map[string]ufm.Format{"/metrics": ufm.Prometheus, "/labels/metrics": ufm.Prometheus, "/cset/x": ufm.Prometheus, "/csv/metrics": ufm.CSV,
		"/csv/cset/converted_enterprise": ufm.CSV, "/labels/csv/metrics": ufm.CSV, "/json/metrics": ufm.JSON, "/labels/json/metrics": ufm.JSON} {
		if got := (&Telemetry{Path: path}).documentFormat(); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// flatten returns points by Prometheus name and labels, as values and times.
func flatten(t *testing.T, all []pmetric.Metrics) (map[string]float64, map[string]time.Time) {
	t.Helper()
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	out, at := map[string]float64{}, map[string]time.Time{}
	for _, metrics := range all {
		list := metrics.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
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
				p := points.At(j)
				var labels []string
				for k, v := range p.Attributes().All() {
					if k != "target" {
						labels = append(labels, k+"="+v.Str())
					}
				}
				slices.Sort(labels)
				key := name + "|" + strings.Join(labels, ",")
				out[key], at[key] = p.DoubleValue(), p.Timestamp().AsTime()
				if p.Timestamp() == 0 || m.Type() == pmetric.MetricTypeSum && (p.StartTimestamp() == 0 || p.StartTimestamp() > p.Timestamp()) {
					t.Errorf("%s: times %v to %v", key, p.StartTimestamp(), p.Timestamp())
				}
			}
		}
	}
	return out, at
}

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../internal/ufm/testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type event map[string]any

func old(id int, name string) event { // 6.12
	return event{"id": id, "name": name, "type": "352", "severity": "Info", "timestamp": "2017-09-19 10:49:03.018", "counter": nil, "object_name": "Grid"}
}

var codes = map[string]string{"MCast Group Deleted": "67", "Link is Down": "329"}

func recent(id int, name string) event { // 6.24
	return event{"id": id, "name": name, "type": "Site", "event_type": codes[name], "severity": "Warning", "timestamp": "2024-05-28 08:03:05", "counter": "N/A", "object_name": "default"}
}

// server returns a UFM with the documents of testdata.
func server(t *testing.T) *ufmtest.Server {
	s := ufmtest.New(t)
	for path, name := range map[string]string{"/resources/systems": "systems.json", "/resources/ports": "ports_rest.json", "/resources/links": "links.json"} {
		for _, base := range []string{"/ufmRest", "/ufmRestV2", "/ufmRestV3"} {
			s.SetBody(base+path, document(t, name))
		}
	}
	s.SetJSON("/app/ufm_version", map[string]string{"ufm_release_version": "6.24.1 build 5"})
	s.SetJSON("/app/events", []event{old(1, "Network Added"), recent(2, "MCast Group Deleted")})
	s.SetJSON("/app/alarms", []event{{"id": 1, "name": "Module status FAULT", "severity": "Critical", "related_object_path": "default / Switch: leaf1", "event_type": 394}})
	s.SetJSON("/app/unhealthy_ports", []event{{"UnhealthyGUID": "ec0d9a0300d42e54", "UnhealthyPortNumber": 1, "Condition": []string{"MANUAL"}},
		{"UnhealthyGUID": "2c90300f172a0", "UnhealthyPortNumber": "3", "Condition": "FLAPPING"}, {"UnhealthyGUID": "77", "UnhealthyPortNumber": 1}, {"UnhealthyGUID": "?"}})
	s.SetJSON("/resources/vports", []event{
		{"virtual_port_state": "Active", "port_guid": "ec0d9a0300d42e54", "physical_port_number": 1, "virtual_port_guid": "0002c90000000017"},
		{"virtual_port_state": "Active", "port_guid": "0xec0d9a0300d42e54", "physical_port_number": "1", "virtual_port_guid": "0002c90000000018"},
		{"virtual_port_state": "Down", "port_guid": "ec0d9a0300d42e54", "physical_port_number": 1}, {"virtual_port_state": "Odd", "port_guid": "ec0d9a0300d42e54", "physical_port_number": 1},
		{"virtual_port_state": "Active", "port_guid": "77", "physical_port_number": 1}, {"virtual_port_state": "Active"}})
	s.SetJSON("/jobs", []event{{"ID": "1", "Status": "Completed"}, {"ID": "2", "Status": "Completed With Errors"}, {"ID": "3", "Status": "Completed"}, {"ID": "4", "Status": "Paused"}})
	s.SetBody("/csv/metrics", document(t, "ports.csv"))
	return s
}

// ways returns configurations for the three ways of authentication.
func ways(s *ufmtest.Server) map[string]Auth {
	return map[string]Auth{
		"basic":       {UsernameFile: s.UserFile, PasswordFile: s.PasswordFile},
		"token":       {TokenFile: s.TokenFile},
		"certificate": {CertFile: s.CertFile, KeyFile: s.KeyFile},
	}
}

func configure(s *ufmtest.Server) *Config {
	c := defaultConfig()
	c.Endpoint, c.TLS.CAFile, c.Auth = s.URL, s.CAFile, ways(s)["token"]
	c.Subnet, c.Optics = "ib0", ufm.OpticsUnits{Power: "mW"}
	c.Interval, c.InventoryInterval, c.Timeout, c.Retries = 100*time.Millisecond, 100*time.Millisecond, 5*time.Second, 0
	c.Telemetry = []Telemetry{{Endpoint: s.URL, Path: "/csv/metrics", Interval: 100 * time.Millisecond, TLS: TLS{CAFile: s.CAFile}}}
	return c
}

func start(t *testing.T, c *Config) *consumertest.MetricsSink {
	t.Helper()
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
	return sink
}

func until(t *testing.T, sink *consumertest.MetricsSink, what string, ok func(map[string]float64) bool) map[string]float64 {
	t.Helper()
	var got map[string]float64
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if got, _ = flatten(t, sink.AllMetrics()); ok(got) {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s: %v", what, got)
		}
	}
}

// TestReads checks all series, by each way of authentication.
func TestReads(t *testing.T) {
	s := server(t)
	for way, auth := range ways(s) {
		t.Run(way, func(t *testing.T) {
			c := configure(s)
			c.Auth = auth
			sink := start(t, c)
			got := until(t, sink, "ports have names", func(m map[string]float64) bool {
				_, there := m["fabric_switch_port_transmit_bytes_total|port=1,switch=leaf1"]
				_, rest := m["fabric_ufm_info|version=6.24.1 build 5"]
				return there && rest
			})
			for key, want := range map[string]float64{
				"fabric_switch_port_transmit_bytes_total|port=1,switch=leaf1":                                                              4 * 85554128244,
				"fabric_nic_port_receive_errors_total|nic=r-ufm59/mlx5_0,reason=damaged":                                                   1,
				"fabric_nic_module_temperature_celsius|nic=r-ufm59/mlx5_0":                                                                 51,
				"fabric_switch_port_module_receive_power_watts|lane=1,port=1,switch=leaf1":                                                 0.9512e-3,
				"fabric_switch_port_post_fec_ber_ratio|port=2,switch=leaf1":                                                                3e-12,
				"fabric_switch_port_resets_total|port=1,switch=leaf1":                                                                      0,
				"fabric_switch_port_oper_up|port=3,switch=leaf1":                                                                           0,
				"fabric_switch_port_speed_bytes_per_second|port=2,switch=leaf1":                                                            50e9,
				"fabric_nic_port_unhealthy_info|condition=MANUAL,nic=r-ufm59/mlx5_0":                                                       1,
				"fabric_switch_port_unhealthy_info|condition=FLAPPING,port=3,switch=leaf1":                                                 1,
				"fabric_ufm_events_total|event=Network Added,severity=Info":                                                                0,
				"fabric_ufm_events_total|event=MCast Group Deleted,severity=Warning":                                                       0,
				"fabric_ufm_alarms|alarm=Module status FAULT,object=default / Switch: leaf1,severity=Critical":                             1,
				"fabric_switch_port_neighbor_info|port=1,remote=r-ufm59,remote_chassis=0xec0d9a0300d42e54,remote_port=mlx5_0,switch=leaf1": 1,
				"fabric_switch_port_neighbor_info|port=2,remote=spine1,remote_chassis=0x0002c90300aa0000,remote_port=1,switch=leaf1":       1,
				"fabric_switch_port_neighbor_info|port=1,remote=leaf1,remote_chassis=0x0002c90300f172a0,remote_port=2,switch=spine1":       1,
				"fabric_switch_port_expected_speed_bytes_per_second|port=1,switch=leaf1":                                                   25e9,
				"fabric_nic_port_expected_lanes|nic=r-ufm59/mlx5_0":                                                                        4,
				"fabric_switch_port_lanes|port=2,switch=leaf1":                                                                             4,
				"fabric_nic_port_virtual_ports|nic=r-ufm59/mlx5_0,state=active":                                                            2,
				"fabric_nic_port_virtual_ports|nic=r-ufm59/mlx5_0,state=other":                                                             1,
				"fabric_ufm_jobs|state=completed":                                                                                          2,
				"fabric_ufm_jobs|state=completed_with_errors":                                                                              1,
				"fabric_ufm_jobs|state=running":                                                                                            0,
				"fabric_ufm_jobs|state=other":                                                                                              1,
				"fabric_subnet_changes_total|reason=sm_failover,subnet=ib0":                                                                0,
				"graylink_ufm_up|":                   1,
				"graylink_ufm_unknown_columns|":      1,
				"graylink_ufm_errors_total|kind=tls": 0,
			} {
				if v, there := got[key]; !there || math.Abs(v-want) > 1e-9*want {
					t.Errorf("%s is %v, %v, want %v", key, v, there, want)
				}
			}
			for key := range got { // rule 3
				for _, none := range []string{"fabric_switch_port_receive_errors_total|port=2", "fabric_switch_port_module_temperature_celsius|port=2", "fabric_switch_port_speed_bytes_per_second|port=3",
					"fabric_switch_port_lanes|port=3", "fabric_switch_port_expected_lanes|port=3", "fabric_switch_port_expected_lanes|port=2", "fabric_switch_port_neighbor_info|port=3"} {
					if strings.HasPrefix(key, none) {
						t.Errorf("%s is there", key)
					}
				}
			}
			_, at := flatten(t, sink.AllMetrics())
			if got := at["fabric_switch_port_transmit_bytes_total|port=1,switch=leaf1"]; !got.Equal(time.UnixMicro(1709652347161873)) {
				t.Errorf("the sample's time is %v", got)
			}
		})
	}
}

// TestEventsAreCountedOnce covers failures, an empty list and repetitions.
func TestEventsAreCountedOnce(t *testing.T) {
	s := server(t)
	c := configure(s)
	c.Telemetry = nil
	sink := start(t, c)
	key := "fabric_ufm_events_total|event=Link is Down,severity=Warning"
	until(t, sink, "the first list", func(m map[string]float64) bool {
		_, there := m["fabric_ufm_events_total|event=Network Added,severity=Info"]
		return there
	})
	all := []event{old(1, "Network Added"), recent(2, "MCast Group Deleted"), recent(3, "Link is Down")}
	s.SetJSON("/app/events", all)
	until(t, sink, "a new event", func(m map[string]float64) bool { return m[key] == 1 })
	s.SetFault("/ufmRestV3/app/events", &ufmtest.Fault{Cut: 40, Times: 2})
	until(t, sink, "half a list is reported", func(m map[string]float64) bool { return m["graylink_ufm_errors_total|kind=truncated"] >= 2 })
	s.SetJSON("/app/events", []event{})
	asked := len(s.RequestURIs())
	until(t, sink, "an empty list was read", func(map[string]float64) bool {
		n := 0
		for _, a := range s.RequestURIs()[asked:] {
			if strings.HasSuffix(a, "/app/events") {
				n++
			}
		}
		return n > 2
	})
	s.SetJSON("/app/events", append(all, recent(4, "Link is Down"), recent(4, "Link is Down")))
	got := until(t, sink, "one more", func(m map[string]float64) bool { return m[key] >= 2 })
	if got[key] != 2 || got["fabric_ufm_events_total|event=Network Added,severity=Info"] != 0 {
		t.Errorf("%v events, and %v of those from before", got[key], got["fabric_ufm_events_total|event=Network Added,severity=Info"])
	}
}

// TestFaults checks that each fault is counted under its kind, and that reading continues when it is gone.
func TestFaults(t *testing.T) {
	for _, x := range []struct {
		path  string
		fault ufmtest.Fault
		kind  ufm.Kind
	}{
		{"/csv/metrics", ufmtest.Fault{Cut: 500}, ufm.KindTruncated},
		{"/csv/metrics", ufmtest.Fault{Cut: 500, Reset: true}, ufm.KindTruncated},
		{"/csv/metrics", ufmtest.Fault{Status: 503}, ufm.KindStatus},
		{"/csv/metrics", ufmtest.Fault{Status: 401}, ufm.KindUnauthorized},
		{"/csv/metrics", ufmtest.Fault{Location: "https://elsewhere.invalid/"}, ufm.KindRedirect},
		{"/csv/metrics", ufmtest.Fault{Hang: true}, ufm.KindTimeout},
		{"/csv/metrics", ufmtest.Fault{Drip: 500}, ufm.KindTimeout},
		{"/csv/metrics", ufmtest.Fault{Status: 429, RetryAfter: "3600"}, ufm.KindStatus},
		{"/csv/metrics", ufmtest.Fault{Type: "text/html"}, ufm.KindMalformed},
		{"/csv/metrics", ufmtest.Fault{Gzip: true, Cut: 200}, ufm.KindTruncated},
		{"/csv/metrics", ufmtest.Fault{Gzip: true, Spoil: true}, ufm.KindMalformed},
		{"/ufmRestV3/app/events", ufmtest.Fault{Cut: 40}, ufm.KindTruncated},
		{"/ufmRestV3/app/events", ufmtest.Fault{Type: "text/html"}, ufm.KindMalformed},
		{"/ufmRestV3/jobs", ufmtest.Fault{Cut: 20, Reset: true}, ufm.KindTruncated},
		{"/ufmRestV3/resources/ports", ufmtest.Fault{Cut: 100}, ufm.KindTruncated},
		{"/ufmRestV3/app/alarms", ufmtest.Fault{Status: 403}, ufm.KindUnauthorized},
	} {
		t.Run(fmt.Sprintf("%s %+v", x.path, x.fault), func(t *testing.T) {
			s := server(t)
			s.SetFault(x.path, &x.fault)
			c := configure(s)
			if x.fault.Hang || x.fault.Drip > 0 {
				c.Timeout = 50 * time.Millisecond
			}
			if strings.HasPrefix(x.path, "/ufmRest") {
				c.Telemetry = nil
			} else {
				c.Endpoint, c.Auth, c.TLS = "", Auth{}, TLS{}
			}
			sink := start(t, c)
			until(t, sink, "the fault is reported", func(m map[string]float64) bool {
				return m["graylink_ufm_up|"] == 0 && m["graylink_ufm_errors_total|kind="+string(x.kind)] > 0
			})
			if x.fault.Hang || x.fault.Drip > 0 {
				return // a slow machine may need more than the short timeout
			}
			s.SetFault(x.path, nil)
			until(t, sink, "it is up again", func(m map[string]float64) bool { return m["graylink_ufm_up|"] == 1 })
		})
	}
}

// TestShards checks that three receivers have all ports, each once.
func TestShards(t *testing.T) {
	s := ufmtest.New(t)
	var b bytes.Buffer
	f := ufmtest.Fabric{Switches: 9, Ports: 4, Counters: ufmtest.CounterNames(2), At: 1709652347161873}
	f.WriteCSV(&b)
	csv := strings.Replace(b.String(), ",tag,", ",device_type,", 1)
	csv = strings.ReplaceAll(strings.Replace(csv, "source_id", "device_name", 1), ",,", ",switch,")
	s.SetBody("/csv/metrics", csv)
	seen := map[string]int{}
	for shard := range 3 {
		c := configure(s)
		c.Endpoint, c.Auth, c.TLS = "", Auth{}, TLS{}
		c.NumShards, c.Shard = 3, shard
		sink := start(t, c)
		m := until(t, sink, "samples", func(m map[string]float64) bool { return m["graylink_ufm_samples_total|"] > 0 })
		for key := range m {
			if strings.HasPrefix(key, "fabric_switch_port_transmit_bytes_total") {
				seen[key]++
			}
		}
	}
	for key, n := range seen {
		if n != 1 {
			t.Errorf("%s is read by %d", key, n)
		}
	}
	if len(seen) != 9*4 {
		t.Errorf("%d of %d ports", len(seen), 9*4)
	}
	if !slices.Contains(s.RequestURIs(), "/csv/metrics?num_shards=3&shard=2&sharding_field=port_guid") {
		t.Errorf("asked: %v", s.RequestURIs()[:3])
	}
}

// TestLifecycle covers Shutdown without Start, and a Start that fails.
func TestLifecycle(t *testing.T) {
	make := func(c *Config) *ufmReceiver {
		r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, &consumertest.MetricsSink{})
		if err != nil {
			t.Fatal(err)
		}
		return r.(*ufmReceiver)
	}
	if err := make(defaultConfig()).Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	c := configure(ufmtest.New(t))
	c.TLS.CAFile = "testdata/config.yaml"
	r := make(c)
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err == nil || !strings.Contains(err.Error(), "ca_file") {
		t.Errorf("%v", err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

var attributes = map[string]string{
	"alarm": "Name of the alarm.", "condition": "Reason why the port is considered unhealthy.", "event": "Type of the event, by UFM's table of types; other if the table does not have it.", "kind": "Kind of error.",
	"lane": "Lane of the module, from 1, or of the port, from 0.", "mode": "Name or number of the error correction.", "nic": "NIC, as node/device.",
	"object": "Object of the alarm, as UFM names it.", "port": "Number of the switch's port.", "reason": "Reason of the error, discard or change.", "severity": "Severity by UFM.", "state": "State of a virtual port, or of a job.",
	"remote": "Name of the switch or node at the other end.", "remote_chassis": "GUID of the port's node at the other end.", "remote_port": "Number of the switch's port, or device of the NIC, at the other end.",
	"subnet": "Subnet as configured; otherwise UFM's host.",
	"stage":  "Where errors are counted: raw, before correction; effective, behind error correction; symbol, behind all corrections.",
	"switch": "Name of the switch.", "target": "Service that is read: host and path.", "version": "Version of UFM.", "vl": "Virtual lane.",
}

// TestCertificates checks that the certificates of UFM and of a telemetry service are passed on, each once
// though both have one file of authorities, and as the files are at present.
func TestCertificates(t *testing.T) {
	s := server(t)
	c := configure(s)
	c.Auth = ways(s)["certificate"]
	other := pkitest.New(t)
	c.Telemetry = append(c.Telemetry, Telemetry{Endpoint: "https://127.0.0.1:1", Path: "/csv/metrics", Interval: 100 * time.Millisecond, TLS: TLS{CAFile: other.CA}})
	sink := start(t, c)
	uses := map[string]string{s.CAFile: pki.UseAuthority, s.CertFile: pki.UseCertificate, other.CA: pki.UseAuthority}
	ends := func(what string) {
		t.Helper()
		want := map[string]float64{}
		for file, use := range uses {
			labels, end := pkitest.Labels(t, file, use)
			want[pki.ExpirySeries+"|"+labels] = end
		}
		var got map[string]float64
		for limit := time.Now().Add(30 * time.Second); ; {
			all := sink.AllMetrics()
			sink.Reset()
			for _, m := range all {
				batch, _ := flatten(t, []pmetric.Metrics{m})
				maps.DeleteFunc(batch, func(series string, _ float64) bool { return !strings.HasPrefix(series, pki.ExpirySeries) })
				if len(batch) == 0 {
					continue
				}
				list := m.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
				for i := range list.Len() {
					if x := list.At(i); x.Name() == "graylink.certificate.expiry_timestamp" && x.Gauge().DataPoints().Len() != len(batch) {
						t.Fatalf("%s: a certificate is there twice", what)
					}
				}
				if got = batch; maps.Equal(got, want) {
					return
				}
			}
			if time.Now().After(limit) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	ends("at first")
	other.Renew(t)
	ends("replaced")
	if err := os.Remove(other.CA); err != nil {
		t.Fatal(err)
	}
	delete(uses, other.CA)
	ends("removed")
}

// TestMetadata checks that metadata.yaml describes the code; -update writes it.
func TestMetadata(t *testing.T) {
	table, err := ufm.NewTable(nil, ufm.OpticsUnits{Power: "mW", Bias: "mA"})
	if err != nil {
		t.Fatal(err)
	}
	families := slices.Clone(ownFamilies)
	for _, m := range table.Metrics() {
		families = append(families, columnFamily(m, false), columnFamily(m, true))
	}
	var all []metadatatest.Family
	for _, f := range families {
		all = append(all, metadatatest.Family{Name: f.name, Help: f.help, Counter: f.counter, Labels: f.labels})
	}
	metadatatest.CheckMetadata(t, NewFactory(), append(all, metadatatest.CertificateFamilies()...), attributes, *update)
}
