package triangulate

import (
	"math"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
)

const topo = `version: 1
switches: [{name: leaf1, role: leaf}, {name: leaf2, role: leaf}, {name: spine1, role: spine}, {name: spine2, role: spine}]
nodes:
  - {name: a, nics: [{device: e}]}
  - {name: b, nics: [{device: e}]}
  - {name: c, nics: [{device: e}]}
  - {name: d, nics: [{device: e}]}
links:
  - {a: "a/e", b: "leaf1:1"}
  - {a: "b/e", b: "leaf1:2"}
  - {a: "c/e", b: "leaf2:1"}
  - {a: "d/e", b: "leaf2:2"}
  - {a: "leaf1:u1", b: "spine1:1"}
  - {a: "leaf1:u2", b: "spine2:1"}
  - {a: "leaf2:u1", b: "spine1:2"}
  - {a: "leaf2:u2", b: "spine2:2"}
`

func graph(t *testing.T) *fabric.Graph {
	t.Helper()
	tp, found := fabric.ParseTopology("t.yaml", []byte(topo))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(tp)
}

// finding returns a judged flow over the nth shortest path. shift is in microseconds.
func finding(g *fabric.Graph, src, dst string, flow, via int, shift int64, lost uint64) judge.Finding {
	e := fabric.Flow{Src: src, Dst: dst, Number: flow}
	o := &fabric.Observation{Edge: e.String(), Src: src, Dst: dst, Sent: 200, Lost: lost, Timestamp: "kernel", PathState: fabric.PathUnknown}
	if via >= 0 {
		o.Path, o.PathState = g.ShortestPaths(src, dst, 4)[via], fabric.PathValid
	}
	f := judge.Finding{Flow: e, Obs: o, Condition: judge.Healthy, Shift: shift * 1000, Scale: 10000, HasShift: true}
	if shift > 10 {
		f.Condition, f.Delayed = judge.Degraded, true
	}
	if lost > 2 {
		f.Condition, f.Lossy, f.Hard = judge.Degraded, true, lost >= 100
	}
	return f
}

func names(r Result) []string {
	var out []string
	for _, s := range r.Suspects {
		n := string(s.Kind) + " " + s.Name
		if s.OneWay() {
			n += " " + s.Direction.String()
		}
		out = append(out, n)
	}
	return out
}

func TestHealthyFlowsClearTheirElements(t *testing.T) {
	g := graph(t)
	// Slow: a and b to c by spine1. Clean: a to c by spine2, d's flows by spine1.
	fs := []judge.Finding{
		finding(g, "a/e", "c/e", 0, 0, 500, 0), finding(g, "b/e", "c/e", 0, 0, 500, 0), finding(g, "a/e", "d/e", 0, 0, 500, 0),
		finding(g, "a/e", "c/e", 1, 1, 0, 0), finding(g, "b/e", "d/e", 1, 1, 0, 0), finding(g, "c/e", "a/e", 0, 0, 0, 0), finding(g, "a/e", "b/e", 0, 0, 0, 0),
	}
	// Up link and down link of spine1 are crossed by the same flows: equivalent.
	r := Run(g, fs, DefaultParameters())
	if len(r.Suspects) != 1 || len(r.Suspects[0].Equivalent) == 0 || len(r.Unexplained) != 0 {
		t.Fatalf("%q, unexplained %v", names(r), r.Unexplained)
	}
	// A second source leaf by the same down link cannot exist here; but a clean
	// flow over the up link alone decides: it clears it.
	one := r.Suspects[0]
	if one.Kind != fabric.KindLink || one.AddedDelayNS != 500000 {
		t.Errorf("suspect %+v", one)
	}
}

// TestOneSlowFlowIsNotEnough: an element needs two flows.
func TestOneSlowFlowIsNotEnough(t *testing.T) {
	g := graph(t)
	r := Run(g, []judge.Finding{finding(g, "a/e", "c/e", 0, 0, 500, 0), finding(g, "b/e", "d/e", 0, 0, 0, 0)}, DefaultParameters())
	if len(r.Suspects) != 0 || len(r.Unexplained) != 1 {
		t.Errorf("%q, unexplained %v", names(r), r.Unexplained)
	}
	// Slow and lossy at once it would pay the price of any element.
	r = Run(g, []judge.Finding{finding(g, "a/e", "c/e", 0, 0, 500, 90), finding(g, "b/e", "d/e", 0, 0, 0, 0)}, DefaultParameters())
	if len(r.Suspects) != 0 || len(r.Unexplained) != 1 {
		t.Errorf("slow and lossy: %q, unexplained %v", names(r), r.Unexplained)
	}
}

// TestOneFaultIsOneSuspect: a link that is slow one way and lossy the other is
// one suspect without a direction.
func TestOneFaultIsOneSuspect(t *testing.T) {
	g := graph(t)
	var fs []judge.Finding
	for flow := range 2 {
		for _, src := range g.NICIDs() {
			for _, dst := range g.NICIDs() {
				if src == dst {
					continue
				}
				paths := g.ShortestPaths(src, dst, 4)
				shift, lost := int64(0), uint64(0)
				for _, d := range paths[flow%len(paths)].LinkDirections(src, dst) {
					switch d.String() {
					case "a/e->leaf1:1":
						shift = 900
					case "leaf1:1->a/e":
						lost = 60
					}
				}
				fs = append(fs, finding(g, src, dst, flow, flow%len(paths), shift, lost))
			}
		}
	}
	r := Run(g, fs, DefaultParameters())
	if got := names(r); len(got) != 1 || got[0] != "nic a/e" {
		t.Fatalf("%q", got)
	}
	if s := r.Suspects[0]; s.AddedDelayNS != 900000 || math.Abs(s.LossRatio-0.3) > 0.005 || len(s.Explained) != 12 {
		t.Errorf("suspect %+v", s)
	}
}

// TestUndecidedFlowsSayNothing: what is not judged neither blames nor clears.
func TestUndecidedFlowsSayNothing(t *testing.T) {
	g := graph(t)
	var fs []judge.Finding
	for _, dst := range []string{"b/e", "c/e", "d/e"} {
		f := finding(g, "a/e", dst, 0, 0, 900, 0)
		f.Condition = judge.Undecided
		fs = append(fs, f)
	}
	if r := Run(g, fs, DefaultParameters()); len(r.Suspects) != 0 || len(r.Crossed) != 0 {
		t.Errorf("%q, crossed %v", names(r), r.Crossed)
	}
}

// TestUnknownPathsSpeakForTheirEnds: without any path a slow NIC is still found.
func TestUnknownPathsSpeakForTheirEnds(t *testing.T) {
	g := graph(t)
	var fs []judge.Finding
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			if src == dst {
				continue
			}
			shift := int64(0)
			if src == "b/e" {
				shift = 700
			}
			fs = append(fs, finding(g, src, dst, 0, -1, shift, 0))
		}
	}
	r := Run(g, fs, DefaultParameters())
	if got := names(r); len(got) != 1 || got[0] != "nic b/e b/e->leaf1:2" {
		t.Errorf("%q", got)
	}
}

// TestCandidatePathsShareTheirWeight: flows that may have gone either way are
// explained by the element that the sure ones point at.
func TestCandidatePathsShareTheirWeight(t *testing.T) {
	g := graph(t)
	fs := []judge.Finding{
		finding(g, "a/e", "c/e", 0, 0, 0, 200), finding(g, "b/e", "d/e", 0, 0, 0, 200), finding(g, "c/e", "a/e", 0, 0, 0, 0), finding(g, "d/e", "b/e", 0, 1, 0, 0),
		finding(g, "a/e", "c/e", 1, 1, 0, 0), finding(g, "b/e", "d/e", 1, 1, 0, 0), finding(g, "a/e", "b/e", 0, 0, 0, 0),
	}
	either := finding(g, "a/e", "d/e", 0, -1, 0, 200)
	either.Obs.Paths = g.ShortestPaths("a/e", "d/e", 4)
	r := Run(g, append(fs, either), DefaultParameters())
	if len(r.Suspects) != 1 || len(r.Suspects[0].Explained) != 3 {
		t.Errorf("%q explain %v", names(r), r.Suspects)
	}
}

func TestRoundTripBlamesEitherWay(t *testing.T) {
	g := graph(t)
	var fs []judge.Finding
	for i, dst := range []string{"b/e", "c/e", "d/e"} {
		f := finding(g, "a/e", dst, 0, i%len(g.ShortestPaths("a/e", dst, 4)), 0, 200)
		f.RoundTrip = true
		fs = append(fs, f)
	}
	for i, pair := range [][2]string{{"b/e", "c/e"}, {"c/e", "b/e"}, {"c/e", "d/e"}, {"d/e", "c/e"}, {"b/e", "d/e"}, {"d/e", "b/e"}} {
		fs = append(fs, finding(g, pair[0], pair[1], 0, i%len(g.ShortestPaths(pair[0], pair[1], 4)), 0, 0))
	}
	r := Run(g, fs, DefaultParameters())
	if len(r.Suspects) != 1 || r.Suspects[0].Name != "a/e" {
		t.Errorf("%q", names(r))
	}
}

// TestASwitchCrossedBothWaysIsOnePlace: a round trip goes through a leaf twice, and is no two
// flows that accuse it: the NIC whose flows they all are stays sure, beside a neighbour's that are
// clean.
func TestASwitchCrossedBothWaysIsOnePlace(t *testing.T) {
	g := graph(t)
	var fs []judge.Finding
	for _, pair := range [][2]string{{"a/e", "b/e"}, {"a/e", "c/e"}, {"a/e", "d/e"}, {"b/e", "c/e"}, {"b/e", "d/e"}} {
		for flow := range 4 {
			for _, ends := range [][2]string{pair, {pair[1], pair[0]}} {
				shift := int64(0)
				if pair[0] == "a/e" {
					shift = 2000
				}
				f := finding(g, ends[0], ends[1], flow, flow%len(g.ShortestPaths(ends[0], ends[1], 4)), shift, 0)
				f.RoundTrip = f.Delayed
				fs = append(fs, f)
			}
		}
	}
	r := Run(g, fs, DefaultParameters())
	if len(r.Suspects) != 1 || r.Suspects[0].Name != "a/e" || r.Suspects[0].Confidence < 0.99 {
		t.Errorf("%q: %+v", names(r), r.Suspects)
	}
}

// TestLinkDelaysAreBounds: a link that a clean flow crosses adds nothing, an unmeasured
// link is absent, and a named link has its fitted delay.
func TestLinkDelaysAreBounds(t *testing.T) {
	g := graph(t)
	fs := []judge.Finding{
		finding(g, "a/e", "c/e", 0, 0, 500, 0), finding(g, "b/e", "d/e", 0, 0, 500, 0), finding(g, "a/e", "c/e", 1, 1, 0, 0),
		finding(g, "b/e", "d/e", 1, 1, 0, 0), finding(g, "a/e", "b/e", 0, 0, 0, 0),
	}
	r := Run(g, fs, DefaultParameters())
	at := map[string]LinkDelay{}
	for _, l := range r.Links {
		at[l.Direction.String()] = l
	}
	if l, ok := at["a/e->leaf1:1"]; !ok || l.AddedDelayNS != 0 {
		t.Errorf("a's link: %+v, %v", l, ok)
	}
	if _, ok := at["leaf2:1->a/e"]; ok {
		t.Error("a link that does not exist has a delay")
	}
	if _, ok := at["c/e->leaf2:1"]; ok {
		t.Error("a link that nothing crosses has a delay")
	}
	if l := at[r.Suspects[0].Direction.String()]; l.AddedDelayNS != 500000 || l.Identifiable {
		t.Errorf("the named link: %+v", l)
	}
}

func TestOrderDoesNotMatter(t *testing.T) {
	g := graph(t)
	fs := []judge.Finding{
		finding(g, "a/e", "c/e", 0, 0, 500, 0), finding(g, "b/e", "d/e", 0, 0, 480, 0), finding(g, "a/e", "d/e", 0, 1, 0, 0),
		finding(g, "c/e", "a/e", 0, 0, 0, 0), finding(g, "d/e", "b/e", 0, 0, 0, 60), finding(g, "c/e", "b/e", 0, 0, 0, 50),
	}
	want := names(Run(g, fs, DefaultParameters()))
	for range 5 {
		fs = append(fs[1:], fs[0])
		got := names(Run(g, fs, DefaultParameters()))
		if len(got) != len(want) {
			t.Fatalf("%q and %q", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%q and %q", got, want)
			}
		}
	}
}

// TestClockSuspectFlowsSpeakOfLossOnly: a flow by a clock in doubt is no
// witness of a delay, for or against, but it is one of what was lost.
func TestClockSuspectFlowsSpeakOfLossOnly(t *testing.T) {
	g := graph(t)
	doubt := func(f judge.Finding) judge.Finding { f.DistrustDelay(); return f }
	d := "leaf1:u1->spine1:1"
	// Two flows over the link are slow; the ones in doubt look clean or slower.
	slow := []judge.Finding{finding(g, "a/e", "c/e", 0, 0, 500, 0), finding(g, "a/e", "d/e", 1, 0, 500, 0), finding(g, "b/e", "c/e", 3, 1, 0, 0), finding(g, "a/e", "b/e", 4, 0, 0, 0)}
	for i := range 8 {
		slow = append(slow, doubt(finding(g, "b/e", "d/e", 10+i, 0, int64(i%2)*9000, 0)))
	}
	r := Run(g, slow, DefaultParameters())
	if got := names(r); len(got) != 1 || r.Suspects[0].AddedDelayNS != 500_000 || len(r.Suspects[0].Contrary) != 0 {
		t.Errorf("slow: %q, %+v", got, r.Suspects)
	}
	for dir, n := range r.Crossed {
		if dir.String() == d && n != 2 {
			t.Errorf("%d flows are said to cross %s, want the 2 that are evidence", n, d)
		}
	}
	// Of what two lossy flows share, the NIC is cleared by those that lose nothing over it.
	lossy := []judge.Finding{finding(g, "a/e", "c/e", 0, 0, 0, 40), finding(g, "a/e", "d/e", 1, 0, 0, 40)}
	for i := range 6 {
		lossy = append(lossy, doubt(finding(g, "a/e", "c/e", 10+i, 1, 0, 0)), doubt(finding(g, "a/e", "d/e", 20+i, 1, 0, 0)))
	}
	if got := names(Run(g, lossy, DefaultParameters())); len(got) != 1 || got[0] != "link leaf1:u1--spine1:1 "+d {
		t.Errorf("lossy: %q, want the link %s", got, d)
	}
}

// TestHeavyLossIsOneFault: where each flow lost most of many packets, the likelihood of the
// ratio is a spike; missing it would leave corridors something to explain.
func TestHeavyLossIsOneFault(t *testing.T) {
	g := graph(t)
	for _, ratio := range []float64{0.3, 0.5, 0.75, 0.857, 0.93, 0.98} {
		for _, sent := range []uint64{250, 1000, 20000} {
			var fs []judge.Finding
			for flow := range 6 {
				for _, src := range []string{"a/e", "b/e"} {
					for via := range 2 {
						for _, dst := range []string{"c/e", "d/e"} {
							f := finding(g, src, dst, 2*flow+via, via, 0, 0)
							f.Obs.Sent = sent
							if via == 0 {
								f.Obs.Lost = uint64(ratio * float64(sent))
								f.Condition, f.Lossy, f.Hard = judge.Degraded, true, ratio >= 0.5
							}
							fs = append(fs, f)
						}
					}
				}
			}
			r := Run(g, fs, DefaultParameters())
			if len(r.Suspects) != 1 || math.Abs(r.Suspects[0].LossRatio-ratio) > 0.01 {
				t.Errorf("%g of %d lost: %q, %+v", ratio, sent, names(r), r.Suspects)
			}
		}
	}
}

// TestPortsOfASwitchDiffer: rule 6, a switch whose ports are not all as full is one fault.
func TestPortsOfASwitchDiffer(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 2}))
	var nics []string
	for _, l := range g.Topo.Links {
		if l.IsAccess() {
			nics = append(nics, l.A)
		}
	}
	slow := func(spine, oneLeaf int64) (fs []judge.Finding) {
		for _, src := range nics {
			for _, dst := range nics {
				from, _ := g.LeafOf(src)
				to, _ := g.LeafOf(dst)
				for via := range 2 {
					switch {
					case from == to:
					case via == 1:
						fs = append(fs, finding(g, src, dst, via, via, 0, 0))
					case to == "a-p1-leaf1":
						fs = append(fs, finding(g, src, dst, via, via, oneLeaf, 0))
					default:
						fs = append(fs, finding(g, src, dst, via, via, spine, 0))
					}
				}
			}
		}
		return fs
	}
	if r := Run(g, slow(100, 180), DefaultParameters()); len(r.Suspects) != 1 || r.Suspects[0].Kind != fabric.KindSwitch || len(r.Suspects[0].Explained) != 48 {
		t.Errorf("%q %+v", names(r), r.Suspects)
	}
	if r := Run(g, slow(100, 900), DefaultParameters()); len(r.Suspects) != 2 {
		t.Errorf("a link that adds eight times as much is a fault of its own: %q", names(r))
	}
}

// TestEachPortIsAsFullAsItIs: no two ports of a slow switch are alike.
func TestEachPortIsAsFullAsItIs(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 6, SpinesPerPod: 2, NICsPerLeaf: 4}))
	for _, by := range []map[string]int64{
		{"a-p1-leaf1": 238, "a-p1-leaf2": 135, "a-p1-leaf3": 199, "a-p1-leaf4": 147, "a-p1-leaf5": 132, "a-p1-leaf6": 231},
		{"a-p1-leaf1": 100, "a-p1-leaf2": 140, "a-p1-leaf3": 180, "a-p1-leaf4": 220, "a-p1-leaf5": 260, "a-p1-leaf6": 300},
		{"a-p1-leaf1": 80, "a-p1-leaf2": 300, "a-p1-leaf3": 300, "a-p1-leaf4": 300, "a-p1-leaf5": 80, "a-p1-leaf6": 80},
	} {
		var fs []judge.Finding
		for _, a := range g.Topo.Links {
			for _, b := range g.Topo.Links {
				from, _ := g.LeafOf(a.A)
				to, _ := g.LeafOf(b.A)
				if !a.IsAccess() || !b.IsAccess() || from == to {
					continue
				}
				fs = append(fs, finding(g, a.A, b.A, 0, 0, by[to], 0), finding(g, a.A, b.A, 1, 1, 0, 0))
			}
		}
		if r := Run(g, fs, DefaultParameters()); len(r.Suspects) != 1 || r.Suspects[0].Kind != fabric.KindSwitch {
			t.Errorf("%v: %q", by, names(r))
		}
	}
}

// TestAQueueNeedsOtherClassesThatAreClean checks both sides of the limit: symptoms of eight of eight flows of one class
// at a port, and of some of eight of the other.
func TestAQueueNeedsOtherClassesThatAreClean(t *testing.T) {
	g := graph(t)
	for bad, want := range map[int]bool{0: true, 2: true, 3: false, 8: false} {
		var fs []judge.Finding
		add := func(class, src, dst string, n int, slow bool) {
			shift := int64(0)
			if slow {
				shift = 500
			}
			f := finding(g, src, dst, n, n%2, shift, 0)
			f.Obs.Class = class
			fs = append(fs, f)
		}
		for n := range 8 {
			src := []string{"a/e", "b/e"}[n/2%2]
			add("x", src, "c/e", n, true)
			add("y", src, "c/e", 8+n, n < bad)
			add("x", src, "d/e", n, false)
			add("y", src, "d/e", 8+n, false)
		}
		queue := false
		r := Run(g, fs, DefaultParameters())
		for _, s := range r.Suspects {
			queue = queue || s.Kind == fabric.KindQueue
		}
		if queue != want {
			t.Errorf("%d of 8 flows of the other class are slow: named %q, want a queue: %v", bad, names(r), want)
		}
	}
}

// TestSprayedFlows checks that a fault of one of two parallel links, over which switches spread the packets of every flow, is
// one suspect that lists the other link, and never two.
func TestSprayedFlows(t *testing.T) {
	g := graph(t)
	sprayed := func(src, dst string, shift int64, lost uint64) judge.Finding {
		f := finding(g, src, dst, 0, -1, shift, lost)
		f.Obs.Paths, f.Obs.Sprayed = g.ShortestPaths(src, dst, 4), true
		if len(f.Obs.Paths) != 2 {
			t.Fatalf("%s to %s: %d paths", src, dst, len(f.Obs.Paths))
		}
		return f
	}
	// leaf1:u2 is slow: all that leaves leaf1 is, and nothing else.
	var fs []judge.Finding
	for _, src := range []string{"a/e", "b/e"} {
		for _, dst := range []string{"c/e", "d/e"} {
			fs = append(fs, sprayed(src, dst, 500, 0), sprayed(dst, src, 0, 0))
		}
	}
	fs = append(fs, finding(g, "a/e", "b/e", 0, 0, 0, 0), finding(g, "b/e", "a/e", 0, 0, 0, 0), finding(g, "c/e", "d/e", 0, 0, 0, 0), finding(g, "d/e", "c/e", 0, 0, 0, 0))
	r := Run(g, fs, DefaultParameters())
	if len(r.Suspects) != 1 || len(r.Unexplained) != 0 {
		t.Fatalf("%q, unexplained %v", names(r), r.Unexplained)
	}
	listed := map[string]bool{r.Suspects[0].Name: true}
	for _, e := range r.Suspects[0].Equivalent {
		listed[e.Name] = true
	}
	for _, link := range []string{"leaf1:u1--spine1:1", "leaf1:u2--spine2:1"} {
		if !listed[link] {
			t.Errorf("%s is neither named nor listed: %q, %v", link, names(r), r.Suspects[0].Equivalent)
		}
	}
}

// TestSprayedFlowsWithOrWithoutAMedian has a slow link over which half of the packets of each flow go: the median of some flows moves with
// it, by chance all that one NIC receives, and the tail alone of the others. That is one fault, and none of the NIC.
func TestSprayedFlowsWithOrWithoutAMedian(t *testing.T) {
	topo := clos.NewTopology(clos.Options{Tiers: 2, Planes: 1, LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 4, NICsPerNode: 1})
	g := fabric.NewGraph(topo)
	nics := g.NICIDs()
	leafOf := func(nic string) string { leaf, _ := g.LeafOf(nic); return leaf }
	slow, unlucky := leafOf(nics[0]), nics[0]
	var fs []judge.Finding
	for _, src := range nics {
		for i, dst := range nics {
			switch {
			case src == dst:
				continue
			case leafOf(src) == leafOf(dst):
				fs = append(fs, finding(g, src, dst, 0, 0, 0, 0))
				continue
			}
			f := finding(g, src, dst, 0, -1, 0, 0)
			f.Obs.Paths, f.Obs.Sprayed = g.ShortestPaths(src, dst, 4), true
			f.HasTail, f.TailScale = true, 30_000
			if leafOf(dst) == slow {
				f.Condition = judge.Degraded
				if dst == unlucky || (i+len(fs))%5 == 0 {
					f.Delayed, f.Shift = true, 1_950_000
				} else {
					f.Jittery, f.TailShift = true, 2_020_000
				}
			}
			fs = append(fs, f)
		}
	}
	r := Run(g, fs, DefaultParameters())
	if len(r.Suspects) != 1 || r.Suspects[0].Kind != fabric.KindLink && r.Suspects[0].Kind != fabric.KindLeafUplinks || len(r.Unexplained) != 0 {
		t.Fatalf("%q, unexplained %v", names(r), r.Unexplained)
	}
	if by := r.Suspects[0].AddedDelayNS; by < 1_900_000 || by > 2_100_000 || r.Suspects[0].TailDelayNS != 0 {
		t.Errorf("it adds %d ns to the packets that cross it, and %d to the slowest of these", by, r.Suspects[0].TailDelayNS)
	}

	// All that a leaf forwards was slow, and is not any more: tails end after medians, within the leaf as well.
	for i := range fs {
		f := &fs[i]
		src, dst := f.Flow.Endpoints()
		if f.HasTail, f.TailScale = true, 30_000; leafOf(src) != slow && leafOf(dst) != slow {
			continue
		}
		f.Condition, f.Delayed, f.Shift = judge.Degraded, false, 0
		f.Jittery, f.TailShift = true, 2_020_000
		if leafOf(src) != leafOf(dst) && i%3 == 0 {
			f.Delayed, f.Shift, f.Jittery, f.TailShift = true, 1_980_000, false, 0
		}
	}
	if r = Run(g, fs, DefaultParameters()); len(r.Suspects) != 1 || r.Suspects[0].Kind != fabric.KindSwitch || r.Suspects[0].Name != slow || len(r.Unexplained) != 0 {
		t.Errorf("a slow leaf: %q, unexplained %v", names(r), r.Unexplained)
	}
}
