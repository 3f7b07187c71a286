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
	// NICs is the number of NICs that got such an answer.
	NICs int
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

// unknownIdentifiers returns the findings on switches that do not know identifiers. They hold at once, since switches say so.
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
		k := findingKey{f.Element, f.Kind, f.Prefix}
		f.Since = m.Now
		if at, known := w.unknownSince[k]; known {
			f.Since = at
		}
		since[k] = f.Since
		out = append(out, f)
	}
	w.unknownSince = since
	return out
}
