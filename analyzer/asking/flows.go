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
	// splits are, by pair of suspects, the chances that the probes or the replies of a flow distinguish them: those of every flow, or of
	// the flows in turn if their paths are chosen.
	splits [][]float64
}

// PlanFlows returns the flows that are expected to distinguish suspects best. In most fabrics a source port decides the path of a flow,
// and how is not known: each of the shortest paths is taken for equally likely. Where senders choose paths, the temporary flows of two
// NICs take the shortest ones in turn (sourceroute.Table.NthWay). Flows are chosen one after another, each where it
// is likeliest to distinguish suspects that those chosen before may have left together, until that chance is below
// missChance for all pairs of suspects that a flow can distinguish.
func (p *Planner) PlanFlows(suspects []fabric.DirectedElement) []Wanted {
	targets := targetsOf(suspects)
	pairs := p.splittingPairs(targets)
	missed := stayTogether(len(targets))
	usedBy := map[string]int{}
	for left := maxWantedFlows; left > 0; {
		var best *nicPair
		flows, most := 0, 0.0
		for i := range pairs {
			q := &pairs[i]
			room := min(left, fabric.TemporaryFlows-max(q.Flows, usedBy[q.Src], usedBy[q.Dst]))
			if n, brings := q.nextFlows(missed, room); brings > most {
				best, flows, most = q, n, brings
			}
		}
		if best == nil {
			break
		}
		left -= flows
		usedBy[best.Src] += flows
		usedBy[best.Dst] += flows
		for range flows {
			for k, chance := range best.splits[best.Flows%len(best.splits)] {
				missed[k] *= 1 - chance
			}
			best.Flows++
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

// stayTogether returns the chances that pairs of n suspects stay together without any flow.
func stayTogether(n int) []float64 { return slices.Repeat([]float64{1}, n*n) }

// nextFlows returns how many more flows of a pair bring most for each of them, and what they bring: a chosen path may be the last one
// of several. missed are the chances that suspects stay together without them.
func (q *nicPair) nextFlows(missed []float64, room int) (flows int, most float64) {
	sum := 0.0
	for n := range min(room, len(q.splits)) {
		brings := 0.0
		for k, chance := range q.splits[(q.Flows+n)%len(q.splits)] {
			if missed[k] > missChance {
				brings += missed[k] * chance
			}
		}
		sum += brings * (1 - spreading*float64(q.Flows+n))
		if each := sum / float64(n+1); each > most {
			flows, most = n+1, each
		}
	}
	return flows, most
}

// splittingPairs returns the pairs of NICs around suspects whose flows may distinguish some of them.
func (p *Planner) splittingPairs(suspects []target) (out []nicPair) {
	nics := p.nicsAround(suspects...)
	for i, dst := range nics {
		for _, src := range nics[:i] { // the replies go the other way
			if fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
				continue
			}
			q := nicPair{Wanted: Wanted{Src: src, Dst: dst}}
			if p.g.Topo.IsSourceRouted() {
				q.splits = p.splitsInTurn(suspects, src, dst)
			} else {
				q.splits = [][]float64{either(p.splitChances(suspects, src, dst), p.splitChances(suspects, dst, src))}
			}
			if _, brings := q.nextFlows(stayTogether(len(suspects)), len(q.splits)); brings > 0 {
				out = append(out, q)
			}
		}
	}
	return out
}

// either returns the chances that one of two independent flows distinguishes suspects, by those of each.
func either(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for k := range a {
		out[k] = 1 - (1-a[k])*(1-b[k])
	}
	return out
}

// splitsInTurn returns, for every shortest path between two NICs, 1 for the pairs of suspects that the path there or the same way back
// distinguishes.
func (p *Planner) splitsInTurn(suspects []target, src, dst string) (out [][]float64) {
	leaf, _ := p.g.LeafOf(dst)
	for _, path := range p.g.PathsAlong(p.distancesTo(leaf), src, dst, maxPaths) {
		there, back := make([]float64, len(suspects)*len(suspects)), make([]float64, len(suspects)*len(suspects))
		addSplits(there, suspects, path, src, dst, 1)
		addSplits(back, suspects, path.Reverse(), dst, src, 1)
		out = append(out, either(there, back))
	}
	return out
}

// splitChances returns, for every pair of suspects, the share of the paths from one NIC to another that meet one of the two
// and avoid the other.
func (p *Planner) splitChances(suspects []target, src, dst string) []float64 {
	out := make([]float64, len(suspects)*len(suspects))
	leaf, _ := p.g.LeafOf(dst)
	paths := p.g.PathsAlong(p.distancesTo(leaf), src, dst, maxPaths)
	for _, path := range paths {
		addSplits(out, suspects, path, src, dst, 1/float64(len(paths)))
	}
	return out
}

// addSplits adds the chance of a path to those of the pairs of suspects of which it meets one and avoids the other.
func addSplits(chances []float64, suspects []target, path fabric.Path, src, dst string, chance float64) {
	n := len(suspects)
	met := make([]bool, n)
	for i, t := range suspects {
		met[i] = t.metBy(path, src, dst) == meets
	}
	for i := range n {
		for j := range i {
			if met[i] != met[j] {
				chances[i*n+j] += chance
			}
		}
	}
}
