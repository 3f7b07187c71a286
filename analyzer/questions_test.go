package analyzer_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/asking"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

var askingFaults = flag.Int("questions.faults", 12, "faults of TestAskingBack")

// sparseRig returns a rig whose flows leave much undistinguished: every NIC probes only a few others.
func sparseRig(t *testing.T, seed uint64, g *fabric.Graph, peers int) *looptest.Rig {
	r := looptest.NewRigOf(t, g, seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	wanted := map[string][]string{}
	for _, src := range g.NICIDs() {
		own, _ := g.LeafOf(src)
		others := slices.DeleteFunc(slices.Clone(g.NICIDs()), func(n string) bool { l, _ := g.LeafOf(n); return l == own })
		rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		wanted[src] = others[:peers]
	}
	w := r.World
	w.Flows = slices.DeleteFunc(w.Flows, func(f fabric.Flow) bool { return !slices.Contains(wanted[f.Src], f.Dst) })
	for f := range w.Paths {
		if !slices.Contains(wanted[f.Src], f.Dst) {
			delete(w.Paths, f)
		}
	}
	return r
}

// alikeDirections returns the directions between switches that the same flows cross as another one, two flows at least.
func alikeDirections(r *looptest.Rig) (out []fabric.Direction) {
	crossing := map[fabric.Direction]string{}
	count := map[fabric.Direction]int{}
	for _, f := range r.World.Flows {
		from, to := f.Endpoints()
		for _, d := range r.World.Paths[f].LinkDirections(from, to) {
			crossing[d] += f.String() + "\n"
			count[d]++
		}
	}
	with := map[string]int{}
	for _, d := range r.World.FabricDirections() {
		with[crossing[d]]++
	}
	for _, d := range r.World.FabricDirections() {
		if count[d] >= 3 && with[crossing[d]] > 1 {
			out = append(out, d)
		}
	}
	return out
}

// TestAskingBack: faults of links that the flows of the schedule cannot distinguish from others are named alone, or with
// what no flow can distinguish from them, soon after the verdict and under its identifier. No class excludes the truth.
func TestAskingBack(t *testing.T) {
	faults := *askingFaults
	narrowed, total := 0, 0
	g := worldtest.NewClos(t, 4, 6, 2)
	for seed := uint64(1); total < faults; seed++ {
		r := sparseRig(t, seed, g, 3)
		alike := alikeDirections(r)
		if len(alike) == 0 {
			continue
		}
		d := alike[int(seed)%len(alike)]
		r.Mesh = &looptest.Mesh{Limit: 24}
		r.Configure(func(o *analyzer.LoopOptions) { o.Asker, o.Expected = r.Mesh, len(r.World.Flows) })
		r.Learn()
		if seed%2 == 0 {
			r.World.Delay[d] = 2e6
		} else {
			r.World.Loss[d] = 0.1
		}
		truth := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
		var first fabric.Verdict
		open, done := 0, 0
		for cycle := 1; cycle <= 40 && done == 0; cycle++ {
			v := r.Step().Report.Verdicts
			switch {
			case len(v) == 0:
				continue
			case len(v) > 1:
				t.Fatalf("seed %d: %s: verdicts %v", seed, d, looptest.OpenVerdicts(r.Loop.Snapshot()))
			case open == 0:
				open, first = cycle, v[0]
			}
			if v[0].ID != first.ID {
				t.Errorf("seed %d: %s: the identifier changed from %s to %s", seed, d, first.ID, v[0].ID)
			}
			if v[0].Element != truth && !slices.Contains(v[0].Equivalent, truth) {
				t.Fatalf("seed %d: %s: %s with %v excludes the truth", seed, d, v[0].Element.ID, v[0].Equivalent)
			}
			if v[0].Element == truth && len(v[0].SameFlowEquivalents) == 0 {
				done = cycle
			}
		}
		if open == 0 || len(first.SameFlowEquivalents) == 0 {
			continue
		}
		total++
		last := r.Loop.Snapshot().Report.Verdicts[0]
		if done > 0 && done-open <= 10 {
			narrowed++
		} else {
			t.Logf("seed %d: %s: after %d cycles %s with %v; asked %+v", seed, d, done-open, last.Element.ID, last.SameFlowEquivalents, last.Evidence.Asked)
		}
		if len(last.Evidence.Asked) == 0 || len(last.Evidence.Asked[0].Flows) == 0 {
			t.Errorf("seed %d: asked %+v", seed, last.Evidence.Asked)
		}
		// When the flows have ended, what they excluded does not return.
		for range 70 {
			r.Step()
		}
		after := r.Loop.Snapshot().Report.Verdicts
		if len(after) != 1 || after[0].Element != last.Element || len(after[0].SameFlowEquivalents) > len(last.SameFlowEquivalents) || r.Mesh.Flows() > 0 && done > 0 {
			t.Errorf("seed %d: %s: when the flows have ended: %v, %d flows", seed, d, looptest.OpenVerdicts(r.Loop.Snapshot()), r.Mesh.Flows())
		}
	}
	t.Logf("%d of %d narrowed to the truth within 10 s of the verdict", narrowed, total)
	if narrowed < total*9/10 {
		t.Errorf("only %d of %d", narrowed, total)
	}
}

// coreDirections returns the directions of the links of the core switches.
func coreDirections(g *fabric.Graph) (out []fabric.Direction) {
	for _, c := range []string{"c1", "c2"} {
		for _, end := range g.EndsOf(c) {
			out = append(out, fabric.Direction{From: end, To: g.PeerOf(end)}, fabric.Direction{From: g.PeerOf(end), To: end})
		}
	}
	return out
}

// TestWhatNothingSplitsStaysListed: the two links of a core switch between two pods. Where one of them delays, loses little, or
// the coordinator refuses, both stay listed with the reason, and the verdict has the probe that would distinguish them.
func TestWhatNothingSplitsStaysListed(t *testing.T) {
	g := worldtest.NewTwoPods(t)
	core := coreDirections(g)
	type fault struct {
		d      fabric.Direction
		delay  int64
		loss   float64
		refuse string
		reason string
	}
	var faults []fault
	for i := range 4 {
		faults = append(faults, fault{d: core[2*i], delay: 2e6, reason: "hop-limited probes show losses from 10 % on only"})
	}
	for i := range 3 {
		faults = append(faults, fault{d: core[2*i+1], loss: 0.05, reason: "hop-limited probes show losses from 10 % on only"},
			fault{d: core[i], loss: 1, refuse: "c1 has to answer 50 probes a second", reason: "c1 has to answer 50 probes a second"})
	}
	for _, f := range faults {
		r := looptest.NewRigOf(t, g, 3)
		r.Mesh = &looptest.Mesh{Limit: 24, Refuse: f.refuse}
		r.Configure(func(o *analyzer.LoopOptions) { o.Asker = r.Mesh })
		r.Learn()
		r.World.Delay[f.d], r.World.Loss[f.d] = f.delay, f.loss
		r.Until(40, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 1 })
		for range 30 {
			r.Step()
		}
		v := r.Loop.Snapshot().Report.Verdicts
		truth := fabric.Element{ID: f.d.LinkID(), Kind: fabric.KindLink}
		if len(v) != 1 || v[0].Element != truth && !slices.Contains(v[0].Equivalent, truth) || len(v[0].SameFlowEquivalents) == 0 {
			t.Fatalf("%+v: %+v", f, v)
		}
		if f.refuse == "" && len(r.Mesh.Questions) != 0 || r.Mesh.Hops() != 0 {
			t.Errorf("%+v: asked %+v", f, r.Mesh.Questions)
		}
		if a := v[0].Evidence.Asked; len(a) != 1 || a[0].Asked != fabric.AskedHop || len(a[0].Refused) != 1 || !strings.Contains(a[0].Refused[0], f.reason) {
			t.Errorf("%+v: asked %+v", f, a)
		}
		w := asking.NewPlanner(g).AddVerdictMeasurements(v)[0].WouldSplit
		if len(w) == 0 || w[0].EndsAt != fabric.OwnerOf(f.d.From) && w[0].EndsAt != fabric.OwnerOf(f.d.To) {
			t.Errorf("%+v: would be split by %+v", f, w)
		}
	}
}

// TestHopLimitedProbesSplitCoreLinks: a core switch answers 70 % of what reaches it, to eight askers. Of the two links that the
// same flows cross, the one that loses packets stays and the other is excluded, under the same identifier.
func TestHopLimitedProbesSplitCoreLinks(t *testing.T) {
	g := worldtest.NewTwoPods(t)
	core := coreDirections(g)
	within, total := 0, 0
	for seed, loss := range []float64{0.3, 0.5, 1} {
		for _, d := range core {
			r := looptest.NewRigOf(t, g, uint64(seed)+1)
			r.Mesh = &looptest.Mesh{Limit: 24, Policed: 0.3}
			r.Configure(func(o *analyzer.LoopOptions) { o.Asker = r.Mesh })
			r.Learn()
			r.World.Loss[d] = loss
			truth := fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}
			var first fabric.Verdict
			r.Until(20, "a verdict", func(s snapshot.Snapshot) bool {
				if len(s.Report.Verdicts) == 1 {
					first = s.Report.Verdicts[0]
				}
				return len(s.Report.Verdicts) == 1
			})
			if len(first.SameFlowEquivalents) == 0 {
				t.Errorf("%s: %s has no equivalents", d, first.Element.ID)
				continue
			}
			total++
			done := 0
			var last fabric.Verdict
			for cycle := 1; cycle <= 60; cycle++ {
				v := r.Step().Report.Verdicts
				if len(v) != 1 || v[0].ID != first.ID || v[0].Element != truth && !slices.Contains(v[0].Equivalent, truth) {
					t.Fatalf("%s, loss %g, cycle %d: %v, want %s under %s", d, loss, cycle, looptest.OpenVerdicts(r.Loop.Snapshot()), truth.ID, first.ID)
				}
				if last = v[0]; done == 0 && last.Element == truth && len(last.SameFlowEquivalents) == 0 {
					done = cycle
				}
			}
			t.Logf("%s, loss %g: split after %d cycles; asked %v", d, loss, done, last.Evidence.Asked)
			if done > 0 && done <= 10 {
				within++
			}
			if loss == 1 && (done == 0 || done > 10) {
				t.Errorf("%s: lost all, not split within 10 cycles (%d)", d, done)
			}
			if a := last.Evidence.Asked; len(a) == 0 || a[len(a)-1].Asked != fabric.AskedHop || len(a[len(a)-1].Hops) == 0 {
				t.Errorf("%s: asked %+v", d, a)
			}
			if done > 0 && r.Mesh.Hops() != 0 {
				t.Errorf("%s: %d hop-limited probes are left", d, r.Mesh.Hops())
			}
		}
	}
	t.Logf("%d of %d split within 10 cycles", within, total)
	if total != 3*len(core) {
		t.Errorf("%d faults with equivalents, want %d", total, 3*len(core))
	}
}

// TestARefusalIsSaid: without a coordinator's leave the verdict stays as it is, with the reason.
func TestARefusalIsSaid(t *testing.T) {
	g := worldtest.NewClos(t, 4, 6, 2)
	for seed := uint64(1); ; seed++ {
		r := sparseRig(t, seed, g, 3)
		alike := alikeDirections(r)
		if len(alike) == 0 {
			continue
		}
		r.Mesh = &looptest.Mesh{Refuse: "no leave"}
		r.Configure(func(o *analyzer.LoopOptions) { o.Asker, o.Expected = r.Mesh, len(r.World.Flows) })
		r.Learn()
		r.World.Delay[alike[0]] = 2e6
		r.Until(20, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 1 })
		for range 20 {
			r.Step()
		}
		v := r.Loop.Snapshot().Report.Verdicts
		if len(v[0].SameFlowEquivalents) == 0 {
			continue
		}
		if a := v[0].Evidence.Asked; len(a) != 1 || !slices.Equal(a[0].Refused, []string{"no leave"}) || len(a[0].Flows) != 0 {
			t.Errorf("asked %+v", a)
		}
		return
	}
}
