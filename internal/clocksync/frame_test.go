package clocksync

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// world has clocks with known truth, and pairs that measure them.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	frame  *Frame
	now    float64 // s, true time
	names  []string
	offset []float64 // ns at time 0
	rate   []float64
	pairs  [][2]int
	noise  float64 // ns
	rnoise float64
	quiet  map[int]bool // these nodes do not report, and no node measures them
	bias   map[[2]int]float64
	spoil  func(p *PairEstimate)
	last   *Summary
}

const epoch = 1_700_000_000_000_000_000

func newWorld(t *testing.T, opts FrameOptions, clocks int, pairs [][2]int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(1, uint64(clocks))), frame: NewFrame(opts), pairs: pairs, quiet: map[int]bool{}, bias: map[[2]int]float64{}}
	for i := range clocks {
		w.names = append(w.names, fmt.Sprintf("n%05d", i))
		w.offset = append(w.offset, math.Round((w.rng.Float64()-0.5)*10e9))
		w.rate = append(w.rate, (w.rng.Float64()-0.5)*60e-6)
	}
	return w
}

// ringWith connects each of n clocks to the next one by each of the strides.
func ringWith(n int, strides ...int) [][2]int {
	var out [][2]int
	for i := range n {
		for _, s := range strides {
			out = append(out, [2]int{i, (i + s) % n})
		}
	}
	return out
}

func allPairs(n int) [][2]int {
	var out [][2]int
	for i := range n {
		for j := range i {
			out = append(out, [2]int{j, i})
		}
	}
	return out
}

func (w *world) read(i int, at float64) int64 {
	return epoch + int64(math.Round(at*1e9)) + int64(math.Round(w.offset[i]+w.rate[i]*at*1e9))
}

// step makes clock i jump by ns.
func (w *world) step(i int, ns float64) { w.offset[i] += ns }
func (w *world) drift(i int, by float64) {
	w.rate[i] += by
	w.offset[i] -= by * w.now * 1e9
}

func (w *world) estimate(p [2]int) PairEstimate {
	a, b := p[0], p[1]
	at := w.now - 0.3*w.rng.Float64()
	rate := (1+w.rate[b])/(1+w.rate[a]) - 1
	off := float64(w.read(b, at)-w.read(a, at)) + w.noise*w.rng.NormFloat64() + w.bias[p]
	return PairEstimate{ID: PairID{Src: w.names[a] + "/e", Dst: w.names[b] + "/e", Kind: Kernel}, Estimate: Estimate{Quality: Fine, Ref: w.read(a, at), Offset: int64(math.Round(off)),
		Rate: rate + w.rnoise*w.rng.NormFloat64(), Sigma: w.noise, RateSigma: w.rnoise}}
}

func (w *world) reports() []*Report {
	var out []*Report
	by := map[int]*Report{}
	for _, p := range w.pairs {
		if w.quiet[p[0]] || w.quiet[p[1]] {
			continue
		}
		r := by[p[0]]
		if r == nil {
			r = &Report{Node: w.names[p[0]], End: w.read(p[0], w.now)}
			by[p[0]], out = r, append(out, r)
		}
		e := w.estimate(p)
		if w.spoil != nil {
			w.spoil(&e)
		}
		r.Pairs = append(r.Pairs, e)
	}
	return out
}

// run runs cycles, one a second.
func (w *world) run(cycles int) {
	for range cycles {
		w.now++
		mono := time.Duration(w.now * float64(time.Second))
		for _, r := range w.reports() {
			w.frame.AddReport(r, mono)
		}
		w.last = w.frame.Solve(mono)
	}
}

func (w *world) get(i int) Map {
	w.t.Helper()
	m, ok := w.frame.MapOf(w.names[i])
	if !ok {
		w.t.Fatalf("%s has no map", w.names[i])
	}
	return m
}

// errors returns how wrong each clock shows the frame's time, ns, relative to the mean of them.
func (w *world) errors(clocks ...int) []float64 {
	w.t.Helper()
	if clocks == nil {
		for i := range w.names {
			clocks = append(clocks, i)
		}
	}
	out := make([]float64, len(clocks))
	mean := 0.0
	first := int64(0)
	for j, i := range clocks {
		m := w.get(i)
		v := m.FrameTime(w.read(i, w.now))
		if j == 0 {
			first = v
		}
		out[j] = float64(v - first)
		mean += out[j] / float64(len(clocks))
	}
	for j := range out {
		out[j] -= mean
	}
	return out
}

func (w *world) states(want map[State]int) {
	w.t.Helper()
	got := map[State]int{}
	for s, n := range w.last.Clocks {
		if n > 0 {
			got[State(s)] = n
		}
	}
	if !reflect.DeepEqual(got, want) {
		w.t.Errorf("at %v s states are %v, want %v", w.now, got, want)
	}
}

func (w *world) jumps(want map[int][2]uint32) {
	w.t.Helper()
	for i := range w.names {
		m := w.get(i)
		if got := [2]uint32{m.Steps, m.Drifts}; got != want[i] {
			w.t.Errorf("%s: steps and drifts %v, want %v", w.names[i], got, want[i])
		}
	}
}

func most(v []float64) float64 {
	out := 0.0
	for _, x := range v {
		out = max(out, math.Abs(x))
	}
	return out
}

// Rules 1 and 2: without noise all clocks show the same time, independent of their own time and of the
// time of measurement.
func TestRule2NoNoiseNoError(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 40, ringWith(40, 1, 7))
	w.rnoise = 1e-10 // of sigma only: the rates are exact
	w.spoil = func(p *PairEstimate) {}
	for cycle := range 4 {
		w.rnoise, w.noise = 0, 0
		w.run(1)
		if e := most(w.errors()); e > 2 {
			t.Errorf("cycle %d: %v ns", cycle, e)
		}
		for i := range w.names {
			if got, want := w.get(i).Rate-w.get(0).Rate, (1+w.rate[0])/(1+w.rate[i])-1; math.Abs(got-want) > 3e-9 {
				t.Errorf("cycle %d: clock %d gains %g, want %g", cycle, i, got, want)
			}
		}
	}
	w.states(map[State]int{Locked: 40})
}

// closedForm solves the same problem by elimination.
func closedForm(n int, pairs [][2]int, weights, z []float64) (x, variance []float64) {
	a, d, sum := make([][]float64, n), make([]float64, n), 0.0
	for e, p := range pairs {
		d[p[0]] += weights[e]
		d[p[1]] += weights[e]
		sum += 2 * weights[e]
	}
	for i := range a {
		a[i] = make([]float64, 2*n+1)
		a[i][n+i] = 1
		for j := range n {
			a[i][j] = d[i] * d[j] / sum // the mean, weighted by d, is zero
		}
	}
	for e, p := range pairs {
		i, j := p[0], p[1]
		a[i][i] += weights[e]
		a[j][j] += weights[e]
		a[i][j] -= weights[e]
		a[j][i] -= weights[e]
		a[i][2*n] -= weights[e] * z[e]
		a[j][2*n] += weights[e] * z[e]
	}
	for k := range n {
		for i := range n {
			if i == k {
				continue
			}
			f := a[i][k] / a[k][k]
			for j := range a[i] {
				a[i][j] -= f * a[k][j]
			}
		}
	}
	for k := range n {
		x = append(x, a[k][2*n]/a[k][k])
		variance = append(variance, a[k][n+k]/a[k][k]-1/sum)
	}
	return x, variance
}

// Rule 1: the solution is that of the normal equations. Rule 3: so is its variance.
func TestRule1MinimumVariance(t *testing.T) {
	const n = 12
	rng := rand.New(rand.NewPCG(3, 3))
	pairs := append(ringWith(n, 1, 3), [2]int{0, 1}, [2]int{3, 2}) // twice, and in reverse
	f := NewFrame(FrameOptions{})
	var z, weights []float64
	reports := map[int]*Report{}
	for e, p := range pairs {
		sigma := 5 + 45*rng.Float64()
		if e%2 == 0 && e < 2*n {
			sigma = 5 // the best deviation of every node: none is more certain than nodes typically are
		}
		v := math.Round(sigma * rng.NormFloat64())
		z, weights = append(z, v), append(weights, 1/(sigma*sigma+roundingVariance))
		r := reports[p[0]]
		if r == nil {
			r = &Report{Node: fmt.Sprint("n", p[0])}
			reports[p[0]] = r
		}
		r.Pairs = append(r.Pairs, PairEstimate{PairID{Src: fmt.Sprint("n", p[0], "/e"), Dst: fmt.Sprint("n", p[1], "/e"), Flow: e}, Estimate{Quality: Fine, Ref: 0, Offset: int64(v), Sigma: sigma, RateSigma: 1e-8}})
	}
	for _, r := range reports {
		f.AddReport(r, 0)
	}
	f.Solve(0)
	x, variance := closedForm(n, pairs, weights, z)
	m0, _ := f.MapOf("n0")
	base := float64(m0.FrameTime(0)) + x[0]
	for i := range n {
		m, _ := f.MapOf(fmt.Sprint("n", i))
		if d := float64(m.FrameTime(0)) + x[i] - base; math.Abs(d) > 1.5 { // each is rounded
			t.Errorf("clock %d is %v ns from the closed form", i, d)
		}
		p := &f.cycle.graph.parts[0]
		want := math.Sqrt(variance[i] * p.unit)
		// The difference of the moments adds to it, here by the length of an offset.
		if m.Sigma < want*(1-1e-6) || m.Sigma > want*1.001+0.01 {
			t.Errorf("clock %d: sigma %v, want %v", i, m.Sigma, want)
		}
	}
}

// Rule 3: sigmas are those of the errors over many cycles, and the sketch gives the same as the
// factorisation, or slightly more.
func TestRule3Covariance(t *testing.T) {
	const n = 60
	// Two dense halves with few edges between them: the relation between them is uncertain.
	var pairs [][2]int
	for i := range n / 2 {
		for _, s := range []int{1, 2, 5} {
			pairs = append(pairs, [2]int{i, (i + s) % (n / 2)}, [2]int{n/2 + i, n/2 + (i+s)%(n/2)})
		}
	}
	pairs = append(pairs, [2]int{0, n / 2}, [2]int{5, n/2 + 5}, [2]int{9, n/2 + 9})
	w := newWorld(t, FrameOptions{}, n, pairs)
	w.noise, w.rnoise = 20, 1e-9
	sums := make([]float64, n)
	const cycles = 400
	ratio := 0.0
	w.run(3)
	for range cycles {
		w.run(1)
		for i, e := range w.errors() {
			sums[i] += e * e / cycles
		}
	}
	for i := range n {
		ratio += math.Sqrt(sums[i]) / w.get(i).Sigma / n
		if r := math.Sqrt(sums[i]) / w.get(i).Sigma; r < 0.7 || r > 1.15 {
			t.Errorf("clock %d: deviates by %v, sigma %v", i, math.Sqrt(sums[i]), w.get(i).Sigma)
		}
	}
	if ratio < 0.85 || ratio > 1.05 {
		t.Errorf("errors are %v of the sigmas", ratio)
	}

	for _, reference := range []int32{-1, 7} {
		f, c := w.frame, &w.frame.cycle
		c.graph.parts[0].reference = reference
		if !c.exactVariances(0) {
			t.Fatal("no factorisation")
		}
		exact, exactRate := slices.Clone(c.errors.sigma), slices.Clone(c.errors.rateSigma)
		for i := range f.clocks {
			f.clocks[i].sketches = clockSketches{}
		}
		for range 60 {
			f.cycles++
			f.sketchVariances([]*part{&c.graph.parts[0]}, &c.graph.offsets, c.errors.sigma, 1, func(o *frameClock) *sketch { return &o.sketches.offsets })
			f.sketchVariances([]*part{&c.graph.parts[0]}, &c.graph.rates, c.errors.rateSigma, 1, func(o *frameClock) *sketch { return &o.sketches.rates })
		}
		for _, p := range []struct{ sketch, exact []float64 }{{c.errors.sigma, exact}, {c.errors.rateSigma, exactRate}} {
			low, mean := 0, 0.0
			for k := range n {
				if k == int(reference) {
					if p.sketch[k] != 0 || p.exact[k] != 0 {
						t.Errorf("the reference is known to %v, %v", p.sketch[k], p.exact[k])
					}
					continue
				}
				r := math.Sqrt(p.sketch[k] / p.exact[k])
				mean += r / n
				if r < 1 {
					low++
				}
				if r < 0.85 || r > 1.7 {
					t.Errorf("reference %d, clock %d: the sketch has %v of the deviation", reference, k, r)
				}
			}
			if mean > 1.4 || low > n/5 {
				t.Errorf("reference %d: sketches are %v of the deviations, %d below", reference, mean, low)
			}
		}
	}
}

// Rule 3: where the covariance is sketched, sigmas follow within some cycles when the links between the
// leaves become more precise.
func TestRule3SketchFollows(t *testing.T) {
	const leaf, n = 8, 65 * 8
	pairs := allPairs(leaf)
	within := len(pairs)
	for at := leaf; at < n; at += leaf {
		for _, p := range pairs[:within] {
			pairs = append(pairs, [2]int{at + p[0], at + p[1]})
		}
	}
	far := map[string]bool{}
	for i := range n {
		p := [2]int{i, (i + leaf + i%7*leaf) % n}
		pairs = append(pairs, p)
	}
	w := newWorld(t, FrameOptions{}, n, pairs)
	for _, p := range pairs[len(pairs)-n:] {
		far[w.names[p[0]]+w.names[p[1]]] = true
	}
	sigma := 1000.0
	w.spoil = func(p *PairEstimate) {
		p.Sigma, p.RateSigma = 1, 1e-9
		if far[strings.TrimSuffix(p.ID.Src, "/e")+strings.TrimSuffix(p.ID.Dst, "/e")] {
			p.Sigma = sigma
		}
	}
	w.run(12)
	before := w.get(0).Sigma
	sigma = 5
	w.run(4)
	after := make([]float64, n)
	for i := range n {
		after[i] = w.get(i).Sigma
	}
	c := &w.frame.cycle
	if !c.exactVariances(0) {
		t.Fatal("no factorisation")
	}
	for k, variance := range c.errors.sigma {
		if exact := math.Sqrt(variance); after[k] > 1.5*exact || after[k] < exact/1.25 {
			t.Fatalf("clock %d: sigma %v, exactly %v, before %v", k, after[k], exact, before)
		}
	}
}

// Rule 3: an uncertain clock does not increase the sigma of any other clock.
func TestRule3PoorClock(t *testing.T) {
	sigma := func(spoil func(*PairEstimate)) float64 {
		w := newWorld(t, FrameOptions{}, 16, allPairs(16))
		w.noise, w.rnoise, w.spoil = 10, 1e-9, spoil
		w.run(4)
		return w.get(3).Sigma
	}
	with := sigma(nil)
	if poor := sigma(func(p *PairEstimate) {
		if p.ID.Dst == "n00015/e" {
			p.Sigma = 1e5
		}
	}); poor > 1.1*with {
		t.Errorf("sigma %v, without a poor clock %v", poor, with)
	}
}

// Rule 3: a clock whose estimates change in the same direction for two cycles, by more than their
// deviations, becomes less certain. No other clock does.
func TestRule3Lagging(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 8, allPairs(8))
	w.noise, w.rnoise = 30, 10e-9
	w.run(10)
	before, behind := w.get(3).Sigma, 0.0
	w.spoil = func(p *PairEstimate) {
		if p.ID.Dst == w.names[3]+"/e" {
			p.Offset += int64(behind)
		} else if p.ID.Src == w.names[3]+"/e" {
			p.Offset -= int64(behind)
		}
	}
	for _, want := range []bool{false, true, true} {
		behind += 80
		w.run(1)
		if m := w.get(3); m.State != Locked || (m.Sigma > 2*before) != want {
			t.Errorf("%v ns behind, %v with sigma %v, before %v", behind, m.State, m.Sigma, before)
		}
		if m := w.get(4); m.Sigma > 1.5*before {
			t.Errorf("another clock has sigma %v, before %v", m.Sigma, before)
		}
	}
	w.run(2)
	if m := w.get(3); m.Sigma > 1.5*before {
		t.Errorf("it caught up, and has sigma %v, before %v", m.Sigma, before)
	}
}

// TestLagging checks that the lag of a Kalman filter that tracks a steady movement, beyond its
// expectation, is estimated well enough for a bound, and that there is hardly any lag in a filter that
// gets what it expects.
func TestLagging(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 5))
	for _, drift := range []float64{0, 200, 400} { // ns per window
		const process, noise = 25.0, 100.0
		v, x, truth, last, inside, widened := noise*noise, 0.0, 0.0, 0.0, 0, 0.0
		const n = 3000
		for i := range n {
			truth += drift + process*rng.NormFloat64()
			before := v + process*process
			gain := before / (before + noise*noise)
			moved := gain * (truth + noise*rng.NormFloat64() - x)
			x += moved
			v = (1 - gain) * before
			lag := lagSigmas * estimateLag(last, moved, math.Sqrt(before), math.Sqrt(v))
			last = moved
			if sigma := math.Hypot(math.Sqrt(v), lag); i > 30 {
				widened += sigma / math.Sqrt(v) / n
				if math.Abs(truth-x) <= BoundSigmas*sigma {
					inside++
				}
			} else {
				inside++
			}
		}
		if inside < n*999/1000 {
			t.Errorf("drift %v: %d of %d within the bound", drift, inside, n)
		}
		if drift == 0 && widened > 1.05 {
			t.Errorf("without a drift sigmas are widened to %v", widened)
		}
	}
}

// Rule 3: if estimates contradict each other by more than their deviations, all sigmas grow.
func TestRule3UnitWeight(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 30, ringWith(30, 1, 4, 9))
	w.noise, w.rnoise = 20, 1e-9
	w.run(4)
	honest := w.get(3).Sigma
	w.spoil = func(p *PairEstimate) { p.Sigma /= 4 }
	w.run(4)
	if s := w.get(3).Sigma; s < honest*0.7 || s > honest*1.4 {
		t.Errorf("sigma %v, with understated estimates %v", honest, s)
	}
}

// Rule 4: an asymmetric pair among many is left out, named, and moves no clock. It returns when it
// fits.
func TestRule4Outlier(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 32, ringWith(32, 1, 3, 5, 11))
	w.noise, w.rnoise = 10, 1e-9
	w.bias[[2]int{4, 7}] = 400
	for cycle := range 5 {
		w.run(1)
		if w.last.Dropped != 1 || len(w.last.Outliers) != 1 {
			t.Fatalf("cycle %d: %+v", cycle, w.last)
		}
		o := w.last.Outliers[0]
		if o.A != w.names[4] || o.B != w.names[7] || math.Abs(math.Abs(o.Error)-400) > 60 {
			t.Errorf("%+v", o)
		}
		if e := w.errors(); math.Abs(e[4]) > 25 || math.Abs(e[7]) > 25 || w.get(4).Sigma > 10 {
			t.Errorf("cycle %d: %v and %v ns, sigma %v", cycle, e[4], e[7], w.get(4).Sigma)
		}
	}
	if w.last.Edges != 127 {
		t.Errorf("%d edges counted", w.last.Edges)
	}
	clear(w.bias)
	w.run(2)
	if w.last.Dropped != 0 || w.last.Edges != 128 {
		t.Errorf("%+v", w.last)
	}
}

// Rule 4: many at once, and one with a wrong rate.
func TestRule4ManyOutliers(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 64, ringWith(64, 1, 3, 5, 11, 17, 23))
	w.noise, w.rnoise = 10, 1e-9
	bad := map[[2]int]bool{}
	for _, p := range w.pairs {
		if w.rng.IntN(20) == 0 {
			w.bias[p] = 300 + 1e5*w.rng.Float64()
			bad[p] = true
		}
	}
	w.spoil = func(p *PairEstimate) {
		if p.ID.Src == w.names[9]+"/e" && p.ID.Dst == w.names[10]+"/e" {
			p.Rate += 1e-6
			bad[[2]int{9, 10}] = true
		}
	}
	w.run(3)
	if w.last.Dropped != len(bad) {
		t.Errorf("%d were left out, want %d", w.last.Dropped, len(bad))
	}
	if e := most(w.errors()); e > 30 {
		t.Errorf("%v ns", e)
	}
}

// Rule 4: in a triangle the wrong pair cannot be identified. All stay, and sigmas show it.
func TestRule4TheWrongPairIsUnknown(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 3, allPairs(3))
	w.noise, w.rnoise = 10, 1e-9
	w.bias[[2]int{0, 1}] = 3000
	w.run(3)
	if w.last.Dropped != 0 || w.last.Edges != 3 {
		t.Errorf("%+v", w.last)
	}
	for i, e := range w.errors() {
		if math.Abs(e) > 2*w.get(i).Sigma {
			t.Errorf("clock %d is off by %v with sigma %v", i, e, w.get(i).Sigma)
		}
	}
}

// Rule 4: a term that misses the solution because others pull at its clocks is not left out, even if it
// is unknown which of those are wrong.
func TestRule4DraggedAlong(t *testing.T) {
	pairs := allPairs(8)
	for _, p := range allPairs(8) {
		pairs = append(pairs, [2]int{8 + p[0], 8 + p[1]})
	}
	w := newWorld(t, FrameOptions{}, 16, pairs)
	w.noise, w.rnoise = 5, 1e-9
	for i := range 4 {
		between := [2]int{i, 8 + i}
		w.bias[between], w.pairs = float64(i)*1e4, append(w.pairs, between)
	}
	w.run(3)
	for _, o := range w.last.Outliers {
		if o.A >= w.names[8] || o.B < w.names[8] {
			t.Errorf("left out: %+v", o)
		}
	}
	if w.last.Dropped != 2 { // of the two others, neither is checked by any
		t.Errorf("%d were left out", w.last.Dropped)
	}
}

// Rule 5: the only edge to a clock stays, whatever its value, and if all edges between two groups
// contradict each other some of them stay.
func TestRule5NothingTornApart(t *testing.T) {
	for _, says := range [][]float64{{0, 1e4, 2e4, 3e4}, {0, 0, 0, 2e4, 2e4}} {
		inside := allPairs(16)
		for _, p := range allPairs(16) {
			inside = append(inside, [2]int{16 + p[0], 16 + p[1]})
		}
		inside = append(inside, [2]int{3, 32})
		w := newWorld(t, FrameOptions{}, 33, inside)
		w.noise, w.rnoise = 5, 1e-9
		w.bias[[2]int{3, 32}] = 1e6
		for i, ns := range says {
			between := [2]int{i, 16 + i}
			w.bias[between], w.pairs = ns, append(w.pairs, between)
		}
		out := map[string]bool{}
		for range 4 {
			w.run(1)
			clear(out)
			for _, o := range w.last.Outliers {
				out[o.A] = true
				if o.B < w.names[16] {
					t.Errorf("left out: %+v", o)
				}
			}
			if w.last.Components != 1 || w.last.Dropped == 0 || w.last.Dropped == len(says) {
				t.Errorf("%+v", w.last)
			}
		}
		// The edges that were not left out disappear. One of the others replaces them.
		w.pairs = slices.Clone(inside)
		for i := range says {
			if out[w.names[i]] {
				w.pairs = append(w.pairs, [2]int{i, 16 + i})
			}
		}
		w.run(4)
		if w.last.Components != 1 {
			t.Errorf("%+v", w.last)
		}
	}
}

// Rule 6: the frame continues evenly: the map of a clock that does not step does not move when others
// appear, disappear and step.
func TestRule6FrameGoesOn(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 24, ringWith(24, 1, 3, 5))
	w.noise, w.rnoise = 10, 1e-9
	w.run(5)
	m := w.get(2)
	start, begin := m.FrameTime(w.read(2, w.now)), w.now
	check := func(what string, limit float64) {
		t.Helper()
		m := w.get(2)
		if d := float64(m.FrameTime(w.read(2, w.now))-start) - (w.now-begin)*1e9*(1+w.frameRate(2)); math.Abs(d) > limit {
			t.Errorf("%s: the frame moved by %v ns", what, d)
		}
	}
	w.run(5)
	check("nothing", 30)
	w.step(7, 50_000)
	w.run(5)
	check("a step", 60)
	w.quiet[11], w.quiet[12] = true, true
	w.run(20)
	check("two gone", 150)
	w.quiet = map[int]bool{}
	w.run(5)
	check("two back", 200)
	id := w.frame.ID()
	w.run(1)
	if w.frame.ID() != id || w.get(3).Component != w.get(2).Component {
		t.Error("the frame is another one")
	}
}

// frameRate returns the gain of the frame on true time, as clock i has it.
func (w *world) frameRate(i int) float64 { return (1+w.rate[i])*(1+w.get(i).Rate) - 1 }

// Rule 6: a new frame shows the time of its median clock and runs at the mean rate.
func TestRule6NewFrame(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 9, allPairs(9))
	w.offset[4] = -epoch // never set
	w.run(1)
	offsets := slices.Sorted(slices.Values(w.offset))
	m := w.get(0)
	if d := float64(m.FrameTime(w.read(0, 0))-epoch) - offsets[4]; math.Abs(d) > 1e6 { // rates within a second
		t.Errorf("the frame is off the median clock by %v ns", d)
	}
	sum := 0.0
	for i := range w.names {
		sum += w.get(i).Rate
	}
	if math.Abs(sum/9) > 1e-9 {
		t.Errorf("the mean rate is %v", sum/9)
	}
}

// Rule 7: the reference's time is the frame's, including steps.
func TestRule7Reference(t *testing.T) {
	w := newWorld(t, FrameOptions{Reference: "n00005"}, 20, ringWith(20, 1, 3, 7))
	w.noise, w.rnoise = 10, 1e-9
	check := func() {
		t.Helper()
		for i := range w.names {
			m := w.get(i)
			if d := m.FrameTime(w.read(i, w.now)) - w.read(5, w.now); d > 40 || d < -40 {
				t.Errorf("clock %d is %d ns off the reference", i, d)
			}
		}
		if m := w.get(5); m.Rate != 0 || m.Offset != 0 || m.Sigma != 0 {
			t.Errorf("the reference itself: %+v", m)
		}
		if u := w.frame.UpdateFor(w.names); u.Relative || len(u.Maps) != 20 {
			t.Errorf("%+v", u)
		}
	}
	w.run(8)
	check()
	id := w.frame.ID()
	w.step(5, 1e6)
	w.drift(5, 8e-6)
	w.run(4)
	check()
	if w.frame.ID() != id {
		t.Error("the frame is another one")
	}
	w.jumps(map[int][2]uint32{5: {1, 1}})
	w.states(map[State]int{Locked: 20})

	relative := func() bool { return w.frame.UpdateFor(w.names[:1]).Relative }
	w.quiet[5] = true
	for after := 1; !relative(); after++ {
		if w.run(1); after > 10 {
			t.Fatalf("the reference has been unknown for %d s, and the frame is not relative", after)
		}
	}
	if m := w.get(0); m.State != Locked {
		t.Errorf("the others: %v, want them locked to each other", m.State)
	}
	w.quiet[5] = false
	w.run(4)
	if relative() {
		t.Error("the reference is back, and the frame is called relative")
	}
}

// Rule 8: components split and join.
func TestRule8Components(t *testing.T) {
	pairs := allPairs(9) // 0..8
	for _, p := range allPairs(6) {
		pairs = append(pairs, [2]int{9 + p[0], 9 + p[1]}) // 9..14
	}
	between := [2]int{2, 11}
	w := newWorld(t, FrameOptions{}, 15, append(pairs, between))
	w.noise, w.rnoise = 10, 1e-9
	w.run(5)
	whole := w.get(0).Component
	if w.get(14).Component != whole || w.last.Components != 1 {
		t.Fatalf("%+v", w.last)
	}
	id := w.frame.ID()
	w.pairs = pairs
	w.run(6)
	if a, b := w.get(0).Component, w.get(14).Component; a != whole || b == whole || w.last.Components != 2 {
		t.Errorf("components %d and %d of %d", a, b, whole)
	}
	w.states(map[State]int{Locked: 15})
	before, begin := w.get(0), w.now
	w.pairs = append(pairs, between)
	w.run(4)
	if a, b := w.get(0).Component, w.get(14).Component; a != whole || b != whole {
		t.Errorf("components %d and %d of %d", a, b, whole)
	}
	at := w.read(0, begin)
	now := w.get(0)
	if d := now.FrameTime(at) - before.FrameTime(at); d > 100 || d < -100 {
		t.Errorf("the larger part's frame moved by %d ns", d)
	}
	if e := most(w.errors()); e > 50 {
		t.Errorf("%v ns", e)
	}
	w.jumps(nil)
	if w.frame.ID() != id {
		t.Error("the frame is another one")
	}
}

// Rule 8: clocks that join another frame have not stepped, and have to agree with it before they are
// locked.
func TestRule8OtherFrame(t *testing.T) {
	pairs := allPairs(5)
	for _, p := range allPairs(4) {
		pairs = append(pairs, [2]int{5 + p[0], 5 + p[1]})
	}
	w := newWorld(t, FrameOptions{}, 9, pairs)
	w.noise, w.rnoise = 10, 1e-9
	w.run(4)
	w.states(map[State]int{Locked: 9})
	before, large := w.get(7), w.get(1).Component
	w.pairs = append(pairs, [2]int{0, 5}, [2]int{1, 6})
	w.run(1)
	if m := w.get(7); m.Component != large || m.FrameTime(before.Ref)-before.FrameTime(before.Ref) == 0 {
		t.Errorf("%+v", m)
	}
	w.states(map[State]int{Locked: 5, Converging: 4})
	w.run(2)
	w.states(map[State]int{Locked: 9})
	w.jumps(nil)
	if e := most(w.errors()); e > 40 {
		t.Errorf("%v ns", e)
	}
}

// Rule 2: an estimate that is older than the others weighs less because rates wander.
func TestRule2Wander(t *testing.T) {
	f := NewFrame(FrameOptions{})
	r := &Report{Node: "a"}
	var sum, weight float64
	for flow, at := range []float64{0, 0, 0, -2.8e9} {
		z := 40 * float64(flow/3)
		r.Pairs = append(r.Pairs, PairEstimate{PairID{Src: "a/x", Dst: "b/x", Flow: flow}, Estimate{Quality: Fine, Ref: int64(at), Offset: int64(z), Sigma: 10, RateSigma: 1e-9}})
		grown := GrownSigma(10, 0, time.Duration(at+0.7e9)) // the middle is 0.7 s before 0
		w := 1 / (grown*grown + roundingVariance)
		sum, weight = sum+w*z, weight+w
	}
	f.AddReport(r, 0)
	f.Solve(0)
	a, _ := f.MapOf("a")
	b, _ := f.MapOf("b")
	if got, want := float64(a.FrameTime(0)-b.FrameTime(0)), sum/weight; math.Abs(got-want) > 1.1 || want > 5 {
		t.Errorf("b is %v ns ahead, want %v", got, want)
	}
}

// Rule 9: a step belongs to the clock that stepped, once, and to no other; so does a change of rate.
func TestRule9StepAndDrift(t *testing.T) {
	for _, by := range []float64{30_000, -200_000, 5e9, 3.6e12} {
		w := newWorld(t, FrameOptions{}, 16, ringWith(16, 1, 3, 6))
		w.noise, w.rnoise = 10, 1e-9
		w.run(5)
		w.states(map[State]int{Locked: 16})
		w.step(6, by)
		w.run(1)
		w.states(map[State]int{Locked: 15, Converging: 1})
		if e := most(w.errors()); e > 40 {
			t.Errorf("step by %v: errors of %v ns at once", by, e)
		}
		w.jumps(map[int][2]uint32{6: {1, 0}})
		w.run(2)
		w.states(map[State]int{Locked: 16})
		w.drift(9, 6e-6)
		w.run(8)
		w.jumps(map[int][2]uint32{6: {1, 0}, 9: {0, 1}})
		w.states(map[State]int{Locked: 16})
	}
}

// Rule 9: the immediate effect of temperature on a rate is no event, alone or twice.
func TestRule9Temperature(t *testing.T) {
	for _, by := range []float64{temperatureStep, -temperatureStep, 2 * temperatureStep} {
		w := newWorld(t, FrameOptions{}, 16, ringWith(16, 1, 3, 6))
		w.noise, w.rnoise = 10, 1e-9
		w.run(20)
		w.drift(9, by)
		w.run(40)
		w.jumps(nil)
		w.states(map[State]int{Locked: 16})
	}
}

// Rule 9: a window in which one clock's rate changes is uncertain about it. That moves no other clock's
// rate, neither then nor when the rate is certain again.
func TestRule9ADriftMovesNoOtherClock(t *testing.T) {
	w := newWorld(t, FrameOptions{ID: 1}, 8, allPairs(8))
	w.noise, w.rnoise = 50, 20e-9
	w.run(10)
	before := w.frameRate(2)
	w.drift(3, 50e-6)
	w.spoil = func(p *PairEstimate) {
		if p.ID.LocalClock() == w.names[3] {
			p.Rate += 20e-6
		} else if p.ID.PeerClock() == w.names[3] {
			p.Rate -= 20e-6
		} else {
			return
		}
		p.RateSigma, p.Sigma = 10e-6, 5e3
	}
	w.run(1)
	w.spoil = nil
	w.run(8)
	for i := range 8 {
		if m := w.get(i); i != 3 && (m.Steps != 0 || m.Drifts != 0) {
			t.Errorf("clock %d: %d steps and %d drifts, want none", i, m.Steps, m.Drifts)
		}
	}
	if moved := math.Abs(w.frameRate(2) - before); moved > 0.2e-6 {
		t.Errorf("the frame's rate moved by %.2g", moved)
	}
}

// Rule 9: a step is counted even if it spoils the next results of pairs: if they know nothing for some
// windows, some longer than others, or continue to predict, or take it for a rate.
func TestRule9StepThatSpoilsItsWindows(t *testing.T) {
	for name, spoil := range map[string]func(p *PairEstimate, cycle, turn int, by float64){
		"unknown": func(p *PairEstimate, cycle, turn int, by float64) {
			if cycle < 1+turn%3 {
				p.Quality = None
			}
		},
		"held": func(p *PairEstimate, cycle, turn int, by float64) {
			if cycle < 1+turn%3 {
				p.Quality, p.Offset = Held, p.Offset-int64(by)
			}
		},
		"contradicting": func(p *PairEstimate, cycle, turn int, by float64) {
			if cycle == 0 {
				p.Offset -= int64(by * float64(turn%4) / 3)
			}
		},
		"a rate": func(p *PairEstimate, cycle, turn int, by float64) {
			if cycle == 0 {
				p.Rate += by / 1e9
				p.Sigma, p.RateSigma = math.Abs(by)/4, math.Abs(by)/1e9
			}
		},
		"a rate by half": func(p *PairEstimate, cycle, turn int, by float64) {
			if cycle == 0 && turn%2 == 0 {
				p.Rate += by / 2e9
				p.Offset -= int64(by / 2)
			}
		},
	} {
		for _, by := range []float64{100_000, -350_000, 2_500_000} {
			for _, reference := range []string{"", "n00002"} {
				w := newWorld(t, FrameOptions{Reference: reference}, 8, allPairs(8))
				w.noise, w.rnoise = 50, 20e-9
				w.run(10)
				w.step(6, by)
				cycle := 0
				turns := map[PairID]int{}
				w.spoil = func(p *PairEstimate) {
					if _, ok := turns[p.ID]; !ok {
						turns[p.ID] = len(turns)
					}
					switch w.names[6] {
					case p.ID.LocalClock():
						spoil(p, cycle, turns[p.ID], -by)
					case p.ID.PeerClock():
						spoil(p, cycle, turns[p.ID], by)
					}
				}
				for range 10 {
					w.run(1)
					cycle++
				}
				for i := range w.names {
					if m := w.get(i); (m.Steps == 1) != (i == 6) || m.Steps > 1 || m.Drifts != 0 && i != 6 {
						t.Errorf("%s, step by %v, reference %q: clock %d has %d steps and %d drifts", name, by, reference, i, m.Steps, m.Drifts)
					}
				}
				w.states(map[State]int{Locked: 8})
			}
		}
	}
}

// Rule 9: a change of rate is counted as well if the clock is lost because of it.
func TestRule9DriftThatSpoilsItsWindows(t *testing.T) {
	for missed := range 4 {
		w := newWorld(t, FrameOptions{}, 8, allPairs(8))
		w.noise, w.rnoise = 50, 20e-9
		w.run(10)
		w.drift(6, 50e-6)
		w.spoil = func(p *PairEstimate) {
			if p.ID.LocalClock() == w.names[6] || p.ID.PeerClock() == w.names[6] {
				p.Quality = None
			}
		}
		w.run(missed)
		w.spoil = nil
		w.run(10)
		w.jumps(map[int][2]uint32{6: {0, 1}})
		w.states(map[State]int{Locked: 8})
	}
}

// Rule 9: a clock that returns elsewhere has stepped, unless its earlier place is no longer known. One
// that returns to its place has not.
func TestRule9StepInAbsence(t *testing.T) {
	for _, c := range []struct {
		away int // s
		by   float64
		want uint32
	}{{5, 200_000, 1}, {5, 0, 0}, {100, 2e6, 1}, {100, -3e9, 1}, {100, 0, 0}, {280, -5e6, 1}, {310, 5e6, 0}} {
		w := newWorld(t, FrameOptions{}, 8, allPairs(8))
		w.noise, w.rnoise = 50, 20e-9
		w.run(10)
		w.quiet[6] = true
		w.run(c.away)
		w.step(6, c.by)
		w.quiet[6] = false
		w.run(10)
		want := map[int][2]uint32{}
		if c.want > 0 {
			want[6] = [2]uint32{c.want, 0}
		}
		w.jumps(want)
		w.states(map[State]int{Locked: 8})
	}
}

// Rule 9: when the reference steps, the frame steps, and no other clock does.
func TestRule9ReferenceSteps(t *testing.T) {
	w := newWorld(t, FrameOptions{Reference: "n00002"}, 8, allPairs(8))
	w.noise, w.rnoise = 50, 20e-9
	w.run(10)
	w.step(2, 300_000)
	w.run(10)
	w.drift(2, 20e-6)
	w.run(10)
	w.jumps(map[int][2]uint32{2: {1, 1}})
	w.states(map[State]int{Locked: 8})
}

// Rule 9: of two clocks alone it is unknown which one stepped.
func TestRule9TwoClocks(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 2, allPairs(2))
	w.noise, w.rnoise = 10, 1e-9
	w.run(5)
	w.states(map[State]int{Locked: 2})
	w.step(1, 50_000)
	w.run(1)
	w.states(map[State]int{Converging: 2})
	w.run(2)
	w.states(map[State]int{Locked: 2})
	w.jumps(nil)
}

// Rule 10: converging, locked, holdover, lost, and back.
func TestRule10States(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 16, ringWith(16, 1, 3, 6))
	w.noise, w.rnoise = 10, 1e-9
	w.run(2)
	w.states(map[State]int{Converging: 16})
	w.run(1)
	w.states(map[State]int{Locked: 16})
	w.quiet[4] = true
	held := w.get(4)
	w.run(3)
	w.states(map[State]int{Locked: 16})
	w.run(1)
	w.states(map[State]int{Locked: 15, Holdover: 1})
	w.run(100)
	w.states(map[State]int{Locked: 15, Holdover: 1})
	m := w.get(4)
	age := time.Duration(w.read(4, w.now) - m.Ref)
	if e, b := w.errors(), StatisticalBound(m.Sigma, m.RateSigma, age); math.Abs(e[4]) > b || b < 5*m.Sigma+float64(age-FreshFor)*temperatureStep {
		t.Errorf("in holdover off by %v with bound %v", e[4], b)
	}
	if m.Peers != 0 || m.Steps != held.Steps {
		t.Errorf("%+v", m)
	}
	if at, ok := w.frame.SolvedAt(w.names[4]); !ok || at != 6*time.Second { // its last reports are of second 3, and are fresh for 3 s
		t.Errorf("solved at %v", at)
	}
	w.run(900)
	w.states(map[State]int{Locked: 15, Holdover: 1}) // its bound is beyond LockBound
	w.run(9000)
	w.states(map[State]int{Locked: 15, Lost: 1})
	delete(w.quiet, 4)
	w.run(1)
	w.states(map[State]int{Locked: 15, Converging: 1})
	w.run(2)
	w.states(map[State]int{Locked: 16})
	w.jumps(nil)
	w.quiet[4] = true
	w.run(2)
	w.now += clockKept.Seconds()
	w.run(1)
	w.run(1)
	if _, ok := w.frame.MapOf(w.names[4]); ok {
		t.Error("a clock that is long gone still has a map")
	}
}

// Rule 10: what pairs predict keeps a clock in its component, but measures nothing.
func TestRule10Predicted(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 8, allPairs(8))
	w.noise, w.rnoise = 10, 1e-9
	w.run(4)
	w.spoil = func(p *PairEstimate) {
		if p.ID.Src == w.names[3]+"/e" || p.ID.Dst == w.names[3]+"/e" {
			p.Quality = Held
		}
	}
	w.run(2)
	w.states(map[State]int{Locked: 7, Holdover: 1})
	if w.last.Components != 1 {
		t.Errorf("%+v", w.last)
	}
	// Its temperature has changed unobserved: all predictions use the old rate.
	held := map[[2]int]PairEstimate{}
	for _, p := range w.pairs {
		held[p] = w.estimate(p)
	}
	w.drift(3, 1e-6)
	w.spoil = func(p *PairEstimate) {
		for _, h := range held {
			if h.ID == p.ID && (p.ID.Src == w.names[3]+"/e" || p.ID.Dst == w.names[3]+"/e") {
				h.Quality = Held
				h.Offset += int64(math.Round(h.Rate * float64(p.Ref-h.Ref)))
				h.Ref = p.Ref
				h.Sigma = GrownSigma(10, 1e-9, time.Duration(w.now)*time.Second)
				*p = h
			}
		}
	}
	for range 100 {
		w.run(1)
		m := w.get(3)
		if w.now < 7+FreshFor.Seconds() {
			continue
		}
		if b := StatisticalBound(m.Sigma, m.RateSigma, time.Duration(w.read(3, w.now)-m.Ref)); math.Abs(w.errors()[3]) > b {
			t.Fatalf("at %v s, predicted since 5 s, it is off by %v with bound %v", w.now, w.errors()[3], b)
		}
	}
	w.spoil = nil
	w.run(3)
	w.states(map[State]int{Locked: 8})
}

// Rule 10: the same holds between halves that only a prediction relates.
func TestRule10PredictedBetween(t *testing.T) {
	pairs := append(allPairs(4), [2]int{4, 5}, [2]int{4, 6}, [2]int{4, 7}, [2]int{5, 6}, [2]int{5, 7}, [2]int{6, 7}, [2]int{0, 4})
	w := newWorld(t, FrameOptions{}, 8, pairs)
	w.noise, w.rnoise = 10, 1e-9
	w.run(4)
	w.spoil = func(p *PairEstimate) {
		if p.ID.Src == w.names[0]+"/e" && p.ID.Dst == w.names[4]+"/e" {
			p.Quality = Held
		}
	}
	w.run(60)
	w.states(map[State]int{Locked: 8})
	if b := BoundSigmas * (w.get(1).Sigma + w.get(6).Sigma); b < 60_000 || b > 100_000 {
		t.Errorf("a minute later halves know each other to %v ns, want 1 ppm and little more", b)
	}
}

// Rule 10: a clock that stands still is lost, without an effect on others.
func TestRule10Frozen(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 16, ringWith(16, 1, 3, 6))
	w.noise, w.rnoise = 10, 1e-9
	w.run(4)
	w.spoil = func(p *PairEstimate) {
		if p.ID.Dst == w.names[5]+"/e" {
			p.Rate = -1
		} else if p.ID.Src == w.names[5]+"/e" {
			p.Rate = 1
		}
	}
	w.run(3)
	w.states(map[State]int{Locked: 15, Lost: 1})
	if w.get(5).State != Lost {
		t.Error("another one is lost")
	}
	var others []int
	for i := range w.names {
		if i != 5 {
			others = append(others, i)
		}
	}
	if e := most(w.errors(others...)); e > 40 {
		t.Errorf("%v ns", e)
	}
	w.spoil = nil
	w.run(3)
	w.states(map[State]int{Locked: 16})
}

// Rule 10: so is a clock of which its peers' pairs have had no estimate for two windows, whatever its
// own pairs still report. After one window it claims nothing. A restarted agent, which forgets all its
// pairs, is no evidence against any clock.
func TestRule10Missed(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 16, ringWith(16, 1, 3, 6))
	w.noise, w.rnoise = 10, 1e-9
	w.run(4)
	w.spoil = func(p *PairEstimate) {
		if p.ID.Dst == w.names[5]+"/e" {
			p.Quality = None
		} else if p.ID.Src == w.names[5]+"/e" {
			p.Rate, p.Sigma, p.RateSigma = 0, 1e7, 500
		}
	}
	w.run(1)
	w.states(map[State]int{Locked: 15, Converging: 1})
	for range 10 {
		w.run(1)
		w.states(map[State]int{Locked: 15, Lost: 1})
	}
	if w.get(5).State != Lost {
		t.Error("another one is lost")
	}
	w.spoil = nil
	w.run(1)
	w.states(map[State]int{Locked: 15, Converging: 1})
	w.run(2)
	w.states(map[State]int{Locked: 16})
	w.spoil = func(p *PairEstimate) {
		for _, i := range []int{2, 4, 5, 15} { // 5 and all that probe it
			if p.ID.Src == w.names[i]+"/e" {
				p.Quality = None
			}
		}
	}
	w.run(1)
	w.states(map[State]int{Locked: 15, Holdover: 1})
}

// Rule 11: neither the order in which nodes report nor the frame's earlier knowledge of others changes
// anything. The same reports give the same maps.
func TestRule11Order(t *testing.T) {
	maps := func(order int) []ClockMap {
		w := newWorld(t, FrameOptions{}, 50, ringWith(50, 1, 7, 13))
		w.noise, w.rnoise = 10, 1e-9
		for range 5 {
			w.now++
			reports := w.reports()
			switch order {
			case 1:
				slices.Reverse(reports)
			case 2:
				w.rng.Shuffle(0, nil)
				rand.New(rand.NewPCG(uint64(w.now), 9)).Shuffle(len(reports), func(i, j int) { reports[i], reports[j] = reports[j], reports[i] })
			}
			for _, r := range reports {
				w.frame.AddReport(r, time.Duration(w.now)*time.Second)
			}
			w.frame.Solve(time.Duration(w.now) * time.Second)
		}
		return slices.Collect(w.frame.AllMaps())
	}
	want := maps(0)
	if len(want) != 50 {
		t.Fatalf("%d clocks", len(want))
	}
	for order := range 3 {
		if got := maps(order); !reflect.DeepEqual(got, want) {
			t.Errorf("order %d gives other maps", order)
		}
	}
}

// Readings join a NIC's clock to the system clock, with their width as error and
// their sequence as rate.
func TestJoins(t *testing.T) {
	w := newWorld(t, FrameOptions{}, 8, allPairs(8))
	w.noise, w.rnoise = 10, 1e-9
	const offset, rate = 37e9, 12e-6
	for range 12 {
		at := w.read(2, w.now+1)
		gained := int64(math.Round(rate * float64(at-epoch)))
		w.frame.AddReport(&Report{Node: w.names[2], Joins: []Join{{A: w.names[2], B: w.names[2] + "/e", Ref: at, Offset: offset + gained + int64(w.rng.IntN(400)) - 200, Width: 400}}}, time.Duration(w.now+1)*time.Second)
		w.run(1)
	}
	m, ok := w.frame.MapOf(w.names[2] + "/e")
	if !ok || m.State != Locked || m.Component != w.get(0).Component {
		t.Fatalf("%+v", m)
	}
	if m.Sigma < 100 || m.Sigma > 150 || m.RateSigma > 1e-7 {
		t.Errorf("%+v", m)
	}
	at, sys := w.read(2, w.now), w.get(2)
	if d := m.FrameTime(at+offset+int64(rate*float64(at-epoch))) - sys.FrameTime(at); d > 300 || d < -300 {
		t.Errorf("off by %d ns", d)
	}
}

// The allowance of a clock is half of the largest of its pairs.
func TestAllowance(t *testing.T) {
	w := newWorld(t, FrameOptions{Allowance: func(id PairID) time.Duration {
		if id.Src == "n00001/e" || id.Dst == "n00001/e" {
			return 125
		}
		return 25
	}}, 4, [][2]int{{0, 1}, {0, 2}, {2, 3}})
	w.run(1)
	for i, want := range []int64{63, 63, 13, 13} {
		if got := w.get(i).Allowance; got != want {
			t.Errorf("clock %d: %d ns, want %d", i, got, want)
		}
	}
}

// The memory for a node's reports is bounded, and is freed when it no longer reports.
func TestBounded(t *testing.T) {
	f := NewFrame(FrameOptions{})
	for i := range 100 {
		r := &Report{Node: "a"}
		for j := range 1000 {
			r.Pairs = append(r.Pairs, PairEstimate{PairID{Src: "a/x", Dst: "b/x", Flow: i*1000 + j}, Estimate{Quality: Fine, Sigma: 1, RateSigma: 1e-9}})
		}
		f.AddReport(r, 0)
	}
	if n := len(f.nodes["a"].edges); n != maxNodeEdges {
		t.Errorf("%d edges", n)
	}
	f.Solve(estimateKept + 1)
	if len(f.nodes) != 0 || len(f.sorted) != 0 {
		t.Error("a silent node is kept")
	}
	f.Solve(clockKept + 1)
	if len(f.byName) != 0 || len(f.free) != 2 {
		t.Error("silent clocks are kept")
	}
}

// FuzzFrame checks that a cycle ends with any report, and that others get maps with finite numbers.
func FuzzFrame(f *testing.F) {
	f.Add(sampleReport().AppendTo(nil), sampleReport().AppendTo(nil))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		frame := NewFrame(FrameOptions{})
		mono := time.Duration(0)
		for range 3 {
			for _, b := range [][]byte{one, two} {
				if r, err := ParseReport(b); err == nil {
					frame.AddReport(r, mono)
				}
			}
			mono += time.Second
			frame.Solve(mono)
			for m := range frame.AllMaps() {
				if math.IsNaN(m.Sigma+m.RateSigma+m.Rate) || m.Sigma < 0 || math.IsInf(m.Sigma, 0) {
					t.Fatalf("%+v", m)
				}
			}
		}
	})
}

// Rule 10: a clock needs less than LockBound to lock, and a locked one stays related until LostBound:
// clocks that are known to two milliseconds show a delay of tens of milliseconds.
func TestRule10LockedIsHeldLonger(t *testing.T) {
	const coarse = 500e3 // ns of each estimate
	begin := func(noise float64) *world {
		w := newWorld(t, FrameOptions{}, 4, allPairs(4))
		w.noise, w.rnoise = noise, 1e-6
		w.run(10)
		return w
	}
	bounds := func(w *world) (least, most float64) {
		least = math.Inf(1)
		for i := range w.names {
			m := w.get(i)
			b := StatisticalBound(m.Sigma, m.RateSigma, time.Duration(w.read(i, w.now)-m.Ref))
			if e := math.Abs(w.errors()[i]); e > b {
				t.Errorf("%s is off by %v ns with bound %v", w.names[i], e, b)
			}
			least, most = min(least, b), max(most, b)
		}
		return least, most
	}
	w := begin(coarse)
	if least, _ := bounds(w); least < LockBound {
		t.Fatalf("bound %v is below %v: the test shows nothing", least, LockBound)
	}
	w.states(map[State]int{Converging: 4})
	w = begin(10)
	w.states(map[State]int{Locked: 4})
	w.noise = coarse
	for range 20 {
		w.run(1)
		if least, most := bounds(w); least < LockBound || most > LostBound {
			t.Fatalf("bounds %v to %v: the test shows nothing", least, most)
		}
		w.states(map[State]int{Locked: 4})
	}
}
