//go:build scale

package scale

import (
	"context"
	"log/slog"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/graylink/graylink/internal/sizing"
)

// sumScrapes and sumInterval say which scrapes of sums BenchmarkRules stores: what the ranges of the rules hold.
const (
	sumScrapes  = 5
	sumInterval = 30 * time.Second
)

// appendSums stores the sums of all nodes at the moment to which the fleet's time was advanced.
func appendSums(b *testing.B, f *Fleet, db *tsdb.DB, at time.Time) {
	b.Helper()
	for name, n := range f.nodes {
		app := db.Appender(context.Background())
		for _, family := range f.sumsOf(n).families {
			for _, m := range family.Metric {
				pairs := []string{model.MetricNameLabel, family.GetName(), "instance", name, "job", sizing.JobSums}
				for _, l := range m.Label {
					pairs = append(pairs, l.GetName(), l.GetValue())
				}
				var err error
				if m.Histogram != nil {
					_, err = app.AppendHistogram(0, labels.FromStrings(pairs...), at.UnixMilli(), integerHistogram(m.Histogram), nil)
				} else {
					_, err = app.Append(0, labels.FromStrings(pairs...), at.UnixMilli(), m.Counter.GetValue())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		if err := app.Commit(); err != nil {
			b.Fatal(err)
		}
	}
}

// integerHistogram returns a native histogram of a scrape as Prometheus stores it.
func integerHistogram(h *dto.Histogram) *histogram.Histogram {
	out := &histogram.Histogram{Schema: h.GetSchema(), ZeroThreshold: h.GetZeroThreshold(), ZeroCount: h.GetZeroCount(), Count: h.GetSampleCount(), Sum: h.GetSampleSum(), PositiveBuckets: h.PositiveDelta}
	for _, s := range h.PositiveSpan {
		out.PositiveSpans = append(out.PositiveSpans, histogram.Span{Offset: s.GetOffset(), Length: s.GetLength()})
	}
	return out
}

// recordOnce evaluates a recording rule and stores its series. A rule without any is an error.
func recordOnce(b *testing.B, engine *promql.Engine, db *tsdb.DB, rule *rulefmt.Rule, at time.Time) {
	b.Helper()
	ctx := context.Background()
	query, err := engine.NewInstantQuery(ctx, db, nil, rule.Expr, at)
	if err != nil {
		b.Fatal(err)
	}
	defer query.Close()
	vector, err := query.Exec(ctx).Vector()
	if err != nil {
		b.Fatalf("%s: %v", rule.Record, err)
	}
	if len(vector) == 0 {
		b.Errorf("%s: no series", rule.Record)
	}
	app := db.Appender(ctx)
	for _, s := range vector {
		series := labels.NewBuilder(s.Metric).Set(model.MetricNameLabel, rule.Record).Labels()
		if _, err := app.Append(0, series, at.UnixMilli(), s.F); err != nil {
			b.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRules measures the processor seconds of the aggregates of profile fleet over the sums of a fleet, by the engine
// and the database of Prometheus in this process, without scrapes and queries beside them: those of each group, and of all
// in a second of the fleet. With -scale.pods=1 there are 4,096 NICs.
func BenchmarkRules(b *testing.B) {
	f, err := newFleet()
	if err != nil {
		b.Fatal(err)
	}
	db, err := tsdb.Open(b.TempDir(), slog.New(slog.DiscardHandler), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	at := time.Now()
	for range sumScrapes {
		f.ahead += sumInterval
		at = at.Add(sumInterval)
		appendSums(b, f, db, at)
	}
	parse := parser.NewParser(parser.Options{})
	groups, errs := rulefmt.ParseFile("../../deploy/prometheus/aggregates-fleet.rules.yaml", false, model.UTF8Validation, parse, nil)
	if len(errs) > 0 {
		b.Fatal(errs)
	}
	engine := promql.NewEngine(promql.EngineOpts{Logger: slog.New(slog.DiscardHandler), MaxSamples: 500e6, Timeout: time.Hour, LookbackDelta: 5 * time.Minute, Parser: parse})
	defer engine.Close()
	used := map[string]float64{}
	for b.Loop() {
		at = at.Add(time.Millisecond)
		for _, g := range groups.Groups {
			before := processorSeconds(b)
			for _, rule := range g.Rules {
				recordOnce(b, engine, db, &rule, at)
			}
			used[g.Name] += processorSeconds(b) - before
		}
	}
	all := 0.0
	for _, g := range groups.Groups {
		once := used[g.Name] / float64(b.N)
		b.ReportMetric(once, g.Name+"-cpu-s")
		all += once / time.Duration(g.Interval).Seconds()
	}
	b.ReportMetric(all, "cpu-s/s")
}
