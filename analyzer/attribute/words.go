package attribute

import (
	"fmt"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// summaryOf returns an attribution as sentences.
func summaryOf(a *fabric.Attribution, places []endRole, suggested bool) string {
	var text []string
	switch a.State {
	case fabric.CauseFound:
		top := a.Causes[0]
		text = append(text, fmt.Sprintf("Cause: %s at %s (weight %.2f): %s.", causeText(top.Cause), top.Element, top.Weight, top.Text))
		if top.Peer != "" {
			text = append(text, fmt.Sprintf("The other end of its cable is %s.", top.Peer))
		}
		var more []string
		for _, c := range a.Causes[1:] {
			more = append(more, fmt.Sprintf("%s at %s: %s", causeText(c.Cause), c.Element, c.Text))
		}
		if len(more) > 0 {
			text = append(text, "Also found: "+strings.Join(more, "; ")+".")
		}
		if suggested && top.Cause == fabric.CauseCongestion {
			text = append(text, "The probes also show the pattern of a queue.")
		}
	case fabric.NoCauseFound:
		text = append(text, fmt.Sprintf("No cause found: the series of %s show nothing unusual.", listEnds(places)))
	case fabric.NoCauseData:
		text = append(text, fmt.Sprintf("No data: there are no series of %s during the incident.", listEnds(places)))
	}
	for _, s := range a.Against {
		text = append(text, "Contradictory evidence: "+s+".")
	}
	return strings.Join(text, " ")
}

// listEnds names the first few ends of places, and the number of the others.
func listEnds(places []endRole) string {
	const few = 4
	var names []string
	for _, p := range places {
		if len(names) == few {
			names = append(names, fmt.Sprintf("%d more", len(places)-few))
			break
		}
		names = append(names, p.end)
	}
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

// causeText writes the identifier of a cause for a reader.
func causeText(cause string) string { return strings.ReplaceAll(cause, "_", " ") }

// counterName returns the name of a series without its suffix, for a reader.
func counterName(k reading) string { return strings.TrimSuffix(k.series, "_total") }

// reasonText writes the label's value of a reading for a reader.
func reasonText(k reading) string {
	switch label := labelOf(k.series); label {
	case "vl":
		return "VL " + k.reason
	case "trap":
		return "trap " + k.reason + ", " + trapTexts[k.reason]
	}
	return k.reason
}

func formatNumber(v float64) string {
	if v >= 1e6 || v > 0 && v < 1e-3 {
		return fmt.Sprintf("%.3g", v)
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", roundForText(v)), "0"), ".")
}

// roundForText rounds numbers from 100 to integers, and returns smaller ones as they are.
func roundForText(v float64) float64 {
	if v >= 100 {
		return float64(int64(v + 0.5))
	}
	return v
}

func formatAmount(v float64, unit string) string {
	if unit != octetUnit {
		return formatNumber(v) + " " + unit
	}
	for _, u := range []struct {
		of   float64
		name string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if v >= u.of {
			return fmt.Sprintf("%.3g %s", v/u.of, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", v)
}

// formatBitRate writes a rate in octets per second in Gbit/s.
func formatBitRate(v float64) string { return fmt.Sprintf("%.4g Gbit/s", v*8/1e9) }
