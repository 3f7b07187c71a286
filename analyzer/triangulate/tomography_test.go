package triangulate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// TestTomographyAgainstTheTruth: up to six directions add 3 us to 300 us each; every
// flow's median wanders by half a microsecond. Errors are small where a delay is said
// to be identifiable, and indistinguishable links are flagged.
func TestTomographyAgainstTheTruth(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 3, NICsPerLeaf: 3}))
	nics := g.NICIDs()
	var links []fabric.Direction
	for _, l := range g.Topo.Links {
		links = append(links, fabric.Direction{From: l.A, To: l.B}, fabric.Direction{From: l.B, To: l.A})
	}
	var slow []float64
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		truth := map[fabric.Direction]float64{}
		for range 1 + rng.IntN(6) {
			truth[links[rng.IntN(len(links))]] = 3000 * math.Pow(100, rng.Float64())
		}
		var fs []judge.Finding
		for flow := range 3 {
			for _, src := range nics {
				for _, dst := range nics {
					if src == dst {
						continue
					}
					ways := g.ShortestPaths(src, dst, 8)
					way := ways[rng.IntN(len(ways))]
					shift := 500 * rng.NormFloat64()
					for _, d := range way.LinkDirections(src, dst) {
						shift += truth[d]
					}
					f := finding(g, src, dst, flow, -1, 0, 0)
					f.Obs.Path, f.Obs.PathState = way, fabric.PathValid
					f.Shift = int64(shift)
					if f.Shift > f.Scale {
						f.Condition, f.Delayed = judge.Degraded, true
					}
					fs = append(fs, f)
				}
			}
		}
		for _, l := range Run(g, fs, DefaultParameters()).Links {
			wrong := math.Abs(float64(l.AddedDelayNS) - truth[l.Direction])
			switch by := truth[l.Direction]; {
			case !l.Identifiable:
			case by > 0:
				slow = append(slow, wrong)
				if wrong > max(2000, 0.1*by) {
					t.Errorf("seed %d: %s adds %.0f ns, said to be %d", seed, l.Direction, by, l.AddedDelayNS)
				}
			case wrong > 2000:
				t.Errorf("seed %d: %s adds nothing, said to be %d ns", seed, l.Direction, l.AddedDelayNS)
			}
		}
	}
	slices.Sort(slow)
	// docs/localization.md has these figures: 80 and 230 ns.
	if len(slow) < 80 || slow[len(slow)/2] > 100 || slow[len(slow)*95/100] > 300 {
		t.Errorf("%d slow links identified, median error %.0f ns, P95 %.0f ns", len(slow), slow[len(slow)/2], slow[len(slow)*95/100])
	}
	t.Logf("%d slow links: median error %.0f ns, P95 %.0f ns", len(slow), slow[len(slow)/2], slow[len(slow)*95/100])
}

// TestIndistinguishableLinksAreFlagged: the late flows by spine 1 all cross an up link and
// a down link, and the flows do not show which of the two is slow. A flow that is not late clears all
// that it crosses.
func TestIndistinguishableLinksAreFlagged(t *testing.T) {
	g := graph(t)
	fs := []judge.Finding{
		finding(g, "a/e", "c/e", 0, 0, 500, 0), finding(g, "b/e", "d/e", 0, 0, 500, 0), finding(g, "a/e", "c/e", 1, 1, 0, 0),
		finding(g, "b/e", "d/e", 1, 1, 0, 0),
	}
	got := map[string]bool{}
	for _, l := range Run(g, fs, DefaultParameters()).Links {
		got[l.Direction.String()] = l.Identifiable
	}
	for d, want := range map[string]bool{"leaf1:u1->spine1:1": false, "spine1:2->leaf2:u1": false, "a/e->leaf1:1": true, "leaf2:2->d/e": true, "spine2:2->leaf2:u2": true} {
		if yes, ok := got[d]; !ok || yes != want {
			t.Errorf("%s: identifiable %v (known: %v), want %v", d, yes, ok, want)
		}
	}
}
