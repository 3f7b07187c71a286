package sighting

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"
)

// Key is a Flow as it lies in a packet: source and destination with 16 octets each (IPv4 mapped), then both ports, in
// network byte order.
type Key [36]byte

// Flow returns the flow that the key stands for.
func (k *Key) Flow() Flow {
	end := func(addr, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(addr)).Unmap(), binary.BigEndian.Uint16(port))
	}
	return Flow{Src: end(k[:16], k[32:34]), Dst: end(k[16:32], k[34:])}
}

// KeyOf returns the key of a flow.
func KeyOf(f Flow) (k Key) {
	src, dst := f.Src.Addr().As16(), f.Dst.Addr().As16()
	copy(k[:16], src[:])
	copy(k[16:32], dst[:])
	binary.BigEndian.PutUint16(k[32:], f.Src.Port())
	binary.BigEndian.PutUint16(k[34:], f.Dst.Port())
	return k
}

// Table holds what a switch saw recently. The tests are named after these rules:
//
//  1. A flow that arrives by a new port is a change.
//  2. A port that did not see a flow for Fresh is forgotten, and a flow whose ports are all forgotten is gone. Both are
//     changes.
//  3. A flow that arrived by several ports within Fresh changes with every round, because only the times distinguish a
//     change of route from packets that are balanced.
//  4. A flow that is seen again at the same port is not a change.
//  5. The table can report the changes since any version that is not too old, and all flows in parts.
//  6. The table has room for a number of flows, and for a number of ports of each flow. What does not fit is counted.
type Table struct {
	limit      int
	fresh      int64
	index      map[uint64]int32 // by a hash of the key, because a switch has little memory
	seed       maphash.Seed
	flows      []flow
	extraPorts map[int32][]portSight // ports except the first, of the few flows that have more
	freeSlots  []int32               // places of flows that are gone
	flowCount  int
	version    uint64
	log        []change // in ascending order of versions
	oldest     uint64   // the version that the log continues
	Dropped    uint64
}

// maxPorts is the number of ports that one flow may arrive by within Fresh.
const maxPorts = 8

type flow struct {
	changed uint64
	port    portSight
	key     Key
	used    bool
}

// portSight represents a port's sightings of a flow. Times are Unix nanoseconds.
type portSight struct {
	first, last int64
	count       uint64
	port        uint32
}

type change struct {
	version uint64
	key     Key
}

// NewTable makes a table with room for so many flows. It forgets a port that did not see a flow for fresh.
func NewTable(limit int, fresh time.Duration) *Table {
	return &Table{limit: limit, fresh: int64(fresh), index: map[uint64]int32{}, seed: maphash.MakeSeed(), extraPorts: map[int32][]portSight{}}
}

// Sample holds what a source saw of a flow at a port since the flow was first seen there.
type Sample struct {
	Port        uint32 // number of the interface
	First, Last int64  // Unix nanoseconds
	Count       uint64 // packets since First
}

// AddSample adds what a source saw of a flow. Changes belong to the version that EndRound makes.
func (t *Table) AddSample(key *Key, s Sample) {
	h := maphash.Comparable(t.seed, *key)
	at, ok := t.index[h]
	if !ok {
		if t.flowCount >= t.limit {
			t.Dropped++
			return
		}
		at = t.freeSlot()
		t.index[h] = at
		t.flowCount++
		f := &t.flows[at]
		*f = flow{key: *key, used: true, port: newPortSight(&s)}
		t.logChange(f)
		return
	}
	f := &t.flows[at]
	if f.key != *key { // another flow with the same hash is treated as if there were no room
		t.Dropped++
		return
	}
	if f.port.port == s.Port {
		f.port.extendBy(&s)
		return
	}
	more := t.extraPorts[at]
	for i := range more {
		if more[i].port == s.Port {
			more[i].extendBy(&s)
			return
		}
	}
	if len(more) == maxPorts-1 {
		t.Dropped++
		return
	}
	t.extraPorts[at] = append(more, newPortSight(&s))
	t.logChange(f)
}

func newPortSight(s *Sample) portSight {
	return portSight{port: s.Port, first: s.First, last: s.Last, count: s.Count}
}

// freeSlot returns a free place among the flows.
func (t *Table) freeSlot() int32 {
	if n := len(t.freeSlots); n > 0 {
		at := t.freeSlots[n-1]
		t.freeSlots = t.freeSlots[:n-1]
		return at
	}
	t.flows = append(t.flows, flow{})
	return int32(len(t.flows) - 1)
}

// extendBy records a flow that is seen where it was seen before.
func (p *portSight) extendBy(s *Sample) {
	p.last, p.count = max(p.last, s.Last), max(p.count, s.Count)
}

// logChange records a change, at most once per version.
func (t *Table) logChange(f *flow) {
	if f.changed != t.version+1 {
		f.changed = t.version + 1
		t.log = append(t.log, change{t.version + 1, f.key})
	}
}

// EndRound ends a round at a time in Unix nanoseconds. It forgets what was not seen for Fresh, and calls forgotten for
// the ports of these flows.
func (t *Table) EndRound(now int64, forgotten func(key *Key, port uint32)) {
	for i := range t.flows {
		f, at := &t.flows[i], int32(i)
		if !f.used || now-f.port.last <= t.fresh && (len(t.extraPorts) == 0 || len(t.extraPorts[at]) == 0) {
			continue
		}
		forgets := func(p portSight) bool {
			if now-p.last <= t.fresh {
				return false
			}
			forgotten(&f.key, p.port)
			return true
		}
		more := slices.DeleteFunc(t.extraPorts[at], forgets)
		gone := forgets(f.port)
		if n := len(more); gone && n > 0 {
			gone, f.port, more = false, more[n-1], more[:n-1]
		}
		if len(more) > 0 {
			t.extraPorts[at] = more
		} else {
			delete(t.extraPorts, at)
		}
		t.logChange(f)
		if gone {
			delete(t.index, maphash.Comparable(t.seed, f.key))
			*f = flow{}
			t.freeSlots = append(t.freeSlots, at)
			t.flowCount--
		}
	}
	if n := len(t.log); n > 0 && t.log[n-1].version > t.version {
		t.version++
	}
	// A client that missed more than this gets the whole table.
	if over := len(t.log) - t.limit/8 - 1024; over > 0 {
		t.oldest = t.log[over-1].version
		for over < len(t.log) && t.log[over].version == t.oldest {
			over++
		}
		t.log = slices.Clone(t.log[over:]) // the memory of a burst is released
	}
}

// Len returns the number of flows.
func (t *Table) Len() int { return t.flowCount }

// Version returns the version of the last round that changed something.
func (t *Table) Version() uint64 { return t.version }

// CoversVersion reports whether the changes since a version are known.
func (t *Table) CoversVersion(version uint64) bool {
	return version != 0 && version >= t.oldest && version <= t.version
}

// ChangesSince returns the changes since a version for which CoversVersion holds. names maps a port's number to its
// name. A port that no longer has a name is left out.
func (t *Table) ChangesSince(version uint64, names func(uint32) string) (changed []FlowPorts, gone []Flow) {
	from, _ := slices.BinarySearchFunc(t.log, version+1, func(c change, v uint64) int { return cmp.Compare(c.version, v) })
	for i := from; i < len(t.log); i++ {
		c := &t.log[i]
		if at, ok := t.index[maphash.Comparable(t.seed, c.key)]; !ok || t.flows[at].key != c.key {
			gone = append(gone, c.key.Flow())
		} else if t.flows[at].changed == c.version { // its last change
			if s := t.flowPorts(at, names); len(s.Ports) > 0 {
				changed = append(changed, s)
			}
		}
	}
	return changed, gone
}

// TablePart returns at most n of the table's flows from a place on. It also returns the place to continue at, which is
// 0 after the last flow. ChangesSince with the version before the first call has all changes that happen between two
// calls.
func (t *Table) TablePart(from, n int, names func(uint32) string) (part []FlowPorts, next int) {
	for at := from; at < len(t.flows); at++ {
		if !t.flows[at].used {
			continue
		}
		if len(part) == n {
			return part, at
		}
		if s := t.flowPorts(int32(at), names); len(s.Ports) > 0 {
			part = append(part, s)
		}
	}
	return part, 0
}

func (t *Table) flowPorts(at int32, names func(uint32) string) FlowPorts {
	f, more := &t.flows[at], t.extraPorts[at]
	s := FlowPorts{Flow: f.key.Flow(), Ports: make([]Port, 0, 1+len(more))}
	add := func(p *portSight) {
		if name := names(p.port); name != "" {
			s.Ports = append(s.Ports, Port{Name: name, First: time.Unix(0, p.first).UTC(), Last: time.Unix(0, p.last).UTC(), Count: p.count})
		}
	}
	add(&f.port)
	for i := range more {
		add(&more[i])
	}
	slices.SortFunc(s.Ports, func(a, b Port) int { return cmp.Or(a.Last.Compare(b.Last), cmp.Compare(a.Name, b.Name)) })
	return s
}

// String formats a flow as source and destination.
func (f Flow) String() string { return fmt.Sprintf("%s>%s", f.Src, f.Dst) }
