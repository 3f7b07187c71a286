package main

import (
	"math"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/incident"
)

// What the oracle knows of the cells of silent drops.
const (
	oracleHop    = 5e-5 // mean drop ratio of a healthy directed link
	oracleFaults = 4    // mean number of faults
	oracleLeast  = 0.002
	oracleMost   = 0.02
)

// runOracle returns an answer that no method can beat by much. It judges each directed link alone, and knows all
// others' faults, how many there are on average and by what law they drop. It does not know what each healthy link
// drops. It names the links that are more likely at fault than not.
func runOracle(cs *incident.Case) answer {
	bad := map[fabric.Direction]float64{}
	for _, f := range cs.Truth.Faults {
		if d, err := fabric.ParseDirection(f.Direction); err == nil {
			bad[d] = f.Loss
		}
	}
	type flow struct{ lost, sent, rest float64 }
	by := map[fabric.Direction][]flow{}
	lossy := map[fabric.Direction]bool{}
	for _, o := range cs.Observations {
		dirs := o.Path.LinkDirections(o.Src, o.Dst)
		ratio := oracleHop * float64(len(dirs))
		for _, d := range dirs {
			ratio += bad[d]
		}
		for _, d := range dirs {
			by[d] = append(by[d], flow{float64(o.Lost), float64(o.Sent), ratio - bad[d]})
			lossy[d] = lossy[d] || o.Lost > 0
		}
	}
	prior := math.Log(oracleFaults / float64(2*len(cs.Topology.Links)))
	var out blames
	for d, flows := range by {
		if !lossy[d] {
			continue
		}
		// The mean likelihood over all drop ratios that a fault may have.
		const steps = 37
		var gains [steps]float64
		best := math.Inf(-1)
		for i := range gains {
			q := oracleLeast + (oracleMost-oracleLeast)*float64(i)/(steps-1)
			for _, f := range flows {
				gains[i] += f.lost*math.Log1p(q/f.rest) - f.sent*q
			}
			best = max(best, gains[i])
		}
		mean := 0.0
		for _, g := range gains {
			mean += math.Exp(g-best) / steps
		}
		if odds := prior + best + math.Log(mean); odds > 0 {
			out = append(out, blame{[]fabric.Direction{d}, 1 / (1 + math.Exp(-odds))})
		}
	}
	return out
}
