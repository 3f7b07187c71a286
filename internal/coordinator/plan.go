package coordinator

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"sort"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

const hashSize = 16

// maxSSID limits session-sender identifiers to 14 bits.
const maxSSID = 1<<14 - 1

// ssidOf returns the session-sender identifier of a NIC. It depends on the name only: two NICs may
// share one, and a NIC keeps its own across all other changes.
func ssidOf(nic string) uint16 {
	h := fnv.New64a()
	h.Write([]byte(nic))
	return uint16(1 + h.Sum64()%maxSSID)
}

// plan is a schedule with the addresses and identifiers that agents need to act on it. It does not
// change.
type plan struct {
	graph     *fabric.Graph
	base      *schedule.Schedule // without temporary flows
	sched     *schedule.Schedule
	settings  probeSettings
	endpoints []endpoint         // by NIC
	nics      map[string][]int32 // indexes of NICs by node
	index     map[string]int32   // index by name of a NIC
	edges     edgeIndex
	hops      map[uint64][]uint32 // hop limits of copies, by the key of an edge
	carriers  *carriers           // nil if switches choose the paths
	hash      map[string][hashSize]byte

	unaddressed int              // edges that cannot be sent for lack of an address
	conflicts   []conflict       // reported addresses that are not used
	claims      map[string]claim // by NIC: the reported addresses that are used
}

// probeSettings are the settings of probes that all nodes have in common.
type probeSettings struct {
	stamp         *agentapi.Stamp
	authenticated bool
	changeover    uint64 // ns
}

// endpoint is how a NIC is probed.
type endpoint struct {
	addr     netip.Addr     // invalid if none is known
	iface    string         // interface that has the address
	hardware bool           // it stamps in hardware
	rdma     *agentapi.RDMA // queue pair; nil means that the NIC is probed by UDP
	bare     bool           // it is an InfiniBand port without addresses, which is probed by its queue pair only
}

// assignable reports whether a NIC can be given to its node: it has an address, or is an InfiniBand port of which the
// node makes a queue pair.
func (e *endpoint) assignable() bool { return e.addr.IsValid() || e.bare }

// reachable reports whether other NICs may be able to probe a NIC: it has an address, or a queue pair without one.
func (e *endpoint) reachable() bool { return e.addr.IsValid() || e.bare && e.rdma != nil }

// edgeIndex finds the edges of a NIC in a schedule.
type edgeIndex struct {
	first         []int32 // by NIC: index of its first edge, and one more at the end
	incoming      []int32 // indexes of edges, sorted by destination
	firstIncoming []int32 // by NIC: its first place in incoming, and one more at the end
	cadence       uint64  // ns: the shortest of all edges
	rate          float64 // probes per second of all edges
}

// planInput has everything that a plan depends on. The maps and slices in it do not change.
type planInput struct {
	graph    *fabric.Graph
	options  schedule.Options
	present  map[string]bool
	reported map[string]interfaceReport // by node
	claims   map[string]claim           // by NIC: claims of the plan before
	prefixes []netip.Prefix             // prefixes of addresses that only agents report
}

var errEdgeOutOfRange = errors.New("the schedule has an edge whose end is not among its NICs")

// newPlan returns a plan of a schedule with addresses.
func newPlan(in planInput, s *schedule.Schedule, settings probeSettings) (*plan, error) {
	edges, err := indexEdges(s)
	if err != nil {
		return nil, err
	}
	p := &plan{graph: in.graph, base: s, sched: s, settings: settings, edges: edges, endpoints: make([]endpoint, len(s.NICs)),
		nics: map[string][]int32{}, index: make(map[string]int32, len(s.NICs)), hash: map[string][hashSize]byte{}}
	for i, id := range s.NICs {
		node, _, _ := fabric.SplitNIC(id)
		p.nics[node] = append(p.nics[node], int32(i))
		p.index[id] = int32(i)
	}
	p.resolveAddresses(in)
	for _, e := range s.Edges {
		if !p.canProbe(&e) {
			p.unaddressed++
		}
	}
	if p.carriers, err = p.chooseCarriers(); err != nil {
		return nil, err
	}
	return p, p.hashAll(slices.Collect(maps.Keys(in.present)))
}

// withTemporary returns the plan with these temporary flows and hop limits instead of those that it has. Only the
// assignments of nodes at their ends differ.
func (p *plan) withTemporary(flows []schedule.Edge, hops map[uint64][]uint32) (*plan, error) {
	if len(flows) == 0 && p.sched == p.base && len(hops) == 0 && len(p.hops) == 0 {
		return p, nil
	}
	s := *p.base
	s.Edges = slices.Concat(s.Edges, flows)
	slices.SortFunc(s.Edges, func(a, b schedule.Edge) int {
		return cmp.Or(cmp.Compare(a.Src, b.Src), cmp.Compare(a.Dst, b.Dst), cmp.Compare(a.Flow, b.Flow))
	})
	edges, err := indexEdges(&s)
	if err != nil {
		return nil, err
	}
	edges.cadence, edges.rate = p.edges.cadence, p.edges.rate // those of the schedule
	out := *p
	out.sched, out.edges, out.hops, out.hash = &s, edges, hops, maps.Clone(p.hash)
	out.carriers = p.carriers.withTemporary(p, flows)
	if len(flows) == 0 {
		out.sched = p.base
	}
	touched := map[string]bool{}
	touch := func(nic int32) {
		if node := fabric.OwnerOf(s.NICs[nic]); p.hasNode(node) {
			touched[node] = true
		}
	}
	for _, list := range [][]schedule.Edge{p.temporaryFlows(), flows} {
		for _, e := range list {
			touch(e.Src)
			touch(e.Dst)
		}
	}
	for _, of := range []map[uint64][]uint32{p.hops, hops} {
		for k := range of {
			src, _, _, _ := splitKey(k)
			touch(src)
		}
	}
	return &out, out.hashAll(slices.Collect(maps.Keys(touched)))
}

// temporaryFlows returns the temporary flows of the plan.
func (p *plan) temporaryFlows() (out []schedule.Edge) {
	if p.sched == p.base {
		return nil
	}
	for _, e := range p.sched.Edges {
		if fabric.IsTemporaryFlow(int(e.Flow)) {
			out = append(out, e)
		}
	}
	return out
}

// hasNode reports whether the plan has an assignment for a node.
func (p *plan) hasNode(node string) bool {
	_, planned := p.hash[node]
	return planned
}

// indexEdges returns the index of a schedule's edges.
func indexEdges(s *schedule.Schedule) (edgeIndex, error) {
	n := int32(len(s.NICs))
	x := edgeIndex{first: make([]int32, n+1), firstIncoming: make([]int32, n+1), incoming: make([]int32, len(s.Edges))}
	for i, e := range s.Edges {
		if e.Src < 0 || e.Src >= n || e.Dst < 0 || e.Dst >= n {
			return edgeIndex{}, errEdgeOutOfRange
		}
		x.first[e.Src+1]++
		x.firstIncoming[e.Dst+1]++
		x.rate += 1 / e.Cadence.Seconds()
		if c := uint64(e.Cadence); i == 0 || c < x.cadence {
			x.cadence = c
		}
	}
	for i := range n {
		x.first[i+1] += x.first[i]
		x.firstIncoming[i+1] += x.firstIncoming[i]
	}
	at := slices.Clone(x.firstIncoming)
	for i, e := range s.Edges {
		x.incoming[at[e.Dst]] = int32(i)
		at[e.Dst]++
	}
	return x, nil
}

// outgoing returns the edges that a NIC probes.
func (p *plan) outgoing(nic int32) []schedule.Edge {
	return p.sched.Edges[p.edges.first[nic]:p.edges.first[nic+1]]
}

// incoming returns the indexes of the edges that a NIC answers.
func (p *plan) incoming(nic int32) []int32 {
	return p.edges.incoming[p.edges.firstIncoming[nic]:p.edges.firstIncoming[nic+1]]
}

// canProbe reports whether an edge can be probed: both ends have an address, of the same family. If one of them is an
// InfiniBand port without addresses, both need a queue pair in one subnet.
func (p *plan) canProbe(e *schedule.Edge) bool {
	a, b := &p.endpoints[e.Src], &p.endpoints[e.Dst]
	if a.bare || b.bare {
		return a.rdma.GetLid() != 0 && b.rdma.GetLid() != 0 && bytes.Equal(a.rdma.GetGid()[:8], b.rdma.GetGid()[:8])
	}
	return a.addr.IsValid() && b.addr.IsValid() && a.addr.Is4() == b.addr.Is4()
}

func isProbeable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func (p *plan) nicAddress(nic string) netip.Addr {
	if i, ok := p.index[nic]; ok {
		return p.endpoints[i].addr
	}
	return netip.Addr{}
}

// findEdge returns the index of an edge in the schedule, or -1.
func (p *plan) findEdge(src, dst int32, flow int) int32 {
	lo, hi := int(p.edges.first[src]), int(p.edges.first[src+1])
	i := lo + sort.Search(hi-lo, func(i int) bool {
		e := p.sched.Edges[lo+i]
		return e.Dst > dst || e.Dst == dst && int(e.Flow) >= flow
	})
	if i < hi && p.sched.Edges[i].Dst == dst && int(p.sched.Edges[i].Flow) == flow {
		return int32(i)
	}
	return -1
}

// hashAll computes the hashes of the assignments of nodes.
func (p *plan) hashAll(nodes []string) error {
	nodes = slices.DeleteFunc(nodes, func(n string) bool { return len(p.nics[n]) == 0 })
	hashes := make([][hashSize]byte, len(nodes))
	errs := make([]error, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := w; i < len(nodes); i += len(errs) {
				h, err := hashOf(p.assignmentFor(nodes[i]))
				if err != nil {
					errs[w] = err
					return
				}
				hashes[i] = h
			}
		})
	}
	wg.Wait()
	for i, n := range nodes {
		p.hash[n] = hashes[i]
	}
	return errors.Join(errs...)
}

// hashOf returns the hash of an assignment's content, without the version, the hash itself and the
// changeover, which do not affect what is probed.
func hashOf(a *agentapi.Assignment) (out [hashSize]byte, err error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentapi.Assignment{Node: a.Node, Stamp: a.Stamp, Authenticated: a.Authenticated,
		Nics: a.Nics, Peers: a.Peers, Edges: a.Edges, Answers: a.Answers, CadenceNs: a.CadenceNs})
	if err != nil {
		return out, err
	}
	sum := sha256.Sum256(b)
	copy(out[:], sum[:])
	return out, nil
}

// assignmentFor returns the assignment of a node under the plan, without version and hash. It leaves
// out NICs that cannot be probed and their edges.
func (p *plan) assignmentFor(node string) *agentapi.Assignment {
	a := &agentapi.Assignment{Node: node, Stamp: p.settings.stamp, Authenticated: p.settings.authenticated, ChangeoverNs: p.settings.changeover, CadenceNs: p.edges.cadence}
	own := map[int32]uint32{}
	for _, i := range p.nics[node] {
		if p.endpoints[i].assignable() {
			own[i] = uint32(len(a.Nics))
			a.Nics = append(a.Nics, p.nicMessage(i))
		}
	}
	var peers []int32
	for _, i := range p.nics[node] {
		if !p.endpoints[i].assignable() {
			continue
		}
		for _, e := range p.outgoing(i) {
			peers = append(peers, e.Dst)
		}
		for _, k := range p.incoming(i) {
			peers = append(peers, p.sched.Edges[k].Src)
		}
	}
	slices.Sort(peers)
	peers = slices.DeleteFunc(slices.Compact(peers), func(i int32) bool { return !p.endpoints[i].reachable() })
	place := make(map[int32]uint32, len(peers))
	a.Peers = make([]*agentapi.Peer, len(peers))
	for k, i := range peers {
		place[i] = uint32(k)
		nic, end := p.sched.NICs[i], &p.endpoints[i]
		leaf, _ := p.graph.LeafOf(nic)
		a.Peers[k] = &agentapi.Peer{Nic: nic, Address: end.addr.AsSlice(), Leaf: leaf, Plane: p.graph.PlaneOf(nic), Ssid: uint32(ssidOf(nic)), Hardware: end.hardware, Rdma: end.rdma}
	}
	edge := func(nic uint32, peer int32, e *schedule.Edge) *agentapi.Edge {
		return &agentapi.Edge{Nic: nic, Peer: place[peer], Flow: uint32(e.Flow), Tier: uint32(e.Tier), CadenceNs: uint64(e.Cadence)}
	}
	for _, i := range p.nics[node] {
		if !p.endpoints[i].assignable() {
			continue
		}
		out := p.outgoing(i)
		for k := range out {
			if e := &out[k]; p.canProbe(e) {
				m := edge(own[i], e.Dst, e)
				m.Carrier, _ = p.carriers.wayOf(e.Src, e.Dst, int(e.Flow))
				m.Hops = p.hops[edgeKey(e.Src, e.Dst, int(e.Flow), false)]
				a.Edges = append(a.Edges, m)
			}
		}
		for _, k := range p.incoming(i) {
			if e := &p.sched.Edges[k]; p.canProbe(e) {
				m := edge(own[i], e.Src, e)
				_, m.Carrier = p.carriers.wayOf(e.Src, e.Dst, int(e.Flow))
				a.Answers = append(a.Answers, m)
			}
		}
	}
	return a
}

func (p *plan) nicMessage(i int32) *agentapi.NIC {
	id := p.sched.NICs[i]
	leaf, port := p.graph.LeafOf(id)
	n := &agentapi.NIC{Nic: id, Address: p.endpoints[i].addr.AsSlice(), Device: p.endpoints[i].iface, Leaf: leaf, LeafPort: port, Plane: p.graph.PlaneOf(id), Ssid: uint32(ssidOf(id))}
	if sw := p.graph.Switch(leaf); sw != nil {
		n.Pod = sw.PodName()
	}
	if t := p.graph.NIC(id); t != nil {
		n.Side = t.Side
		if t.Rail != nil && *t.Rail >= 0 && *t.Rail <= math.MaxInt32 {
			n.Rail = proto.Uint32(uint32(*t.Rail))
		}
	}
	return n
}

// peerNodes returns the nodes that a node probes or answers, sorted.
func (p *plan) peerNodes(node string) []string {
	seen := map[string]bool{}
	add := func(i int32) {
		n, _, _ := fabric.SplitNIC(p.sched.NICs[i])
		seen[n] = true
	}
	for _, i := range p.nics[node] {
		for _, e := range p.outgoing(i) {
			add(e.Dst)
		}
		for _, k := range p.incoming(i) {
			add(p.sched.Edges[k].Src)
		}
	}
	out := make([]string, 0, len(seen))
	for n := range seen {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// scheduleHash returns a number that identifies the schedule in logs and comparisons.
func scheduleHash(s *schedule.Schedule) uint64 {
	h := fnv.New64a()
	var b [24]byte
	for _, n := range s.NICs {
		h.Write([]byte(n))
		h.Write([]byte{0})
	}
	for _, e := range s.Edges {
		binary.LittleEndian.PutUint32(b[0:], uint32(e.Src))
		binary.LittleEndian.PutUint32(b[4:], uint32(e.Dst))
		binary.LittleEndian.PutUint16(b[8:], e.Flow)
		b[10], b[11] = e.Tier, e.Class
		binary.LittleEndian.PutUint64(b[12:], uint64(e.Cadence))
		h.Write(b[:20])
	}
	return h.Sum64()
}
