package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

const (
	nanoseconds = 1e9 // in a second
	// maxCauses and maxSeries bound the causes whose series are read, and the series of each.
	maxCauses = 6
	maxSeries = 12
	// maxBuckets bounds the buckets of a distribution.
	maxBuckets = 200
	// maxWarnings bounds the warnings of an answer.
	maxWarnings = 4
)

// Reasons why a backend has no answer.
var (
	errNoRange      = errors.New("this backend has no time lines")
	errNoHistograms = errors.New("this backend has no native histograms")
)

// ask reads everything from Prometheus.
func (b *builder) ask(ctx context.Context) {
	if c, ok := b.DB.(evidence.Clocked); ok {
		offset, err := c.ClockOffset(ctx)
		if err != nil {
			b.report.Unknown = append(b.report.Unknown, "the time of Prometheus: "+err.Error())
		}
		b.ahead = offset.Round(time.Second) // so that the same is asked again
	}
	for _, g := range grains() {
		b.grain, b.report.Grain = g, g.name
		if b.askGrain(ctx, &g) {
			break
		}
	}
	b.askCauses(ctx)
	b.summarizeLines()
}

// newQuery adds a query that is asked over a span, or at one moment if from is zero.
func (b *builder) newQuery(name, expr string, from, at time.Time) *Query {
	q := Query{Name: name, Expr: expr, At: at, From: from, Asked: true}
	if !from.IsZero() {
		q.StepSeconds = b.report.Span.StepSeconds
	}
	return b.addQuery(q)
}

// addQuery adds a query, which gets the next number.
func (b *builder) addQuery(q Query) *Query {
	b.queries.Lock()
	defer b.queries.Unlock()
	q.ID = fmt.Sprintf("Q%d", len(b.report.Queries)+1)
	b.report.Queries = append(b.report.Queries, q)
	return &q
}

// finish records what became of a query. It returns the error of one without an answer.
func (b *builder) finish(q *Query, err error) error {
	var partial *evidence.PartialError
	if errors.As(err, &partial) {
		q.Warnings, err = partial.Warnings[:min(len(partial.Warnings), maxWarnings)], nil
	}
	if err != nil {
		q.Problem = err.Error()
	}
	b.queries.Lock()
	defer b.queries.Unlock()
	i := slices.IndexFunc(b.report.Queries, func(o Query) bool { return o.ID == q.ID })
	b.report.Queries[i] = *q
	return err
}

// askRange asks for the series of a query over the span.
func (b *builder) askRange(ctx context.Context, q *Query) ([]evidence.Series, error) {
	db, ok := b.DB.(evidence.Ranger)
	if !ok {
		return nil, b.finish(q, errNoRange)
	}
	b.limit <- struct{}{}
	defer func() { <-b.limit }()
	s := &b.report.Span
	all, err := db.QueryRange(ctx, q.Expr, s.From.Add(b.ahead), s.Until.Add(b.ahead), time.Duration(s.StepSeconds*float64(time.Second)))
	slices.SortFunc(all, func(a, b evidence.Series) int { return cmp.Compare(nameSeries(a.Labels), nameSeries(b.Labels)) })
	return all, b.finish(q, err)
}

// points returns the numbers of a series by the seconds of the span.
func (b *builder) points(s *evidence.Series, times float64) (out []Point) {
	from := b.report.Span.From.Add(b.ahead)
	for _, p := range s.Points[:min(len(s.Points), mostPoints+2)] {
		if !math.IsNaN(p.Value) && !math.IsInf(p.Value, 0) {
			out = append(out, Point{p.At.Sub(from).Round(time.Millisecond).Seconds(), p.Value * times})
		}
	}
	return out
}

// askGrain asks for distributions and time lines by a grain. It returns false if Prometheus has no delays of it, so that a coarser one
// has to do. What it has then is dropped.
func (b *builder) askGrain(ctx context.Context, g *grain) bool {
	r := b.report
	r.Delays, r.Lines = []Distribution{}, []Line{}
	flows := slices.Concat(r.Affected, r.Healthy)
	selectors := g.selectors(flows)
	if len(selectors) == 0 {
		r.Delays = append(r.Delays, Distribution{When: "during", From: r.Span.Began, Until: r.Span.Ended, Buckets: []Bucket{}, Unknown: "no affected flow is known"})
		return g.name == grainRecorded
	}
	var wg sync.WaitGroup
	lines := make([][]Line, 3)
	problems := make([]error, 3)
	for i, value := range []string{valueP50, valueP99, valueLoss} {
		name := map[string]string{valueP50: "median delay", valueP99: "99th percentile of the delay", valueLoss: "loss"}[value] + " of each " + g.name
		q := b.newQuery(name, g.line(selectors, value, b.lineWindow()), r.Span.From, r.Span.Until)
		wg.Go(func() { lines[i], problems[i] = b.askLines(ctx, g, q, value) })
	}
	delays := make([]Distribution, 2)
	for i, when := range []string{"before", "during"} {
		var q *Query
		if delays[i], q = b.newDistribution(g, when); q != nil {
			wg.Go(func() { b.askDistribution(ctx, g, q, &delays[i]) })
		}
	}
	wg.Wait()
	for i := range delays {
		delays[i].explain(len(lines[2]) > 0)
	}
	r.Delays, r.Lines = append(r.Delays, delays...), append(r.Lines, slices.Concat(lines...)...)
	failed := errors.Join(problems...) != nil
	return failed || len(lines[0]) > 0 || g.name == grainRecorded
}

// explain adds the reason why there is no distribution. counted says whether Prometheus has counts of the same packets.
func (d *Distribution) explain(counted bool) {
	switch {
	case d.Unknown != "" || d.Count > 0 || d.P50NS != nil:
	case counted:
		d.Unknown = "Prometheus has counts of these packets from that time, and no native histograms of their delays"
	default:
		d.Unknown = "Prometheus has nothing of these packets from that time"
	}
}

// lineWindow returns the span over which a moment of a time line is summed up.
func (b *builder) lineWindow() time.Duration {
	return max(4*b.Evidence.CycleInterval(), time.Duration(b.report.Span.StepSeconds*float64(time.Second)))
}

// askLines asks for the time lines of a value.
func (b *builder) askLines(ctx context.Context, g *grain, q *Query, value string) (out []Line, err error) {
	all, err := b.askRange(ctx, q)
	if err != nil {
		return nil, err
	}
	times := nanoseconds
	if value == valueLoss {
		times = 1
	}
	by := map[string]*evidence.Series{}
	for i := range all {
		by[g.lineKey(all[i].Labels)] = &all[i]
	}
	seen := map[string]bool{}
	for part, flows := range [][]Flow{b.report.Affected, b.report.Healthy} {
		for i := range flows {
			key := g.selector(&flows[i])
			s := by[key]
			if s == nil || seen[key] {
				continue
			}
			seen[key] = true
			of := flows[i].Flow
			if g.name != grainFlows {
				of = flows[i].leaves[0] + " > " + flows[i].leaves[1]
			}
			if points := b.points(s, times); len(points) > 0 {
				out = append(out, Line{Of: of, Affected: part == 0, Value: value, Query: q.ID, Points: points, key: key})
			}
		}
	}
	return out, nil
}

// newDistribution returns the distribution before or during the incident, without its answer, and the query for that. The query is nil if
// no affected flow is known.
func (b *builder) newDistribution(g *grain, when string) (Distribution, *Query) {
	s := &b.report.Span
	d := Distribution{When: when, From: s.Began, Until: s.Ended, Buckets: []Bucket{}}
	if longest := s.Began.Add(longestDelay); d.Until.After(longest) {
		d.Until = longest
	}
	if when == "before" {
		// The window in which it was first seen has packets from after its beginning.
		d.Until = s.Began.Add(-b.Evidence.Delay - b.Evidence.Scrape)
		d.From = d.Until.Add(-before)
	}
	flows := make([]Flow, 0, maxDistributed)
	for _, f := range b.affected[:min(len(b.affected), maxDistributed)] {
		flows = append(flows, b.newFlow(f))
	}
	selectors := g.selectors(flows)
	if len(selectors) == 0 {
		d.Unknown = "no affected flow is known"
		return d, nil
	}
	what := fmt.Sprintf("delays of %d affected flows, %s", len(flows), when)
	q := b.newQuery(what, g.distribution(selectors, d.Until.Sub(d.From)), time.Time{}, d.Until)
	d.Query = q.ID
	return d, q
}

// askDistribution asks for a distribution.
func (b *builder) askDistribution(ctx context.Context, g *grain, q *Query, d *Distribution) {
	b.limit <- struct{}{}
	defer func() { <-b.limit }()
	at := q.At.Add(b.ahead)
	if g.delay == "" {
		samples, err := b.DB.QueryInstant(ctx, q.Expr, at)
		if err := b.finish(q, err); err != nil {
			d.Unknown = err.Error()
		}
		if len(samples) == 1 && !math.IsNaN(samples[0].Value) {
			v := samples[0].Value * nanoseconds
			d.P50NS = &v
		}
		return
	}
	db, ok := b.DB.(evidence.Distributor)
	if !ok {
		d.Unknown = b.finish(q, errNoHistograms).Error()
		return
	}
	all, err := db.QueryHistograms(ctx, q.Expr, at)
	if err := b.finish(q, err); err != nil {
		d.Unknown = err.Error()
		return
	}
	if len(all) == 1 && all[0].Count > 0 {
		d.take(&all[0])
	}
}

// take takes over a histogram in seconds.
func (d *Distribution) take(h *evidence.Histogram) {
	d.Count = h.Count
	for _, q := range []struct {
		phi float64
		to  **float64
	}{{0.5, &d.P50NS}, {0.9, &d.P90NS}, {0.99, &d.P99NS}} {
		if v := upperQuantile(h, q.phi) * nanoseconds; !math.IsNaN(v) && !math.IsInf(v, 0) {
			*q.to = &v
		}
	}
	for _, x := range h.Buckets {
		d.Buckets = append(d.Buckets, Bucket{x.Lower * nanoseconds, x.Upper * nanoseconds, x.Count})
	}
	for len(d.Buckets) > maxBuckets { // neighbours are joined
		joined := d.Buckets[:0]
		for i := 0; i < len(d.Buckets); i += 2 {
			x := d.Buckets[i]
			if i+1 < len(d.Buckets) {
				x.ToNS, x.Count = d.Buckets[i+1].ToNS, x.Count+d.Buckets[i+1].Count
			}
			joined = append(joined, x)
		}
		d.Buckets = joined
	}
}

// askCauses asks for the series that can show each cause.
func (b *builder) askCauses(ctx context.Context) {
	if b.report.Verdict.Attribution == nil {
		return
	}
	all := b.report.Verdict.Attribution.Causes
	causes := make([]Cause, min(len(all), maxCauses))
	var wg sync.WaitGroup
	for i := range causes {
		c := &causes[i]
		*c = Cause{Cause: all[i], Series: []Series{}}
		expr := causeQuery(&c.Cause)
		if expr == "" {
			c.Unknown = "it follows from no series of its element"
			continue
		}
		q := b.newQuery("series that can show "+c.Cause.Cause+" at "+c.Element, expr, b.report.Span.From, b.report.Span.Until)
		c.Query = q.ID
		wg.Go(func() { b.askCause(ctx, q, c) })
	}
	wg.Wait()
	b.report.Causes = causes
}

func (b *builder) askCause(ctx context.Context, q *Query, c *Cause) {
	all, err := b.askRange(ctx, q)
	if err != nil {
		c.Unknown = err.Error()
		return
	}
	if len(all) == 0 {
		c.Unknown = "Prometheus has no series of it from that time"
	}
	// Those that changed come first.
	slices.SortStableFunc(all, func(a, b evidence.Series) int { return cmp.Compare(changeOf(&b), changeOf(&a)) })
	c.LeftOut = max(0, len(all)-maxSeries)
	for i := range all[:len(all)-c.LeftOut] {
		c.Series = append(c.Series, Series{nameSeries(all[i].Labels), b.points(&all[i], 1)})
	}
}

// changeOf returns 1 for a series whose values differ, else 0.
func changeOf(s *evidence.Series) int {
	if slices.ContainsFunc(s.Points, func(p evidence.Point) bool { return p.Value != s.Points[0].Value }) {
		return 1
	}
	return 0
}

// nameSeries writes the labels of a series as PromQL does, without those that say who scraped it.
func nameSeries(labels map[string]string) string {
	var pairs []string
	for name, v := range labels {
		switch name {
		case "__name__", "job", "instance", "replica", "prometheus", "cluster":
		default:
			pairs = append(pairs, fmt.Sprintf("%s=%q", name, v))
		}
	}
	slices.Sort(pairs)
	return labels["__name__"] + "{" + strings.Join(pairs, ",") + "}"
}

// summarizeLines sets the medians of the flows before and during the incident from their time lines.
func (b *builder) summarizeLines() {
	s := &b.report.Span
	first, last := s.Began.Sub(s.From).Seconds(), s.Ended.Sub(s.From).Seconds()
	over := b.lineWindow().Seconds()
	for _, flows := range [][]Flow{b.report.Affected, b.report.Healthy} {
		for i := range flows {
			f := &flows[i]
			key := b.grain.selector(f)
			for _, l := range b.report.Lines {
				if l.key != key {
					continue
				}
				var was, is []float64
				for _, p := range l.Points {
					switch {
					case p.Seconds <= first-over:
						was = append(was, p.Value)
					case p.Seconds >= first+over && p.Seconds <= last:
						is = append(is, p.Value)
					}
				}
				f.Before.set(l.Value, median(was))
				f.During.set(l.Value, median(is))
			}
		}
	}
}

func (m *Medians) set(value string, v *float64) {
	switch value {
	case valueP50:
		m.P50NS = v
	case valueP99:
		m.P99NS = v
	case valueLoss:
		m.LossRatio = v
	}
}

// listUnasked lists the queries that answer the numbers of the verdict itself.
func (b *builder) listUnasked() {
	v, s := &b.report.Verdict, &b.report.Span
	element := v.Element
	for _, q := range ElementQueries(element) {
		b.addQuery(Query{Name: q.Name + ", as published", Expr: q.Expr, At: s.Ended})
	}
	if element.Kind == fabric.KindClock {
		return
	}
	windows := b.Evidence.WindowQueries()
	for _, name := range []string{"sent", "lost", "p50", "p99"} {
		expr := windows[name]
		if _, replaced := b.Evidence.Override[name]; replaced {
			expr = "" // it is a part of the configuration
		}
		b.addQuery(Query{Name: name + " of all flows, by which they were judged", Expr: cmp.Or(expr, "(replaced in the configuration)"), At: v.OpenedAt})
	}
}
