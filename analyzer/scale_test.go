//go:build scale

package analyzer_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	config_util "github.com/prometheus/common/config"

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

var scaleRules = flag.Bool("scale.rules", true, "measure every recording rule")

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
	if *scaleRules {
		d.rules(w, api, func(name string, times int, ask func() int) { measure(name, times, none, ask) })
	}
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
