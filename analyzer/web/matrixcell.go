package web

import (
	"fmt"
	"strconv"

	"github.com/graylink/graylink/analyzer/matrix"
)

// cellView is one cell with its flows.
type cellView struct {
	From, To, Error string
	Values          []outlierRow
	Flows           []cellFlow
	Total           int
}

type cellFlow struct {
	Edge, Src, Dst, Condition string
	P50, P99, Loss            string
	Age                       string
}

// maxCellFlows bounds the flows of a cell that are listed.
const maxCellFlows = 64

// newCellView returns the cell that a request names by row and column, or by their numbers r and c; nil if it names none.
func (h *Handler) newCellView(q *matrixQuery, g *matrix.Grid) *cellView {
	from, to := q.values.Get("row"), q.values.Get("column")
	r, errR := strconv.Atoi(q.values.Get("r"))
	c, errC := strconv.Atoi(q.values.Get("c"))
	switch {
	case from != "" || to != "":
		r, c = g.Find(from), g.Find(to)
	case errR != nil || errC != nil:
		return nil
	}
	v := &cellView{From: from, To: to}
	for _, end := range []struct {
		at   int
		name string
	}{{r, from}, {c, to}} {
		if end.at < 0 || end.at >= len(g.Groups) {
			v.Error = fmt.Sprintf("%q is no row of this matrix", shortenMiddle(end.name, 120))
			return v
		}
	}
	v.From, v.To = g.Groups[r].Name, g.Groups[c].Name
	cell := g.Cell(r, c)
	if cell == nil {
		return v
	}
	for _, of := range matrix.Quantities() {
		text := absent
		if value, known := cell.Value(of); known {
			text = formatQuantity(of, value)
		}
		v.Values = append(v.Values, outlierRow{Name: quantityName(of), Value: text})
	}
	if !q.At.IsZero() {
		return v
	}
	flows := h.Matrix.Flows(q.Selection, v.From, v.To)
	v.Total = len(flows)
	for i := range flows[:min(len(flows), maxCellFlows)] {
		f := &flows[i]
		v.Flows = append(v.Flows, cellFlow{f.Flow.String(), f.Src, f.Dst, flowCondition(f), measuredDelay(f.P50), measuredDelay(f.P99), measuredShare(f.Loss), formatAge(f.Age)})
	}
	return v
}

// flowCondition says what a flow counts as.
func flowCondition(f *matrix.Flow) string {
	switch {
	case !f.Known:
		return "unknown"
	case f.Degraded:
		return "degraded"
	case f.Judged:
		return "healthy"
	}
	return "undecided"
}

func measuredDelay(ns *float64) string {
	if ns == nil {
		return absent
	}
	return formatDelay(int64(*ns))
}

func measuredShare(r *float64) string {
	if r == nil {
		return absent
	}
	return formatPercent(*r)
}
