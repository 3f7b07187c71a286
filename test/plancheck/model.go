package plancheck

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// entry is a coefficient of a variable.
type entry struct {
	row   int
	value float64
}

// column is a variable. It is at least 0, and the objective that is maximized has gain times it.
type column struct {
	entries []entry
	gain    float64
	most    float64 // its upper bound; infinite without one
	// fixed states that the variable is what most is. It could be less without making others impossible.
	fixed bool
}

// program is a linear program: no row may be above its bound.
type program struct {
	bounds  []float64
	columns []column
}

// model is what all programs of some connections have in common: variables for flows, and their rows. The first rows are the connections', in
// which flows carry what the rate of the connection's job asks for.
type model struct {
	program
	conns    []connection
	limits   []float64 // of the rates of the jobs
	capacity map[string]int
	balance  map[[2]string]int
}

func newModel(s *sent) *model {
	return &model{program: program{bounds: make([]float64, len(s.conns))}, conns: s.conns, limits: s.limits, capacity: map[string]int{}, balance: map[[2]string]int{}}
}

// column adds a variable of a flow and returns its number.
func (m *model) column(entries ...entry) int {
	m.columns = append(m.columns, column{entries: entries, most: math.Inf(1)})
	return len(m.columns) - 1
}

func (m *model) add(column, row int, value float64) {
	m.columns[column].entries = append(m.columns[column].entries, entry{row, value})
}

// capacityRow returns the row of a direction, in which flows are no more than its capacity.
func (m *model) capacityRow(direction string, capacity float64) int {
	row, known := m.capacity[direction]
	if !known {
		row = len(m.bounds)
		m.capacity[direction] = row
		m.bounds = append(m.bounds, capacity)
	}
	return row
}

// balanceRow returns the row of a switch, in which flows to a leaf that come in are no more than those that go out.
func (m *model) balanceRow(leaf, sw string) int {
	row, known := m.balance[[2]string{leaf, sw}]
	if !known {
		row = len(m.bounds)
		m.balance[[2]string{leaf, sw}] = row
		m.bounds = append(m.bounds, 0)
	}
	return row
}

// rateColumn returns a variable that is, or is added to, the rates of some jobs.
func (m *model) rateColumn(of func(job int) bool) column {
	c := column{most: math.Inf(1)}
	for k := range m.conns {
		if of(m.conns[k].job) {
			c.entries = append(c.entries, entry{k, m.conns[k].share})
		}
	}
	return c
}

// with returns the model's program with more variables, which come first.
func (m *model) with(first []column) *program {
	return &program{bounds: m.bounds, columns: slices.Concat(first, m.columns)}
}

// Shares of a rate: what fixed rates are below the one that was found, as programs are solved to some precision; how much a rate can grow if it
// is not at its limit; and how far rates are raised to see that.
const (
	slack  = 1e-6
	growth = 1e-4
	trial  = 1e-2
)

// rates returns the lexicographic max-min rates of the jobs. The common rate of the jobs that are still raised is found first. Then those
// are fixed which cannot have more while the others have it.
func (m *model) rates(solver Solver) ([]float64, error) {
	out := make([]float64, len(m.limits))
	raised := map[int]bool{}
	for k := range m.conns {
		raised[m.conns[k].job] = true
	}
	fixed := map[int]bool{}
	for len(raised) > 0 {
		columns := []column{m.rateColumn(func(j int) bool { return raised[j] })}
		columns[0].gain = 1
		for j := range raised {
			columns[0].most = min(columns[0].most, m.limits[j])
		}
		x, err := solver.solve(m.with(append(columns, m.fixedColumns(fixed, out)...)))
		if err != nil {
			return nil, err
		}
		level := x[0] * (1 - slack)
		for j := range raised {
			out[j] = level
		}
		stopped, err := m.stopped(solver, raised, fixed, out)
		if err != nil {
			return nil, err
		}
		if len(stopped) == 0 {
			return nil, fmt.Errorf("no job is at its limit at %.3f Gb/s", level)
		}
		for j := range stopped {
			delete(raised, j)
			fixed[j] = true
		}
	}
	return out, nil
}

// fixedColumns returns variables that are the rates of some jobs.
func (m *model) fixedColumns(jobs map[int]bool, rates []float64) (out []column) {
	for _, j := range slices.Sorted(maps.Keys(jobs)) {
		c := m.rateColumn(func(other int) bool { return other == j })
		c.most, c.fixed = rates[j], true
		out = append(out, c)
	}
	return out
}

// stopped returns which of the jobs that are raised cannot have more than their rates. If several can have more, each by itself, they can all have
// somewhat more at a time. So the sum of what they have more is maximized until it is nothing.
func (m *model) stopped(solver Solver, raised, fixed map[int]bool, rates []float64) (map[int]bool, error) {
	left := maps.Clone(raised)
	all := maps.Clone(fixed)
	maps.Copy(all, raised)
	for len(left) > 0 {
		var columns []column
		jobs := slices.Sorted(maps.Keys(left))
		for _, j := range jobs {
			c := m.rateColumn(func(other int) bool { return other == j })
			c.gain, c.most = 1, max(0, min(trial*rates[j], m.limits[j]-rates[j]))
			columns = append(columns, c)
		}
		x, err := solver.solve(m.with(append(columns, m.fixedColumns(all, rates)...)))
		if err != nil {
			return nil, err
		}
		before := len(left)
		for i, j := range jobs {
			if x[i] > growth*rates[j] {
				delete(left, j)
			}
		}
		if len(left) == before {
			break
		}
	}
	return left, nil
}
