package triangulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// TestRule5LossOfAMixture compares the share that a mixture loses, and the gains of candidates, with sums over the paths of each packet.
func TestRule5LossOfAMixture(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		m := model{p: DefaultParameters(), hop: 1e-4, burst: 1, dispersion: 1}
		n := 2 + rng.IntN(20)
		ps := &paths{weight: make([]float64, n), each: make([][]component, n)}
		total := 0.0
		for i := range ps.each {
			ps.weight[i] = 0.1 + rng.Float64()
			total += ps.weight[i]
			for c := range component(6) {
				if rng.IntN(3) == 0 {
					ps.each[i] = append(ps.each[i], c)
				}
			}
		}
		for i := range ps.weight {
			ps.weight[i] /= total
		}
		fl := &flow{finding: &judge.Finding{Obs: &fabric.Observation{}}, paths: ps, sent: 1000, lost: uint64(rng.IntN(60)), hops: 4, load: load{survive: -0.01}}
		m.prepareFlow(fl)
		loss := map[component]float64{}
		for c := range component(1 + rng.IntN(3)) {
			loss[c] = rng.Float64()
			named := &candidate{anyOf: []component{c}}
			if indices := named.pathsThrough(ps); len(indices) > 0 {
				fl.applyLoad(named, ps.mixtureShare(indices), load{survive: math.Log1p(-loss[c])}, false)
			}
		}
		m.updateCost(fl)
		costOf := func() float64 {
			through := 0.0
			for i, p := range ps.each {
				left := math.Exp(fl.load.survive)
				for _, c := range p {
					left *= 1 - loss[c]
				}
				through += ps.weight[i] * left
			}
			q := 1 - through*math.Exp(-m.hop*4)
			lost, sent := float64(fl.lost), float64(fl.sent)
			best := judge.BinomialLL(fl.lost, fl.sent, lost/sent)
			return min(best-lost*math.Log(q)-(sent-lost)*math.Log1p(-q), m.p.Cap)
		}
		if want := costOf(); math.Abs(fl.cost-want) > 1e-6 {
			t.Errorf("seed %d: the mixture costs %g, its paths %g", seed, fl.cost, want)
		}
		c := &candidate{anyOf: []component{5}}
		share := ps.mixtureShare(c.pathsThrough(ps))
		if share == 0 || loss[5] > 0 {
			continue
		}
		k := &member{share: share, crossings: fl.mixtureWays(c, share)}
		before := costOf()
		loss[5] = 0.2
		want := before - costOf()
		if got := m.memberGain(fl, k, load{survive: math.Log(0.8)}); math.Abs(got-want) > 1e-6 {
			t.Errorf("seed %d: a candidate gains %g, by the paths of packets %g", seed, got, want)
		}
		if got := m.lossGain(fl, k, math.Log(0.8)); math.Abs(got-want) > 1e-6 {
			t.Errorf("seed %d: a candidate's loss gains %g, by the paths of packets %g", seed, got, want)
		}
	}
}

// TestRule5QuantilesOfAMixture: a quantile moves if more than its portion of a window's packets are slow.
func TestRule5QuantilesOfAMixture(t *testing.T) {
	for _, tt := range []struct {
		packets        uint64
		slow, portion  float64
		least, atMost  float64
		whatIsExpected string
	}{
		{1000, 1.0 / 16, 0.01, 0.999999, 1, "one path of 16 moves the 99th percentile"},
		{1000, 1.0 / 16, 0.1, 0, 1e-5, "and not the 90th"},
		{1000, 1.0 / 8, 0.1, 0.99, 1, "one path of 8 moves the 90th percentile"},
		{1000, 1.0 / 8, 0.5, 0, 1e-9, "and not the median"},
		{1000, 0.5, 0.5, 0.45, 0.5, "one path of two moves the median as often as not"},
		{1000, 1.0 / 64, 0.01, 0.9, 0.95, "one path of 64 may not move the 99th percentile"},
		{100, 1.0 / 64, 0.01, 0.46, 0.48, "of 100 packets two have to be slow"},
		{0, 0.5, 0.5, 0, 0, "no packet, no quantile"},
	} {
		if got := exceedProbability(tt.packets, tt.slow, tt.portion); got < tt.least || got > tt.atMost {
			t.Errorf("%s: %g, want %g to %g", tt.whatIsExpected, got, tt.least, tt.atMost)
		}
	}
	// The binomial distribution by its definition.
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 6))
		n, slow, portion := uint64(1+rng.IntN(20_000)), 0.002+0.9*rng.Float64(), []float64{0.01, 0.1, 0.5}[rng.IntN(3)]
		want := 0.0
		all, _ := math.Lgamma(float64(n) + 1)
		for k := uint64(math.Floor(portion*float64(n))) + 1; k <= n; k++ {
			a, _ := math.Lgamma(float64(k) + 1)
			b, _ := math.Lgamma(float64(n-k) + 1)
			want += math.Exp(all - a - b + float64(k)*math.Log(slow) + float64(n-k)*math.Log1p(-slow))
		}
		if got := exceedProbability(n, slow, portion); math.Abs(got-want) > 0.01 {
			t.Errorf("%d packets, %g slow, beyond %g: %g, want %g", n, slow, portion, got, want)
		}
	}
}

// sprayedClos returns a fabric of four leaves of four NICs and some spines.
func sprayedClos(spines int) *fabric.Graph {
	return fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: spines, NICsPerLeaf: 4, NICsPerNode: 1}))
}

// sprayedFindings returns windows of all pairs of NICs. weights are those of the paths between two leaves, nil if all are equal, and loss
// what directed links lose.
func sprayedFindings(g *fabric.Graph, seed uint64, weights func(from, to string) []float64, loss map[fabric.Direction]float64) (out []judge.Finding) {
	rng := rand.New(rand.NewPCG(seed, 7))
	var obs []*fabric.Observation
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			if src == dst {
				continue
			}
			ways := g.ShortestPaths(src, dst, 64)
			o := &fabric.Observation{Edge: fabric.Flow{Src: src, Dst: dst}.String(), Src: src, Dst: dst, Sent: 2000, Timestamp: "kernel"}
			if len(ways) == 1 {
				o.Path, o.PathState = ways[0], fabric.PathValid
			} else {
				o.Paths, o.Sprayed, o.PathState = ways, true, fabric.PathUnknown
				a, _ := g.LeafOf(src)
				b, _ := g.LeafOf(dst)
				o.Weights = weights(a, b)
			}
			total, lost := 0.0, 0.0
			for i, p := range ways {
				w, through := 1.0, 1.0
				if o.Weights != nil {
					w = o.Weights[i]
				}
				for _, d := range p.LinkDirections(src, dst) {
					through *= 1 - loss[d]
				}
				total, lost = total+w, lost+w*(1-through)
			}
			o.Lost = drawBinomial(rng, o.Sent, lost/total)
			obs = append(obs, o)
		}
	}
	return judge.FindingsOf(obs, judge.DefaultParameters())
}

func equalWeights(string, string) []float64 { return nil }

// lossyUplink returns a direction from a leaf up to a spine.
func lossyUplink(g *fabric.Graph) fabric.Direction {
	end := g.Uplinks("a-p1-leaf2")[1]
	return fabric.Direction{From: end, To: g.PeerOf(end)}
}

// TestRule6UplinksOfASprayingLeafAreEquivalents: the same packets cross all of them, whether paths are given, or known from the topology.
func TestRule6UplinksOfASprayingLeafAreEquivalents(t *testing.T) {
	g := sprayedClos(4)
	d := lossyUplink(g)
	for _, given := range []bool{true, false} {
		findings := sprayedFindings(g, 1, equalWeights, map[fabric.Direction]float64{d: 0.05})
		if !given {
			for i := range findings {
				findings[i].Obs.Paths = nil
			}
		}
		r := Run(g, findings, DefaultParameters())
		if len(r.Suspects) != 1 || len(r.Suspects[0].Equivalent) != 3 {
			t.Fatalf("given %v: %q", given, names(r))
		}
		s := r.Suspects[0]
		all := append([]Element{s.Element}, s.Equivalent...)
		for _, end := range g.Uplinks("a-p1-leaf2") {
			up := fabric.Direction{From: end, To: g.PeerOf(end)}
			if !slices.ContainsFunc(all, func(e Element) bool { return e.Kind == fabric.KindLink && e.Direction == up }) {
				t.Errorf("given %v: %s is not listed: %v", given, up, all)
			}
		}
		if s.LossRatio < 0.035 || s.LossRatio > 0.07 || s.LeastShare != 0.25 || s.MostShare != 0.25 || s.Sprayed < 30 {
			t.Errorf("given %v: it loses %g of 1/%g of the packets of %d flows", given, s.LossRatio, 1/s.MostShare, s.Sprayed)
		}
		if n := r.Crossed[d]; n != 48 {
			t.Errorf("given %v: %d flows cross it, want 48", given, n)
		}
	}
}

// TestRule6SharesSeparate: of two uplinks that the same flows cross with other shares, the one at fault is named alone.
func TestRule6SharesSeparate(t *testing.T) {
	g := sprayedClos(2)
	d := lossyUplink(g)
	for seed := range uint64(10) {
		r := Run(g, sprayedFindings(g, seed, func(_, to string) []float64 {
			if to == "a-p1-leaf1" {
				return []float64{9, 1}
			}
			return []float64{1, 9}
		}, map[fabric.Direction]float64{d: 0.1}), DefaultParameters())
		if len(r.Suspects) != 1 || r.Suspects[0].Direction != d || len(r.Suspects[0].Equivalent) != 0 {
			t.Errorf("seed %d: %q, %v", seed, names(r), r.Suspects)
		}
	}
}

// TestRule5SprayedBesideKnownPaths: flows whose path is known say which of the uplinks of a spraying leaf is at fault.
func TestRule5SprayedBesideKnownPaths(t *testing.T) {
	g := sprayedClos(4)
	d := lossyUplink(g)
	for seed := range uint64(10) {
		findings := sprayedFindings(g, seed, equalWeights, map[fabric.Direction]float64{d: 0.1})
		rng := rand.New(rand.NewPCG(seed, 8))
		for i := range findings {
			if f := &findings[i]; i%4 == 0 && f.Obs.Sprayed {
				o := *f.Obs
				o.Sprayed, o.Path, o.Paths, o.PathState = false, o.Paths[rng.IntN(4)], nil, fabric.PathValid
				o.Lost = 0
				if slices.Contains(o.Path.LinkDirections(o.Src, o.Dst), d) {
					o.Lost = drawBinomial(rng, o.Sent, 0.1)
				}
				*f = judge.FindingsOf([]*fabric.Observation{&o}, judge.DefaultParameters())[0]
			}
		}
		r := Run(g, findings, DefaultParameters())
		if len(r.Suspects) != 1 || r.Suspects[0].Direction != d || len(r.Suspects[0].Equivalent) != 0 {
			t.Errorf("seed %d: %q, %v", seed, names(r), r.Suspects)
		}
	}
}

// TestSprayedRunsAreAlike: a second run of an engine, which finds the paths of the first, has the same result, and other weights
// are noticed.
func TestSprayedRunsAreAlike(t *testing.T) {
	g := sprayedClos(2)
	d := lossyUplink(g)
	findings := sprayedFindings(g, 3, func(string, string) []float64 { return []float64{1, 3} }, map[fabric.Direction]float64{d: 0.1})
	e := NewEngine(g)
	first := e.Run(findings, DefaultParameters())
	if again := e.Run(findings, DefaultParameters()); !reflect.DeepEqual(first, again) || len(first.Suspects) != 1 {
		t.Errorf("%v, and then %v", first.Suspects, again.Suspects)
	}
	for i := range findings {
		if o := findings[i].Obs; o.Sprayed {
			o.Weights = []float64{3, 1}
		}
	}
	if other, want := e.Run(findings, DefaultParameters()), Run(g, findings, DefaultParameters()); !reflect.DeepEqual(other, want) || reflect.DeepEqual(other, first) {
		t.Errorf("with other weights %v, want %v", other.Suspects, want.Suspects)
	}
}

// TestRule5APathOfOneIsOrdinary: a flow that is sprayed over one path is as one with that path.
func TestRule5APathOfOneIsOrdinary(t *testing.T) {
	g := sprayedClos(1)
	d := lossyUplink(sprayedClos(2))
	run := func(sprayed bool) string {
		findings := sprayedFindings(g, 4, equalWeights, map[fabric.Direction]float64{{From: d.From[:len(d.From)-1] + "1", To: "a-p1-spine1:dn2"}: 0.1})
		for i := range findings {
			if o := findings[i].Obs; sprayed {
				o.Paths, o.Path, o.Sprayed, o.PathState = []fabric.Path{o.Path}, nil, true, fabric.PathUnknown
			}
		}
		r := Run(g, findings, DefaultParameters())
		return fmt.Sprint(names(r), len(r.Suspects), r.Degraded)
	}
	if a, b := run(true), run(false); a != b {
		t.Errorf("sprayed over one path: %s, on that path: %s", a, b)
	}
}

// BenchmarkSprayed measures an inference over 30,000 flows whose packets take 64 paths each, of 1,024 NICs. One directed link
// loses 5 % of its packets. "first" binds the paths, as a run on a file does; "next" finds those of the run before.
func BenchmarkSprayed(b *testing.B) {
	m := sprayedFabric()
	rng := rand.New(rand.NewPCG(1, 9))
	d := m.drawLink(rng)
	obs := m.observe(&sprayedCase{seconds: 2, background: 1e-4, loss: map[fabric.Direction]float64{d: 0.05}}, rng)
	var sprayed []*fabric.Observation
	for _, o := range obs {
		if o.Sprayed && len(sprayed) < 30_000 {
			o.Paths = m.g.ShortestPaths(o.Src, o.Dst, sprayedSpines)
			sprayed = append(sprayed, o)
		}
	}
	findings := judge.FindingsOf(sprayed, judge.DefaultParameters())
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if r := NewEngine(m.g).Run(findings, DefaultParameters()); len(r.Suspects) != 1 {
				b.Fatalf("%d suspects", len(r.Suspects))
			}
		}
	})
	b.Run("next", func(b *testing.B) {
		e := NewEngine(m.g)
		e.Run(findings, DefaultParameters())
		b.ReportAllocs()
		for b.Loop() {
			e.Run(findings, DefaultParameters())
		}
	})
}
