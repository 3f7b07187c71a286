package evidence

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

// EvaluateAt evaluates a PromQL expression at one moment, on any store.
func EvaluateAt(ctx context.Context, engine *promql.Engine, db storage.Queryable, query string, at time.Time) ([]Sample, error) {
	q, err := engine.NewInstantQuery(ctx, db, nil, query, at)
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", query, err)
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return nil, fmt.Errorf("query %q: %w", query, res.Err)
	}
	vec, err := res.Vector()
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", query, err)
	}
	out := make([]Sample, len(vec))
	for i, s := range vec {
		out[i] = Sample{Value: s.F, Labels: s.Metric.Map()}
	}
	return out, nil
}
