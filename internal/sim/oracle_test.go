package sim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// gaussian returns the density of normal noise: its score is a straight line.
func gaussian(sigma float64) *density {
	d := &density{low: -2000, step: 1, log: make([]float64, 4001), info: 1 / (sigma * sigma)}
	for i := range d.log {
		x := d.low + float64(i)
		d.log[i] = -x * x / (2 * sigma * sigma)
	}
	return d
}

// TestOracleIsLeastSquares: with normal noise both errors are that of
// weighted least squares over every single sample, with offset, rate and wander
// of every clock and the delay of every edge unknown: the inverse of Fisher's
// information is its covariance.
func TestOracleIsLeastSquares(t *testing.T) {
	o := options(5, []Edge{{0, 1, 1}, {1, 2, 3}, {2, 3, 1}, {3, 0, 3}, {0, 2, 5}, {3, 4, 1}})
	s := newRun(o, idle{})
	or := newOracle(s)
	r := rand.New(rand.NewPCG(8, 9))
	sigma := [2]float64{20, 50}
	for e := range or.density {
		or.density[e] = [2]*density{gaussian(sigma[0]), gaussian(sigma[1])}
	}
	const end = 3 * int64(time.Second)
	s.clocks.advanceTo(end)

	// Least squares: the unknowns of the clocks, then the delays.
	n := 5*unknowns + len(o.Edges)
	a, b := make([][]float64, n), make([]float64, n)
	for i := range a {
		a[i] = make([]float64, n)
	}
	observe := func(row map[int]float64, y, weight float64) {
		for i, x := range row {
			for j, z := range row {
				a[i][j] += weight * x * z
			}
			b[i] += weight * x * y
		}
	}
	for e, edge := range o.Edges {
		for k := range oracleBins {
			at := end - 2*window + int64(k)*oracleBin + oracleBin/2
			for way := range 2 {
				for range 1 + r.IntN(5) {
					noise := math.Round(sigma[way]*r.NormFloat64()*100) / 100
					or.addSample(e, way, at-s.stampDelay(), noise)
					back := float64(end-at+s.stampDelay()) / 1e9
					row := map[int]float64{5*unknowns + e: 1}
					sign := 1 - 2*float64(way)
					for i := range unknowns {
						x := 1.0
						switch {
						case i == 1:
							x = -back
						case i > 1:
							x = max(back-0.2*float64(i-1), 0)
						}
						if x != 0 {
							row[edge.B*unknowns+i] = sign * x
							row[edge.A*unknowns+i] = -sign * x
						}
					}
					observe(row, noise, 1/(sigma[way]*sigma[way]))
				}
			}
		}
	}
	for c := range 5 {
		for i := 2; i < unknowns; i++ {
			// The rate walks by 0.1 ppm in a minute: 5.77 ns/s in a tick.
			walked := s.clocks.segmentAt(c, end-int64(i-1)*tick).rateWalk * 1e9
			observe(map[int]float64{c*unknowns + i: 1}, -walked, 60/(100*100*0.2))
		}
	}
	for c := range 5 { // the gauge: no sample determines the common offset and rate
		for i := range 2 {
			a[c*unknowns+i][c*unknowns+i] += 1e-13
		}
	}
	x := gauss(a, b)
	mean := 0.0
	for c := range 5 {
		mean += x[c*unknowns] / 5
	}
	likeliest, scoring := or.solveWindow(end)
	for c := range 5 {
		want := x[c*unknowns] - mean
		if math.Abs(scoring[c]-want) > 1e-4 || math.Abs(likeliest[c]-want) > 1e-2 {
			t.Errorf("clock %d: errors %.6f and %.6f ns, least squares have %.6f", c, likeliest[c], scoring[c], want)
		}
	}
}

// gauss solves by elimination.
func gauss(a [][]float64, b []float64) []float64 {
	n := len(b)
	for i := range n {
		p := i
		for j := i; j < n; j++ {
			if math.Abs(a[j][i]) > math.Abs(a[p][i]) {
				p = j
			}
		}
		a[i], a[p], b[i], b[p] = a[p], a[i], b[p], b[i]
		for j := i + 1; j < n; j++ {
			f := a[j][i] / a[i][i]
			for k := i; k < n; k++ {
				a[j][k] -= f * a[i][k]
			}
			b[j] -= f * b[i]
		}
	}
	for i := n - 1; i >= 0; i-- {
		for k := i + 1; k < n; k++ {
			b[i] -= a[i][k] * b[k]
		}
		b[i] /= a[i][i]
	}
	return b
}

// TestOracleKnowsNothingOfTheUnjoined: clocks without samples have no error, and
// means are taken by component.
func TestOracleKnowsNothingOfTheUnjoined(t *testing.T) {
	o := options(5, []Edge{{0, 1, 1}, {2, 3, 1}})
	or := filled(o)
	for i, x := range or.both(2 * window) {
		if !math.IsNaN(x[4]) || math.Abs(x[0]+x[1]) > 1e-6 || math.Abs(x[2]+x[3]) > 1e-6 || x[0] == 0 || x[0] == x[2] {
			t.Errorf("errors %d: %v", i, x)
		}
	}
}

// filled returns an oracle with the samples of the first two windows.
func filled(o Options) *oracle {
	s := newRun(o, idle{})
	s.oracle = newOracle(s)
	for end := window; end <= 2*window; end += window {
		s.clocks.advanceTo(end)
		s.oracle.openWindow(end)
		for e := range s.paths {
			s.sendProbes(e, end-s.stampDelay())
		}
	}
	return s.oracle
}

func (o *oracle) both(end int64) [2][]float64 {
	likeliest, scoring := o.solveWindow(end)
	return [2][]float64{likeliest, scoring}
}

// TestOracleIsLikeliest: where the climb ends is likelier than the truth, and no
// clock's offset or rate can be moved to make it likelier still.
func TestOracleIsLikeliest(t *testing.T) {
	for _, noise := range []Noise{Hardware, Kernel} {
		for _, load := range []float64{0, 0.4, 0.8, 0.9} {
			var edges []Edge
			for i := range 10 {
				edges = append(edges, Edge{i, (i + 1) % 10, 1}, Edge{i, (i + 3) % 10, 3}, Edge{i, (i + 5) % 10, 3})
			}
			o := options(10, edges)
			o.Noise, o.Load = noise, load
			or := filled(o)
			or.solveWindow(2 * window)
			place, gained, left := or.climbToPeak()
			if gained <= 0 || left >= summit {
				t.Errorf("%s, load %g: %g likelier than the truth, and the next step would add %g", noise, load, gained, left)
			}
			from := append([]float64{}, or.delays...)
			top := or.logLikelihood(place, from)
			for c := range place {
				for i := range 2 {
					// A hundredth of what the samples can resolve.
					by := 0.01 / or.system.block[c][i][i]
					for _, by := range []float64{by, -by} {
						place[c][i] += by
						if l := or.logLikelihood(place, from); l > top+1e-6 {
							t.Errorf("%s, load %g: clock %d, unknown %d moved by %g is %g likelier", noise, load, c, i, by, l-top)
						}
						place[c][i] -= by
					}
				}
			}
		}
	}
}

// TestOracleScores: what a step goes by is how the likelihood grows, also away
// from its maximum.
func TestOracleScores(t *testing.T) {
	o := options(6, ring(6))
	o.Load = 0.8
	or := filled(o)
	or.solveWindow(2 * window)
	place, from := make([]vector, 6), make([]float64, 6)
	place[2][0], place[4][1], place[1][4] = 20, -15, 3
	or.logLikelihood(place, from)
	copy(from, or.delays)
	or.assembleSystem(place)
	pull := append([]vector{}, or.system.pull...)
	for c := range place {
		for i := range unknowns {
			const by = 1e-3
			place[c][i] += by
			more := or.logLikelihood(place, from)
			place[c][i] -= 2 * by
			slope := (more - or.logLikelihood(place, from)) / (2 * by)
			place[c][i] += by
			if math.Abs(slope-pull[c][i]) > 1e-4*(1+math.Abs(slope)) {
				t.Errorf("clock %d, unknown %d: score %g, the likelihood grows by %g", c, i, pull[c][i], slope)
			}
		}
	}
}

// TestOracleAttainsTheBound: with many clean packets the likeliest place errs by
// what Cramer and Rao allow.
func TestOracleAttainsTheBound(t *testing.T) {
	for _, noise := range []Noise{Hardware, Kernel} {
		o := options(8, append(ring(8), Edge{0, 4, 3}, Edge{1, 5, 3}, Edge{2, 6, 3}, Edge{3, 7, 3}))
		o.Noise, o.Load, o.Duration = noise, 0, 60*time.Second
		r, err := Run(t.Context(), o, idle{}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range [][2]float64{{r.Oracle.P50, r.CramerRao.P50}, {r.Oracle.P99, r.CramerRao.P99}} {
			if math.Abs(got[0]/got[1]-1) > 0.1 {
				t.Errorf("%s: oracle %+v, Cramer and Rao %+v", noise, r.Oracle, r.CramerRao)
			}
		}
	}
}
