package incident

import (
	"math"
	"math/rand/v2"

	"github.com/graylink/graylink/internal/fabric"
)

// Knowledge states what the observations contain of the paths that their flows took.
type Knowledge string

// What is known of paths.
const (
	// Known: every flow's path was traced.
	Known Knowledge = "known"
	// LossyTraced: flows that lost a packet were traced, of the others the ways of
	// equal cost are known.
	LossyTraced Knowledge = "lossy-traced"
	// Half of the flows, drawn by lot, were traced; of the others the ways of equal
	// cost are known.
	Half Knowledge = "half"
	// SetsOnly: no flow was traced; the ways of equal cost are known.
	SetsOnly Knowledge = "sets"
	// Unknown: nothing is known but the ends.
	Unknown Knowledge = "unknown"
	// Stale means that one flow in ten has taken another path since it was traced, and the observations have the old
	// one.
	Stale Knowledge = "stale"
)

// staleShare of the flows were rerouted after their trace.
const staleShare = 0.1

// Drops describes silent drops without delays: counts of flows between hosts.
type Drops struct {
	Know Knowledge
	// FlowsPerNIC go to NICs drawn under other leaves.
	FlowsPerNIC int
	// Packets per flow; 0: heavy-tailed, min(2000, max(5, 5 Pareto(1.05))).
	Packets uint64
	// LeastFaults and MostFaults bound the number of directed links that drop
	// packets, half of them cables of NICs.
	LeastFaults, MostFaults int
	// Least and Most bound the share of packets such a link drops, Background
	// that of any other.
	Least, Most, Background float64
	// Burst is the mean number of packets of a flow that are lost one after the other, by faults and background alike
	// (Gilbert, Bell System Technical Journal 39, 1960). 0 or 1: each is lost by itself.
	Burst float64
	// Delays: the flows' delays are measured too, and every other fault adds one
	// instead of dropping packets.
	Delays bool
}

// ThinDrops returns the thin evidence of the published comparisons: 40 flows per host, most of them of a few packets.
func ThinDrops(k Knowledge) Drops {
	return Drops{Know: k, FlowsPerNIC: 40, MostFaults: 8, Least: 0.002, Most: 0.02, Background: 1e-4}
}

// ProbeDrops returns what a probe mesh measures of the same faults: 1,000 packets per flow.
func ProbeDrops(k Knowledge) Drops {
	d := ThinDrops(k)
	d.Packets = 1000
	return d
}

// MakeCase draws a case.
func (o Drops) MakeCase(f *Fabric, seed uint64) *Case {
	rng := rand.New(rand.NewPCG(seed, 0x6472_6f70))
	c := &Case{Topology: f.Graph.Topo, Truth: Truth{Seed: seed, Windows: 1}}
	drop := make([]float64, len(f.dirs))
	for i := range drop {
		drop[i] = o.Background * rng.Float64()
	}
	faults := o.LeastFaults + rng.IntN(o.MostFaults-o.LeastFaults+1)
	var slow map[int32]float64 // ns
	if o.Delays {
		slow = map[int32]float64{}
	}
	odd := rng.IntN(2)
	taken := map[int32]bool{}
	for i := 0; i < faults; {
		d := f.drawCable(rng, i%2 == odd)
		if taken[d] || taken[f.dirs[d].back] {
			continue
		}
		taken[d] = true
		x := Fault{Loss: o.Least + (o.Most-o.Least)*rng.Float64()}
		if o.Delays && i/2%2 == 1 {
			x = Fault{DelayNS: int64(1e5 * math.Pow(20, rng.Float64()))}
			slow[d] = float64(x.DelayNS)
		} else {
			drop[d] = x.Loss
		}
		c.Truth.Faults = append(c.Truth.Faults, f.onDirection(d, x))
		i++
	}
	r := f.newRoutes(rng.Uint64(), nil)
	n := len(f.nics) * o.FlowsPerNIC
	slab := make([]fabric.Observation, 0, n)
	c.Observations = make([]*fabric.Observation, 0, n)
	hops := make([]fabric.Hop, 0, 6*n)
	var way []int32
	for i := range f.nics {
		src := &f.nics[i]
		for k := range o.FlowsPerNIC {
			dst := f.drawRemoteNIC(rng, src)
			if dst == nil {
				continue
			}
			way, _ = r.appendPath(way[:0], src, dst, rng.Uint64())
			survive, late := 1.0, 0.0
			for _, d := range way {
				survive *= 1 - drop[d]
				late += slow[d]
			}
			ob := fabric.Observation{Edge: edgeName(src.id, dst.id, k), Src: src.id, Dst: dst.id, Tier: f.highestTier(way), Plane: src.plane,
				Start: Epoch, WindowNS: int64(Window), Sent: o.packetCount(rng)}
			ob.Lost = o.drawLosses(rng, ob.Sent, 1-survive)
			if o.Delays {
				ob.OWD, ob.Baseline = drawDelays(rng, len(way), late), drawDelays(rng, len(way), 0)
				ob.Timestamp = kernelStamps.name
			}
			if o.Know == Stale && rng.Float64() < staleShare {
				way, _ = r.appendPath(way[:0], src, dst, rng.Uint64())
			}
			traced := true
			switch o.Know {
			case LossyTraced:
				traced = ob.Lost > 0
			case Half:
				traced = rng.IntN(2) == 0
			case SetsOnly, Unknown:
				traced = false
			}
			ob.PathState = fabric.PathUnknown
			switch {
			case traced:
				ob.PathState = fabric.PathValid
				hops, ob.Path = f.appendHops(hops, way)
			case o.Know != Unknown:
				ob.Paths = r.candidatePaths(src, dst)
			}
			slab = append(slab, ob)
			c.Observations = append(c.Observations, &slab[len(slab)-1])
		}
	}
	return c
}

// drawDelays draws the median and tail of a window's delays by the kernel's stamps.
func drawDelays(rng *rand.Rand, cables int, late float64) *fabric.Quantiles {
	q := make([]int64, 2)
	q[0] = int64(float64(cables*(cableDelay+switchDelay)) + float64(kernelStamps.tx+kernelStamps.rx) + 300*rng.NormFloat64() + late)
	q[1] = q[0] + int64(12e3*math.Exp(0.3*rng.NormFloat64()))
	return &fabric.Quantiles{P50: &q[0], P99: &q[1]}
}

func (o Drops) packetCount(rng *rand.Rand) uint64 {
	if o.Packets > 0 {
		return o.Packets
	}
	pareto := math.Pow(1-rng.Float64(), -1/1.05)
	return uint64(min(2000, max(5, 5*pareto)))
}

// drawLosses draws how many of a flow's packets are lost, each with chance p.
func (o Drops) drawLosses(rng *rand.Rand, sent uint64, p float64) uint64 {
	if o.Burst <= 1 {
		return drawBinomial(rng, sent, p)
	}
	// Bursts begin at a rate that loses as many packets as single losses would.
	begin := math.Log1p(-min(p/o.Burst, 1-1e-9))
	var lost uint64
	for at := 0.0; ; {
		at += math.Floor(math.Log(1-rng.Float64())/begin) + 1
		if at > float64(sent) {
			return lost
		}
		length := math.Floor(math.Log(1-rng.Float64())/math.Log1p(-1/o.Burst)) + 1
		length = min(length, float64(sent)-at+1)
		lost, at = lost+uint64(length), at+length-1
	}
}

// drawBinomial draws how many of n happen, each with chance p, by the gaps between
// those that do.
func drawBinomial(rng *rand.Rand, n uint64, p float64) uint64 {
	if p <= 0 {
		return 0
	}
	if p >= 1 {
		return n
	}
	q := math.Log1p(-p)
	var hits uint64
	for at := 0.0; ; hits++ {
		at += math.Floor(math.Log(1-rng.Float64())/q) + 1
		if at > float64(n) {
			return hits
		}
	}
}
