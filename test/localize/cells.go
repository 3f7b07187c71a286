package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sim/incident"
)

// cell represents a kind of cases, and the contestants that run on them.
type cell struct {
	name        string
	topo        func() *fabric.Topology
	make        func(f *incident.Fabric, seed uint64) *incident.Case
	contestants []contestant
}

// fatTree returns a k-ary fat tree with 3k/2 hosts per leaf, as in the published comparisons: k pods of k/2 leaves
// and k/2 spines, (k/2)^2 cores.
func fatTree(k int) func() *fabric.Topology {
	return func() *fabric.Topology {
		return clos.NewTopology(clos.Options{Tiers: 3, Pods: k, LeavesPerPod: k / 2, SpinesPerPod: k / 2, CoresPerRow: k / 2, NICsPerLeaf: 3 * k / 2})
	}
}

// railClos returns a rail-optimised Clos of four planes: 64 nodes of eight NICs.
func railClos() *fabric.Topology {
	return clos.NewTopology(clos.Options{Planes: 4, LeavesPerPod: 8, SpinesPerPod: 4, NICsPerLeaf: 16, NICsPerNode: 8, RailOptimised: true})
}

// twoPlanes returns two planes of six leaves and four spines, 48 nodes of two NICs.
func twoPlanes() *fabric.Topology {
	return clos.NewTopology(clos.Options{Planes: 2, LeavesPerPod: 6, SpinesPerPod: 4, NICsPerLeaf: 8, NICsPerNode: 2})
}

// threeTiers returns three tiers: four pods of four leaves and four spines, 16 cores.
func threeTiers() *fabric.Topology {
	return clos.NewTopology(clos.Options{Tiers: 3, Pods: 4, LeavesPerPod: 4, SpinesPerPod: 4, CoresPerRow: 4, NICsPerLeaf: 6})
}

// notKnown are the ways in which paths are not known.
var notKnown = []incident.Knowledge{incident.LossyTraced, incident.Half, incident.SetsOnly, incident.Unknown, incident.Stale}

// allCells returns all cells. How their names are made is in docs/localization.md.
func allCells() []cell {
	var out []cell
	out = append(out, dropCells("thin", incident.ThinDrops)...)
	out = append(out, dropCells("probe", incident.ProbeDrops)...)
	out = append(out, scenarioCells()...)
	out = append(out, floorCells()...)
	for _, n := range []int{1, 4} {
		out = append(out, cell{fmt.Sprintf("tomography-%d", n), twoPlanes, incident.Scenario{Several: n}.MakeCase, []contestant{{name: "graylink", run: estimateDelays}}})
	}
	out = append(out, dragonflyCells()...)
	return append(out, scaleCells()...)
}

func dropCells(kind string, o func(incident.Knowledge) incident.Drops) []cell {
	var out []cell
	add := func(topo func() *fabric.Topology, o incident.Drops, name string, args ...any) {
		who := methods
		if o.Know == incident.Known && o.MostFaults > 0 {
			who = append(slices.Clone(methods), contestant{name: "oracle", runWithTruth: runOracle}, contestant{name: "unnamed", run: claimUnnamed})
		}
		out = append(out, cell{kind + "-" + fmt.Sprintf(name, args...), topo, o.MakeCase, who})
	}
	for _, k := range []int{10, 14} {
		for _, know := range append([]incident.Knowledge{incident.Known}, notKnown...) {
			add(fatTree(k), o(know), "k%d-%s", k, know)
		}
		for _, know := range []incident.Knowledge{incident.Known, incident.LossyTraced} {
			clean := o(know)
			clean.MostFaults = 0
			add(fatTree(k), clean, "k%d-none-%s", k, know)
		}
	}
	add(railClos, o(incident.Known), "rail-known")
	for _, mean := range []float64{3, 10} {
		bursts := o(incident.Known)
		bursts.Burst = mean
		add(fatTree(10), bursts, "k10-bursts%.0f", mean)
	}
	return out
}

func scenarioCells() []cell {
	var out []cell
	add := func(topo func() *fabric.Topology, o incident.Scenario, name string, args ...any) {
		out = append(out, cell{"scenario-" + fmt.Sprintf(name, args...), topo, o.MakeCase, []contestant{{name: "graylink", run: runVerdicts}}})
	}
	for _, in := range []struct {
		name string
		topo func() *fabric.Topology
	}{{"duo", twoPlanes}, {"pods", threeTiers}, {"rail", railClos}} {
		for _, s := range incident.AllScenarios() {
			if in.name == "pods" && s == fabric.Host {
				continue // its nodes have one NIC each
			}
			add(in.topo, incident.Scenario{ID: s}, "%s-%s", in.name, s)
		}
		add(in.topo, incident.Scenario{Several: 4}, "%s-several", in.name)
		add(in.topo, incident.Scenario{}, "%s-none", in.name)
		for n := 2; n <= incident.MaxMixed; n++ {
			add(in.topo, incident.Scenario{Mixed: n}, "%s-mixed%d", in.name, n)
		}
	}
	for _, s := range append(incident.AllScenarios(), "") {
		name := s
		if s == "" {
			name = none
		}
		for _, know := range notKnown {
			add(twoPlanes, incident.Scenario{ID: s, Know: know}, "%s-%s", know, name)
		}
		add(twoPlanes, incident.Scenario{ID: s, CrossTraffic: true}, "cross-%s", name)
		add(twoPlanes, incident.Scenario{ID: s, Hardware: true}, "hardware-%s", name)
		add(twoPlanes, incident.Scenario{ID: s, Marked: 1}, "marked-%s", name)
		add(twoPlanes, incident.Scenario{ID: s, Marked: 3}, "marked3-%s", name)
		add(twoPlanes, incident.Scenario{ID: s, Classes: true}, "classes-%s", name)
	}
	return out
}

// floorCells returns cells with a fault of one link of one size, 1,000 probes per flow and window.
func floorCells() []cell {
	var out []cell
	add := func(name string, o incident.Scenario) {
		o.ID, o.Windows, o.Probes = fabric.Corridor, 5, 1000
		out = append(out, cell{"floor-" + name, twoPlanes, o.MakeCase, []contestant{{name: "graylink", run: runVerdicts}}})
	}
	delay := func(clock string, hardware bool, by ...time.Duration) {
		for _, d := range by {
			add(fmt.Sprintf("%s-%s", clock, strings.Replace(d.String(), "µ", "u", 1)), incident.Scenario{Variant: "link-delay", Hardware: hardware, Delay: [2]time.Duration{d, d}})
		}
	}
	us := time.Microsecond
	delay("kernel", false, 5*us, 10*us, 15*us, 20*us, 30*us, 40*us, 60*us)
	delay("hardware", true, us/2, us, 2*us, 3*us, 5*us, 10*us, 20*us)
	for _, d := range []time.Duration{3 * us, 5 * us, 8 * us, 12 * us, 20 * us} {
		o := incident.Scenario{Variant: "link-delay", Quiet: true, Delay: [2]time.Duration{d, d}}
		add(fmt.Sprintf("quiet-%dus", d/us), o)
		o.Bursts = true
		add(fmt.Sprintf("bursts-%dus", d/us), o)
	}
	for _, q := range []float64{0.001, 0.002, 0.003, 0.005, 0.01, 0.02} {
		add(fmt.Sprintf("loss-%g%%", q*100), incident.Scenario{Variant: "link-loss", Loss: [2]float64{q, q}})
	}
	for _, healthy := range []struct {
		name string
		incident.Scenario
	}{{"quiet", incident.Scenario{Quiet: true}}, {"bursts", incident.Scenario{Quiet: true, Bursts: true}}, {"kernel", incident.Scenario{}}, {"hardware", incident.Scenario{Hardware: true}}} {
		o := healthy.Scenario
		o.Windows, o.Probes = 5, 1000
		out = append(out, cell{"floor-none-" + healthy.name, twoPlanes, o.MakeCase, []contestant{{name: "graylink", run: runVerdicts}}})
	}
	return out
}

// scaleCells returns fabrics of growing size with eight faults, half of them delays. They show the cost of one cycle
// of inference.
func scaleCells() []cell {
	var out []cell
	for _, s := range []struct {
		name  string
		flows int
		o     clos.Options
	}{
		{"1k", 32, clos.Options{LeavesPerPod: 4, SpinesPerPod: 4, NICsPerLeaf: 8}},
		{"10k", 40, clos.Options{LeavesPerPod: 16, SpinesPerPod: 8, NICsPerLeaf: 16}},
		{"30k", 17, clos.Options{LeavesPerPod: 40, SpinesPerPod: 20, NICsPerLeaf: 45}},
		{"100k", 25, clos.Options{Tiers: 3, Planes: 4, Pods: 4, LeavesPerPod: 16, SpinesPerPod: 16, CoresPerRow: 16, NICsPerLeaf: 16, NICsPerNode: 8, RailOptimised: true}},
		{"300k", 18, clos.Options{Tiers: 3, Planes: 4, Pods: 8, LeavesPerPod: 16, SpinesPerPod: 16, CoresPerRow: 16, NICsPerLeaf: 32, NICsPerNode: 8, RailOptimised: true}},
		{"1m", 31, clos.Options{Tiers: 3, Planes: 4, Pods: 8, LeavesPerPod: 32, SpinesPerPod: 32, CoresPerRow: 32, NICsPerLeaf: 32, NICsPerNode: 8, RailOptimised: true}},
	} {
		o := incident.Drops{Know: incident.Known, FlowsPerNIC: s.flows, Packets: 1000, LeastFaults: 8, MostFaults: 8, Least: 0.002, Most: 0.02, Background: 1e-4, Delays: true}
		out = append(out, cell{"scale-" + s.name, func() *fabric.Topology { return clos.NewTopology(s.o) }, o.MakeCase, []contestant{{name: "graylink", run: runCycle}}})
	}
	return out
}
