package routing

import (
	"fmt"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// modeFindings returns the findings on switches that choose next hops otherwise than the topology file says.
func modeFindings(m *Moment) (out []Finding) {
	for i := range m.Modes {
		x := &m.Modes[i]
		f := Finding{Element: fabric.Element{ID: x.Switch, Kind: fabric.KindSwitch}, Kind: Sprays, Since: x.Since,
			Confidence: 0.99, Claimed: true, Flows: x.Seen, Text: modeEvidence(x)}
		if !x.Sprays {
			f.Kind = HashesFlows
		}
		for _, leaf := range x.Leaves {
			if leaf != x.Switch {
				f.Others = append(f.Others, fabric.Element{ID: leaf, Kind: fabric.KindSwitch})
			}
		}
		out = append(out, f)
	}
	slices.SortFunc(out, compareFindings)
	return out
}

// modeEvidence says in words what shows how a switch chooses.
func modeEvidence(x *fabric.SwitchMode) string {
	var by []string
	traces := "recent traces"
	if x.HopProbes > 0 {
		traces = fmt.Sprintf("recent traces and hop-limited probes (%d of them)", x.HopProbes)
	}
	switch {
	case x.Sprays && x.SeenSplit > 0:
		by = append(by, fmt.Sprintf("of %d flows that switches see, %d take several ways at the same time", x.Seen, x.SeenSplit))
	case !x.Sprays && x.Seen > 0:
		by = append(by, fmt.Sprintf("%d flows that switches see come by one way each", x.Seen))
	}
	switch {
	case x.Sprays && x.TracesSplit > 0:
		by = append(by, fmt.Sprintf("of %d %s, %d had answers of several ways", x.Traces, traces, x.TracesSplit))
	case !x.Sprays && x.Traces > 0:
		by = append(by, fmt.Sprintf("%d traces in a row found the path of the trace before", x.Traces))
	}
	if len(by) == 0 {
		return ""
	}
	return "Evidence: " + strings.Join(by, "; ") + "."
}
