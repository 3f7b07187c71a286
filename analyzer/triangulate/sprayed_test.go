package triangulate

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
)

var (
	sprayedCases = flag.Int("sprayed.seeds", 0, "number of seeds of each simulated fault of a sprayed fabric; 0 for few, or 100 with the tag all")
	sprayedFirst = flag.Uint64("sprayed.first", 1, "first seed")
)

// The simulated fabric: 64 spines, 32 leaves of 32 NICs. The mesh is the schedule's with its defaults, 23,805 flows of 100 probes
// a second: each NIC sends 2,325 probes a second and as many replies, 4,450 of these 4,650 packets to another leaf. So 142,000
// packets a second leave a leaf by its 64 uplinks, 2,225 by each in either direction. Every packet takes a spine by lot.
const (
	sprayedSpines, sprayedLeaves, sprayedNICs = 64, 32, 32
	// owdBase and owdNoise are the constant part of a delay and the median of its log-normal part, ns; owdSigma is the latter's width.
	// One packet in owdLate is late by owdInterrupt.
	owdBase, owdNoise, owdSigma = 10_000, 4_000, 0.5
	owdLate, owdInterrupt       = 1000, 150_000
	// exactBase is the constant part of a delay by stamps of hardware, and exactNoise the mean of queues, ns.
	exactBase, exactNoise = 3000, 300
)

// sprayedMesh is a fabric whose leaves spray, with the flows of its mesh.
type sprayedMesh struct {
	g     *fabric.Graph
	e     *Engine
	flows []sprayedFlow
	// delays are those of packets, drawn in advance, by the kernel's stamps, and exact those by the hardware's; base and hardware are their
	// baselines.
	delays, exact  []int64
	base, hardware fabric.Quantiles
}

type sprayedFlow struct {
	edge, src, dst string
	from, to       int // leaves
	access         [2]fabric.Direction
	path           fabric.Path // of a flow that stays under its leaf
}

var sprayedFabric = sync.OnceValue(func() *sprayedMesh {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: sprayedLeaves, SpinesPerPod: sprayedSpines, NICsPerLeaf: sprayedNICs, NICsPerNode: 1}))
	plan, err := schedule.Make(g, schedule.Options{})
	if err != nil {
		panic(err)
	}
	m := &sprayedMesh{g: g, e: NewEngine(g)}
	leaves := map[string]int{}
	for i := range sprayedLeaves {
		leaves[sprayedLeaf(i)] = i
	}
	for _, edge := range plan.Edges {
		for _, reply := range []bool{false, true} {
			f := plan.FlowID(edge)
			f.Reply = reply
			src, dst := f.Endpoints()
			a, _ := g.LeafOf(src)
			b, _ := g.LeafOf(dst)
			x := sprayedFlow{edge: f.String(), src: src, dst: dst, from: leaves[a], to: leaves[b]}
			x.access = [2]fabric.Direction{{From: src, To: g.PeerOf(src)}, {From: g.PeerOf(dst), To: dst}}
			if a == b {
				x.path = g.ShortestPaths(src, dst, 1)[0]
			}
			m.flows = append(m.flows, x)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	m.delays = make([]int64, 1<<16)
	for i := range m.delays {
		m.delays[i] = owdBase + int64(owdNoise*math.Exp(owdSigma*rng.NormFloat64()))
		if rng.IntN(owdLate) == 0 {
			m.delays[i] += owdInterrupt
		}
	}
	m.exact = make([]int64, 1<<16)
	for i := range m.exact {
		m.exact[i] = exactBase + int64(exactNoise*rng.ExpFloat64())
	}
	m.base, m.hardware = *quantilesOf(slices.Clone(m.delays)), *quantilesOf(slices.Clone(m.exact))
	return m
})

func sprayedLeaf(i int) string { return fmt.Sprintf("a-p1-leaf%d", i+1) }

// quantilesOf returns the quantiles of packets, which it sorts.
func quantilesOf(all []int64) *fabric.Quantiles {
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	at := func(q float64) *int64 { return &all[max(0, int(math.Ceil(q*float64(len(all))))-1)] }
	sum := int64(0)
	for _, v := range all {
		sum += v
	}
	mean := sum / int64(len(all))
	p50, p90, p99 := *at(0.5), *at(0.9), *at(0.99)
	return &fabric.Quantiles{Mean: &mean, P50: &p50, P90: &p90, P99: &p99}
}

// sprayedCase is a fabric with faults over some seconds.
type sprayedCase struct {
	seconds int
	// background is the most that a healthy directed link loses; each loses a share drawn from 0 to that.
	background float64
	loss       map[fabric.Direction]float64
	delay      map[fabric.Direction]int64
	delays     bool // are measured
	stamps     string
	// known is how many probes a second cross each directed link between switches on a path that was chosen.
	known int
}

// observe returns the windows of a case.
func (m *sprayedMesh) observe(c *sprayedCase, rng *rand.Rand) []*fabric.Observation {
	loss := map[fabric.Direction]float64{}
	of := func(d fabric.Direction) float64 {
		q, ok := loss[d]
		if !ok {
			if q, ok = c.loss[d]; !ok {
				q = c.background * rng.Float64()
			}
			loss[d] = q
		}
		return q
	}
	up, down := m.links()
	for i := range up { // drawn in a fixed order
		for k := range up[i] {
			of(up[i][k])
			of(down[i][k])
		}
	}
	through := make([][]float64, sprayedLeaves)
	slow := make([][][]int64, sprayedLeaves) // delays by spine, where there are any
	for i := range through {
		through[i], slow[i] = make([]float64, sprayedLeaves), make([][]int64, sprayedLeaves)
		for j := range through[i] {
			if i == j {
				through[i][j] = 1
				continue
			}
			for k := range sprayedSpines {
				through[i][j] += (1 - of(up[i][k])) * (1 - of(down[j][k])) / sprayedSpines
				if by := c.delay[up[i][k]] + c.delay[down[j][k]]; by > 0 {
					if slow[i][j] == nil {
						slow[i][j] = make([]int64, sprayedSpines)
					}
					slow[i][j][k] = by
				}
			}
		}
	}
	packets := uint64(100 * c.seconds)
	out := make([]*fabric.Observation, 0, len(m.flows))
	var all []int64
	for i := range m.flows {
		f := &m.flows[i]
		q := 1 - through[f.from][f.to]*(1-of(f.access[0]))*(1-of(f.access[1]))
		o := &fabric.Observation{Edge: f.edge, Src: f.src, Dst: f.dst, Sent: packets, Lost: drawBinomial(rng, packets, q), Timestamp: cmp.Or(c.stamps, "kernel"), Sprayed: f.from != f.to, Path: f.path}
		if c.delays {
			all = all[:0]
			own := c.delay[f.access[0]] + c.delay[f.access[1]]
			for range o.Sent - o.Lost {
				v := own
				if c.stamps == "hardware" {
					v += m.exact[rng.IntN(len(m.exact))]
				} else {
					v += m.delays[rng.IntN(len(m.delays))]
				}
				if by := slow[f.from][f.to]; by != nil {
					v += by[rng.IntN(sprayedSpines)]
				}
				all = append(all, v)
			}
			if o.OWD, o.Baseline = quantilesOf(all), &m.base; c.stamps == "hardware" {
				o.Baseline = &m.hardware
			}
		}
		out = append(out, o)
	}
	if c.known > 0 {
		out = append(out, m.observeKnown(c, of, rng)...)
	}
	return out
}

// observeKnown returns the windows of probes whose paths were chosen: from a NIC of each leaf up to each spine and down to the
// next leaf, so that every directed link between switches is crossed by two flows.
func (m *sprayedMesh) observeKnown(c *sprayedCase, of func(fabric.Direction) float64, rng *rand.Rand) (out []*fabric.Observation) {
	up, down := m.links()
	packets := uint64(c.known*c.seconds) / 2
	for i := range sprayedLeaves {
		for k := range sprayedSpines {
			for n := range 2 {
				j := (i + 1 + n) % sprayedLeaves
				src, dst := m.nicOf(i, k+n), m.nicOf(j, k+n)
				a, b := fabric.Direction{From: src, To: m.g.PeerOf(src)}, fabric.Direction{From: m.g.PeerOf(dst), To: dst}
				q := 1 - (1-of(a))*(1-of(b))*(1-of(up[i][k]))*(1-of(down[j][k]))
				port := func(end string) string { _, p, _ := fabric.SplitPort(end); return p }
				path := fabric.Path{{Switch: sprayedLeaf(i), In: port(a.To), Out: port(up[i][k].From)}, {Switch: fabric.OwnerOf(up[i][k].To), In: port(up[i][k].To), Out: port(down[j][k].From)},
					{Switch: sprayedLeaf(j), In: port(down[j][k].To), Out: port(b.From)}}
				out = append(out, &fabric.Observation{Edge: fabric.Flow{Src: src, Dst: dst, Number: 2*k + n}.String(), Src: src, Dst: dst, Sent: packets, Lost: drawBinomial(rng, packets, q), Path: path, PathState: fabric.PathValid})
			}
		}
	}
	return out
}

// links returns the directed links of each leaf to each spine, and back.
func (m *sprayedMesh) links() (up, down [][]fabric.Direction) {
	up, down = make([][]fabric.Direction, sprayedLeaves), make([][]fabric.Direction, sprayedLeaves)
	for i := range up {
		for _, end := range m.g.Uplinks(sprayedLeaf(i)) {
			d := fabric.Direction{From: end, To: m.g.PeerOf(end)}
			up[i], down[i] = append(up[i], d), append(down[i], d.Reverse())
		}
	}
	return up, down
}

// nicOf returns a NIC of a leaf.
func (m *sprayedMesh) nicOf(leaf, n int) string {
	var nics []string
	for _, end := range m.g.EndsOf(sprayedLeaf(leaf)) {
		if peer := m.g.PeerOf(end); fabric.IsNIC(peer) {
			nics = append(nics, peer)
		}
	}
	return nics[n%len(nics)]
}

// drawBinomial draws how many of n packets are lost.
func drawBinomial(rng *rand.Rand, n uint64, q float64) (lost uint64) {
	if q >= 1 {
		return n
	}
	for at := -1.0; q > 0; lost++ {
		if at += 1 + math.Floor(math.Log1p(-rng.Float64())/math.Log1p(-q)); at >= float64(n) {
			break
		}
	}
	return lost
}

// score is how a number of cases ended.
type score struct {
	cases, right, exact, suspects, wrong int
	listed, nanoseconds                  int64
}

// addResult compares what was named with the elements at fault, each by its name and direction. A suspect may list several of these.
func (x *score) addResult(r Result, faults []Element) (wrong []string) {
	x.cases++
	found := make([]bool, len(faults))
	all := true
	for i := range r.Suspects {
		s := &r.Suspects[i]
		x.suspects++
		x.listed += int64(len(s.Equivalent))
		hit := false
		for j, f := range faults {
			is := func(e Element) bool { return e.Kind == f.Kind && e.Name == f.Name && e.Direction == f.Direction }
			switch {
			case found[j]:
			case is(s.Element) && len(s.Equivalent) == 0:
				hit, found[j] = true, true
				x.exact++
			case is(s.Element) || slices.ContainsFunc(s.Equivalent, is):
				hit, found[j] = true, true
			}
		}
		if !hit {
			x.wrong++
			wrong = append(wrong, fmt.Sprintf("%s %s %s with %d more, loss %.4f delay %d tail %d gain %.1f", s.Kind, s.Name, s.Direction, len(s.Equivalent), s.LossRatio, s.AddedDelayNS, s.TailDelayNS, s.Gain))
		}
	}
	for j := range faults {
		all = all && found[j]
		if !found[j] {
			wrong = append(wrong, fmt.Sprintf("missed %s %s", faults[j].Name, faults[j].Direction))
		}
	}
	if all && len(wrong) == 0 {
		x.right++
	}
	return wrong
}

// manySeeds is the number of seeds from which shares are checked. Of fewer each has to be right where nearly all are.
const manySeeds = 20

// check compares a score with the least number of cases of 100 that have to be right, and with a precision of 0.98.
func (x *score) check(t *testing.T, least int) {
	t.Helper()
	switch {
	case x.cases >= manySeeds && (100*x.right < least*x.cases || x.suspects > 0 && x.suspects > x.wrong && x.precision() < 0.98):
		t.Errorf("%s; want %d of 100 at a precision of 0.98", x, least)
	case x.cases < manySeeds && (x.wrong > 0 || least > 90 && x.right < x.cases):
		t.Errorf("%s; want all of so few", x)
	}
}

func (x *score) precision() float64 {
	if x.suspects == 0 {
		return 1
	}
	return 1 - float64(x.wrong)/float64(x.suspects)
}

func (x *score) String() string {
	return fmt.Sprintf("%d of %d right, %d suspects without equivalents, precision %.3f, %.1f equivalents each, %d ms", x.right, x.cases, x.exact, x.precision(),
		float64(x.listed)/float64(max(1, x.suspects)), x.nanoseconds/1e6/int64(x.cases))
}

// runSprayed runs seeds of cases, with faults that inject draws.
func runSprayed(t *testing.T, seeds int, make func(rng *rand.Rand, m *sprayedMesh) (*sprayedCase, []Element)) *score {
	t.Helper()
	m := sprayedFabric()
	x := &score{}
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(*sprayedFirst+seed, 32))
		c, faults := make(rng, m)
		findings := judge.FindingsOf(m.observe(c, rng), judge.DefaultParameters())
		began := time.Now()
		r := m.e.Run(findings, DefaultParameters())
		x.nanoseconds += time.Since(began).Nanoseconds()
		if wrong := x.addResult(r, faults); len(wrong) > 0 {
			t.Logf("seed %d, %v: %s", *sprayedFirst+seed, faults, strings.Join(wrong, "; "))
		}
	}
	t.Logf("%s", x)
	return x
}

// drawLink draws a directed link between switches.
func (m *sprayedMesh) drawLink(rng *rand.Rand) fabric.Direction {
	up, down := m.links()
	if rng.IntN(2) == 0 {
		return up[rng.IntN(sprayedLeaves)][rng.IntN(sprayedSpines)]
	}
	return down[rng.IntN(sprayedLeaves)][rng.IntN(sprayedSpines)]
}

func linkElement(d fabric.Direction) Element {
	kind, name := elementOf(d)
	return Element{Kind: kind, Name: name, Direction: d}
}

func seedsOf() int {
	if *sprayedCases > 0 {
		return *sprayedCases
	}
	return sprayedSeeds
}

// TestSprayedLosses has one directed link of 2,048 that loses a share of its packets.
func TestSprayedLosses(t *testing.T) {
	for _, tt := range []struct {
		background, loss float64
		seconds, known   int
		least            int // of 100 seeds
	}{
		{1e-4, 0.015, 2, 0, 95}, {1e-4, 0.005, 10, 0, 75}, {1e-4, 0.005, 15, 0, 95},
		{2e-5, 0.015, 2, 0, 95}, {2e-5, 0.005, 10, 0, 95}, {2e-5, 0.001, 60, 0, 80}, {2e-5, 0.001, 90, 0, 95},
		{1e-4, 0, 2, 0, 98}, {1e-4, 0, 60, 0, 98}, {2e-5, 0, 60, 0, 98}, {1e-4, 0.001, 60, 0, 0},
		{1e-4, 0.015, 2, 500, 95}, {1e-4, 0.005, 10, 500, 95}, {1e-4, 0.001, 60, 500, 95},
	} {
		if tt.seconds > 10 && seedsOf() < manySeeds {
			continue // long windows are drawn with many seeds only
		}
		t.Run(fmt.Sprintf("%g of %g in %d s, %d", tt.loss, tt.background, tt.seconds, tt.known), func(t *testing.T) {
			x := runSprayed(t, seedsOf(), func(rng *rand.Rand, m *sprayedMesh) (*sprayedCase, []Element) {
				c := &sprayedCase{seconds: tt.seconds, background: tt.background, known: tt.known}
				if tt.loss == 0 {
					return c, nil
				}
				d := m.drawLink(rng)
				c.loss = map[fabric.Direction]float64{d: tt.loss}
				return c, []Element{linkElement(d)}
			})
			x.check(t, tt.least)
		})
	}
}

// TestSprayedFaults has faults that single flows show, for two seconds.
func TestSprayedFaults(t *testing.T) {
	nic := func(m *sprayedMesh, rng *rand.Rand) fabric.Direction {
		a := m.flows[rng.IntN(len(m.flows))].access[0]
		if rng.IntN(2) == 0 {
			return a.Reverse()
		}
		return a
	}
	// spine slows all that a spine sends.
	spine := func(m *sprayedMesh, rng *rand.Rand, by int64) (map[fabric.Direction]int64, Element) {
		_, down := m.links()
		k, delay := rng.IntN(sprayedSpines), map[fabric.Direction]int64{}
		for i := range down {
			delay[down[i][k]] = by
		}
		return delay, Element{Kind: fabric.KindSwitch, Name: fabric.OwnerOf(down[0][k].From)}
	}
	for _, tt := range []struct {
		name string
		make func(c *sprayedCase, m *sprayedMesh, rng *rand.Rand) []Element
	}{
		{"none", func(*sprayedCase, *sprayedMesh, *rand.Rand) []Element { return nil }},
		{"a link is slow by 2 ms", func(c *sprayedCase, m *sprayedMesh, rng *rand.Rand) []Element {
			d := m.drawLink(rng)
			c.delay = map[fabric.Direction]int64{d: 2e6}
			return []Element{linkElement(d)}
		}},
		{"a link loses all one way", func(c *sprayedCase, m *sprayedMesh, rng *rand.Rand) []Element {
			d := m.drawLink(rng)
			c.loss = map[fabric.Direction]float64{d: 1}
			return []Element{linkElement(d)}
		}},
		{"a NIC is slow one way", func(c *sprayedCase, m *sprayedMesh, rng *rand.Rand) []Element {
			d := nic(m, rng)
			c.delay = map[fabric.Direction]int64{d: 2e6}
			return []Element{linkElement(d)}
		}},
		{"a spine is slow", func(c *sprayedCase, m *sprayedMesh, rng *rand.Rand) []Element {
			delay, e := spine(m, rng, 2e6)
			c.delay = delay
			return []Element{e}
		}},
		{"a link loses, another is slow", func(c *sprayedCase, m *sprayedMesh, rng *rand.Rand) []Element {
			a, b := m.drawLink(rng), m.drawLink(rng)
			c.loss, c.delay = map[fabric.Direction]float64{a: 0.05}, map[fabric.Direction]int64{b: 2e6}
			return []Element{linkElement(a), linkElement(b)}
		}},
		{"a NIC loses, a link is slow", func(c *sprayedCase, m *sprayedMesh, rng *rand.Rand) []Element {
			a, b := nic(m, rng), m.drawLink(rng)
			c.loss, c.delay = map[fabric.Direction]float64{a: 0.02}, map[fabric.Direction]int64{b: 2e6}
			return []Element{linkElement(a), linkElement(b)}
		}},
		{"two links are slow", func(c *sprayedCase, m *sprayedMesh, rng *rand.Rand) []Element {
			a, b := m.drawLink(rng), m.drawLink(rng)
			c.delay = map[fabric.Direction]int64{a: 2e6, b: 1e6}
			return []Element{linkElement(a), linkElement(b)}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := runSprayed(t, min(seedsOf(), 20), func(rng *rand.Rand, m *sprayedMesh) (*sprayedCase, []Element) {
				c := &sprayedCase{seconds: 2, background: 1e-4, delays: true}
				return c, tt.make(c, m, rng)
			})
			x.check(t, 95)
		})
	}
}

// TestSprayedSmallDelays has a link that adds 20 us, to one packet in 64 of those that leave or reach a leaf: their mean is 310 ns
// later. Stamps of hardware show it, and those of the kernel do not, whose floor is 1,250 ns. They show 100 us.
func TestSprayedSmallDelays(t *testing.T) {
	for _, tt := range []struct {
		stamps  string
		delay   int64
		seconds int
		found   bool
	}{{"hardware", 20_000, 10, true}, {"kernel", 20_000, 10, false}, {"hardware", 0, 10, true}, {"kernel", 0, 10, true}} {
		if seedsOf() < manySeeds && tt.delay == 0 {
			continue // silence is drawn with many seeds only
		}
		t.Run(fmt.Sprintf("%s, %d ns in %d s", tt.stamps, tt.delay, tt.seconds), func(t *testing.T) {
			x := runSprayed(t, min(seedsOf(), 20), func(rng *rand.Rand, m *sprayedMesh) (*sprayedCase, []Element) {
				c := &sprayedCase{seconds: tt.seconds, background: 2e-5, delays: true, stamps: tt.stamps}
				d := m.drawLink(rng)
				c.delay = map[fabric.Direction]int64{d: tt.delay}
				if tt.delay == 0 || !tt.found {
					return c, nil
				}
				return c, []Element{linkElement(d)}
			})
			x.check(t, 95)
		})
	}
}
