package web

import (
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/internal/fabric"
)

// matrixMarks returns frames around the rows, columns and cells that open verdicts name. A verdict on a switch that is no leaf has none: it is
// everywhere.
func (h *Handler) matrixMarks(g *matrix.Grid, zoom matrix.Zoom, open []incident.Incident) (out []markView) {
	rows := map[string][]int{} // by what a verdict may name: a leaf or a NIC
	for i := range g.Groups {
		x := &g.Groups[i]
		rows[x.Name] = append(rows[x.Name], i)
		if x.Leaf != "" {
			rows[x.Leaf] = append(rows[x.Leaf], i)
		}
	}
	graph := h.Store.Graph()
	side := zoom.Side(len(g.Groups))
	for i := range open {
		in := &open[i]
		level := suspect
		if in.Held != "" {
			level = held
		}
		add := func(x0, x1, y0, y1 int) {
			if len(out) < maxMarks {
				out = append(out, markView{x0, y0, x1 - x0, y1 - y0, level.String(), in.ID, suspectLine(*in)})
			}
		}
		if in.Kind == fabric.KindPair {
			ends := in.Waypoints()
			if len(ends) == 2 && len(rows[ends[0]]) > 0 && len(rows[ends[1]]) > 0 {
				a, b := rows[ends[0]], rows[ends[1]]
				add(zoom.Side(b[0]), zoom.Side(b[len(b)-1]+1), zoom.Side(a[0]), zoom.Side(a[len(a)-1]+1))
			}
			continue
		}
		from, to := namedEnds(graph, in)
		for _, span := range spansOf(rows, from, zoom) {
			add(0, side, span[0], span[1])
		}
		for _, span := range spansOf(rows, to, zoom) {
			add(span[0], span[1], 0, side)
		}
	}
	return out
}

// alternatives are names of one end, the narrowest first. A matrix has a row for one of them, or for none.
type alternatives []string

// spansOf returns where the rows of some ends begin and end, in pixels.
func spansOf(rows map[string][]int, ends []alternatives, zoom matrix.Zoom) (out [][2]int) {
	for _, names := range ends {
		for _, name := range names {
			if at := rows[name]; len(at) > 0 {
				out = append(out, [2]int{zoom.Side(at[0]), zoom.Side(at[len(at)-1] + 1)})
				break
			}
		}
	}
	return out
}

// namedEnds returns the ends from which and to which packets cross what a verdict names.
func namedEnds(g *fabric.Graph, in *incident.Incident) (from, to []alternatives) {
	t := locateElement(g, in.Element, in.Direction)
	both := func(names ...string) { from, to = append(from, names), append(to, names) }
	addNIC := func(nic string) {
		leaf, _ := g.LeafOf(nic)
		both(nic, leaf)
	}
	for _, nic := range t.nics {
		if len(t.dirs) == 0 {
			addNIC(nic)
		}
	}
	for _, o := range t.owners {
		if n := g.Node(o); n != nil {
			for i := range n.NICs {
				addNIC(n.NICs[i].ID())
			}
			continue
		}
		both(o)
	}
	for _, d := range t.dirs {
		sender, receiver := fabric.OwnerOf(d.From), fabric.OwnerOf(d.To)
		switch {
		case fabric.IsNIC(d.From):
			from = append(from, alternatives{d.From, receiver})
		case fabric.IsNIC(d.To):
			to = append(to, alternatives{d.To, sender})
		case g.SwitchTier(sender) < g.SwitchTier(receiver):
			from = append(from, alternatives{sender})
		default:
			to = append(to, alternatives{receiver})
		}
	}
	return from, to
}
