// Package asking finds measurements that would distinguish elements which the probes so far cannot distinguish.
//
// Rules:
//
//  1. A flow distinguishes two elements if its path crosses one of them and not the other.
//  2. A hop-limited probe that a switch on the way answers crosses what is before that switch, and nothing behind
//     it. So it distinguishes elements that all flows cross together, such as the two links of a switch in the middle.
//  3. A probe that ends at a switch says nothing of that switch: its processor answers.
//  4. Of two elements that each probe crosses together, such as a NIC and its only cable, none is invented.
//
// The package is pure: no I/O and no clock.
package asking

import (
	"cmp"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// Bounds of the search, which keep its cost independent of the size of the fabric but for one walk over the links for
// each leaf that is looked at.
const (
	maxCandidates = 5  // that are looked at
	maxRivals     = 2  // of a candidate
	leavesAround  = 3  // of each end of an element
	maxPaths      = 64 // between two NICs
)

// Planner finds measurements on one fabric. Its methods must not be called concurrently.
type Planner struct {
	g         *fabric.Graph
	leaves    []string // that have NICs
	nicAt     map[string]string
	distances map[string]map[string]int          // to a leaf or switch
	ways      map[[2]string][][]fabric.Direction // from a switch to a leaf
}

// NewPlanner returns a Planner for a fabric.
func NewPlanner(g *fabric.Graph) *Planner {
	p := &Planner{g: g, nicAt: map[string]string{}, distances: map[string]map[string]int{}, ways: map[[2]string][][]fabric.Direction{}}
	for _, nic := range g.NICIDs() {
		if leaf, _ := g.LeafOf(nic); leaf != "" && p.nicAt[leaf] == "" {
			p.nicAt[leaf] = nic
			p.leaves = append(p.leaves, leaf)
		}
	}
	slices.Sort(p.leaves)
	return p
}

// AddMeasurements returns candidates with the measurements that would distinguish each of the likeliest from its
// equivalents and rivals.
func (p *Planner) AddMeasurements(candidates []fabric.Candidate) []fabric.Candidate {
	out := slices.Clone(candidates)
	for i := range out[:min(len(out), maxCandidates)] {
		c := &out[i]
		own := target{Element: c.Element}
		own.Direction, _ = fabric.ParseDirection(c.Direction)
		for _, other := range firstOf(c.Others, maxRivals) {
			if m, ok := p.findSplit(own, target(other)); ok {
				c.WouldSplit = append(slices.Clone(c.WouldSplit), m)
			}
		}
	}
	return out
}

// AddVerdictMeasurements returns verdicts with the measurements that would distinguish the element of each from the first of
// the equivalents that the same flows cross.
func (p *Planner) AddVerdictMeasurements(verdicts []fabric.Verdict) []fabric.Verdict {
	out := slices.Clone(verdicts)
	for i := range out {
		v := &out[i]
		own := target{Element: v.Element}
		own.Direction, _ = fabric.ParseDirection(v.Direction)
		v.WouldSplit = nil
		for _, other := range firstOf(v.SameFlowEquivalents, maxRivals) {
			if m, ok := p.findSplit(own, target(other)); ok {
				v.WouldSplit = append(v.WouldSplit, m)
			}
		}
	}
	return out
}

func firstOf[T any](v []T, n int) []T { return v[:min(len(v), n)] }

// target is an element, or one direction of it.
type target fabric.DirectedElement

func targetsOf(suspects []fabric.DirectedElement) []target {
	suspects = firstOf(suspects, maxSuspects)
	out := make([]target, len(suspects))
	for i, s := range suspects {
		out[i] = target(s)
	}
	return out
}

// findSplit returns a measurement that meets one of two elements only: a flow where there is one, else a hop-limited
// probe.
func (p *Planner) findSplit(a, b target) (fabric.Measurement, bool) {
	nics := p.nicsAround(a, b)
	var hop *fabric.Measurement
	for _, dst := range nics {
		leaf, _ := p.g.LeafOf(dst)
		dist := p.distancesTo(leaf)
		for _, src := range nics {
			if src == dst {
				continue
			}
			for _, path := range p.g.PathsAlong(dist, src, dst, maxPaths) {
				if meets, avoids, ok := chooseMet(a, b, a.metBy(path, src, dst), b.metBy(path, src, dst)); ok {
					return fabric.Measurement{Meets: meets, Avoids: avoids, Src: src, Dst: dst, Path: path}, true
				}
				for n := 0; n < len(path) && hop == nil; n++ {
					if meets, avoids, ok := chooseMet(a, b, a.metBefore(path, n, src, dst), b.metBefore(path, n, src, dst)); ok {
						hop = &fabric.Measurement{Meets: meets, Avoids: avoids, Src: src, Dst: dst, Path: path, EndsAt: path[n].Switch}
					}
				}
			}
		}
	}
	if hop == nil {
		return fabric.Measurement{}, false
	}
	return *hop, true
}

// crossing is whether a probe crosses an element.
type crossing int

const (
	avoids crossing = iota
	meets
	unclear // it crosses a part, or ends there
)

// chooseMet returns which of two elements a probe meets, if it meets one and avoids the other.
func chooseMet(a, b target, atA, atB crossing) (met, avoided fabric.Element, ok bool) {
	switch {
	case atA == meets && atB == avoids:
		return a.Element, b.Element, true
	case atA == avoids && atB == meets:
		return b.Element, a.Element, true
	}
	return met, avoided, false
}

// metBy reports whether a flow by a path crosses the element.
func (t target) metBy(path fabric.Path, src, dst string) crossing {
	crosses := t.CrossedBy(path, src, dst)
	if t.Direction.From != "" {
		crosses = slices.Contains(path.LinkDirections(src, dst), t.Direction)
	}
	if crosses {
		return meets
	}
	return avoids
}

// metBefore reports whether a probe that ends at hop n of a path crosses the element.
func (t target) metBefore(path fabric.Path, n int, src, dst string) crossing {
	before := path[:n]
	directions := path.LinkDirections(src, dst)[:n+1]
	crosses := false
	switch {
	case t.Direction.From != "":
		crosses = slices.Contains(directions, t.Direction)
	case t.Kind == fabric.KindLink || t.Kind == fabric.KindAccessLink:
		crosses = slices.ContainsFunc(directions, func(d fabric.Direction) bool { return d.LinkID() == t.ID })
	case t.Kind == fabric.KindNIC:
		crosses = src == t.ID
	case t.Kind == fabric.KindHost:
		crosses = fabric.OwnerOf(src) == t.ID
	case t.Kind == fabric.KindPort || t.Kind == fabric.KindQueue:
		crosses = slices.ContainsFunc(before, func(h fabric.Hop) bool { return h.Switch+":"+h.Out == t.Port() })
	case t.Kind == fabric.KindSwitch:
		if path[n].Switch == t.ID {
			return unclear
		}
		crosses = slices.ContainsFunc(before, func(h fabric.Hop) bool { return h.Switch == t.ID })
	default:
		return unclear
	}
	if crosses {
		return meets
	}
	return avoids
}

// nicsAround returns NICs between which flows may cross one of two elements or both: those that they are, and one at each
// of the leaves around them.
func (p *Planner) nicsAround(of ...target) []string {
	var out []string
	add := func(nic string) {
		if nic != "" && !slices.Contains(out, nic) {
			out = append(out, nic)
		}
	}
	for _, t := range of {
		var around []string
		for _, d := range p.footprintOf(t) {
			for _, end := range []string{d.From, d.To} {
				if fabric.IsNIC(end) {
					add(end)
				} else {
					around = append(around, fabric.OwnerOf(end))
				}
			}
		}
		for _, sw := range firstOf(slices.Compact(append(around, t.Waypoints()...)), 4) {
			for _, leaf := range p.leavesNear(sw) {
				add(p.nicAt[leaf])
			}
		}
	}
	return out
}

func (p *Planner) footprintOf(t target) []fabric.Direction {
	if t.Direction.From != "" {
		return []fabric.Direction{t.Direction}
	}
	return t.Footprint(p.g)
}

// leavesNear returns the leaves that are nearest to a switch, spread over those that are as near.
func (p *Planner) leavesNear(sw string) []string {
	dist := p.distancesTo(sw)
	left := slices.DeleteFunc(slices.Clone(p.leaves), func(l string) bool { _, ok := dist[l]; return !ok })
	slices.SortStableFunc(left, func(a, b string) int { return cmp.Compare(dist[a], dist[b]) })
	var out []string
	for len(left) > 0 && len(out) < leavesAround {
		n := 1 // that are as near as the first
		for n < len(left) && dist[left[n]] == dist[left[0]] {
			n++
		}
		take := min(n, leavesAround-len(out))
		for i := range take {
			out = append(out, left[i*n/take])
		}
		left = left[n:]
	}
	return out
}

func (p *Planner) distancesTo(sw string) map[string]int {
	d, ok := p.distances[sw]
	if !ok {
		d = p.g.SwitchDistances(sw)
		p.distances[sw] = d
	}
	return d
}
