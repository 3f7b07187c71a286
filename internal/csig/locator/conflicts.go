package locator

import (
	"cmp"
	"math/bits"
	"slices"
)

// set is a set of numbers.
type set []uint64

func newSet(size int) set         { return make(set, (size+63)/64) }
func (s set) add(i int)           { s[i/64] |= 1 << (i % 64) }
func (s set) contains(i int) bool { return s[i/64]>>(i%64)&1 != 0 }

func (s set) addAll(o set) {
	for i, w := range o {
		s[i] |= w
	}
}

// forEach calls f for each number in the set, which f may not change.
func (s set) forEach(f func(i int)) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			f(i*64 + bits.TrailingZeros64(w))
		}
	}
}

// colorClasses gives classes colors, so that no path crosses two classes of one color, and returns the number of colors.
func (n *network) colorClasses() int {
	if colors, ok := n.colorTiers(); ok {
		return colors
	}
	return n.colorConflicts()
}

// maxTierColors is the number of colors of tiers, which are bits of one word.
const maxTierColors = 64

// colorTiers gives one color to the uplinks of each tier, to the downlinks of each tier, and to the ports to NICs. In a Clos
// that is as few as a path has ports. ok is false if a path crosses a color twice, or if there are more colors than that, so
// that conflicts have to be looked for.
func (n *network) colorTiers() (colors int, ok bool) {
	if n.adaptive {
		return 0, false
	}
	numbers := map[[2]int]int{}
	order := make([]int, len(n.classes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, n.compareClasses)
	for _, i := range order {
		c := &n.classes[i]
		key := [2]int{int(c.kind), n.nodes[c.sw].tier}
		if c.kind == access {
			key[1] = 0
		}
		if _, known := numbers[key]; !known {
			numbers[key] = len(numbers)
		}
		c.color = numbers[key]
	}
	if len(numbers) > maxTierColors {
		return 0, false
	}
	for _, p := range n.splitParts() {
		for _, i := range p.switches {
			if n.nodes[i].hasNICs && !p.hasDistinctColors(i) {
				return 0, false
			}
		}
	}
	return len(numbers), len(numbers) <= n.longest
}

// compareClasses orders classes as paths cross them in a Clos: uplinks from the lowest tier on, links across, and downlinks
// from the highest tier on.
func (n *network) compareClasses(x, y int) int {
	a, b := &n.classes[x], &n.classes[y]
	tierA, tierB := n.nodes[a.sw].tier, n.nodes[b.sw].tier
	if a.kind == down {
		tierA, tierB = tierB, tierA
	}
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(tierA, tierB), cmp.Compare(n.nodes[a.sw].group, n.nodes[b.sw].group))
}

// switchesByDistance returns the switches from which packets reach a goal, by the number of links that are left.
func (p *part) switchesByDistance(goal int) (byDist [][]int) {
	n := p.network
	dist := n.graph.SwitchDistances(n.nodes[goal].name)
	for _, i := range p.switches {
		d, ok := dist[n.nodes[i].name]
		if !ok {
			d = -1
		}
		n.nodes[i].far = d
		for len(byDist) <= d {
			byDist = append(byDist, nil)
		}
		if ok {
			byDist[d] = append(byDist[d], i)
		}
	}
	return byDist
}

// hasDistinctColors reports whether no shortest path to a leaf crosses two classes of one color.
func (p *part) hasDistinctColors(goal int) bool {
	n := p.network
	byDist := p.switchesByDistance(goal)
	for _, i := range p.switches {
		n.nodes[i].crossed, n.nodes[i].before = n.nodes[i].hasNICs, 0
	}
	for d := len(byDist) - 1; d >= 0; d-- {
		for _, i := range byDist[d] {
			from := &n.nodes[i]
			if !from.crossed {
				continue
			}
			n.longest = max(n.longest, d+1)
			for _, s := range from.steps {
				to, color := &n.nodes[s.next], uint64(1)<<n.classes[s.class].color
				if to.far != d-1 {
					continue
				}
				if from.before&color != 0 {
					return false
				}
				to.crossed = true
				to.before |= from.before | color
			}
		}
	}
	return n.nodes[goal].before>>n.classes[n.nodes[goal].classes[access]].color&1 == 0
}

// part is a connected part of the fabric, with its own numbers of switches and classes.
type part struct {
	network  *network
	switches []int
	classes  []int
	own      map[int]int // class number within the part
}

// splitParts returns the connected parts.
func (n *network) splitParts() []part {
	var out []part
	for i := range n.nodes {
		at := n.nodes[i].part
		for len(out) <= at {
			out = append(out, part{network: n, own: map[int]int{}})
		}
		out[at].switches = append(out[at].switches, i)
		for _, c := range n.nodes[i].classes {
			if c >= 0 {
				out[at].own[c] = len(out[at].classes)
				out[at].classes = append(out[at].classes, c)
			}
		}
	}
	return out
}

// findConflicts finds for each class the classes of which a candidate path may cross a port as well.
func (n *network) findConflicts() {
	for _, p := range n.splitParts() {
		for _, c := range p.classes {
			n.classes[c].conflicts = newSet(len(p.classes))
		}
		for _, i := range p.switches {
			if n.nodes[i].hasNICs {
				p.addPathsTo(i)
			}
		}
		if n.adaptive {
			p.addDetours()
		}
		for i, c := range p.classes {
			n.classes[c].conflicts.forEach(func(j int) { n.classes[p.classes[j]].conflicts.add(i) })
		}
	}
}

// addPathsTo adds the conflicts on shortest paths from all leaves to one leaf.
func (p *part) addPathsTo(goal int) {
	n := p.network
	byDist := p.switchesByDistance(goal)
	after := map[int]set{} // classes that packets to the goal may cross from a switch on
	after[goal] = newSet(len(p.classes))
	after[goal].add(p.own[n.nodes[goal].classes[access]])
	for d := 1; d < len(byDist); d++ {
		for _, i := range byDist[d] {
			after[i] = newSet(len(p.classes))
			for _, s := range n.nodes[i].steps {
				if n.nodes[s.next].far == d-1 {
					after[i].addAll(after[s.next])
					after[i].add(p.own[s.class])
				}
			}
		}
	}
	for _, i := range p.switches {
		n.nodes[i].crossed = n.nodes[i].hasNICs
	}
	for d := len(byDist) - 1; d >= 0; d-- {
		for _, i := range byDist[d] {
			if !n.nodes[i].crossed {
				continue
			}
			n.longest = max(n.longest, d+1)
			for _, s := range n.nodes[i].steps {
				if n.nodes[s.next].far == d-1 {
					n.nodes[s.next].crossed = true
					n.classes[s.class].conflicts.addAll(after[s.next])
				}
			}
		}
	}
}

// longestDetour is the number of switches of the longest path by a third group: fabric.Graph.CandidatePaths.
const longestDetour = 7

// addDetours adds the conflicts on paths by a third group of a Dragonfly+. Such a path goes up and across in the first
// group; across, or down, up and across in the third one; and down in the last one. Any three groups count as joined.
func (p *part) addDetours() {
	n := p.network
	groups := map[string]bool{}
	for _, i := range p.switches {
		if g := n.nodes[i].group; g != "" {
			groups[g] = true
		}
	}
	if len(groups) < 3 {
		return
	}
	n.longest = max(n.longest, longestDetour)
	for i, a := range p.classes {
		for j, b := range p.classes[:i] {
			if n.mayDetourOver(&n.classes[a], &n.classes[b]) {
				n.classes[a].conflicts.add(j)
			}
		}
	}
}

// mayDetourOver reports whether one path by a third group may cross both classes.
func (n *network) mayDetourOver(a, b *class) bool {
	groupA, groupB := n.nodes[a.sw].group, n.nodes[b.sw].group
	switch {
	case groupA == "" || groupB == "":
		return false
	case groupA == groupB:
		least, most := min(a.kind, b.kind), max(a.kind, b.kind)
		return least != most && (most != access || least == down)
	}
	return a.kind != access || b.kind != access
}

// colorConflicts gives classes colors, so that classes with a conflict have different ones, and returns the number of colors.
func (n *network) colorConflicts() int {
	n.findConflicts()
	colors := 0
	for _, p := range n.splitParts() {
		order := slices.Clone(p.classes)
		slices.SortStableFunc(order, n.compareClasses)
		for _, c := range order {
			n.classes[c].color = -1
		}
		for _, c := range order {
			taken := newSet(len(p.classes) + 1)
			n.classes[c].conflicts.forEach(func(i int) {
				if color := n.classes[p.classes[i]].color; color >= 0 {
					taken.add(color)
				}
			})
			color := 0
			for taken.contains(color) {
				color++
			}
			n.classes[c].color = color
			colors = max(colors, color+1)
		}
	}
	return colors
}
