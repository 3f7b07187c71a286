package plan

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

const c4Dir = "../../deploy/plan/"

// c4Link is the uplink that E4 loses.
const c4Link = "leaf1-left:up1--spine1:dn1"

// c4Network returns the network of the calibration c4.
func c4Network(t testing.TB, exclude ...string) *Network {
	t.Helper()
	topo, found := fabric.LoadTopology(c4Dir + "c4.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	n, err := NewNetwork(fabric.NewGraph(topo), DefaultGoodput)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exclude {
		if err := n.Exclude(e, "test"); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func c4Jobs(t testing.TB, name string) []Job {
	t.Helper()
	f, err := os.Open(c4Dir + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	jobs, err := ParseJobs(name, f)
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

// c4Run returns the outcomes of seeds 1 to seeds.
func c4Run(t *testing.T, seeds int, jobs string, s Simulation, exclude ...string) (out []*Outcome) {
	t.Helper()
	v := newVerifier(t)
	for seed := 1; seed <= seeds; seed++ {
		s.Network, s.Jobs, s.Seed = c4Network(t, exclude...), c4Jobs(t, jobs), uint64(seed)
		if s.Ports == 0 {
			s.Ports = 64
		}
		s.Iterations, s.Steps = max(s.Iterations, 1), 2_000_000
		o, err := s.Run()
		if err != nil {
			t.Fatal(err)
		}
		if s.Policy == Planned {
			v.check(t, fmt.Sprintf("%s, seed %d", jobs, seed), s.Network, o.plan, seed == 1) // the optimum is that of all seeds
		}
		out = append(out, o)
	}
	if v.plans > 0 {
		t.Logf("%s: %s", jobs, v)
	}
	return out
}

// rangeOf returns the number of seeds, the mean of the jobs' rates, and the lowest and highest one.
func rangeOf(all []*Outcome) string {
	least, most := all[0].Min, all[0].Max
	for _, o := range all {
		least, most = min(least, o.Min), max(most, o.Max)
	}
	return fmt.Sprintf("%.1f (%.1f to %.1f, %d seeds)", meanOf(all), least, most, len(all))
}

func meanOf(all []*Outcome) (mean float64) {
	for _, o := range all {
		mean += o.Mean / float64(len(all))
	}
	return mean
}

// TestIdealOfC4 compares the fractional optimum with what cuts of the fabric give.
func TestIdealOfC4(t *testing.T) {
	for _, c := range []struct {
		name, jobs string
		exclude    []string
		want       float64
	}{
		{"E1", "e1.yaml", nil, 362},
		{"E1 of 16 nodes", "e1-128.yaml", nil, 362},
		{"E2", "e2.yaml", nil, 362},
		{"E3", "e3.yaml", []string{"spine5", "spine6", "spine7", "spine8"}, 181},
		{"E4", "e4.yaml", []string{c4Link}, 15 * 724 / 32.0},
	} {
		n, jobs := c4Network(t, c.exclude...), c4Jobs(t, c.jobs)
		conns, err := n.connections(jobs)
		if err != nil {
			t.Fatal(err)
		}
		rates, exact := n.idealRates(conns, demands(jobs))
		if !exact || math.Abs(rates[0]-c.want) > 0.01 {
			t.Errorf("%s: %v (exact %v), want %v", c.name, rates, exact, c.want)
		}
	}
}

// TestShowsOfC4 checks the figures of the calibration on a few seeds; with the tag all, on 20.
func TestShowsOfC4(t *testing.T) {
	before := meanOf(c4Run(t, c4Seeds, "e2.yaml", Simulation{Policy: ECMP}))
	after := c4Run(t, c4Seeds, "e2.yaml", Simulation{Policy: Planned, QPs: 8})
	t.Logf("E2: ecmp %.1f, planned %.1f, gain %.1f %%", before, meanOf(after), 100*(meanOf(after)/before-1))
	if before < 200 || before > 225 {
		t.Errorf("E2: ECMP has a mean of %.1f Gb/s, want 200 to 225", before)
	}
	if gain := meanOf(after)/before - 1; gain < 0.65 {
		t.Errorf("E2: gain %.3f, want 0.65", gain)
	}
	wantRatio(t, "E2", after, 0.98)
	for _, c := range []struct{ share, want float64 }{{0.333, 15.9}, {0.30, 14.1}, {0.021, 0.9}} {
		got := 100 * stepGain(c.share, meanOf(after)/before)
		t.Logf("E5: with %.3f of a step in collectives, %.1f %% more steps", c.share, got)
		if math.Abs(got-c.want) > 0.5 {
			t.Errorf("E5: with %.3f of a step in collectives, %.2f %% more steps, want %.1f", c.share, got, c.want)
		}
	}
	for _, jobs := range []string{"e1.yaml", "e1-64.yaml", "e1-128.yaml"} {
		hashed := c4Run(t, c4Seeds, jobs, Simulation{Policy: ECMP})
		planned := c4Run(t, c4Seeds, jobs, Simulation{Policy: Planned, QPs: 8})
		t.Logf("%s: ecmp %s (%.0f %% off their side), planned %s", jobs, rangeOf(hashed), 100*hashed[0].OffSide, rangeOf(planned))
		if gain := meanOf(planned)/meanOf(hashed) - 1; gain < 0.5 || meanOf(planned) < 0.99*362 {
			t.Errorf("%s: %.1f to %.1f, want a gain of half, to 99 %% of 362", jobs, meanOf(hashed), meanOf(planned))
		}
		for _, o := range hashed {
			if o.OffSide < 0.4 {
				t.Errorf("%s seed %d: ECMP has %.2f of the queue pairs off their side, want above 0.4", jobs, o.Seed, o.OffSide)
			}
		}
	}
	e3 := c4Run(t, c4Seeds, "e3.yaml", Simulation{Policy: Planned, QPs: 8}, "spine5", "spine6", "spine7", "spine8")
	hashed := c4Run(t, c4Seeds, "e3.yaml", Simulation{Policy: ECMP}, "spine5", "spine6", "spine7", "spine8")
	t.Logf("E3: ecmp %s, planned %s", rangeOf(hashed), rangeOf(e3))
	wantRatio(t, "E3", e3, 0.98)
}

// stepGain returns by how much a job is faster if a share of its steps is spent in collectives and these are faster by a factor.
func stepGain(share, factor float64) float64 { return 1/(1-share+share/factor) - 1 }

func wantRatio(t *testing.T, name string, all []*Outcome, want float64) {
	t.Helper()
	for _, o := range all {
		if o.Ratio == nil || *o.Ratio < want {
			t.Errorf("%s seed %d: ratio %v of ideal %v (min %.1f), want %v", name, o.Seed, deref(o.Ratio), deref(o.Ideal), o.Min, want)
		}
	}
}

func deref(p *float64) float64 {
	if p == nil {
		return math.NaN()
	}
	return *p
}

// TestLostLinkOfC4 checks E4: a new plan with 8 queue pairs and with the number chosen, and rebalancing.
func TestLostLinkOfC4(t *testing.T) {
	fixed := c4Run(t, c4Seeds, "e4.yaml", Simulation{Policy: Planned, QPs: 8}, c4Link)
	for _, o := range fixed {
		if o.Min < 304 {
			t.Errorf("seed %d: 8 queue pairs have %.1f Gb/s, want 304", o.Seed, o.Min)
		}
	}
	auto := c4Run(t, c4AutoSeeds, "e4.yaml", Simulation{Policy: Planned, Ports: 128}, c4Link)
	t.Logf("E4: 8 queue pairs %s, auto %s", rangeOf(fixed), rangeOf(auto))
	wantRatio(t, "E4 auto", auto, 0.98)
}

// TestRebalancingOfC4 loses a link in iteration 10 of 410. Rebalancing moves at most 1.5 times as many queue pairs as any method has to, within 30
// iterations, and does nothing after that.
func TestRebalancingOfC4(t *testing.T) {
	for seed := 1; seed <= c4Seeds; seed++ {
		s := Simulation{Network: c4Network(t), Jobs: c4Jobs(t, "e4.yaml"), Policy: Planned, Seed: uint64(seed), Ports: 64, QPs: 8, Iterations: 410, Steps: 2_000_000, Fail: c4Link, FailAt: 10, Rebalance: true}
		c, err := s.catalogue()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Make(&Request{Network: s.Network, Catalogue: c, Jobs: s.Jobs, QPs: s.QPs, Steps: s.Steps})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Network.Exclude(c4Link, "lost"); err != nil {
			t.Fatal(err)
		}
		conns, err := s.Network.connections(s.Jobs)
		if err != nil {
			t.Fatal(err)
		}
		ideal, _ := s.Network.idealRates(conns, demands(s.Jobs))
		a, err := s.rehash(p, c, conns, ideal)
		if err != nil {
			t.Fatal(err)
		}
		rates, _, _ := a.ratesNow(demands(s.Jobs))
		o := &Outcome{}
		after, err := s.afterLoss(o, p, c)
		if err != nil {
			t.Fatal(err)
		}
		(&verifier{}).check(t, fmt.Sprintf("seed %d", seed), s.Network, after, false)
		o.Jobs = after.Jobs
		o.summarize()
		need := a.leastMoves(o.Min)
		t.Logf("seed %d: from %.1f to %.1f Gb/s in %d iterations with %d moves, at least %d are needed", seed, slices.Min(rates), o.Min, *o.ConvergedAfter, o.Moves, need)
		if o.Min < 304 || *o.ConvergedAfter > 30 || 2*o.Moves > 3*need {
			t.Errorf("seed %d: %.1f Gb/s after %d iterations with %d moves, want 304 within 30 with at most 1.5 x %d", seed, o.Min, *o.ConvergedAfter, o.Moves, need)
		}
	}
}

// leastMoves returns a number of queue pairs that have to be moved at least, for all jobs to have a rate. Each is on one link out of a NIC, one up,
// one down and one into a NIC, and may be too many on all four.
func (a *allocation) leastMoves(rate float64) int {
	var many [4]int
	for l, on := range a.on {
		d, kind := a.net.links[l], 0
		switch {
		case fabric.IsNIC(d.from):
		case fabric.IsNIC(d.to):
			kind = 3
		case strings.HasPrefix(d.from, "spine"):
			kind = 2
		default:
			kind = 1
		}
		many[kind] += max(0, len(on)-int(a.capacity[l]/(rate/8)+0.001))
	}
	return slices.Max(many[:])
}

// TestPlanIsTheSame makes a plan twice and compares the octets, also after reading one.
func TestPlanIsTheSame(t *testing.T) {
	var text [2]bytes.Buffer
	for i := range text {
		s := Simulation{Network: c4Network(t), Jobs: c4Jobs(t, "e2.yaml"), Seed: 1, Ports: 64}
		c, err := s.catalogue()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Make(&Request{Network: s.Network, Catalogue: c, Jobs: s.Jobs, QPs: 8})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Write(&text[i]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(text[0].Bytes(), text[1].Bytes()) {
		t.Error("two plans of one input differ")
	}
	p, err := Read(bytes.NewReader(text[0].Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := p.Write(&again); err != nil || !bytes.Equal(again.Bytes(), text[0].Bytes()) {
		t.Errorf("a plan that was read is written otherwise (%v)", err)
	}
}

var update = flag.Bool("update", false, "rewrite the drawing of docs/planner.md")

// TestDrawingOfC4 compares the drawing of E2 with that of the docs.
func TestDrawingOfC4(t *testing.T) {
	const file = "../../docs/planner-e2.svg"
	s := Simulation{Network: c4Network(t), Jobs: c4Jobs(t, "e2.yaml"), Seed: 1, Ports: 64}
	c, err := s.catalogue()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Make(&Request{Network: s.Network, Catalogue: c, Jobs: s.Jobs, QPs: 8})
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := (&Drawing{Network: s.Network, Catalogue: c, Jobs: s.Jobs, Plan: p, Seed: 1}).WriteSVG(&got); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the drawing is not %s (%v): run go test ./internal/plan -run Drawing -update", file, err)
	}
}
