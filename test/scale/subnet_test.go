//go:build scale

package scale

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibsubnet"
)

// allPairs returns a fleet on a subnet, whose HCAs probe each other along its forwarding tables: 419,256 directed flows of 648 HCAs.
func allPairs(t *testing.T, f *ibfabric.Fabric, topo *fabric.Topology) *Fleet {
	t.Helper()
	nics := fabric.NewGraph(topo).NICIDs()
	var flows []fabric.Flow
	for i, src := range nics {
		for _, dst := range nics[i+1:] {
			flows = append(flows, fabric.Flow{Src: src, Dst: dst})
		}
	}
	walked := func(src, dst string) (p fabric.Path) {
		from, err := f.FindLID(src)
		if err != nil {
			t.Fatal(err)
		}
		to, err := f.FindLID(dst)
		if err != nil {
			t.Fatal(err)
		}
		hops, err := f.Walk(from, to)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hops {
			p = append(p, fabric.Hop{Switch: f.NodeName(h.Switch), In: strconv.Itoa(int(h.In)), Out: strconv.Itoa(int(h.Out))})
		}
		return p
	}
	fleet, err := NewFleet(Options{Topology: topo, Second: time.Second, Flows: flows, Path: walked})
	if err != nil {
		t.Fatal(err)
	}
	return fleet
}

// TestCyclesOfASubnet runs the analyzer's loop on a subnet of 54 switches and 648 HCAs that OpenSM routes on ibsim, with the forwarding
// tables of all 419,256 pairs, each of whose flows has been queried. It reports times of cycles and memory, calm, while a
// link is slow, and while OpenSM routes around a link that is cut. Only the agents are simulated, along the tables of the beginning.
func TestCyclesOfASubnet(t *testing.T) {
	ibtest.RequireTools(t)
	sim := ibtest.Start(t, ibtest.FatTree(36, 18, 18), ibtest.Options{Engine: "ftree"})
	client, err := ibsubnet.OpenClient("ibsim:"+sim.SocketName()+"/h1", "", 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	watch := &ibfabric.Watch{Client: client, Now: time.Now}
	first, err := watch.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	topo, found := first.Fabric.BuildTopology()
	if len(found) > 0 {
		t.Fatal(found)
	}
	f := allPairs(t, first.Fabric, topo)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc >> 20
	}
	before := heap()

	agents := &http.Client{Transport: direct{f.Handler("agents")}}
	url := func(node string) string { return "http://agents/" + node }
	settings := evidence.SettingsFor(time.Second)
	settings.Windows = fleetWindows{&evidence.AgentWindows{Client: agents, URL: url, Timeout: time.Minute}, f}
	o := analyzer.LoopOptions{Graph: f.graph, DB: newStore(f, settings), Settings: settings, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	o.Subnets = []tracing.Subnet{{Source: &ibsubnet.Device{Name: "ibsim", Client: client, Log: sim.LogPath()}, State: &ibsubnet.State{}, StaleAfter: 10 * time.Second}}
	o.TwoSteps = selection.Options{MinFlows: 5000, MaxFlows: 1 << 20, Round: time.Duration(f.DirectedFlows()) * time.Millisecond}
	loop := analyzer.NewLoop(o)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { loop.Sources().Run(ctx) })
	defer func() { cancel(); wg.Wait() }()
	r := &rig{tb: t, f: f, loop: loop, o: o}
	cycle := func() time.Duration {
		took := r.cycle()
		if early := f.ahead; early > 0 { // the subnet is read in the machine's time
			time.Sleep(early)
			f.ahead = 0
		}
		return took
	}

	until := func(what string, least int, ok func(snapshot.Snapshot) bool) {
		t.Helper()
		var cycles []time.Duration
		queried, began := 0, time.Now()
		for {
			cycles = append(cycles, cycle())
			s := loop.Snapshot()
			queried = max(queried, s.Queries.QueriedFlows)
			if ok(s) && len(cycles) >= least {
				break
			}
			if len(cycles) == 300 {
				t.Fatalf("%s: %s, %+v, %v, open %q", what, s.Report.State, s.Report.Coverage, s.Paths, open(s))
			}
		}
		slices.Sort(cycles)
		s := loop.Snapshot()
		t.Logf("%s after %.1f s: %d cycles, median %d ms, longest %d ms; at most %d flows queried in one; paths %v; open %q", what, time.Since(began).Seconds(), len(cycles),
			cycles[len(cycles)/2].Milliseconds(), cycles[len(cycles)-1].Milliseconds(), queried, s.Paths, open(s))
	}
	until("innocent, all pairs bound", 1, func(s snapshot.Snapshot) bool {
		return s.Report.State == fabric.Innocent && s.Paths[fabric.PathValid] >= f.DirectedFlows()
	})
	until("calm", 30, func(s snapshot.Snapshot) bool { return s.Report.State == fabric.Innocent && len(open(s)) == 0 })
	t.Logf("%d MiB beside the fleet's %d", heap()-before, before)
	slow := Fault{Links: []fabric.Direction{{From: "leaf3:20", To: f.graph.PeerOf("leaf3:20")}}, DelayNS: 2e6}
	link := slow.Links[0].LinkID()
	f.SetFaults(slow)
	until("named "+link, 1, func(s snapshot.Snapshot) bool { return slices.Equal(open(s), []string{link}) })
	f.SetFaults()
	until("all clear", 10, func(s snapshot.Snapshot) bool { return len(open(s)) == 0 })
	sim.RunConsole(`Unlink "leaf0"[19]`)
	until("a link cut", 10, func(s snapshot.Snapshot) bool {
		return slices.Contains(open(s), fabric.LinkID("leaf0:19", f.graph.PeerOf("leaf0:19"))) && s.Paths[fabric.PathValid] >= f.DirectedFlows()
	})
}
