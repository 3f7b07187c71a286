package node

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/probe"
)

// wires is an engine whose peer's clock is a second ahead and 20 ppm fast.
type wires struct {
	edges    []probe.EdgeConfig
	kind     clocksync.Kind
	from, to int64 // of the exchanges that come next
	related  map[clocksync.PairID]clocksync.Relation
	bounds   map[string]time.Duration
}

func (w *wires) far(t int64) int64 { return t + 1e9 + (t-1e18)/50000 }

func (w *wires) Exchanges(yield func(id clocksync.PairID, dir int, sent, received int64)) {
	for _, e := range w.edges {
		id := clocksync.PairID{Src: e.Src, Dst: e.Dst, Flow: e.Flow, Kind: w.kind}
		for t := w.from; t < w.to; t += 10e6 {
			jitter := t / 10e6 % 7 * 40
			yield(id, 0, t, w.far(t+5000+jitter))
			yield(id, 1, w.far(t+1e6), t+1e6+5000+(jitter+120)%280)
		}
	}
	w.from = w.to
}

func (w *wires) Relate(r map[clocksync.PairID]clocksync.Relation) {
	w.related = map[clocksync.PairID]clocksync.Relation{}
	for id, v := range r {
		w.related[id] = v
	}
}

func (w *wires) SetClockBound(nic string, bound time.Duration, known bool) {
	delete(w.bounds, nic)
	if known {
		w.bounds[nic] = bound
	}
}

func (w *wires) Config() *probe.Config { return &probe.Config{Edges: w.edges} }

func (w *wires) Clocks(yield func(nic string, k clocksync.Kind, width int64)) {
	yield("h1/eth1", w.kind, 800)
}

// TestClocksRelateAndReport takes a node's clocks through some windows: by pairs
// alone, by a coordinator's maps, and back.
func TestClocksRelateAndReport(t *testing.T) {
	w := &wires{edges: []probe.EdgeConfig{{Src: "h1/eth1", Dst: "h2/eth1", Cadence: 10 * time.Millisecond}}, from: 1e18, bounds: map[string]time.Duration{}}
	var reports []*clocksync.Report
	c := newClocks("h1", w, nil, func(b []byte) {
		r, err := clocksync.ParseReport(b)
		if err != nil {
			t.Fatal(err)
		}
		reports = append(reports, r)
	}, slog.New(slog.DiscardHandler))
	if _, ok := c.view("h1/eth1"); ok {
		t.Error("a view before the first window")
	}
	second := 0
	turn := func() {
		second++
		w.to = 1e18 + int64(second)*1e9
		c.turn(w.to, time.Duration(second)*time.Second)
	}
	id := clocksync.PairID{Src: "h1/eth1", Dst: "h2/eth1"}
	for range 5 {
		turn()
	}
	truth := w.far(w.to) - w.to
	r, ok := w.related[id]
	if !ok || math.Abs(float64(r.At(w.to)-truth)) > 500 {
		t.Errorf("by the pair alone h2 is %d ns ahead (%v), want %d", r.At(w.to), ok, truth)
	}
	if v, ok := c.view("h1/eth1"); !ok || v.State != clocksync.Converging || v.Known || len(w.bounds) != 0 {
		t.Errorf("before the coordinator spoke: %+v %v, bounds %v", v, ok, w.bounds)
	}
	last := reports[len(reports)-1]
	if len(reports) != 5 || last.Node != "h1" || last.End != w.to || len(last.Pairs) != 1 || last.Pairs[0].ID != id || len(last.Joins) != 0 {
		t.Errorf("%d reports, the last %+v", len(reports), last)
	}

	u := clocksync.Update{Frame: 3, Relative: true, Maps: []clocksync.ClockMap{
		{Clock: "h1", Map: clocksync.Map{State: clocksync.Locked, Ref: w.to, Offset: 4e9 + 250e6, Sigma: 20, Allowance: 60, Steps: 1}},
		{Clock: "h2", Map: clocksync.Map{State: clocksync.Locked, Ref: w.far(w.to), Offset: 4e9 + 250e6 - truth, Rate: -20e-6, Sigma: 20, Allowance: 60}}}}
	c.updated(u.Append(nil))
	if r := w.related[id]; math.Abs(float64(r.At(w.to)-truth)) > 1 || r.Bound < 200+120 || r.Bound > 2000 {
		t.Errorf("by the maps: %+v, want %d ns and both bounds", r, truth)
	}
	if b := w.bounds["h1/eth1"]; b < 160 || b > time.Microsecond {
		t.Errorf("packets say a bound of %v", b)
	}
	v, _ := c.view("h1/eth1")
	if v.State != clocksync.Locked || v.Offset != -4.25e9 || v.Whole != -4 || v.Steps != 1 {
		t.Errorf("view %+v, want 4.25 s behind the frame, 4 of them whole", v)
	}
	if got := c.relations(); len(got) != 1 || got[0].Edge != "h1/eth1>h2/eth1#0" || got[0].Timestamp != "kernel" {
		t.Errorf("relations %+v", got)
	}

	c.updated([]byte("no update")) // is told of in the log, and changes nothing
	for range 6 {
		turn()
	}
	if v, _ := c.view("h1/eth1"); v.State != clocksync.Holdover {
		t.Errorf("six silent seconds later: %v, want holdover", v.State)
	}
	truth = w.far(w.to) - w.to
	if r := w.related[id]; math.Abs(float64(r.At(w.to)-truth)) > 500 {
		t.Errorf("without a coordinator h2 is %d ns ahead, want %d", r.At(w.to), truth)
	}

	w.edges = nil
	turn()
	if len(w.related) != 0 || len(c.pairs) != 0 {
		t.Errorf("an edge that is probed no more: %v, %d pairs", w.related, len(c.pairs))
	}
}

// TestClocksJoinANICsOwn: a NIC that stamps by its own clock is told to hang
// together with the system's.
func TestClocksJoinANICsOwn(t *testing.T) {
	w := &wires{edges: []probe.EdgeConfig{{Src: "h1/eth1", Dst: "h2/eth1", Cadence: 10 * time.Millisecond}}, kind: clocksync.Hardware, from: 1e18, to: 1e18 + 1e9, bounds: map[string]time.Duration{}}
	var report *clocksync.Report
	c := newClocks("h1", w, nil, func(b []byte) { report, _ = clocksync.ParseReport(b) }, slog.New(slog.DiscardHandler))
	c.turn(w.to, time.Second)
	if report == nil || len(report.Joins) != 1 || report.Joins[0] != (clocksync.Join{A: "h1", B: "h1/eth1", Ref: w.to, Width: 800}) {
		t.Errorf("report %+v, want the NIC's clock joined to the system's by a reading 800 ns wide", report)
	}
	if got := c.relations(); len(got) != 1 || got[0].Timestamp != "hardware" {
		t.Errorf("relations %+v", got)
	}
}
