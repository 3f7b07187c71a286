package web

import (
	"cmp"
	"slices"

	"github.com/graylink/graylink/analyzer/matrix"
)

// outliers lists the rows, columns and cells with the highest values.
func outliers(q *matrixQuery, g *matrix.Grid) (out []outlierTable) {
	if !q.Of.HasNormal() {
		return nil
	}
	type sum struct {
		total float64
		cells int
	}
	rows, columns := make([]sum, len(g.Groups)), make([]sum, len(g.Groups))
	type place struct {
		row  int
		cell *matrix.Cell
		v    float64
	}
	var cells []place
	for row := range g.Groups {
		of := g.Row(row)
		for i := range of {
			v, known := of[i].Value(q.Of)
			if !known {
				continue
			}
			for _, s := range []*sum{&rows[row], &columns[of[i].Column]} {
				s.cells++
				if q.Of.Step(v) > 0 {
					s.total += v
				}
			}
			if q.Of.Step(v) > 0 {
				cells = append(cells, place{row, &of[i], v})
			}
		}
	}
	lines := func(title, kind string, of []sum) {
		var order []int
		for i := range of {
			if of[i].total > 0 {
				order = append(order, i)
			}
		}
		mean := func(i int) float64 { return of[i].total / float64(of[i].cells) }
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(mean(b), mean(a)) })
		t := outlierTable{Title: title, Kind: kind}
		for _, i := range order[:min(len(order), maxOutliers)] {
			t.Rows = append(t.Rows, outlierRow{Name: g.Groups[i].Name, Value: formatQuantity(q.Of, mean(i)), Flows: pluralCount(of[i].cells, "cell", "cells")})
		}
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	lines("Rows (packets from)", "row", rows)
	lines("Columns (packets to)", "column", columns)
	slices.SortStableFunc(cells, func(a, b place) int { return cmp.Or(cmp.Compare(b.v, a.v), cmp.Compare(b.cell.Flows, a.cell.Flows)) })
	t := outlierTable{Title: "Cells", Kind: "cell"}
	for _, p := range cells[:min(len(cells), maxOutliers)] {
		from, to := g.Groups[p.row].Name, g.Groups[p.cell.Column].Name
		t.Rows = append(t.Rows, outlierRow{from + " → " + to, formatQuantity(q.Of, p.v), pluralCount(int(p.cell.Flows), "flow", "flows"), q.with("matrix", "row", from, "column", to) + "#cell"})
	}
	if len(t.Rows) > 0 {
		out = append(out, t)
	}
	return out
}
