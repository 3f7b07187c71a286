package web

import (
	"cmp"

	"github.com/graylink/graylink/analyzer/matrix"
)

// partOf returns the part of a fabric in which a row is: its leaf, if rows are NICs, else its pod, or its plane.
func partOf(x *matrix.Group) string {
	switch {
	case x.Leaf != "":
		return x.Leaf
	case x.Plane != "" && x.Pod != "":
		return x.Plane + " " + x.Pod
	}
	return cmp.Or(x.Pod, x.Plane)
}

// partBorders returns where parts begin, in pixels. It returns none where they are too narrow to see.
func partBorders(g *matrix.Grid, zoom matrix.Zoom) (out []int) {
	const narrow = 4
	last := 0
	for i := 1; i < len(g.Groups); i++ {
		if partOf(&g.Groups[i]) == partOf(&g.Groups[i-1]) {
			continue
		}
		at := zoom.Side(i)
		if at-last < narrow {
			return nil
		}
		out, last = append(out, at), at
	}
	return out
}

// axisLabels returns the names of the rows, of the parts if rows are too narrow, or of some rows.
func axisLabels(q *matrixQuery, g *matrix.Grid, zoom matrix.Zoom) (out []labelView) {
	const longest = 14
	add := func(from, to int, text, href string) {
		out = append(out, labelView{(zoom.Side(from) + zoom.Side(to)) / 2, shortenMiddle(text, longest), href})
	}
	if zoom >= labelFrom {
		for i := range g.Groups {
			href := ""
			if x := &g.Groups[i]; !q.Selection.NICs && x.Pod != "" {
				href = q.with("matrix", "by", "nic", "pod", x.Pod, "zoom", "")
			}
			add(i, i+1, g.Groups[i].Name, href)
		}
		return out
	}
	first, last := 0, -labelEvery
	for i := 1; i <= len(g.Groups); i++ {
		if i < len(g.Groups) && partOf(&g.Groups[i]) == partOf(&g.Groups[first]) && partOf(&g.Groups[i]) != "" {
			continue
		}
		if middle := (zoom.Side(first) + zoom.Side(i)) / 2; middle-last >= labelEvery/2 {
			x, href := &g.Groups[first], ""
			if !q.Selection.NICs && x.Pod != "" {
				href = q.with("matrix", "by", "nic", "pod", x.Pod, "zoom", "")
			}
			add(first, i, cmp.Or(partOf(x), x.Name), href)
			last = middle
		}
		first = i
	}
	return out
}
