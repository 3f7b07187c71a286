package ibsample

import (
	"math"
	"testing"
	"time"
)

const second = int64(time.Second)

func counter(t testing.TB, query, field string) ID {
	t.Helper()
	for i := range Counters {
		if Counters[i].Attribute.String() == query && Counters[i].Field == field {
			return ID(i)
		}
	}
	t.Fatalf("no counter %s of %s", field, query)
	return 0
}

// keeper is a store with one port.
type keeper struct {
	*Store
	t *testing.T
}

func newKeeper(t *testing.T) keeper {
	s := newStore(time.Second)
	s.retainTargets(map[Key]Target{{1, 1}: {Key: Key{1, 1}}})
	return keeper{s, t}
}

func (k keeper) read(tick int64, values map[ID]uint64) {
	a := Answer{At: tick * second}
	for id, v := range values {
		a.IDs, a.Raws = append(a.IDs, id), append(a.Raws, v)
	}
	k.addReport(&Report{Tick: tick, Readings: []Reading{{Key: Key{1, 1}, Answers: []Answer{a}}}})
}

func (k keeper) fail(tick int64, kind string) {
	k.addReport(&Report{Tick: tick, Readings: []Reading{{Key: Key{1, 1}, Errors: []ReadError{{"PortCounters", kind}}}}})
}

func (k keeper) at(tick int64) PortState { return k.Snapshot(time.Unix(tick, 0)).Ports[0] }

func (k keeper) count(tick int64, id ID) *Count {
	for _, c := range k.at(tick).Counts {
		if c.ID == id {
			return &c
		}
	}
	return nil
}

func TestRule9TheFirstReadingOfATickCounts(t *testing.T) {
	k := newKeeper(t)
	id := counter(t, "PortCountersExtended", "PortXmitPkts")
	k.read(10, map[ID]uint64{id: 100})
	k.read(10, map[ID]uint64{id: 101})
	k.read(9, map[ID]uint64{id: 90})
	if c := k.count(10, id); c == nil || c.Raw != 100 {
		t.Errorf("count %+v, want 100", c)
	}
	k.fail(11, "timeout")
	k.read(11, map[ID]uint64{id: 110}) // the other sampler of the port read it
	if c := k.count(11, id); c == nil || c.Raw != 110 {
		t.Errorf("count %+v, want 110", c)
	}
	if s := k.Snapshot(time.Unix(11, 0)); s.Duplicates != 1 || s.Late != 1 || s.Accepted != 3 {
		t.Errorf("%d duplicates, %d late, %d kept; want 1, 1, 3", s.Duplicates, s.Late, s.Accepted)
	}
}

func TestRule10ResetsAndRates(t *testing.T) {
	k := newKeeper(t)
	id := counter(t, "PortCountersExtended", "PortXmitData")
	k.read(10, map[ID]uint64{id: 1000})
	if c := k.count(10, id); c.Rated || c.Since != 10*second || c.ScaledValue() != 4000 {
		t.Errorf("first reading %+v", c)
	}
	k.read(12, map[ID]uint64{id: 1500})
	if c := k.count(12, id); !c.Rated || c.Rate != 1000 || c.Since != 10*second {
		t.Errorf("second reading %+v, want 1000 octets a second since the first", c)
	}
	k.read(13, map[ID]uint64{id: 3})
	if c := k.count(13, id); c.Rated || c.Raw != 3 || c.Since != 13*second {
		t.Errorf("after a reset %+v", c)
	}
	k.read(14, map[ID]uint64{id: 5})
	if c := k.count(14, id); !c.Rated || c.Rate != 8 || c.Since != 13*second {
		t.Errorf("after the next %+v", c)
	}
	if p := k.at(14); p.Resets != 1 {
		t.Errorf("%d resets", p.Resets)
	}
}

func TestRule11SaturatedCountersHaveNoRate(t *testing.T) {
	k := newKeeper(t)
	for _, tc := range []struct {
		query, field string
		max          uint64
	}{
		{"PortCounters", "LocalLinkIntegrityErrors", 15}, {"PortCounters", "LinkDownedCounter", 255}, {"PortCounters", "SymbolErrorCounter", 65535},
		{"PortCounters", "PortXmitData", math.MaxUint32}, {"PortCountersExtended", "PortXmitData", math.MaxUint64},
	} {
		id := counter(t, tc.query, tc.field)
		k.read(k.Store.ports[Key{1, 1}].tick&0xffff+1, map[ID]uint64{id: tc.max - 1})
		tick := k.Store.ports[Key{1, 1}].tick + 1
		k.read(tick, map[ID]uint64{id: tc.max})
		if c := k.count(tick, id); c == nil || !c.IsSaturated() || c.Rated || c.Raw != tc.max {
			t.Errorf("%s: %+v, want saturated at %d without a rate", tc.field, c, tc.max)
		}
		k.read(tick+1, map[ID]uint64{id: 0})
		if c := k.count(tick+1, id); c.IsSaturated() || c.Rated {
			t.Errorf("%s after a reset: %+v", tc.field, c)
		}
	}
}

func TestRule12DroppedManagementPacketsMakeAReadingSuspect(t *testing.T) {
	k := newKeeper(t)
	id := counter(t, "PortCounters", "VL15Dropped")
	for tick, tc := range []struct {
		dropped uint64
		want    bool
	}{{7, false}, {7, false}, {8, true}, {8, false}, {0, false}} {
		k.read(int64(tick+1), map[ID]uint64{id: tc.dropped})
		if got := k.at(int64(tick + 1)).Suspect; got != tc.want {
			t.Errorf("tick %d, %d dropped: suspect %v", tick, tc.dropped, got)
		}
	}
}

func TestRule13OldCountersGo(t *testing.T) {
	k := newKeeper(t)
	id, other := counter(t, "PortCounters", "SymbolErrorCounter"), counter(t, "PortCountersExtended", "PortXmitPkts")
	k.read(10, map[ID]uint64{id: 1, other: 2})
	k.read(11, map[ID]uint64{id: 1})
	k.fail(12, "timeout")
	k.fail(13, "silent")
	if k.count(13, id) == nil || k.count(13, other) == nil {
		t.Error("counters went too early")
	}
	if k.count(14, id) == nil || k.count(14, other) != nil {
		t.Error("each counter goes by its own age")
	}
	p := k.at(15)
	if len(p.Counts) != 0 || p.Errors["timeout"] != 1 || p.Errors["silent"] != 1 {
		t.Errorf("%d counters of a dead port, errors %v", len(p.Counts), p.Errors)
	}
	k.read(16, map[ID]uint64{id: 5})
	if c := k.count(16, id); c == nil || !c.Rated || c.Since != 10*second {
		t.Errorf("back again: %+v, want a rate over the gap", c)
	}
}

func TestReadingsOfOthersTargetsAreNotKept(t *testing.T) {
	k := newKeeper(t)
	k.addReport(&Report{Tick: 1, Readings: []Reading{{Key: Key{2, 1}}, {Key: Key{1, 1}, Answers: []Answer{{At: 1, IDs: []ID{60000, 0, 1, 2}, Raws: []uint64{1, 2, 256}}}}}})
	if s := k.Snapshot(time.Unix(1, 0)); len(s.Ports) != 1 || len(s.Ports[0].Counts) != 1 {
		t.Errorf("%+v", s.Ports)
	}
}

// TestLinkDownsAreCounted counts the growth of the counters of links that went down, and not their first values or resets.
func TestLinkDownsAreCounted(t *testing.T) {
	k := newKeeper(t)
	downs, other := counter(t, "PortCounters", "LinkDownedCounter"), counter(t, "PortCounters", "SymbolErrorCounter")
	for i, x := range []struct{ value, want uint64 }{{5, 0}, {5, 0}, {7, 2}, {0, 2}, {1, 3}} {
		k.read(int64(10+i), map[ID]uint64{downs: x.value, other: uint64(i)})
		if got := k.LinkDowns(); got != x.want {
			t.Errorf("tick %d: %d, want %d", 10+i, got, x.want)
		}
	}
}
