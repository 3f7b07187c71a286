package coordinator

import (
	"flag"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	full "github.com/graylink/graylink/internal/schedule/clos"
)

var wholePlan = flag.Bool("plan.whole", false, "TestScaleOfAPlan with 131,072 NICs instead of 32,768")

// TestScaleOfAPlan makes a plan twice, the second time with one node less, and logs the cost. The
// schedule itself belongs to internal/schedule.
func TestScaleOfAPlan(t *testing.T) {
	size := full.FullScale()
	switch {
	case testing.Short():
		size.Pods, size.Planes = 2, 1
	case !*wholePlan:
		size.Pods /= 4
	}
	topo := full.NewTopology(size)
	g := fabric.NewGraph(topo)
	in := planInput{graph: g, present: map[string]bool{}, prefixes: DefaultOptions().AddressPrefixes, reported: map[string]interfaceReport{}, options: schedule.Options{Absent: map[string]bool{}}}
	i := 0
	for _, n := range topo.Nodes {
		in.present[n.Name] = true
		for _, c := range n.NICs {
			i++
			a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			r := in.reported[n.Name]
			r.interfaces = append(r.interfaces, interfaceState{Name: c.Device, Addresses: []netip.Addr{a}})
			in.reported[n.Name] = r
		}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var plans [2]*plan
	for k := range plans {
		if k == 1 {
			delete(in.present, topo.Nodes[0].Name)
			in.options.Absent[topo.Nodes[0].Name] = true
		}
		s, err := schedule.Make(g, in.options)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if plans[k], err = newPlan(in, s, probeSettings{stamp: &agentapi.Stamp{Port: 862, SourcePort: 49152}, authenticated: true}); err != nil {
			t.Fatal(err)
		}
		if k == 0 {
			t.Logf("%d NICs, %d nodes, %d edges: %.1f s beyond the schedule, %d MB held with it", len(s.NICs), len(topo.Nodes), len(s.Edges), time.Since(began).Seconds(), (heap()-before)>>20)
		}
	}
	// Only a node with an edge that appeared or disappeared has another assignment.
	edges, touched := map[schedule.Edge]int{}, map[string]bool{}
	for k, p := range plans {
		for _, e := range p.sched.Edges {
			edges[e] |= 1 << k
		}
	}
	different := 0
	for e, in := range edges {
		if in != 3 {
			different++
			touched[fabric.OwnerOf(plans[0].sched.NICs[e.Src])] = true
			touched[fabric.OwnerOf(plans[0].sched.NICs[e.Dst])] = true
		}
	}
	changed := 0
	for n, h := range plans[1].hash {
		if plans[0].hash[n] == h {
			continue
		}
		changed++
		if !touched[n] {
			t.Fatalf("%s has another assignment, though none of its edges changed", n)
		}
	}
	t.Logf("one node less: %d edges came or went, %d of %d nodes have another assignment", different, changed, len(plans[0].hash))
	if n := plans[0].unaddressed; n != 0 {
		t.Errorf("%d edges without address", n)
	}
}
