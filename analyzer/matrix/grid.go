package matrix

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Direction says which packets a grid shows.
type Direction string

// Directions of a grid.
const (
	BothDirections Direction = ""
	Probes         Direction = "forward"
	Replies        Direction = "reverse"
)

// Selection says what a grid shows. Empty fields mean all.
type Selection struct {
	// NICs means that rows and columns are NICs, and not leaves.
	NICs bool
	// Pod is the pod whose leaves or NICs are shown.
	Pod          string
	Plane, Class string
	Direction    Direction
}

// MaxNICs bounds the NICs of a grid whose rows and columns are NICs.
const MaxNICs = 1024

// Group is a row, and the column of the same number.
type Group struct {
	Name string `json:"name"` // of a leaf, or of a NIC
	// Leaf is the leaf of a NIC. Pod and Plane may be "".
	Leaf  string `json:"leaf,omitempty"`
	Pod   string `json:"pod,omitempty"`
	Plane string `json:"plane,omitempty"`
}

// Cell sums up the flows from a row to a column, which is at least one. Numbers that no flow measured are NaN.
type Cell struct {
	Column uint32
	// Flows is the number of directed flows. Known of them were measured, and Judged of these could be compared with a baseline.
	Flows, Known, Judged, Degraded uint32
	// Median is the median of the flows' medians, and P99 the largest of their 99th percentiles, in nanoseconds. Shift is the largest
	// difference between a flow's median and its baseline.
	Median, P99, Shift float32
	// Loss is the share of all packets that were lost, and Marks the largest share of the received packets that were marked.
	Loss, Marks float32
}

// Grid is the matrix of one moment. It must not be changed.
type Grid struct {
	Selection Selection
	At        time.Time
	Groups    []Group
	// cells has the cells that have flows, by row and column; start has where each row begins, and at last the number of cells.
	cells []Cell
	start []uint32
	// Flows is the number of directed flows, and Known of them were measured.
	Flows, Known int
}

// Row returns the cells of a row that have flows, by column.
func (g *Grid) Row(row int) []Cell { return g.cells[g.start[row]:g.start[row+1]] }

// Cell returns a cell, or nil if it has no flows.
func (g *Grid) Cell(row, column int) *Cell {
	cells := g.Row(row)
	i := sort.Search(len(cells), func(i int) bool { return cells[i].Column >= uint32(column) })
	if i == len(cells) || cells[i].Column != uint32(column) {
		return nil
	}
	return &cells[i]
}

// Find returns the number of the row and column of a name, or -1.
func (g *Grid) Find(name string) int {
	return slices.IndexFunc(g.Groups, func(x Group) bool { return x.Name == name })
}

// restFactor is how many times as long as a grid took to build no other one is built, so that viewers never take more than a twentieth of
// the time (rule 5).
const restFactor = 19

// maxGrids bounds the grids that are kept.
const maxGrids = 8

// Grid returns what a selection shows. It is the last one that was built as long as no cycle has ended since, or too little time
// has passed (rule 5).
func (s *Store) Grid(sel Selection, now time.Time) (*Grid, error) {
	s.building.Lock()
	defer s.building.Unlock()
	s.mu.RLock()
	at := s.at
	s.mu.RUnlock()
	old := s.built[sel]
	if old != nil && (old.grid.At.Equal(at) || now.Before(old.next)) {
		old.used = now
		return old.grid, nil
	}
	begun := time.Now()
	g, err := s.buildGrid(sel)
	if err != nil {
		return nil, err
	}
	if old == nil && len(s.built) >= maxGrids {
		s.dropOldest()
	}
	s.built[sel] = &builtGrid{grid: g, used: now, next: now.Add(restFactor * time.Since(begun))}
	return g, nil
}

type builtGrid struct {
	grid       *Grid
	used, next time.Time
}

func (s *Store) dropOldest() {
	var oldest Selection
	var used time.Time
	for sel, b := range s.built {
		if used.IsZero() || b.used.Before(used) {
			oldest, used = sel, b.used
		}
	}
	delete(s.built, oldest)
}

// axis is the rows of a grid, which are its columns as well. of has the row of each NIC, or -1.
type axis struct {
	groups []Group
	of     []int32
}

// buildGrid sums up the flows of a selection.
func (s *Store) buildGrid(sel Selection) (*Grid, error) {
	s.sortFlows()
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := &Grid{Selection: sel, At: s.at, start: []uint32{0}}
	if s.graph == nil {
		return out, nil
	}
	ax, err := newAxis(s.graph, sel)
	if err != nil {
		return nil, err
	}
	out.Groups = ax.groups
	class := slices.Index(s.classes, sel.Class)
	if sel.Class != "" && class < 0 {
		return nil, fmt.Errorf("no flow is of a class %q", sel.Class)
	}
	b := gridBuilder{store: s, grid: out}
	order := s.order
	if sel.NICs {
		order = s.sortedBy(ax.of)
	}
	for _, i := range order {
		r := &s.records[i]
		row, column := ax.of[r.key.from()], ax.of[r.key.to()]
		if row >= 0 && column >= 0 && sel.has(r, class) {
			b.addFlow(row, column, r)
		}
	}
	b.endCell()
	b.beginRow(int32(len(ax.groups)))
	return out, nil
}

// has reports whether a flow is of the class with a number, if the selection has a class, and of the direction.
func (sel *Selection) has(r *record, class int) bool {
	return (sel.Class == "" || int(r.class) == class) && (sel.Direction == BothDirections || (sel.Direction == Replies) == r.key.isReply())
}

// isKnown reports whether what was read of a flow still counts (rule 3).
func (s *Store) isKnown(r *record) bool {
	return r.condition != excluded && r.at >= s.at.Add(-s.freshFor).UnixNano() && !s.silent[r.key.from()] && !s.silent[r.key.to()]
}

// sortFlows sorts the positions of the flows by the leaves of their ends.
func (s *Store) sortFlows() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.order != nil || s.graph == nil {
		return
	}
	ax, _ := newAxis(s.graph, Selection{}) // leaves are never too many
	s.order = s.sortedBy(ax.of)
}

// sortedBy returns the positions of the flows that have a row and a column, by row and column.
func (s *Store) sortedBy(rowOf []int32) []uint32 {
	const rowBits, positionBits = 20, 24
	all := make([]uint64, 0, len(s.records))
	for i := range s.records {
		k := s.records[i].key
		if row, column := rowOf[k.from()], rowOf[k.to()]; row >= 0 && column >= 0 {
			all = append(all, uint64(row)<<(rowBits+positionBits)|uint64(column)<<positionBits|uint64(i))
		}
	}
	slices.Sort(all)
	out := make([]uint32, len(all))
	for i, place := range all {
		out[i] = uint32(place & (1<<positionBits - 1))
	}
	return out
}

// newAxis returns the rows of a selection, by plane, pod and name.
func newAxis(g *fabric.Graph, sel Selection) (axis, error) {
	ax := axis{of: make([]int32, len(g.NICIDs()))}
	rows := map[Group][]int{}
	inPod := 0
	for i, id := range g.NICIDs() {
		ax.of[i] = -1
		leaf, _ := g.LeafOf(id)
		sw := g.Switch(leaf)
		if sw == nil {
			continue
		}
		row := Group{Name: leaf, Pod: sw.PodName(), Plane: g.PlaneOf(id)}
		if sel.Plane != "" && row.Plane != sel.Plane || sel.Pod != "" && row.Pod != sel.Pod {
			continue
		}
		if sel.NICs {
			inPod++
			row.Name, row.Leaf = id, leaf
		}
		rows[row] = append(rows[row], i)
	}
	switch {
	case len(rows) == 0 && sel.Pod != "":
		return ax, fmt.Errorf("no NIC is in a pod %q", sel.Pod)
	case len(rows) == 0 && sel.Plane != "":
		return ax, fmt.Errorf("no NIC is in a plane %q", sel.Plane)
	case inPod > MaxNICs:
		return ax, fmt.Errorf("%d NICs are too many for one matrix; choose a pod or a plane with at most %d", inPod, MaxNICs)
	}
	for row := range rows {
		ax.groups = append(ax.groups, row)
	}
	slices.SortFunc(ax.groups, func(a, b Group) int {
		return cmp.Or(fabric.CompareNatural(a.Plane, b.Plane), fabric.CompareNatural(a.Pod, b.Pod), fabric.CompareNatural(a.Leaf, b.Leaf), fabric.CompareNatural(a.Name, b.Name))
	})
	for number, row := range ax.groups {
		for _, nic := range rows[row] {
			ax.of[nic] = int32(number)
		}
	}
	return ax, nil
}

// Planes returns the names of the planes of a fabric.
func Planes(g *fabric.Graph) (out []string) {
	for i := range g.Topo.Switches {
		if p := g.Topo.Switches[i].Plane; p != "" && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, fabric.CompareNatural)
	return out
}

// gridBuilder sums up flows that come by row and column.
type gridBuilder struct {
	store *Store
	grid  *Grid
	row   int32
	// Of the last cell: the medians of its flows, and how many packets were sent and lost.
	medians    []float32
	sent, lost uint64
}

// addFlow adds a flow to its cell, which is the last one or a new one.
func (b *gridBuilder) addFlow(row, column int32, r *record) {
	g := b.grid
	if n := len(g.cells); row != b.row || n == int(g.start[row]) || g.cells[n-1].Column != uint32(column) {
		b.endCell()
		b.beginRow(row)
		g.cells = append(g.cells, Cell{Column: uint32(column), Median: nothing, P99: nothing, Shift: nothing, Loss: nothing, Marks: nothing})
	}
	c := &g.cells[len(g.cells)-1]
	c.Flows++
	if !b.store.isKnown(r) {
		return
	}
	c.Known++
	if r.condition != undecided {
		c.Judged++
	}
	if r.condition == degraded {
		c.Degraded++
	}
	if !isNothing(r.p50) {
		b.medians = append(b.medians, r.p50)
		c.Shift = largest(c.Shift, r.p50-r.base)
	}
	c.P99, c.Marks = largest(c.P99, r.p99), largest(c.Marks, r.marks)
	b.sent += uint64(r.sent)
	b.lost += uint64(r.lost)
}

// beginRow ends the rows before a row.
func (b *gridBuilder) beginRow(row int32) {
	for ; b.row < row; b.row++ {
		b.grid.start = append(b.grid.start, uint32(len(b.grid.cells)))
	}
}

// endCell finishes the last cell.
func (b *gridBuilder) endCell() {
	g := b.grid
	if len(g.cells) == 0 {
		return
	}
	c := &g.cells[len(g.cells)-1]
	g.Flows += int(c.Flows)
	g.Known += int(c.Known)
	if len(b.medians) > 0 {
		slices.Sort(b.medians)
		c.Median = b.medians[(len(b.medians)-1)/2]
	}
	if b.sent > 0 {
		c.Loss = float32(float64(b.lost) / float64(b.sent))
	}
	b.medians, b.sent, b.lost = b.medians[:0], 0, 0
}

func isNothing(v float32) bool { return math.IsNaN(float64(v)) }

// largest returns the larger one of what was measured.
func largest(a, b float32) float32 {
	if isNothing(a) || b > a {
		return b
	}
	return a
}
