package analyzer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
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
	clockSteady       = 10 * time.Second
	causesEvery       = 5 // cycles
	settledAfter      = 30
)

func TestLoopNothingIsSaidBeforeBaselines(t *testing.T) {
	r := looptest.NewRig(t, 1)
	for range 5 {
		if s := r.Step(); s.Report.State != fabric.InsufficientEvidence {
			t.Fatalf("state %s without a baseline", s.Report.State)
		}
	}
}

func TestLoopDelay(t *testing.T) {
	r := looptest.NewRig(t, 1)
	r.Learn()
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.World.Delay[d] = 2e6
	took := r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return s.Report.State == fabric.Suspect && len(s.Report.Verdicts) > 0 })
	if took < confirmOf {
		t.Errorf("verdict after %d windows, before %d confirmed it", took, confirmOf)
	}
	s := r.Loop.Snapshot()
	if v := looptest.OpenVerdicts(s); len(v) != 1 || v[0] != d.LinkID()+" "+d.String()+" corridor" {
		t.Fatalf("verdicts %q", v)
	}
	id := s.Report.Verdicts[0].ID
	for range 10 {
		s = r.Step()
	}
	if len(s.Incidents) != 1 || s.Incidents[0].ID != id {
		t.Errorf("a verdict that lasts became %d incidents", len(s.Incidents))
	}
	delete(r.World.Delay, d)
	r.Until(12, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	r.Until(5, "innocence", func(s snapshot.Snapshot) bool { return s.Report.State == fabric.Innocent })
	if in := r.Loop.Snapshot().Incidents[0]; in.Open || in.Cleared == nil || in.Closed == "" {
		t.Errorf("closed incident %+v", in)
	}
}

// TestLoopFlap: a fifth of the packets is lost in every window of two seconds, and all
// of that in one of the two.
func TestLoopFlap(t *testing.T) {
	for _, bursts := range []bool{true, false} {
		r := looptest.NewRig(t, 1)
		r.Learn()
		d := fabric.Direction{From: "spine1:dn1", To: "leaf1:up1"}
		r.World.Loss[d], r.Bursts = 0.2, bursts
		r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
		for range 4 {
			r.Step()
		}
		want := d.LinkID() + " " + d.String() + " corridor"
		if bursts {
			want = d.LinkID() + " " + d.String() + " flap"
		}
		if v := looptest.OpenVerdicts(r.Loop.Snapshot()); len(v) != 1 || v[0] != want {
			t.Errorf("verdicts %q, want %q", v, want)
		}
		r.World.Loss[d] = 0
		took := r.Until(20, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
		if bursts && took < incident.SpanningClearAfter {
			t.Errorf("cleared after %d cycles: it may have paused", took)
		}
	}
}

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
	t.Run("they come back in time", func(t *testing.T) {
		r := begin(t)
		for range confirmOf + openAfter + 1 {
			if s := r.Step(); open(s) {
				t.Fatalf("%q: %s", looptest.OpenVerdicts(s), asks)
			}
		}
		silenceOthers(r, false)
		r.Until(6, "a verdict", open)
		if v := looptest.OpenVerdicts(r.Loop.Snapshot()); len(v) != 1 || v[0] != right {
			t.Errorf("verdicts %q, want %q", v, right)
		}
	})
	t.Run("they come back too late", func(t *testing.T) {
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
		if s.Report.Verdicts[0].FirstSeen != first.FirstSeen || !strings.Contains(s.Incidents[1].Closed, "replaced") {
			t.Errorf("incidents %+v", s.Incidents)
		}
	})
}

// silenceOthers makes all agents but those under leaf1 and leaf2 silent, or speak again.
func silenceOthers(r *looptest.Rig, silent bool) {
	for _, nic := range r.World.Graph.NICIDs() {
		if leaf := fabric.OwnerOf(r.World.Graph.PeerOf(nic)); leaf != "leaf1" && leaf != "leaf2" {
			r.Silent[fabric.OwnerOf(nic)] = silent
		}
	}
}

func TestLoopGlitchIsNoVerdict(t *testing.T) {
	r := looptest.NewRig(t, 2)
	r.Learn()
	d := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	for range 5 {
		r.World.Delay[d] = 2e6
		r.Step()
		r.Step()
		delete(r.World.Delay, d)
		for range 4 {
			if s := r.Step(); len(s.Incidents) != 0 {
				t.Fatalf("two bad windows made %q", looptest.OpenVerdicts(s))
			}
		}
	}
}

// TestLoopLinkDown: all that crosses a link dies, is routed around three
// seconds later, and the verdict must stand until the link is used again.
func TestLoopLinkDown(t *testing.T) {
	r := looptest.NewRig(t, 3)
	r.Learn()
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	el := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
	old := map[fabric.Flow]fabric.Path{}
	r.World.Loss[d] = 1
	detour := func(e fabric.Flow) {
		from, to := e.Endpoints()
		for _, p := range r.World.Graph.ShortestPaths(from, to, 16) {
			if !el.CrossedBy(p, from, to) {
				old[e], r.World.Paths[e] = r.World.Paths[e], p
				return
			}
		}
	}
	// The switch at the link's end reroutes at once, the others three seconds later.
	for e, p := range r.World.Paths {
		from, to := e.Endpoints()
		if el.CrossedBy(p, from, to) && len(p) > 1 && p[0].Switch == "leaf2" {
			detour(e)
		}
	}
	took := 0
	for range 3 {
		took++
		if s := r.Step(); len(s.Report.Verdicts) > 0 {
			break
		}
	}
	for e, p := range r.World.Paths {
		from, to := e.Endpoints()
		if el.CrossedBy(p, from, to) {
			detour(e)
		}
	}
	if len(r.Loop.Snapshot().Report.Verdicts) == 0 {
		took += r.Until(4, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	}
	if took > 5 {
		t.Errorf("verdict after %d s, a hard failure's is due within 5", took)
	}
	for range 40 {
		s := r.Step()
		if v := looptest.OpenVerdicts(s); len(v) != 1 || v[0] != d.LinkID()+" "+d.String()+" hard_failure" {
			t.Fatalf("verdicts while the link is unused: %q", v)
		}
	}
	if in := r.Loop.Snapshot().Incidents[0]; in.Held == "" {
		t.Error("nothing says why the verdict is held")
	}
	delete(r.World.Loss, d)
	for e, p := range old {
		r.World.Paths[e] = p
	}
	r.Until(15, "the all-clear after the link is used again", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
}

// TestLoopOldPathsClearNothing: flows that look healthy by a path traced before
// the failure have been routed around it; they do not clear it.
func TestLoopOldPathsClearNothing(t *testing.T) {
	r := looptest.NewRig(t, 3)
	r.Learn()
	d := fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}
	r.World.Loss[d] = 1
	r.Until(5, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	r.Untraced = true
	delete(r.World.Loss, d) // as the probes see it: all of them arrive again
	for range 30 {
		if s := r.Step(); len(s.Report.Verdicts) != 1 {
			t.Fatal("cleared by paths that were never traced again")
		}
	}
	r.Untraced = false
	r.Until(12, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
}

func TestLoopBlackholeStays(t *testing.T) {
	r := looptest.NewRig(t, 4)
	r.Learn()
	d := fabric.Direction{From: "leaf3:up2", To: "spine2:dn3"}
	r.World.Loss[d] = 1
	r.Until(5, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	for range 20 {
		if v := looptest.OpenVerdicts(r.Step()); len(v) != 1 || v[0] != d.LinkID()+" "+d.String()+" hard_failure" {
			t.Fatalf("verdicts %q", v)
		}
	}
	delete(r.World.Loss, d)
	r.Until(15, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	if n := len(r.Loop.Snapshot().Incidents); n != 1 {
		t.Errorf("%d incidents from one fault", n)
	}
}

// TestLoopHostTrouble: a node that is starved or silent never makes a verdict
// against the fabric, however bad its numbers are.
func TestLoopHostTrouble(t *testing.T) {
	for name, break_ := range map[string]func(r *looptest.Rig){
		"starved": func(r *looptest.Rig) { r.Late["h3"] = true },
		"silent":  func(r *looptest.Rig) { r.Silent["h3"] = true },
	} {
		r := looptest.NewRig(t, 5)
		r.Learn()
		break_(r)
		in := fabric.Direction{From: r.World.Graph.PeerOf("h3/eth1"), To: "h3/eth1"}
		r.World.Loss[in], r.World.Delay[in.Reverse()] = 1, 9e6
		for range 15 {
			if s := r.Step(); len(s.Incidents) != 0 || s.Hosts["h3"] == "" {
				t.Fatalf("%s: verdicts %q, hosts %v", name, looptest.OpenVerdicts(s), s.Hosts)
			}
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

func TestLoopClockDrift(t *testing.T) {
	r := looptest.NewRig(t, 6)
	r.Learn()
	for range 12 {
		r.World.Clock["h2/eth1"] -= 50e3
		r.Step()
	}
	s := r.Loop.Snapshot()
	if v := looptest.OpenVerdicts(s); len(v) != 1 || v[0] != "h2/eth1  clock" || !strings.Contains(s.Report.Verdicts[0].Summary, "ppm slower than before") {
		t.Errorf("verdicts %q: %+v", v, s.Report.Verdicts)
	}
}

// TestLoopClockCounts: what a node counts names its clock though the flows are
// measured right again.
func TestLoopClockCounts(t *testing.T) {
	r := looptest.NewRig(t, 6)
	r.Learn()
	r.Steps = map[string]float64{"h2/eth1": 3, "h3/eth1": 1}
	r.Step()
	r.Steps["h2/eth1"] = 4
	if took := r.Until(4, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Incidents) > 0 }); took != openAfter {
		t.Errorf("verdict after %d windows, want %d", took, openAfter)
	}
	if v := looptest.OpenVerdicts(r.Loop.Snapshot()); len(v) != 1 || v[0] != "h2/eth1  clock" {
		t.Fatalf("verdicts %q", v)
	}
	if took := r.Until(20, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 }); took != 10 {
		t.Errorf("all-clear after %d s, want 10", took)
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

// TestLoopAClockVerdictDoesNotWait: flows elsewhere that are not confirmed yet say
// nothing about a clock.
func TestLoopAClockVerdictDoesNotWait(t *testing.T) {
	r := looptest.NewRig(t, 6)
	r.Learn()
	r.World.Clock["h2/eth1"] = 5e6
	r.World.Slow["leaf4"] = 2e6
	r.Step()
	if v := looptest.OpenVerdicts(r.Step()); len(v) != 1 || v[0] != "h2/eth1  clock" {
		t.Errorf("verdicts %q in the second window", v)
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

// TestLoopIncidentDoesNotTeach: a fault of a minute must not become normal.
func TestLoopIncidentDoesNotTeach(t *testing.T) {
	r := looptest.NewRig(t, 7)
	r.Learn()
	r.World.Slow["spine1"] = 1e6
	r.Until(8, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	for range 150 {
		if v := looptest.OpenVerdicts(r.Step()); len(v) != 1 || v[0] != "spine1  hot_spine" {
			t.Fatalf("verdicts %q", v)
		}
	}
}
