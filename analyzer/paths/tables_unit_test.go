package paths

import (
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
)

// boundTables returns tables that follow one flow of a fabric, which two readings have confirmed from 1 s to 2 s.
func boundTables(t *testing.T, f *ibfabric.Fabric, staleAfter time.Duration) (*Store, *Tables, fabric.Flow) {
	t.Helper()
	topo, found := f.BuildTopology()
	if len(found) > 0 {
		t.Fatal(found)
	}
	store := NewStore(fabric.NewGraph(topo))
	tables := NewTables(store, 0)
	tables.StaleAfter = staleAfter
	e := fabric.Flow{Src: store.Graph().NICIDs()[0], Dst: store.Graph().NICIDs()[len(store.Graph().NICIDs())-1]}
	tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(0.9), Ended: sec(1), Broken: true})
	tables.FollowFlow(e, sec(1))
	tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(2), Ended: sec(2.1)})
	return store, tables, e
}

// TestAReportedChangeEndsPaths has a change reported after the last reading, and tables that are the same after it. The path holds
// on either side of the change, and no window across it is bound to it.
func TestAReportedChangeEndsPaths(t *testing.T) {
	f := worldtest.TreeSubnet(t)
	for name, after := range map[string]func(*Tables){
		"read twice": func(x *Tables) {
			x.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(4), Ended: sec(4.1), Broken: true})
			x.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(6), Ended: sec(6.1)})
		},
		"confirmed by an agent": func(x *Tables) {
			x.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(6), Ended: sec(6.1), Broken: true, Since: sec(4.1)})
		},
	} {
		store, tables, e := boundTables(t, f, 0)
		is := func(from, to float64, want fabric.PathState) {
			t.Helper()
			if b, _ := store.BindingAt(e, sec(from), sec(to)); b.State != want {
				t.Errorf("%s: from %v to %v: %s, want %s", name, from, to, b.State, want)
			}
		}
		is(1, 2, fabric.PathValid)
		is(0.9, 2, fabric.PathUnknown)
		is(1, 3, fabric.PathStale)
		tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(2), Ended: sec(2.1), Broken: true})
		is(1, 2, fabric.PathValid)
		is(1, 3, fabric.PathStale)
		after(tables)
		is(1, 2, fabric.PathValid)
		is(4.1, 6, fabric.PathValid)
		is(5, 6.1, fabric.PathStale)
		if b, _ := store.BindingAt(e, sec(1.5), sec(5)); b.State != fabric.PathUnknown {
			t.Errorf("%s: a window across the change is bound: %s", name, b.State)
		}
	}
}

// TestPathsAreStaleAtTheirAge has a source that ends. Until the configured age the path is what it was, and afterwards it is stale,
// and windows have none.
func TestPathsAreStaleAtTheirAge(t *testing.T) {
	f := worldtest.TreeSubnet(t)
	for _, age := range []time.Duration{2 * time.Second, 5 * time.Second, time.Minute} {
		store, tables, e := boundTables(t, f, age)
		dead := 2 + age.Seconds() // the last confirmation is at 2 s
		for at, stale := range map[float64]bool{2.5: false, dead - 0.1: false, dead + 0.1: true} {
			if b, _ := store.BindingAt(e, sec(1), sec(at)); b.Expired != stale || b.State != fabric.PathStale || len(b.Path) == 0 {
				t.Errorf("%v: a window until %v: %+v, want expired %v", age, at, b, stale)
			}
		}
		if b, _ := store.BindingAt(e, sec(1), sec(2)); b.Expired || b.State != fabric.PathValid {
			t.Errorf("%v: a window of before: %+v", age, b)
		}
		store.ExpireFlows(sec(dead - 0.1))
		if b, _ := store.CurrentBinding(e); b.State != fabric.PathValid || store.StateCounts()[fabric.PathValid] != 1 {
			t.Errorf("%v: stale before its age: %+v", age, b)
		}
		store.ExpireFlows(sec(dead + 0.1))
		if b, _ := store.CurrentBinding(e); b.State != fabric.PathStale || store.StateCounts()[fabric.PathStale] != 1 {
			t.Errorf("%v: not stale at its age: %+v", age, b)
		}
		// The source is back.
		back := dead + 1
		tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(back), Ended: sec(back + 0.1), Broken: true})
		tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(back + 1), Ended: sec(back + 1.1)})
		if b, _ := store.BindingAt(e, sec(back+0.1), sec(back+1)); b.State != fabric.PathValid || b.Expired {
			t.Errorf("%v: after the source came back: %+v", age, b)
		}
	}
}
