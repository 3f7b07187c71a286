package asking

import (
	"iter"
	"maps"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// Bounds of the hop-limited probes that are wanted for one question.
const (
	maxHopSwitches = 3
	maxHopSide     = 8 // probes to one switch that cross the same suspects
)

// HopProbe is a hop-limited copy of a flow's packets, again and again, which the switch at that hop of its path answers.
type HopProbe struct {
	Flow   fabric.Flow
	Hop    int    // hop limit, 1 or more
	Switch string // that is expected to answer
	// Before is the path up to that switch, and with it.
	Before fabric.Path
	// Meets has for every suspect of the question whether the probe or its answer crosses it.
	Meets []bool
}

// PlanHops returns the hop-limited probes that distinguish the suspects which no flow can distinguish. Only flows that
// exist are copied, of the switches at the ends of suspects, and each NIC probes a switch once. flows yields the flows of
// probes whose path is known.
func (p *Planner) PlanHops(suspects []fabric.DirectedElement, flows iter.Seq2[fabric.Flow, fabric.Path]) (out []HopProbe) {
	targets := targetsOf(suspects)
	open := p.inseparable(targets)
	if len(open) == 0 {
		return nil
	}
	at := p.probesBySwitch(targets, flows)
	switches := slices.Sorted(maps.Keys(at))
	for range maxHopSwitches {
		best, most := "", 0
		for _, sw := range switches {
			if n := len(separatedBy(at[sw], open)); n > most {
				best, most = sw, n
			}
		}
		if most == 0 {
			break
		}
		for _, pair := range separatedBy(at[best], open) {
			delete(open, pair)
		}
		out = append(out, at[best]...)
	}
	return out
}

// suspectPair is a pair of suspects by their indexes, the greater one first.
type suspectPair [2]int

// inseparable returns the pairs of suspects that no flow distinguishes.
func (p *Planner) inseparable(targets []target) map[suspectPair]bool {
	n := len(targets)
	out := map[suspectPair]bool{}
	for i := range n {
		for j := range i {
			out[suspectPair{i, j}] = true
		}
	}
	for _, q := range p.splittingPairs(targets) {
		for pair := range out {
			if slices.ContainsFunc(q.splits, func(of []float64) bool { return of[pair[0]*n+pair[1]] > 0 }) {
				delete(out, pair)
			}
		}
	}
	return out
}

// probesBySwitch returns, for each switch at the end of a suspect, probes that end there: up to maxHopSide that cross the same
// suspects, each from another NIC. Probes of which it is not clear what they cross are left out.
func (p *Planner) probesBySwitch(targets []target, flows iter.Seq2[fabric.Flow, fabric.Path]) map[string][]HopProbe {
	out := map[string][]HopProbe{}
	for _, t := range targets {
		for _, d := range p.footprintOf(t) {
			for _, end := range []string{d.From, d.To} {
				if !fabric.IsNIC(end) {
					out[fabric.OwnerOf(end)] = nil
				}
			}
		}
	}
	sides := map[string]int{} // by switch and suspects
	used := map[[2]string]bool{}
	for f, path := range flows {
		for n := range path {
			sw := path[n].Switch
			if _, wanted := out[sw]; !wanted || used[[2]string{sw, f.Src}] {
				continue
			}
			met, clear := p.crossings(targets, path, n, f)
			side := sw + " " + maskOf(met)
			if !clear || sides[side] >= maxHopSide {
				continue
			}
			sides[side]++
			used[[2]string{sw, f.Src}] = true
			out[sw] = append(out[sw], HopProbe{Flow: f, Hop: n + 1, Switch: sw, Before: slices.Clone(path[:n+1]), Meets: met})
		}
	}
	return out
}

func maskOf(met []bool) string {
	b := make([]byte, len(met))
	for i, m := range met {
		b[i] = '-'
		if m {
			b[i] = 'x'
		}
	}
	return string(b)
}

// crossings returns which suspects a probe that ends at hop n of a path, or its answer, crosses. It returns false if that is
// not clear of one of them.
func (p *Planner) crossings(targets []target, path fabric.Path, n int, f fabric.Flow) (met []bool, clear bool) {
	met = make([]bool, len(targets))
	leaf, _ := p.g.LeafOf(f.Src)
	last := fabric.Direction{From: p.g.PeerOf(f.Src), To: f.Src}
	for i, t := range targets {
		there := t.metBefore(path, n, f.Src, f.Dst)
		if there == avoids {
			there = t.metOnAll(p.waysBack(path[n].Switch, leaf), last)
		}
		if there == unclear {
			return nil, false
		}
		met[i] = there == meets
	}
	return met, true
}

// metOnAll reports whether an answer crosses the element, if it does by all its ways to a leaf and the last link, or by none. An
// answer is not of the class of a queue.
func (t target) metOnAll(ways [][]fabric.Direction, last fabric.Direction) crossing {
	crossed := 0
	for _, way := range ways {
		if t.onWay(last) || slices.ContainsFunc(way, t.onWay) {
			crossed++
		}
	}
	switch {
	case crossed == 0 && len(ways) > 0 && len(ways) < maxPaths:
		return avoids
	case crossed == len(ways) && crossed > 0 && len(ways) < maxPaths && t.Kind != fabric.KindQueue:
		return meets
	}
	return unclear
}

// onWay reports whether the way of an answer that takes a link in one direction crosses the element.
func (t target) onWay(d fabric.Direction) bool {
	switch {
	case t.Direction.From != "":
		return d == t.Direction
	case t.Kind == fabric.KindLink || t.Kind == fabric.KindAccessLink:
		return d.LinkID() == t.ID
	case t.Kind == fabric.KindNIC:
		return d.To == t.ID
	case t.Kind == fabric.KindHost:
		return fabric.IsNIC(d.To) && fabric.OwnerOf(d.To) == t.ID
	case t.Kind == fabric.KindPort || t.Kind == fabric.KindQueue:
		return d.From == t.Port()
	case t.Kind == fabric.KindSwitch:
		return fabric.OwnerOf(d.From) == t.ID
	}
	return true
}

// waysBack returns the directions on each of the shortest paths from a switch to a leaf, at most maxPaths.
func (p *Planner) waysBack(sw, leaf string) [][]fabric.Direction {
	key := [2]string{sw, leaf}
	ways, known := p.ways[key]
	if known {
		return ways
	}
	dist := p.distancesTo(leaf)
	var follow func(at string, way []fabric.Direction)
	follow = func(at string, way []fabric.Direction) {
		if at == leaf {
			ways = append(ways, slices.Clone(way))
			return
		}
		for _, end := range p.g.EndsOf(at) {
			peer := p.g.PeerOf(end)
			if peer == "" || fabric.IsNIC(peer) || len(ways) >= maxPaths {
				continue
			}
			if d, ok := dist[fabric.OwnerOf(peer)]; ok && d == dist[at]-1 {
				follow(fabric.OwnerOf(peer), append(way, fabric.Direction{From: end, To: peer}))
			}
		}
	}
	if _, ok := dist[sw]; ok {
		follow(sw, nil)
	}
	p.ways[key] = ways
	return ways
}

// separatedBy returns the pairs of suspects of which some of the probes cross one and not the other, while other probes do
// not: the share of answers that is normal for a switch is known by comparison only.
func separatedBy(probes []HopProbe, of map[suspectPair]bool) (out []suspectPair) {
	for pair := range of {
		for i := range probes {
			a := &probes[i]
			if a.Meets[pair[0]] == a.Meets[pair[1]] {
				continue
			}
			if slices.ContainsFunc(probes, func(b HopProbe) bool {
				return b.Meets[pair[0]] != a.Meets[pair[0]] || b.Meets[pair[1]] != a.Meets[pair[1]]
			}) {
				out = append(out, pair)
				break
			}
		}
	}
	return out
}
