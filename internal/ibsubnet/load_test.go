package ibsubnet

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// TestLoadCountsWhatASwitchIsSent reads the tables of a fabric: each switch is sent a request for its limits, and one for each block
// of its table. Requests by LID and along routes count for the same switch.
func TestLoadCountsWhatASwitchIsSent(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(3, 2, 2), ibtest.Options{})
	client, err := OpenClient("ibsim:"+sim.SocketName()+"/h1", "", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	f, _, err := ibfabric.Discover(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	var load Load
	now := time.Unix(1_800_000_000, 0)
	load.Add(client, now)
	if v := load.View(now); v != (LoadView{}) {
		t.Errorf("without a fabric: %+v", v)
	}
	client.TakeSent()
	load.SetFabric(f)
	read := func(times int) {
		t.Helper()
		for range times {
			tables, err := ibfabric.ReadTables(t.Context(), client, f)
			if err != nil || len(tables.Unanswered) > 0 {
				t.Fatal(err, tables.Unanswered)
			}
			f = f.WithTables(tables.LFTs)
		}
	}
	read(3)
	each, resent := uint64(mostDatagrams(f)), client.Stats().Lost
	load.Add(client, now.Add(time.Second))
	if v := load.View(now.Add(time.Second)); resent == 0 && (v.SwitchMost != 3*each || v.PerSecond != float64(3*each)*float64(f.Switches) || v.Switch == "" || v.SwitchPerSecond != float64(3*each)) {
		t.Errorf("three readings of %d datagrams a switch: %+v", each, v)
	}
	read(1)
	load.Add(client, now.Add(2*time.Second))
	if v := load.View(now.Add(9 * time.Second)); client.Stats().Lost == 0 && (v.SwitchMost != 3*each || v.SwitchPerSecond != float64(4*each)/8) {
		t.Errorf("one more after a second: %+v, want %v a second", v, float64(4*each)/8)
	}
	if v := load.View(now.Add(time.Minute)); v.PerSecond != 0 || v.Switch != "" {
		t.Errorf("after a minute: %+v", v)
	}
}

// TestTablesKeepWithinTheBudget checks the pause between two readings for tables of several sizes, beside counters.
func TestTablesKeepWithinTheBudget(t *testing.T) {
	for _, x := range []struct {
		entries        int
		budget, others float64
		want           time.Duration
	}{
		{702, 50, 0, Interval},                   // 12 datagrams
		{702, 50, 1000, Interval},                // half of the budget is enough
		{49152, 50, 0, 15380 * time.Millisecond}, // 769 datagrams
		{49152, 50, 20, 769 * time.Second / 30},
		{49152, 50, 45, 769 * time.Second / 25},
		{49152, 50, -5, 15380 * time.Millisecond},
		{49152, 1 << 31, 0, Interval},
	} {
		f := &ibfabric.Fabric{LFTs: [][]uint8{make([]uint8, 64), make([]uint8, x.entries), nil}}
		if got := pauseFor(f, x.budget, x.others); (got - x.want).Abs() > time.Millisecond {
			t.Errorf("%d entries, budget %v, others %v: %v, want %v", x.entries, x.budget, x.others, got, x.want)
		}
	}
}
