package paths

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibmad/madsim"
)

// tablesRig is a fabric of three leaves and two spines, and tables that read it.
type tablesRig struct {
	*testing.T
	f      *ibfabric.Fabric
	store  *Store
	tables *Tables
	start  time.Time
}

func newTablesRig(t *testing.T) *tablesRig {
	f := worldtest.TreeSubnet(t)
	topo, _ := f.BuildTopology()
	x := &tablesRig{T: t, f: f, start: time.Unix(1_800_000_000, 0), store: NewStore(fabric.NewGraph(topo))}
	x.tables = NewTables(x.store, 0)
	return x
}

// at returns a moment, in tenths of a second.
func (t *tablesRig) at(tenths int) time.Time {
	return t.start.Add(time.Duration(tenths) * 100 * time.Millisecond)
}

// read takes a reading that begins and ends at moments.
func (t *tablesRig) read(f *ibfabric.Fabric, begun, ended int, broken bool) {
	t.tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: t.at(begun), Ended: t.at(ended), Broken: broken})
}

// route returns the fabric with another entry for h3 (LID 14) at leaf0.
func (t *tablesRig) route(port uint8) *ibfabric.Fabric {
	e, ok := t.f.ByName("leaf0")
	if !ok {
		t.Fatal("no leaf0")
	}
	lfts := slices.Clone(t.f.LFTs)
	lfts[e.Node] = slices.Clone(lfts[e.Node])
	lfts[e.Node][14] = port
	return t.f.WithTables(lfts)
}

var moved = fabric.Flow{Src: "h0/hca", Dst: "h3/hca"}

// want says what a window is bound to.
func (t *tablesRig) want(e fabric.Flow, start, end int, state fabric.PathState, path string) {
	t.Helper()
	b, _ := t.store.BindingAt(e, t.at(start), t.at(end))
	if got := b.Path.CanonicalKey(); b.State != state || got != path {
		t.Errorf("%s, window %d to %d: %s %q, not %s %q: %q", e, start, end, b.State, got, state, path, b.Notes)
	}
}

const (
	over1 = "leaf0[1>4] spine1[1>2] leaf1[4>2]"
	over0 = "leaf0[1>3] spine0[1>2] leaf1[3>2]"
)

func TestForwardingRule1ConfirmedBetweenReadings(t *testing.T) {
	x := newTablesRig(t)
	x.tables.FollowFlow(moved, x.at(0)) // nothing is read yet
	x.read(x.f, 0, 1, true)
	x.tables.FollowFlow(moved, x.at(1))
	x.want(moved, 1, 1, fabric.PathValid, over1)
	x.want(moved, 1, 2, fabric.PathStale, over1)
	x.read(x.f, 10, 11, false)
	x.want(moved, 1, 10, fabric.PathValid, over1)
	x.want(moved, 1, 11, fabric.PathStale, over1) // the tables may have changed since 10
	x.want(moved, 0, 10, fabric.PathUnknown, "")  // and before 1
	reply := moved
	reply.Reply = true
	x.tables.FollowFlow(reply, x.at(11)) // it was not queried before; the tables were the same
	x.want(reply, 1, 10, fabric.PathValid, "leaf1[2>3] spine0[2>1] leaf0[3>1]")

	// Another way, and another table of no importance to the replies.
	x.read(x.route(3), 20, 21, false)
	x.want(moved, 1, 10, fabric.PathValid, over1)
	x.want(moved, 9, 20, fabric.PathUnknown, "")
	x.want(moved, 21, 22, fabric.PathStale, over0)
	x.want(reply, 1, 20, fabric.PathValid, "leaf1[2>3] spine0[2>1] leaf0[3>1]")
	x.read(x.tables.last.Fabric, 30, 31, false)
	x.want(moved, 21, 30, fabric.PathValid, over0)
	x.want(moved, 9, 30, fabric.PathUnknown, "")
	x.want(moved, 1, 10, fabric.PathValid, over1)
}

func TestForwardingRule2WhatDoesNotArrive(t *testing.T) {
	x := newTablesRig(t)
	x.read(x.f, 0, 1, true)
	x.tables.FollowFlow(moved, x.at(1))
	x.read(x.f, 10, 11, false)
	x.read(x.route(ibmad.NoRoute), 20, 21, false)
	x.want(moved, 1, 10, fabric.PathValid, over1)
	x.want(moved, 11, 20, fabric.PathStale, over1)
	if b, _ := x.store.CurrentBinding(moved); len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "hop 1 at leaf0: dead end") {
		t.Errorf("%q", b.Notes)
	}
	x.read(x.f, 30, 31, false)
	x.read(x.f, 40, 41, false)
	x.want(moved, 31, 40, fabric.PathValid, over1)
	x.want(moved, 11, 40, fabric.PathUnknown, "")
	x.want(moved, 1, 10, fabric.PathValid, over1)

	choice := x.route(4)
	e, _ := choice.ByName("leaf0")
	choice.Adaptive = make([]*ibfabric.Adaptive, choice.Switches)
	choice.Adaptive[e.Node] = ibfabric.NewAdaptive(1, map[ibfabric.LID][]uint8{14: {3, 4}})
	x.read(choice, 50, 51, false)
	if b, _ := x.store.BindingAt(moved, x.at(51), x.at(52)); b.State != fabric.PathUnknown || len(b.Candidates) != 2 {
		t.Errorf("%+v", b)
	}
	if !x.tables.isSprayed(moved, x.at(51)) || x.tables.isSprayed(moved, x.at(50)) {
		t.Error("the packets take both ways from the reading on that has them, and not before")
	}
	x.read(x.f, 60, 61, false)
	if x.tables.isSprayed(moved, x.at(51)) {
		t.Error("the packets take both ways after a reading without a choice")
	}
	x.read(x.f, 70, 71, false)
	x.want(moved, 61, 70, fabric.PathValid, over1)
	x.want(moved, 40, 70, fabric.PathUnknown, "")
}

func TestForwardingRule3Broken(t *testing.T) {
	x := newTablesRig(t)
	x.read(x.f, 0, 1, true)
	x.tables.FollowFlow(moved, x.at(1))
	x.read(x.f, 10, 11, false)
	x.read(x.f, 20, 21, true)
	x.want(moved, 1, 10, fabric.PathValid, over1)
	x.want(moved, 9, 20, fabric.PathStale, over1)
	x.want(moved, 21, 22, fabric.PathStale, over1)
	x.read(x.f, 30, 31, true)
	x.want(moved, 21, 30, fabric.PathStale, over1)
	x.read(x.f, 40, 41, false)
	x.want(moved, 21, 40, fabric.PathUnknown, "")
	x.want(moved, 31, 40, fabric.PathValid, over1)
	x.want(moved, 31, 41, fabric.PathStale, over1)
	x.want(moved, 1, 10, fabric.PathValid, over1)
	x.read(x.f, 50, 51, true)
	x.read(x.f, 60, 61, false)
	x.want(moved, 51, 60, fabric.PathValid, over1)
	x.want(moved, 31, 40, fabric.PathValid, over1)
	x.want(moved, 31, 60, fabric.PathUnknown, "")
}

func TestForwardingRule4NICsAndSwitches(t *testing.T) {
	x := newTablesRig(t)
	topo, _ := x.f.BuildTopology()
	topo.Nodes[0].NICs[0].Aliases = []string{"mlx5_0", "guid:0x10000b"} // h0 is said to be h5
	topo.Switches = slices.DeleteFunc(topo.Switches, func(s fabric.Switch) bool { return s.Name == "spine0" })
	x.store = NewStore(fabric.NewGraph(topo))
	x.tables = NewTables(x.store, 0)
	x.read(x.f, 0, 1, true)
	other := fabric.Flow{Src: "h2/hca", Dst: "h4/hca"} // over spine0
	x.tables.FollowFlow(moved, x.at(1))
	x.tables.FollowFlow(other, x.at(1))
	x.read(x.f, 10, 11, false)
	if b, _ := x.store.BindingAt(moved, x.at(1), x.at(10)); b.State != fabric.PathValid || b.Path[0].Switch != "leaf2" {
		t.Errorf("%+v", b)
	}
	if b, _ := x.store.BindingAt(other, x.at(1), x.at(10)); b.State != fabric.PathUnknown || len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "spine0, which the topology does not know") {
		t.Errorf("%+v", b)
	}
	x.tables.FollowFlow(fabric.Flow{Src: "h9/hca", Dst: "h4/hca"}, x.at(1))
	if n := len(x.tables.flows); n != 2 {
		t.Error(n)
	}
}

// Flows that are no longer queried are forgotten, and so are NICs that went.
func TestForwardingForget(t *testing.T) {
	x := newTablesRig(t)
	x.read(x.f, 0, 1, true)
	x.tables.FollowFlow(moved, x.at(1))
	x.read(x.f, 10, 11, false)
	late := int(keepFlows/(100*time.Millisecond)) + 20
	x.read(x.f, late, late+1, false)
	if n := len(x.tables.flows) + len(x.tables.unbound); n != 0 {
		t.Error(n)
	}
	x.store.ExpireFlows(x.at(2*late + 100))
	if n := x.store.Len(); n != 0 {
		t.Error(n)
	}
}

// Readings come while flows are followed and asked for: a race detector's test.
func TestForwardingConcurrent(t *testing.T) {
	x := newTablesRig(t)
	x.read(x.f, 0, 1, true)
	other := x.route(3)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for i := range 200 {
				e := fabric.Flow{Src: "h0/hca", Dst: "h3/hca", Number: i % 7}
				x.tables.FollowFlow(e, x.at(i))
				x.store.BindingAt(e, x.at(i), x.at(i+1))
			}
		})
	}
	for i := range 100 {
		x.read([]*ibfabric.Fabric{x.f, other}[i/3%2], 10*i+10, 10*i+11, i%10 == 0)
	}
	wg.Wait()
}

// A cable that is not where the topology has it is reported as by LLDP.
func TestForwardingReportsCables(t *testing.T) {
	x := newTablesRig(t)
	topo, _ := x.f.BuildTopology()
	for i := range topo.Links {
		l := &topo.Links[i]
		switch l.A {
		case "h0/hca":
			l.B = "leaf1:2"
		case "h3/hca":
			l.B = "leaf0:1"
		}
	}
	x.store = NewStore(fabric.NewGraph(topo))
	x.tables = NewTables(x.store, 0)
	x.read(x.f, 0, 1, true)
	standing, _ := x.store.CheckCables(x.at(1))
	if len(standing) != 1 || standing[0].Fabric != [2]string{"h0/hca--leaf0:1", "h3/hca--leaf1:2"} {
		t.Errorf("%+v", standing)
	}
}

// BenchmarkForwarding measures the 419,256 edges of a fat tree of 54 switches and 648
// HCAs, with a table that changed for one HCA, and without.
func BenchmarkForwarding(b *testing.B) {
	sim := madsim.FatTree(36, 18, 18, madsim.Options{})
	c := ibmad.NewClient(sim.AttachTransport("h0"), ibmad.Config{})
	defer c.Close()
	f, _, err := ibfabric.Discover(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	read, err := ibfabric.ReadTables(b.Context(), c, f)
	if err != nil {
		b.Fatal(err)
	}
	f = f.WithTables(read.LFTs)
	topo, _ := f.BuildTopology()
	store := NewStore(fabric.NewGraph(topo))
	tables := NewTables(store, 0)
	now := time.Unix(1_800_000_000, 0)
	take := func(f *ibfabric.Fabric, broken bool) {
		now = now.Add(time.Second)
		tables.ApplyReading(ibfabric.Reading{Fabric: f, Begun: now, Ended: now.Add(time.Millisecond), Broken: broken})
	}
	take(f, true)
	before := heapMB()
	begun := time.Now()
	for _, src := range store.nicIDs {
		for _, dst := range store.nicIDs {
			if src != dst {
				tables.FollowFlow(fabric.Flow{Src: src, Dst: dst}, now)
			}
		}
	}
	b.Logf("%d edges bound in %s, %.0f MB", store.Len(), time.Since(begun), heapMB()-before)
	b.Run("same", func(b *testing.B) {
		for b.Loop() {
			take(f, false)
		}
	})
	other := f.WithTables(slices.Clone(f.LFTs))
	leaf, _ := f.ByName("leaf0")
	other.LFTs[leaf.Node] = slices.Clone(other.LFTs[leaf.Node])
	dst, err := f.FindLID("h647/hca")
	if err != nil {
		b.Fatal(err)
	}
	other.LFTs[leaf.Node][dst] = 19 + (other.LFTs[leaf.Node][dst]-18)%18
	b.Run("changed", func(b *testing.B) {
		for b.Loop() {
			take(other, false)
			f, other = other, f
		}
	})
	b.Run("broken", func(b *testing.B) {
		for b.Loop() {
			take(f, true)
			take(f, false)
		}
	})
	if got := store.StateCounts()[fabric.PathValid]; got != 419_256 {
		b.Fatal(got, store.StateCounts())
	}
}
