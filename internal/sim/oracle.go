package sim

import (
	"math"
)

const (
	// A window of the oracle, in bins whose samples count as taken in the middle.
	oracleBin  = int64(100_000_000) // ns
	oracleBins = 20
	bends      = int(int64(oracleBins)*oracleBin/tick) - 1 // ticks inside
	// unknowns of a clock: the offset and the rate at the end of the window, and
	// by how much the rate wandered at each bend.
	unknowns = 2 + bends
	// ridge keeps what no sample tells from being singular, 1/ns^2: a clock without
	// samples, and the time that all clocks share.
	ridge = 1e-13
	// solved is by how much conjugate gradients reduce the residual.
	solved = 1e-9
)

type (
	vector = [unknowns]float64
	matrix = [unknowns]vector
)

// bin sums the samples of one edge up, by direction.
type bin struct {
	n     [2]float64
	score [2]float64
}

// bond is what the samples of one edge in a window say: on the difference of its
// clocks' unknowns, when the delay is eliminated.
type bond struct {
	a, b int
	info matrix
}

// oracle is the yardstick of the package comment.
type oracle struct {
	s        *run
	density  [][2]*density // of an edge's ways
	bins     [][oracleBins]bin
	bonds    []bond
	block    []matrix // of the clocks: the diagonal, then its Cholesky factor
	pull     []vector
	estimate []vector
}

func newOracle(s *run) *oracle {
	n := s.o.Clocks
	o := &oracle{s: s, density: make([][2]*density, len(s.paths)), bins: make([][oracleBins]bin, len(s.paths)), bonds: make([]bond, len(s.paths)),
		block: make([]matrix, n), pull: make([]vector, n), estimate: make([]vector, n)}
	type key struct {
		load float64
		hops int
	}
	known := map[key]*density{}
	for e := range s.paths {
		for way, load := range s.load {
			k := key{load, s.paths[e].Hops}
			if known[k] == nil {
				known[k] = newDensity(s.o.Noise, load, k.hops)
			}
			o.density[e][way] = known[k]
		}
	}
	return o
}

// open empties the bins of the window that ends at end for its samples.
func (o *oracle) open(end int64) {
	for k := (end - window) / oracleBin; k < end/oracleBin; k++ {
		for e := range o.bins {
			o.bins[e][k%oracleBins] = bin{}
		}
	}
}

// sample takes the noise of one sample, ns, that was sent at true time t.
func (o *oracle) sample(e, way int, t int64, noise float64) {
	b := &o.bins[e][(t+o.s.telling())/oracleBin%oracleBins]
	b.n[way]++
	b.score[way] += o.density[e][way].at(noise)
}

// solve is the error of every clock's offset at the end of the last two seconds,
// ns, less the mean of the clocks that samples join; NaN without samples.
func (o *oracle) solve(end int64) []float64 {
	var form [oracleBins]vector // how the unknowns move the offset in a bin
	for k := range form {
		back := float64(int64(oracleBins-k)*oracleBin-oracleBin/2+o.s.telling()) / 1e9 // seconds before the end
		form[k][0], form[k][1] = 1, -back
		for b := range bends {
			// Before bend b, counted back from the end, the rate was another.
			form[k][2+b] = max(back-float64(int64(b+1)*tick)/1e9, 0)
		}
	}
	joined := newUnion(o.s.o.Clocks)
	prior := 1 / (wander * wander * float64(tick) / 1e9 * 1e18) // of a bend, in ns per second
	for c := range o.block {
		o.block[c], o.pull[c] = matrix{}, vector{}
		for i := range unknowns {
			o.block[c][i][i] = ridge
		}
		for b := range bends {
			o.block[c][2+b][2+b] += prior
			// The score of the wander, at the truth.
			walked := o.s.clocks.segment(c, end-int64(b+1)*tick).walked
			o.pull[c][2+b] -= prior * walked * 1e9
		}
	}
	for e := range o.bonds {
		o.bond(e, end, &form, joined)
	}
	o.conjugate()
	return joined.centred(func(c int) float64 { return o.estimate[c][0] })
}

// bond sums the samples of an edge up and eliminates its delay.
func (o *oracle) bond(e int, end int64, form *[oracleBins]vector, joined *union) {
	p := &o.s.paths[e]
	m := &o.bonds[e]
	*m = bond{a: p.A, b: p.B}
	var cross, pull vector // unknowns with the delay; score of the unknowns
	var info, score float64
	for k := range form {
		b := &o.bins[e][(end/oracleBin+int64(k))%oracleBins]
		f, r := b.n[0]*o.density[e][0].info, b.n[1]*o.density[e][1].info
		info += f + r
		score += b.score[0] + b.score[1]
		x := &form[k]
		for i := range unknowns {
			cross[i] += (f - r) * x[i]
			pull[i] += (b.score[0] - b.score[1]) * x[i]
			for j := range i + 1 {
				m.info[i][j] += (f + r) * x[i] * x[j]
			}
		}
	}
	if info == 0 {
		return
	}
	joined.join(p.A, p.B)
	for i := range unknowns {
		for j := range i + 1 {
			m.info[i][j] -= cross[i] * cross[j] / info
			m.info[j][i] = m.info[i][j]
		}
		pull[i] -= cross[i] * score / info
		o.pull[p.A][i] -= pull[i]
		o.pull[p.B][i] += pull[i]
	}
	for i := range unknowns {
		for j := range unknowns {
			o.block[p.A][i][j] += m.info[i][j]
			o.block[p.B][i][j] += m.info[i][j]
		}
	}
}

// conjugate solves for the estimate by conjugate gradients, preconditioned with
// the blocks of the clocks.
func (o *oracle) conjugate() {
	n := len(o.block)
	diagonal := make([]matrix, n)
	copy(diagonal, o.block)
	for c := range o.block {
		cholesky(&o.block[c])
	}
	residual, way, image := make([]vector, n), make([]vector, n), make([]vector, n)
	clear(o.estimate)
	copy(residual, o.pull)
	var first, last float64
	for {
		// image holds the preconditioned residual until it holds the way's image.
		for c := range residual {
			image[c] = residual[c]
			substitute(&o.block[c], &image[c])
		}
		size := dot(residual, image)
		if first == 0 {
			first = size
		}
		if size <= solved*solved*first {
			return
		}
		grow := 0.0
		if last > 0 {
			grow = size / last
		}
		last = size
		for c := range way {
			for i := range unknowns {
				way[c][i] = image[c][i] + grow*way[c][i]
			}
		}
		o.multiply(diagonal, way, image)
		by := size / dot(way, image)
		for c := range way {
			for i := range unknowns {
				o.estimate[c][i] += by * way[c][i]
				residual[c][i] -= by * image[c][i]
			}
		}
	}
}

// multiply is the information matrix times x: the clocks' own blocks, and minus
// the bonds' between them.
func (o *oracle) multiply(diagonal []matrix, x, y []vector) {
	for c := range y {
		y[c] = vector{}
		add(&diagonal[c], &x[c], &y[c], 1)
	}
	for e := range o.bonds {
		m := &o.bonds[e]
		add(&m.info, &x[m.a], &y[m.b], -1)
		add(&m.info, &x[m.b], &y[m.a], -1)
	}
}

// add adds a times m times x to y.
func add(m *matrix, x, y *vector, a float64) {
	for i := range unknowns {
		sum := 0.0
		for j := range unknowns {
			sum += m[i][j] * x[j]
		}
		y[i] += a * sum
	}
}

func dot(x, y []vector) float64 {
	sum := 0.0
	for c := range x {
		for i := range unknowns {
			sum += x[c][i] * y[c][i]
		}
	}
	return sum
}

// cholesky replaces a symmetric matrix by its lower factor.
func cholesky(m *matrix) {
	for i := range unknowns {
		for j := range i + 1 {
			sum := m[i][j]
			for k := range j {
				sum -= m[i][k] * m[j][k]
			}
			if i == j {
				m[i][i] = math.Sqrt(max(sum, ridge))
			} else {
				m[i][j] = sum / m[j][j]
			}
		}
	}
}

// substitute solves with a Cholesky factor, in place.
func substitute(l *matrix, x *vector) {
	for i := range unknowns {
		for k := range i {
			x[i] -= l[i][k] * x[k]
		}
		x[i] /= l[i][i]
	}
	for i := unknowns - 1; i >= 0; i-- {
		for k := i + 1; k < unknowns; k++ {
			x[i] -= l[k][i] * x[k]
		}
		x[i] /= l[i][i]
	}
}

// union tells which clocks samples join.
type union struct{ of []int }

func newUnion(n int) *union {
	u := &union{of: make([]int, n)}
	for i := range u.of {
		u.of[i] = i
	}
	return u
}

func (u *union) root(c int) int {
	for u.of[c] != c {
		u.of[c] = u.of[u.of[c]]
		c = u.of[c]
	}
	return c
}

func (u *union) join(a, b int) { u.of[u.root(a)] = u.root(b) }

// centred takes the mean of its component from every clock's value; NaN stands
// for clocks that nothing joins.
func (u *union) centred(value func(int) float64) []float64 {
	sum, count := make([]float64, len(u.of)), make([]float64, len(u.of))
	for c := range u.of {
		sum[u.root(c)] += value(c)
		count[u.root(c)]++
	}
	out := make([]float64, len(u.of))
	for c := range out {
		out[c] = math.NaN()
		if r := u.root(c); count[r] > 1 {
			out[c] = value(c) - sum[r]/count[r]
		}
	}
	return out
}
