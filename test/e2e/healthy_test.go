//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
)

// TestHealthyFabric looks at a fabric in which nothing is broken: every flow's
// traced path is the kernel's own choice, both ways; kernel stamps are on
// (nearly) every packet; and it prints delays and the agents' cost. (Three tiers are
// TestPaths'.)
func TestHealthyFabric(t *testing.T) {
	need(t)
	for _, file := range healthyTopologies {
		t.Run(filepath.Base(file), func(t *testing.T) {
			topo := loadTopology(t, file)
			d := startDemo(t, demo.Options{Name: "e2eh", Topology: topo, TraceOnly: true, BendClocks: true})
			pathsEqualTheKernels(t, d)
			cpu := watchAgents(t, 7*time.Second)
			measured(t, d)
			t.Log(cpu)
			if file == "../../deploy/lab/demo.yaml" {
				traceCommand(t)
			}
		})
	}
}

func pathsEqualTheKernels(t *testing.T, d *demo.Demo) {
	t.Helper()
	g := d.Graph()
	n := 0
	for _, e := range d.Loop().PathStore().FlowsBetween("", "") {
		b, _ := d.Loop().PathStore().CurrentBinding(e)
		from, to := e.Endpoints()
		sport, dport := uint16(demo.SourcePort+e.Number), uint16(demo.StampPort)
		if e.Reply {
			sport, dport = dport, sport
		}
		want, err := d.Lab().KernelPath(t.Context(), g.ProbeAddress(from), g.ProbeAddress(to), udp, sport, dport)
		if err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		if b.State != fabric.PathValid || b.Path.CanonicalKey() != want.CanonicalKey() {
			t.Errorf("%s: traced %s %q, the kernel sends it %q", e, b.State, b.Path.CanonicalKey(), want.CanonicalKey())
		}
		n++
	}
	if want := d.Loop().Snapshot().Expected; n != want {
		t.Errorf("%d flows traced, %d expected", n, want)
	}
	t.Logf("%d of %d traced paths are the kernel's own", n, n)
}

// measured prints what the last window says of all flows.
func measured(t *testing.T, d *demo.Demo) {
	t.Helper()
	var p50, p99 [2][]float64
	for _, v := range d.Loop().Snapshot().Edges {
		if v.Obs.OWD == nil {
			continue
		}
		way := 0
		if strings.HasSuffix(v.Obs.Edge, "/r") {
			way = 1
		}
		p50[way] = append(p50[way], float64(*v.Obs.OWD.P50)/1e3)
		p99[way] = append(p99[way], float64(*v.Obs.OWD.P99)/1e3)
	}
	for way, name := range []string{"forward", "reverse"} {
		t.Logf("%s OWD over %d flows: p50 median %.1f us (max %.1f), p99 median %.1f us (max %.1f)", name, len(p50[way]),
			percentile(p50[way], 0.5), percentile(p50[way], 1), percentile(p99[way], 0.5), percentile(p99[way], 1))
	}
	// Against the replies that arrived: a stamp that is missing makes no delay, or
	// one of another kind. The newest reply of each flow still waits for its own.
	value := valuesOf(t, d)
	acked := value(`sum(fabric_probe_acked_total)`)
	for _, direction := range []string{"forward", "reverse"} {
		kernel := value(`sum(histogram_count(fabric_probe_owd_seconds{direction="` + direction + `",timestamp="kernel"}))`)
		// Before the clocks were related.
		kernel += value(`sum(graylink_node_samples_unplaced_total{direction="` + direction + `"})`)
		share := kernel / acked
		t.Logf("%s: kernel stamps on both ends of %.0f of %.0f acknowledged probes, %.3f %%", direction, kernel, acked, share*100)
		if math.IsNaN(share) || share < 0.99 {
			t.Errorf("%s: kernel stamps on %.3f %% of the probes", direction, share*100)
		}
	}
}

// watchAgents measures CPU and memory of the agents.
func watchAgents(t *testing.T, over time.Duration) string {
	t.Helper()
	before := agents(t)
	start := time.Now()
	<-time.After(over)
	var cpu, rss []float64
	for pid, a := range agents(t) {
		if b, ok := before[pid]; ok {
			cpu = append(cpu, (a.cpu-b.cpu)/time.Since(start).Seconds()*100)
			rss = append(rss, a.rss)
		}
	}
	sort.Float64s(cpu)
	return fmt.Sprintf("%d agents: CPU median %.1f %% of a core (max %.1f), RSS median %.1f MB (max %.1f)", len(cpu), percentile(cpu, 0.5), percentile(cpu, 1), percentile(rss, 0.5), percentile(rss, 1))
}

type usage struct{ cpu, rss float64 } // seconds, MB

func agents(t *testing.T) map[string]usage {
	t.Helper()
	out := map[string]usage{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		cmd, err := os.ReadFile(dir + "/cmdline")
		if err != nil || !strings.HasPrefix(string(cmd), filepath.Join(bin, "graylink-node")) {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		// proc(5): utime and stime are fields 14 and 15, rss is field 24; two are cut off before.
		utime, _ := strconv.ParseFloat(f[11], 64)
		stime, _ := strconv.ParseFloat(f[12], 64)
		pages, _ := strconv.ParseFloat(f[21], 64)
		const ticks = 100
		out[dir] = usage{(utime + stime) / ticks, pages * float64(os.Getpagesize()) / 1e6}
	}
	return out
}

// traceCommand runs graylink trace against the agents of the lab that is up.
func traceCommand(t *testing.T) {
	t.Helper()
	for _, way := range [][]string{{}, {"--reverse"}} {
		args := append([]string{"trace", "h1/eth1", "h8/eth1", "--lab", "e2eh", "--format", "json"}, way...)
		stdout, stderr, code := graylink(t, args...)
		var got struct {
			Edge, State string
			Hops        []struct{ Switch, In, Out, Address string }
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v: %s %s", code, err, stdout, stderr)
		}
		first, last := "leaf1", "leaf4"
		if len(way) > 0 {
			first, last = last, first
		}
		if got.State != "valid" || len(got.Hops) != 3 || got.Hops[0].Switch != first || got.Hops[2].Switch != last {
			t.Errorf("trace %v: %s", way, stdout)
		}
	}
	if _, stderr, code := graylink(t, "trace", "h1/eth1", "h99/eth1", "--lab", "e2eh"); code != 1 || !strings.Contains(stderr, "h99/eth1") {
		t.Errorf("an unknown NIC: exit code %d: %s", code, stderr)
	}
}

// valuesOf returns what reads the present value of a query from a demo's Prometheus, and fails the test if there is none.
func valuesOf(t *testing.T, d *demo.Demo) func(query string) float64 {
	return func(query string) float64 {
		t.Helper()
		v, err := d.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
