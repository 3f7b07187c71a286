// Package report describes schedules for people and programs: their figures, and why they have an edge.
package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// Spread is the range of some numbers, with their mean.
type Spread struct {
	Min  int     `json:"min"`
	Mean float64 `json:"mean"`
	Max  int     `json:"max"`
}

type cadenceReport struct {
	CadenceNS int64 `json:"cadence_ns"`
	Edges     int   `json:"edges"`
}

type tierReport struct {
	Tier     int             `json:"tier"`
	Edges    int             `json:"edges"`
	Cadences []cadenceReport `json:"cadences"`
}

type coverageReport struct {
	Tier      int     `json:"tier"`
	Links     int     `json:"directed_links"`
	Min       float64 `json:"min_flows"`
	Mean      float64 `json:"mean_flows"`
	Least     string  `json:"least"`
	Uncrossed int     `json:"uncrossed"`
}

type componentReport struct {
	NICs     int      `json:"nics"`
	Switches int      `json:"switches"`
	Planes   []string `json:"planes"`
	Rails    []string `json:"rails"`
}

type edgeReport struct {
	Edge      string `json:"edge"`
	Tier      int    `json:"tier"`
	Class     string `json:"class"`
	CadenceNS int64  `json:"cadence_ns"`
}

type linkReport struct {
	Link  string  `json:"link"`
	From  string  `json:"from"`
	To    string  `json:"to"`
	Tier  int     `json:"tier"`
	Flows float64 `json:"flows"`
}

// Report has the figures of a schedule.
type Report struct {
	NICs       int               `json:"nics"`
	Probing    int               `json:"probing"`
	EdgeCount  int               `json:"edge_count"`
	Classes    []string          `json:"classes"`
	Tiers      []tierReport      `json:"tiers"`
	FanOut     Spread            `json:"fan_out"`
	FanIn      Spread            `json:"fan_in"`
	NodeRate   float64           `json:"max_node_probes_per_second"`
	Coverage   []coverageReport  `json:"coverage"`
	Gap        float64           `json:"gap_odds"`
	Components []componentReport `json:"components"`
	Findings   []string          `json:"findings"`
	Edges      []edgeReport      `json:"edges,omitempty"`
	Links      []linkReport      `json:"links,omitempty"`
}

// Options say what a report has beside the sums.
type Options struct{ Edges, Links bool }

// New returns the figures of a schedule with its coverage.
func New(g *fabric.Graph, s *schedule.Schedule, cov schedule.Coverage, o Options) Report {
	rep := Report{NICs: len(s.NICs), EdgeCount: len(s.Edges), Classes: s.Classes, Tiers: []tierReport{}, Findings: append([]string{}, s.Findings...)}
	rep.Gap, _ = strconv.ParseFloat(strconv.FormatFloat(cov.Gap, 'g', 3, 64), 64)
	out, in := make([]int, len(s.NICs)), make([]int, len(s.NICs))
	type key struct {
		tier    uint8
		cadence time.Duration
	}
	count := map[key]int{}
	rate := map[string]float64{}
	for i, e := range s.Edges {
		if i == 0 || s.Edges[i-1].Src != e.Src || s.Edges[i-1].Dst != e.Dst {
			out[e.Src]++
			in[e.Dst]++
		}
		count[key{e.Tier, e.Cadence}]++
		rate[fabric.OwnerOf(s.NICs[e.Src])] += 1 / e.Cadence.Seconds()
		if o.Edges {
			rep.Edges = append(rep.Edges, edgeReport{s.FlowID(e).String(), int(e.Tier), s.Classes[e.Class], int64(e.Cadence)})
		}
	}
	for _, r := range rate {
		rep.NodeRate = max(rep.NodeRate, r)
	}
	keys := make([]key, 0, len(count))
	for k := range count {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		if a.tier != b.tier {
			return int(a.tier) - int(b.tier)
		}
		return int(a.cadence - b.cadence)
	})
	for _, k := range keys {
		if n := len(rep.Tiers); n == 0 || rep.Tiers[n-1].Tier != int(k.tier) {
			rep.Tiers = append(rep.Tiers, tierReport{Tier: int(k.tier)})
		}
		t := &rep.Tiers[len(rep.Tiers)-1]
		t.Edges += count[k]
		t.Cadences = append(t.Cadences, cadenceReport{int64(k.cadence), count[k]})
	}
	var outs, ins []int
	for i := range s.NICs {
		if out[i]+in[i] > 0 {
			rep.Probing++
			outs, ins = append(outs, out[i]), append(ins, in[i])
		}
	}
	rep.FanOut, rep.FanIn = SpreadOf(outs), SpreadOf(ins)
	for _, t := range cov.Tiers {
		rep.Coverage = append(rep.Coverage, coverageReport{t.Tier, t.Links, t.Min, t.Mean, t.Least.String(), t.Empty})
	}
	for _, c := range s.Components {
		rep.Components = append(rep.Components, componentReport{c.NICs, c.Switches, append([]string{}, c.Planes...), append([]string{}, c.Rails...)})
	}
	if o.Links {
		for _, l := range cov.Links {
			rep.Links = append(rep.Links, linkReport{l.LinkID(), l.From, l.To, l.Tier, l.Flows})
		}
	}
	return rep
}

// SpreadOf returns the spread of numbers.
func SpreadOf(xs []int) Spread {
	if len(xs) == 0 {
		return Spread{}
	}
	s := Spread{Min: slices.Min(xs), Max: slices.Max(xs)}
	for _, x := range xs {
		s.Mean += float64(x) / float64(len(xs))
	}
	return s
}

// Text returns the report for a terminal.
func (r Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "NICs        %d, %d of them in edges\n", r.NICs, r.Probing)
	for i, c := range r.Components {
		labels := ""
		if len(c.Planes) > 0 {
			labels += ", plane " + strings.Join(c.Planes, " ")
		}
		if len(c.Rails) > 0 {
			labels += ", rail " + strings.Join(c.Rails, " ")
		}
		if i == 8 && len(r.Components) > 9 {
			fmt.Fprintf(&b, "            and %d more components\n", len(r.Components)-i)
			break
		}
		fmt.Fprintf(&b, "component %-2d%d NICs, %d switches%s\n", i+1, c.NICs, c.Switches, labels)
	}
	fmt.Fprintf(&b, "edges       %d in %d class", r.EdgeCount, len(r.Classes))
	if len(r.Classes) > 1 {
		fmt.Fprintf(&b, "es: %s", strings.Join(r.Classes, ", "))
	}
	b.WriteString("\n")
	for _, t := range r.Tiers {
		fmt.Fprintf(&b, "  tier %-5d%d, every ", t.Tier, t.Edges)
		for i, c := range t.Cadences {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(time.Duration(c.CadenceNS).String())
			if len(t.Cadences) > 1 {
				fmt.Fprintf(&b, " (%d)", c.Edges)
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "fan-out     %d to %d peers a NIC, %.2f on average\n", r.FanOut.Min, r.FanOut.Max, r.FanOut.Mean)
	fmt.Fprintf(&b, "fan-in      %d to %d peers a NIC, %.2f on average\n", r.FanIn.Min, r.FanIn.Max, r.FanIn.Mean)
	fmt.Fprintf(&b, "busiest     %.0f probes/s from one node\n", r.NodeRate)
	b.WriteString("expected flows over a directed link, probes and replies\n")
	writeTable(&b, func(w io.Writer) {
		fmt.Fprintln(w, "  tier\tlinks\tleast\tmean\tthe least is at")
		for _, c := range r.Coverage {
			name := strconv.Itoa(c.Tier)
			if c.Tier == 1 {
				name += " (access)"
			}
			fmt.Fprintf(w, "  %s\t%d\t%.2f\t%.2f\t%s\n", name, c.Links, c.Min, c.Mean, c.Least)
		}
	})
	fmt.Fprintf(&b, "odds that ECMP leaves any crossed fabric link without a flow: at most %.2g\n", r.Gap)
	if len(r.Findings) > 0 {
		b.WriteString("findings\n")
		for _, f := range r.Findings {
			fmt.Fprintf(&b, "  - %s\n", f)
		}
	}
	if len(r.Links) > 0 {
		b.WriteString("\n")
		writeTable(&b, func(w io.Writer) {
			fmt.Fprintln(w, "FLOWS\tTIER\tDIRECTED LINK")
			for _, l := range r.Links {
				fmt.Fprintf(w, "%.2f\t%d\t%s->%s\n", l.Flows, l.Tier, l.From, l.To)
			}
		})
	}
	if len(r.Edges) > 0 {
		b.WriteString("\n")
		writeTable(&b, func(w io.Writer) {
			fmt.Fprintln(w, "TIER\tCADENCE\tCLASS\tEDGE")
			for _, e := range r.Edges {
				fmt.Fprintf(w, "%d\t%v\t%s\t%s\n", e.Tier, time.Duration(e.CadenceNS), cmp.Or(e.Class, "-"), e.Edge)
			}
		})
	}
	return b.String()
}

// writeTable aligns the cells of rows, which are separated by tabs.
func writeTable(b *strings.Builder, rows func(w io.Writer)) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	rows(w)
	_ = w.Flush() // writes to a Builder never fail
}
