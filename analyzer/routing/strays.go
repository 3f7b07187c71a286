package routing

import (
	"cmp"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Stray is a flow whose packets take another path than its sender chose.
type Stray struct {
	Flow fabric.Flow
	// Switch sends them elsewhere than to Next, which is the next switch of the chosen path. Seen is the switch that they come to. Next and
	// Seen are the same if they come by another link.
	Switch, Next, Seen string
}

// minStrays is how many flows at least show that a switch forwards elsewhere. A single trace may be of the moment of a change.
const minStrays = 2

// misforwarding returns the findings on switches that send packets of chosen paths elsewhere than to the switch whose identifier
// they have next.
func (w *Watcher) misforwarding(m *Moment) (out []Finding) {
	at := func(s *Stray) findingKey {
		return findingKey{fabric.Element{ID: s.Switch, Kind: fabric.KindSwitch}, Misforwarded, s.Next}
	}
	since := map[findingKey]time.Time{}
	for i := range m.Strays {
		s := &m.Strays[i]
		k := at(s)
		j := slices.IndexFunc(out, func(f Finding) bool { return findingKey{f.Element, f.Kind, f.Prefix} == k })
		if j < 0 {
			j = len(out)
			since[k] = m.Now
			if was, known := w.strayedSince[k]; known {
				since[k] = was
			}
			out = append(out, Finding{Element: k.Element, Kind: Misforwarded, Phase: MayHold, Prefix: s.Next, Since: since[k], Confidence: 0.99, Reported: true, Claimed: true})
		}
		f := &out[j]
		if e := (fabric.Element{ID: s.Seen, Kind: fabric.KindSwitch}); !slices.Contains(f.Others, e) {
			f.Others = append(f.Others, e)
		}
		f.Explained = append(f.Explained, s.Flow)
		if f.Flows++; f.Flows >= minStrays {
			f.Phase = Holds
		}
	}
	for i := range out {
		slices.SortFunc(out[i].Explained, compareFlows)
		slices.SortFunc(out[i].Others, func(a, b fabric.Element) int { return cmp.Compare(a.ID, b.ID) })
	}
	w.strayedSince = since
	return out
}
