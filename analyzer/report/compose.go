package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/display"
	"github.com/graylink/graylink/internal/fabric"
)

// composer makes the document of a report.
type composer struct {
	r *Report
	o Options
}

// Document returns the report as text, tables and pictures.
func (r *Report) Document(o Options) *Document {
	c := &composer{r, o}
	v := &r.Verdict
	d := &Document{Title: words(string(v.Kind)) + " " + shortName(v.Element.ID), Open: v.Open, State: c.state()}
	for _, s := range []Section{c.summary(), c.missing(), c.delays(), c.lines(), c.flows(), c.paths(), c.causes(), c.asked(), c.others(), c.queries(), c.settings(), c.record()} {
		if len(s.Blocks) > 0 {
			d.Sections = append(d.Sections, s)
		}
	}
	return d
}

func words(s string) string { return strings.ReplaceAll(s, "_", " ") }

// state says in one sentence whether the verdict is open.
func (c *composer) state() string {
	v := &c.r.Verdict
	lasted := display.Age(c.r.Span.Ended.Sub(v.FirstSeen))
	switch {
	case v.Open && v.Held != "":
		return "Held open for " + lasted + ": " + v.Held
	case v.Open:
		return "Open for " + lasted + "."
	}
	return "Closed after " + lasted + ": " + cmp.Or(v.Closed, "cleared") + "."
}

func (c *composer) summary() Section {
	v := &c.r.Verdict
	s := Section{ID: "summary", Title: "What happened"}
	text := func(t string) {
		if t != "" {
			s.Blocks = append(s.Blocks, Block{Text: display.ShortenMiddle(t, c.bound(maxText))})
		}
	}
	text(v.Summary)
	if v.Attribution != nil {
		text("Why: " + v.Attribution.Summary)
		for _, against := range bounded(v.Attribution.Against) {
			text("Against it: " + against)
		}
		if v.Attribution.Signals != nil {
			text("In-band signals: " + v.Attribution.Signals.Text)
		}
	}
	if v.Action != "" {
		text("Do: " + v.Action)
	}
	var facts []Fact
	fact := func(name, value string) {
		if value != "" {
			facts = append(facts, Fact{name, display.ShortenMiddle(value, c.bound(maxText)/2)})
		}
	}
	fact("runbook", v.Runbook)
	fact("symptom", cmp.Or(display.Symptom(v.Symptom), display.Absent))
	if from, to, ok := strings.Cut(v.Direction, "->"); ok {
		fact("direction", from+" → "+to)
	}
	fact("scenario", words(string(v.Scenario)))
	fact("severity", v.Severity)
	fact("confidence", display.Percent(v.Confidence))
	fact("prefix", v.Prefix)
	if v.Tier > 0 {
		fact("tier", display.Count(v.Tier))
	}
	fact("plane", v.Plane)
	fact("class", v.Class)
	fact("first seen", display.ClockTime(v.FirstSeen))
	fact("opened", display.ClockTime(v.OpenedAt))
	fact("last seen", display.ClockTime(v.LastSeen))
	if v.Cleared != nil {
		fact("closed", display.ClockTime(*v.Cleared))
	}
	e := &v.Evidence
	fact("evidence", fmt.Sprintf("%s of %s degraded flows explained, %s nearby flows are healthy", display.Count(e.ExplainedEdges), display.Count(e.DegradedEdges), display.Count(e.HealthyEdgesThroughParent)))
	if e.ContraryEdges > 0 {
		fact("against it", display.PluralCount(e.ContraryEdges, "clean flow crosses it", "clean flows cross it"))
	}
	fact("touches", fmt.Sprintf("%s NICs, %s flows", display.Count(v.BlastRadius.NICs), display.Count(v.BlastRadius.Edges)))
	fact("jobs", strings.Join(bounded(v.Jobs), ", "))
	fact("causes", words(strings.Join(bounded(v.Causes), ", ")))
	if p := v.Shares; p != nil {
		fact("sprayed flows", fmt.Sprintf("%s to %s of the packets of %s cross it", display.Percent(p.Least), display.Percent(p.Most), display.PluralCount(p.SprayedEdges, "flow", "flows")))
	}
	s.Blocks = append(s.Blocks, Block{Facts: facts})
	if len(v.Failovers) > 0 {
		t := &Table{Caption: "How long routing took", Columns: []string{"direction", "packets were lost for", "flows"}}
		for _, f := range v.Failovers {
			t.add(code(cmp.Or(f.Direction, "both")), plain(display.Delay(f.LossNS)), plain(display.Count(f.Flows)))
		}
		s.Blocks = append(s.Blocks, Block{Table: t})
	}
	return s
}

// missing lists what of the report is not known.
func (c *composer) missing() Section {
	s := Section{ID: "missing", Title: "What is not known"}
	all := slices.Clone(c.r.Unknown)
	for _, q := range c.r.Queries {
		if q.Problem != "" {
			all = append(all, fmt.Sprintf("%s: %s (%s)", q.Name, q.Problem, q.ID))
		}
		for _, w := range q.Warnings {
			all = append(all, fmt.Sprintf("%s may be incomplete: %s (%s)", q.Name, w, q.ID))
		}
	}
	if len(all) > 0 {
		s.Blocks = append(s.Blocks, Block{Items: bounded(all)})
	}
	return s
}

func (c *composer) delays() Section {
	s := Section{ID: "delays", Title: "Delay before and during"}
	if len(c.r.Delays) == 0 {
		return s
	}
	t := &Table{Caption: "Delay before and during", Columns: []string{"when", "packets", "median", "p90", "p99", "from", "until"}}
	for i := range c.r.Delays {
		d := &c.r.Delays[i]
		packets := display.Absent
		if d.Count > 0 {
			packets = display.Count(int(d.Count + 0.5))
		}
		if d.Unknown != "" {
			packets = "unknown: " + d.Unknown
		}
		t.add(Cell{Text: d.When}, Cell{Text: display.ShortenMiddle(packets, maxText/4), Query: d.Query}, delayCell(d.P50NS), delayCell(d.P90NS), delayCell(d.P99NS), plain(display.ClockTime(d.From)), plain(display.ClockTime(d.Until)))
	}
	if c.r.Grain == grainRecorded {
		s.Blocks = append(s.Blocks, Block{Text: "Prometheus has no native histograms of these flows or of their leaves. The medians are means of those that rules recorded."})
	} else if chart := c.distributionChart(); chart != nil {
		s.Blocks = append(s.Blocks, Block{Chart: chart})
	}
	s.Blocks = append(s.Blocks, Block{Table: t})
	return s
}

func delayCell(ns *float64) Cell { return Cell{Text: delayText(ns)} }

func delayText(ns *float64) string {
	if ns == nil {
		return display.Absent
	}
	return display.Delay(int64(*ns))
}

func (c *composer) lines() Section {
	s := Section{ID: "lines", Title: "Delay and loss over time"}
	if len(c.r.Lines) == 0 {
		return s
	}
	of := "of single flows"
	if c.r.Grain != grainFlows {
		of = "of all flows between two leaves"
	}
	s.Blocks = append(s.Blocks, Block{Chart: c.lineChart(valueP50, "Median delay "+of)}, Block{Chart: c.lineChart(valueLoss, "Loss "+of)})
	t := &Table{Caption: "Time lines", Columns: []string{"of", "value", "least", "largest", "last", "moments", "query"}}
	for i := range c.r.Lines {
		l := &c.r.Lines[i]
		values := make([]float64, len(l.Points))
		for j, p := range l.Points {
			values[j] = p.Value
		}
		low, high, ok := display.Bounds(values)
		if !ok {
			continue
		}
		t.add(code(l.Of), plain(l.Value), plain(l.text(low)), plain(l.text(high)), plain(l.text(values[len(values)-1])), plain(display.Count(len(values))), Cell{Query: l.Query})
	}
	s.Blocks = append(s.Blocks, Block{Folded: "lines-table", Table: t})
	return s
}

// text writes a value of a line.
func (l *Line) text(v float64) string {
	if l.Value == valueLoss {
		return display.Percent(v)
	}
	return display.Delay(int64(v))
}

func (c *composer) flows() Section {
	s := Section{ID: "flows", Title: "Who was affected"}
	for _, part := range []struct {
		caption string
		flows   []Flow
		total   int
	}{{"Affected flows, the worst first", c.r.Affected, c.r.AffectedTotal}, {"Healthy flows near them", c.r.Healthy, c.r.HealthyTotal}} {
		if part.total == 0 {
			continue
		}
		t := &Table{Caption: part.caption, LeftOut: part.total - len(part.flows), Columns: []string{"flow", "median then", "normal median", "p99 then", "normal p99", "loss then",
			"median before", "median during", "p99 before", "p99 during", "loss before", "loss during", "path"}}
		healthy := len(part.flows) > 0 && part.flows[0].Near != ""
		if healthy {
			t.Columns = append(t.Columns, "near, since it")
		}
		for i := range part.flows {
			f := &part.flows[i]
			name := code(f.Flow)
			if c.o.FlowLink != nil {
				name.Href = c.o.FlowLink(f.Src, f.Dst)
			}
			row := []Cell{name, plain(display.DelayOr(f.P50NS)), plain(display.DelayOr(f.BaselineP50NS)), plain(display.DelayOr(f.P99NS)), plain(display.DelayOr(f.BaselineP99NS)), plain(display.PercentOr(f.LossRatio)),
				delayCell(f.Before.P50NS), delayCell(f.During.P50NS), delayCell(f.Before.P99NS), delayCell(f.During.P99NS), plain(display.PercentOr(f.Before.LossRatio)), plain(display.PercentOr(f.During.LossRatio)), plain(string(f.PathState))}
			if healthy {
				row = append(row, plain(f.Near))
			}
			t.Rows = append(t.Rows, row)
		}
		s.Blocks = append(s.Blocks, Block{Text: fmt.Sprintf("%s: %s of %s.", part.caption, display.Count(len(part.flows)), display.Count(part.total))}, Block{Table: t})
	}
	if len(s.Blocks) > 0 {
		s.Blocks = append(s.Blocks, Block{Text: "\"Then\" is the window in which the verdict opened, or was narrowed last. \"Before\" and \"during\" are medians of the moments of the time lines."})
	}
	return s
}

// Paths that are drawn at most.
const (
	drawnAffected = 4
	drawnHealthy  = 2
)

func (c *composer) paths() Section {
	s := Section{ID: "paths", Title: "Paths"}
	t := &Table{Caption: "Hops", Columns: []string{"flow", "from", "to", "adds", "flows that cross it", "degraded"}}
	for _, part := range []struct {
		flows []Flow
		most  int
		what  string
	}{{c.r.Affected, drawnAffected, "affected"}, {c.r.Healthy, drawnHealthy, "healthy"}} {
		for i := range part.flows {
			f := &part.flows[i]
			if i < part.most && len(f.Path) > 0 {
				s.Blocks = append(s.Blocks, Block{Path: drawPath(f, part.what)})
			}
			for _, h := range f.Path {
				t.add(code(f.Flow), code(h.From), code(h.To), plain(h.adds()), plain(countOr(h.Flows)), plain(countOr(h.Degraded)))
			}
		}
	}
	if len(t.Rows) == 0 {
		return Section{}
	}
	s.Blocks = append(s.Blocks, Block{Text: "What a hop adds is what the verdict says of its element. Another hop adds at most as much as the least late flow that crosses it. A question mark stands where neither is known."},
		Block{Folded: "hops-table", Table: t})
	return s
}

// countOr writes a number that may be unknown.
func countOr(n *int) string {
	if n == nil {
		return display.Absent
	}
	return display.Count(*n)
}

// adds writes what a hop adds to the delay.
func (h *Hop) adds() string {
	switch {
	case h.AddedDelayNS == nil:
		return "?"
	case h.Bound:
		return "≤ " + display.Delay(*h.AddedDelayNS)
	}
	return "+ " + display.Delay(*h.AddedDelayNS)
}

func (c *composer) causes() Section {
	s := Section{ID: "causes", Title: "Causes"}
	a := c.r.Verdict.Attribution
	if a == nil {
		return s
	}
	s.Blocks = append(s.Blocks, Block{Text: fmt.Sprintf("Causes: %s. Readings from %s until %s.", words(string(a.State)), display.ClockTime(a.From), display.ClockTime(a.Until))})
	if len(a.Causes) == 0 {
		return s
	}
	t := &Table{Caption: "Causes", Columns: []string{"cause", "at", "other end", "weight", "reading", "series"}, LeftOut: len(a.Causes) - len(c.r.Causes)}
	for i := range c.r.Causes {
		x := &c.r.Causes[i]
		seen := cmp.Or(x.Unknown, display.PluralCount(len(x.Series)+x.LeftOut, "series", "series"))
		t.add(plain(words(x.Cause.Cause)), code(x.Element), code(cmp.Or(x.Peer, display.Absent)), plain(fmt.Sprintf("%.2f", x.Weight)), plain(display.ShortenMiddle(x.Text, maxText/4)), Cell{Text: display.ShortenMiddle(seen, maxText/4), Query: x.Query})
	}
	s.Blocks = append(s.Blocks, Block{Table: t})
	for i := range c.r.Causes {
		s.Blocks = append(s.Blocks, c.causeSeries(&c.r.Causes[i])...)
	}
	return s
}

// causeSeries shows how the series of a cause went. It returns nil if there are none.
func (c *composer) causeSeries(x *Cause) []Block {
	if len(x.Series) == 0 {
		return nil
	}
	t := &Table{Caption: "Series of " + words(x.Cause.Cause), Columns: []string{"series", "at first", "when it began", "at last", "query"}, LeftOut: x.LeftOut}
	began := c.r.Span.Began.Sub(c.r.Span.From).Seconds()
	for _, series := range x.Series {
		first, start, last := display.Absent, display.Absent, display.Absent
		for i, p := range series.Points {
			text := fmt.Sprintf("%.6g", p.Value)
			if i == 0 {
				first = text
			}
			if p.Seconds <= began {
				start = text
			}
			last = text
		}
		t.add(code(series.Name), plain(first), plain(start), plain(last), Cell{Query: x.Query})
	}
	return []Block{{Chart: c.causeChart(x)}, {Table: t}}
}

func (c *composer) asked() Section {
	s := Section{ID: "asked", Title: "What was asked"}
	asked := c.r.Verdict.Evidence.Asked
	for i := range asked[:min(len(asked), maxItems)] {
		a := &asked[i]
		s.Blocks = append(s.Blocks, Block{Text: display.ClockTime(a.At) + ": " + display.ShortenMiddle(a.String(), c.bound(maxText)) + "."})
		var facts []Fact
		list := func(name string, all []string) {
			if len(all) > 0 {
				facts = append(facts, Fact{name, strings.Join(bounded(all), ", ")})
			}
		}
		list("between", elementNames(a.Between))
		list("flows", a.Flows)
		list("refused", a.Refused)
		list("excluded", elementNames(a.Excluded))
		if len(facts) > 0 {
			s.Blocks = append(s.Blocks, Block{Facts: facts})
		}
		if len(a.Hops) > 0 {
			t := &Table{Caption: "Hop-limited probes", Columns: []string{"flow", "hop", "switch", "sent", "answered", "says nothing, since"}}
			for _, h := range a.Hops {
				t.add(code(h.Flow), plain(display.Count(h.Hop)), code(h.Switch), plain(display.Count(int(h.Sent))), plain(display.Count(int(h.Answered))), plain(display.ShortenMiddle(h.Discarded, maxText/4)))
			}
			s.Blocks = append(s.Blocks, Block{Table: t})
		}
	}
	return s
}

func elementNames(all []fabric.Element) []string {
	out := make([]string, len(all))
	for i, e := range all {
		out[i] = words(string(e.Kind)) + " " + shortName(e.ID)
	}
	return out
}

func (c *composer) others() Section {
	s := Section{ID: "others", Title: "What it cannot be distinguished from"}
	v := &c.r.Verdict
	if v.Scenario == fabric.Polarization {
		s.Title = "The same hash, and leaves whose flows crowd"
	}
	if len(v.Equivalent) > 0 {
		s.Blocks = append(s.Blocks, Block{Items: bounded(elementNames(v.Equivalent))})
	}
	if len(v.WouldSplit) > 0 {
		var items []string
		for i := range v.WouldSplit {
			items = append(items, v.WouldSplit[i].String())
		}
		s.Blocks = append(s.Blocks, Block{Text: "This would distinguish them:"}, Block{Items: bounded(items)})
	}
	return s
}

func (c *composer) queries() Section {
	s := Section{ID: "queries", Title: "Queries"}
	t := &Table{Caption: "Queries to Prometheus", Columns: []string{"number", "of", "at", "query"}}
	for _, q := range c.r.Queries {
		at := display.ClockTime(q.At)
		if !q.From.IsZero() {
			at = fmt.Sprintf("from %s until %s, every %s", display.ClockTime(q.From), at, time.Duration(q.StepSeconds*float64(time.Second)))
		}
		expr := Cell{Text: display.ShortenMiddle(q.Expr, c.bound(maxExpr)), Code: true}
		if c.o.QueryLink != nil {
			expr.Href = c.o.QueryLink(q.Expr)
		}
		t.add(Cell{Text: q.ID, ID: q.ID}, plain(display.ShortenMiddle(q.Name, maxText/4)), plain(at), expr)
	}
	if len(t.Rows) > 0 {
		s.Blocks = append(s.Blocks, Block{Table: t})
	}
	return s
}

func (c *composer) settings() Section {
	x := &c.r.Settings
	seconds := func(v float64) string { return fmt.Sprintf("%g s", v) }
	facts := []Fact{{"version", cmp.Or(x.Version, display.Absent)}, {"configuration", cmp.Or(x.ConfigHash, display.Absent)}, {"topology", fmt.Sprintf("%s: %s nodes, %s NICs, %s switches, %s links", x.Topology.Hash,
		display.Count(x.Topology.Nodes), display.Count(x.Topology.NICs), display.Count(x.Topology.Switches), display.Count(x.Topology.Links))}}
	if x.Shard != "" {
		facts = append(facts, Fact{"shard", shortName(x.Shard)})
	}
	facts = append(facts, Fact{"scrape interval", seconds(x.ScrapeSeconds)}, Fact{"lag", seconds(x.LagSeconds)}, Fact{"window of delays", seconds(x.DelayWindowSeconds)}, Fact{"window of total loss", seconds(x.HardWindowSeconds)},
		Fact{"delays are of", c.r.Grain}, Fact{"verdict", shortName(c.r.Verdict.ID)})
	t := &Table{Caption: "When a flow is degraded", Columns: []string{"threshold", "value", "unit"}}
	for _, p := range x.Thresholds {
		t.add(plain(p.Name), plain(fmt.Sprintf("%g", p.Value)), plain(p.Unit))
	}
	return Section{ID: "settings", Title: "Settings and versions", Blocks: []Block{{Facts: facts}, {Folded: "thresholds-table", Table: t}}}
}
