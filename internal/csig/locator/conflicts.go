package locator

import (
	"cmp"
	"math/bits"
	"slices"
)

// set is a set of numbers.
type set []uint64

func newSet(size int) set           { return make(set, (size+63)/64) }
func (s set) add(i int)             { s[i/64] |= 1 << (i % 64) }
func (s set) contains(i int) bool   { return s[i/64]>>(i%64)&1 != 0 }
func (s set) addAll(o set)          { addWords(s, o) }
func (s set) forEach(f func(i int)) { eachBit(s, f) }

func addWords(s, o set) {
	for i, w := range o {
		s[i] |= w
	}
}

func eachBit(s set, f func(i int)) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			f(i*64 + bits.TrailingZeros64(w))
		}
	}
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
	dist := n.graph.SwitchDistances(n.nodes[goal].name)
	byDist := [][]int{}
	far := make(map[int]int, len(p.switches))
	for _, i := range p.switches {
		d, ok := dist[n.nodes[i].name]
		if !ok {
			continue
		}
		far[i] = d
		for len(byDist) <= d {
			byDist = append(byDist, nil)
		}
		byDist[d] = append(byDist[d], i)
	}
	after := make(map[int]set, len(far)) // classes that packets to the goal may cross from a switch on
	after[goal] = newSet(len(p.classes))
	after[goal].add(p.own[n.nodes[goal].classes[access]])
	for d := 1; d < len(byDist); d++ {
		for _, i := range byDist[d] {
			after[i] = newSet(len(p.classes))
			for _, s := range n.nodes[i].steps {
				if far[s.next] == d-1 {
					after[i].addAll(after[s.next])
					after[i].add(p.own[s.class])
				}
			}
		}
	}
	crossed := make(map[int]bool, len(far)) // whether packets from a leaf cross a switch
	for d := len(byDist) - 1; d >= 0; d-- {
		for _, i := range byDist[d] {
			if !crossed[i] && !n.nodes[i].hasNICs {
				continue
			}
			n.longest = max(n.longest, d+1)
			for _, s := range n.nodes[i].steps {
				if far[s.next] == d-1 {
					crossed[s.next] = true
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

// colorClasses gives classes colors, so that classes with a conflict have different ones, and returns the number of colors.
// In a Clos, the order makes one color of each tier's uplinks, one of each tier's downlinks, and one of the ports to NICs.
func (n *network) colorClasses() int {
	colors := 0
	for _, p := range n.splitParts() {
		order := slices.Clone(p.classes)
		slices.SortStableFunc(order, func(x, y int) int {
			a, b := &n.classes[x], &n.classes[y]
			tierA, tierB := n.nodes[a.sw].tier, n.nodes[b.sw].tier
			if a.kind == down {
				tierA, tierB = tierB, tierA
			}
			return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(tierA, tierB), cmp.Compare(n.nodes[a.sw].group, n.nodes[b.sw].group))
		})
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
