package triangulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// noisyMesh returns a window of a mesh in which no flow is late by itself: every NIC adds up to 10 us to what it sends
// and receives, its clock is wrong by up to 2 us, and every flow differs by 200 ns. adds is what a place adds, ns.
func noisyMesh(g *fabric.Graph, seed uint64, adds func(src, dst string, crossed []fabric.Direction) float64) []judge.Finding {
	rng := rand.New(rand.NewPCG(seed, 1))
	sent, received := map[string]float64{}, map[string]float64{}
	for _, nic := range g.NICIDs() {
		clock := 2000 * (2*rng.Float64() - 1)
		sent[nic], received[nic] = 10_000*rng.Float64()-clock, 10_000*rng.Float64()+clock
	}
	p50, p99 := int64(5000), int64(25_000)
	var out []judge.Finding
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			if src == dst {
				continue
			}
			paths := g.ShortestPaths(src, dst, 16)
			path := paths[rng.IntN(len(paths))]
			by := sent[src] + received[dst] + 200*rng.NormFloat64() + adds(src, dst, path.LinkDirections(src, dst))
			now := p50 + int64(by)
			out = append(out, judge.FindingsOf([]*fabric.Observation{{Edge: fmt.Sprintf("%s>%s#0", src, dst), Src: src, Dst: dst, Path: path, Sent: 1000, Timestamp: "kernel",
				OWD: &fabric.Quantiles{P50: &now}, Baseline: &fabric.Quantiles{P50: &p50, P99: &p99}}}, judge.DefaultParameters())...)
		}
	}
	return out
}

// TestRule8SmallShifts: what a link or switch adds is named by all its flows together, and what NICs and clocks add
// never is.
func TestRule8SmallShifts(t *testing.T) {
	wide := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 4, NICsPerLeaf: 4}))
	onlyOne := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 1, NICsPerLeaf: 4}))
	var up fabric.Direction // out of a leaf
	for _, p := range wide.ShortestPaths(wide.NICIDs()[0], wide.NICIDs()[15], 1) {
		up = p.LinkDirections(wide.NICIDs()[0], wide.NICIDs()[15])[1]
	}
	spine, nic := fabric.OwnerOf(up.To), wide.NICIDs()[3]
	on := func(is func(fabric.Direction) bool, by float64) func(string, string, []fabric.Direction) float64 {
		return func(_, _ string, crossed []fabric.Direction) float64 {
			for _, d := range crossed {
				if is(d) {
					return by
				}
			}
			return 0
		}
	}
	link := func(d fabric.Direction) bool { return d == up }
	for _, tt := range []struct {
		name string
		g    *fabric.Graph
		adds func(src, dst string, crossed []fabric.Direction) float64
		want string // kind and name, "" for nothing
		by   float64
	}{
		{"healthy", wide, on(link, 0), "", 0},
		{"a link adds 2 us", wide, on(link, 2000), "link " + up.LinkID() + " " + up.String(), 2000},
		{"a link adds 8 us", wide, on(link, 8000), "link " + up.LinkID() + " " + up.String(), 8000},
		{"a link adds too little", wide, on(link, 50), "", 0},
		{"a link adds less than is named", wide, on(link, 1000), "", 0},
		{"a link became faster", wide, on(link, -4000), "", 0},
		{"a switch adds 3 us", wide, on(func(d fabric.Direction) bool { return fabric.OwnerOf(d.From) == spine }, 3000), "switch " + spine, 3000},
		{"a NIC adds 5 us", wide, on(func(d fabric.Direction) bool { return d.From == nic }, 5000), "", 0},
		{"no flow goes past it", onlyOne, on(func(d fabric.Direction) bool { return fabric.OwnerOf(d.From) == spine }, 3000), "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(20) {
				window := noisyMesh(tt.g, seed, tt.adds)
				if tt.want != "" && countSlow(window, tt.adds) < 8 {
					continue // too few flows happen to cross it
				}
				r := Run(tt.g, window, DefaultParameters())
				if tt.want == "" {
					if len(r.Suspects) > 0 {
						t.Fatalf("seed %d: %+v, want nothing", seed, r.Suspects[0])
					}
					continue
				}
				if got := names(r); len(got) != 1 || got[0] != tt.want {
					t.Fatalf("seed %d: %q, want %q", seed, got, tt.want)
				}
				s := r.Suspects[0]
				if !s.Small || math.Abs(float64(s.AddedDelayNS)-tt.by) > 400 || s.Confidence < 0.99 {
					t.Errorf("seed %d: %+v", seed, s)
				}
			}
		})
	}
}

func countSlow(window []judge.Finding, adds func(src, dst string, crossed []fabric.Direction) float64) int {
	n := 0
	for i := range window {
		src, dst := window[i].Flow.Endpoints()
		if adds(src, dst, window[i].Obs.Path.LinkDirections(src, dst)) != 0 {
			n++
		}
	}
	return n
}

// TestRule8AWayThatBecameFasterAccusesNothing has leaves with two uplinks, one of which becomes faster for some of its
// flows: baselines had learnt a part of a delay that is over. The other uplink did not become slower.
func TestRule8AWayThatBecameFasterAccusesNothing(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 2}))
	nics := g.NICIDs()
	up := g.ShortestPaths(nics[0], nics[7], 1)[0].LinkDirections(nics[0], nics[7])[1]
	for _, tenths := range []int{4, 6, 8, 10} {
		accused := 0
		const windows = 200
		for seed := range uint64(windows) {
			rng := rand.New(rand.NewPCG(seed, 2))
			window := noisyMesh(g, seed, func(_, _ string, crossed []fabric.Direction) float64 {
				for _, d := range crossed {
					if d == up && rng.IntN(10) < tenths {
						return -35_000
					}
				}
				return 0
			})
			if r := Run(g, window, DefaultParameters()); len(r.Suspects) > 0 {
				accused++
			}
		}
		if accused > 0 {
			t.Errorf("%d tenths of the flows became faster: in %d of %d windows something is named", tenths, accused, windows)
		}
	}
}
