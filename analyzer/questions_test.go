package analyzer_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

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
	const faults = 12
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
