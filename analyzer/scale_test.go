//go:build scale

package analyzer_test

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golang/snappy"
	config_util "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

var scaleEdges = flag.Int("scale.edges", 20000, "directed edges of TestScale")

var scaleRules = flag.Bool("scale.rules", true, "measure every recording rule, not only those of the delays")

// What TestScale writes: NICs with so many peers each, sixteen to a leaf, a spine to every
// uplink, and so many scrapes, a second apart: a window in which all is well, and one in which
// a link adds delay.
const (
	scalePeers   = 25
	scaleLeaf    = 16
	scaleSpines  = 16
	scaleScrapes = 8
	scaleCalm    = 4     // scrapes of the calm window
	near, far    = 20, 8 // buckets of delays as they are, and with 100 us added
)

// scaleWorld is a fabric and the times of its windows.
type scaleWorld struct {
	g          *fabric.Graph
	nics       int
	bad        fabric.Direction
	calm, last time.Time
}

func newScaleWorld(t *testing.T, nics int) *scaleWorld {
	w := &scaleWorld{nics: nics, g: worldtest.NewClos(t, scaleSpines, nics/scaleLeaf, scaleLeaf)}
	w.bad = fabric.Direction{From: "leaf3:up2", To: "spine2:dn3"}
	w.last = time.Now().Truncate(time.Second)
	w.calm = w.last.Add(-(scaleScrapes - scaleCalm) * time.Second)
	return w
}

func scaleNIC(i int) string { return fmt.Sprintf("h%d/eth1", i+1) }

func (w *scaleWorld) peer(i, j int) int { return (i + (j+1)*(w.nics/(scalePeers+1))) % w.nics }

// path returns the path of a flow over any spine.
func (w *scaleWorld) path(e fabric.Flow) fabric.Path {
	src, dst := e.Endpoints()
	sum := uint32(7)
	for _, c := range []byte(src + ">" + dst) {
		sum = sum*31 + uint32(c)
	}
	spine := fmt.Sprintf("spine%d", 1+sum>>8%scaleSpines)
	all := w.g.ShortestPaths(src, dst, scaleSpines)
	i := slices.IndexFunc(all, func(p fabric.Path) bool { return len(p) < 3 || p[1].Switch == spine })
	return all[i]
}

// slow reports whether a flow crosses the link that goes bad.
func (w *scaleWorld) slow(e fabric.Flow) bool {
	src, dst := e.Endpoints()
	return slices.Contains(w.path(e).LinkDirections(src, dst), w.bad)
}

// TestScale measures what the questions of a cycle cost a real Prometheus and the analyzer, and
// the recording rules: make bench-evidence. ADR 12 has its figures.
func TestScale(t *testing.T) {
	base, pid := scalePrometheus(t)
	nics := *scaleEdges / 2 / scalePeers / scaleLeaf * scaleLeaf
	w := newScaleWorld(t, nics)
	d := &scaleWriter{t: t, base: base}
	d.write(w)
	s := evidence.DefaultSettings()
	s.Parallel, s.Patience = 4, 10*time.Minute
	var mu sync.Mutex
	took := map[string]time.Duration{}
	s.Observe = func(q string, d time.Duration, _ error) {
		mu.Lock()
		took[q] += d
		mu.Unlock()
	}
	o := evidence.HTTPOptions{URL: base, Client: config_util.DefaultHTTPClientConfig, Timeout: 5 * time.Minute, MaxBytes: 4 << 30}
	api, err := evidence.NewHTTP(o)
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	read, err := evidence.NewRemoteRead(o)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("load %s", load)
	t.Logf("| what is asked | rows | seconds | processor seconds of Prometheus | of the analyzer | received |")
	measure := func(name string, times int, bytes func() uint64, ask func() int) {
		before, theirs, own, began := bytes(), processor(t, pid), processor(t, os.Getpid()), time.Now()
		n, longest := 0, time.Duration(0)
		for range times {
			one := time.Now()
			n += ask()
			longest = max(longest, time.Since(one))
		}
		per := float64(times)
		t.Logf("| %s | %d | %.2f s (at most %.2f) | %.2f s | %.2f s | %.1f MB |", name, n/times, time.Since(began).Seconds()/per, longest.Seconds(),
			(processor(t, pid)-theirs).Seconds()/per, (processor(t, os.Getpid())-own).Seconds()/per, float64(bytes()-before)/1e6/per)
	}
	none := func() uint64 { return 0 }
	d.rules(w, api, func(name string, times int, ask func() int) { measure(name, times, none, ask) })
	var all evidence.Window
	everything := func(db evidence.Querier, at time.Time) func() int {
		return func() int {
			if all, err = evidence.ReadWindow(t.Context(), db, s, at.Add(s.Lag)); err != nil {
				t.Fatal(err)
			}
			return len(all.Observations)
		}
	}
	measure("every edge, streamed remote read", 1, read.Bytes, everything(read, w.calm))
	type backend interface {
		evidence.Querier
		Bytes() uint64
	}
	for i, db := range []backend{api, read} {
		name := []string{"HTTP API", "streamed remote read"}[i]
		l, step := d.loop(w, db, s, all)
		for n := 0; n < 70 && l.Snapshot().Report.State != fabric.Innocent; n++ {
			step(w.calm)
		}
		t.Logf("%s, calm: %+v", name, *l.Snapshot().Queries)
		clear(took)
		measure("two steps, calm, "+name, 10, db.Bytes, func() int { return step(w.calm).Queries.QueriedFlows })
		for _, q := range slices.SortedFunc(maps.Keys(took), func(a, b string) int { return cmp.Compare(took[b], took[a]) }) {
			t.Logf("  %s: %.0f ms a cycle", q, took[q].Seconds()*1e3/10)
		}
		if r := l.Snapshot().Report; r.State != fabric.Innocent {
			t.Errorf("calm: %s, coverage %+v", r.State, r.Coverage)
		}
		found := 0
		for i := 1; found == 0 && i < 20; i++ {
			s := step(w.last)
			v := looptest.OpenVerdicts(s)
			if len(v) > 0 {
				found = i
			}
			t.Logf("cycle %d: %+v; %d flows degraded, %q", i, *s.Queries, s.Report.Edges.Degraded, v)
		}
		measure("two steps, with an incident, "+name, 10, db.Bytes, func() int { return step(w.last).Queries.QueriedFlows })
		snap := l.Snapshot()
		if found == 0 {
			t.Errorf("%s: nothing is found in 20 cycles", name)
		}
		t.Logf("%s: after %d cycles %q; %+v; warnings %q", name, found, looptest.OpenVerdicts(snap), *snap.Queries, snap.Warnings)
		if v := looptest.OpenVerdicts(snap); len(v) != 1 || !strings.HasPrefix(v[0], w.bad.LinkID()) {
			t.Errorf("%s: %q, want %s", name, v, w.bad)
		}
	}
	measure("every edge, HTTP API", 1, api.Bytes, everything(api, w.calm))
}

// frozen is a server whose clock stays at one moment, independent of the loop.
type frozen struct {
	evidence.Querier
	by time.Duration
}

// ClockOffset implements evidence.Clocked.
func (f *frozen) ClockOffset(context.Context) (time.Duration, error) { return f.by, nil }

// loop returns a loop that has paths and baselines from all edges. step lets a second pass, and shows the loop a
// window that ended at a given time.
func (d *scaleWriter) loop(w *scaleWorld, db evidence.Querier, s evidence.Settings, all evidence.Window) (*analyzer.Loop, func(time.Time) snapshot.Snapshot) {
	f := &frozen{Querier: db}
	l := analyzer.NewLoop(analyzer.LoopOptions{Graph: w.g, DB: f, Settings: s, TwoSteps: selection.DefaultOptions()})
	h := evidence.History{Flows: map[fabric.Flow]evidence.Delays{}, Expected: len(all.Observations)}
	at := time.Now()
	for _, o := range all.Observations {
		e, err := o.ParseFlow()
		if err != nil {
			d.t.Fatal(err)
		}
		var past evidence.Delays
		for i := range int64(baseline.LearnWindows) {
			past.P50, past.P99 = append(past.P50, *o.OWD.P50+i), append(past.P99, *o.OWD.P99+i)
		}
		h.Flows[e] = past
		trace := fabric.Trace{Edge: e.String(), State: fabric.PathValid, TracedAt: at.Add(-time.Second), Reached: !e.Reply}
		p := w.path(e)
		src, dst := e.Endpoints()
		for i, dir := range p.LinkDirections(src, dst)[:len(p)] {
			link := w.g.LinkAt(dir.To)
			hop := fabric.RawHop{TTL: i + 1, Address: link.BAddress.Addr()}
			if link.A == dir.To {
				hop.Address = link.AAddress.Addr()
			}
			trace.Hops = append(trace.Hops, hop)
		}
		if err := l.PathStore().AddTrace(trace); err != nil {
			d.t.Fatal(err)
		}
	}
	l.SeedBaselines(h)
	now := at.Truncate(time.Second)
	return l, func(end time.Time) snapshot.Snapshot {
		now = now.Add(time.Second)
		f.by = end.Add(s.Lag).Sub(now)
		if err := l.RunCycle(d.t.Context(), now); err != nil {
			d.t.Fatal(err)
		}
		return l.Snapshot()
	}
}

// scaleWriter writes series by remote write.
type scaleWriter struct {
	t      *testing.T
	base   string
	batch  prompb.WriteRequest
	series int
}

func (d *scaleWriter) send() {
	b, err := d.batch.Marshal()
	if err != nil {
		d.t.Fatal(err)
	}
	resp, err := http.Post(d.base+"/api/v1/write", "application/x-protobuf", bytes.NewReader(snappy.Encode(nil, b)))
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(resp.Body)
		d.t.Fatalf("remote write: %s: %s", resp.Status, text)
	}
	d.series += len(d.batch.Timeseries)
	d.batch.Timeseries = d.batch.Timeseries[:0]
}

func (d *scaleWriter) put(ts prompb.TimeSeries) {
	if d.batch.Timeseries = append(d.batch.Timeseries, ts); len(d.batch.Timeseries) == 5000 {
		d.send()
	}
}

func named(name string, labels ...string) prompb.TimeSeries {
	ts := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: name}}}
	for i := 0; i < len(labels); i += 2 {
		ts.Labels = append(ts.Labels, prompb.Label{Name: labels[i], Value: labels[i+1]})
	}
	return ts
}

// counts holds a histogram's buckets, scrape by scrape.
type counts [scaleScrapes][near + far]int64

func (c *counts) add(o *counts) {
	for i := range c {
		for b := range c[i] {
			c[i][b] += o[i][b]
		}
	}
}

func (c *counts) histograms(w *scaleWorld) (out []prompb.Histogram) {
	n := near
	if c[scaleScrapes-1][near] > 0 {
		n += far
	}
	for i := range c {
		h := &histogram.Histogram{Schema: 4, ZeroThreshold: 1e-9, PositiveSpans: []histogram.Span{{Offset: -290, Length: near}}, PositiveBuckets: make([]int64, n)}
		if n > near {
			h.PositiveSpans = append(h.PositiveSpans, histogram.Span{Offset: 55, Length: far})
		}
		before := int64(0)
		for b := range h.PositiveBuckets {
			h.PositiveBuckets[b] = c[i][b] - before
			before = c[i][b]
			h.Count += uint64(c[i][b])
		}
		h.Sum = 5e-6 * float64(h.Count)
		x := prompb.FromIntHistogram(w.scrape(i), h)
		out = append(out, x)
	}
	return out
}

// scrape returns the time of scrape i in milliseconds.
func (w *scaleWorld) scrape(i int) int64 {
	return w.last.Add(time.Duration(i-scaleScrapes+1) * time.Second).UnixMilli()
}

// write writes the series of all agents.
func (d *scaleWriter) write(w *scaleWorld) {
	d.t.Helper()
	began := time.Now()
	rng := rand.New(rand.NewPCG(1, 1))
	// Flows are some of 64 alike, as they are and with the delay of the link.
	var plain, slow [64]counts
	for v := range plain {
		for b := range near {
			rate := int64(1 + rng.IntN(10))
			for i := range scaleScrapes {
				plain[v][i][b] = int64(i+1) * rate
				slow[v][i][b] = min(int64(i+1), scaleCalm+1) * rate
				slow[v][i][near+b*far/near] += max(0, int64(i)-scaleCalm) * rate
			}
		}
	}
	counter := func(rate float64, name string, labels ...string) {
		ts := named(name, labels...)
		for i := range scaleScrapes {
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: w.scrape(i), Value: rate * float64(i)})
		}
		d.put(ts)
	}
	delays := func(c *counts, name string, labels ...string) {
		ts := named(name, labels...)
		ts.Histograms = c.histograms(w)
		d.put(ts)
	}
	leaf := func(i int) string { return fmt.Sprintf("leaf%d", 1+i/scaleLeaf) }
	for i := range w.nics {
		src := scaleNIC(i)
		stalled := named("graylink_node_stalled_seconds_total", "nic", src)
		for i := range scaleScrapes + 1 { // a scrape after the last window, which says that the agent answers
			stalled.Samples = append(stalled.Samples, prompb.Sample{Timestamp: w.scrape(i)})
		}
		d.put(stalled)
		for name, rate := range map[string]float64{"error_bound_seconds": 1e-9, "asymmetry_allowance_seconds": 1e-9, "steps_total": 0, "drift_changes_total": 0, "offset_seconds": 1e-9, "drift_ratio": 1e-9} {
			counter(rate, "fabric_clock_"+name, "clock", src)
		}
		for _, state := range []string{"converging", "locked", "holdover", "lost"} {
			ts := named("fabric_clock_state", "clock", src, "state", state)
			for i := range scaleScrapes {
				ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: w.scrape(i), Value: map[bool]float64{true: 1}[state == "locked"]})
			}
			d.put(ts)
		}
		sums := map[string]*[2]counts{} // by peer leaf
		for j := range scalePeers {
			e := fabric.Flow{Src: src, Dst: scaleNIC(w.peer(i, j))}
			at := leaf(w.peer(i, j))
			if sums[at] == nil {
				sums[at] = &[2]counts{}
			}
			flow := []string{"dst", e.Dst, "flow", "0", "plane", "a", "src", src, "tier", "2"}
			for name, rate := range map[string]float64{"acked": 110, "late": 0, "received": 110} {
				counter(rate, "fabric_probe_"+name+"_total", flow...)
			}
			for k, direction := range []string{"forward", "reverse"} {
				way := append([]string{"direction", direction}, flow...)
				for name, rate := range map[string]float64{"sent": 110, "lost": 0, "ecn_marked": 0} {
					counter(rate, "fabric_probe_"+name+"_total", way...)
				}
				v := rng.IntN(len(plain))
				c := &plain[v]
				if e.Reply = k == 1; w.slow(e) {
					c = &slow[v]
				}
				sums[at][k].add(c)
				delays(c, "fabric_probe_owd_seconds", append(way, "timestamp", "kernel")...)
			}
		}
		for at, both := range sums {
			for k, side := range []string{"source", "destination"} {
				nic := []string{"leaf", leaf(i), "nic", src, "peer_leaf", at, "plane", "a", "side", side, "tier", "2"}
				for name, rate := range map[string]float64{"sent": 110, "lost": 0, "ecn_marked": 0} {
					counter(rate, "fabric_nic_probe_"+name+"_total", nic...)
				}
				delays(&both[k], "fabric_nic_owd_seconds", append(nic, "timestamp", "kernel")...)
			}
		}
	}
	d.send()
	d.t.Logf("%d NICs, %d directed edges: %d series of %d scrapes written in %.0f s", w.nics, 2*w.nics*scalePeers, d.series, scaleScrapes, time.Since(began).Seconds())
}

// rules evaluates the recording rules for both windows, in their order, writes what they give,
// and measures them.
func (d *scaleWriter) rules(w *scaleWorld, api *evidence.HTTP, measure func(string, int, func() int)) {
	d.t.Helper()
	groups, errs := rulefmt.ParseFile("../rules/aggregates.rules.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), nil)
	if len(errs) > 0 {
		d.t.Fatal(errs)
	}
	for _, g := range groups.Groups {
		if g.Name == "graylink-baselines" {
			continue
		}
		for _, r := range g.Rules {
			if *scaleRules {
				measure("rule "+r.Record, 1, func() int {
					v, err := api.QueryInstant(d.t.Context(), "count("+r.Expr+")", w.last)
					if err != nil || len(v) != 1 {
						return 0
					}
					return int(v[0].Value)
				})
			}
			if !strings.HasPrefix(r.Record, "fabric:nic_") {
				continue
			}
			for _, end := range []time.Time{w.calm, w.last} {
				v, err := api.QueryInstant(d.t.Context(), r.Expr, end)
				if err != nil {
					d.t.Fatal(err)
				}
				for _, x := range v {
					ts := named(r.Record)
					for _, k := range slices.Sorted(maps.Keys(x.Labels)) {
						ts.Labels = append(ts.Labels, prompb.Label{Name: k, Value: x.Labels[k]})
					}
					ts.Samples = []prompb.Sample{{Timestamp: end.UnixMilli(), Value: x.Value}}
					d.put(ts)
				}
				d.send()
			}
		}
	}
}

// scalePrometheus starts a server that takes remote writes.
func scalePrometheus(t *testing.T) (base string, pid int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ln.Close()
	cmd := exec.Command("prometheus", "--config.file=/dev/null", "--storage.tsdb.path="+filepath.Join(t.TempDir(), "tsdb"), "--web.listen-address="+address,
		"--enable-feature=native-histograms", "--web.enable-remote-write-receiver", "--log.level=warn")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("needs prometheus (Debian package prometheus): %v", err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if t.Failed() {
			t.Logf("prometheus: %s", log.String())
		}
	})
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if resp, err := http.Get("http://" + address + "/-/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return "http://" + address, cmd.Process.Pid
			}
		}
	}
	t.Fatal("prometheus is not ready")
	return "", 0
}

// processor returns the CPU time of a process, from /proc/PID/stat
// (proc(5): fields 14 and 15, in hundredths of a second).
func processor(t *testing.T, pid int) time.Duration {
	t.Helper()
	out, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(out), ") ")
	f := strings.Fields(rest)
	var user, system int64
	if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
