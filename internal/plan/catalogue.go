package plan

import (
	"cmp"
	"slices"
)

// Catalogue holds the entries of a catalogue that a network can be planned with.
type Catalogue struct {
	net     *Network
	pairs   map[pairKey]*pair
	sources map[string]Reason // of NICs from which nothing can be planned
	arena   []int32
	scratch []int32
	// Unusable counts entries with a path that the topology does not have, and OtherTuples those of packets that are not RoCE.
	Unusable, OtherTuples int
}

// pairKey is a NIC that sends and the unit that it sends to.
type pairKey struct {
	src string
	dst *unit
}

// pair holds the ports of a pair.
type pair struct {
	ports  []portPath
	paths  []option // of the ports, without those that are not valid; nil where it has to be made
	reason Reason
	sorted bool
}

// portPath is the path of a source port; length is 0 if it is not valid.
type portPath struct {
	sport  uint16
	length uint8
	start  uint32 // in the arena
	dst    string
}

// NewCatalogue returns an empty catalogue.
func NewCatalogue(n *Network) *Catalogue {
	return &Catalogue{net: n, pairs: map[pairKey]*pair{}, sources: map[string]Reason{}}
}

// Add adds an entry. Of several of one tuple, the last one counts.
func (c *Catalogue) Add(e *Entry) {
	if e.DPort != RoCEPort || e.SPort < FirstRoCEPort {
		c.OtherTuples++ // hashes differ by ports, so that other packets say nothing of RoCE
		return
	}
	dst := c.net.unitOf[e.Dst]
	if dst == nil {
		if e.Reason != "" && e.Dst == "" {
			c.sources[e.Src] = e.Reason
		} else {
			c.Unusable++
		}
		return
	}
	key := pairKey{e.Src, dst}
	p := c.pairs[key]
	if p == nil {
		p = &pair{}
		c.pairs[key] = p
	}
	p.sorted, p.paths = false, nil
	if e.Reason != "" {
		p.reason = e.Reason
	}
	x := portPath{sport: e.SPort, dst: e.Dst}
	if e.State == Valid {
		links, ok := c.net.follow(c.scratch[:0], e.Src, e.Dst, e.Path)
		c.scratch = links
		if !ok {
			c.Unusable++
		} else {
			x.start, x.length = uint32(len(c.arena)), uint8(len(links))
			c.arena = append(c.arena, links...)
		}
	}
	p.ports = append(p.ports, x)
}

// of returns the ports of a pair, sorted, and the reason why it has none that can be planned with.
func (c *Catalogue) of(src string, dst *unit) ([]portPath, Reason) {
	p := c.pairs[pairKey{src, dst}]
	if p == nil {
		return nil, c.sources[src]
	}
	if !p.sorted {
		slices.SortStableFunc(p.ports, func(a, b portPath) int { return cmp.Compare(a.sport, b.sport) })
		out := p.ports[:0]
		for i, x := range p.ports {
			if i+1 == len(p.ports) || p.ports[i+1].sport != x.sport {
				out = append(out, x)
			}
		}
		p.ports, p.sorted = out, true
	}
	return p.ports, cmp.Or(p.reason, c.sources[src])
}

func (c *Catalogue) links(x *portPath) []int32 {
	return c.arena[x.start : x.start+uint32(x.length)]
}

// option is a path that a queue pair of a connection may take, with the ports whose packets take it.
type option struct {
	member int // of the source
	dst    string
	links  []int32
	sports []uint16
	// crosses is true if packets arrive on another side than they left by.
	crosses bool
}

// options returns the paths of a connection, in the order of their members and lowest ports. If there is none, it returns the reason.
// With anySide, paths that change sides are among them.
func (c *Catalogue) options(conn *connection, anySide bool) (out []option, why Reason) {
	why = NoValidPath
	for m, src := range conn.src.members {
		paths, reason := c.pathsOf(src, conn.dst)
		if reason != "" {
			why = reason
			continue
		}
		fits := func(o *option) bool { return c.net.isFree(o.links) && (anySide || !o.crosses) }
		all := len(conn.src.members) == 1
		for i := 0; all && i < len(paths); i++ {
			all = fits(&paths[i])
		}
		if all {
			out = paths // without a copy
			break
		}
		for i := range paths {
			o := paths[i]
			if !fits(&o) {
				if why == NoValidPath && c.net.isFree(o.links) {
					why = SameSide
				}
				continue
			}
			o.member = m
			out = append(out, o)
		}
	}
	if len(out) > 0 {
		why = ""
	}
	return out, why
}

// isFree reports whether no link of a path is excluded.
func (n *Network) isFree(links []int32) bool {
	for _, l := range links {
		if n.excluded[l] {
			return false
		}
	}
	return true
}

// pathsOf returns the paths of a pair with their ports, and the reason why it has none that can be planned with.
func (c *Catalogue) pathsOf(src string, dst *unit) ([]option, Reason) {
	ports, reason := c.of(src, dst)
	p := c.pairs[pairKey{src, dst}]
	if p == nil || reason != "" || p.paths != nil {
		return p.known(), reason
	}
	p.paths = []option{}
next:
	for i := range ports {
		x := &ports[i]
		if x.length == 0 {
			continue
		}
		links := c.links(x)
		for k := range p.paths {
			if slices.Equal(p.paths[k].links, links) {
				p.paths[k].sports = append(p.paths[k].sports, x.sport)
				continue next
			}
		}
		p.paths = append(p.paths, option{dst: x.dst, links: links, sports: []uint16{x.sport}, crosses: !c.net.sameSide(src, x.dst)})
	}
	return p.paths, ""
}

// known returns the paths that have been made.
func (p *pair) known() []option {
	if p == nil {
		return nil
	}
	return p.paths
}
