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
	out = []Sample{}
	err = eachSample(ctx, engine, db, query, at, func(s promql.Sample) { out = append(out, Sample{Value: s.F, Labels: s.Metric.Map()}) })
	return out, err
}

// eachSample evaluates a PromQL expression at one moment. It calls take with each sample of the result, which the engine uses again
// afterwards.
func eachSample(ctx context.Context, engine *promql.Engine, db storage.Queryable, query string, at time.Time, take func(promql.Sample)) error {
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
	for _, s := range vec {
		take(s)
	}
	return nil
}
