package triangulate

import (
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sim/incident"
)

// BenchmarkRun measures an inference over 30,000 flows on 2,500 directed links, up to eight of
// which drop packets silently.
func BenchmarkRun(b *testing.B) {
	f := incident.NewFabric(clos.NewTopology(clos.Options{Tiers: 3, Pods: 10, LeavesPerPod: 5, SpinesPerPod: 5, CoresPerRow: 5, NICsPerLeaf: 15}))
	for _, k := range []struct {
		name  string
		drops incident.Drops
	}{
		{"thin/known", incident.ThinDrops(incident.Known)}, {"thin/half", incident.ThinDrops(incident.Half)}, {"thin/lossy-traced", incident.ThinDrops(incident.LossyTraced)},
		{"probes/known", incident.ProbeDrops(incident.Known)}, {"probes/lossy-traced", incident.ProbeDrops(incident.LossyTraced)},
	} {
		b.Run(k.name, func(b *testing.B) {
			c := k.drops.MakeCase(f, 13)
			findings := judge.FindingsOf(c.Observations, judge.DefaultParameters())
			e := NewEngine(fabric.NewGraph(c.Topology))
			b.ReportAllocs()
			for b.Loop() {
				e.Run(findings, DefaultParameters())
			}
		})
	}
}

// BenchmarkCycle measures the work of a loop once a second with a million flows on 98,304 links,
// up to eight of which drop packets silently: judging and inference, the paths being
// those of the cycle before.
func BenchmarkCycle(b *testing.B) {
	o := clos.FullScale()
	o.Planes, o.NICsPerNode = 1, 2
	f := incident.NewFabric(clos.NewTopology(o))
	d := incident.ProbeDrops(incident.Known)
	d.FlowsPerNIC = 31
	c := d.MakeCase(f, 13)
	e := NewEngine(f.Graph)
	e.Run(judge.FindingsOf(c.Observations, judge.DefaultParameters()), DefaultParameters())
	b.ReportAllocs()
	for b.Loop() {
		r := e.Run(judge.FindingsOf(c.Observations, judge.DefaultParameters()), DefaultParameters())
		b.ReportMetric(float64(len(r.Suspects)), "named")
	}
	b.ReportMetric(float64(len(c.Truth.Faults)), "broken")
	b.ReportMetric(float64(len(c.Observations)), "flows")
}
