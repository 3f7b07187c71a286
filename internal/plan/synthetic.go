package plan

import (
	"slices"

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

// MembersOf returns the NICs of a bond, or the NIC itself. It returns nil if the topology does not have it.
func (n *Network) MembersOf(id string) []string {
	if u := n.units[id]; u != nil {
		return u.members
	}
	return nil
}

// Hash is a fabric whose switches choose among equal next hops by a hash of the tuple and of the seed.
type Hash struct {
	net  *Network
	seed uint64
	dist map[int32][]int32  // to each leaf
	id   []uint64           // of switches
	next map[hopKey][]int32 // next hops at a switch that is no leaf of the destination
	goal map[string][]int32 // leaves of NICs and bonds, by their first NIC
}

// hopKey is a switch and the first leaves of a destination.
type hopKey struct{ at, first, second int32 }

// NewHash returns the fabric of a seed.
func NewHash(n *Network, seed uint64) *Hash {
	h := &Hash{net: n, seed: seed, dist: map[int32][]int32{}, next: map[hopKey][]int32{}, goal: map[string][]int32{}}
	for i := range n.out {
		h.id = append(h.id, mix(uint64(i)^mix(seed)))
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
	leaves := h.leaves(dst)
	tuple := mix(textHash(src)^mix(textHash(dst[0]))) ^ uint64(sport)
	for range maxHops {
		sw := n.to[at]
		if sw < 0 {
			e.Dst = n.links[at].to
			return e, slices.Contains(dst, e.Dst)
		}
		next := h.nextHops(sw, dst, leaves)
		if len(next) == 0 {
			return e, false
		}
		name, in, _ := fabric.SplitPort(n.links[at].to)
		at = next[mix(tuple^h.id[sw])%uint64(len(next))]
		_, out, _ := fabric.SplitPort(n.links[at].from)
		e.Path = append(e.Path, fabric.Hop{Switch: name, In: in, Out: out})
	}
	return e, false
}

// leaves returns the leaf of each NIC of a destination, or -1 where no packets may reach it.
func (h *Hash) leaves(dst []string) []int32 {
	out, known := h.goal[dst[0]]
	if !known || len(out) != len(dst) {
		out = nil
		for _, nic := range dst {
			leaf := h.net.leafOf(nic)
			if leaf >= 0 && h.net.excluded[h.net.byEnd[nic]^1] {
				leaf = -1
			}
			out = append(out, leaf)
		}
		h.goal[dst[0]] = out
	}
	return out
}

// nextHops returns the directions by which packets to some NICs with their leaves may leave a switch.
func (h *Hash) nextHops(sw int32, dst []string, leaves []int32) (out []int32) {
	n := h.net
	for i, leaf := range leaves {
		if leaf == sw {
			out = append(out, n.byEnd[dst[i]]^1)
		}
	}
	if len(out) > 0 {
		return out
	}
	key := hopKey{sw, leaves[0], -1}
	if len(leaves) == 2 {
		key.second = leaves[1]
	}
	cached := len(leaves) <= 2 && !slices.Contains(leaves, sw)
	if next, known := h.next[key]; known && cached {
		return next
	}
	best := int32(-1)
	for _, leaf := range leaves {
		if leaf < 0 {
			continue
		}
		dist := h.distances(leaf)
		d := dist[sw]
		if d <= 0 || best >= 0 && d > best {
			continue
		}
		if d != best {
			best, out = d, nil
		}
		for _, l := range n.out[sw] {
			if next := n.to[l]; !n.excluded[l] && dist[next] == d-1 && !slices.Contains(out, l) {
				out = append(out, l)
			}
		}
	}
	if cached {
		h.next[key] = out
	}
	return out
}

// distances returns the number of links from every switch to a leaf, without those that are excluded.
func (h *Hash) distances(leaf int32) []int32 {
	d := h.dist[leaf]
	if d == nil {
		d = h.net.distances(leaf, h.net.excluded)
		h.dist[leaf] = d
	}
	return d
}
