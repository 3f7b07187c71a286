package analyzer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// How long the loop takes, by the rules of baseline and incident.
const (
	confirmOf         = 3 // windows
	openAfter         = 2 // cycles
	distinguishCycles = 8
	clearAfter        = 4
	causesEvery       = 5 // cycles
)

// TestLoopWaitsForDistinguishingFlows: while the other leaves are silent, the two links
// from leaf1 over a spine to leaf2 are crossed by the same flows.
func TestLoopWaitsForDistinguishingFlows(t *testing.T) {
	const asks = "the verdict waits for the flows that could distinguish the elements"
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	begin := func(t *testing.T) *looptest.Rig {
		r := looptest.NewRig(t, 5)
		r.Learn()
		r.World.Delay[d] = 2e6
		silenceOthers(r, true)
		return r
	}
	right := d.LinkID() + " " + d.String() + " corridor"
	open := func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 }
	r := begin(t)
	if took := r.Until(confirmOf+distinguishCycles+1, "a verdict", open); took < distinguishCycles {
		t.Errorf("after %d cycles: %s", took, asks)
	}
	s := r.Loop.Snapshot()
	first := s.Report.Verdicts[0]
	link := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
	if first.Element == link || !slices.Contains(first.Equivalent, link) {
		t.Fatalf("%q with equivalents %v, want another link, and %v among them", looptest.OpenVerdicts(s), first.Equivalent, link)
	}
	silenceOthers(r, false)
	r.Until(6, "the right name", func(s snapshot.Snapshot) bool { v := looptest.OpenVerdicts(s); return len(v) == 1 && v[0] == right })
	s = r.Loop.Snapshot()
	if v := s.Report.Verdicts[0]; v.FirstSeen != first.FirstSeen || v.ID != first.ID || len(s.Incidents) != 1 {
		t.Errorf("incidents %+v", s.Incidents)
	}
}

// silenceOthers makes all agents but those under leaf1 and leaf2 silent, or speak again.
func silenceOthers(r *looptest.Rig, silent bool) {
	for _, nic := range r.World.Graph.NICIDs() {
		if leaf := fabric.OwnerOf(r.World.Graph.PeerOf(nic)); leaf != "leaf1" && leaf != "leaf2" {
			r.Silent[fabric.OwnerOf(nic)] = silent
		}
	}
}

// TestLoopClockStep: by the flows alone a clock that jumps is named, while it is
// off and until it has been steady for a while.
func TestLoopClockStep(t *testing.T) {
	r := looptest.NewRig(t, 6)
	r.Learn()
	r.Step()
	was := r.Baselines()[fabric.Flow{Src: "h2/eth1", Dst: "h5/eth1"}]
	r.World.Clock["h2/eth1"] = 5e6
	if took := r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Incidents) > 0 }); took != openAfter {
		t.Errorf("verdict after %d windows, want %d", took, openAfter)
	}
	for range 30 {
		s := r.Step()
		if v := looptest.OpenVerdicts(s); len(v) != 1 || v[0] != "h2/eth1  clock" || s.Report.Verdicts[0].Kind != fabric.KindClock {
			t.Fatalf("verdicts %q", v)
		}
	}
	s := r.Loop.Snapshot()
	if text := s.Report.Verdicts[0].Summary; !strings.Contains(text, "The clock of h2/eth1 jumped ahead by about 5 ms") {
		t.Errorf("summary %q", text)
	}
	if s.Report.Edges.ClockSuspect != 28 || s.Report.Edges.Degraded != 0 {
		t.Errorf("edges %+v", s.Report.Edges)
	}
	delete(r.World.Clock, "h2/eth1")
	took := r.Until(20, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	if took < 10 || took > 11 {
		t.Errorf("all-clear after %d s, want 10", took)
	}
	r.Until(5, "innocence", func(s snapshot.Snapshot) bool { return s.Report.State == fabric.Innocent })
	if len(r.Loop.Snapshot().Incidents) != 1 {
		t.Errorf("incidents %+v", r.Loop.Snapshot().Incidents)
	}
	if is := r.Baselines()[fabric.Flow{Src: "h2/eth1", Dst: "h5/eth1"}]; is-was > 1000 || was-is > 1000 {
		t.Errorf("the clock's step moved a baseline from %d to %d ns", was, is)
	}
}

// TestLoopClockCountsLater: a node that counts a change which the flows showed before gives the summary. The
// affected flows stay.
func TestLoopClockCountsLater(t *testing.T) {
	r := looptest.NewRig(t, 6)
	r.Learn()
	r.Steps = map[string]float64{"h2/eth1": 3}
	r.Step()
	r.World.Clock["h2/eth1"] = 5e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Incidents) > 0 })
	delete(r.World.Clock, "h2/eth1")
	r.Steps["h2/eth1"] = 4
	r.Step()
	in := r.Loop.Snapshot().Incidents[0]
	if !strings.Contains(in.Summary, "its node recorded the change") || in.Evidence.ExplainedEdges != 28 || in.BlastRadius.Edges != 28 || len(in.Edges) != 28 {
		t.Errorf("%q, %+v", in.Summary, in.Evidence)
	}
}

// TestLoopADelayDragsAClock: a node counts a step because its NIC became slow. Clocks are
// innocent, and the NIC is named.
func TestLoopADelayDragsAClock(t *testing.T) {
	r := looptest.NewRig(t, 6)
	r.Learn()
	r.Steps = map[string]float64{"h2/eth1": 3}
	r.Step()
	d := fabric.Direction{From: "leaf1:dn2", To: "h2/eth1"}
	named := map[string]bool{}
	cycles := func(n int) {
		for range n {
			for _, v := range looptest.OpenVerdicts(r.Step()) {
				named[v] = true
			}
		}
	}
	r.World.Delay[d], r.World.Clock["h2/eth1"] = 2e6, 1e6
	cycles(2)
	r.Steps["h2/eth1"] = 4
	cycles(10)
	r.World.Clock["h2/eth1"] = 0
	cycles(10)
	if named["h2/eth1  clock"] || !named["h2/eth1 leaf1:dn2->h2/eth1 bad_nic"] {
		t.Errorf("verdicts %v", named)
	}
	clear(named)
	r.World.Delay[d], r.World.Clock["h2/eth1"] = 0, -1e6
	cycles(2)
	r.Steps["h2/eth1"] = 5
	cycles(2)
	r.World.Clock["h2/eth1"] = 0
	cycles(20)
	for v := range named {
		if v != "h2/eth1 leaf1:dn2->h2/eth1 bad_nic" {
			t.Errorf("verdict %q when it is over", v)
		}
	}
}

// TestLoopClocksMakeNoDelay: with an unrelated clock no delay counts. Losses count, and the sum of both
// directions has no direction.
func TestLoopClocksMakeNoDelay(t *testing.T) {
	d := fabric.Direction{From: "leaf1:dn2", To: "h2/eth1"}
	for name, doubt := range map[string]func(r *looptest.Rig){
		"converging": func(r *looptest.Rig) { r.States = map[string]string{"h2/eth1": "converging"} },
		"lost":       func(r *looptest.Rig) { r.States = map[string]string{"h2/eth1": "lost"} },
	} {
		r := looptest.NewRig(t, 6)
		r.Learn()
		doubt(r)
		r.World.Clock["h2/eth1"] = 2e6
		for range 15 {
			if s := r.Step(); len(s.Incidents) != 0 || s.Report.Edges.ClockSuspect != 28 {
				t.Fatalf("%s: verdicts %q, edges %+v", name, looptest.OpenVerdicts(s), s.Report.Edges)
			}
		}
		r.World.Loss[d] = 0.2
		r.Until(10, "a verdict about the loss", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
		if v := r.Loop.Snapshot().Report.Verdicts; len(v) != 1 || v[0].Element.ID != "h2/eth1" || v[0].Kind != fabric.KindNIC || v[0].Symptom.AddedDelayNS != 0 {
			t.Errorf("%s: verdicts %+v", name, v)
		}
		r = looptest.NewRig(t, 6)
		r.Learn()
		doubt(r)
		r.World.Clock["h2/eth1"], r.World.Delay[d] = 2e6, 4e6
		r.Until(10, "a verdict by the sums", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
		if v := looptest.OpenVerdicts(r.Loop.Snapshot()); len(v) != 1 || v[0] != "h2/eth1  bad_nic" {
			t.Errorf("%s: verdicts %q by the sums", name, v)
		}
	}
	for _, state := range []string{"locked", "holdover"} {
		r := looptest.NewRig(t, 6)
		r.Learn()
		r.States = map[string]string{"h2/eth1": state}
		r.World.Delay[d] = 2e6
		r.Until(10, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	}
}
