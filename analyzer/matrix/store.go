// Package matrix sums up what was last measured between groups of NICs: leaf by leaf, or NIC by NIC. A row is where packets
// start and a column is where they arrive, so that a bad sender is a row, a bad receiver is a column, a bad spine a sprinkle
// of cells, and a bad pair of leaves one cell (Guo et al., Pingmesh, SIGCOMM 2015).
//
// Rules:
//
//  1. A flow that was not measured is unknown, and its cell is unknown if no flow of it was measured. Unknown is never zero.
//  2. A cell without flows is empty. This differs from unknown.
//  3. A flow counts with what was read of it last. It is unknown again once this is older than a round over all flows, or if
//     an agent at one of its ends has stopped to answer since then.
//  4. What clocks that are not trusted measured is no delay. What was lost and marked counts all the same.
//  5. Pictures are made from a grid that is built for all readers at once, and never for longer than a twentieth of the time.
package matrix

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// Store holds what was last measured of each flow. It is safe for concurrent use.
type Store struct {
	mu      sync.RWMutex
	graph   *fabric.Graph
	nics    map[string]uint32  // numbers of the NICs, in the order of NICIDs of the graph
	byKey   map[flowKey]uint32 // positions of the flows in records
	records []record
	// order has the positions of the records sorted by row and column of leaves. It is nil after flows were added.
	order     []uint32
	classes   []string
	silent    []bool // by the number of a NIC: its node provides no evidence
	at        time.Time
	freshFor  time.Duration
	forgotten time.Time // when flows were forgotten last

	building sync.Mutex
	built    map[Selection]*builtGrid
}

const (
	// maxFlows is the number of flows that a store holds at most. Further flows are left out, and their cells are empty.
	maxFlows = 1 << 24
	// forgetAfter is how long a flow is remembered of which nothing is read any more.
	forgetAfter, forgetEvery = time.Hour, time.Minute
)

// flowKey represents a directed flow: the numbers of its NICs in the direction of the packets, its number, and in the lowest bit
// whether the packets are replies.
type flowKey uint64

const (
	nicBits    = 24
	numberBits = 63 - 2*nicBits
)

func newFlowKey(from, to uint32, f *fabric.Flow) flowKey {
	k := flowKey(from)<<(64-nicBits) | flowKey(to)<<(64-2*nicBits) | flowKey(f.Number)<<1
	if f.Reply {
		k |= 1
	}
	return k
}

func (k flowKey) from() uint32  { return uint32(k >> (64 - nicBits)) }
func (k flowKey) to() uint32    { return uint32(k>>(64-2*nicBits)) & (1<<nicBits - 1) }
func (k flowKey) number() int   { return int(k>>1) & (1<<numberBits - 1) }
func (k flowKey) isReply() bool { return k&1 == 1 }

// record is what was last read of a flow. Numbers that were not measured are NaN.
type record struct {
	key            flowKey
	at             int64 // Unix time in ns
	p50, p99, base float32
	marks          float32 // share of the received packets
	sent, lost     uint32
	class          uint8
	condition      condition
}

type condition uint8

const (
	undecided condition = iota
	healthy
	degraded
	excluded // it is no evidence at all
)

// nothing stands for what was not measured.
var nothing = float32(math.NaN())

// NewStore returns a store that knows nothing.
func NewStore() *Store {
	return &Store{byKey: map[flowKey]uint32{}, built: map[Selection]*builtGrid{}}
}

// Record takes over what a cycle read of flows. The graph must be the one of the cycle.
func (s *Store) Record(g *fabric.Graph, snap *snapshot.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.graph != g {
		s.changeGraph(g)
	}
	s.at, s.freshFor = snap.At, snap.FreshFor
	clear(s.silent)
	for node := range snap.Hosts {
		if n := g.Node(node); n != nil {
			for i := range n.NICs {
				if at, known := s.nics[n.NICs[i].ID()]; known {
					s.silent[at] = true
				}
			}
		}
	}
	for i := range snap.Edges {
		s.recordFlow(&snap.Edges[i])
	}
	if s.at.Sub(s.forgotten) >= forgetEvery {
		s.forgetFlows()
	}
}

// recordFlow takes over one window. Flows that an analyzer asked for, and those of NICs that are not in the graph, are left out.
func (s *Store) recordFlow(v *snapshot.EdgeView) {
	if v.Flow.IsTemporary() || v.Flow.Number >= 1<<numberBits {
		return
	}
	from, known := s.nics[v.Obs.Src]
	to, also := s.nics[v.Obs.Dst]
	if !known || !also {
		return
	}
	k := newFlowKey(from, to, &v.Flow)
	i, old := s.byKey[k]
	if !old {
		if len(s.records) >= maxFlows {
			return
		}
		i = uint32(len(s.records))
		s.records = append(s.records, record{key: k})
		s.byKey[k], s.order = i, nil
	}
	r := &s.records[i]
	o := &v.Obs
	*r = record{key: k, at: s.at.UnixNano(), p50: nothing, p99: nothing, base: nothing, marks: nothing, class: s.classNumber(o.Class),
		sent: uint32(min(o.Sent, math.MaxUint32)), lost: uint32(min(o.Lost, o.Sent, math.MaxUint32))}
	switch v.Condition {
	case snapshot.Healthy:
		r.condition = healthy
	case snapshot.Degraded:
		r.condition = degraded
	case snapshot.HostSuspect, snapshot.Unread:
		r.condition = excluded
	}
	if v.Condition != snapshot.ClockSuspect && o.OWD != nil {
		r.p50, r.p99 = delayOf(o.OWD.P50), delayOf(o.OWD.P99)
		if o.Baseline != nil {
			r.base = delayOf(o.Baseline.P50)
		}
	}
	if got := o.Sent - min(o.Lost, o.Sent); o.ECN != nil && got > 0 {
		r.marks = float32(min(*o.ECN, got)) / float32(got)
	}
}

func delayOf(ns *int64) float32 {
	if ns == nil {
		return nothing
	}
	return float32(*ns)
}

// classNumber returns the number of a class. There are a handful of classes. Those beyond what a record can number share the last number.
func (s *Store) classNumber(class string) uint8 {
	i := slices.Index(s.classes, class)
	if i < 0 && len(s.classes) <= math.MaxUint8 {
		i = len(s.classes)
		s.classes = append(s.classes, class)
	}
	return uint8(i & math.MaxUint8)
}

// Classes returns the classes of the flows.
func (s *Store) Classes() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(slices.Values(s.classes))
}

// changeGraph keeps the flows whose NICs are in the new graph as well.
func (s *Store) changeGraph(g *fabric.Graph) {
	nics := make(map[string]uint32, len(g.NICIDs()))
	for i, id := range g.NICIDs() {
		nics[id] = uint32(i)
	}
	var numbers []uint32 // by the old number: the new one
	if s.graph != nil {
		for _, id := range s.graph.NICIDs() {
			n, kept := nics[id]
			if !kept {
				n = math.MaxUint32
			}
			numbers = append(numbers, n)
		}
	}
	kept := s.records[:0]
	clear(s.byKey)
	for i := range s.records {
		r := s.records[i]
		from, to := numbers[r.key.from()], numbers[r.key.to()]
		if from == math.MaxUint32 || to == math.MaxUint32 {
			continue
		}
		r.key = newFlowKey(from, to, &fabric.Flow{Number: r.key.number(), Reply: r.key.isReply()})
		s.byKey[r.key] = uint32(len(kept))
		kept = append(kept, r)
	}
	s.records, s.order = kept, nil
	s.graph, s.nics, s.silent = g, nics, make([]bool, len(nics))
}

// forgetFlows drops the flows of which nothing was read for long.
func (s *Store) forgetFlows() {
	oldest := s.at.Add(-max(forgetAfter, 2*s.freshFor)).UnixNano()
	kept := s.records[:0]
	for i := range s.records {
		if r := &s.records[i]; r.at >= oldest {
			s.byKey[r.key] = uint32(len(kept))
			kept = append(kept, *r)
		} else {
			delete(s.byKey, r.key)
		}
	}
	if len(kept) < len(s.records) {
		s.order = nil
	}
	s.records, s.forgotten = kept, s.at
}
