package clocksync

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

// fleet makes the encoded reports of one cycle: nodes of eight NICs with clocks of their own, each NIC
// probing a number of others, a few of its leaf, of its pod and of the fleet. Farther ones are noisier.
type fleet struct {
	nodes, probes int
	offset, rate  []float64
}

const nicsPerNode = 8

func newFleet(clocks, probes int) *fleet {
	rng := rand.New(rand.NewPCG(5, 5))
	f := &fleet{nodes: clocks / nicsPerNode, probes: probes}
	for range clocks {
		f.offset = append(f.offset, math.Round((rng.Float64()-0.5)*10e9))
		f.rate = append(f.rate, (rng.Float64()-0.5)*60e-6)
	}
	return f
}

func (f *fleet) reports(second int) [][]byte {
	peers, rng := rand.New(rand.NewPCG(6, 6)), rand.New(rand.NewPCG(7, uint64(second)))
	read := func(k int, at float64) int64 {
		return epoch + int64(at*1e9) + int64(f.offset[k]+f.rate[k]*at*1e9)
	}
	out := make([][]byte, f.nodes)
	name := func(k int) string { return fmt.Sprintf("node%05d/mlx5_%d", k/nicsPerNode, k%nicsPerNode) }
	for n := range f.nodes {
		r := Report{Node: fmt.Sprintf("node%05d", n), End: epoch + int64(second)*1e9}
		for nic := range nicsPerNode {
			a := n*nicsPerNode + nic
			for p := range f.probes {
				// Each rail by itself: 32 nodes of a leaf, 1,024 of a pod, and all.
				group, sigma := 32, 10.0
				switch p % 4 {
				case 2:
					group, sigma = 1024, 20
				case 3:
					group, sigma = f.nodes, 40
				}
				group = min(group, f.nodes)
				peer := n/group*group + peers.IntN(group)
				for peer >= f.nodes || peer == n {
					peer = n/group*group + peers.IntN(group)
				}
				b := peer*nicsPerNode + nic
				if p == 0 && nic > 0 {
					b = peer*nicsPerNode + nic - 1 // joins the rails
				}
				at := float64(second) - 0.5 + 0.1*rng.Float64()
				ref := read(a, at)
				r.Pairs = append(r.Pairs, PairEstimate{PairID{Src: name(a), Dst: name(b), Kind: Hardware}, Estimate{Quality: Fine, Ref: ref,
					Offset: read(b, at) - ref + int64(sigma*rng.NormFloat64()), Rate: (1+f.rate[b])/(1+f.rate[a]) - 1 + 5e-9*rng.NormFloat64(),
					Sigma: sigma, RateSigma: 5e-9, Delay: 5000, Samples: [2]int32{100, 100}}})
			}
		}
		out[n] = r.AppendTo(nil)
	}
	return out
}

// BenchmarkFrame131072 runs cycles of 131,072 clocks that each probe 8 others and are probed by 8, from
// octets to maps and back, after the first cycle.
func BenchmarkFrame131072(b *testing.B) { benchmarkFrame(b, 131072, 8) }

// BenchmarkFrame8192 runs the same for a cluster.
func BenchmarkFrame8192(b *testing.B) { benchmarkFrame(b, 8192, 8) }

func benchmarkFrame(b *testing.B, clocks, probes int) {
	world, frame := newFleet(clocks, probes), NewFrame(FrameOptions{})
	octets, sent := 0, 0
	concerns := map[string][]string{} // by node: the clocks that it gets updates of
	take := func(reports [][]byte, second int) {
		octets = 0
		for _, o := range reports {
			r, err := ParseReport(o)
			if err != nil {
				b.Fatal(err)
			}
			octets += len(o)
			if len(concerns[r.Node]) == 0 {
				names := map[string]bool{}
				for i := range r.Pairs {
					names[r.Pairs[i].ID.LocalClock()], names[r.Pairs[i].ID.PeerClock()] = true, true
				}
				concerns[r.Node] = slices.Sorted(maps.Keys(names))
			}
			frame.AddReport(r, time.Duration(second)*time.Second)
		}
	}
	second := 0
	var s *Summary
	for range 4 {
		second++
		take(world.reports(second), second)
		s = frame.Solve(time.Duration(second) * time.Second)
	}
	var taking, solving, updating time.Duration
	cycles := 0
	b.ResetTimer()
	for b.Loop() {
		b.StopTimer()
		second++
		reports := world.reports(second)
		b.StartTimer()
		began := time.Now()
		take(reports, second)
		took := time.Now()
		s = frame.Solve(time.Duration(second) * time.Second)
		solved := time.Now()
		sent = 0
		for _, names := range concerns {
			sent += len(frame.UpdateFor(names).AppendTo(nil))
		}
		taking, solving, updating, cycles = taking+took.Sub(began), solving+solved.Sub(took), updating+time.Since(solved), cycles+1
	}
	b.StopTimer()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(taking.Seconds()/float64(cycles), "s-take/op")
	b.ReportMetric(solving.Seconds()/float64(cycles), "s-solve/op")
	b.ReportMetric(updating.Seconds()/float64(cycles), "s-update/op")
	b.ReportMetric(float64(sent)/1e6, "MB-updates/op")
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "MB")
	b.ReportMetric(float64(octets)/float64(s.Edges+s.Dropped), "octets/edge")
	b.ReportMetric(float64(s.Iterations), "iterations/op")
	if s.Clocks[Locked] != clocks || s.Components != 1 {
		b.Errorf("%+v", s)
	}
	runtime.KeepAlive(frame)
}
