package sighting

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

const second = int64(time.Second)

func flowOf(i int) Key {
	return KeyOf(Flow{Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 49152), Dst: netip.MustParseAddrPort("10.9.9.9:862")})
}

func name(port uint32) string { return fmt.Sprintf("dn%d", port) }

type round struct {
	*Table
	t   *testing.T
	now int64
}

func (r *round) see(i int, port uint32) {
	key := flowOf(i)
	r.AddSample(&key, Sample{Port: port, First: r.now, Last: r.now, Count: 1})
}

// turn ends a second and returns what changed in it.
func (r *round) turn() (changed []FlowPorts, gone []Flow) {
	before := r.Version()
	r.EndRound(r.now, func(*Key, uint32) {})
	r.now += second
	if before == 0 {
		return r.whole(), nil
	}
	if !r.CoversVersion(before) {
		r.t.Fatalf("version %d is no longer known", before)
	}
	return r.ChangesSince(before, name)
}

// whole returns the table, read in parts of three.
func (r *round) whole() (all []FlowPorts) {
	for at := 0; ; {
		part, next := r.TablePart(at, 3, name)
		if all = append(all, part...); next == 0 {
			return all
		}
		at = next
	}
}

func newRound(t *testing.T) *round {
	return &round{NewTable(10, 3*time.Second), t, 1000 * second}
}

func TestTableRule1ANewFlowOrPortIsAChange(t *testing.T) {
	r := newRound(t)
	r.see(1, 1)
	if c, _ := r.turn(); len(c) != 1 || len(c[0].Ports) != 1 || c[0].Ports[0].Name != "dn1" || c[0].Flow != func() Flow { k := flowOf(1); return k.Flow() }() {
		t.Fatalf("new flow: %+v", c)
	}
	r.see(1, 2)
	if c, _ := r.turn(); len(c) != 1 || len(c[0].Ports) != 2 || c[0].Ports[1].Name != "dn2" {
		t.Fatalf("new port: %+v", c)
	}
}

func TestTableRule2WhatIsNotSeenIsForgotten(t *testing.T) {
	r := newRound(t)
	r.see(1, 1)
	last := r.now
	r.turn()
	for range 3 {
		if c, gone := r.turn(); len(c) != 0 || len(gone) != 0 {
			t.Fatalf("after %v: %+v %v", time.Duration(r.now-last), c, gone)
		}
	}
	if c, gone := r.turn(); len(c) != 0 || len(gone) != 1 || r.Len() != 0 {
		t.Fatalf("gone: %+v %v, %d flows", c, gone, r.Len())
	}
	r.see(1, 1)
	if c, gone := r.turn(); len(c) != 1 || len(gone) != 0 || r.Len() != 1 {
		t.Fatalf("back: %+v %v, %d flows", c, gone, r.Len())
	}
}

func TestTableRule3SeveralPortsAreReportedUntilOneIsLeft(t *testing.T) {
	r := newRound(t)
	r.see(1, 1)
	r.turn()
	left := r.now - second
	for i := range 4 {
		r.see(1, 2)
		c, _ := r.turn()
		if i == 3 { // the first port is forgotten
			if len(c) != 1 || len(c[0].Ports) != 1 || c[0].Ports[0].Name != "dn2" {
				t.Fatalf("one port is left: %+v", c)
			}
			break
		}
		if len(c) != 1 || len(c[0].Ports) != 2 || c[0].Ports[0].Last.UnixNano() != left || c[0].Ports[1].Last.UnixNano() != r.now-second {
			t.Fatalf("round %d: %+v", i, c)
		}
	}
	r.see(1, 2)
	if c, gone := r.turn(); len(c)+len(gone) != 0 {
		t.Fatalf("afterwards: %+v %v", c, gone)
	}
}

func TestTableRule4NoNewsIsNoChange(t *testing.T) {
	r := newRound(t)
	r.see(1, 1)
	r.turn()
	v := r.Version()
	for range 20 {
		r.see(1, 1)
		if c, gone := r.turn(); len(c)+len(gone) != 0 {
			t.Fatalf("%+v %v", c, gone)
		}
	}
	if r.Version() != v {
		t.Fatalf("version %d, was %d", r.Version(), v)
	}
}

func TestTableRule5OldVersionsAreNotKnown(t *testing.T) {
	r := newRound(t)
	for i := range 5000 {
		r.see(i%10, uint32(i/10))
		r.turn()
	}
	for v, want := range map[uint64]bool{0: false, 1: false, r.Version() - 100: true, r.Version(): true, r.Version() + 1: false} {
		if r.CoversVersion(v) != want {
			t.Errorf("version %d of %d: known %v, want %v", v, r.Version(), !want, want)
		}
	}
	if n := len(r.whole()); n != r.Len() {
		t.Errorf("%d flows reported, there are %d", n, r.Len())
	}
}

func TestTableRule6LimitsAreCounted(t *testing.T) {
	r := newRound(t)
	for i := range 12 {
		r.see(i, 1)
	}
	for port := range uint32(maxPorts + 2) {
		r.see(0, port+1)
	}
	if r.Len() != 10 || r.Dropped != 4 {
		t.Fatalf("%d flows, %d dropped, want 10 and 4", r.Len(), r.Dropped)
	}
	if c, _ := r.turn(); len(c) != 10 {
		t.Fatalf("%d reported", len(c))
	}
}

// TestTableDeltasMakeTheTable checks that a client that follows the changes, late or early, knows the whole table.
func TestTableDeltasMakeTheTable(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newRound(t)
		r.Table = NewTable(40, 3*time.Second)
		known, at := map[Flow][]string{}, uint64(0)
		for range 300 {
			for range rnd.IntN(6) {
				r.see(rnd.IntN(40), uint32(rnd.IntN(3)+1))
			}
			r.EndRound(r.now, func(*Key, uint32) {})
			r.now += second
			if rnd.IntN(3) > 0 {
				continue
			}
			var changed []FlowPorts
			var gone []Flow
			if r.CoversVersion(at) {
				changed, gone = r.ChangesSince(at, name)
			} else {
				clear(known)
				changed = r.whole()
			}
			for _, s := range changed {
				known[s.Flow] = portsOf(s)
			}
			for _, f := range gone {
				delete(known, f)
			}
			at = r.Version()
			want := map[Flow][]string{}
			for _, s := range r.whole() {
				want[s.Flow] = portsOf(s)
			}
			if !maps.EqualFunc(known, want, func(a, b []string) bool { return slices.Equal(a, b) }) {
				t.Fatalf("seed %d, version %d: deltas make\n%v\nthe table is\n%v", seed, at, known, want)
			}
		}
	}
}

// portsOf returns the names of a flow's ports.
func portsOf(s FlowPorts) (names []string) {
	for _, p := range s.Ports {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}
