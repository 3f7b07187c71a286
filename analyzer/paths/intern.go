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

func (s *slab[T]) at(i uint32) *T { return &s.chunks[i/slabChunk][i%slabChunk] }

func (s *slab[T]) add() uint32 {
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

func (s *slab[T]) drop(i uint32) {
	var zero T
	*s.at(i) = zero
	s.free = append(s.free, i)
}

// end is a switch port as a path names it. An access end stands for the port that
// the topology plugs the flow's own NIC into, so that all flows between two leaves
// that cross the same fabric links share one route.
type end struct {
	sw, port string
	access   bool
}

// route is an interned path.
type route struct {
	ends  string // ingress and egress of every hop, four bytes each, indices of routes.ends
	posts []post
	flows []uint32 // records bound to it now
	refs  int      // records, versions and candidates that name it
}

// post is a route's entry in the list of a place: a switch or a link.
type post struct{ place, index uint32 }

// routes interns paths and knows which of them cross a place.
type routes struct {
	all     slab[route]
	byEnds  map[string]uint32
	ends    []end
	owner   []uint32 // the number of the switch of each end
	endID   map[end]uint32
	number  map[string]uint32 // of switches
	placeID map[string]uint32
	places  [][]uint32 // routes, by place
}

func newRoutes() *routes {
	return &routes{byEnds: map[string]uint32{}, endID: map[end]uint32{}, number: map[string]uint32{}, placeID: map[string]uint32{}}
}

func (r *routes) end(e end) uint32 {
	id, ok := r.endID[e]
	if !ok {
		id = uint32(len(r.ends))
		r.ends = append(r.ends, e)
		r.owner = append(r.owner, r.switchNumber(e.sw))
		r.endID[e] = id
	}
	return id
}

func (r *routes) switchNumber(sw string) uint32 {
	n, ok := r.number[sw]
	if !ok {
		n = uint32(len(r.number))
		r.number[sw] = n
	}
	return n
}

// hold interns a path between two NICs that are plugged into the ends from and
// to, and counts one more holder. An empty path is route 0.
func (r *routes) hold(p fabric.Path, from, to end) uint32 {
	if len(p) == 0 {
		return 0
	}
	key := make([]byte, 0, 8*len(p))
	for i, h := range p {
		in, out := end{sw: h.Switch, port: h.In}, end{sw: h.Switch, port: h.Out}
		if i == 0 && in == from {
			in = end{sw: h.Switch, access: true}
		}
		if i == len(p)-1 && out == to {
			out = end{sw: h.Switch, access: true}
		}
		key = binary.LittleEndian.AppendUint32(key, r.end(in))
		key = binary.LittleEndian.AppendUint32(key, r.end(out))
	}
	id, ok := r.byEnds[string(key)]
	if !ok {
		id = r.all.add()
		*r.all.at(id) = route{ends: string(key)}
		r.byEnds[r.all.at(id).ends] = id
		r.post(id, p)
	}
	r.all.at(id).refs++
	return id
}

// post enters a route into the lists of its switches and of the links between them.
func (r *routes) post(id uint32, p fabric.Path) {
	x := r.all.at(id)
	x.posts = make([]post, 0, 2*len(p))
	enter := func(name string) {
		place, ok := r.placeID[name]
		if !ok {
			place = uint32(len(r.places))
			r.placeID[name] = place
			r.places = append(r.places, nil)
		}
		for _, have := range x.posts {
			if have.place == place { // a path that crosses it twice
				return
			}
		}
		x.posts = append(x.posts, post{place, uint32(len(r.places[place]))})
		r.places[place] = append(r.places[place], id)
	}
	for i, h := range p {
		enter(h.Switch)
		if i+1 < len(p) && h.Out != "" && p[i+1].In != "" {
			enter(fabric.LinkID(h.Switch+":"+h.Out, p[i+1].Switch+":"+p[i+1].In))
		}
	}
}

// release counts one holder less and forgets a route that has none.
func (r *routes) release(id uint32) {
	if id == 0 {
		return
	}
	x := r.all.at(id)
	if x.refs--; x.refs > 0 {
		return
	}
	for _, p := range x.posts {
		list := r.places[p.place]
		last := list[len(list)-1]
		list[p.index] = last
		r.places[p.place] = list[:len(list)-1]
		if last == id {
			continue
		}
		moved := r.all.at(last)
		for i := range moved.posts {
			if moved.posts[i].place == p.place {
				moved.posts[i].index = p.index
			}
		}
	}
	delete(r.byEnds, x.ends)
	r.all.drop(id)
}

// path spells a route out for the NICs plugged into from and to.
func (r *routes) path(id uint32, from, to end) fabric.Path {
	if id == 0 {
		return nil
	}
	ends := r.all.at(id).ends
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

// switches are the numbers of those of a route, in order.
func (r *routes) switches(id uint32) iter.Seq2[int, uint32] {
	return func(yield func(int, uint32) bool) {
		ends := r.all.at(id).ends
		for i := range len(ends) / 8 {
			if !yield(i, r.owner[endID(ends, 2*i)]) {
				return
			}
		}
	}
}

// crossing lists the routes over a switch or a link between switches.
func (r *routes) crossing(name string) []uint32 {
	place, ok := r.placeID[name]
	if !ok {
		return nil
	}
	return r.places[place]
}
