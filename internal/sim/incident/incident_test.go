package incident

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

func small() *Fabric {
	return NewFabric(clos.NewTopology(clos.Options{Planes: 2, LeavesPerPod: 4, SpinesPerPod: 3, NICsPerLeaf: 4, NICsPerNode: 2}))
}

func tree() *Fabric {
	return NewFabric(clos.NewTopology(clos.Options{Tiers: 3, Pods: 3, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 3}))
}

func text(t *testing.T, c *Case) string {
	t.Helper()
	b, err := json.Marshal([]any{c.Truth, c.Observations})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Rule 1.
func TestSameSeedSameCase(t *testing.T) {
	for _, s := range append(AllScenarios(), "") {
		o := Scenario{ID: s, Windows: 4, Probes: 20, Several: 1}
		a, b := text(t, o.MakeCase(small(), 7)), text(t, o.MakeCase(small(), 7))
		if a != b {
			t.Errorf("%s: two cases of one seed differ", s)
		}
		if a == text(t, o.MakeCase(small(), 8)) {
			t.Errorf("%s: two seeds make the same case", s)
		}
	}
	o := ThinDrops(Known)
	if a, b := text(t, o.MakeCase(small(), 7)), text(t, o.MakeCase(small(), 7)); a != b {
		t.Error("drops: two cases of one seed differ")
	}
}

// Rule 2: what is reported as traced is a path of the topology, and an equal-cost
// one; candidates hold the one that was taken.
func TestPathsAreTheFabrics(t *testing.T) {
	for _, f := range []*Fabric{small(), tree()} {
		c := Drops{Know: Known, FlowsPerNIC: 10, Packets: 5}.MakeCase(f, 3)
		used := map[string]map[string]bool{}
		for _, o := range c.Observations {
			all := f.Graph.ShortestPaths(o.Src, o.Dst, 1000)
			if !slices.ContainsFunc(all, func(p fabric.Path) bool { return p.CanonicalKey() == o.Path.CanonicalKey() }) {
				t.Fatalf("%s goes by %s, which is none of the %d shortest", o.Edge, o.Path.CanonicalKey(), len(all))
			}
			pair := o.Path[0].Switch + " " + o.Path[len(o.Path)-1].Switch
			if used[pair] == nil {
				used[pair] = map[string]bool{}
			}
			used[pair][o.Path[len(o.Path)/2].Switch] = true
		}
		spread := 0
		for _, u := range used {
			spread = max(spread, len(u))
		}
		if spread < 2 {
			t.Error("all flows of a leaf pair go by the same switch")
		}
		c = Drops{Know: SetsOnly, FlowsPerNIC: 10, Packets: 5}.MakeCase(f, 3)
		for _, o := range c.Observations {
			if all := f.Graph.ShortestPaths(o.Src, o.Dst, 1000); len(all) != len(o.Paths) || len(o.Path) > 0 || o.PathState != fabric.PathUnknown {
				t.Fatalf("%s has %d candidates, the topology %d", o.Edge, len(o.Paths), len(all))
			}
		}
	}
}

// Flows of a Dragonfly+ are those that were given, take candidate paths, and go by a third group as often as was requested;
// faults are at links of the tier that was requested.
func TestDragonfly(t *testing.T) {
	f := NewFabric(dragonfly.NewTopology(dragonfly.Options{Groups: 4, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 2, GlobalPerPair: 2, Routing: fabric.Adaptive}))
	g := f.Graph
	nics := g.NICIDs()
	var flows []fabric.Flow
	for i, src := range nics {
		for j := range 8 {
			flows = append(flows, fabric.Flow{Src: src, Dst: nics[(i+8+3*j)%len(nics)]})
		}
	}
	for _, detours := range []float64{0, 0.5} {
		c := Scenario{ID: fabric.Corridor, Variant: "link-loss", Tier: 3, Windows: 2, Probes: 5, Flows: flows, Detours: detours}.MakeCase(f, 5)
		if d, err := fabric.ParseDirection(c.Truth.Faults[0].Direction); err != nil || g.LinkTier(g.LinkAt(d.From)) != 3 {
			t.Errorf("the fault is at %s (%v), no global link", d, err)
		}
		if want := 2 * 2 * len(flows); len(c.Observations) < want*9/10 || len(c.Observations) > want {
			t.Errorf("%d observations, want %d, or a few less where all probes are lost", len(c.Observations), want)
		}
		between, around := 0.0, 0.0
		for _, o := range c.Observations {
			paths, _ := g.CandidatePaths(o.Src, o.Dst, 1000)
			if !slices.ContainsFunc(paths, func(p fabric.Path) bool { return p.CanonicalKey() == o.Path.CanonicalKey() }) {
				t.Fatalf("%s goes by %s, which is none of the %d candidates", o.Edge, o.Path.CanonicalKey(), len(paths))
			}
			if o.Tier == 3 {
				between++
			}
			if len(o.Path) == 5 {
				around++
			}
		}
		if share := around / between; math.Abs(share-detours) > 0.15 || between < 100 {
			t.Errorf("%.0f observations between groups, a share of %.2f goes by a third one; want %g", between, share, detours)
		}
	}
}

// What a link loses is what its flows report.
func TestDropsAreWhereTheTruthSays(t *testing.T) {
	f := small()
	o := Drops{Know: Known, FlowsPerNIC: 30, Packets: 1000, MostFaults: 4, Least: 0.05, Most: 0.2, Background: 1e-5}
	for seed := range uint64(10) {
		c := o.MakeCase(f, seed)
		loss := map[string]float64{}
		for _, x := range c.Truth.Faults {
			loss[x.Direction] = x.Loss
		}
		for _, ob := range c.Observations {
			survive := 1.0
			for _, d := range ob.Path.LinkDirections(ob.Src, ob.Dst) {
				survive *= 1 - loss[d.String()]
			}
			want := 1000 * (1 - survive)
			if got := float64(ob.Lost); math.Abs(got-want) > 6*math.Sqrt(want)+4 {
				t.Fatalf("seed %d: %s lost %v, want about %v", seed, ob.Edge, got, want)
			}
		}
	}
}

func TestBinomial(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		n uint64
		p float64
	}{{1000, 0.01}, {50, 0.5}, {5, 0.9}, {2000, 1e-4}, {10, 1}, {10, 0}} {
		sum, square := 0.0, 0.0
		const times = 20000
		for range times {
			k := float64(drawBinomial(rng, c.n, c.p))
			sum += k
			square += k * k
		}
		mean, variance := sum/times, square/times-sum/times*sum/times
		want, spread := float64(c.n)*c.p, float64(c.n)*c.p*(1-c.p)
		if math.Abs(mean-want) > 5*math.Sqrt(spread/times) || math.Abs(variance-spread) > 0.06*spread {
			t.Errorf("%d of chance %v: mean %.3f, variance %.3f; want %.3f, %.3f", c.n, c.p, mean, variance, want, spread)
		}
	}
}

// What is known of paths.
func TestKnowledge(t *testing.T) {
	f := small()
	for _, k := range []Knowledge{Known, LossyTraced, Half, SetsOnly, Unknown, Stale} {
		d := Drops{Know: k, FlowsPerNIC: 20, Packets: 200, MostFaults: 8, Least: 0.02, Most: 0.02, Background: 1e-3}
		truth := Drops{Know: Known, FlowsPerNIC: 20, Packets: 200, MostFaults: 8, Least: 0.02, Most: 0.02, Background: 1e-3}
		c, all := d.MakeCase(f, 5), truth.MakeCase(f, 5)
		traced, sets := 0, 0
		for _, o := range c.Observations {
			if len(o.Path) > 0 {
				traced++
			}
			if len(o.Paths) > 0 {
				sets++
			}
			if k == LossyTraced && (o.Lost > 0) != (len(o.Path) > 0) {
				t.Fatalf("%s lost %d, its path is %v", o.Edge, o.Lost, o.Path)
			}
		}
		n := len(c.Observations)
		switch ok := map[Knowledge]bool{
			Known: traced == n, LossyTraced: traced > 0 && traced+sets == n, Half: traced > n/3 && traced < 2*n/3 && traced+sets == n,
			SetsOnly: traced == 0 && sets == n, Unknown: traced+sets == 0, Stale: traced == n,
		}[k]; {
		case !ok:
			t.Errorf("%s: of %d flows %d traced, %d with candidates", k, n, traced, sets)
		case k == Stale:
			other := 0
			for i, o := range c.Observations {
				if i < len(all.Observations) && o.Path.CanonicalKey() != all.Observations[i].Path.CanonicalKey() {
					other++
				}
			}
			if other == 0 {
				t.Error("stale: every path is the one taken")
			}
		}
	}
}

// Rule 3: the baseline is what the flow measured before the fault, and is not
// touched by it.
func TestBaselinesAreHealthy(t *testing.T) {
	c := Scenario{ID: fabric.BadNIC, Variant: "both-delay", Delay: [2]time.Duration{time.Millisecond, 2 * time.Millisecond}, Windows: 4, Probes: 100}.MakeCase(small(), 1)
	for _, o := range c.Observations {
		if b := *o.Baseline.P50; b < 4000 || b > 30000 {
			t.Fatalf("%s: baseline p50 %d ns", o.Edge, b)
		}
		if *o.Baseline.P99 <= *o.Baseline.P50 {
			t.Fatalf("%s: baseline p99 %d ns is not above p50 %d ns", o.Edge, *o.Baseline.P99, *o.Baseline.P50)
		}
	}
}

// shifted reports whether a median moved by more than a tenth of a millisecond.
func shifted(o *fabric.Observation) bool {
	return o.OWD != nil && math.Abs(float64(*o.OWD.P50-*o.Baseline.P50)) > 1e5
}

func window(o *fabric.Observation) int { return int(o.Start.Sub(Epoch) / Window) }

// Each scenario touches the flows that it is about, in its windows, and no others.
func TestScenariosTouchWhatTheyAreAbout(t *testing.T) {
	touches := func(nic string) func(*fabric.Observation) bool {
		return func(o *fabric.Observation) bool { return o.Src == nic || o.Dst == nic }
	}
	visits := func(sw string) func(*fabric.Observation) bool {
		return func(o *fabric.Observation) bool {
			return slices.ContainsFunc(o.Path, func(h fabric.Hop) bool { return h.Switch == sw })
		}
	}
	crosses := func(dir string) func(*fabric.Observation) bool {
		return func(o *fabric.Observation) bool {
			return slices.ContainsFunc(o.Path.LinkDirections(o.Src, o.Dst), func(d fabric.Direction) bool { return d.String() == dir })
		}
	}
	for _, c := range []struct {
		id      fabric.Scenario
		variant string
		about   func(f Fault) func(*fabric.Observation) bool
	}{
		{fabric.HotSpine, "delay", func(f Fault) func(*fabric.Observation) bool { return visits(f.ID) }},
		{fabric.SlowLeaf, "delay", func(f Fault) func(*fabric.Observation) bool { return visits(f.ID) }},
		{fabric.Corridor, "link-delay", func(f Fault) func(*fabric.Observation) bool { return crosses(f.Direction) }},
		{fabric.Corridor, "path-delay", func(f Fault) func(*fabric.Observation) bool {
			return func(o *fabric.Observation) bool {
				return len(o.Path) == 3 && fmt.Sprintf("%s->%s->%s", o.Path[0].Switch, o.Path[1].Switch, o.Path[2].Switch) == f.ID
			}
		}},
		{fabric.LeafUplinks, "", func(f Fault) func(*fabric.Observation) bool {
			return func(o *fabric.Observation) bool { return len(o.Path) > 1 && visits(f.ID)(o) }
		}},
		{fabric.BadNIC, "both-delay", func(f Fault) func(*fabric.Observation) bool { return touches(f.ID) }},
		{fabric.BadNIC, "in-delay", func(f Fault) func(*fabric.Observation) bool { return crosses(f.Direction) }},
		{fabric.PairOnly, "delay", func(f Fault) func(*fabric.Observation) bool {
			return func(o *fabric.Observation) bool {
				return len(o.Path) > 1 && o.Path[0].Switch+"->"+o.Path[len(o.Path)-1].Switch == f.ID
			}
		}},
		{fabric.Incast, "", func(f Fault) func(*fabric.Observation) bool { return crosses(f.Direction) }},
		{fabric.HOLSame, "", func(f Fault) func(*fabric.Observation) bool {
			return func(o *fabric.Observation) bool { return o.Class == f.Class && crosses(f.Direction)(o) }
		}},
		{fabric.Host, "", func(f Fault) func(*fabric.Observation) bool {
			return func(o *fabric.Observation) bool {
				return fabric.OwnerOf(o.Src) == f.ID || fabric.OwnerOf(o.Dst) == f.ID
			}
		}},
		{fabric.ClockTrouble, "step", func(f Fault) func(*fabric.Observation) bool {
			return func(o *fabric.Observation) bool {
				return fabric.OwnerOf(o.Src) != fabric.OwnerOf(o.Dst) &&
					(fabric.OwnerOf(o.Src) == fabric.OwnerOf(f.ID) || fabric.OwnerOf(o.Dst) == fabric.OwnerOf(f.ID))
			}
		}},
	} {
		o := Scenario{ID: c.id, Variant: c.variant, Delay: [2]time.Duration{time.Millisecond, 2 * time.Millisecond}, Windows: 5, Probes: 60}
		for seed := range uint64(3) {
			cs := o.MakeCase(small(), seed)
			if len(cs.Truth.Faults) != 1 {
				t.Fatalf("%s: rule 4: %d lines of truth", c.id, len(cs.Truth.Faults))
			}
			fault := cs.Truth.Faults[0]
			about := c.about(fault)
			right, bad := 0, 0
			for _, ob := range cs.Observations {
				w := window(ob)
				if want := about(ob) && w >= fault.First && w <= fault.Last; want != shifted(ob) {
					bad++
				} else if want {
					right++
				}
			}
			if right == 0 || bad > 0 {
				t.Errorf("%s %s seed %d, %s %s: %d flows are as they should be while it lasts, %d of all are not", c.id, c.variant, seed, fault.ID, fault.Direction, right, bad)
			}
		}
	}
}

// What a dead link loses is lost until routes avoid it, and then nothing crosses it.
func TestHardFailureIsRoutedAround(t *testing.T) {
	for seed := range uint64(5) {
		c := Scenario{ID: fabric.HardFailure, Variant: "link", Probes: 50}.MakeCase(small(), seed)
		f := c.Truth.Faults[0]
		lost, late := 0, 0
		flows := make([]int, c.Truth.Windows)
		for _, o := range c.Observations {
			flows[window(o)]++
			for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
				if d.LinkID() != f.ID {
					continue
				}
				if w := window(o); w >= f.First && w <= f.First+1 && o.Lost > 0 {
					lost++
				} else if w >= f.First+3 {
					late++
				}
			}
		}
		if lost == 0 || late > 0 {
			t.Errorf("seed %d: %d windows lost probes at the link, %d cross it long after it died", seed, lost, late)
		}
		if flows[c.Truth.Windows-1] != flows[0] {
			t.Errorf("seed %d: %d flows before, %d after: not all found another way", seed, flows[0], flows[c.Truth.Windows-1])
		}
	}
}

// A flap loses probes in some windows, and in some others traffic crosses the link
// unharmed.
func TestFlapComesAndGoes(t *testing.T) {
	for seed := range uint64(5) {
		c := Scenario{ID: fabric.Flap, Probes: 50}.MakeCase(small(), seed)
		f := c.Truth.Faults[0]
		bad, good := map[int]bool{}, map[int]bool{}
		for _, o := range c.Observations {
			for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
				if d.LinkID() == f.ID && window(o) >= f.First {
					bad[window(o)] = bad[window(o)] || o.Lost > 0
					good[window(o)] = good[window(o)] || o.Lost == 0
				}
			}
		}
		times := 0
		for w := range bad {
			if bad[w] {
				times++
			} else {
				delete(bad, w)
			}
		}
		if times < 2 || times > f.Last-f.First {
			t.Errorf("seed %d: lossy in %d of %d windows", seed, times, f.Last-f.First+1)
		}
	}
}

// The traced paths of a miscabled fabric contradict the topology at the two cables
// only.
func TestMiscabledPathsFollowTheCables(t *testing.T) {
	for seed := range uint64(10) {
		f := small()
		c := Scenario{ID: fabric.Miscabled, Probes: 10, Windows: 2}.MakeCase(f, seed)
		x := c.Truth.Faults[0]
		against := map[string]bool{}
		for _, o := range c.Observations {
			for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
				if f.Graph.PeerOf(d.From) != d.To {
					against[f.Graph.LinkAt(d.From).ID()], against[f.Graph.LinkAt(d.To).ID()] = true, true
				}
			}
		}
		if len(against) != 2 || !against[x.ID] || !against[x.Equivalent[0].ID] {
			t.Errorf("seed %d: %s and %s are swapped, the paths contradict %v", seed, x.ID, x.Equivalent[0].ID, against)
		}
	}
}

// The clock of a node moves the two directions of its flows against each other.
func TestClockLeavesTheSumAlone(t *testing.T) {
	c := Scenario{ID: fabric.ClockTrouble, Variant: "drift", Probes: 100}.MakeCase(small(), 2)
	by := map[string]*fabric.Observation{}
	for _, o := range c.Observations {
		by[fmt.Sprint(o.Edge, window(o))] = o
	}
	moved := 0
	for _, o := range c.Observations {
		back := by[fmt.Sprint(o.Edge+"/r", window(o))]
		if back == nil {
			continue
		}
		if shifted(o) {
			moved++
		}
		sum := *o.OWD.P50 + *back.OWD.P50 - *o.Baseline.P50 - *back.Baseline.P50
		if math.Abs(float64(sum)) > 2.5e4 {
			t.Fatalf("%s: the round trip moved by %d ns", o.Edge, sum)
		}
	}
	if moved == 0 {
		t.Error("no flow moved")
	}
}

// Every variant of every scenario can be made on every kind of fabric.
func TestAllVariants(t *testing.T) {
	rail := NewFabric(clos.NewTopology(clos.Options{Planes: 2, LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 4, NICsPerNode: 4, RailOptimised: true}))
	for _, f := range []*Fabric{small(), tree(), rail} {
		for _, s := range AllScenarios() {
			for _, v := range append([]string{""}, VariantsOf(s)...) {
				for seed := range uint64(2) {
					c := Scenario{ID: s, Variant: v, Windows: 3, Probes: 5, Hardware: seed == 1, CrossTraffic: seed == 1}.MakeCase(f, seed)
					if len(c.Observations) == 0 || len(c.Truth.Faults) != 1 || c.Truth.Faults[0].Scenario != s {
						t.Errorf("%s %s: %d observations, truth %v", s, v, len(c.Observations), c.Truth.Faults)
					}
				}
			}
		}
	}
}

// TestBurstsLoseAsMany: however long bursts are, the share that is lost stays, and the losses of a flow vary more.
func TestBurstsLoseAsMany(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 9))
	const flows, sent, p = 20_000, 1000, 0.02
	for _, mean := range []float64{1, 3, 10} {
		sum, squares := 0.0, 0.0
		for range flows {
			lost := float64(Drops{Burst: mean}.drawLosses(rng, sent, p))
			sum, squares = sum+lost, squares+lost*lost
		}
		average := sum / flows
		variance := squares/flows - average*average
		// A sum of geometric lengths, of which Poisson many begin, has 2 * mean - 1 times the variance of single losses.
		if want := sent * p; math.Abs(average-want) > 0.03*want || math.Abs(variance/average-(2*mean-1)) > 0.15*(2*mean-1) {
			t.Errorf("bursts of %g: %.2f of %d lost, want %.0f; variance %.2f times that, want %.0f", mean, average, sent, want, variance/average, 2*mean-1)
		}
	}
}
