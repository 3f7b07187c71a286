package plan

import (
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Pairs calls each for every NIC and every unit that the jobs have it send to, in a fixed order, and once per pair.
func (n *Network) Pairs(jobs []Job, each func(src string, dst []string) error) error {
	conns, err := n.connections(jobs)
	if err != nil {
		return err
	}
	seen := map[pairKey]bool{}
	for i := range conns {
		for _, src := range conns[i].src.members {
			if key := (pairKey{src, conns[i].dst}); !seen[key] {
				seen[key] = true
				if err := each(src, conns[i].dst.members); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Hash is a fabric whose switches choose among equal next hops by a hash of the tuple and of the seed.
type Hash struct {
	net  *Network
	seed uint64
	dist map[string]map[string]int // to each leaf
	id   map[string]uint64         // of switches
	next map[[2]string][]int32     // next hops at a switch to NICs, of which only the leaves count
}

// NewHash returns the fabric of a seed.
func NewHash(n *Network, seed uint64) *Hash {
	h := &Hash{net: n, seed: seed, dist: map[string]map[string]int{}, id: map[string]uint64{}, next: map[[2]string][]int32{}}
	for i := range n.Graph.Topo.Switches {
		h.id[n.Graph.Topo.Switches[i].Name] = mix(uint64(i) ^ mix(seed))
	}
	return h
}

// textHash returns a hash of a text (FNV-1a).
func textHash(s string) uint64 {
	x := uint64(14695981039346656037)
	for i := range len(s) {
		x = (x ^ uint64(s[i])) * 1099511628211
	}
	return x
}

// Entry returns the entry of a port: packets go the shortest way to the nearest of the destination's NICs. At links
// that are excluded they go another way. ok is false if there is none.
func (h *Hash) Entry(src string, dst []string, sport uint16) (e Entry, ok bool) {
	n := h.net
	e = Entry{Src: src, Proto: "udp", DPort: RoCEPort, DSCP: 26, SPort: sport, State: Valid, Source: Synthetic,
		SrcAddr: n.Graph.ProbeAddress(src), DstAddr: n.Graph.ProbeAddress(dst[0])}
	at, linked := n.byEnd[src]
	if !linked || n.excluded[at] {
		return e, false
	}
	goal, leaves := "", n.leafNames(dst)
	if goal = leaves[0]; len(leaves) > 1 {
		goal = strings.Join(leaves, " ")
	}
	tuple := mix(textHash(src)^mix(textHash(dst[0]))) ^ uint64(sport)
	for range maxHops {
		sw, in, isPort := fabric.SplitPort(n.links[at].to)
		if !isPort {
			e.Dst = n.links[at].to
			return e, slices.Contains(dst, e.Dst)
		}
		key := [2]string{sw, goal}
		next, known := h.next[key]
		if !known {
			next = h.nextHops(sw, dst)
			if !slices.Contains(leaves, sw) {
				h.next[key] = next
			}
		}
		if len(next) == 0 {
			return e, false
		}
		at = next[mix(tuple^h.id[sw])%uint64(len(next))]
		_, out, _ := fabric.SplitPort(n.links[at].from)
		e.Path = append(e.Path, fabric.Hop{Switch: sw, In: in, Out: out})
	}
	return e, false
}

// leafNames returns the leaf of each NIC, or "" where it has none.
func (n *Network) leafNames(nics []string) []string {
	out := make([]string, len(nics))
	for i, nic := range nics {
		out[i], _ = n.Graph.LeafOf(nic)
	}
	return out
}

// nextHops returns the directions by which packets to some NICs may leave a switch.
func (h *Hash) nextHops(sw string, dst []string) (out []int32) {
	n := h.net
	best := -1
	for _, nic := range dst {
		leaf, port := n.Graph.LeafOf(nic)
		if leaf == "" {
			continue
		}
		last := n.byPort[portKey{leaf, port}]
		if n.excluded[last] {
			continue
		}
		if leaf == sw {
			if best != 0 {
				best, out = 0, nil
			}
			out = append(out, last)
			continue
		}
		dist := h.distances(leaf)
		d, reached := dist[sw]
		if !reached || best >= 0 && d > best {
			continue
		}
		if d != best {
			best, out = d, nil
		}
		for _, end := range n.Graph.EndsOf(sw) {
			l := n.byEnd[end]
			if next, _, ok := fabric.SplitPort(n.links[l].to); ok && !n.excluded[l] {
				if nd, ok := dist[next]; ok && nd == d-1 && !slices.Contains(out, l) {
					out = append(out, l)
				}
			}
		}
	}
	return out
}

// distances returns the number of links from every switch to a leaf, without those that are excluded.
func (h *Hash) distances(leaf string) map[string]int {
	if d := h.dist[leaf]; d != nil {
		return d
	}
	n := h.net
	d := map[string]int{leaf: 0}
	for queue := []string{leaf}; len(queue) > 0; queue = queue[1:] {
		for _, end := range n.Graph.EndsOf(queue[0]) {
			back := n.byEnd[n.Graph.PeerOf(end)] // from the neighbour to this switch
			prev, _, ok := fabric.SplitPort(n.links[back].from)
			if _, known := d[prev]; ok && !known && !n.excluded[back] {
				d[prev] = d[queue[0]] + 1
				queue = append(queue, prev)
			}
		}
	}
	h.dist[leaf] = d
	return d
}
