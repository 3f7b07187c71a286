package triangulate

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// TestCorpus compares what is named in the corpus, what is not, the delays of all links together, and the work that the
// search took; then the same of thin losses and of small shifts, and the costs of flows.
func TestCorpus(t *testing.T) {
	var out strings.Builder
	defer func() { worldtest.CompareCorpus(t, out.String()) }()
	for n := range worldtest.CorpusSize {
		g, windows := worldtest.CorpusCase(t, n)
		e := NewEngine(g)
		for i, obs := range windows[:2] {
			findings := judge.FindingsOf(obs, judge.DefaultParameters())
			describeSearch(&out, e, findings)
			r := e.Run(findings, DefaultParameters())
			fmt.Fprintf(&out, "%d.%d degraded %d unexplained %d", n, i, len(r.Degraded), len(r.Unexplained))
			crossed := 0
			for _, flows := range r.Crossed {
				crossed += flows
			}
			added, unidentifiable := int64(0), 0
			for at, l := range r.Links {
				if added += l.AddedDelayNS * int64(1+at%7); !l.Identifiable {
					unidentifiable++
				}
			}
			fmt.Fprintf(&out, " crossed %d added %d unidentifiable %d\n", crossed, added, unidentifiable)
			for _, s := range r.Suspects {
				fmt.Fprintf(&out, "  %s %s %s %s gain %.2f confidence %.3f delay %d tail %d loss %.4f marks %.3f explained %d contrary %d small %v equivalent", s.Kind, s.Name, s.Direction, s.Class,
					s.Gain, s.Confidence, s.AddedDelayNS, s.TailDelayNS, s.LossRatio, s.ECNRatio, len(s.Explained), len(s.Contrary), s.Small)
				for _, q := range s.Equivalent {
					fmt.Fprintf(&out, " %s", q.Name)
				}
				out.WriteString("\n")
			}
			for _, u := range r.Unnamed {
				fmt.Fprintf(&out, "  unnamed %s %s %s %.3f explained %d equivalent %d rivals %d\n", u.Kind, u.Name, u.Direction, u.Probability, len(u.Explained), len(u.Equivalent), len(u.Rivals))
			}
		}
	}
	describeThinLosses(&out)
	describeShifts(&out)
	describeCosts(&out)
}

// describeSearch writes the evidence that a search begins with, and what it did until it ended.
func describeSearch(out io.Writer, e *Engine, findings []judge.Finding) {
	s := newSearch(e, e.bindFindings(findings, takeSeveralWays(findings)), DefaultParameters())
	var all evidence
	for i, v := range s.evidenceAt {
		weight := float64(1 + i%5)
		all.lost, all.expected, all.late, all.flows = all.lost+weight*v.lost, all.expected+weight*v.expected, all.late+weight*v.late, all.flows+v.flows
	}
	s.addCandidates()
	price := 0.0
	for _, c := range s.cands {
		price += c.price
	}
	s.nameGreedily()
	s.reviseNamed()
	fits, useful, gain, others, cost := 0, 0, 0.0, 0.0, 0.0
	for _, c := range s.cands {
		if fits += c.fitCount; c.fresh && !math.IsInf(c.fit.gain, 0) {
			gain, others, useful = gain+c.fit.gain, others+c.fit.others, useful+c.fit.useful
		}
	}
	for i := range s.flows {
		cost += s.flows[i].cost
	}
	fmt.Fprintf(out, "hop %.3e burst %.3f lost %.1f expected %.3f late %.2f flows %d; candidates %d price %.2f; fits %d gain %.2f others %.2f useful %d; worth %.3f cost %.3f\n",
		s.m.hop, s.m.burst, all.lost, all.expected, all.late, all.flows, len(s.cands), price, fits, gain, others, useful, s.worth, cost)
}

// describeThinLosses writes what is found where links lose little, by single packets and in bursts.
func describeThinLosses(out io.Writer) {
	for n := range 24 {
		rng := rand.New(rand.NewPCG(uint64(n), 3))
		g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 3, NICsPerLeaf: 4}))
		loss := map[fabric.Direction]float64{}
		for _, l := range g.Topo.Links {
			if d := (fabric.Direction{From: l.A, To: l.B}); rng.IntN(12) == 0 {
				loss[d] = []float64{0.003, 0.01, 0.03}[rng.IntN(3)]
			}
		}
		burst := []float64{1, 1, 2, 6}[n%4]
		var obs []*fabric.Observation
		for i, src := range g.NICIDs() {
			for j, dst := range g.NICIDs() {
				if i == j {
					continue
				}
				paths := g.ShortestPaths(src, dst, 8)
				path := paths[rng.IntN(len(paths))]
				o := &fabric.Observation{Edge: fabric.Flow{Src: src, Dst: dst}.String(), Src: src, Dst: dst, Sent: uint64(400 + rng.IntN(800)), Timestamp: "kernel", Path: path, PathState: fabric.PathValid}
				if n%3 == 2 && rng.IntN(3) == 0 {
					o.Path, o.Paths, o.PathState = nil, paths, fabric.PathUnknown
				}
				through := math.Pow(1-1e-4, float64(len(path)+1))
				for _, d := range path.LinkDirections(src, dst) {
					through *= 1 - loss[d]
				}
				for k := uint64(0); k < o.Sent; k++ {
					if rng.Float64() < (1-through)/burst {
						for o.Lost++; o.Lost < o.Sent && rng.Float64() > 1/burst; o.Lost++ {
						}
					}
				}
				obs = append(obs, o)
			}
		}
		e, findings := NewEngine(g), judge.FindingsOf(obs, judge.DefaultParameters())
		fmt.Fprintf(out, "thin %d ", n)
		describeSearch(out, e, findings)
		r := e.Run(findings, DefaultParameters())
		for _, s := range r.Suspects {
			fmt.Fprintf(out, "  %s %s %s gain %.3f confidence %.4f loss %.5f explained %d contrary %d equivalent %d\n", s.Kind, s.Name, s.Direction, s.Gain, s.Confidence, s.LossRatio, len(s.Explained), len(s.Contrary), len(s.Equivalent))
		}
		for _, u := range r.Unnamed {
			fmt.Fprintf(out, "  unnamed %s %s %s %.4f explained %d equivalent %d rivals %d\n", u.Kind, u.Name, u.Direction, u.Probability, len(u.Explained), len(u.Equivalent), len(u.Rivals))
		}
	}
}

// describeShifts writes what is found where a place adds less than a single flow shows.
func describeShifts(out io.Writer) {
	for n := range 60 {
		rng := rand.New(rand.NewPCG(uint64(n), 4))
		g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2 + rng.IntN(3), SpinesPerPod: 2 + rng.IntN(3), NICsPerLeaf: 2 + rng.IntN(2)}))
		l := &g.Topo.Links[rng.IntN(len(g.Topo.Links))]
		for n%10 > 0 && l.IsAccess() {
			l = &g.Topo.Links[rng.IntN(len(g.Topo.Links))]
		}
		place := fabric.Direction{From: l.A, To: l.B}
		by, whole := float64(rng.IntN(12_000)-3000), rng.IntN(4) == 0
		findings := noisyMesh(g, uint64(n), func(_, _ string, crossed []fabric.Direction) float64 {
			for _, d := range crossed {
				if d == place || whole && fabric.OwnerOf(d.From) == fabric.OwnerOf(place.To) {
					return by
				}
			}
			return 0
		})
		stamps := []string{"kernel", "hardware", "user"}[rng.IntN(3)]
		for i := range findings {
			findings[i].Obs.Timestamp = stamps
		}
		e := NewEngine(g)
		s := newSearch(e, e.bindFindings(findings, takeSeveralWays(findings)), DefaultParameters())
		t := s.shiftRows()
		x := t.estimateNICs(nil)
		sigma, _ := t.noiseOf(&x, nil)
		sum := 0.0
		for i, score := range t.scorePlaces(&x, sigma) {
			sum += score * float64(1+i%3)
		}
		best, looked := t.findShift()
		fmt.Fprintf(out, "shift %d rows %d between %d places %d sigma %.2f scores %.3f looked %d\n", n, len(t.rows), t.between, len(t.places), sigma, sum, len(looked))
		for _, c := range looked {
			fmt.Fprintf(out, "  at %d by %.2f error %.3f left %d by NICs %.2f best %v\n", c.at, c.by, c.err, len(c.left), c.byNICs, c == best)
		}
		for _, u := range e.Run(findings, DefaultParameters()).Suspects {
			fmt.Fprintf(out, "  %s %s %s gain %.3f confidence %.5f delay %d explained %d contrary %d equivalent %d\n", u.Kind, u.Name, u.Direction, u.Gain, u.Confidence, u.AddedDelayNS, len(u.Explained), len(u.Contrary), len(u.Equivalent))
		}
	}
}

// describeCosts writes what windows cost under loads, term by term.
func describeCosts(out io.Writer) {
	rng := rand.New(rand.NewPCG(5, 5))
	for n := range 80 {
		m := model{p: DefaultParameters(), hop: 1e-4, burst: []float64{1, 1, 4}[rng.IntN(3)]}
		marks := uint64(rng.IntN(60))
		f := &judge.Finding{Obs: &fabric.Observation{}, HasShift: rng.IntN(8) > 0, Shift: int64(rng.IntN(40_000)) - 5000, Scale: 10_000, HasTail: rng.IntN(4) > 0, TailShift: int64(rng.IntN(90_000)), TailScale: 20_000,
			Jittery: rng.IntN(2) == 0, Marked: rng.IntN(2) == 0, ClockSuspect: rng.IntN(9) == 0}
		if f.Delayed = f.Shift > 12_000; rng.IntN(5) > 0 {
			f.Obs.ECN = &marks
		}
		fl := &flow{finding: f, sent: uint64(rng.IntN(400)), hops: int32(2 + rng.IntN(5)), profile: -1}
		fl.lost = min(fl.sent, uint64(rng.IntN(90)*rng.IntN(2)))
		fl.load = []load{{}, {delay: 4000}, {survive: -0.02}, {tail: 9000, clear: -0.1}}[rng.IntN(4)]
		m.prepareFlow(fl)
		m.updateCost(fl)
		l := load{delay: float64(rng.IntN(30_000)), tail: float64(rng.IntN(60_000)), survive: -0.3 * rng.Float64() * float64(rng.IntN(2)), clear: -0.5 * rng.Float64() * float64(rng.IntN(2)), again: float64(rng.IntN(2) * rng.IntN(20_000))}
		one := &member{share: []float64{1, 0.5, 0.125}[rng.IntN(3)], bothWays: rng.IntN(3) == 0}
		fmt.Fprintf(out, "cost %d base %.6f best %.4f now %.4f; delay %.4f tail %.4f loss %.4f marks %.4f; gain %.4f loss gain %.4f", n, fl.base, fl.best, fl.cost, m.delayCost(fl, l.delay, l.again), m.tailCost(fl, l.tail),
			m.lossCost(fl, l.survive), m.markCost(fl, l.clear), m.memberGain(fl, one, l), m.lossGain(fl, one, l.survive))
		one.crossings = []crossing{{fl.load, 1, 2}, {fl.load.plus(load{delay: 3000}), 2, 1}, {load{}, 0, 1}}
		fmt.Fprintf(out, " by paths %.4f", m.memberGain(fl, one, l))
		if p, ok := fl.healthyProfile(); ok {
			fmt.Fprintf(out, " profile %+v %.4f", p, m.profileGain(fl, one.share, l))
		}
		fmt.Fprintf(out, " for all %v\n", fl.speaksForAll())
	}
}
