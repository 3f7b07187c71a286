package clocksync

import (
	"math"
	"sync"
)

// laplacian is a weighted graph as the matrix of its normal equations: row k has the sum of k's weights
// on the diagonal and, for every neighbour, minus the weight between the two. It is singular, since no
// difference depends on a term that all clocks of a component have in common.
type laplacian struct {
	start   []int32 // index of row k in entries; one more than rows
	entries []entry // several between the same two clocks add up
	diag    []float64
}

// entry is an edge in the row of one of its clocks. Its weight is rounded in the same way in both rows.
// The next pass corrects the error of rounding.
type entry struct {
	to int32
	w  float32
}

// Rows in a piece of work. Sums are computed piece by piece and then added in the order of the pieces,
// so that the result does not depend on the goroutines.
const pieceRows = 8192

// inPieces calls f for every piece of 0..n, on two goroutines if that is faster.
func inPieces(n int, f func(piece, from, to int)) {
	pieces := (n + pieceRows - 1) / pieceRows
	some := func(first, step int) {
		for p := first; p < pieces; p += step {
			f(p, p*pieceRows, min(n, (p+1)*pieceRows))
		}
	}
	if pieces < 2 {
		some(0, 1)
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { some(1, 2) })
	some(0, 2)
	wg.Wait()
}

// conjugateSolver keeps the vectors of an iteration between calls.
type conjugateSolver struct {
	r, p, q    []float64
	sums, most []float64 // by piece
}

const mostIterations = 500

// solve solves Lx = b by conjugate gradients with the diagonal as preconditioner, from x = 0. It ends
// when every clock's residual is at most tol of its own standard deviation, and returns the number of
// iterations. b must sum to zero over every component. x is then correct except for a constant of each
// component.
func (c *conjugateSolver) solve(l *laplacian, b, x []float64, tol float64) (iterations int) {
	n := len(b)
	c.r, c.p, c.q = resizeSlice(c.r, n), resizeSlice(c.p, n), resizeSlice(c.q, n)
	pieces := (n + pieceRows - 1) / pieceRows
	c.sums, c.most = resizeSlice(c.sums, pieces), resizeSlice(c.most, pieces)
	// The remainder of b after rounding is no residual.
	floor := func(most float64) float64 { return max(tol, 1e-11*most) }
	inPieces(n, func(piece, from, to int) {
		sum, most := 0.0, 0.0
		for k := from; k < to; k++ {
			x[k], c.r[k], c.p[k] = 0, b[k], 0
			if d := l.diag[k]; d > 0 {
				c.p[k] = b[k] / d
				s := b[k] * c.p[k]
				sum, most = sum+s, max(most, s)
			}
		}
		c.sums[piece], c.most[piece] = sum, most
	})
	rho, most := sumOf(c.sums), math.Sqrt(maxOf(c.most))
	end := floor(most)
	for most > end && iterations < mostIterations {
		iterations++
		inPieces(n, func(piece, from, to int) {
			sum := 0.0
			for k := from; k < to; k++ {
				v := l.diag[k] * c.p[k]
				for _, e := range l.entries[l.start[k]:l.start[k+1]] {
					v -= float64(e.w) * c.p[e.to]
				}
				c.q[k] = v
				sum += v * c.p[k]
			}
			c.sums[piece] = sum
		})
		alpha := rho / sumOf(c.sums)
		inPieces(n, func(piece, from, to int) {
			sum, most := 0.0, 0.0
			for k := from; k < to; k++ {
				x[k] += alpha * c.p[k]
				c.r[k] -= alpha * c.q[k]
				if d := l.diag[k]; d > 0 {
					s := c.r[k] * c.r[k] / d
					sum, most = sum+s, max(most, s)
				}
			}
			c.sums[piece], c.most[piece] = sum, most
		})
		next := sumOf(c.sums)
		beta := next / rho
		rho, most = next, math.Sqrt(maxOf(c.most))
		inPieces(n, func(_, from, to int) {
			for k := from; k < to; k++ {
				if d := l.diag[k]; d > 0 {
					c.p[k] = c.r[k]/d + beta*c.p[k]
				}
			}
		})
	}
	return iterations
}

func sumOf(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum
}

func maxOf(v []float64) float64 {
	most := 0.0
	for _, x := range v {
		most = max(most, x)
	}
	return most
}

// resizeSlice returns v with n elements of any value. It allocates only to grow.
func resizeSlice[T any](v []T, n int) []T {
	if cap(v) < n {
		return make([]T, n, n+n/8)
	}
	return v[:n]
}

// denseFactor is the inverse of a component's Cholesky factor, from which variances follow exactly.
type denseFactor struct {
	n      int
	inv    []float64 // of the lower factor, row by row
	ground int       // index of the member that the others are related to, or -1 for their mean
	common float64   // excess of every covariance, if it is relative to the mean
}

// newDense factorises the component of the given members. With a ground the covariances are relative to
// that member, else to the mean of all, weighted by their diagonals: an uncertain clock does not move
// the others. The work is n^3/3 multiplications. It returns nil if rounding leaves the matrix
// indefinite.
func newDense(l *laplacian, members []int32, place []int32, ground int) *denseFactor {
	d := &denseFactor{n: len(members), ground: ground}
	n := d.n
	a := make([]float64, n*n)
	if ground < 0 {
		// L + d d'/w, with d the diagonal and w its sum, maps ones to d. Therefore its inverse is the
		// covariance relative to the mean by d, plus 1/w everywhere.
		weight := 0.0
		for _, k := range members {
			weight += l.diag[k]
		}
		d.common = 1 / weight
		for i, k := range members {
			for j, m := range members {
				a[i*n+j] = l.diag[k] * l.diag[m] / weight
			}
		}
	}
	for i, k := range members {
		if i == ground {
			a[i*n+i] = 1 // alone in its row: it is related to itself
			continue
		}
		a[i*n+i] += l.diag[k]
		for _, e := range l.entries[l.start[k]:l.start[k+1]] {
			if j := int(place[e.to]); j != ground && e.w > 0 {
				a[i*n+j] -= float64(e.w)
			}
		}
	}
	for i := range n {
		row := a[i*n : i*n+n]
		for j := range i {
			row[j] = (row[j] - dot(row[:j], a[j*n:j*n+j])) / a[j*n+j]
		}
		v := row[i] - dot(row[:i], row[:i])
		if !(v > 0) {
			return nil
		}
		row[i] = math.Sqrt(v)
	}
	// Row i of the inverse is (e_i - the rows before it, weighted by the factor) / factor_ii.
	d.inv = make([]float64, n*n)
	for i := range n {
		row := d.inv[i*n : i*n+i+1]
		for j := range i {
			addScaled(row[:j+1], -a[i*n+j], d.inv[j*n:j*n+j+1])
		}
		for j := range row {
			row[j] /= a[i*n+i]
		}
		row[i] = 1 / a[i*n+i]
	}
	return d
}

// differenceVariance returns the variance of the difference of two members.
func (d *denseFactor) differenceVariance(i, j int) float64 {
	v := 0.0
	for k := min(i, j); k < d.n; k++ {
		row := d.inv[k*d.n : k*d.n+d.n]
		v += (row[i] - row[j]) * (row[i] - row[j])
	}
	return v
}

// variances returns the variances of all members.
func (d *denseFactor) variances() []float64 {
	out := make([]float64, d.n)
	for k := range d.n {
		for i, v := range d.inv[k*d.n : k*d.n+k+1] {
			out[i] += v * v
		}
	}
	for i := range out {
		if i == d.ground {
			out[i] = 0
		} else if d.ground < 0 {
			out[i] = max(0, out[i]-d.common)
		}
	}
	return out
}

func dot(x, y []float64) float64 {
	var a, b, c, d float64
	for len(x) >= 4 && len(y) >= 4 {
		a += x[0] * y[0]
		b += x[1] * y[1]
		c += x[2] * y[2]
		d += x[3] * y[3]
		x, y = x[4:], y[4:]
	}
	for i := range x {
		a += x[i] * y[i]
	}
	return a + b + c + d
}

func addScaled(x []float64, f float64, y []float64) {
	for i, v := range y {
		x[i] += f * v
	}
}

// sketch estimates one clock's variance from random right-hand sides: if the weighted differences of b
// are drawn with variance one, then y, the solution, has the covariance that is sought. D is the
// diagonal of a clock. Of D times its variance, 1 is known beforehand, as if its neighbours were exact.
// The contribution of the neighbours is the mean of y (D y - b). Only that part is subject to chance.
type sketch struct {
	n, sum, squares float64
}

// sketchMemory is the number of samples that count. Older ones fade.
const sketchMemory = 32

func (s *sketch) addSample(d, b, y float64) {
	q := y * (d*y - b)
	if s.n >= sketchMemory {
		f := (sketchMemory - 1) / s.n
		s.n, s.sum, s.squares = s.n*f, s.sum*f, s.squares*f
	}
	s.n, s.sum, s.squares = s.n+1, s.sum+q, s.squares+q*q
}

// variance returns the variance of a clock with diagonal d, plus twice the standard error of the
// sketch: it is too large by about a tenth once there are many samples. Without samples the
// contribution of the neighbours is assumed to be three times as large.
func (s *sketch) variance(d float64) float64 {
	if s.n == 0 {
		return 4 / d
	}
	mean := s.sum / s.n
	// One sample of variance one counts as an earlier one.
	spread := (max(0, s.squares-s.sum*mean) + 1) / s.n
	return max(1, 1+mean+2*math.Sqrt(spread/s.n)) / d
}
