package routing

import (
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Refusal is what a switch says of an identifier of chosen paths that it does not know (internal/srv6).
type Refusal struct {
	Switch string
	// SID is the identifier in hexadecimal digits, and Prefix the destination that the switch lacks.
	SID, Prefix string
	// Next is the switch that the identifier names, which may be Switch itself, Port the port of Switch that it names, and Last is
	// set if it is that which ends paths at Switch. An identifier that names nothing in this fabric has none of them.
	Next, Port string
	Last       bool
	// Mutual is set if the switch that the identifier leads to refuses packets to Switch as well: neither knows a way over the link between
	// them, which is down or leads elsewhere.
	Mutual bool
	// NICs is the number of NICs that got such an answer.
	NICs int
}

// Neighbour returns the other switch that the identifier leads to, or "".
func (r *Refusal) Neighbour(g *fabric.Graph) string {
	if r.Port != "" {
		return fabric.OwnerOf(g.PeerOf(r.Switch + ":" + r.Port))
	}
	if r.Next == r.Switch {
		return ""
	}
	return r.Next
}

// links returns the links that packets with the identifier would leave the switch by.
func (r *Refusal) links(g *fabric.Graph) (out []fabric.Element) {
	for _, d := range g.LinksBetween(r.Switch, r.Neighbour(g)) {
		if r.Port == "" || d.From == r.Switch+":"+r.Port {
			out = append(out, fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink})
		}
	}
	return out
}

// Meets reports whether packets by a path need what the switch does not know.
func (r *Refusal) Meets(p fabric.Path) bool {
	for i, h := range p {
		if h.Switch != r.Switch {
			continue
		}
		last := i == len(p)-1
		switch {
		case r.Last && last, r.Port != "" && h.Out == r.Port, r.Next == r.Switch, r.Next != "" && !last && p[i+1].Switch == r.Next:
			return true
		}
	}
	return false
}

// mutualTime is the time within which both ends of a link refuse packets over it, if they do.
const mutualTime = 2 * time.Second

// unknownIdentifiers returns the findings on switches that do not know identifiers. They hold after mutualTime, since switches say so.
// What two neighbours say of each other holds after settleTime only: by then the link between them is named, which explains it.
func (w *Watcher) unknownIdentifiers(m *Moment) (out []Finding) {
	since := map[findingKey]time.Time{}
	for i := range m.Refusals {
		r := &m.Refusals[i]
		f := Finding{Element: fabric.Element{ID: r.Switch, Kind: fabric.KindSwitch}, Kind: UnknownSID, Prefix: r.Prefix,
			Confidence: 0.99, Reported: true, Claimed: true, Text: fmt.Sprintf("NICs that it answered so: %d.", r.NICs)}
		if r.Next != "" {
			f.Others = []fabric.Element{{ID: r.Next, Kind: fabric.KindSwitch}}
		}
		for k := range m.Flows {
			if x := &m.Flows[k]; r.Meets(x.Path) {
				f.Explained = append(f.Explained, x.Flow)
			}
		}
		slices.SortFunc(f.Explained, compareFlows)
		f.Lost, f.Flows = f.Explained, len(f.Explained)
		holdsAfter := mutualTime
		if r.Mutual {
			f.Others, holdsAfter = r.links(m.Graph), settleTime
		}
		k := findingKey{f.Element, f.Kind, f.Prefix}
		f.Since = m.Now
		if at, known := w.unknownSince[k]; known {
			f.Since = at
		}
		since[k] = f.Since
		if m.Now.Sub(f.Since) < holdsAfter {
			f.Phase = MayHold
		}
		out = append(out, f)
	}
	w.unknownSince = since
	return out
}
