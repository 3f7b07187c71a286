package packets

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// spraying returns the network of the largest fabric that sprays: four planes of 64 spines and 32 leaves.
func spraying(seed uint64) *Network {
	return New(clos.NewTopology(clos.Options{Planes: 4, LeavesPerPod: 32, SpinesPerPod: 64, NICsPerLeaf: 8, NICsPerNode: 4, Forwarding: fabric.Spray}), 0.2, seed)
}

// sendSprayed sends packets of one flow, and returns how many entered each switch, and in which order they arrived.
func sendSprayed(t *testing.T, n *Network, packets int) (entered map[string]int, order []int64) {
	t.Helper()
	src := n.g.NICIDs()[0]
	leaf, _ := n.g.LeafOf(src)
	at := slices.IndexFunc(n.g.NICIDs(), func(nic string) bool {
		other, _ := n.g.LeafOf(nic)
		return other != leaf && n.g.PlaneOf(nic) == n.g.PlaneOf(src)
	})
	trail := &Trail{}
	var all []*probe
	for i := range packets {
		p := send(t, n, time.Duration(i)*2*time.Microsecond, src, n.g.NICIDs()[at], 7)
		p.Trail, p.order = trail, &order
		all = append(all, p)
	}
	n.Run(int64(time.Second))
	for _, p := range all {
		if p.came != 1 {
			t.Fatalf("a packet came %d times, and was lost %d times: %v", p.came, p.lost, p.why)
		}
	}
	entered = map[string]int{}
	for _, e := range *trail {
		entered[n.switches[e.Switch].name] += int(e.Count)
	}
	return entered, order
}

func TestPacketsOfOneFlowTakeAllSpines(t *testing.T) {
	const packets, spines = 64 * 200, 64
	n := spraying(1)
	entered, order := sendSprayed(t, n, packets)
	square, crossed := 0.0, 0
	for sw, got := range entered {
		if n.g.SwitchTier(sw) != 2 {
			continue
		}
		crossed++
		d := float64(got) - packets/spines
		square += d * d / (packets / spines)
	}
	// Of 63 degrees of freedom, 130 is exceeded once in a million seeds.
	if crossed != spines || square > 130 {
		t.Errorf("the packets crossed %d of %d spines, chi-square %.1f", crossed, spines, square)
	}
	if slices.IsSorted(order) {
		t.Error("no packet overtook another, although cables have different lengths")
	}
	_, again := sendSprayed(t, spraying(1), packets)
	_, other := sendSprayed(t, spraying(2), packets)
	if !slices.Equal(order, again) || slices.Equal(order, other) {
		t.Errorf("the order of arrival: equal with one seed %t, with another %t", slices.Equal(order, again), slices.Equal(order, other))
	}
}

// TestTracesOfSprayedFlows checks that each hop of a trace is met by another packet.
func TestTracesOfSprayedFlows(t *testing.T) {
	topo := demo(t)
	topo.Forwarding = fabric.Spray
	n := New(topo, 0, 1)
	src, _ := n.NICNumber("h1/eth1")
	dst, _ := n.NICNumber("h3/eth1")
	odd, spines := 0, map[string]bool{}
	for range 64 {
		hops, reached := n.TraceFlow(src, dst, 7)
		if !reached || len(hops) != 3 || hops[0].Switch != "leaf1" || hops[2].Switch != "leaf2" {
			t.Fatalf("%v, reached %t", hops, reached)
		}
		spines[hops[1].Switch] = true
		if fabric.OwnerOf(n.g.PeerOf(hops[2].In)) != hops[1].Switch {
			odd++
		}
	}
	if len(spines) != 2 || odd < 16 || odd > 48 {
		t.Errorf("64 traces met %v, and %d of them joined two spines", spines, odd)
	}
	if err := n.SetLoss("leaf1:up1", 1); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for range 64 {
		if _, reached := n.TraceFlow(src, dst, 7); !reached {
			lost++
		}
	}
	if lost == 0 || lost == 64 {
		t.Errorf("%d of 64 traces ended at a spray of which one port loses everything", lost)
	}
}
