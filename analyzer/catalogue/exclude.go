package catalogue

import (
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
)

// ExcludedBy returns the elements that a plan avoids now: those of open verdicts that are about the fabric, and those of
// maintenance windows.
func ExcludedBy(g *fabric.Graph, s *snapshot.Snapshot, now time.Time) []Exclusion {
	var out []Exclusion
	for i := range s.Incidents {
		v := &s.Incidents[i]
		if !v.Open {
			continue
		}
		footprint := v.Footprint(g)
		out = append(out, Exclusion{plan.Exclusion{Element: v.Element.ID, Reason: "verdict " + v.ID}, func(d fabric.Direction) bool { return slices.Contains(footprint, d) }})
	}
	for i := range s.Maintenance {
		w := s.Maintenance[i]
		if !w.From.After(now) && (w.Until.IsZero() || w.Until.After(now)) {
			out = append(out, Exclusion{plan.Exclusion{Element: w.Element, Reason: "maintenance " + w.ID}, w.TouchesDirection})
		}
	}
	return out
}

// ExcludeElements returns the exclusions of named elements: a switch, a node, a NIC, a port or a link. It returns an error
// that names the first one that is not in the topology.
func ExcludeElements(g *fabric.Graph, elements []string) ([]Exclusion, error) {
	var out []Exclusion
	for _, e := range elements {
		if err := g.CheckElement(e); err != nil {
			return nil, fmt.Errorf("exclude: %w", err)
		}
		w := maintenance.Window{Element: e}
		out = append(out, Exclusion{plan.Exclusion{Element: e, Reason: "excluded"}, w.TouchesDirection})
	}
	return out, nil
}
