package evidence

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

// EvaluateAt evaluates a PromQL expression at one moment, on any store.
func EvaluateAt(ctx context.Context, engine *promql.Engine, db storage.Queryable, query string, at time.Time) (out []Sample, err error) {
	err = evaluateVector(ctx, engine, db, query, at, func(vec promql.Vector) {
		out = make([]Sample, len(vec))
		for i, s := range vec {
			out[i] = Sample{Value: s.F, Labels: s.Metric.Map()}
		}
	})
	return out, err
}

// evaluateVector evaluates a PromQL expression at one moment. It calls take with the result, which the engine uses again afterwards.
func evaluateVector(ctx context.Context, engine *promql.Engine, db storage.Queryable, query string, at time.Time, take func(promql.Vector)) error {
	q, err := engine.NewInstantQuery(ctx, db, nil, query, at)
	if err != nil {
		return fmt.Errorf("query %q: %w", query, err)
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return fmt.Errorf("query %q: %w", query, res.Err)
	}
	vec, err := res.Vector()
	if err != nil {
		return fmt.Errorf("query %q: %w", query, err)
	}
	take(vec)
	return nil
}
