package asking

import (
	"cmp"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// Bounds of the flows that are wanted for one question.
const (
	maxWantedFlows = 24
	maxSuspects    = 8
	// spreading is by how much less a pair of NICs is preferred for each flow that it has: one of the two may be busy.
	spreading = 0.02
	// missChance is the chance that no flow takes a path that distinguishes two suspects.
	missChance = 0.01
)

// Wanted are flows between two NICs, on source ports that differ from those in use.
type Wanted struct {
	Src, Dst string
	Flows    int
}

// nicPair is a pair of NICs that flows may be wanted between.
type nicPair struct {
	Wanted
	splits []float64 // by pair of suspects: the chance that the probes or the replies of a flow distinguish them
}

// PlanFlows returns the flows that are expected to distinguish suspects best. A source port decides the path of a flow,
// and how is not known: each of the shortest paths is taken for equally likely. Flows are chosen one by one, each where it
// is likeliest to distinguish suspects that those chosen before may have left together, until that chance is below
// missChance for all pairs of suspects that a flow can distinguish.
func (p *Planner) PlanFlows(suspects []fabric.DirectedElement) []Wanted {
	targets := targetsOf(suspects)
	pairs := p.splittingPairs(targets)
	missed := make([]float64, len(targets)*len(targets)) // chance that two suspects stay together
	for i := range missed {
		missed[i] = 1
	}
	usedBy := map[string]int{}
	for range maxWantedFlows {
		var best *nicPair
		most := 0.0
		for i := range pairs {
			q := &pairs[i]
			if q.Flows >= fabric.TemporaryFlows || usedBy[q.Src] >= fabric.TemporaryFlows || usedBy[q.Dst] >= fabric.TemporaryFlows {
				continue
			}
			brings := 0.0
			for k, chance := range q.splits {
				if missed[k] > missChance {
					brings += missed[k] * chance
				}
			}
			if brings *= 1 - spreading*float64(q.Flows); brings > most {
				best, most = q, brings
			}
		}
		if best == nil {
			break
		}
		best.Flows++
		usedBy[best.Src]++
		usedBy[best.Dst]++
		for k, chance := range best.splits {
			missed[k] *= 1 - chance
		}
	}
	var out []Wanted
	for _, q := range pairs {
		if q.Flows > 0 {
			out = append(out, q.Wanted)
		}
	}
	slices.SortStableFunc(out, func(a, b Wanted) int { return cmp.Compare(b.Flows, a.Flows) })
	return out
}

// splittingPairs returns the pairs of NICs around suspects whose flows may distinguish some of them.
func (p *Planner) splittingPairs(suspects []target) (out []nicPair) {
	nics := p.nicsAround(suspects...)
	for i, dst := range nics {
		for _, src := range nics[:i] { // the replies go the other way
			if fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
				continue
			}
			there, back := p.splitChances(suspects, src, dst), p.splitChances(suspects, dst, src)
			some := false
			for k := range there {
				there[k] = 1 - (1-there[k])*(1-back[k])
				some = some || there[k] > 0
			}
			if some {
				out = append(out, nicPair{Wanted{Src: src, Dst: dst}, there})
			}
		}
	}
	return out
}

// splitChances returns, for every pair of suspects, the share of the paths from one NIC to another that meet one of the two
// and avoid the other.
func (p *Planner) splitChances(suspects []target, src, dst string) []float64 {
	n := len(suspects)
	out := make([]float64, n*n)
	leaf, _ := p.g.LeafOf(dst)
	paths := p.g.PathsAlong(p.distancesTo(leaf), src, dst, maxPaths)
	met := make([]bool, n)
	for _, path := range paths {
		for i, t := range suspects {
			met[i] = t.metBy(path, src, dst) == meets
		}
		for i := range n {
			for j := range i {
				if met[i] != met[j] {
					out[i*n+j] += 1 / float64(len(paths))
				}
			}
		}
	}
	return out
}
