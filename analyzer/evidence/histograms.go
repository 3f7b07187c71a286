package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

// Distributor evaluates PromQL whose result is native histograms.
type Distributor interface {
	// QueryHistograms evaluates an expression at one moment, by the server's clock. It leaves out samples of the result that are numbers,
	// as a server without native histograms has them.
	QueryHistograms(ctx context.Context, query string, at time.Time) ([]Histogram, error)
}

// Histogram is the distribution of one set of labels. Its buckets are sorted, do not overlap and are not empty.
type Histogram struct {
	Labels     map[string]string
	Count, Sum float64
	Buckets    []Bucket
}

// Bucket is how often values above Lower, up to Upper, were observed.
type Bucket struct{ Lower, Upper, Count float64 }

// QueryHistograms implements Distributor.
func (h *HTTP) QueryHistograms(ctx context.Context, query string, at time.Time) ([]Histogram, error) {
	return evaluateQuery(ctx, h, h.endpoint, url.Values{"query": {query}, "time": {formatUnix(at)}}, parseHistograms)
}

// apiHistogram is a native histogram in Prometheus' API. A bucket is which of its ends belong to it, its ends and its count.
type apiHistogram struct {
	Count   string            `json:"count"`
	Sum     string            `json:"sum"`
	Buckets []json.RawMessage `json:"buckets"`
}

// parseHistograms reads an instant vector of histograms. With a *Partial error they hold.
func parseHistograms(r io.Reader) ([]Histogram, error) {
	var all []struct {
		Metric    map[string]string  `json:"metric"`
		Histogram []*json.RawMessage `json:"histogram"`
	}
	err := decodeResult(r, "vector", &all)
	var partial *PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	var out []Histogram
	for _, s := range all {
		if s.Histogram == nil {
			continue
		}
		var of apiHistogram
		if len(s.Histogram) != 2 || s.Histogram[1] == nil || json.Unmarshal(*s.Histogram[1], &of) != nil {
			return nil, fmt.Errorf("%v has no histogram where one is expected", s.Metric)
		}
		h, wrong := of.parse()
		if wrong != nil {
			return nil, fmt.Errorf("the histogram of %v: %w", s.Metric, wrong)
		}
		h.Labels = s.Metric
		out = append(out, h)
	}
	return out, err
}

// parse returns the histogram that the API has in texts.
func (a *apiHistogram) parse() (h Histogram, err error) {
	if h.Count, err = strconv.ParseFloat(a.Count, 64); err != nil {
		return h, fmt.Errorf("the count %q, where a number in quotes is expected", a.Count)
	}
	if h.Sum, err = strconv.ParseFloat(a.Sum, 64); err != nil {
		return h, fmt.Errorf("the sum %q, where a number in quotes is expected", a.Sum)
	}
	for _, raw := range a.Buckets {
		var edges int
		var texts [3]string
		var numbers [3]float64
		if err := json.Unmarshal(raw, &[]any{&edges, &texts[0], &texts[1], &texts[2]}); err != nil {
			return h, fmt.Errorf("the bucket %.100s, where a number and three numbers in quotes are expected", raw)
		}
		for i, text := range texts {
			if numbers[i], err = strconv.ParseFloat(text, 64); err != nil {
				return h, fmt.Errorf("the bucket %.100s, where a number and three numbers in quotes are expected", raw)
			}
		}
		h.Buckets = append(h.Buckets, Bucket{numbers[0], numbers[1], numbers[2]})
	}
	return h, nil
}

// EvaluateHistograms evaluates a PromQL expression at one moment, on any store. It leaves out samples that are numbers.
func EvaluateHistograms(ctx context.Context, engine *promql.Engine, db storage.Queryable, query string, at time.Time) (out []Histogram, err error) {
	err = evaluateVector(ctx, engine, db, query, at, func(vec promql.Vector) {
		for _, s := range vec {
			if s.H != nil {
				h := histogramOf(s.H)
				h.Labels = s.Metric.Map()
				out = append(out, h)
			}
		}
	})
	return out, err
}

// histogramOf returns the buckets of a histogram as the API has them: without those that are empty.
func histogramOf(from *histogram.FloatHistogram) Histogram {
	h := Histogram{Count: from.Count, Sum: from.Sum}
	for it := from.AllBucketIterator(); it.Next(); {
		if b := it.At(); b.Count != 0 {
			h.Buckets = append(h.Buckets, Bucket{b.Lower, b.Upper, b.Count})
		}
	}
	return h
}

// EvaluateRange evaluates a PromQL expression at from and every step after it until to, on any store.
func EvaluateRange(ctx context.Context, engine *promql.Engine, db storage.Queryable, query string, from, to time.Time, step time.Duration) ([]Series, error) {
	q, err := engine.NewRangeQuery(ctx, db, nil, query, from, to, step)
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", query, err)
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return nil, fmt.Errorf("query %q: %w", query, res.Err)
	}
	all, err := res.Matrix()
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", query, err)
	}
	out := make([]Series, len(all))
	for i, s := range all {
		if len(s.Histograms) > 0 {
			return nil, fmt.Errorf("query %q: %v has a histogram, where a number is expected", query, s.Metric)
		}
		out[i] = Series{Labels: s.Metric.Map(), Points: make([]Point, len(s.Floats))}
		for j, p := range s.Floats {
			out[i].Points[j] = Point{time.UnixMilli(p.T), p.F}
		}
	}
	return out, nil
}
