package compare

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Numbers of the rules.
const (
	// windowsPerSpan is the number of windows of a span. Prometheus 3 leaves the first one out.
	windowsPerSpan = 20
	// leastWindows is the number of them in which a series must have a value to be compared.
	leastWindows = windowsPerSpan / 4
	// lowPart and highPart are the percentiles that bound the spread of a span.
	lowPart, highPart = 0.1, 0.9
	// leastDelay is the least difference of delays, and leastShare that of rates, as a part of what there was.
	leastDelay, leastShare = 1e-7, 0.02
)

// statLabel is the label by which one query answers several statistics.
const statLabel = "graylink_statistic"

// measure is how one quantity of a kind is read.
type measure struct {
	kind     Kind
	quantity Quantity
	unit     Unit
	// value is its expression, with labels of a Place. $match stands for matchers, $element for those of suspects, $window for the
	// length of a window, and $at for an offset.
	value string
	// falls means that less is worse.
	falls bool
	// reportsMissing means that series which ended are listed. If beside is not "", only those are that still have its value.
	reportsMissing bool
	beside         string
}

// Labels of the series of NICs and leaves, and of links.
const (
	nicLabels  = "nic, side, class, plane"
	leafLabels = "leaf, side, class, plane"
	linkLabels = "link, from, to"
)

// Expressions of links. The coordinator publishes flows of links, too, by other rules.
const (
	linkFlows = `max by (` + linkLabels + `) (fabric_link_probe_edges{$match}$at and on (job, instance) graylink_analyzer_last_cycle_timestamp_seconds$at)`
	linkDelay = `max by (` + linkLabels + `) (fabric_link_added_delay_seconds{$match}$at)`
	// linkLoss is what open verdicts say of a direction of a link, or of both, and 0 of others that flows cross.
	linkLoss = `max by (` + linkLabels + `) (` + suspectLossBegin + `from!=""` + suspectLossEnd + `) ` +
		`or (0 * ` + linkFlows + ` + on (link) group_left max by (link) (` + suspectLossBegin + `from=""` + suspectLossEnd + `)) ` +
		`or 0 * (` + linkFlows + ` > 0)`
	suspectLossBegin = `label_replace(fabric_suspect_loss_ratio{kind=~"link|access_link", $element}$at * on (job, instance, element, kind) ` +
		`group_right () (fabric_suspect_info{kind=~"link|access_link", `
	suspectLossEnd = `, $element}$at == 1), "link", "$1", "element", "(.+)")`
)

func probesOf(labels string) string {
	return "sum by (" + labels + ") (avg_over_time(fabric:nic_probe_sent:rate_2s{$match}[$window]$at))"
}

func shareOf(series, labels string) string {
	return "sum by (" + labels + ") (avg_over_time(" + series + "{$match}[$window]$at)) / (" + probesOf(labels) + " > 0)"
}

// measures lists what is compared. A leaf is the median of its NICs, and all their packets together. Delays that are not known are
// NaN, which no comparison holds of.
func measures() []measure {
	const p50, p99, finite = "fabric:nic_owd_seconds:p50_2s{$match}$at", "fabric:nic_owd_seconds:p99_2s{$match}$at", " > -Inf)"
	const lost, marked = "fabric:nic_probe_lost:rate_2s", "fabric:nic_probe_ecn_marked:rate_2s"
	out := []measure{
		{kind: Links, quantity: AddedDelay, unit: Nanoseconds, value: linkDelay},
		{kind: Links, quantity: LossRatio, unit: Ratio, value: linkLoss},
		{kind: Links, quantity: Coverage, unit: Flows, value: linkFlows, falls: true, reportsMissing: true},
	}
	for _, of := range []struct {
		kind          Kind
		labels, delay string
	}{{Leaves, leafLabels, "quantile by (" + leafLabels + ") (0.5, "}, {NICs, nicLabels, "max by (" + nicLabels + ") ("}} {
		probes := probesOf(of.labels)
		out = append(out,
			measure{kind: of.kind, quantity: MedianDelay, unit: Nanoseconds, value: of.delay + p50 + finite, reportsMissing: true, beside: probes},
			measure{kind: of.kind, quantity: TailDelay, unit: Nanoseconds, value: of.delay + p99 + finite},
			measure{kind: of.kind, quantity: LossRatio, unit: Ratio, value: shareOf(lost, of.labels)},
			measure{kind: of.kind, quantity: MarkRatio, unit: Ratio, value: shareOf(marked, of.labels)},
			measure{kind: of.kind, quantity: Coverage, unit: ProbesPerSecond, value: probes, falls: true, reportsMissing: true})
	}
	return out
}

// scale returns what converts a value of a series to the unit.
func (m *measure) scale() float64 {
	if m.unit == Nanoseconds {
		return 1e9
	}
	return 1
}

// queries are the expressions of a measure for a request. They are evaluated at the end of the later span.
type queries struct {
	measure *measure
	matches []string
	span    string // the selector of a span in windows
	window  string
	earlier string // the offset of the earlier span
}

func (b *builder) newQueries(m *measure) *queries {
	window := b.request.Span / windowsPerSpan
	// A window before the start of a span is none of it.
	length := b.request.Span - window
	q := &queries{measure: m, span: subquery(length, window), window: evidence.PromDuration(window)}
	q.earlier = offsetOf(b.request.To.Sub(b.request.From))
	if m.kind != Links {
		q.matches = append(q.matches, `class!="`+fabric.ClassCSIG+`"`)
		if planes := planesOf(b.graph); len(planes) > 0 {
			q.matches = append(q.matches, "plane=~"+evidence.AnyOf(planes))
		}
	}
	return q
}

// planesOf returns the names of the planes of a graph's NICs.
func planesOf(g *fabric.Graph) (out []string) {
	for i := range g.Topo.Nodes {
		for j := range g.Topo.Nodes[i].NICs {
			if p := g.Topo.Nodes[i].NICs[j].Plane; !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// offsetOf returns the offset to what was so long ago. A negative one leads to what came later.
func offsetOf(ago time.Duration) string {
	switch {
	case ago > 0:
		return " offset " + evidence.PromDuration(ago)
	case ago < 0:
		return " offset -" + evidence.PromDuration(-ago)
	}
	return ""
}

func subquery(length, step time.Duration) string {
	return "[" + evidence.PromDuration(length) + ":" + evidence.PromDuration(step) + "]"
}

// expand returns an expression for some elements, or for all if there are none.
func (q *queries) expand(expression, offset string, elements []string) string {
	matches, element := slices.Clone(q.matches), ""
	if len(elements) > 0 {
		matches = append(matches, string(q.measure.kind)+"=~"+evidence.AnyOf(elements))
		element = "element=~" + evidence.AnyOf(elements)
	}
	return strings.NewReplacer("$match", strings.Join(matches, ", "), "$element", element, "$window", q.window, "$at", offset).Replace(expression)
}

// over returns a function of the measure's value over a span.
func (q *queries) over(function, arguments, selector, offset string, elements []string) string {
	return function + "(" + arguments + "(" + q.expand(q.measure.value, "", elements) + ")" + selector + offset + ")"
}

func (q *queries) percentile(part float64, offset string, elements []string) string {
	return q.over("quantile_over_time", strconv.FormatFloat(part, 'g', -1, 64)+", ", q.span, offset, elements)
}

// changed returns the expression of what became worse: by how much at least.
func (q *queries) changed() string {
	if q.measure.falls {
		return fmt.Sprintf("(%g * %s - %s > 0)", 1-leastShare, q.percentile(lowPart, q.earlier, nil), q.percentile(highPart, "", nil))
	}
	least := 0.0
	if q.measure.unit == Nanoseconds {
		least = leastDelay
	}
	return fmt.Sprintf("(%s - %s > %g)", q.percentile(lowPart, "", nil), q.percentile(highPart, q.earlier, nil), least)
}

// missing returns the expression of what has windows in the earlier span, and next to none in the later one.
func (q *queries) missing() string {
	s := fmt.Sprintf("(%s >= %d unless %s >= %d", q.over("count_over_time", "", q.span, q.earlier, nil), 2*leastWindows,
		q.over("count_over_time", "", q.span, "", nil), leastWindows)
	if q.measure.beside != "" {
		s += fmt.Sprintf(" and count_over_time((%s)%s) >= %d", q.expand(q.measure.beside, "", nil), q.span, leastWindows)
	}
	return s + ")"
}

// compared returns the expression of the number of series with values at the ends of both spans.
func (q *queries) compared() string {
	return "count((" + q.expand(q.measure.value, "", nil) + ") and (" + q.expand(q.measure.value, q.earlier, nil) + "))"
}

// details returns the queries for the spreads of some places in the earlier and in the later span.
func (q *queries) details(places []Place) [2]string {
	var elements []string
	for _, p := range places {
		if !slices.Contains(elements, p.Element) {
			elements = append(elements, p.Element)
		}
	}
	var out [2]string
	for i, offset := range []string{q.earlier, ""} {
		parts := []string{}
		for _, stat := range []struct{ name, query string }{
			{"low", q.percentile(lowPart, offset, elements)}, {"median", q.percentile(0.5, offset, elements)},
			{"high", q.percentile(highPart, offset, elements)}, {"windows", q.over("count_over_time", "", q.span, offset, elements)},
		} {
			parts = append(parts, fmt.Sprintf(`label_replace(%s, %q, %q, "", "")`, stat.query, statLabel, stat.name))
		}
		out[i] = strings.Join(parts, " or ")
	}
	return out
}
