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

// Querier answers all kinds of questions that evidence knows.
type Querier interface {
	evidence.Querier
	evidence.Ranger
	evidence.Distributor
}

type loaded struct {
	engine *promql.Engine
	db     storage.Storage
}

// maxSamples a question may load: Prometheus' default.
const maxSamples = 50_000_000

// NewQuerier returns a Querier that answers from series in promqltest's notation, the first
// values at the epoch.
func NewQuerier(t testing.TB, series string) Querier {
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
	return evidence.EvaluateRange(ctx, l.engine, l.db, query, from, to, step)
}

// QueryHistograms implements evidence.Distributor.
func (l loaded) QueryHistograms(ctx context.Context, query string, at time.Time) ([]evidence.Histogram, error) {
	return evidence.EvaluateHistograms(ctx, l.engine, l.db, query, at)
}
