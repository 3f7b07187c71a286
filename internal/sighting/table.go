package sighting

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Key is a Flow as it lies in a packet: source and destination, 16 octets each
// (IPv4 mapped), then both ports, in the network's order.
type Key [36]byte

// Flow is the key in words.
func (k *Key) Flow() Flow {
	end := func(addr, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(addr)).Unmap(), binary.BigEndian.Uint16(port))
	}
	return Flow{Src: end(k[:16], k[32:34]), Dst: end(k[16:32], k[34:])}
}

// KeyOf is the inverse of Flow.
func KeyOf(f Flow) (k Key) {
	src, dst := f.Src.Addr().As16(), f.Dst.Addr().As16()
	copy(k[:16], src[:])
	copy(k[16:32], dst[:])
	binary.BigEndian.PutUint16(k[32:], f.Src.Port())
	binary.BigEndian.PutUint16(k[34:], f.Dst.Port())
	return k
}

// Table is what a switch saw lately. Its rules, which the tests are named after:
//
//  1. A flow that is seen by a port it was not seen by before is a change.
//  2. A port that did not see a flow for Fresh has been left: a change, told with
//     the last time it did. After another Fresh it is forgotten.
//  3. A flow whose ports are all forgotten is gone: a change.
//  4. That a flow goes on being seen where it was is no change.
//  5. What changed since any version that is not too old can be told; since a
//     version that is, or one of another instance, the whole table.
//  6. The table holds so many flows, and so many ports of a flow; what does not
//     fit is counted.
type Table struct {
	limit   int
	fresh   int64
	flows   map[Key]*flow
	version uint64
	log     []change // ascending
	oldest  uint64   // the version that the log continues
	Dropped uint64
}

// maxPorts are the ports that one flow may come in by within a Fresh.
const maxPorts = 8

type flow struct {
	changed uint64
	ports   []seen
}

// seen is a port's sight of a flow. Times are Unix nanoseconds.
type seen struct {
	port        uint32
	left        bool
	first, last int64
	count       uint64
}

type change struct {
	version uint64
	key     Key
}

// NewTable makes a table of so many flows, which takes a port for left that did
// not see a flow for fresh.
func NewTable(limit int, fresh time.Duration) *Table {
	return &Table{limit: limit, fresh: int64(fresh), flows: map[Key]*flow{}}
}

// Sample is what a source saw of a flow at a port since it was first seen there.
type Sample struct {
	Port        uint32 // interface's number
	First, Last int64  // Unix nanoseconds
	Count       uint64 // packets since First
}

// Apply takes what a source says of a flow. Changes belong to the version that
// Turn makes.
func (t *Table) Apply(key *Key, s Sample) {
	f := t.flows[*key]
	if f == nil {
		if len(t.flows) >= t.limit {
			t.Dropped++
			return
		}
		f = &flow{ports: make([]seen, 0, 1)}
		t.flows[*key] = f
	}
	for i := range f.ports {
		p := &f.ports[i]
		if p.port != s.Port {
			continue
		}
		if p.left && s.Last > p.last {
			p.left, p.first = false, s.Last
			t.changed(key, f)
		}
		p.last, p.count = max(p.last, s.Last), max(p.count, s.Count)
		return
	}
	if len(f.ports) == maxPorts {
		t.Dropped++
		return
	}
	f.ports = append(f.ports, seen{port: s.Port, first: s.First, last: s.Last, count: s.Count})
	t.changed(key, f)
}

// changed notes a change, once a version.
func (t *Table) changed(key *Key, f *flow) {
	if f != nil {
		if f.changed == t.version+1 {
			return
		}
		f.changed = t.version + 1
	}
	t.log = append(t.log, change{t.version + 1, *key})
}

// Turn ends a round of Apply at a time, Unix nanoseconds: what was not seen for
// long has been left or is gone. It returns the ports of flows that are forgotten.
func (t *Table) Turn(now int64, forgotten func(key *Key, port uint32)) {
	for key, f := range t.flows {
		for i := 0; i < len(f.ports); i++ {
			p := &f.ports[i]
			switch quiet := now - p.last; {
			case quiet > 2*t.fresh:
				forgotten(&key, p.port)
				f.ports = slices.Delete(f.ports, i, i+1)
				i--
			case quiet > t.fresh && !p.left:
				p.left = true
				t.changed(&key, f)
			}
		}
		if len(f.ports) == 0 {
			delete(t.flows, key)
			t.changed(&key, nil)
		}
	}
	if n := len(t.log); n > 0 && t.log[n-1].version > t.version {
		t.version++
	}
	// As many changes as there may be flows: whoever missed more is told the table.
	if over := len(t.log) - 2*t.limit; over > 0 {
		t.oldest = t.log[over-1].version
		keep := over
		for keep < len(t.log) && t.log[keep].version == t.oldest {
			keep++
		}
		t.log = slices.Delete(t.log, 0, keep)
	}
}

// Len is how many flows there are.
func (t *Table) Len() int { return len(t.flows) }

// Version is that of the last round that changed something.
func (t *Table) Version() uint64 { return t.version }

// Since tells what changed since a version: rule 5. names maps a port's number to
// its name; a port that has none any more is not told.
func (t *Table) Since(version uint64, names func(uint32) string) (since uint64, changed []Seen, gone []Flow) {
	tell := func(key *Key, f *flow) {
		s := Seen{Flow: key.Flow()}
		for _, p := range f.ports {
			if name := names(p.port); name != "" {
				s.Ports = append(s.Ports, Port{Name: name, First: time.Unix(0, p.first).UTC(), Last: time.Unix(0, p.last).UTC(), Count: p.count, Left: p.left})
			}
		}
		slices.SortFunc(s.Ports, func(a, b Port) int { return cmp.Or(a.Last.Compare(b.Last), cmp.Compare(a.Name, b.Name)) })
		if len(s.Ports) > 0 {
			changed = append(changed, s)
		}
	}
	if version == 0 || version < t.oldest || version > t.version {
		for key, f := range t.flows {
			tell(&key, f)
		}
		return 0, changed, nil
	}
	from, _ := slices.BinarySearchFunc(t.log, version+1, func(c change, v uint64) int { return cmp.Compare(c.version, v) })
	told := make(map[Key]bool, len(t.log)-from)
	for i := from; i < len(t.log); i++ {
		key := &t.log[i].key
		if told[*key] {
			continue
		}
		told[*key] = true
		if f := t.flows[*key]; f != nil {
			tell(key, f)
		} else {
			gone = append(gone, key.Flow())
		}
	}
	return version, changed, gone
}

// String is a flow as people write it.
func (f Flow) String() string { return fmt.Sprintf("%s>%s", f.Src, f.Dst) }
