package plan

import "math"

// program is a linear program of the form: maximise c*x with A*x <= b, x >= 0 and b >= 0, as a dense tableau. Its columns
// are the variables and then one slack for each row.
type program struct {
	rows  [][]float64 // the last column is b
	basis []int
	fixed []bool // columns that stay out of the basis, at 0
	vars  int
	some  []int32 // columns of the pivot's row that are not 0
	work  int     // cells that may still be changed
}

// tolerance is what counts as 0 in a program whose coefficients are near 1.
const tolerance = 1e-9

// newProgram returns a program of vars variables and len(b) rows, without coefficients. work bounds the cells that are changed. Each b gets a tiny amount of its own,
// since simplex walks in circles where many are equal.
func newProgram(vars int, b []float64, work int) *program {
	p := &program{vars: vars, work: work, fixed: make([]bool, vars+len(b))}
	for i, v := range b {
		row := make([]float64, vars+len(b)+1)
		row[vars+i] = 1
		row[len(row)-1] = v + 1e-8*(1+float64(mix(uint64(i))%1000)/1000)
		p.rows, p.basis = append(p.rows, row), append(p.basis, vars+i)
	}
	return p
}

// maximize maximises the sum of cost*x and returns its value and the reduced costs of the columns. Columns whose reduced
// cost is not 0 are then fixed, so that a later call keeps the value. ok is false if it takes too much work.
func (p *program) maximize(column int) (value float64, reduced []float64, ok bool) {
	width := len(p.rows[0])
	z := make([]float64, width)
	z[column] = -1
	for i, col := range p.basis {
		if col == column {
			for k, v := range p.rows[i] {
				z[k] += v
			}
		}
	}
	for step := 0; ; step++ {
		enter, best := -1, -tolerance
		for c := range width - 1 {
			if z[c] < best && !p.fixed[c] {
				enter, best = c, z[c]
			}
		}
		if enter < 0 {
			break
		}
		leave, least := -1, math.Inf(1)
		for i, row := range p.rows {
			if row[enter] > tolerance {
				if ratio := row[width-1] / row[enter]; ratio < least {
					leave, least = i, ratio
				}
			}
		}
		if leave < 0 || p.work <= 0 || step > 50*(len(p.rows)+100) {
			return 0, nil, false
		}
		p.pivot(leave, enter, z)
	}
	for c := range width - 1 {
		if z[c] > 1e-7 {
			p.fixed[c] = true
		}
	}
	return z[width-1], z[:width-1], true
}

// pivot brings a column into the basis, in a row.
func (p *program) pivot(leave, enter int, z []float64) {
	row := p.rows[leave]
	f := 1 / row[enter]
	p.some = p.some[:0]
	for k, v := range row {
		if v != 0 {
			row[k] = v * f
			p.some = append(p.some, int32(k))
		}
	}
	subtract := func(other []float64) {
		if f := other[enter]; f != 0 {
			for _, k := range p.some {
				other[k] -= f * row[k]
			}
			other[enter] = 0
			p.work -= len(p.some)
		}
	}
	for i, other := range p.rows {
		if i != leave {
			subtract(other)
		}
	}
	subtract(z)
	p.basis[leave] = enter
}

// addColumn adds a variable whose coefficients in the rows at the start are given, and returns its column. It is put in
// front of b.
func (p *program) addColumn(coefficients map[int]float64) int {
	at := len(p.rows[0]) - 1
	for i, row := range p.rows {
		v := 0.0
		for r := range p.rows {
			if c := coefficients[r]; c != 0 {
				v += c * row[p.vars+r]
			}
		}
		row = append(row, row[at])
		row[at] = v
		p.rows[i] = row
	}
	p.fixed = append(p.fixed, false)
	return at
}

// mix returns 64 bits that depend on all bits of x (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
