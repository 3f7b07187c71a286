package routing

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/graylink/graylink/internal/fabric"
)

// leastSkew is the least share of the largest chi-square, that of flows that all take one next hop, from which flows crowd.
const leastSkew = 0.25

// crowd is a switch of the second tier with what it does to the flows of its leaves.
type crowd struct {
	sw      string
	flows   int
	used    int
	unused  []fabric.Direction // from the switch
	leaves  []fabric.Element
	up      []fabric.Direction
	sameFor bool // every leaf's flows take the same few
}

// crowdedSwitches returns the switches whose flows from single leaves crowd on few of the equal next hops above.
func (w *Watcher) crowdedSwitches(m *Moment) (out []*crowd) {
	above := map[string][]fabric.Direction{} // the uplinks of switches that have leaves below
	questions := 0
	for i := range w.usage.ports {
		p := &w.usage.ports[i]
		sw := fabric.OwnerOf(p.To)
		if m.Graph.SwitchTier(fabric.OwnerOf(p.From)) != 1 || len(p.onward) == 0 {
			continue
		}
		if _, known := above[sw]; known {
			continue
		}
		above[sw] = nil
		for _, end := range m.Graph.Uplinks(sw) {
			if d := (fabric.Direction{From: end, To: m.Graph.PeerOf(end)}); !m.linkIsDown(d) {
				above[sw] = append(above[sw], d)
			}
		}
		questions++
	}
	for _, sw := range sortedKeys(above) {
		up := above[sw]
		if len(up) < 2 {
			continue
		}
		bound := chance / float64(questions)
		if c := w.crowdAt(m, sw, up, bound, w.onwardOf); c == nil {
			continue
		}
		// Toward some leaves it may have fewer next hops, which is not the hash.
		alike := w.onwardAlike(up)
		if c := w.crowdAt(m, sw, up, bound, func(in, out portID) int { return alike[in][out] }); c != nil {
			out = append(out, c)
		}
	}
	return out
}

// onwardOf returns how many flows cross a port and then another one.
func (w *Watcher) onwardOf(in, out portID) int { return w.usage.ports[in].onward[out] }

// strays is the divisor of the share of the flows to a leaf that may take a next hop which the others avoid: paths are learnt late.
const strays = 10

// onwardAlike returns how many flows cross ports into a switch and then some ports out of it, without those to leaves whose flows avoid one
// of these that flows from the same port to other leaves take.
func (w *Watcher) onwardAlike(up []fabric.Direction) map[portID]map[portID]int {
	byLeaf := map[portID]map[string]map[portID]int{}
	for _, r := range w.usage.records {
		if !r.valid {
			continue
		}
		for i := 1; i < len(r.ports); i++ {
			in, out := r.ports[i-1], r.ports[i]
			if !slices.Contains(up, w.usage.ports[out].Direction) {
				continue
			}
			if byLeaf[in] == nil {
				byLeaf[in] = map[string]map[portID]int{}
			}
			if byLeaf[in][r.leaf] == nil {
				byLeaf[in][r.leaf] = map[portID]int{}
			}
			byLeaf[in][r.leaf][out]++
		}
	}
	alike := map[portID]map[portID]int{}
	for in, leaves := range byLeaf {
		taken := map[portID]bool{}
		for _, outs := range leaves {
			total := 0
			for _, n := range outs {
				total += n
			}
			for out, n := range outs {
				if n*strays > total {
					taken[out] = true
				}
			}
		}
		alike[in] = map[portID]int{}
		for _, outs := range leaves {
			avoids := false
			for out := range taken {
				avoids = avoids || outs[out] == 0
			}
			if avoids {
				continue
			}
			for out, n := range outs {
				alike[in][out] += n
			}
		}
	}
	return alike
}

// crowdAt tests the choice of one switch, and returns nil if it is not far from uniform. onward returns how many flows cross a port into
// it and then a port out of it.
func (w *Watcher) crowdAt(m *Moment, sw string, up []fabric.Direction, bound float64, onward func(in, out portID) int) *crowd {
	k := float64(len(up))
	c := &crowd{sw: sw, up: up, sameFor: true}
	chi, largest, dof := 0.0, 0.0, 0.0
	total := map[fabric.Direction]int{}
	var first map[fabric.Direction]bool
	for _, end := range m.Graph.EndsOf(sw) {
		leafEnd := m.Graph.PeerOf(end)
		n, ok := w.usage.numbers[fabric.Direction{From: leafEnd, To: end}]
		if !ok || m.Graph.SwitchTier(fabric.OwnerOf(leafEnd)) != 1 {
			continue
		}
		flows := 0
		taken := map[fabric.Direction]bool{}
		for _, d := range up {
			if out, known := w.usage.numbers[d]; known && onward(n, out) > 0 {
				flows += onward(n, out)
				total[d] += onward(n, out)
				taken[d] = true
			}
		}
		if flows < 2 {
			continue
		}
		own, mean := 0.0, float64(flows)/k
		for _, d := range up {
			seen := 0.0
			if out, known := w.usage.numbers[d]; known {
				seen = float64(onward(n, out))
			}
			own += (seen - mean) * (seen - mean) / mean
		}
		chi, largest, dof = chi+own, largest+float64(flows)*(k-1), dof+k-1
		c.flows += flows
		c.used = max(c.used, len(taken))
		if own >= leastSkew*float64(flows)*(k-1) {
			c.leaves = append(c.leaves, fabric.Element{ID: fabric.OwnerOf(leafEnd), Kind: fabric.KindSwitch})
		}
		if first == nil {
			first = taken
		}
		for _, d := range up {
			c.sameFor = c.sameFor && first[d] == taken[d]
		}
	}
	if dof == 0 || chi < leastSkew*largest || (distuv.ChiSquared{K: dof}).Survival(chi) > bound || c.fewByChance(k) > bound {
		return nil
	}
	for _, d := range up {
		if total[d] == 0 {
			c.unused = append(c.unused, d)
		}
	}
	c.leaves = sortedElements(c.leaves)
	return c
}

// fewByChance returns a bound of the probability that so many flows leave the unused next hops out, where chi-square is
// inexact, or 0 if all are used.
func (c *crowd) fewByChance(k float64) float64 {
	if len(c.unused) == 0 {
		return 0
	}
	m := k - float64(len(c.unused))
	return math.Pow(m/k, float64(c.flows))
}

// polarization finds flows of leaves that crowd at the second tier (rule 3). It returns the switches that it explains.
func (w *Watcher) polarization(m *Moment) (out []Finding, crowded map[string]bool) {
	crowded = map[string]bool{}
	var all []*crowd
	far := map[string]bool{}
	sure := false
	for _, c := range w.crowdedSwitches(m) {
		full, lacking := w.tableOf(m, c)
		if lacking {
			continue // its table has too few next hops: that is not the hash
		}
		all = append(all, c)
		sure = sure || full || !c.sameFor
		for _, d := range c.unused {
			far[fabric.OwnerOf(d.To)] = true
		}
		if len(c.unused) == 0 {
			far[c.sw] = true
		}
	}
	if len(all) == 0 || !sure && (len(all) < 2 || len(far) < 2) {
		return nil, crowded
	}
	best := all[0]
	f := Finding{Kind: Polarized, Confidence: 0.999, Claimed: true, Since: m.Now}
	for _, c := range all {
		crowded[c.sw] = true
		f.Flows += c.flows
		if c.flows > best.flows {
			best = c
		}
	}
	f.Element, f.Used, f.Expected = fabric.Element{ID: best.sw, Kind: fabric.KindSwitch}, best.used, len(best.up)
	for _, c := range all {
		if c != best {
			f.Others = append(f.Others, fabric.Element{ID: c.sw, Kind: fabric.KindSwitch})
		}
		f.Others = append(f.Others, c.leaves...)
	}
	f.Others = sortedElements(f.Others)
	f.Explained = w.usage.flowsWhere(func(r *record) bool {
		for i := 1; i+1 < len(r.path); i++ {
			if r.valid && crowded[r.path[i].Switch] && m.Graph.SwitchTier(r.path[i+1].Switch) > m.Graph.SwitchTier(r.path[i].Switch) {
				return true
			}
		}
		return false
	})
	return []Finding{f}, crowded
}

// tableOf reports whether the table of a crowded switch has all next hops toward some leaf that it has to send up to, and
// whether it lacks some of them toward all such leaves.
func (w *Watcher) tableOf(m *Moment, c *crowd) (full, lacking bool) {
	for leaf := range w.usage.leaves {
		if dist := w.distances.of(m.Graph, leaf); dist[fabric.OwnerOf(c.up[0].To)] != dist[c.sw]-1 {
			continue // it is below the switch
		}
		has := 0
		for _, d := range c.up {
			switch m.hasHop(c.sw, leaf, d) {
			case yes:
				has++
			case no:
				lacking = true
			case unknown:
			}
		}
		full = full || has == len(c.up)
	}
	return full, lacking && !full
}
