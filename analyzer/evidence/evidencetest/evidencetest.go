// Package evidencetest is a Querier for tests, over series that are written down.
package evidencetest

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"

	"github.com/graylink/graylink/analyzer/evidence"
)

type loaded struct {
	engine *promql.Engine
	db     storage.Storage
}

// maxSamples a question may load: Prometheus' default.
const maxSamples = 50_000_000

// NewQuerier returns a Querier that answers from series in promqltest's notation, the first
// values at the epoch.
func NewQuerier(t testing.TB, series string) evidence.Querier { return load(t, series) }

// NewRanger returns a Ranger that answers from series as NewQuerier does.
func NewRanger(t testing.TB, series string) evidence.Ranger { return load(t, series) }

func load(t testing.TB, series string) loaded {
	t.Helper()
	db := promqltest.LoadedStorage(t, series)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return loaded{promqltest.NewTestEngine(t, false, 0, maxSamples), db}
}

// QueryInstant implements evidence.Querier.
func (l loaded) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	return evidence.EvaluateAt(ctx, l.engine, l.db, query, at)
}

// QueryRange implements evidence.Ranger.
func (l loaded) QueryRange(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]evidence.Series, error) {
	q, err := l.engine.NewRangeQuery(ctx, l.db, nil, query, from, to, step)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	m, err := q.Exec(ctx).Matrix()
	if err != nil {
		return nil, err
	}
	var out []evidence.Series
	for _, s := range m {
		one := evidence.Series{Labels: s.Metric.Map()}
		for _, p := range s.Floats {
			one.Points = append(one.Points, evidence.Point{At: time.UnixMilli(p.T), Value: p.F})
		}
		out = append(out, one)
	}
	return out, nil
}
