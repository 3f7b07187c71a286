package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/webaccess"
)

// loopback returns a loopback address of this process's own, so that tests of several packages can run at the same
// time.
func loopback(i int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64+pid>>14&63, pid>>6&255, (pid<<2|i)&255)
}

func writeConfig(t *testing.T, self, peer int, extra string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), fmt.Sprintf("h%d.yaml", self))
	text := fmt.Sprintf(`node: h%[1]d
stamp: {port: 8862, class: roce}
clock: {error_bound: 2us}
nics: [{nic: h%[1]d/eth1, address: %[2]s, leaf: leaf%[1]d, leaf_port: dn1, plane: a, rail: 0, pod: p1, side: left}]
peers: [{nic: h%[3]d/eth1, address: %[4]s, leaf: leaf%[3]d, tier: 2, plane: a}]
%[5]s`, self, loopback(self), peer, loopback(peer), extra)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func startNode(t *testing.T, file string) *nodeagent.Node {
	t.Helper()
	n, err := nodeagent.Start(file, "", nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

// handlerOf returns the handler of a node's series and API, for a client that may do everything.
func handlerOf(n *nodeagent.Node) http.Handler {
	return New(n, slog.New(slog.DiscardHandler)).Handler(&webaccess.Policy{AdminAPI: true, Lifecycle: true})
}

// request returns a request from a loopback client.
func request(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:1234"
	return r
}

func do(h http.Handler, r *http.Request) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func scrapePath(t *testing.T, h http.Handler, path string) map[string]*dto.MetricFamily {
	t.Helper()
	format := expfmt.NewFormat(expfmt.TypeProtoDelim)
	r := request("GET", path, "")
	r.Header.Set("Accept", string(format))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	out := map[string]*dto.MetricFamily{}
	dec := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	for {
		var f dto.MetricFamily
		if err := dec.Decode(&f); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out[f.GetName()] = &f
	}
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("%s: not within 20 s", what)
}

func labels(m *dto.Metric) string {
	var s []string
	for _, l := range m.GetLabel() {
		s = append(s, l.GetName())
	}
	slices.Sort(s)
	return strings.Join(s, ",")
}

func TestSeriesAreThoseOfTheContract(t *testing.T) {
	n := startNode(t, writeConfig(t, 1, 2, ""))
	startNode(t, writeConfig(t, 2, 1, ""))
	h := handlerOf(n)
	var edges map[string]*dto.MetricFamily
	until(t, "20 measured replies", func() bool {
		edges = scrapePath(t, h, "/metrics/edges")
		for _, m := range edges["fabric_probe_owd_seconds"].GetMetric() {
			if m.GetHistogram().GetSampleCount() < 20 {
				return false
			}
		}
		return true
	})
	metrics := scrapePath(t, h, "/metrics")
	var nics map[string]*dto.MetricFamily
	until(t, "the first second", func() bool {
		nics = scrapePath(t, h, "/metrics/nics")
		return nics["fabric_nic_flows"] != nil
	})

	const flow, directed = "class,dst,flow,plane,src,tier", "class,direction,dst,flow,plane,src,tier"
	const nic, pair = "class,leaf,nic,plane,side", "class,leaf,peer_leaf,plane,side,tier"
	for _, tc := range []struct {
		from   map[string]*dto.MetricFamily
		name   string
		kind   dto.MetricType
		labels string
		atMin  int
	}{
		{edges, "fabric_probe_owd_seconds", dto.MetricType_HISTOGRAM, "class,direction,dst,flow,plane,src,tier,timestamp", 2},
		{edges, "fabric_probe_sent_total", dto.MetricType_COUNTER, directed, 2},
		{edges, "fabric_probe_lost_total", dto.MetricType_COUNTER, directed, 2},
		{edges, "fabric_probe_ecn_marked_total", dto.MetricType_COUNTER, directed, 2},
		{edges, "fabric_probe_acked_total", dto.MetricType_COUNTER, flow, 1},
		{edges, "fabric_probe_late_total", dto.MetricType_COUNTER, flow, 1},
		{edges, "fabric_probe_duplicate_total", dto.MetricType_COUNTER, flow, 1},
		{edges, "fabric_probe_received_total", dto.MetricType_COUNTER, flow, 1},
		{edges, "graylink_node_stalled_seconds_total", dto.MetricType_COUNTER, "nic", 1},
		{nics, "fabric_nic_owd_seconds", dto.MetricType_HISTOGRAM, "class,leaf,nic,plane,side,timestamp", 2},
		{nics, "fabric_nic_probe_sent_total", dto.MetricType_COUNTER, nic, 2},
		{nics, "fabric_nic_probe_lost_total", dto.MetricType_COUNTER, nic, 2},
		{nics, "fabric_nic_probe_ecn_marked_total", dto.MetricType_COUNTER, nic, 2},
		{nics, "fabric_nic_flows", dto.MetricType_GAUGE, "condition,nic,plane", 5},
		{nics, "graylink_node_stalled_seconds_total", dto.MetricType_COUNTER, "nic", 1},
		{metrics, "fabric_leaf_pair_owd_seconds", dto.MetricType_HISTOGRAM, "class,leaf,peer_leaf,plane,side,tier,timestamp", 2},
		{metrics, "fabric_leaf_pair_probe_sent_total", dto.MetricType_COUNTER, pair, 2},
		{metrics, "fabric_leaf_pair_probe_lost_total", dto.MetricType_COUNTER, pair, 2},
		{metrics, "fabric_leaf_pair_probe_ecn_marked_total", dto.MetricType_COUNTER, pair, 2},
		{metrics, "fabric_nic_kernel_delay_seconds", dto.MetricType_HISTOGRAM, "nic", 1},
		{metrics, "fabric_nic_info", dto.MetricType_GAUGE, "leaf,leaf_port,nic,node,plane,pod,rail,side", 1},
		{metrics, "fabric_nic_timestamp_info", dto.MetricType_GAUGE, "kind,nic,stamp", 2},
		{metrics, "fabric_clock_error_bound_seconds", dto.MetricType_GAUGE, "clock", 1},
		{metrics, "graylink_node_socket_drops_total", dto.MetricType_COUNTER, "nic,socket", 2},
		{metrics, "graylink_config_hash_info", dto.MetricType_GAUGE, "hash", 1},
		{metrics, "graylink_node_build_info", dto.MetricType_GAUGE, "branch,goarch,goos,goversion,revision,tags,version", 1},
		{metrics, "graylink_node_last_cycle_timestamp_seconds", dto.MetricType_GAUGE, "nic", 1},
		{metrics, "go_goroutines", dto.MetricType_GAUGE, "", 1},
		{metrics, "process_resident_memory_bytes", dto.MetricType_GAUGE, "", 1},
	} {
		f := tc.from[tc.name]
		if f == nil || f.GetType() != tc.kind || len(f.GetMetric()) < tc.atMin {
			t.Errorf("%s: %v, want %v with at least %d series", tc.name, f, tc.kind, tc.atMin)
			continue
		}
		for _, m := range f.GetMetric() {
			if got := labels(m); got != tc.labels {
				t.Errorf("%s has labels %s, want %s", tc.name, got, tc.labels)
			}
		}
	}
	for _, m := range edges["fabric_probe_owd_seconds"].GetMetric() {
		hist := m.GetHistogram()
		if hist.GetSchema() != 4 || hist.GetZeroThreshold() != 1e-9 || len(hist.GetPositiveSpan()) == 0 || len(hist.GetBucket()) != 0 {
			t.Errorf("not a native histogram of schema 4: %v", hist)
		}
		if mean := hist.GetSampleSum() / float64(hist.GetSampleCount()); mean <= 0 || mean > 1 {
			t.Errorf("mean delay %v s", mean)
		}
	}
	if v := metrics["fabric_clock_error_bound_seconds"].GetMetric()[0].GetGauge().GetValue(); v != 2e-6 {
		t.Errorf("clock error bound %v s, want 2e-06", v)
	}
}

func TestAPI(t *testing.T) {
	n := startNode(t, writeConfig(t, 1, 2, ""))
	startNode(t, writeConfig(t, 2, 1, ""))
	h := handlerOf(n)
	for _, path := range []string{"/-/healthy", "/-/ready"} {
		if code, body := do(h, request("GET", path, "")); code != 200 {
			t.Errorf("GET %s: %d %s", path, code, body)
		}
	}
	var got pathsJSON
	read := func(method, path, body string) {
		t.Helper()
		code, text := do(h, request(method, path, body))
		got = pathsJSON{}
		if err := json.Unmarshal([]byte(text), &got); code != 200 || err != nil {
			t.Fatalf("%s %s: %d %s", method, path, code, text)
		}
	}
	until(t, "both paths", func() bool { read("GET", "/api/v1/paths", ""); return len(got.Paths) == 2 })
	if got.Node != "h1" || got.Version == 0 || got.Paths[0].Edge != "h1/eth1>h2/eth1#0" || !got.Paths[0].Reached || got.Paths[0].State != "valid" {
		t.Errorf("paths %+v", got)
	}
	if read("GET", "/api/v1/paths?within=1h", ""); len(got.Paths) != 2 {
		t.Errorf("paths of the last hour: %+v", got.Paths)
	}
	if read("GET", "/api/v1/paths?within=1ns", ""); len(got.Paths) != 0 {
		t.Errorf("paths of the last nanosecond: %+v", got.Paths)
	}
	if code, text := do(h, request("GET", "/api/v1/paths?within=soon", "")); code != 400 || !strings.Contains(text, `"within": "soon"`) {
		t.Errorf("%d %s", code, text)
	}
	read("POST", "/api/v1/trace", `{"edges":["h2/eth1>h1/eth1#0/r","h1/eth1>h2/eth1#0"]}`)
	if len(got.Paths) != 2 || got.Paths[0].Edge != "h2/eth1>h1/eth1#0/r" || got.Paths[1].Edge != "h1/eth1>h2/eth1#0" {
		t.Errorf("traced %+v", got)
	}
	for _, tc := range []struct {
		body string
		code int
		text string
	}{
		{`{"edges":["h1/eth1>h7/eth1#0"]}`, 404, `"h1/eth1>h7/eth1#0"`},
		{`{"edges":["nonsense"]}`, 400, `"nonsense"`},
		{`{"flows":[]}`, 400, "want"},
		{`{`, 400, "want"},
	} {
		if code, text := do(h, request("POST", "/api/v1/trace", tc.body)); code != tc.code || !strings.Contains(text, tc.text) {
			t.Errorf("%s: %d %s, want %d with %s", tc.body, code, text, tc.code, tc.text)
		}
	}
}

// A tuple to the port of the reflectors is that of a flow. What the node does not trace is refused with the field.
func TestTraceTuples(t *testing.T) {
	n := startNode(t, writeConfig(t, 1, 2, ""))
	h := handlerOf(n)
	cfg := n.Config()
	tuple := func(dst string, dport, sport int) string {
		return fmt.Sprintf(`{"src":"h1/eth1","dst":%q,"proto":"udp","dport":%d,"sport":%d,"dscp":%d}`, dst, dport, sport, cfg.Stamp.ClassOf(0).DSCP)
	}
	flow := tuple("h2/eth1", int(cfg.Stamp.Port), int(cfg.Stamp.SourcePort))
	code, text := do(h, request("POST", "/api/v1/trace-tuples", `{"tuples":[`+flow+`]}`))
	var got struct {
		Node   string
		Traces []fabric.TupleTrace
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || code != 200 || got.Node != "h1" || len(got.Traces) != 1 {
		t.Fatalf("%d %s, %v", code, text, err)
	}
	if tr := got.Traces[0]; tr.Tuple.SPort != int(cfg.Stamp.SourcePort) || tr.Trace.Edge != "h1/eth1>h2/eth1#0" || tr.Marking != fabric.MarkingNone {
		t.Errorf("%+v", tr)
	}
	for _, tc := range []struct {
		body string
		text string
	}{
		{`{"tuples":[` + tuple("h7/eth1", 4791, 50000) + `]}`, `field "dst": "h7/eth1", want a NIC of a registered peer`},
		{`{"tuples":[` + flow + `,` + tuple("h2/eth1", 53, 50000) + `]}`, `field "dport": 53`},
		{`{"tuples":[` + tuple("h2/eth1", 4791, 1024) + `]}`, `field "sport": 1024`},
		{`{"tuples":[]}`, "0 tuples, want 1 to 256"},
		{`{"tuples":[` + strings.Repeat(flow+`,`, 256) + flow + `]}`, "257 tuples, want 1 to 256"},
		{`{"edges":[]}`, "want"},
		{`{`, "want"},
	} {
		if code, text := do(h, request("POST", "/api/v1/trace-tuples", tc.body)); code != 400 || !strings.Contains(text, tc.text) {
			t.Errorf("%.200s: %d %s, want 400 with %s", tc.body, code, text, tc.text)
		}
	}
}

// Long packets show that a path takes them. What the node does not test is refused.
func TestPathMTU(t *testing.T) {
	n := startNode(t, writeConfig(t, 1, 2, ""))
	startNode(t, writeConfig(t, 2, 1, ""))
	h := handlerOf(n)
	until(t, "a path", func() bool { _, _, p := n.TracedPaths(); return len(p) == 2 && p[0].State == fabric.PathValid })
	code, text := do(h, request("POST", "/api/v1/path-mtu", `{"edges":["h1/eth1>h2/eth1#0"],"octets":4160}`))
	var got pathMTUJSON
	if err := json.Unmarshal([]byte(text), &got); err != nil || code != 200 || got.Node != "h1" || len(got.Found) != 1 || got.Found[0].State != fabric.PathMTUPasses || got.Found[0].Sent != 1 {
		t.Errorf("%d %s, %v", code, text, err)
	}
	for _, tc := range []struct {
		body string
		code int
		text string
	}{
		{`{"edges":["h1/eth1>h7/eth1#0"],"octets":1088}`, 404, `"h1/eth1>h7/eth1#0"`},
		{`{"edges":["h1/eth1>h2/eth1#0"],"octets":9000}`, 400, "9000 octets"},
		{`{"edges":["nonsense"],"octets":1088}`, 400, `"nonsense"`},
		{`{"edges":[],"octets":1088}`, 400, "0 edges, want 1 to 256"},
		{`{`, 400, "want"},
	} {
		if code, text := do(h, request("POST", "/api/v1/path-mtu", tc.body)); code != tc.code || !strings.Contains(text, tc.text) {
			t.Errorf("%s: %d %s, want %d with %s", tc.body, code, text, tc.code, tc.text)
		}
	}
}

func TestReload(t *testing.T) {
	file := writeConfig(t, 1, 2, "")
	n := startNode(t, file)
	h := handlerOf(n)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	successful := func() float64 {
		return scrapePath(t, h, "/metrics")["graylink_config_last_reload_successful"].GetMetric()[0].GetGauge().GetValue()
	}
	before := n.Config()
	if code, body := do(h, request("POST", "/-/reload", "")); code != 200 || n.Config() != before {
		t.Errorf("unchanged file: %d %s", code, body)
	}
	for name, bad := range map[string]string{
		"not readable":     "cadence: never\n",
		"address not here": strings.ReplaceAll(string(good), loopback(1), "192.0.2.1"),
	} {
		write([]byte(bad))
		if code, body := do(h, request("POST", "/-/reload", "")); code != 500 || !strings.Contains(body, "the old configuration stays") {
			t.Errorf("%s: %d %s", name, code, body)
		}
		if c := n.Config(); c.NICs[0].Address.String() != loopback(1) || successful() != 0 || n.Ready() != nil {
			t.Errorf("%s: %+v runs", name, c)
		}
	}
	write([]byte(string(good) + "cadence: 20ms\n"))
	if code, body := do(h, request("POST", "/-/reload", "")); code != 200 || n.Config().Cadence != 20*time.Millisecond || successful() != 1 {
		t.Errorf("new cadence: %d %s", code, body)
	}
}

func TestClockReportsABend(t *testing.T) {
	file := writeConfig(t, 1, 2, "")
	if code, body := do(handlerOf(startNode(t, file)), request("GET", "/api/v1/clock", "")); code != http.StatusOK || strings.TrimSpace(body) != `{"clocks":[],"relations":[]}` {
		t.Errorf("a clock that is right: %d %s", code, body)
	}
	bendFile := filepath.Join(t.TempDir(), "h3.json")
	bend, err := bentclock.New(time.Unix(1700000000, 0), -3*time.Millisecond, 50, bendFile)
	if err != nil {
		t.Fatal(err)
	}
	n, err := nodeagent.Start(writeConfig(t, 3, 2, ""), "", bend, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	get := func() string {
		_, body := do(handlerOf(n), request("GET", "/api/v1/clock", ""))
		return strings.TrimSpace(body)
	}
	if want := `{"bend":{"ref_ns":1700000000000000000,"offset_ns":-3000000,"rate":0.000049999999999999996},"clocks":[],"relations":[]}`; get() != want {
		t.Errorf("%s, want %s", get(), want)
	}
	before := get()
	if err := os.WriteFile(bendFile, []byte(`{"step_ns":1000000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the file's step", func() bool { return get() != before })
}
