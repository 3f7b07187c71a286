package web

import (
	"fmt"

	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// maxFlows bounds the flows between one pair of NICs that a look-up shows.
const maxFlows = 16

// lookup represents the result of ?src=&dst=.
type lookup struct {
	Src, Dst string // as asked
	Error    string
	Ways     []directionFlows
}

// directionFlows represents the flows of one direction between the two NICs.
type directionFlows struct {
	From, To string
	Flows    []flowView
}

type flowView struct {
	Edge       string
	Known      bool // the path store has it
	State      string
	Hops       []hopView
	Candidates []string
	Since      string
	Checked    string
	Notes      []string
	// Bottleneck is the worst port of the path, as in-band signals show it, or why it is not known. It is "" where nothing reads them.
	Bottleneck string
	Last       *edgeRow
	Asks       []promQuery
}

type hopView struct {
	Switch, In, Out string
	LinkTo          string // the next end the packet comes in by
	Worst           []string
}

func (h *Handler) lookUpFlows(s snapshot.Snapshot, q query) lookup {
	l := lookup{Src: q.src, Dst: q.dst}
	if q.src == "" && q.dst == "" {
		return l
	}
	var ids []string
	for _, end := range []struct{ name, id string }{{"src", q.src}, {"dst", q.dst}} {
		n := h.Store.Graph().NIC(end.id)
		if n == nil {
			l.Error = fmt.Sprintf("%s: %q is not a NIC of this fabric; expected node/device, such as %s", end.name, shortenMiddle(end.id, 120), h.anyNIC())
			return l
		}
		ids = append(ids, n.ID())
	}
	if ids[0] == ids[1] {
		l.Error = fmt.Sprintf("src and dst are both %q; expected two different NICs", ids[0])
		return l
	}
	last := map[fabric.Flow]*snapshot.EdgeView{}
	for i := range s.Edges {
		o := &s.Edges[i].Obs
		if o.Src == ids[0] && o.Dst == ids[1] || o.Src == ids[1] && o.Dst == ids[0] {
			last[s.Edges[i].Flow] = &s.Edges[i]
		}
	}
	for _, p := range [][2]string{{ids[0], ids[1]}, {ids[1], ids[0]}} {
		w := directionFlows{From: p[0], To: p[1]}
		for n := range maxFlows {
			for _, e := range []fabric.Flow{{Src: p[0], Dst: p[1], Number: n}, {Src: p[1], Dst: p[0], Number: n, Reply: true}} {
				if f, ok := h.newFlowView(e, last[e]); ok {
					w.Flows = append(w.Flows, f)
				}
			}
		}
		l.Ways = append(l.Ways, w)
	}
	return l
}

func (h *Handler) anyNIC() string {
	if all := h.Store.Graph().NICIDs(); len(all) > 0 {
		return all[0]
	}
	return "h1/eth1"
}

func (h *Handler) newFlowView(e fabric.Flow, last *snapshot.EdgeView) (flowView, bool) {
	b, known := h.Store.CurrentBinding(e)
	if !known && last == nil {
		return flowView{}, false
	}
	f := flowView{Edge: e.String(), Known: known, State: string(b.State), Notes: b.Notes, Since: clockTime(b.Since), Checked: clockTime(b.Checked), Asks: h.promQueries(report.FlowQueries(e))}
	_, dst := e.Endpoints()
	for i, hop := range b.Path {
		to := dst
		if i+1 < len(b.Path) {
			to = b.Path[i+1].Switch + ":" + b.Path[i+1].In
		}
		f.Hops = append(f.Hops, hopView{hop.Switch, hop.In, hop.Out, to, nil})
	}
	const few = 8
	for i, c := range b.Candidates {
		if i == few {
			f.Candidates = append(f.Candidates, fmt.Sprintf("and %d more", len(b.Candidates)-few))
			break
		}
		f.Candidates = append(f.Candidates, formatPath(c))
	}
	if last != nil {
		r := newEdge(last)
		f.Last = &r
	}
	return f, true
}
