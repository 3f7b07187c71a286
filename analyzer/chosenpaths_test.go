package analyzer_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/fabric"
)

// chosenRig returns a rig of four spines and four leaves whose hosts choose the paths of two flows between each two NICs, and probe each
// flow 50 times a second. Its flows have baselines.
func chosenRig(t *testing.T, seed uint64) *looptest.Rig {
	t.Helper()
	topo, found := fabric.ParseTopology("srv6.yaml", deploy.SRv6Topology)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	r := looptest.NewRigOf(t, fabric.NewGraph(topo), seed)
	r.World.ChoosePaths(t, 2)
	r.Configure(func(o *analyzer.LoopOptions) { o.Expected = len(r.World.Flows) })
	r.Stream = looptest.NewStream(r.World, 20*time.Millisecond, seed, r.Now)
	r.Learn()
	return r
}

// advance lets a random part of a second pass, and returns the moment.
func advance(r *looptest.Rig, rng *rand.Rand) time.Time {
	at := r.Now.Add(time.Duration(rng.Float64() * float64(time.Second)))
	r.Stream.Advance(at)
	return at
}

// TestFaultsOnChosenPathsAreNamedSoon: a fault that begins at any moment is named within four and a half seconds, and nothing else is.
func TestFaultsOnChosenPathsAreNamedSoon(t *testing.T) {
	for _, kind := range []string{"loss", "delay", "blackhole", "slow switch", "slow NIC"} {
		t.Run(kind, func(t *testing.T) {
			for seed := range uint64(4) {
				r, rng := chosenRig(t, seed), rand.New(rand.NewPCG(seed, 3))
				all := r.World.FabricDirections()
				d := all[rng.IntN(len(all))]
				element, direction := d.LinkID(), d.String()
				began := advance(r, rng)
				switch kind {
				case "loss":
					r.World.Loss[d] = 0.1
				case "delay":
					r.World.Delay[d] = 2e6
				case "blackhole":
					r.World.Loss[d] = 1
				case "slow switch":
					element, direction = fabric.OwnerOf(d.From), ""
					r.World.Slow[element] = 2e6
				case "slow NIC":
					nics := r.World.Graph.NICIDs()
					element = nics[rng.IntN(len(nics))]
					out := fabric.Direction{From: element, To: r.World.Graph.PeerOf(element)}
					direction = out.String()
					r.World.Delay[out] = 2e6
				}
				for took := time.Duration(0); ; {
					s := r.Step()
					if len(s.Report.Verdicts) == 0 && took < 10*time.Second {
						took = r.Now.Sub(began)
						continue
					}
					took = r.Now.Sub(began)
					if len(s.Report.Verdicts) != 1 || took > 4500*time.Millisecond {
						t.Fatalf("seed %d at %s: after %s %q", seed, element, took, looptest.OpenVerdicts(s))
					}
					if v := &s.Report.Verdicts[0]; v.Element.ID != element || v.Direction != direction {
						t.Errorf("seed %d at %s %s: %q", seed, element, direction, looptest.OpenVerdicts(s))
					}
					t.Logf("seed %d: after %s", seed, took)
					break
				}
				for range 3 {
					if s := r.Step(); len(s.Report.Verdicts) != 1 {
						t.Errorf("seed %d at %s, later: %q", seed, element, looptest.OpenVerdicts(s))
					}
				}
			}
		})
	}
}

// TestTwoFaultsOnChosenPaths: two links of one spine are at fault at once, one loses packets and one delays them. Both are named.
func TestTwoFaultsOnChosenPaths(t *testing.T) {
	for seed := range uint64(3) {
		r, rng := chosenRig(t, seed), rand.New(rand.NewPCG(seed, 4))
		all := r.World.FabricDirections()
		one := all[rng.IntN(len(all))]
		two := one
		for two.LinkID() == one.LinkID() {
			two = all[rng.IntN(len(all))]
		}
		began := advance(r, rng)
		r.World.Loss[one], r.World.Delay[two] = 0.1, 2e6
		for r.Now.Sub(began) < 8*time.Second && len(r.Loop.Snapshot().Report.Verdicts) < 2 {
			r.Step()
		}
		open := looptest.OpenVerdicts(r.Loop.Snapshot())
		for _, d := range []fabric.Direction{one, two} {
			if !slices.Contains(open, d.LinkID()+" "+d.String()+" corridor") {
				t.Errorf("seed %d: %v is not among %q after %s", seed, d, open, r.Now.Sub(began))
			}
		}
		if len(open) != 2 {
			t.Errorf("seed %d: %q", seed, open)
		}
	}
}

// TestMomentsOnChosenPathsAreNoFault: what a link loses or delays for less than half of a second is over before a verdict could be right.
func TestMomentsOnChosenPathsAreNoFault(t *testing.T) {
	for seed := range uint64(6) {
		r, rng := chosenRig(t, seed), rand.New(rand.NewPCG(seed, 5))
		all := r.World.FabricDirections()
		for range 4 {
			d := all[rng.IntN(len(all))]
			began := advance(r, rng)
			if rng.IntN(2) == 0 {
				r.World.Loss[d] = 1
			} else {
				r.World.Delay[d] = 2e6
			}
			lasted := time.Duration((0.05 + 0.4*rng.Float64()) * float64(time.Second))
			r.Stream.Advance(began.Add(lasted))
			r.World.Loss[d], r.World.Delay[d] = 0, 0
			for range 8 {
				if s := r.Step(); len(s.Report.Verdicts) > 0 {
					t.Errorf("seed %d: %s of %v for %s: %q", seed, r.Now.Sub(began), d, lasted, looptest.OpenVerdicts(s))
				}
			}
		}
	}
}

// TestRareLossesOnChosenPathsAreNoFault: each link loses one packet of five thousand.
func TestRareLossesOnChosenPathsAreNoFault(t *testing.T) {
	r := chosenRig(t, 1)
	for _, d := range r.World.FabricDirections() {
		r.World.Loss[d] = 2e-4
	}
	for range 120 {
		if s := r.Step(); len(s.Report.Verdicts) > 0 {
			t.Fatalf("after %s: %q", r.Now, looptest.OpenVerdicts(s))
		}
	}
}
