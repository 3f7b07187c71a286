package schedule_test

import (
	"runtime"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// TestScale checks the guarantees of the package at 131,072 NICs, three tiers, four planes.
func TestScale(t *testing.T) {
	if testing.Short() {
		t.Skip("schedules 131,072 NICs; takes about ten seconds")
	}
	g := fabric.NewGraph(clos.NewTopology(clos.FullScale()))
	s, err := schedule.Make(g, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.NICs) != 131072 || len(s.Components) != 4 {
		t.Fatalf("%d NICs in %d components", len(s.NICs), len(s.Components))
	}
	out, in := make([]int, len(s.NICs)), make([]int, len(s.NICs))
	outAcross, inAcross := make([]int, len(s.NICs)), make([]int, len(s.NICs))
	rate := map[string]float64{}
	for i, e := range s.Edges {
		if i == 0 || s.Edges[i-1].Src != e.Src || s.Edges[i-1].Dst != e.Dst {
			out[e.Src]++
			in[e.Dst]++
			if e.Tier > 1 {
				outAcross[e.Src]++
				inAcross[e.Dst]++
			}
		}
		a, b := g.NIC(s.NICs[e.Src]), g.NIC(s.NICs[e.Dst])
		if a.Node == b.Node || a.Plane != b.Plane {
			t.Fatalf("%s", s.FlowID(e))
		}
		rate[a.Node] += 1 / e.Cadence.Seconds()
	}
	mostOut, mostIn := 0, 0
	for i := range s.NICs {
		mostOut, mostIn = max(mostOut, out[i]), max(mostIn, in[i])
		if out[i] < 3 || in[i] < 3 || outAcross[i] < 1 || inAcross[i] < 1 {
			t.Fatalf("%s probes %d peers, is probed by %d; across leaves %d and %d", s.NICs[i], out[i], in[i], outAcross[i], inAcross[i])
		}
	}
	if mostOut > 16 || mostIn > 16 {
		t.Errorf("fan-out %d, fan-in %d", mostOut, mostIn)
	}
	mostRate := 0.0
	for node, r := range rate {
		if mostRate = max(mostRate, r); r > 10000 {
			t.Fatalf("%s sends %.0f probes/s", node, r)
		}
	}
	cov := s.ExpectedFlows(g)
	for _, tf := range cov.Tiers {
		t.Logf("tier %d: %d directed links, expected flows at least %.2f, on average %.2f", tf.Tier, tf.Links, tf.Min, tf.Mean)
		if tf.Min < 22 && tf.Tier > 1 || tf.Empty > 0 {
			t.Errorf("%+v", tf)
		}
	}
	if cov.Gap > 0.01 {
		t.Errorf("the odds of any gap are %g", cov.Gap)
	}
	t.Logf("%d edges, fan-out at most %d, fan-in at most %d, at most %.0f probes/s a node, odds of any gap %.1e; %q", len(s.Edges), mostOut, mostIn, mostRate, cov.Gap, s.Findings)
}

// TestScaleDamaged checks that with a twentieth of the nodes silent every link still has its flows.
func TestScaleDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("schedules 16,384 NICs with lacks to fill")
	}
	o := clos.FullScale()
	o.Planes, o.Pods, o.NICsPerNode = 1, 16, 2
	topo := clos.NewTopology(o)
	absent := map[string]bool{}
	for i := range topo.Nodes {
		if i%20 == 7 {
			absent[topo.Nodes[i].Name] = true
		}
	}
	g := fabric.NewGraph(topo)
	s, err := schedule.Make(g, schedule.Options{Absent: absent})
	if err != nil {
		t.Fatal(err)
	}
	for _, tf := range s.ExpectedFlows(g).Tiers {
		t.Logf("%+v", tf)
		if tf.Tier > 1 && tf.Min < 22-1e-6 {
			t.Errorf("%+v", tf)
		}
	}
	t.Logf("%d edges; %q", len(s.Edges), s.Findings)
}

func benchmarkMake(b *testing.B, o clos.Options) {
	g := fabric.NewGraph(clos.NewTopology(o))
	var s *schedule.Schedule
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if s, err = schedule.Make(g, schedule.Options{}); err != nil {
			b.Fatal(err)
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/(1<<20), "MB-from-OS")
	b.ReportMetric(float64(len(s.Edges)), "edges")
	least := 0.0
	for _, tf := range s.ExpectedFlows(g).Tiers {
		if tf.Tier == 2 || tf.Tier > 2 && tf.Min < least {
			least = tf.Min
		}
	}
	b.ReportMetric(least, "min-flows")
}

func BenchmarkMake131072(b *testing.B) { benchmarkMake(b, clos.FullScale()) }

func BenchmarkMake2048(b *testing.B) {
	benchmarkMake(b, clos.Options{Tiers: 2, LeavesPerPod: 64, SpinesPerPod: 32, NICsPerLeaf: 32, NICsPerNode: 8})
}

func BenchmarkExpected131072(b *testing.B) {
	g := fabric.NewGraph(clos.NewTopology(clos.FullScale()))
	s, err := schedule.Make(g, schedule.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.ExpectedFlows(g)
	}
}

func BenchmarkNewGraph131072(b *testing.B) {
	topo := clos.NewTopology(clos.FullScale())
	for b.Loop() {
		fabric.NewGraph(topo)
	}
}
