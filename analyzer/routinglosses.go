package analyzer

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
)

const (
	// lossRateSpan is how long before a loss the rate of a flow's probes is measured.
	lossRateSpan = time.Minute
	// mostLossSpans bounds the different spans that are queried in a cycle: the flows of a failover share a few.
	mostLossSpans = 8
)

// counted is what counters of probe flows were at a moment.
type counted map[fabric.Flow]struct{ sent, answered float64 }

// lossCounts returns how many probes were not answered within the spans that routing asks for.
func (l *Loop) lossCounts(ctx context.Context) []routing.LossCount {
	spans := l.routing.LossSpans()
	if len(spans) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, seriesPatience)
	defer cancel()
	out, err := countLosses(ctx, l.opts.DB, spans)
	if err != nil {
		l.opts.Log.Warn("cannot read how many probes were lost", "err", err)
	}
	return out
}

// countLosses returns how many probes were not answered within some spans, by the nodes' counters at both ends of each. Flows whose counters
// are not known, or began anew, are left out, and so are all spans behind the first mostLossSpans different ones.
func countLosses(ctx context.Context, db evidence.Querier, spans []routing.LossSpan) (out []routing.LossCount, err error) {
	type ends struct{ from, to time.Time }
	var order []ends
	flows := map[ends][]fabric.Flow{}
	for _, s := range spans {
		k := ends{s.From, s.To}
		if len(flows[k]) == 0 {
			if len(order) == mostLossSpans {
				continue
			}
			order = append(order, k)
		}
		flows[k] = append(flows[k], s.Flow)
	}
	for _, k := range order {
		query := probeCounters(flows[k])
		var at [3]counted
		for i, t := range [3]time.Time{k.from.Add(-lossRateSpan), k.from, k.to} {
			samples, err := db.QueryInstant(ctx, query, t)
			if err != nil {
				return out, err
			}
			at[i] = parseCounters(samples)
		}
		for _, f := range flows[k] {
			if c, ok := lossBetween(f, at, k.to.Sub(k.from)); ok {
				c.LossSpan = routing.LossSpan{Flow: f, From: k.from, To: k.to}
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// lossBetween returns what a flow lost between the last two of three moments, of which the first is lossRateSpan before the second. A flow
// that was not counted then has its rate from the span itself.
func lossBetween(f fabric.Flow, at [3]counted, span time.Duration) (c routing.LossCount, ok bool) {
	before, known := at[0][f]
	from, ok1 := at[1][f]
	to, ok2 := at[2][f]
	if !ok1 || !ok2 || to.sent < from.sent || to.answered < from.answered {
		return c, false
	}
	c.Unanswered = max(0, (to.sent-from.sent)-(to.answered-from.answered))
	c.PerSecond = (to.sent - from.sent) / span.Seconds()
	if known && before.sent <= from.sent {
		c.PerSecond = (to.sent - before.sent) / (span + lossRateSpan).Seconds()
	}
	return c, c.PerSecond > 0
}

// probeCounters returns the query for the counters of some probe flows, and of others between the same NICs.
func probeCounters(flows []fabric.Flow) string {
	src, dst := map[string]bool{}, map[string]bool{}
	for _, f := range flows {
		src[f.Src], dst[f.Dst] = true, true
	}
	of := func(label string, values map[string]bool) string {
		return label + "=~" + strconv.Quote(joinPatterns(slices.Collect(maps.Keys(values))))
	}
	at := `{class!="` + fabric.ClassCSIG + `",` + of("src", src) + "," + of("dst", dst)
	sum := "sum by (src, dst, flow) (fabric_probe_"
	return `label_replace(` + sum + `sent_total` + at + `,direction="forward"}), "count", "sent", "", "") or ` +
		`label_replace(` + sum + `acked_total` + at + `}), "count", "acked", "", "") or ` +
		`label_replace(` + sum + `late_total` + at + `}), "count", "late", "", "")`
}

// parseCounters returns the counters of probe flows by the samples of their query.
func parseCounters(samples []evidence.Sample) counted {
	out := counted{}
	for i := range samples {
		s := &samples[i]
		n, err := strconv.Atoi(s.Labels["flow"])
		if err != nil {
			continue
		}
		f := fabric.Flow{Src: s.Labels["src"], Dst: s.Labels["dst"], Number: n}
		c := out[f]
		if s.Labels["count"] == "sent" {
			c.sent += s.Value
		} else {
			c.answered += s.Value
		}
		out[f] = c
	}
	return out
}
