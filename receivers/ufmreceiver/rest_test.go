package ufmreceiver

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/graylink/graylink/internal/ufm"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
)

// reader returns a reader of a REST interface that reads when it is called.
func reader(t *testing.T, c *Config, metrics consumer.Metrics, logs consumer.Logs) *restReader {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	r := &ufmReceiver{config: c, settings: receivertest.NewNopSettings(Type), metrics: metrics, logs: logs, ended: func() {}, log: slog.New(slog.DiscardHandler), began: time.Now()}
	p, err := r.newRESTReader()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// takeRecords removes and returns the log records of a sink as text: name, severity, text, time, and all attributes
// but the target.
func takeRecords(sink *consumertest.LogsSink) (out []string) {
	for _, l := range sink.AllLogs() {
		list := l.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords()
		for i := range list.Len() {
			r := list.At(i)
			var attributes []string
			for k, v := range r.Attributes().All() {
				if k != "target" {
					attributes = append(attributes, k+"="+v.Str())
				}
			}
			slices.Sort(attributes)
			at := "-"
			if r.Timestamp() != 0 {
				at = r.Timestamp().AsTime().Format(time.RFC3339Nano)
			}
			out = append(out, fmt.Sprintf("%s %d/%s %q %s %s", r.EventName(), r.SeverityNumber(), r.SeverityText(), r.Body().Str(), at, strings.Join(attributes, " ")))
		}
	}
	sink.Reset()
	return out
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// restOnly returns a configuration without telemetry.
func restOnly(s *ufmtest.Server) *Config {
	c := configure(s)
	c.Telemetry, c.Timezone = nil, "Europe/Oslo"
	return c
}

// TestRecords checks the log records of events and alarms of both shapes.
func TestRecords(t *testing.T) {
	s := server(t)
	sink := &consumertest.LogsSink{}
	p := reader(t, restOnly(s), nil, sink)
	if err := p.readDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "the first list has no new events, and open alarms", takeRecords(sink),
		`ufm.alarm 18/Critical "Module status FAULT" - subnet=ib0 ufm.id=1 ufm.kind=Module status FAULT ufm.name=Module status FAULT ufm.path=default / Switch: leaf1 ufm.type=394`)
	s.SetJSON("/app/events", []event{old(1, "Network Added"), recent(2, "MCast Group Deleted"),
		{"id": 9, "name": "Critical BER reported", "type": "IBPort", "event_type": "915", "severity": "Critical", "timestamp": "2024-05-28 08:03:07", "counter": "N/A", "category": "Hardware",
			"object_name": "0002c90300f172a0_2", "object_path": "Switch: leaf1 / 2", "description": "Effective BER Error on Port"},
		{"id": 8, "name": "Link is Down", "type": "329", "severity": "Warning", "timestamp": "2017-09-19 10:49:03.018", "object_name": "ec0d9a0300d42e54_1", "description": "Link went down: x"},
		{"id": 10, "name": "Something new", "event_type": "77777", "type": "Site", "severity": "Odd", "object_name": "248a0703008a850a"}})
	s.SetJSON("/app/alarms", []event{
		{"id": 2, "type": "IBPort", "name": "Link HW Error", "description": "Link Downed", "event_type": 112, "reason": "Threshold is 0.", "severity": "Minor", "timestamp": "2024-05-27 08:18:51",
			"object_name": "b8599f03000a7768_1", "object_path": "Computer: r-ufm77 / mlx5_0"}})
	if err := p.readDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "the second list", takeRecords(sink),
		`ufm.event 0/Odd "Something new" - guid=0x248a0703008a850a subnet=ib0 ufm.id=10 ufm.kind=other ufm.name=Something new ufm.object=248a0703008a850a ufm.object_type=Site ufm.type=77777`,
		`ufm.event 13/Warning "Link went down: x" 2017-09-19T08:49:03.018Z change=link_down guid=0xec0d9a0300d42e54 nic=r-ufm59/mlx5_0 subnet=ib0 ufm.id=8 ufm.kind=Link is Down ufm.name=Link is Down ufm.object=ec0d9a0300d42e54_1 ufm.type=329`,
		`ufm.event 18/Critical "Effective BER Error on Port" 2024-05-28T06:03:07Z guid=0x0002c90300f172a0 port=2 subnet=ib0 switch=leaf1 ufm.category=Hardware ufm.id=9 ufm.kind=Critical BER reported ufm.name=Critical BER reported ufm.object=0002c90300f172a0_2 ufm.object_type=IBPort ufm.path=Switch: leaf1 / 2 ufm.type=915`,
		`ufm.alarm.over 9/Info "Module status FAULT" - subnet=ib0 ufm.id=1 ufm.kind=Module status FAULT ufm.name=Module status FAULT ufm.path=default / Switch: leaf1 ufm.type=394`,
		`ufm.alarm 14/Minor "Threshold is 0." 2024-05-27T06:18:51Z guid=0xb8599f03000a7768 port=1 subnet=ib0 ufm.id=2 ufm.kind=Link Downed ufm.name=Link HW Error ufm.object=b8599f03000a7768_1 ufm.path=Computer: r-ufm77 / mlx5_0 ufm.type=112`)
	if err := p.readDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "the third list is the second", takeRecords(sink))
	if *p.target.records != 6 {
		t.Errorf("%d records are counted", *p.target.records)
	}
}

// TestRestart checks that after a restart, events reported before are not reported again, and events since then
// are, as are those of a standby that took over and numbers from 1.
func TestRestart(t *testing.T) {
	s := server(t)
	c := restOnly(s)
	c.StateFile = filepath.Join(t.TempDir(), "ufm.json")
	names := func(sink *consumertest.LogsSink) (out []string) {
		for _, l := range takeRecords(sink) {
			_, rest, _ := strings.Cut(l, "ufm.id=")
			id, _, _ := strings.Cut(rest, " ")
			name, _, _ := strings.Cut(l, " ")
			out = append(out, name+" "+id)
		}
		return out
	}
	run := func() (*consumertest.LogsSink, *restReader) {
		sink := &consumertest.LogsSink{}
		p := reader(t, c, nil, sink)
		if err := p.readDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		return sink, p
	}
	sink, _ := run()
	same(t, "the first run", names(sink), "ufm.alarm 1")
	sink, _ = run()
	same(t, "another, with nothing new", names(sink))
	all := []event{old(1, "Network Added"), recent(2, "MCast Group Deleted"), recent(3, "Link is Down")}
	s.SetJSON("/app/events", all)
	s.SetJSON("/app/alarms", []event{})
	sink, p := run()
	same(t, "what came in between", names(sink), "ufm.event 3", "ufm.alarm.over 1")
	standby := recent(1, "Link is Down")
	standby["timestamp"] = "2024-05-29 00:00:00"
	s.SetJSON("/app/events", []event{standby})
	if err := p.readDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "a standby's", names(sink), "ufm.event 1")
	s.SetJSON("/app/events", append(all, standby))
	sink, _ = run()
	same(t, "both lists, after another restart", names(sink))

	other := *c
	other.Endpoint = strings.Replace(c.Endpoint, "127.0.0.1", "localhost", 1)
	r := &ufmReceiver{config: &other, log: slog.New(slog.DiscardHandler)}
	if _, err := r.newRESTReader(); !errors.Is(err, ufm.ErrOtherUFM) || !strings.Contains(err.Error(), c.StateFile) {
		t.Errorf("another UFM's file: %v", err)
	}
	if err := os.WriteFile(c.StateFile, []byte(`{"version":1,"ufm"`), 0o600); err != nil {
		t.Fatal(err)
	}
	sink, p = run()
	same(t, "half a state file is none", names(sink))
	if p.target.errors[ufm.KindState] != 1 {
		t.Errorf("errors %v", p.target.errors)
	}
	sink, _ = run()
	same(t, "it was replaced", names(sink))
}

// refusing is a consumer that refuses.
type refusing struct {
	consumertest.LogsSink
	err error
}

func (r *refusing) ConsumeLogs(ctx context.Context, l plog.Logs) error {
	if r.err != nil {
		return r.err
	}
	return r.LogsSink.ConsumeLogs(ctx, l)
}

// TestRefusedRecords checks that records that are refused for now are passed on later and once, and records
// that are refused for good never. Both are counted, and the series of events do not wait.
func TestRefusedRecords(t *testing.T) {
	for name, x := range map[string]struct {
		err  error
		want int
	}{"for now": {errors.New("queue is full"), 1}, "for good": {consumererror.NewPermanent(errors.New("no")), 0}} {
		t.Run(name, func(t *testing.T) {
			s := server(t)
			s.SetJSON("/app/alarms", []event{})
			c := restOnly(s)
			c.StateFile = filepath.Join(t.TempDir(), "ufm.json")
			sink, metrics := &refusing{}, &consumertest.MetricsSink{}
			p := reader(t, c, metrics, sink)
			if err := p.readDue(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.SetJSON("/app/events", []event{old(1, "Network Added"), recent(2, "MCast Group Deleted"), recent(3, "Link is Down")})
			sink.err = x.err
			if err := p.readDue(t.Context()); ufm.KindOf(err) != ufm.KindConsumer {
				t.Errorf("refused: %v", err)
			}
			if m, _ := flatten(t, metrics.AllMetrics()); m["fabric_ufm_events_total|event=Link is Down,severity=Warning"] != 1 || m["fabric_subnet_changes_total|reason=link_down,subnet=ib0"] != 1 {
				t.Errorf("the series wait: %v", m)
			}
			sink.err = nil
			again := reader(t, c, nil, sink) // as after a crash
			for range 2 {
				if err := again.readDue(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if n := sink.LogRecordCount(); n != x.want {
				t.Errorf("%d records, want %d", n, x.want)
			}
		})
	}
}

// TestStateThatCannotBeKept checks that a state that cannot be saved is an error every time, and that new
// events are still reported.
func TestStateThatCannotBeKept(t *testing.T) {
	s := server(t)
	c := restOnly(s)
	c.StateFile = filepath.Join(t.TempDir(), "none", "ufm.json")
	r := &ufmReceiver{config: c, log: slog.New(slog.DiscardHandler)}
	if _, err := r.newRESTReader(); err == nil || !strings.Contains(err.Error(), "state file") {
		t.Errorf("no folder: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.StateFile = filepath.Join(dir, "ufm.json")
	sink := &consumertest.LogsSink{}
	p := reader(t, c, nil, sink)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := p.readDue(t.Context()); ufm.KindOf(err) != ufm.KindState || !strings.Contains(err.Error(), "state file") {
		t.Errorf("%v", err)
	}
	if sink.LogRecordCount() != 1 {
		t.Errorf("%d records", sink.LogRecordCount())
	}
}

// TestSharedReceiver checks that both signals share one receiver that reads once and ends once, in any order,
// and that a configuration that is used again has another receiver.
func TestSharedReceiver(t *testing.T) {
	for _, logsFirst := range []bool{false, true} {
		t.Run(fmt.Sprint(logsFirst), func(t *testing.T) {
			s := server(t)
			c := configure(s)
			c.Interval, c.InventoryInterval = time.Hour, time.Hour // one reading
			f := NewFactory()
			metrics, logs := &consumertest.MetricsSink{}, &consumertest.LogsSink{}
			m, err1 := f.CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, metrics)
			l, err2 := f.CreateLogs(t.Context(), receivertest.NewNopSettings(Type), c, logs)
			if err := errors.Join(err1, err2); err != nil || m.(*ufmReceiver) != l.(*ufmReceiver) {
				t.Fatalf("%p, %p, %v", m, l, err)
			}
			if logsFirst {
				m, l = l, m
			}
			if err := errors.Join(m.Start(t.Context(), componenttest.NewNopHost()), l.Start(t.Context(), componenttest.NewNopHost())); err != nil {
				t.Fatal(err)
			}
			until(t, metrics, "both targets are up", func(m map[string]float64) bool {
				return m["fabric_ufm_info|version=6.24.1 build 5"] == 1 && m["graylink_ufm_log_records_total|"] == 1 && m["graylink_ufm_samples_total|"] > 0
			})
			if err := errors.Join(m.Shutdown(t.Context()), l.Shutdown(t.Context()), l.Shutdown(t.Context())); err != nil {
				t.Fatal(err)
			}
			if logs.LogRecordCount() != 1 {
				t.Errorf("%d records", logs.LogRecordCount())
			}
			n := 0
			for _, a := range s.RequestURIs() {
				if strings.HasSuffix(a, "/app/events") {
					n++
				}
			}
			if n != 1 {
				t.Errorf("events were asked for %d times: %v", n, s.RequestURIs())
			}
			again, err := f.CreateMetrics(t.Context(), receivertest.NewNopSettings(Type), c, metrics)
			if err != nil || again == m {
				t.Errorf("the receiver that ended is there again: %v", err)
			}
			if err := again.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOneSignal checks that logs alone read no telemetry, and that configurations that cannot produce logs are
// refused.
func TestOneSignal(t *testing.T) {
	s := server(t)
	c := configure(s)
	c.Interval, c.InventoryInterval = time.Hour, time.Hour
	logs := &consumertest.LogsSink{}
	r, err := NewFactory().CreateLogs(t.Context(), receivertest.NewNopSettings(Type), c, logs)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); logs.LogRecordCount() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no record within 30 s")
		}
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range s.RequestURIs() {
		if strings.HasPrefix(a, "/csv") || strings.HasSuffix(a, "/jobs") {
			t.Errorf("asked: %s", a)
		}
	}
	for want, change := range map[string]func(*Config){
		"endpoint:": func(c *Config) { c.Endpoint, c.Auth = "", Auth{} }, "shard:": func(c *Config) { c.NumShards, c.Shard = 2, 1 },
	} {
		c := configure(s)
		change(c)
		if _, err := NewFactory().CreateLogs(t.Context(), receivertest.NewNopSettings(Type), c, logs); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestManyEvents checks that 5,000 new events are passed on in parts, each once, the oldest first.
func TestManyEvents(t *testing.T) {
	s := server(t)
	s.SetJSON("/app/alarms", []event{})
	sink := &consumertest.LogsSink{}
	p := reader(t, restOnly(s), nil, sink)
	if err := p.readDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all []event
	for i := range 5000 {
		e := recent(i+10, "Link is Down")
		e["timestamp"] = time.Unix(int64(1_700_000_000+10_000-i), 0).UTC().Format(time.DateTime)
		all = append(all, e)
	}
	s.SetJSON("/app/events", all)
	for range 2 {
		if err := p.readDue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(sink.AllLogs()) != 5 || sink.LogRecordCount() != 5000 {
		t.Errorf("%d records in %d parts", sink.LogRecordCount(), len(sink.AllLogs()))
	}
	before := time.Time{}
	for _, l := range sink.AllLogs() {
		list := l.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords()
		for i := range list.Len() {
			if at := list.At(i).Timestamp().AsTime(); at.Before(before) {
				t.Fatalf("%v is behind %v", at, before)
			} else {
				before = at
			}
		}
	}
}

// TestOptionalLists checks that a UFM without virtual ports or jobs is up, and has no series of them, and that
// one whose lists break is not up.
func TestOptionalLists(t *testing.T) {
	s := server(t)
	c := restOnly(s)
	for _, path := range []string{"/ufmRestV3/jobs", "/ufmRestV3/resources/vports"} {
		s.SetFault(path, &ufmtest.Fault{Status: 404})
	}
	sink := &consumertest.MetricsSink{}
	p := reader(t, c, sink, nil)
	if err := p.readDue(t.Context()); err != nil {
		t.Error(err)
	}
	m, _ := flatten(t, sink.AllMetrics())
	for key := range m {
		if strings.HasPrefix(key, "fabric_ufm_jobs") || strings.HasPrefix(key, "fabric_nic_port_virtual_ports") {
			t.Errorf("%s is there", key)
		}
	}
	for path, f := range map[string]ufmtest.Fault{"/ufmRestV3/jobs": {Cut: 10}, "/ufmRestV3/resources/vports": {Status: 500}} {
		s := server(t)
		s.SetFault(path, &f)
		if err := reader(t, restOnly(s), sink, nil).readDue(t.Context()); err == nil {
			t.Errorf("%s %+v is not reported", path, f)
		}
	}
}

// TestRESTInParts checks that 12,800 ports are passed on in parts, whatever their series.
func TestRESTInParts(t *testing.T) {
	s := server(t)
	var systems, ports, links []event
	for sw := range 200 {
		g := fmt.Sprintf("%016x", 0x2c90300000000+sw<<8)
		systems = append(systems, event{"system_name": fmt.Sprintf("s%d", sw), "system_guid": g, "guid": g, "type": "switch"})
		for n := 1; n <= 64; n++ {
			ports = append(ports, event{"guid": g, "number": n, "systemID": g, "system_name": fmt.Sprintf("s%d", sw), "node_description": fmt.Sprintf("s%d:%d", sw, n),
				"logical_state": "Active", "active_speed": "NDR", "active_width": "4x", "enabled_speed": []string{"NDR"}, "enabled_width": []string{"4x"}})
			if sw%2 == 1 {
				links = append(links, event{"source_guid": g, "source_port": n, "destination_guid": fmt.Sprintf("%016x", 0x2c90300000000+(sw-1)<<8), "destination_port": n})
			}
		}
	}
	s.SetJSON("/resources/systems", systems)
	s.SetJSON("/resources/ports", ports)
	s.SetJSON("/resources/links", links)
	points, most := 0, 0
	count, err := consumer.NewMetrics(func(_ context.Context, m pmetric.Metrics) error {
		points, most = points+m.DataPointCount(), max(most, m.DataPointCount())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c := restOnly(s)
	c.Timeout = 10 * time.Minute // for slow machines
	p := reader(t, c, count, nil)
	if err := p.readDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Up, speed and lanes, two expected values and a neighbor.
	if want := 12_800 * 6; points < want || points > want+100 || most > maxBatch+10 {
		t.Errorf("%d points, %d at once; %d are expected", points, most, want)
	}
}

// TestNoSecretIsLogged checks that neither logs nor errors contain a token or a password, whatever fails, and
// whatever UFM answers about them.
func TestNoSecretIsLogged(t *testing.T) {
	secrets := []string{ufmtest.Token, ufmtest.Password, base64.StdEncoding.EncodeToString([]byte(ufmtest.User + ":" + ufmtest.Password))}
	for way := range ways(server(t)) {
		t.Run(way, func(t *testing.T) {
			s := server(t)
			var out bytes.Buffer
			c := restOnly(s)
			c.Auth = ways(s)[way]
			p := reader(t, c, &consumertest.MetricsSink{}, &consumertest.LogsSink{})
			p.r.log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
			base := p.client.BasePath()
			for i, f := range []ufmtest.Fault{{Status: 401}, {Status: 403}, {Status: 500}, {Cut: 5}, {Cut: 5, Reset: true}, {Type: "text/html"}, {Location: "https://elsewhere.invalid/"}, {Gzip: true, Spoil: true}} {
				for _, path := range []string{"/resources/systems", "/app/events", "/app/alarms", "/app/ufm_version", "/app/unhealthy_ports", "/jobs"} {
					s.SetFault(base+path, &f)
				}
				err := p.readDue(t.Context())
				if err == nil {
					t.Errorf("fault %d is not logged", i)
				}
				fmt.Fprintln(&out, err)
				p.inventory = time.Time{}
			}
			s.Close()
			fmt.Fprintln(&out, p.readDue(t.Context()))
			if strings.Count(out.String(), "\n") < 9 {
				t.Errorf("little is logged: %s", out.String())
			}
			for _, secret := range secrets {
				if strings.Contains(out.String(), secret) {
					t.Errorf("%q is logged: %s", secret, out.String())
				}
			}
		})
	}
}

// TestUndividedShards checks that a service that gives every shard all ports is reported, and that from the
// next reading on every port is passed on once. A service that begins to divide is trusted again.
func TestUndividedShards(t *testing.T) {
	s := server(t)
	var systems, ports []event
	f := ufmtest.Fabric{Switches: 4, Ports: 32, Counters: ufmtest.CounterNames(2), At: 1709652347161873}
	for sw := range f.Switches {
		systems = append(systems, event{"system_guid": f.NodeGUID(sw), "guid": f.NodeGUID(sw), "type": "switch"})
		for n := 1; n <= f.Ports; n++ {
			ports = append(ports, event{"guid": f.NodeGUID(sw), "number": n, "systemID": f.NodeGUID(sw), "node_description": fmt.Sprintf("s%d:%d", sw, n), "logical_state": "Active"})
		}
	}
	s.SetJSON("/resources/systems", systems)
	s.SetJSON("/resources/ports", ports)
	var b bytes.Buffer
	f.WriteCSV(&b)
	for shard := range 3 {
		c := configure(s)
		c.NumShards, c.Shard = 3, shard
		sink := &consumertest.MetricsSink{}
		p := reader(t, c, sink, nil)
		if err := p.readDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		tr, err := p.r.newTelemetryReader(&c.Telemetry[0])
		if err != nil {
			t.Fatal(err)
		}
		count := func() int {
			n := 0
			m, _ := flatten(t, sink.AllMetrics())
			for key := range m {
				if strings.HasPrefix(key, "fabric_switch_port_transmit_bytes_total") {
					n++
				}
			}
			sink.Reset()
			return n
		}
		s.SetBody("/csv/metrics", b.String())
		s.SetFault("/csv/metrics", &ufmtest.Fault{Undivided: true})
		if err := tr.readDocument(t.Context()); ufm.KindOf(err) != ufm.KindShards {
			t.Errorf("shard %d: %v", shard, err)
		}
		count()
		if err := tr.readDocument(t.Context()); ufm.KindOf(err) != ufm.KindShards {
			t.Errorf("shard %d again: %v", shard, err)
		}
		if n := count(); n != map[int]int{0: 128}[shard] {
			t.Errorf("shard %d reports %d ports", shard, n)
		}
		s.SetFault("/csv/metrics", nil)
		if err := tr.readDocument(t.Context()); err != nil {
			t.Errorf("divided: %v", err)
		}
		if err := tr.readDocument(t.Context()); err != nil {
			t.Errorf("divided: %v", err)
		}
		if n := count(); n == 0 || n == 128 {
			t.Errorf("shard %d reports %d ports of its part", shard, n)
		}
	}
}

// TestDeployed checks that the configuration in deploy/otelcol is valid.
func TestDeployed(t *testing.T) {
	m, err := confmaptest.LoadConf("../../deploy/otelcol/ufm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sub, err := m.Sub("receivers::ufm")
	if err != nil {
		t.Fatal(err)
	}
	c := defaultConfig()
	if err := sub.Unmarshal(c); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil || c.StateFile == "" || len(c.Telemetry) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}
