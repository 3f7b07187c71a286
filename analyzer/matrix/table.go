package matrix

import (
	"fmt"
	"math"
	"time"
)

// MaxCells bounds the cells of a table: those of 256 rows and columns.
const MaxCells = 1 << 16

// Table is a matrix for programs.
type Table struct {
	// At is the moment that the matrix shows. It is absent before the first cycle.
	At time.Time `json:"at,omitzero"`
	// Of is the quantity, and Unit that of the values: ns or ratio.
	Of   Quantity `json:"of"`
	Unit string   `json:"unit"`
	// Groups are the rows, and the columns of the same numbers, from 0.
	Groups []Group `json:"groups"`
	// Cells are the cells that have flows, by row and column.
	Cells []TableCell `json:"cells"`
	// Flows is the number of directed flows, and KnownFlows of them were measured lately.
	Flows      int `json:"flows"`
	KnownFlows int `json:"known_flows"`
	// Warning is that of Prometheus about a past moment, which may be incomplete.
	Warning string `json:"warning,omitempty"`
}

// TableCell is what is known of the flows from a row to a column.
type TableCell struct {
	Row        int `json:"row"`
	Column     int `json:"column"`
	Flows      int `json:"flows"`
	KnownFlows int `json:"known_flows"`
	// Value is null where the quantity is not known of any of these flows.
	Value *float64 `json:"value"`
}

// Table returns the values of a quantity. row and column are the names of the only row and column that are wanted, or "". It fails if there is none of that
// name, or if the cells are too many.
func (g *Grid) Table(of Quantity, row, column string) (*Table, error) {
	t := &Table{At: g.At, Of: of, Unit: "ratio", Groups: g.Groups, Cells: []TableCell{}, Flows: g.Flows, KnownFlows: g.Known}
	if of.IsDelay() {
		t.Unit = "ns"
	}
	only := [2]int{-1, -1}
	for i, name := range []string{row, column} {
		if name == "" {
			continue
		}
		if only[i] = g.Find(name); only[i] < 0 {
			return nil, fmt.Errorf("%.120q is no row of this matrix", name)
		}
	}
	for r := range g.Groups {
		if only[0] >= 0 && r != only[0] {
			continue
		}
		for _, c := range g.Row(r) {
			if only[1] >= 0 && int(c.Column) != only[1] {
				continue
			}
			if len(t.Cells) == MaxCells {
				return nil, fmt.Errorf("more than %d cells are too many for one answer; choose a pod, a plane, a row or a column", MaxCells)
			}
			cell := TableCell{Row: r, Column: int(c.Column), Flows: int(c.Flows), KnownFlows: int(c.Known)}
			if v, known := c.Value(of); known {
				v = roundTo(v, of)
				cell.Value = &v
			}
			t.Cells = append(t.Cells, cell)
		}
	}
	return t, nil
}

// roundTo rounds a value to a nanosecond, or a millionth, beyond which it has no digits.
func roundTo(v float64, of Quantity) float64 {
	if of.IsDelay() {
		return math.Round(v)
	}
	const million = 1e6
	return math.Round(v*million) / million
}
