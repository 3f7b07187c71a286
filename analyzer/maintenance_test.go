package analyzer_test

import (
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// newMaintenanceRig returns a rig whose loop has a register of maintenance windows, and has learnt.
func newMaintenanceRig(t *testing.T, seed uint64) *looptest.Rig {
	r := looptest.NewRig(t, seed)
	r.Configure(func(o *analyzer.LoopOptions) { o.Maintenance = maintenance.NewRegister(r.World.Graph) })
	r.Learn()
	return r
}

// drain puts elements of a rig under maintenance, from now until it is called again.
func drain(r *looptest.Rig, relearn bool, elements ...string) {
	var ws []maintenance.Window
	for _, e := range elements {
		ws = append(ws, maintenance.Window{Element: e, From: r.Now, By: "ann", Reason: "optics", Relearn: relearn})
	}
	r.Loop.MaintenanceRegister().ReplaceSource(maintenance.SourceFile, ws, r.Now)
}

// TestLoopDrainedSpine: rules 2, 4 and 5 of maintenance.
func TestLoopDrainedSpine(t *testing.T) {
	r := newMaintenanceRig(t, 1)
	drain(r, false, "spine2")
	before := r.Baselines()
	r.World.Slow["spine2"] = 5e6
	r.World.Loss[fabric.Direction{From: "leaf1:up2", To: "spine2:dn1"}] = 0.5
	excluded := 0
	for e, p := range r.World.Paths {
		from, to := e.Endpoints()
		if (fabric.Element{ID: "spine2", Kind: fabric.KindSwitch}).CrossedBy(p, from, to) {
			excluded++
		}
	}
	for range 60 {
		s := r.Step()
		if len(s.Incidents) != 0 || s.Report.State != fabric.Innocent || len(s.Maintenance) != 1 {
			t.Fatalf("%s with %q, coverage %+v, %d windows", s.Report.State, looptest.OpenVerdicts(s), s.Report.Coverage, len(s.Maintenance))
		}
		said := 0
		for _, e := range s.Edges {
			if e.Condition == snapshot.Maintenance {
				said++
			}
		}
		if said != excluded || s.Report.Edges.Total != len(r.World.Flows)-excluded {
			t.Fatalf("%d flows are excluded of %d that count, want %d of %d", said, s.Report.Edges.Total, excluded, len(r.World.Flows)-excluded)
		}
	}
	for e, was := range before {
		p := r.World.Paths[e]
		from, to := e.Endpoints()
		if is := r.Baselines()[e]; is != was && (fabric.Element{ID: "spine2", Kind: fabric.KindSwitch}).CrossedBy(p, from, to) {
			t.Errorf("%s: the drained spine taught its flow %d, was %d", e, is, was)
		}
	}
	delete(r.World.Slow, "spine2")
	clear(r.World.Loss)
	r.Step()
	r.Step()
	drain(r, false)
	for i := range 20 {
		if s := r.Step(); len(s.Incidents) != 0 || s.Report.State != fabric.Innocent || i > 4 && s.Report.Edges.Total != len(r.World.Flows) {
			t.Fatalf("afterwards: %s with %q, %+v", s.Report.State, looptest.OpenVerdicts(s), s.Report.Edges)
		}
	}
	r.World.Slow["spine2"] = 5e6
	r.Until(8, "a verdict, when it is not under maintenance", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
}

// TestLoopMaintenanceHasItsTime checks that a future window covers nothing, and a past window no fault
// that began after it.
func TestLoopMaintenanceHasItsTime(t *testing.T) {
	r := newMaintenanceRig(t, 1)
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.Loop.MaintenanceRegister().ReplaceSource(maintenance.SourceAPI, []maintenance.Window{{Element: d.LinkID(), From: r.Now.Add(time.Hour)}, {Element: d.LinkID(), Until: r.Now}}, r.Now)
	for range 4 { // windows that saw the end are over
		r.Step()
	}
	r.World.Delay[d] = 2e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	if s := r.Loop.Snapshot(); len(s.Maintenance) != 1 {
		t.Errorf("%d windows are listed, want the future one", len(s.Maintenance))
	}
}
