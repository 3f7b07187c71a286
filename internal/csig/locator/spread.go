package locator

import "github.com/graylink/graylink/internal/csig"

// reach has ports between which flows of one leaf choose: those above a leaf, or those down to it.
type reach []int

// portsAbove returns the ports up from a leaf and across from the switches above it.
func (n *network) portsAbove(leaf int) reach {
	var out reach
	seen := map[int]bool{leaf: true}
	for queue := []int{leaf}; len(queue) > 0; queue = queue[1:] {
		for _, p := range n.nodes[queue[0]].ports {
			k, next := n.classes[n.ports[p].class].kind, n.ports[p].next
			if k == up || k == across {
				out = append(out, p)
			}
			if k == up && !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	return out
}

// portsDownTo returns the ports down to a leaf, and the leaf's ports to NICs.
func (n *network) portsDownTo(leaf int) reach {
	var out reach
	for _, p := range n.nodes[leaf].ports {
		if n.classes[n.ports[p].class].kind == access {
			out = append(out, p)
		}
	}
	below := map[int]bool{leaf: true}
	for queue := []int{leaf}; len(queue) > 0; queue = queue[1:] {
		for _, sw := range n.nodes[queue[0]].above {
			for _, p := range n.nodes[sw].ports {
				if n.ports[p].next == queue[0] && n.classes[n.ports[p].class].kind == down {
					out = append(out, p)
				}
			}
			if !below[sw] {
				below[sw] = true
				queue = append(queue, sw)
			}
		}
	}
	return out
}

// eachReach calls f for the ports above each leaf, then for those down to each leaf, and for those of each switch.
func (n *network) eachReach(f func(reach)) {
	for _, ports := range []func(int) reach{n.portsAbove, n.portsDownTo} {
		for i := range n.nodes {
			if n.nodes[i].hasNICs {
				f(ports(i))
			}
		}
	}
	for i := range n.nodes {
		f(n.nodes[i].ports)
	}
}

// band is the codes that ports of one color have: from first on.
type band struct {
	first, size int
	widest      int // ports of the color between which flows of one leaf choose
	total       int // ports of the color
}

// divideCodes divides the codes between colors.
func (n *network) divideCodes(colors int) []band {
	bands := make([]band, colors)
	for i := range bands {
		bands[i] = band{size: 1, widest: 1}
	}
	for _, p := range n.ports {
		bands[n.classes[p.class].color].total++
	}
	n.eachReach(func(r reach) {
		count := map[int]int{}
		for _, p := range r {
			// Which port leads to a NIC is known from the flow.
			if c := &n.classes[n.ports[p].class]; c.kind != access {
				count[c.color]++
			}
		}
		for color, ports := range count {
			bands[color].widest = max(bands[color].widest, ports)
		}
	})
	left := int(csig.Compact.MaxLocator()) - colors
	for _, want := range []func(*band) int{func(b *band) int { return b.widest }, func(b *band) int { return b.total }} {
		for left > 0 {
			best := -1
			for i := range bands {
				b := &bands[i]
				if b.size < want(b) && (best < 0 || want(b)*bands[best].size > want(&bands[best])*b.size) {
					best = i
				}
			}
			if best < 0 {
				break
			}
			bands[best].size++
			left--
		}
	}
	first := 1
	for i := range bands {
		bands[i].first = first
		first += bands[i].size
	}
	return bands
}

// spreadCodes gives every port a code of its color's band: of those that are rarest among the ports between which flows of a
// leaf choose, the one that the fewest ports have.
func (n *network) spreadCodes(colors int) {
	bands := n.divideCodes(colors)
	used := make([]int, int(csig.Compact.MaxLocator())+1)
	n.eachReach(func(r reach) {
		count := make([]int, len(used))
		for _, p := range r {
			count[n.ports[p].code]++
		}
		for _, p := range r {
			if n.ports[p].code != 0 {
				continue
			}
			b := bands[n.classes[n.ports[p].class].color]
			best := b.first
			for c := b.first; c < b.first+b.size; c++ {
				if count[c] < count[best] || count[c] == count[best] && used[c] < used[best] {
					best = c
				}
			}
			n.ports[p].code = uint16(best)
			count[best]++
			used[best]++
		}
	})
}
