//go:build scale

package analyzer_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

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
		var all [2]counts
		shifted := 0.0
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
				all[k].add(c)
				if c == &slow[v] {
					shifted++
				}
				delays(c, "fabric_probe_owd_seconds", append(way, "timestamp", "kernel")...)
			}
		}
		for at, both := range sums {
			for k, side := range []string{"source", "destination"} {
				pair := []string{"instance", src, "leaf", leaf(i), "peer_leaf", at, "plane", "a", "side", side, "tier", "2"}
				for name, rate := range map[string]float64{"sent": 110, "lost": 0, "ecn_marked": 0} {
					counter(rate, "fabric_leaf_pair_probe_"+name+"_total", pair...)
				}
				delays(&both[k], "fabric_leaf_pair_owd_seconds", append(pair, "timestamp", "kernel")...)
			}
		}
		for k, side := range []string{"source", "destination"} {
			nic := []string{"leaf", leaf(i), "nic", src, "plane", "a", "side", side}
			for name, rate := range map[string]float64{"sent": 110 * scalePeers, "lost": 0, "ecn_marked": 0} {
				counter(rate, "fabric_nic_probe_"+name+"_total", nic...)
			}
			delays(&all[k], "fabric_nic_owd_seconds", append(nic, "timestamp", "kernel")...)
		}
		unhealthy := named("graylink_node_unhealthy_flows", "instance", fabric.OwnerOf(src))
		for i := range scaleScrapes + 1 {
			unhealthy.Samples = append(unhealthy.Samples, prompb.Sample{Timestamp: w.scrape(i), Value: shifted * float64(min(1, max(0, i-scaleCalm)))})
		}
		d.put(unhealthy)
		for name, rate := range map[string]float64{"loop_late_seconds_total": 0, "unlocked_clocks": 0, "clock_changes_total": 0, "clock_error_bound_seconds": 1e-9} {
			counter(rate, "graylink_node_"+name, "instance", fabric.OwnerOf(src))
		}
		for _, condition := range window.Conditions {
			ts := named("fabric_nic_flows", "condition", string(condition), "nic", src)
			for i := range scaleScrapes + 1 {
				moved := shifted * float64(min(1, max(0, i-scaleCalm)))
				v := map[window.Condition]float64{window.Healthy: scalePeers - moved, window.Shifted: moved}[condition]
				ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: w.scrape(i), Value: v})
			}
			d.put(ts)
		}
	}
	d.send()
	d.t.Logf("%d NICs, %d directed edges: %d series of %d scrapes written in %.0f s", w.nics, 2*w.nics*scalePeers, d.series, scaleScrapes, time.Since(began).Seconds())
}

// rules measures the recording rules, in their order.
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
			measure("rule "+r.Record, 1, func() int {
				v, err := api.QueryInstant(d.t.Context(), "count("+r.Expr+")", w.last)
				if err != nil || len(v) != 1 {
					return 0
				}
				return int(v[0].Value)
			})
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
