package paths

import (
	"bytes"
	"os"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
)

// treeFabric returns the fabric of the files of internal/ibfabric.
func treeFabric(t *testing.T) *ibfabric.Fabric {
	t.Helper()
	read := func(name string) *bytes.Reader {
		text, err := os.ReadFile("../../internal/ibfabric/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(text)
	}
	f, _, err := ibfabric.ReadNetDiscover("net", read("tree.ibnetdiscover"))
	if err != nil {
		t.Fatal(err)
	}
	if f, _, err = f.ReadLFTs("lfts", read("tree.lfts")); err != nil {
		t.Fatal(err)
	}
	return f
}

// boundTables returns tables that follow one flow of a fabric, which two readings have confirmed from 1 s to 2 s.
func boundTables(t *testing.T, f *ibfabric.Fabric) (*Store, *Tables, fabric.Flow) {
	t.Helper()
	topo, found := f.BuildTopology()
	if len(found) > 0 {
		t.Fatal(found)
	}
	store := NewStore(fabric.NewGraph(topo))
	tables := NewTables(store, 0)
	e := fabric.Flow{Src: store.Graph().NICIDs()[0], Dst: store.Graph().NICIDs()[len(store.Graph().NICIDs())-1]}
	tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(0.9), Ended: sec(1), Broken: true})
	tables.FollowFlow(e, sec(1))
	tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(2), Ended: sec(2.1)})
	return store, tables, e
}

// TestAReportedChangeEndsPaths has a change reported after the last reading, and tables that are the same after it. The path holds
// on either side of the change, and no window across it is bound to it.
func TestAReportedChangeEndsPaths(t *testing.T) {
	f := treeFabric(t)
	for name, after := range map[string]func(*Tables){
		"read twice": func(x *Tables) {
			x.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(4), Ended: sec(4.1), Broken: true})
			x.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(6), Ended: sec(6.1)})
		},
		"confirmed by an agent": func(x *Tables) {
			x.ApplyReading(ibfabric.Reading{Fabric: f, Begun: sec(6), Ended: sec(6.1), Broken: true, Since: sec(4.1)})
		},
	} {
		store, tables, e := boundTables(t, f)
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
