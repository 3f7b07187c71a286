package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/schedule"
)

// slowAfter is how long work may take before its progress is reported, and the interval of further reports.
const slowAfter = 2 * time.Second

// explainedEdges is how many edges of a link's direction are listed without --edges.
const explainedEdges = 12

type scheduleFlags struct {
	topology, explain, format string
	fanOut                    string
	edges, links              bool
	absent                    []string
	options                   schedule.Options
}

func addSchedule(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("schedule", "Print the probe schedule for a topology, and its expected coverage. Exit code 0: done (findings do not count), 1: bad arguments or topology, or nothing to explain by that name.")
	d := schedule.DefaultOptions()
	var f scheduleFlags
	cmd.Flag("topology", "Topology file (YAML).").Required().StringVar(&f.topology)
	cmd.Flag("explain", "Explain one edge (h1/eth1>h4/eth1#0), link (leaf1:up1--spine1:dn1) or direction of a link (FROM->TO).").StringVar(&f.explain)
	cmd.Flag("edges", "Also print all edges.").BoolVar(&f.edges)
	cmd.Flag("links", "Also print the expected flows over every directed link.").BoolVar(&f.links)
	cmd.Flag("fan-out", "Minimum number of peers of a NIC: under its leaf, in its pod, across pods.").Default(fmt.Sprintf("%d,%d,%d", d.FanOut[0], d.FanOut[1], d.FanOut[2])).StringVar(&f.fanOut)
	cmd.Flag("budget", "Maximum number of probes per second from one node.").Default(fmt.Sprint(d.Budget)).Float64Var(&f.options.Budget)
	cmd.Flag("cadence", "Time between the probes of an edge; far tiers get a multiple if the budget requires it.").Default(d.Cadence.String()).DurationVar(&f.options.Cadence)
	cmd.Flag("min-peers", "Minimum number of distinct peers that every NIC probes and is probed by.").Default(fmt.Sprint(d.MinPeers)).IntVar(&f.options.MinPeers)
	cmd.Flag("min-flows", "Minimum number of flows expected over every directed link between switches, in every class.").Default(fmt.Sprint(d.MinFlows)).Float64Var(&f.options.MinFlows)
	cmd.Flag("class", "Name of a class to probe; repeat it for several.").StringsVar(&f.options.Classes)
	cmd.Flag("absent", "Node without an agent; repeat it for several.").StringsVar(&f.absent)
	cmd.Flag("format", "Output format.").Default("text").EnumVar(&f.format, "text", "json")
	commands[cmd.FullCommand()] = func(context.Context) error { return runSchedule(os.Stdout, os.Stderr, f) }
}

func runSchedule(out, progress io.Writer, f scheduleFlags) error {
	if err := f.parseAndCheck(); err != nil {
		return err
	}
	var g *fabric.Graph
	var err error
	runWithProgress(progress, "reading the topology", func() { _, g, err = loadGraph(f.topology) })
	if err != nil {
		return err
	}
	f.options.Absent = map[string]bool{}
	for _, node := range f.absent {
		if len(g.EndsOf(node)) == 0 || g.Switch(node) != nil {
			return fmt.Errorf("--absent %s: the topology has no such node with a link", node)
		}
		f.options.Absent[node] = true
	}
	var s *schedule.Schedule
	runWithProgress(progress, fmt.Sprintf("scheduling %d NICs", len(g.NICIDs())), func() { s, err = schedule.Make(g, f.options) })
	if err != nil {
		return err
	}
	var text string
	var value any
	if f.explain != "" {
		runWithProgress(progress, "explaining "+f.explain, func() { value, text, err = explainByName(g, s, f) })
		if err != nil {
			return fmt.Errorf("--explain %s: %w", f.explain, err)
		}
	} else {
		var cov schedule.Coverage
		runWithProgress(progress, "summing the expected flows up", func() { cov = s.ExpectedFlows(g) })
		rep := newScheduleReport(g, s, cov, f)
		value, text = rep, rep.formatText()
	}
	if f.format == "json" {
		enc := plainjson.NewEncoder(out)
		err = enc.Encode(value)
	} else {
		_, err = io.WriteString(out, text)
	}
	if err != nil {
		return fmt.Errorf("cannot write the schedule: %w", err)
	}
	return nil
}

// parseAndCheck parses the flags that hold more than one value, and refuses zeros, which the schedule would take for
// its defaults.
func (f *scheduleFlags) parseAndCheck() error {
	parts := strings.Split(f.fanOut, ",")
	if len(parts) != len(f.options.FanOut) {
		return fmt.Errorf("--fan-out %s: want three numbers separated by commas", f.fanOut)
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 1 {
			return fmt.Errorf("--fan-out %s: %q: want a positive number", f.fanOut, p)
		}
		f.options.FanOut[i] = n
	}
	for flag, positive := range map[string]bool{"--budget": f.options.Budget > 0, "--cadence": f.options.Cadence > 0, "--min-peers": f.options.MinPeers > 0, "--min-flows": f.options.MinFlows > 0} {
		if !positive {
			return fmt.Errorf("%s: want a positive value", flag)
		}
	}
	return nil
}

// runWithProgress runs work and reports its progress on w while it takes long.
func runWithProgress(w io.Writer, what string, work func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(gone)
		tick := time.NewTicker(slowAfter)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintf(w, "graylink: %s: %.0f s\n", what, time.Since(start).Seconds())
			}
		}
	}()
	work()
	close(done)
	<-gone
}

type spread struct {
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

type scheduleReport struct {
	NICs       int               `json:"nics"`
	Probing    int               `json:"probing"`
	EdgeCount  int               `json:"edge_count"`
	Classes    []string          `json:"classes"`
	Tiers      []tierReport      `json:"tiers"`
	FanOut     spread            `json:"fan_out"`
	FanIn      spread            `json:"fan_in"`
	NodeRate   float64           `json:"max_node_probes_per_second"`
	Coverage   []coverageReport  `json:"coverage"`
	Gap        float64           `json:"gap_odds"`
	Components []componentReport `json:"components"`
	Findings   []string          `json:"findings"`
	Edges      []edgeReport      `json:"edges,omitempty"`
	Links      []linkReport      `json:"links,omitempty"`
}

func newScheduleReport(g *fabric.Graph, s *schedule.Schedule, cov schedule.Coverage, f scheduleFlags) scheduleReport {
	rep := scheduleReport{NICs: len(s.NICs), EdgeCount: len(s.Edges), Classes: s.Classes, Tiers: []tierReport{}, Findings: append([]string{}, s.Findings...)}
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
		if f.edges {
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
	rep.FanOut, rep.FanIn = spreadOf(outs), spreadOf(ins)
	for _, t := range cov.Tiers {
		rep.Coverage = append(rep.Coverage, coverageReport{t.Tier, t.Links, t.Min, t.Mean, t.Least.String(), t.Empty})
	}
	for _, c := range s.Components {
		rep.Components = append(rep.Components, componentReport{c.NICs, c.Switches, append([]string{}, c.Planes...), append([]string{}, c.Rails...)})
	}
	if f.links {
		for _, l := range cov.Links {
			rep.Links = append(rep.Links, linkReport{l.LinkID(), l.From, l.To, l.Tier, l.Flows})
		}
	}
	return rep
}

func spreadOf(xs []int) spread {
	if len(xs) == 0 {
		return spread{}
	}
	s := spread{Min: slices.Min(xs), Max: slices.Max(xs)}
	for _, x := range xs {
		s.Mean += float64(x) / float64(len(xs))
	}
	return s
}

func (r scheduleReport) formatText() string {
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

// explainByName explains one edge, one link or one direction of a link.
func explainByName(g *fabric.Graph, s *schedule.Schedule, f scheduleFlags) (value any, text string, err error) {
	if a, b, ok := fabric.SplitLink(f.explain); ok {
		return explainLink(g, s, f, []fabric.Direction{{From: a, To: b}, {From: b, To: a}})
	}
	if strings.Contains(f.explain, "->") {
		d, err := fabric.ParseDirection(f.explain)
		if err != nil {
			return nil, "", err
		}
		return explainLink(g, s, f, []fabric.Direction{d})
	}
	e, err := fabric.ParseFlow(f.explain)
	if err != nil {
		return nil, "", err
	}
	return explainEdge(g, s, e.ProbeFlow())
}

type oddsReport struct {
	Link string  `json:"direction"`
	Odds float64 `json:"odds"`
}

type edgeExplained struct {
	edgeReport
	Why     string       `json:"why"`
	Flows   int          `json:"flows_of_pair"`
	FanOut  int          `json:"src_fan_out"`
	FanIn   int          `json:"dst_fan_in"`
	Probes  []oddsReport `json:"probes_cross"`
	Replies []oddsReport `json:"replies_cross"`
}

func explainEdge(g *fabric.Graph, s *schedule.Schedule, want fabric.Flow) (any, string, error) {
	if n := g.NIC(want.Src); n != nil {
		want.Src = n.ID()
	}
	if n := g.NIC(want.Dst); n != nil {
		want.Dst = n.ID()
	}
	rep := edgeExplained{}
	var peers []string
	found := false
	for i, e := range s.Edges {
		first := i == 0 || s.Edges[i-1].Src != e.Src || s.Edges[i-1].Dst != e.Dst
		id := s.FlowID(e)
		if first && id.Src == want.Src {
			peers = append(peers, id.Dst)
		}
		if first && id.Dst == want.Dst {
			rep.FanIn++
		}
		if id.Src == want.Src && id.Dst == want.Dst {
			rep.Flows++
		}
		if id == want {
			found = true
			rep.edgeReport = edgeReport{id.String(), int(e.Tier), s.Classes[e.Class], int64(e.Cadence)}
		}
	}
	rep.FanOut = len(peers)
	if !found {
		switch {
		case g.NIC(want.Src) == nil:
			return nil, "", fmt.Errorf("the topology has no NIC %q", want.Src)
		case len(peers) == 0:
			return nil, "", fmt.Errorf("not in the schedule: %s probes no NIC", want.Src)
		}
		return nil, "", fmt.Errorf("not in the schedule: %s probes %s", want.Src, strings.Join(peers, ", "))
	}
	rep.Why = whyEdge(g, want, rep.Tier)
	for _, way := range []struct {
		from, to string
		into     *[]oddsReport
	}{{want.Src, want.Dst, &rep.Probes}, {want.Dst, want.Src, &rep.Replies}} {
		links, err := schedule.CrossedLinks(g, way.from, way.to)
		if err != nil {
			return nil, "", err
		}
		for _, l := range links {
			*way.into = append(*way.into, oddsReport{l.String(), l.Odds})
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", rep.Edge)
	fmt.Fprintf(&b, "  why      %s\n", rep.Why)
	fmt.Fprintf(&b, "  tier     %d, every %v", rep.Tier, time.Duration(rep.CadenceNS))
	if rep.Class != "" {
		fmt.Fprintf(&b, ", class %s", rep.Class)
	}
	fmt.Fprintf(&b, "\n  pair     %d flows; %s probes %d peers, %s is probed by %d\n", rep.Flows, want.Src, rep.FanOut, want.Dst, rep.FanIn)
	for _, way := range []struct {
		what string
		odds []oddsReport
	}{{"probes cross, with these odds", rep.Probes}, {"replies cross", rep.Replies}} {
		fmt.Fprintf(&b, "  %s\n", way.what)
		for _, o := range way.odds {
			fmt.Fprintf(&b, "    %.4f  %s\n", o.Odds, o.Link)
		}
	}
	return rep, b.String(), nil
}

func whyEdge(g *fabric.Graph, e fabric.Flow, tier int) string {
	a, _ := g.LeafOf(e.Src)
	b, _ := g.LeafOf(e.Dst)
	rail := ""
	if x, y := g.NIC(e.Src), g.NIC(e.Dst); x.Rail != nil && y.Rail != nil && *x.Rail == *y.Rail {
		rail = fmt.Sprintf(", both of rail %d", *x.Rail)
	}
	switch {
	case a == b:
		return fmt.Sprintf("both NICs are under %s%s: nothing is crossed but their access links", a, rail)
	case tier <= 2:
		return fmt.Sprintf("%s and %s are joined by switches of tier %d%s: it crosses links between leaves and spines", a, b, tier, rail)
	}
	return fmt.Sprintf("%s and %s are in different pods%s: it crosses links up to tier %d", a, b, rail, tier)
}

type crossedBy struct {
	Edge string  `json:"edge"`
	Odds float64 `json:"odds"`
}

type directionExplained struct {
	Direction string      `json:"direction"`
	Flows     float64     `json:"flows"`
	Count     int         `json:"edge_count"`
	Edges     []crossedBy `json:"edges"`
}

func explainLink(g *fabric.Graph, s *schedule.Schedule, f scheduleFlags, ways []fabric.Direction) (any, string, error) {
	out := []directionExplained{}
	var b strings.Builder
	for _, d := range ways {
		edges, err := s.CrossingFlows(g, d)
		if err != nil {
			return nil, "", err
		}
		rep := directionExplained{Direction: d.String(), Count: len(edges), Edges: []crossedBy{}}
		for i, e := range edges {
			rep.Flows += e.Odds
			if f.edges || f.format == "json" || i < explainedEdges {
				rep.Edges = append(rep.Edges, crossedBy{e.Edge.String(), e.Odds})
			}
		}
		out = append(out, rep)
		fmt.Fprintf(&b, "%s: %.2f flows are expected, of %d edges that may cross it\n", rep.Direction, rep.Flows, rep.Count)
		for _, e := range rep.Edges {
			fmt.Fprintf(&b, "    %.4f  %s\n", e.Odds, e.Edge)
		}
		if more := rep.Count - len(rep.Edges); more > 0 {
			fmt.Fprintf(&b, "    and %d more; --edges lists all\n", more)
		}
	}
	return out, b.String(), nil
}
