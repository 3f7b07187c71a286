package sim

import "math"

// solveCloseness is by how much conjugate gradients reduce the residual of what is
// solved once.
const solveCloseness = 1e-9

// bond holds the information of the samples of one edge about the difference of its clocks' unknowns.
type bond struct {
	a, b int
	info matrix
}

// system is the linear equations of a step: information times step is pull. It
// keeps the bonds apart, as a clock has few.
type system struct {
	priorInfo *vector // information of every clock on its own
	bonds     []bond
	pull      []vector
	block     []matrix // of the clocks: the preconditioner's Cholesky factors
}

func newSystem(clocks int, paths []path) *system {
	m := &system{bonds: make([]bond, len(paths)), pull: make([]vector, clocks), block: make([]matrix, clocks)}
	for e, p := range paths {
		m.bonds[e].a, m.bonds[e].b = p.A, p.B
	}
	return m
}

// resetTo leaves every clock with what is known of it alone.
func (m *system) resetTo(stiff *vector) {
	m.priorInfo = stiff
	for e := range m.bonds {
		m.bonds[e].info = matrix{}
	}
	clear(m.pull)
}

// addEdge sets an edge's information on how far its second clock's unknowns are
// ahead of the first one's, and adds its pull.
func (m *system) addEdge(e int, info *matrix, pull *vector) {
	b := &m.bonds[e]
	b.info = *info
	for i := range unknowns {
		m.pull[b.a][i] -= pull[i]
		m.pull[b.b][i] += pull[i]
	}
}

// computePreconditioner takes the clocks' own blocks of the present system for all
// solutions to come: of a system whose information is positive.
func (m *system) computePreconditioner() {
	for c := range m.block {
		m.block[c] = matrix{}
		for i, x := range m.priorInfo {
			m.block[c][i][i] = x
		}
	}
	for e := range m.bonds {
		b := &m.bonds[e]
		for i := range unknowns {
			for j := range unknowns {
				m.block[b.a][i][j] += b.info[i][j]
				m.block[b.b][i][j] += b.info[i][j]
			}
		}
	}
	for c := range m.block {
		factorCholesky(&m.block[c])
	}
}

// solveStep finds the step by conjugate gradients, until the residual is that much
// smaller. Where the information is negative along a way the step goes no
// further: what it has goes uphill.
func (m *system) solveStep(closeness float64) []vector {
	n := len(m.block)
	step, residual, way, image := make([]vector, n), make([]vector, n), make([]vector, n), make([]vector, n)
	copy(residual, m.pull)
	var first, last float64
	for {
		// image holds the preconditioned residual until it holds the way's image.
		for c := range residual {
			image[c] = residual[c]
			solveCholesky(&m.block[c], &image[c])
		}
		size := dotProduct(residual, image)
		if first == 0 {
			first = size
		}
		if size <= closeness*closeness*first {
			return step
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
		m.multiplyInfo(way, image)
		bent := dotProduct(way, image)
		if bent <= 0 {
			if grow == 0 {
				copy(step, way)
			}
			return step
		}
		by := size / bent
		for c := range way {
			for i := range unknowns {
				step[c][i] += by * way[c][i]
				residual[c][i] -= by * image[c][i]
			}
		}
	}
}

// multiplyInfo sets y to the information times x.
func (m *system) multiplyInfo(x, y []vector) {
	for c := range y {
		for i := range unknowns {
			y[c][i] = m.priorInfo[i] * x[c][i]
		}
	}
	for e := range m.bonds {
		b := &m.bonds[e]
		var apart vector
		for i := range unknowns {
			apart[i] = x[b.b][i] - x[b.a][i]
		}
		for i := range unknowns {
			sum := 0.0
			for j := range unknowns {
				sum += b.info[i][j] * apart[j]
			}
			y[b.a][i] -= sum
			y[b.b][i] += sum
		}
	}
}

func dotProduct(x, y []vector) float64 {
	sum := 0.0
	for c := range x {
		for i := range unknowns {
			sum += x[c][i] * y[c][i]
		}
	}
	return sum
}

// factorCholesky replaces a symmetric matrix by its lower factor.
func factorCholesky(m *matrix) {
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

// solveCholesky solves with a Cholesky factor, in place.
func solveCholesky(l *matrix, x *vector) {
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

// disjointSets finds the clocks that samples join.
type disjointSets struct{ parents []int }

func newDisjointSets(n int) *disjointSets {
	u := &disjointSets{parents: make([]int, n)}
	for i := range u.parents {
		u.parents[i] = i
	}
	return u
}

func (u *disjointSets) rootOf(c int) int {
	for u.parents[c] != c {
		u.parents[c] = u.parents[u.parents[c]]
		c = u.parents[c]
	}
	return c
}

func (u *disjointSets) joinClocks(a, b int) { u.parents[u.rootOf(a)] = u.rootOf(b) }

// centredValues takes the mean of its component from every clock's value; NaN stands
// for clocks that nothing joins.
func (u *disjointSets) centredValues(value func(int) float64) []float64 {
	sum, count := make([]float64, len(u.parents)), make([]float64, len(u.parents))
	for c := range u.parents {
		sum[u.rootOf(c)] += value(c)
		count[u.rootOf(c)]++
	}
	out := make([]float64, len(u.parents))
	for c := range out {
		out[c] = math.NaN()
		if r := u.rootOf(c); count[r] > 1 {
			out[c] = value(c) - sum[r]/count[r]
		}
	}
	return out
}
