package report

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/attribute"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// matchers returns a selector in braces, from pairs of label and value.
func matchers(pairs ...string) string {
	var out []string
	for i := 0; i+1 < len(pairs); i += 2 {
		out = append(out, pairs[i]+"="+strconv.Quote(pairs[i+1]))
	}
	return "{" + strings.Join(out, ",") + "}"
}

// FlowSelector returns the selector of the series of one directed flow.
func FlowSelector(f fabric.Flow) string {
	direction := "forward"
	if f.Reply {
		direction = "reverse"
	}
	return matchers("src", f.Src, "dst", f.Dst, "flow", strconv.Itoa(f.Number), "direction", direction)
}

// leafSelector returns the selector of the series of all flows between the leaves of a flow that have its direction, or "" if one of them
// is not known. A reply is counted at the leaf that it goes to.
func leafSelector(f *Flow) string {
	from, to, side := f.leaves[0], f.leaves[1], "source"
	if f.id.Reply {
		from, to, side = to, from, "destination"
	}
	if from == "" || to == "" {
		return ""
	}
	return matchers("leaf", from, "peer_leaf", to, "side", side)
}

// NamedExpr is a query in PromQL with a name.
type NamedExpr struct{ Name, Expr string }

// FlowQueries returns queries for the delay and the loss of one directed flow.
func FlowQueries(f fabric.Flow) []NamedExpr {
	of := FlowSelector(f)
	return []NamedExpr{
		{"delay", fmt.Sprintf("histogram_quantile(0.5, sum(rate(fabric_probe_owd_seconds%s[1m])))", of)},
		{"loss", fmt.Sprintf("sum(rate(fabric_probe_lost_total%s[1m])) / sum(rate(fabric_probe_sent_total%s[1m]))", of, of)},
	}
}

// ElementQueries returns queries for the published series of an element and for the series of its ports.
func ElementQueries(e fabric.Element) []NamedExpr {
	of := matchers("element", e.ID, "kind", string(e.Kind))
	out := []NamedExpr{
		{"score", "fabric_suspect_score" + of},
		{"delay it adds", "fabric_suspect_added_delay_seconds" + of},
		{"what it loses", "fabric_suspect_loss_ratio" + of},
	}
	all := func(family string, pairs ...string) string {
		return `{__name__=~"` + family + `_.+",` + strings.TrimPrefix(matchers(pairs...), "{")
	}
	end := func(name string) {
		if sw, port, ok := fabric.SplitPort(name); ok {
			out = append(out, NamedExpr{"port " + name, all("fabric_switch_port", "switch", sw, "port", port)})
		} else if fabric.IsNIC(name) {
			out = append(out, NamedExpr{"NIC " + name, all("fabric_nic", "nic", name)})
		}
	}
	switch e.Kind {
	case fabric.KindLink, fabric.KindAccessLink:
		for _, name := range e.Ends() {
			end(name)
		}
	case fabric.KindNIC, fabric.KindPort:
		end(e.ID)
	case fabric.KindSwitch, fabric.KindLeafUplinks:
		out = append(out, NamedExpr{"ports of " + e.ID, all("fabric_switch_port", "switch", e.ID)})
	case fabric.KindClock:
		out = append(out, NamedExpr{"clock", "fabric_clock_offset_seconds" + matchers("clock", e.ID)})
	}
	return out
}

// causeQuery returns the query for the series that can show a cause at its element, or "" if there are none.
func causeQuery(c *fabric.Cause) string {
	names := attribute.SeriesOf(c.Cause, c.Element)
	if len(names) == 0 {
		return ""
	}
	for i := range names {
		names[i] = regexp.QuoteMeta(names[i])
	}
	of := matchers("nic", c.Element)
	if sw, port, ok := fabric.SplitPort(c.Element); ok {
		of = matchers("switch", sw, "port", port)
	} else if !fabric.IsNIC(c.Element) {
		of = matchers("switch", c.Element)
	}
	return "{__name__=~" + strconv.Quote(strings.Join(names, "|")) + "," + strings.TrimPrefix(of, "{")
}

// grain is a way to ask for delays and losses. Finer ones are tried first.
type grain struct {
	name string
	// delay is the family of native histograms. It is empty for recorded quantiles, which p50 and p99 name.
	delay, p50, p99 string
	lost, sent      string // families of counters
	ratio           string // or the recorded ratio of them
	labels          string // that distinguish its series
	selector        func(*Flow) string
}

func grains() []grain {
	byFlow := func(f *Flow) string { return FlowSelector(f.id) }
	const leaves = "leaf, peer_leaf, side"
	return []grain{
		{name: grainFlows, delay: "fabric_probe_owd_seconds", lost: "fabric_probe_lost_total", sent: "fabric_probe_sent_total", labels: "src, dst, flow, direction", selector: byFlow},
		{name: grainLeaves, delay: "fabric_leaf_pair_owd_seconds", lost: "fabric_leaf_pair_probe_lost_total", sent: "fabric_leaf_pair_probe_sent_total", labels: leaves, selector: leafSelector},
		{name: grainRecorded, p50: "fabric:leafpair_owd_seconds:p50_2s", p99: "fabric:leafpair_owd_seconds:p99_2s", ratio: "fabric:leafpair_probe_lost:ratio_2s", labels: leaves, selector: leafSelector},
	}
}

// selectors returns those of flows, each once, and without flows that the grain does not have.
func (g *grain) selectors(flows []Flow) (out []string) {
	for i := range flows {
		if s := g.selector(&flows[i]); s != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// each joins an expression for each selector, so that a result has the series of all.
func each(selectors []string, expr func(selector string) string) string {
	out := make([]string, len(selectors))
	for i, s := range selectors {
		out[i] = expr(s)
	}
	return strings.Join(out, " or ")
}

// distribution returns the query for the histogram of all packets in a span that ends at the moment of the query. It is empty for
// recorded quantiles.
func (g *grain) distribution(selectors []string, span time.Duration) string {
	if g.delay == "" {
		return ""
	}
	return "sum(" + each(selectors, func(s string) string { return "increase(" + g.delay + s + "[" + evidence.PromDuration(span) + "])" }) + ")"
}

// quantileOver returns the query for a quantile of the median delay over a span, where there are recorded quantiles only.
func (g *grain) quantileOver(selectors []string, family string, span time.Duration) string {
	return "avg(" + each(selectors, func(s string) string { return "avg_over_time(" + family + s + "[" + evidence.PromDuration(span) + "])" }) + ")"
}

// line returns the query for a value of each of the selected flows or pairs, at each moment of a span.
func (g *grain) line(selectors []string, value string, window time.Duration) string {
	over := "[" + evidence.PromDuration(window) + "]"
	sum := func(family string) string {
		return "sum by (" + g.labels + ") (" + each(selectors, func(s string) string { return "rate(" + family + s + over + ")" }) + ")"
	}
	recorded := func(family string) string {
		return "max by (" + g.labels + ") (" + each(selectors, func(s string) string { return "avg_over_time(" + family + s + over + ")" }) + ")"
	}
	switch {
	case value == valueLoss && g.ratio != "":
		return recorded(g.ratio)
	case value == valueLoss:
		return sum(g.lost) + " / (" + sum(g.sent) + " > 0)"
	case value == valueP50 && g.delay == "":
		return recorded(g.p50)
	case value == valueP99 && g.delay == "":
		return recorded(g.p99)
	}
	return "histogram_quantile(" + map[string]string{valueP50: "0.5", valueP99: "0.99"}[value] + ", " + sum(g.delay) + ")"
}

// What time lines show.
const (
	valueP50  = "p50"
	valueP99  = "p99"
	valueLoss = "loss"
)

// lineKey returns the text that a selector and the labels of its series have in common.
func (g *grain) lineKey(of map[string]string) string {
	var pairs []string
	for _, name := range strings.Split(g.labels, ", ") {
		pairs = append(pairs, name, of[name])
	}
	return matchers(pairs...)
}
