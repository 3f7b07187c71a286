package ibfabric

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibmad"
)

var (
	pairs = flag.Int("ib.pairs", livePairs, "pairs compared with ibtracert, for every routing engine and LMC")
	large = flag.Bool("ib.large", false, "compare on the fat tree of 54 switches and 648 HCAs")
)

// readFabric reads a running fabric through its diagnostics.
func readFabric(tb testing.TB, sim *ibtest.Fabric) *Fabric {
	tb.Helper()
	text, err := sim.Run("h1", "ibnetdiscover")
	if err != nil {
		tb.Fatal(err)
	}
	f, found, err := ReadNetDiscover("ibnetdiscover", strings.NewReader(text))
	if err != nil || len(found) > 0 {
		tb.Fatal(err, found)
	}
	if text, err = sim.Run("h1", "dump_lfts"); err != nil {
		tb.Fatal(err)
	}
	f, found, err = f.ReadLFTs("dump_lfts", strings.NewReader(text))
	if err != nil || len(found) > 0 {
		tb.Fatal(err, found)
	}
	return f
}

// lids returns the LIDs of CAs, including those that an LMC adds.
func (f *Fabric) lids() (all []LID) {
	for _, n := range f.Nodes[f.Switches:] {
		for _, p := range n.Ports {
			if p.LID != 0 {
				for i := range LID(1) << p.LMC {
					all = append(all, p.LID+i)
				}
			}
		}
	}
	return all
}

// links returns a walk in the form of ibtracert's output.
func (f *Fabric) links(src, dst LID) ([]ibtest.Link, error) {
	hops, err := f.Walk(src, dst)
	if err != nil {
		return nil, err
	}
	from, _ := f.ByLID(src)
	to, _ := f.ByLID(dst)
	var all []ibtest.Link
	out := from.Port
	for _, h := range hops {
		if h.In != 0 {
			all = append(all, ibtest.Link{Out: out, In: h.In, GUID: uint64(f.Nodes[h.Switch].GUID)})
		}
		out = h.Out
	}
	if out != 0 && from != to {
		all = append(all, ibtest.Link{Out: out, In: to.Port, GUID: uint64(f.PortAt(to).GUID)})
	}
	return all, nil
}

// tracert runs ibtracert again where its queries time out, as on a busy machine.
func tracert(sim *ibtest.Fabric, host string, src, dst LID) (links []ibtest.Link, err error) {
	for range 5 {
		if links, err = sim.TraceRoute(host, uint16(src), uint16(dst)); !errors.Is(err, ibtest.ErrLost) {
			break
		}
	}
	return links, err
}

// compare walks random pairs and runs ibtracert for the same, from several hosts at a time.
func compare(t *testing.T, sim *ibtest.Fabric, f *Fabric, lids []LID, n int, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	type pair struct{ src, dst LID }
	work := make(chan pair, n)
	for range n {
		p := pair{lids[rng.IntN(len(lids))], lids[rng.IntN(len(lids))]}
		if a, _ := f.ByLID(p.src); func() bool { b, _ := f.ByLID(p.dst); return a == b }() {
			continue
		}
		work <- p
	}
	compared := len(work)
	close(work)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for p := range work {
				want, err := tracert(sim, "h"+strconv.Itoa(i), p.src, p.dst)
				if err != nil {
					t.Error(err)
					continue
				}
				if got, err := f.links(p.src, p.dst); err != nil || !slices.Equal(got, want) {
					t.Errorf("LID %d to %d: walked %v (%v), ibtracert %v", p.src, p.dst, got, err, want)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d pairs equal to ibtracert", compared)
}

// TestWalkAsIbtracert compares walks with ibtracert on tables of OpenSM's engines, with one and two LIDs a
// port, switches among the ends, and after a link was removed and restored. With the tag all, also with four LIDs a
// port, and with dor on a torus.
func TestWalkAsIbtracert(t *testing.T) {
	ibtest.RequireTools(t)
	for _, engine := range liveEngines {
		net, uplink := ibtest.FatTree(6, 3, 4), `"leaf1"[5]`
		switch {
		case engine == "dor":
			net, uplink = ibtest.Torus(4, 3, 2), `"sw1"[1]`
		case *large:
			net, uplink = ibtest.FatTree(36, 18, 18), `"leaf1"[19]`
		}
		for lmc := range liveLMCs {
			t.Run(fmt.Sprintf("%s-lmc%d", engine, lmc), func(t *testing.T) {
				sim := ibtest.Start(t, net, ibtest.Options{Engine: engine, LMC: lmc})
				f := readFabric(t, sim)
				all := f.lids()
				compare(t, sim, f, all, *pairs, 1)
				// Switches as ends: updn and ftree need not connect them to each other.
				for i := range min(f.Switches, 8) {
					sw := f.Nodes[i].Ports[0].LID
					src := all[i*7%len(all)]
					want, err := tracert(sim, "h0", src, sw)
					got, failed := f.links(src, sw)
					if (err == nil) != (failed == nil) || err == nil && !slices.Equal(got, want) {
						t.Errorf("LID %d to switch %d: walked %v (%v), ibtracert %v (%v)", src, sw, got, failed, want, err)
					}
				}
				sim.ChangeAndWait("Unlink " + uplink)
				without := readFabric(t, sim)
				compare(t, sim, without, all, *pairs/liveAfter, 2)
				if engine == "minhop" && lmc == 0 {
					var broken, moved int
					for _, src := range all {
						for _, dst := range all {
							then, _ := f.links(src, dst)
							now, err := without.links(src, dst)
							if err != nil {
								t.Fatal(err)
							}
							if !slices.Equal(then, now) {
								moved++
							}
							// The earlier tables on the present cables.
							if _, err := without.WithTables(f.LFTs).Walk(src, dst); errors.Is(err, ErrDeadEnd) {
								broken++
							}
						}
					}
					if broken == 0 || moved < broken {
						t.Errorf("%d pairs went over the link, %d moved", broken, moved)
					}
				}
				sim.ChangeAndWait("ReLink " + uplink)
				compare(t, sim, readFabric(t, sim), all, *pairs/liveAfter, 3)
			})
		}
	}
}

// dial attaches a client to an HCA of a fabric, for the length of the test.
func dial(tb testing.TB, sim *ibtest.Fabric, host string) *ibmad.Client {
	tb.Helper()
	t, err := ibmad.DialIbsim(sim.SocketName(), host)
	if err != nil {
		tb.Fatal(err)
	}
	c := ibmad.NewClient(t, ibmad.Config{})
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// discover reads a running fabric with its tables.
func discover(tb testing.TB, c *ibmad.Client) *Fabric {
	tb.Helper()
	f, found, err := Discover(tb.Context(), c)
	if err != nil || len(found) > 0 || len(f.Unanswered) > 0 {
		tb.Fatal(err, found, f)
	}
	t, err := ReadTables(tb.Context(), c, f)
	if err != nil || len(t.Unanswered) > 0 {
		tb.Fatal(err, t)
	}
	return f.WithTables(t.LFTs)
}

// same returns how two fabrics differ, or "" if they do not: nodes, ports, cables, LIDs, rates and tables.
func same(a, b *Fabric) string {
	if len(a.Nodes) != len(b.Nodes) {
		return fmt.Sprintf("%d and %d nodes", len(a.Nodes), len(b.Nodes))
	}
	for i := range a.Nodes {
		x, y := &a.Nodes[i], &b.Nodes[i]
		if x.GUID != y.GUID || x.Type != y.Type || x.Description != y.Description || x.System != y.System || x.Vendor != y.Vendor || x.Device != y.Device {
			return fmt.Sprintf("%+v and %+v", x, y)
		}
		for p := range max(len(x.Ports), len(y.Ports)) {
			var q, r Port
			if p < len(x.Ports) {
				q = x.Ports[p]
			}
			if p < len(y.Ports) {
				r = y.Ports[p]
			}
			if q.Linked != r.Linked || q.Far != r.Far || q.LID != r.LID || q.LMC != r.LMC || q.Linked && (q.Speed != r.Speed || q.Width != r.Width) {
				return fmt.Sprintf("port %d of %s: %+v and %+v", p, x.Description, q, r)
			}
		}
	}
	for i := range a.LFTs {
		for l := range LID(max(len(a.LFTs[i]), len(b.LFTs[i]))) {
			x, y := uint8(ibmad.NoRoute), uint8(ibmad.NoRoute)
			if int(l) < len(a.LFTs[i]) {
				x = a.LFTs[i][l]
			}
			if int(l) < len(b.LFTs[i]) {
				y = b.LFTs[i][l]
			}
			if x != y {
				return fmt.Sprintf("LID %d at %s: ports %d and %d", l, a.Nodes[i].Description, x, y)
			}
		}
	}
	return ""
}

func TestDiscoverAsDiagnosticsDo(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(6, 3, 4), ibtest.Options{Engine: "ftree", LMC: 1})
	c := dial(t, sim, "h5")
	f := discover(t, c)
	if diff := same(f, readFabric(t, sim)); diff != "" {
		t.Error(diff)
	}
	if got := f.NodeName(f.From.Node); got != "h5/hca" {
		t.Errorf("discovered from %s", got)
	}
	hops, err := f.Walk(f.FirstLID(f.From), f.Nodes[len(f.Nodes)-1].Ports[1].LID)
	if err != nil {
		t.Fatal(err)
	}
	lanes, err := ReadVirtualLanes(t.Context(), c, f, hops, 3)
	if err != nil || len(lanes) != len(hops) {
		t.Fatal(lanes, err)
	}
	sim.ChangeAndWait(`Unlink "leaf1"[5]`)
	if diff := same(discover(t, c), readFabric(t, sim)); diff != "" {
		t.Error(diff)
	}
}

// ring returns four switches in a ring with two cables between the first two, HCAs with two ports on
// neighbouring switches, and one HCA with a single port.
const ring = `
Switch 8 "sw0"
[1] "h0"[1]
[2] "h1"[1]
[3] "h2"[2]
[5] "sw1"[5]
[6] "sw1"[6]
[7] "sw3"[8]

Switch 8 "sw1"
[1] "h0"[2]
[5] "sw0"[5]
[6] "sw0"[6]
[7] "sw2"[8]

Switch 8 "sw2"
[1] "h2"[1]
[8] "sw1"[7]
[7] "sw3"[7]

Switch 8 "sw3"
[1] "h3"[1]
[7] "sw2"[7]
[8] "sw0"[7]

Hca 2 "h0"
[1] "sw0"[1]
[2] "sw1"[1]

Hca 1 "h1"
[1] "sw0"[2]

Hca 2 "h2"
[1] "sw2"[1]
[2] "sw0"[3]

Hca 2 "h3"
[1] "sw3"[1]
`

// Each port of an HCA has LIDs of its own; a port without a cable is absent.
func TestRingOfDualPorts(t *testing.T) {
	sim := ibtest.Start(t, ring, ibtest.Options{LMC: 2})
	f := discover(t, dial(t, sim, "h1"))
	if diff := same(f, readFabric(t, sim)); diff != "" {
		t.Error(diff)
	}
	lids := f.lids()
	if len(lids) != 6*4 || len(f.ListCables()) != 11 {
		t.Errorf("%d LIDs, %d cables", len(lids), len(f.ListCables()))
	}
	compare(t, sim, f, lids, *pairs, 4)
	topo, found := f.BuildTopology()
	if len(found) > 0 {
		t.Error(found)
	}
	var nics []string
	for _, n := range topo.Nodes {
		for _, nic := range n.NICs {
			nics = append(nics, nic.ID())
		}
	}
	if want := []string{"h0/hca", "h0/hca.2", "h1/hca", "h2/hca", "h2/hca.2", "h3/hca"}; !slices.Equal(nics, want) {
		t.Errorf("%q, not %q", nics, want)
	}
	for _, nic := range nics {
		l, err := f.FindLID(nic)
		e, _ := f.ByLID(l)
		if err != nil || f.EndName(e) != nic {
			t.Errorf("%s is LID %d of %s (%v)", nic, l, f.EndName(e), err)
		}
	}
}

// BenchmarkFatTree measures the fat tree of 54 switches and 648 HCAs.
func BenchmarkFatTree(b *testing.B) {
	sim := ibtest.Start(b, ibtest.FatTree(36, 18, 18), ibtest.Options{})
	c := dial(b, sim, "h5")
	var f *Fabric
	b.Run("discover", func(b *testing.B) {
		for b.Loop() {
			var err error
			if f, _, err = Discover(b.Context(), c); err != nil || len(f.Nodes) != 702 {
				b.Fatal(err, len(f.Nodes))
			}
		}
	})
	b.Run("tables", func(b *testing.B) {
		for b.Loop() {
			t, err := ReadTables(b.Context(), c, f)
			if err != nil || len(t.Unanswered) > 0 {
				b.Fatal(err)
			}
			f = f.WithTables(t.LFTs)
		}
	})
	lids := f.lids()
	b.Run("pairs", func(b *testing.B) {
		var hops []Hop
		for b.Loop() {
			n := 0
			for _, src := range lids {
				for _, dst := range lids {
					if src == dst {
						continue
					}
					var err error
					if hops, err = f.AppendWalk(hops[:0], src, dst); err != nil || len(hops) == 0 {
						b.Fatal(err)
					}
					n++
				}
			}
			if n != 419_256 {
				b.Fatal(n)
			}
		}
	})
	b.Logf("%+v", c.Stats())
}
