package analyzer

import (
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
)

// drain puts elements of a rig under maintenance, from now until lift is called.
func (r *rig) drain(relearn bool, elements ...string) {
	if r.loop.opts.Maintenance == nil {
		r.loop.opts.Maintenance = maintenance.NewRegister(r.w.g)
	}
	var ws []maintenance.Window
	for _, e := range elements {
		ws = append(ws, maintenance.Window{Element: e, From: r.now, By: "ann", Reason: "optics", Relearn: relearn})
	}
	r.loop.opts.Maintenance.ReplaceSource(maintenance.SourceFile, ws, r.now)
}

// normal returns the medians of all baselines.
func (r *rig) normal() map[fabric.Flow]int64 {
	out := map[fabric.Flow]int64{}
	for e, m := range r.loop.flowRecords {
		if m.baseline != nil {
			out[e] = *m.baseline.P50
		}
	}
	return out
}

// TestLoopDrainedSpine: rules 2, 4 and 5 of maintenance.
func TestLoopDrainedSpine(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	r.drain(false, "spine2")
	before := r.normal()
	r.w.slow["spine2"] = 5e6
	r.w.loss[fabric.Direction{From: "leaf1:up2", To: "spine2:dn1"}] = 0.5
	excluded := 0
	for e, p := range r.w.paths {
		from, to := e.Endpoints()
		if (fabric.Element{ID: "spine2", Kind: fabric.KindSwitch}).CrossedBy(p, from, to) {
			excluded++
		}
	}
	for range 60 {
		s := r.step()
		if len(s.Incidents) != 0 || s.Report.State != fabric.Innocent || len(s.Maintenance) != 1 {
			t.Fatalf("%s with %q, coverage %+v, %d windows", s.Report.State, openVerdicts(s), s.Report.Coverage, len(s.Maintenance))
		}
		said := 0
		for _, e := range s.Edges {
			if e.Condition == "maintenance" {
				said++
			}
		}
		if said != excluded || s.Report.Edges.Total != len(r.w.edges)-excluded {
			t.Fatalf("%d flows are excluded of %d that count, want %d of %d", said, s.Report.Edges.Total, excluded, len(r.w.edges)-excluded)
		}
	}
	for e, was := range before {
		p := r.w.paths[e]
		from, to := e.Endpoints()
		if is := r.normal()[e]; is != was && (fabric.Element{ID: "spine2", Kind: fabric.KindSwitch}).CrossedBy(p, from, to) {
			t.Errorf("%s: the drained spine taught its flow %d, was %d", e, is, was)
		}
	}
	delete(r.w.slow, "spine2")
	clear(r.w.loss)
	r.step()
	r.step()
	r.drain(false)
	for i := range 20 {
		if s := r.step(); len(s.Incidents) != 0 || s.Report.State != fabric.Innocent || i > 4 && s.Report.Edges.Total != len(r.w.edges) {
			t.Fatalf("afterwards: %s with %q, %+v", s.Report.State, openVerdicts(s), s.Report.Edges)
		}
	}
	r.w.slow["spine2"] = 5e6
	r.until(8, "a verdict, when it is not under maintenance", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
}

// TestLoopMaintenanceClosesVerdicts checks rule 3. A fault that is still there opens a new verdict.
func TestLoopMaintenanceClosesVerdicts(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.w.delay[d] = 2e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	r.drain(false, d.LinkID())
	for range 10 {
		s := r.step()
		if in := s.Incidents[0]; len(s.Report.Verdicts) != 0 || in.Closed != "under maintenance by ann: optics" || in.Cleared == nil || in.Open {
			t.Fatalf("%q; %+v", openVerdicts(s), in)
		}
	}
	// Elsewhere everything is as ever.
	o := fabric.Direction{From: "leaf3:up2", To: "spine2:dn3"}
	r.w.delay[o] = 2e6
	r.until(8, "a verdict elsewhere", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	if v := openVerdicts(r.loop.Snapshot()); len(v) != 1 || !strings.HasPrefix(v[0], o.LinkID()) {
		t.Errorf("verdicts %q", v)
	}
	r.drain(false)
	r.until(12, "the verdict anew", func(s Snapshot) bool { return len(s.Report.Verdicts) == 2 })
}

// TestLoopSilencedLinkDies: a link under maintenance is pulled, routed around and plugged
// again.
func TestLoopSilencedLinkDies(t *testing.T) {
	r := newRig(t, 3)
	r.learn()
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	el := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
	r.drain(false, d.LinkID())
	quiet := func(n int) {
		t.Helper()
		for range n {
			if s := r.step(); len(s.Incidents) != 0 {
				t.Fatalf("verdicts %q", openVerdicts(s))
			}
		}
	}
	r.w.loss[d], r.w.loss[d.Reverse()] = 1, 1
	quiet(3)
	old := map[fabric.Flow]fabric.Path{}
	for e, p := range r.w.paths {
		from, to := e.Endpoints()
		if !el.CrossedBy(p, from, to) {
			continue
		}
		for _, other := range r.w.g.ShortestPaths(from, to, 16) {
			if !el.CrossedBy(other, from, to) {
				old[e], r.w.paths[e] = p, other
				break
			}
		}
	}
	quiet(20)
	clear(r.w.loss)
	quiet(5)
	for e, p := range old {
		r.w.paths[e] = p
	}
	quiet(10)
	r.drain(false)
	quiet(20)
	if s := r.loop.Snapshot(); s.Report.State != fabric.Innocent {
		t.Errorf("afterwards: %s, %+v", s.Report.State, s.Report)
	}
}

// TestLoopRecabling checks that baselines are relearned after maintenance that requests it.
func TestLoopRecabling(t *testing.T) {
	for _, relearn := range []bool{true, false} {
		r := newRig(t, 1)
		r.learn()
		d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
		r.drain(relearn, d.LinkID())
		for range 5 {
			r.step()
		}
		r.w.delay[d] = 1e6 // a longer way
		for range 5 {
			r.step()
		}
		r.drain(false)
		some := false
		for range 40 {
			some = some || len(r.step().Incidents) > 0
		}
		if some == relearn {
			t.Errorf("relearn %v: a verdict: %v", relearn, some)
		}
		if s := r.loop.Snapshot(); relearn && (s.Report.State != fabric.Innocent || s.Baselines != len(r.w.edges)) {
			t.Errorf("afterwards: %s, %d baselines", s.Report.State, s.Baselines)
		}
		if len(r.loop.touchedByWindow) != 0 {
			t.Errorf("%d windows are remembered", len(r.loop.touchedByWindow))
		}
	}
}

// TestLoopMaintenanceOfANode checks that there are no verdicts on its host, NICs and clock.
func TestLoopMaintenanceOfANode(t *testing.T) {
	r := newRig(t, 6)
	r.learn()
	r.steps = map[string]float64{"h2/eth1": 3}
	r.step()
	r.drain(false, "h2")
	r.steps["h2/eth1"] = 4
	r.silent["h2"] = true
	r.w.clock["h2/eth1"] = 5e6
	r.w.loss[fabric.Direction{From: r.w.g.PeerOf("h2/eth1"), To: "h2/eth1"}] = 1
	for range 15 {
		if s := r.step(); len(s.Incidents) != 0 {
			t.Fatalf("verdicts %q", openVerdicts(s))
		}
	}
}

// TestLoopMaintenanceHasItsTime checks that a future window covers nothing, and a past window no fault
// that began after it.
func TestLoopMaintenanceHasItsTime(t *testing.T) {
	r := newRig(t, 1)
	r.learn()
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.loop.opts.Maintenance = maintenance.NewRegister(r.w.g)
	r.loop.opts.Maintenance.ReplaceSource(maintenance.SourceAPI, []maintenance.Window{{Element: d.LinkID(), From: r.now.Add(time.Hour)}, {Element: d.LinkID(), Until: r.now}}, r.now)
	for range 4 { // windows that saw the end are over
		r.step()
	}
	r.w.delay[d] = 2e6
	r.until(8, "a verdict", func(s Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	if s := r.loop.Snapshot(); len(s.Maintenance) != 1 {
		t.Errorf("%d windows are listed, want the future one", len(s.Maintenance))
	}
}
