package coordinator

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// pathStore counts the edges on every directed link, by the traces of agents.
type pathStore struct {
	resolving chan struct{} // bounds the number of goroutines that resolve traces

	mu      sync.Mutex
	plan    *plan
	links   []fabric.Direction
	linkAt  map[fabric.Direction]int32
	counts  []int32
	edges   map[uint64][]int32 // indexes of the crossed links in order; nil means that the edge is reported, but not bound
	bound   int                // number of edges with a path
	probes  int                // number of probe edges among these
	version uint64             // increases with every change
}

func newPathStore() *pathStore {
	return &pathStore{resolving: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), edges: map[uint64][]int32{}}
}

// edgeKey packs an edge into a number. It assumes fewer than 2^23 NICs.
func edgeKey(src, dst int32, flow int, reply bool) uint64 {
	k := uint64(src)<<40 | uint64(dst)<<17 | uint64(flow&0xffff)<<1
	if reply {
		k |= 1
	}
	return k
}

func splitKey(k uint64) (src, dst int32, flow int, reply bool) {
	return int32(k >> 40), int32(k >> 17 & (1<<23 - 1)), int(k >> 1 & 0xffff), k&1 == 1
}

// reset forgets all paths.
func (s *pathStore) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan, s.links, s.linkAt, s.counts = nil, nil, nil, nil
	s.edges, s.bound, s.probes = map[uint64][]int32{}, 0, 0
	s.version++
}

// setPlan removes the edges that the plan does not have. The indexes of NICs change with the topology
// only; then all edges get new keys.
func (s *pathStore) setPlan(p *plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.plan
	s.plan = p
	oldLinks, sameLinks := s.links, old != nil && old.graph == p.graph
	if !sameLinks {
		s.links, s.linkAt = nil, map[fabric.Direction]int32{}
		for i := range p.graph.Topo.Links {
			l := &p.graph.Topo.Links[i]
			for _, d := range []fabric.Direction{{From: l.A, To: l.B}, {From: l.B, To: l.A}} {
				s.linkAt[d] = int32(len(s.links))
				s.links = append(s.links, d)
			}
		}
	}
	kept := s.edges
	s.edges, s.counts, s.bound, s.probes = make(map[uint64][]int32, len(kept)), make([]int32, len(s.links)), 0, 0
	s.version++
	for k, crossed := range kept {
		src, dst, flow, reply := splitKey(k)
		if old != nil && !slices.Equal(old.sched.NICs, p.sched.NICs) {
			var okS, okD bool
			oldSrc, oldDst := old.sched.NICs[src], old.sched.NICs[dst]
			src, okS = p.index[oldSrc]
			dst, okD = p.index[oldDst]
			if !okS || !okD {
				continue
			}
		}
		if p.findEdge(src, dst, flow) < 0 {
			continue
		}
		k = edgeKey(src, dst, flow, reply)
		if sameLinks {
			s.bindEdge(k, crossed)
			continue
		}
		dirs := make([]fabric.Direction, len(crossed))
		for i, c := range crossed {
			dirs[i] = oldLinks[c]
		}
		s.bindEdge(k, s.linkIndexes(dirs))
	}
}

// linkIndexes returns the indexes of links. It returns nil when the topology lacks one.
func (s *pathStore) linkIndexes(dirs []fabric.Direction) []int32 {
	out := make([]int32, len(dirs))
	for i, d := range dirs {
		at, ok := s.linkAt[d]
		if !ok {
			return nil
		}
		out[i] = at
	}
	return out
}

// bindEdge replaces the path of an edge. Temporary flows are not counted on links.
func (s *pathStore) bindEdge(k uint64, crossed []int32) {
	_, _, flow, _ := splitKey(k)
	count := func(crossed []int32, by int) {
		if crossed == nil || fabric.IsTemporaryFlow(flow) {
			return
		}
		for _, i := range crossed {
			s.counts[i] += int32(by)
		}
		s.bound += by
		if k&1 == 0 {
			s.probes += by
		}
	}
	count(s.edges[k], -1)
	if len(crossed) == 0 {
		crossed = nil
	}
	count(crossed, 1)
	s.edges[k] = crossed
}

// addTraces adds the traces of a node and returns how many were of edges that the node has.
func (s *pathStore) addTraces(node string, traces []*agentapi.Trace) (taken int) {
	s.mu.Lock()
	p := s.plan
	s.mu.Unlock()
	if p == nil {
		return 0
	}
	s.resolving <- struct{}{}
	defer func() { <-s.resolving }()
	for _, t := range traces {
		e, err := fabric.ParseFlow(t.GetEdge())
		if err != nil {
			continue
		}
		from, to := e.Endpoints()
		if owner, _, _ := fabric.SplitNIC(from); owner != node {
			continue
		}
		src, okS := p.index[e.Src]
		dst, okD := p.index[e.Dst]
		if !okS || !okD || p.findEdge(src, dst, e.Number) < 0 {
			continue
		}
		taken++
		if t.GetState() == agentapi.PathState_PATH_STATE_STALE {
			continue // the last path that was bound stays
		}
		r := p.resolveTrace(from, to, traceOf(t))
		s.mu.Lock()
		if s.plan == p || s.plan.graph == p.graph && slices.Equal(s.plan.sched.NICs, p.sched.NICs) && s.plan.findEdge(src, dst, e.Number) >= 0 {
			var crossed []int32
			if r.State == fabric.PathValid {
				crossed = s.linkIndexes(r.Path.LinkDirections(from, to))
			}
			s.bindEdge(edgeKey(src, dst, e.Number, e.Reply), crossed)
			s.version++
		}
		s.mu.Unlock()
	}
	return taken
}

func traceOf(t *agentapi.Trace) fabric.Trace {
	out := fabric.Trace{Edge: t.GetEdge(), TracedAt: time.Unix(0, t.GetTracedAtUnixNs()), Reached: t.GetReached(), Balanced: t.GetBalanced(),
		Hops: make([]fabric.RawHop, len(t.GetHops())), State: fabric.PathUnknown, Carrier: agentapi.AddrFromBytes(t.GetCarrier())}
	if t.GetState() == agentapi.PathState_PATH_STATE_VALID {
		out.State = fabric.PathValid
	}
	for i, h := range t.GetHops() {
		out.Hops[i] = fabric.RawHop{TTL: int(h.GetTtl())}
		if a := agentapi.AddrFromBytes(h.GetAddress()); a != (netip.Addr{}) {
			out.Hops[i].Address = a
		}
	}
	return out
}

// hasBothTraces reports whether an edge has traces of its probes and of its replies.
func (s *pathStore) hasBothTraces(e fabric.Flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plan == nil {
		return false
	}
	src, okS := s.plan.index[e.Src]
	dst, okD := s.plan.index[e.Dst]
	if !okS || !okD {
		return false
	}
	_, there := s.edges[edgeKey(src, dst, e.Number, false)]
	_, back := s.edges[edgeKey(src, dst, e.Number, true)]
	return there && back
}

// hasTraces reports whether any edge of a node has a trace.
func (s *pathStore) hasTraces(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plan == nil {
		return false
	}
	for _, i := range s.plan.nics[node] {
		for _, e := range s.plan.outgoing(i) {
			if _, ok := s.edges[edgeKey(e.Src, e.Dst, int(e.Flow), false)]; ok {
				return true
			}
		}
		for _, k := range s.plan.incoming(i) {
			e := s.plan.sched.Edges[k]
			if _, ok := s.edges[edgeKey(e.Src, e.Dst, int(e.Flow), true)]; ok {
				return true
			}
		}
	}
	return false
}

// LinkEdges is the number of bound edges that cross a link in one direction.
type LinkEdges struct {
	Direction fabric.Direction
	Edges     int
}

// linkCounts returns the edges on the links of the topology, and how many edges of probes and how many
// in total are bound. It returns no links before the first trace is bound.
func (s *pathStore) linkCounts() (links []LinkEdges, boundProbes, bound int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bound == 0 {
		return nil, 0, 0
	}
	links = make([]LinkEdges, len(s.links))
	for i, d := range s.links {
		links[i] = LinkEdges{d, int(s.counts[i])}
	}
	return links, s.probes, s.bound
}

// tracedPaths returns the bound edges of the schedule in a fixed order, with the version of the paths.
func (s *pathStore) tracedPaths() (version uint64, out []schedule.TracedPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]uint64, 0, len(s.edges))
	for k, crossed := range s.edges {
		if _, _, flow, _ := splitKey(k); crossed != nil && !fabric.IsTemporaryFlow(flow) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	out = make([]schedule.TracedPath, len(keys))
	for i, k := range keys {
		src, dst, flow, reply := splitKey(k)
		out[i] = schedule.TracedPath{Edge: fabric.Flow{Src: s.plan.sched.NICs[src], Dst: s.plan.sched.NICs[dst], Number: flow, Reply: reply}, Path: s.pathOf(s.edges[k])}
	}
	return s.version, out
}

// pathOf returns the path over these links. Where one link ends and the next begins there is a hop.
func (s *pathStore) pathOf(crossed []int32) fabric.Path {
	path := make(fabric.Path, len(crossed)-1)
	for i := range path {
		sw, in, _ := fabric.SplitPort(s.links[crossed[i]].To)
		_, out, _ := fabric.SplitPort(s.links[crossed[i+1]].From)
		path[i] = fabric.Hop{Switch: sw, In: in, Out: out}
	}
	return path
}
