package nodeagent

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/probe"
)

// wires represents an engine whose peer's clock is a second ahead and 20 ppm fast.
type wires struct {
	edges    []probe.EdgeConfig
	kind     clocksync.Kind
	from, to int64 // of the exchanges that come next
	related  map[clocksync.PairID]clocksync.Relation
	bounds   map[string]time.Duration
	seen     []clocksync.Witness
}

func (w *wires) far(t int64) int64 { return t + 1e9 + (t-1e18)/50000 }

func (w *wires) DrainExchanges(yield func(id clocksync.PairID, dir int, sent, received int64)) {
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

func (w *wires) SetRelations(r map[clocksync.PairID]clocksync.Relation) {
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

func (w *wires) NodeTime(t int64) int64 { return t }
func (w *wires) Now() time.Time         { return time.Unix(0, w.to) }

func (w *wires) Config() *probe.Config { return &probe.Config{Edges: w.edges} }

func (w *wires) ClockWitnesses(yield func(clocksync.Witness)) {
	for _, s := range w.seen {
		yield(s)
	}
}

func (w *wires) ClockKinds(yield func(nic string, k clocksync.Kind, width int64)) {
	yield("h1/eth1", w.kind, 800)
}

// TestClocksRelateAndReport drives a node's clocks through several windows: with pairs alone, with a coordinator's
// maps, and with pairs again.
func TestClocksRelateAndReport(t *testing.T) {
	w := &wires{edges: []probe.EdgeConfig{{Src: "h1/eth1", Dst: "h2/eth1", Cadence: 10 * time.Millisecond}}, from: 1e18, bounds: map[string]time.Duration{}}
	var reports []*clocksync.Report
	c := newClocks("h1", w, func(b []byte) {
		r, err := clocksync.ParseReport(b)
		if err != nil {
			t.Fatal(err)
		}
		reports = append(reports, r)
	}, slog.New(slog.DiscardHandler))
	if _, ok := c.ViewOf("h1/eth1"); ok {
		t.Error("a view before the first window")
	}
	second := 0
	turn := func() {
		second++
		w.to = 1e18 + int64(second)*1e9
		c.closeWindow(w.to, time.Duration(second)*time.Second)
	}
	id := clocksync.PairID{Src: "h1/eth1", Dst: "h2/eth1"}
	for range 5 {
		turn()
	}
	truth := w.far(w.to) - w.to
	r, ok := w.related[id]
	if !ok || math.Abs(float64(r.OffsetAt(w.to)-truth)) > 500 {
		t.Errorf("by the pair alone h2 is %d ns ahead (%v), want %d", r.OffsetAt(w.to), ok, truth)
	}
	if v, ok := c.ViewOf("h1/eth1"); !ok || v.State != clocksync.Converging || v.Known || len(w.bounds) != 0 {
		t.Errorf("before the first update of the coordinator: %+v %v, bounds %v", v, ok, w.bounds)
	}
	last := reports[len(reports)-1]
	if len(reports) != 5 || last.Node != "h1" || last.End != w.to || len(last.Pairs) != 1 || last.Pairs[0].ID != id || len(last.Joins) != 0 {
		t.Errorf("%d reports, the last %+v", len(reports), last)
	}

	u := clocksync.Update{Frame: 3, Relative: true, Maps: []clocksync.ClockMap{
		{Clock: "h1", Map: clocksync.Map{State: clocksync.Locked, Ref: w.to, Offset: 4e9 + 250e6, Sigma: 20, Allowance: 60, Steps: 1}},
		{Clock: "h2", Map: clocksync.Map{State: clocksync.Locked, Ref: w.far(w.to), Offset: 4e9 + 250e6 - truth, Rate: -20e-6, Sigma: 20, Allowance: 60}}}}
	c.applyUpdate(u.AppendTo(nil), true)
	if r := w.related[id]; math.Abs(float64(r.OffsetAt(w.to)-truth)) > 1 || r.Bound < 200+120 || r.Bound > 2000 {
		t.Errorf("by the maps: %+v, want %d ns and both bounds", r, truth)
	}
	if b := w.bounds["h1/eth1"]; b < 160 || b > time.Microsecond {
		t.Errorf("packets say a bound of %v", b)
	}
	v, _ := c.ViewOf("h1/eth1")
	if v.State != clocksync.Locked || v.Offset != -4.25e9 || v.WholeSeconds != -4 || v.Steps != 1 {
		t.Errorf("view %+v, want 4.25 s behind the frame, 4 of them whole", v)
	}
	if got := c.listRelations(); len(got) != 1 || got[0].Edge != "h1/eth1>h2/eth1#0" || got[0].Timestamp != "kernel" {
		t.Errorf("relations %+v", got)
	}

	c.applyUpdate([]byte("no update"), true) // it is logged, and changes nothing
	for range 6 {
		turn()
	}
	if v, _ := c.ViewOf("h1/eth1"); v.State != clocksync.Holdover {
		t.Errorf("six silent seconds later: %v, want holdover", v.State)
	}
	truth = w.far(w.to) - w.to
	if r := w.related[id]; math.Abs(float64(r.OffsetAt(w.to)-truth)) > 500 {
		t.Errorf("without a coordinator h2 is %d ns ahead, want %d", r.OffsetAt(w.to), truth)
	}

	w.edges = nil
	turn()
	if len(w.related) != 0 || len(c.pairs) != 0 {
		t.Errorf("an edge that is no longer probed: %v, %d pairs", w.related, len(c.pairs))
	}
}

// TestClocksThatMove checks that a clock that edges see moving is neither claimed nor reported, until an update covers
// windows that began later.
func TestClocksThatMove(t *testing.T) {
	w := &wires{from: 1e18, bounds: map[string]time.Duration{}}
	ids := map[string]clocksync.PairID{}
	for _, peer := range []string{"h2", "h3", "h4"} {
		w.edges = append(w.edges, probe.EdgeConfig{Src: "h1/eth1", Dst: peer + "/eth1", Cadence: 10 * time.Millisecond})
		ids[peer] = clocksync.PairID{Src: "h1/eth1", Dst: peer + "/eth1"}
	}
	var report *clocksync.Report
	c := newClocks("h1", w, func(b []byte) { report, _ = clocksync.ParseReport(b) }, slog.New(slog.DiscardHandler))
	second := 0
	turn := func() {
		second++
		w.to = 1e18 + int64(second)*1e9
		c.closeWindow(w.to, time.Duration(second)*time.Second)
	}
	update := func() {
		u := clocksync.Update{Frame: 3, Maps: []clocksync.ClockMap{{Clock: "h1", Map: clocksync.Map{State: clocksync.Locked, Ref: w.to, Sigma: 20, Allowance: 60, Steps: 1}}}}
		for peer := range ids {
			u.Maps = append(u.Maps, clocksync.ClockMap{Clock: peer, Map: clocksync.Map{State: clocksync.Locked, Ref: w.far(w.to), Offset: w.to - w.far(w.to), Rate: -20e-6, Sigma: 20}})
		}
		c.applyUpdate(u.AppendTo(nil), true)
	}
	saw := func(edges, moved int) {
		w.seen = nil
		for i, peer := range []string{"h2", "h3", "h4"}[:edges] {
			w.seen = append(w.seen, clocksync.Witness{ID: ids[peer], By: -1e6, Moved: i < moved})
		}
		c.checkWitnesses(time.Duration(second)*time.Second + 300*time.Millisecond)
	}
	for range 4 {
		turn()
	}
	update()
	saw(3, 0)
	if v, _ := c.ViewOf("h1/eth1"); v.State != clocksync.Locked || len(w.related) != 3 || len(w.bounds) != 1 {
		t.Fatalf("at first: %v, %d edges related, bounds %v", v.State, len(w.related), w.bounds)
	}

	// One of three: that peer's clock, or its path's.
	saw(3, 1)
	if v, _ := c.ViewOf("h1/eth1"); v.State != clocksync.Locked || !v.Known || len(w.related) != 2 {
		t.Errorf("h2 moved: %v, %d edges related", v.State, len(w.related))
	}
	if _, ok := w.related[ids["h2"]]; ok {
		t.Error("h2 moved, and is still placed")
	}
	saw(3, 0)
	turn()
	if len(report.Pairs) != 2 {
		t.Errorf("a window in which h2 moved was reported: %+v", report.Pairs)
	}
	update()
	if len(w.related) != 2 {
		t.Error("h2 is placed by an update that may be of windows before it moved")
	}
	turn()
	if len(report.Pairs) != 3 || len(w.related) != 3 {
		t.Errorf("a window later %d pairs are reported and %d edges placed; h2's own pair knows", len(report.Pairs), len(w.related))
	}
	turn()
	update()

	// Two of three: the node's own clock.
	saw(3, 2)
	if v, _ := c.ViewOf("h1/eth1"); v.State != clocksync.Converging || v.Known || !v.Counted || v.Steps != 1 || len(w.related) != 0 || len(w.bounds) != 0 {
		t.Errorf("its own clock moved: %+v, %d edges related, bounds %v", v, len(w.related), w.bounds)
	}
	if own := c.listOwnClocks(); len(own) != 1 || own[0].Offset != nil || own[0].State != "converging" {
		t.Errorf("reports its clock as %+v", own)
	}
	saw(3, 0)
	turn()
	if len(report.Pairs) != 0 || report.Node != "h1" {
		t.Errorf("the window in which its own clock moved is reported: %+v", report)
	}
	update()
	turn()
	update()
	if v, _ := c.ViewOf("h1/eth1"); v.State != clocksync.Converging {
		t.Errorf("1.7 s later: %v", v.State)
	}
	turn()
	update()
	if v, _ := c.ViewOf("h1/eth1"); v.State != clocksync.Locked || !v.Known || len(w.related) != 3 || len(report.Pairs) != 3 {
		t.Errorf("2.7 s later: %v, %d edges related, %d pairs reported", v.State, len(w.related), len(report.Pairs))
	}
	if own := c.listOwnClocks(); len(own) != 1 || own[0].Offset == nil || own[0].Ref != w.to {
		t.Errorf("reports its clock as %+v", own)
	}
}

// TestClocksJoinANICsOwn checks that the clock of a NIC that stamps by itself is reported as joined to the system's
// clock.
func TestClocksJoinANICsOwn(t *testing.T) {
	w := &wires{edges: []probe.EdgeConfig{{Src: "h1/eth1", Dst: "h2/eth1", Cadence: 10 * time.Millisecond}}, kind: clocksync.Hardware, from: 1e18, to: 1e18 + 1e9, bounds: map[string]time.Duration{}}
	var report *clocksync.Report
	c := newClocks("h1", w, func(b []byte) { report, _ = clocksync.ParseReport(b) }, slog.New(slog.DiscardHandler))
	c.closeWindow(w.to, time.Second)
	if report == nil || len(report.Joins) != 1 || report.Joins[0] != (clocksync.Join{A: "h1", B: "h1/eth1", Ref: w.to, Width: 800}) {
		t.Errorf("report %+v, want the NIC's clock joined to the system's by a reading 800 ns wide", report)
	}
	if got := c.listRelations(); len(got) != 1 || got[0].Timestamp != "hardware" {
		t.Errorf("relations %+v", got)
	}
}

// TestSystemClockBound: the bound of the system clock has its offset from the frame, since records have the times of the clock as it
// is. It is unknown before there is a frame, while some nodes may follow an earlier one, and when the frame was lost long ago.
func TestSystemClockBound(t *testing.T) {
	w := &wires{edges: []probe.EdgeConfig{{Src: "h1/eth1", Dst: "h2/eth1", Cadence: 10 * time.Millisecond}}, from: 1e18, bounds: map[string]time.Duration{}}
	c := newClocks("h1", w, func([]byte) {}, slog.New(slog.DiscardHandler))
	second := 0
	turns := func(n int, frame uint64, offset int64) {
		for range n {
			second++
			w.to = 1e18 + int64(second)*1e9
			c.closeWindow(w.to, time.Duration(second)*time.Second)
			if frame != 0 {
				u := clocksync.Update{Frame: frame, Maps: []clocksync.ClockMap{{Clock: "h1", Map: clocksync.Map{State: clocksync.Locked, Ref: w.to, Offset: offset, Sigma: 20, Allowance: 60}}}}
				c.applyUpdate(u.AppendTo(nil), true)
			}
		}
	}
	expect := func(what string, least, most time.Duration) {
		t.Helper()
		b, known := c.systemClockBound()
		if known != (most > 0) || b < least || b > most {
			t.Errorf("%s: %v %v, want %v to %v", what, b, known, least, most)
		}
	}
	turns(20, 0, 0)
	expect("without a frame", 0, 0)
	turns(5, 3, 250e3)
	expect("with a new frame", 0, 0)
	turns(10, 3, 250e3)
	expect("250 us from the frame", 250*time.Microsecond, 252*time.Microsecond)
	turns(1, 3, -4e6)
	expect("4 ms from the frame", 4*time.Millisecond, 4002*time.Microsecond)
	unknown := 0
	for range 30 { // the other frame is followed when the first one has been silent
		turns(1, 4, 250e3)
		if _, known := c.systemClockBound(); !known {
			unknown++
		}
	}
	if unknown < 9 || unknown > 25 {
		t.Errorf("the bound is unknown for %d windows after the frame has changed", unknown)
	}
	expect("with the other frame for some time", 250*time.Microsecond, 252*time.Microsecond)
	second += 36000
	w.from = 1e18 + int64(second)*1e9
	turns(1, 0, 0)
	expect("without a coordinator for ten hours", 0, 0)
}
