package paths

import (
	"encoding/binary"
	"iter"

	"github.com/graylink/graylink/internal/fabric"
)

// slab keeps values at indices that stay; an index takes half of a pointer, and
// the collector need not follow it. Index 0 is never given.
type slab[T any] struct {
	chunks [][]T
	next   uint32
	free   []uint32
}

const slabChunk = 1024

func (s *slab[T]) entryAt(i uint32) *T { return &s.chunks[i/slabChunk][i%slabChunk] }

func (s *slab[T]) allocEntry() uint32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		return i
	}
	if s.next == 0 {
		s.next = 1
	}
	if int(s.next/slabChunk) == len(s.chunks) {
		s.chunks = append(s.chunks, make([]T, slabChunk))
	}
	s.next++
	return s.next - 1
}

func (s *slab[T]) freeEntry(i uint32) {
	var zero T
	*s.entryAt(i) = zero
	s.free = append(s.free, i)
}

// switchPort is a switch port as a path names it. An access end stands for the port that
// the topology plugs the flow's own NIC into, so that all flows between two leaves
// that cross the same fabric links share one route.
type switchPort struct {
	sw, port string
	access   bool
}

// route is an interned path.
type route struct {
	ends     string // ingress and egress of every hop, four bytes each, indices of routes.ends
	postings []posting
	flows    []uint32 // records bound to it now
	refs     int      // records, versions and candidates that name it
}

// posting is a route's entry in the list of a place: a switch or a link.
type posting struct{ element, index uint32 }

// routes interns paths and knows which of them cross a place.
type routes struct {
	all             slab[route]
	byEnds          map[string]uint32
	ends            []switchPort
	endSwitch       []uint32 // the number of the switch of each end
	endID           map[switchPort]uint32
	switchNumbers   map[string]uint32 // of switches
	elementID       map[string]uint32
	routesByElement [][]uint32 // routes, by place
}

func newRoutes() *routes {
	return &routes{byEnds: map[string]uint32{}, endID: map[switchPort]uint32{}, switchNumbers: map[string]uint32{}, elementID: map[string]uint32{}}
}

func (r *routes) internEnd(e switchPort) uint32 {
	id, ok := r.endID[e]
	if !ok {
		id = uint32(len(r.ends))
		r.ends = append(r.ends, e)
		r.endSwitch = append(r.endSwitch, r.switchNumber(e.sw))
		r.endID[e] = id
	}
	return id
}

func (r *routes) switchNumber(sw string) uint32 {
	n, ok := r.switchNumbers[sw]
	if !ok {
		n = uint32(len(r.switchNumbers))
		r.switchNumbers[sw] = n
	}
	return n
}

// acquireRoute interns a path between two NICs that are plugged into the ends from and
// to, and counts one more holder. An empty path is route 0.
func (r *routes) acquireRoute(p fabric.Path, from, to switchPort) uint32 {
	if len(p) == 0 {
		return 0
	}
	key := make([]byte, 0, 8*len(p))
	for i, h := range p {
		in, out := switchPort{sw: h.Switch, port: h.In}, switchPort{sw: h.Switch, port: h.Out}
		if i == 0 && in == from {
			in = switchPort{sw: h.Switch, access: true}
		}
		if i == len(p)-1 && out == to {
			out = switchPort{sw: h.Switch, access: true}
		}
		key = binary.LittleEndian.AppendUint32(key, r.internEnd(in))
		key = binary.LittleEndian.AppendUint32(key, r.internEnd(out))
	}
	id, ok := r.byEnds[string(key)]
	if !ok {
		id = r.all.allocEntry()
		*r.all.entryAt(id) = route{ends: string(key)}
		r.byEnds[r.all.entryAt(id).ends] = id
		r.indexRoute(id, p)
	}
	r.all.entryAt(id).refs++
	return id
}

// indexRoute enters a route into the lists of its switches and of the links between them.
func (r *routes) indexRoute(id uint32, p fabric.Path) {
	x := r.all.entryAt(id)
	x.postings = make([]posting, 0, 2*len(p))
	enter := func(name string) {
		place, ok := r.elementID[name]
		if !ok {
			place = uint32(len(r.routesByElement))
			r.elementID[name] = place
			r.routesByElement = append(r.routesByElement, nil)
		}
		for _, have := range x.postings {
			if have.element == place { // a path that crosses it twice
				return
			}
		}
		x.postings = append(x.postings, posting{place, uint32(len(r.routesByElement[place]))})
		r.routesByElement[place] = append(r.routesByElement[place], id)
	}
	for i, h := range p {
		enter(h.Switch)
		if i+1 < len(p) && h.Out != "" && p[i+1].In != "" {
			enter(fabric.LinkID(h.Switch+":"+h.Out, p[i+1].Switch+":"+p[i+1].In))
		}
	}
}

// releaseRoute counts one holder less and forgets a route that has none.
func (r *routes) releaseRoute(id uint32) {
	if id == 0 {
		return
	}
	x := r.all.entryAt(id)
	if x.refs--; x.refs > 0 {
		return
	}
	for _, p := range x.postings {
		list := r.routesByElement[p.element]
		last := list[len(list)-1]
		list[p.index] = last
		r.routesByElement[p.element] = list[:len(list)-1]
		if last == id {
			continue
		}
		moved := r.all.entryAt(last)
		for i := range moved.postings {
			if moved.postings[i].element == p.element {
				moved.postings[i].index = p.index
			}
		}
	}
	delete(r.byEnds, x.ends)
	r.all.freeEntry(id)
}

// expandPath spells a route out for the NICs plugged into from and to.
func (r *routes) expandPath(id uint32, from, to switchPort) fabric.Path {
	if id == 0 {
		return nil
	}
	ends := r.all.entryAt(id).ends
	p := make(fabric.Path, len(ends)/8)
	for i := range p {
		in, out := r.ends[endID(ends, 2*i)], r.ends[endID(ends, 2*i+1)]
		if in.access {
			in = from
		}
		if out.access {
			out = to
		}
		p[i] = fabric.Hop{Switch: in.sw, In: in.port, Out: out.port}
	}
	return p
}

func endID(ends string, i int) uint32 {
	return binary.LittleEndian.Uint32([]byte(ends[4*i : 4*i+4]))
}

// switchesOf returns the numbers of the switches of a route, in order.
func (r *routes) switchesOf(id uint32) iter.Seq2[int, uint32] {
	return func(yield func(int, uint32) bool) {
		ends := r.all.entryAt(id).ends
		for i := range len(ends) / 8 {
			if !yield(i, r.endSwitch[endID(ends, 2*i)]) {
				return
			}
		}
	}
}

// routesCrossing lists the routes over a switch or a link between switches.
func (r *routes) routesCrossing(name string) []uint32 {
	place, ok := r.elementID[name]
	if !ok {
		return nil
	}
	return r.routesByElement[place]
}
