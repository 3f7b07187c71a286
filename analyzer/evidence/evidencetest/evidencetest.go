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
func NewQuerier(t testing.TB, series string) evidence.Querier {
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
