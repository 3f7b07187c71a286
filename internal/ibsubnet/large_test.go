//go:build all

package ibsubnet_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibsubnet"
)

// applied is a reading that Follow handed over, and when.
type applied struct {
	ibfabric.Reading
	at time.Time
}

// TestLargeSubnetChanges cuts a link of a fat tree of 54 switches and 648 HCAs, which OpenSM routes. It reports how long paths take
// to end after the command and to be confirmed after SUBNET UP, what that costs a switch, and what all 419,256 pairs cost the store.
func TestLargeSubnetChanges(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(36, 18, 18), ibtest.Options{Engine: "ftree"})
	client, err := ibsubnet.OpenClient("ibsim:"+sim.SocketName()+"/h1", "", 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(t.Context(), 3*hangLimit)
	got, done := make(chan applied, 1000), make(chan struct{})
	go func() {
		defer close(done)
		source := &ibsubnet.Device{Name: "ibsim", Client: client, Log: sim.LogPath()}
		ibsubnet.Follow(ctx, source, &ibsubnet.State{}, slog.New(slog.DiscardHandler), func(r ibfabric.Reading, err error) {
			if err == nil {
				got <- applied{r, time.Now()}
			}
		})
	}()
	defer func() { stop(); <-done }()
	next := func(what string, is func(applied) bool) (all []applied) {
		t.Helper()
		for {
			select {
			case r := <-got:
				if all = append(all, r); is(r) {
					return all
				}
			case <-ctx.Done():
				t.Fatalf("%s: %d readings", what, len(all))
			}
		}
	}
	whole := func(r applied) bool { return !r.Broken }
	first := next("the first confirmation", whole)
	f := first[len(first)-1].Fabric
	store, tables, flows := allPairs(t, f, first)
	took := func(what string, do func()) {
		began := time.Now()
		do()
		t.Logf("%s: %v", what, time.Since(began).Round(time.Microsecond))
	}
	took("a reading that changes nothing", func() { tables.ApplyReading(next("another reading", whole)[0].Reading) })
	for _, change := range []string{`Unlink "leaf0"[19]`, `ReLink "leaf0"[19]`} {
		client.TakeSent()
		up := sim.CountSubnetUp()
		began := time.Now()
		sim.RunConsole(change)
		ended := next("the end of paths", func(r applied) bool { return r.Broken })
		sim.WaitUp(up + 1)
		subnetUp := time.Now()
		var all []applied
		for { // two readings that agree, of after SUBNET UP
			all = append(all, next("the confirmation", whole)...)
			if n := len(all); n > 1 && all[n-1].Fabric == all[n-2].Fabric && all[n-2].Begun.After(subnetUp.Add(-50*time.Millisecond)) {
				break
			}
		}
		last := all[len(all)-1]
		readings, reading := 0, time.Duration(0)
		for i, r := range all {
			if i == 0 || !r.Begun.Equal(all[i-1].Begun) {
				readings++
				reading += r.Ended.Sub(r.Begun)
			}
		}
		most := map[int32]uint64{}
		busiest := uint64(0)
		for address, n := range client.TakeSent() {
			if node, known := last.Fabric.NodeAt(address); known && int(node) < last.Fabric.Switches {
				most[node] += n
				busiest = max(busiest, most[node])
			}
		}
		before := all[len(all)-2]
		t.Logf("%s: paths ended %v after the command; confirmed %v after SUBNET UP, which came %v after it; %d readings of %v in all, the two that agree %v and %v (one with the discovery of cables); at most %d datagrams to a switch in %v",
			change, ended[len(ended)-1].at.Sub(began).Round(time.Millisecond), last.at.Sub(subnetUp).Round(time.Millisecond), subnetUp.Sub(began).Round(time.Millisecond), readings,
			reading.Round(time.Millisecond), before.Ended.Sub(before.Begun).Round(time.Millisecond), last.Ended.Sub(last.Begun).Round(time.Millisecond), busiest, last.at.Sub(began).Round(time.Millisecond))
		took("all paths ended and bound again", func() {
			tables.ApplyReading(ended[len(ended)-1].Reading)
			for _, r := range all {
				tables.ApplyReading(r.Reading)
			}
		})
		// OpenSM may sweep again after SUBNET UP, and has not routed all pairs before.
		for checked := time.Now(); ; {
			valid, why := countValid(store, flows, last.Begun)
			if valid == len(flows) {
				break
			}
			t.Logf("%s: %d of %d flows have a valid path; %s", change, valid, len(flows), why)
			if time.Since(checked) > hangLimit {
				t.Fatal("they have not got one")
			}
			for _, r := range next("another reading", whole) {
				last = r
				tables.ApplyReading(r.Reading)
			}
		}
	}
}

// countValid returns the number of flows with a valid path at a moment, and why the first of the others has none.
func countValid(store *paths.Store, flows []fabric.Flow, at time.Time) (valid int, why string) {
	for _, e := range flows {
		b, _ := store.BindingAt(e, at, at)
		if b.State == fabric.PathValid {
			valid++
		} else if why == "" {
			why = fmt.Sprintf("%v: %s, since %v after the last reading began, confirmed %v, %q", e, b.State, b.Since.Sub(at), b.Confirmed.Sub(at), b.Notes)
		}
	}
	return valid, why
}

// allPairs returns a store with the paths between all NICs of a fabric, and reports its memory and time.
func allPairs(t *testing.T, f *ibfabric.Fabric, readings []applied) (*paths.Store, *paths.Tables, []fabric.Flow) {
	t.Helper()
	topo, found := f.BuildTopology()
	if len(found) > 0 {
		t.Fatal(found)
	}
	store := paths.NewStore(fabric.NewGraph(topo))
	tables := paths.NewTables(store, 0)
	var flows []fabric.Flow
	for _, src := range store.Graph().NICIDs() {
		for _, dst := range store.Graph().NICIDs() {
			if src != dst {
				flows = append(flows, fabric.Flow{Src: src, Dst: dst})
			}
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	for _, r := range readings {
		tables.ApplyReading(r.Reading)
	}
	for _, e := range flows {
		tables.FollowFlow(e, readings[0].Ended)
	}
	took := time.Since(began)
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d pairs bound in %v, %d MiB", len(flows), took.Round(time.Millisecond), (after.HeapAlloc-before.HeapAlloc)>>20)
	if len(flows) != 419_256 {
		t.Errorf("%d pairs", len(flows))
	}
	return store, tables, flows
}
