package classify

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// TestCorpus compares the verdicts on the corpus, with their words; then verdicts on suspects, histories and clocks that
// are drawn.
func TestCorpus(t *testing.T) {
	var out strings.Builder
	defer func() { worldtest.CompareCorpus(t, out.String()) }()
	for n := range worldtest.CorpusSize {
		g, windows := worldtest.CorpusCase(t, n)
		e, history := triangulate.NewEngine(g), NewHistory(2*time.Second)
		for i, obs := range windows {
			findings := judge.FindingsOf(obs, judge.DefaultParameters())
			history.AddMoment(findings)
			scene := &Scene{Graph: g, Findings: findings, History: history, First: obs[0].Start}
			verdicts := scene.VerdictsFor(e.Run(findings, triangulate.DefaultParameters()).Suspects)
			for _, v := range append(verdicts, scene.StarvedHostVerdicts(verdicts)...) {
				fmt.Fprintf(&out, "%d.%d %s %s %s %s %s tier %d class %q %+v %v %v %+v\n    %s\n    %s\n", n, i, v.Kind, v.Element.ID, v.Direction, v.Scenario, v.Severity, v.Tier, v.Class, v.Evidence, v.Causes,
					v.Equivalent, v.BlastRadius, v.Summary, v.Action)
			}
		}
	}
	for n := range 150 {
		fmt.Fprintf(&out, "drawn %d\n", n)
		describeDrawnScene(&out, rand.New(rand.NewPCG(uint64(n), 6)))
	}
	describeHistories(&out)
	describeClocks(&out)
}

// describeDrawnScene draws findings, a history of them, and suspects, and writes the verdicts. Many of the suspects share a
// switch or a node.
func describeDrawnScene(out io.Writer, rng *rand.Rand) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2 + rng.IntN(2), SpinesPerPod: 1 + rng.IntN(3), NICsPerLeaf: 4, NICsPerNode: 1 + rng.IntN(2)}))
	c := &Scene{Graph: g, History: NewHistory(2 * time.Second), First: time.Unix(1000, 0).UTC()}
	classes := []string{"", "tc3"}[:1+rng.IntN(2)]
	starved := fabric.OwnerOf(g.NICIDs()[rng.IntN(len(g.NICIDs()))])
	if rng.IntN(3) > 0 {
		starved = ""
	}
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			if fabric.OwnerOf(src) == fabric.OwnerOf(dst) || rng.IntN(4) == 0 {
				continue
			}
			paths := g.ShortestPaths(src, dst, 4)
			f := judge.Finding{Flow: fabric.Flow{Src: src, Dst: dst, Number: rng.IntN(2), Reply: rng.IntN(3) == 0}, Condition: judge.Healthy, HasShift: true, Shift: int64(rng.IntN(90_000)), Scale: 10_000}
			f.Obs = &fabric.Observation{Sent: 200, Class: classes[rng.IntN(len(classes))], Path: paths[rng.IntN(len(paths))]}
			if src, dst := f.Flow.Endpoints(); f.Flow.Reply {
				paths = g.ShortestPaths(src, dst, 4)
				f.Obs.Path = paths[rng.IntN(len(paths))]
			}
			if rng.IntN(3) == 0 {
				f.Condition, f.Delayed = judge.Degraded, rng.IntN(3) > 0
				f.Obs.Lost = uint64(rng.IntN(120) * rng.IntN(2))
			}
			if fabric.OwnerOf(src) == starved || fabric.OwnerOf(dst) == starved {
				f.HostSuspect, f.Condition = rng.IntN(8) > 0, judge.Undecided
				f.Obs.Lost = uint64(rng.IntN(30) * rng.IntN(2))
			}
			c.Findings = append(c.Findings, f)
			c.History.flows[f.Flow] = &flowHistory{last: 20}
		}
	}
	c.History.moments = 20
	c.History.starved[starved] = mask(rng.Uint64()) & (1<<20 - 1)
	suspects := drawSuspects(rng, g, c)
	verdicts := c.VerdictsFor(suspects)
	for _, v := range append(verdicts, c.StarvedHostVerdicts(verdicts)...) {
		fmt.Fprintf(out, "  %s %s %s %s %s confidence %.3f %+v tier %d class %q %+v %v %v %+v\n    %s\n", v.Kind, v.Element.ID, v.Direction, v.Scenario, v.Severity, v.Confidence, v.Symptom, v.Tier, v.Class, v.Evidence, v.Causes,
			v.Equivalent, v.BlastRadius, v.Summary)
	}
}

// drawSuspects draws up to five suspects, most of them at one place, and what happened to their flows before.
func drawSuspects(rng *rand.Rand, g *fabric.Graph, c *Scene) (out []triangulate.Suspect) {
	sw := g.Topo.Switches[rng.IntN(len(g.Topo.Switches))].Name
	var near []fabric.Direction
	for _, l := range g.Topo.Links {
		d := fabric.Direction{From: l.A, To: l.B}
		if rng.IntN(2) == 0 {
			d = d.Reverse()
		}
		if fabric.OwnerOf(l.A) == sw || fabric.OwnerOf(l.B) == sw || rng.IntN(12) == 0 {
			near = append(near, d)
		}
	}
	loss := []float64{0, 0, 0.02, 0.3, 0.7, 1}[rng.IntN(6)]
	kind := rng.IntN(10)
	outages, quiet := mask(rng.Uint64()&rng.Uint64()), mask(rng.Uint64())
	for range 1 + rng.IntN(len(near)+1) {
		d := near[rng.IntN(len(near))]
		s := triangulate.Suspect{Element: triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}, Gain: 20 * rng.Float64(), Confidence: rng.Float64(), LossRatio: loss}
		if fabric.IsNIC(d.From) || fabric.IsNIC(d.To) {
			s.Kind, s.Name = fabric.KindNIC, d.To
			if fabric.IsNIC(d.From) {
				s.Name = d.From
			}
		}
		switch kind {
		case 0:
			s.Element = triangulate.Element{Kind: fabric.KindSwitch, Name: sw}
		case 1:
			if g.SwitchTier(sw) == 1 {
				s.Element = triangulate.Element{Kind: fabric.KindLeafUplinks, Name: sw}
			}
		case 2:
			nics := g.NICIDs()
			s.Element = triangulate.Element{Kind: fabric.KindHost, Name: fabric.OwnerOf(nics[rng.IntN(len(nics))])}
		case 3:
			if !fabric.IsNIC(d.From) {
				s.Element = triangulate.Element{Kind: fabric.KindQueue, Name: d.From + "@tc3", Direction: d, Class: "tc3"}
			}
		}
		if kind = rng.IntN(14); rng.IntN(3) == 0 {
			s.Direction = fabric.Direction{}
		}
		if rng.IntN(2) == 0 {
			s.AddedDelayNS, s.TailDelayNS = rng.Int64N(500_000), rng.Int64N(300_000)*rng.Int64N(2)
		}
		if rng.IntN(4) == 0 {
			s.ECNRatio = 0.3 * rng.Float64()
		}
		s.Small = rng.IntN(12) == 0
		for i := range c.Findings {
			f := &c.Findings[i]
			src, dst := f.Flow.Endpoints()
			crosses := s.Named().CrossedBy(f.Obs.Path, src, dst)
			if s.OneWay() {
				crosses = slices.Contains(f.Obs.Path.LinkDirections(src, dst), s.Direction)
			}
			if !crosses {
				continue
			}
			if f.Condition == judge.Degraded || rng.IntN(9) == 0 {
				s.Explained = append(s.Explained, i)
				h := c.History.flows[f.Flow]
				h.outage, h.hard, h.bad, h.decided = outages, outages&quiet, outages|mask(rng.Uint64()&rng.Uint64()&rng.Uint64()), ^mask(0)
				h.clean, h.lossless, h.rerouted = ^outages, ^outages&quiet, mask(rng.Uint64()&rng.Uint64()&rng.Uint64())
			} else if f.Condition == judge.Healthy {
				s.Contrary = append(s.Contrary, i)
			}
		}
		if len(s.Explained) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// describeHistories writes what is made of moments that are drawn.
func describeHistories(out io.Writer) {
	rng := rand.New(rand.NewPCG(7, 7))
	sparse := func(n int) (m mask) {
		for m = ^mask(0); n > 0; n-- {
			m &= mask(rng.Uint64())
		}
		return m
	}
	for n := range 200 {
		bad := sparse(1 + rng.IntN(4))
		goingOn, good := sparse(2), sparse(rng.IntN(3))&^bad
		fmt.Fprintf(out, "recurrence %d %+v\n", n, recurrenceOf(bad, goingOn, good, good))
	}
	for n := range 100 {
		h := NewHistory(2 * time.Second)
		flows := flowsUpTo(3 + rng.IntN(6))
		h.moments = 40 + rng.IntN(10)
		for _, f := range flows {
			h.flows[f] = &flowHistory{last: h.moments - rng.IntN(3), decided: sparse(rng.IntN(2)), bad: sparse(rng.IntN(4)), outage: sparse(2 + rng.IntN(4)), hard: sparse(3 + rng.IntN(3)), rerouted: sparse(4), clean: sparse(1), lossless: sparse(1)}
		}
		half := len(flows) / 2
		s, moments, alone := h.badTogether([][]fabric.Flow{flows[:half], flows[half:]})
		again, yes := h.comesAndGoes(append(flows, fabric.Flow{Src: "z/e", Dst: "a/e"}))
		fmt.Fprintf(out, "history %d together %+v %d alone %d; comes and goes %+v %v\n", n, s, moments, alone, again, yes)
	}
	// Windows around every limit.
	h := NewHistory(time.Second)
	flow := fabric.Flow{Src: "a/e", Dst: "b/e"}
	path := func(spine string) fabric.Path {
		return fabric.Path{{Switch: "l1", In: "1", Out: "2"}, {Switch: spine, In: "1", Out: "2"}, {Switch: "l2", In: "1", Out: "2"}}
	}
	for n := range 120 {
		f := judge.Finding{Flow: flow, Condition: judge.Condition(rng.IntN(3)), HostSuspect: rng.IntN(9) == 0, Obs: &fabric.Observation{Sent: []uint64{0, 5, 7, 8, 49, 50, 200}[rng.IntN(7)]}}
		f.Obs.Lost = min(f.Obs.Sent, []uint64{0, 0, 1, 2, 3, 4, 5, 20, 24, 25, 100}[rng.IntN(11)])
		if rng.IntN(3) == 0 {
			f.Obs.LastSecond = &fabric.Count{Sent: 100, Lost: []uint64{0, 9, 10, 49, 50}[rng.IntN(5)]}
		}
		if rng.IntN(3) > 0 {
			f.Obs.Path = path([]string{"s1", "s2"}[rng.IntN(2)])
		}
		h.AddMoment([]judge.Finding{f})
		p := h.flows[flow]
		fmt.Fprintf(out, "window %d decided %x bad %x outage %x hard %x clean %x lossless %x rerouted %x\n", n, p.decided, p.bad, p.outage, p.hard, p.clean, p.lossless, p.rerouted)
	}
	for range Depth + 8 {
		h.AddMoment(nil)
	}
	fmt.Fprintf(out, "%d flows after %d moments\n", len(h.flows), h.moments)
}

// describeClocks writes the verdicts on clocks.
func describeClocks(out io.Writer) {
	rng := rand.New(rand.NewPCG(8, 8))
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 2, NICsPerLeaf: 2}))
	findings := make([]judge.Finding, 12)
	for i, f := range flowsUpTo(12) {
		findings[i].Flow = f
	}
	for range 60 {
		s := clocks.Suspect{NIC: g.NICIDs()[rng.IntN(4)], Peers: rng.IntN(12), Contrary: rng.IntN(5), Counted: rng.IntN(2) == 0, Stepped: rng.IntN(2) == 0}
		if offset := rng.Int64N(20_000_000) - 10_000_000; rng.IntN(4) > 0 {
			offset >>= rng.IntN(20)
			s.Offset = &offset
		}
		if s.Drifts = rng.IntN(3) == 0; rng.IntN(3) > 0 {
			rate := 40e-6 * (rng.Float64() - 0.5)
			s.Rate = &rate
		}
		for i := range rng.IntN(4) {
			s.Explained = append(s.Explained, 3*i)
		}
		v := ClockVerdict(g, s, findings, time.Unix(1000, 0).UTC())
		fmt.Fprintf(out, "clock %s %s confidence %.3f %+v %+v %q %s %v\n", v.Element.ID, v.Severity, v.Confidence, v.Evidence, v.BlastRadius, v.Plane, v.Summary, v.Edges)
	}
}
