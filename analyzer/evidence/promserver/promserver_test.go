package promserver

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	config_util "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/graylink/graylink/analyzer/evidence"
)

// TestCloseWaitsForQueries closes a server while a query runs: its context ends, nothing is closed before it has returned, and later
// queries fail. Once the engine was closed under a query, which ended the process.
func TestCloseWaitsForQueries(t *testing.T) {
	s, err := New(Options{Config: StaticConfig(time.Second, nil)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.QueryInstant(t.Context(), "vector(1)", time.Now()); err != nil {
		t.Error(err)
	}
	ctx, done, err := s.beginQuery(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-ctx.Done()
	select {
	case err := <-closed:
		t.Fatalf("closed under a query: %v", err)
	default:
	}
	if _, err := s.engine.NewInstantQuery(t.Context(), s.db, nil, "vector(1)", time.Now()); err != nil {
		t.Error(err)
	}
	done()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := s.QueryInstant(t.Context(), "vector(1)", time.Now()); !errors.Is(err, errClosed) {
		t.Errorf("a query after Close: %v", err)
	}
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/query?query=1", nil)); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a request after Close: %d", w.Code)
	}
}

// TestKindsOfQueries compares what Prometheus' own HTTP API answers, as evidence.HTTP reads it, with what the engine in this process
// evaluates: histograms of both signs with a zero bucket, and numbers over a span.
func TestKindsOfQueries(t *testing.T) {
	s, err := New(Options{Config: StaticConfig(time.Second, nil)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	now := time.Now().Truncate(time.Second)
	for i := range int64(60) {
		at := now.Add(time.Duration(i-59) * time.Second).UnixMilli()
		h := &histogram.Histogram{Schema: 3, ZeroThreshold: 1e-9, ZeroCount: uint64(i), Count: uint64(6 * i), Sum: float64(i) / 1000,
			PositiveSpans: []histogram.Span{{Offset: -80, Length: 2}, {Offset: 8, Length: 1}}, PositiveBuckets: []int64{i, i, -i},
			NegativeSpans: []histogram.Span{{Offset: -90, Length: 1}}, NegativeBuckets: []int64{i}}
		a := s.db.Appender(t.Context())
		_, failed := a.AppendHistogram(0, labels.FromStrings("__name__", "delay", "flow", "1"), at, h, nil)
		_, also := a.Append(0, labels.FromStrings("__name__", "lost", "flow", "1"), at, float64(2*i))
		if err := errors.Join(failed, also, a.Commit()); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	api, err := evidence.NewHTTP(evidence.HTTPOptions{URL: server.URL, Client: config_util.DefaultHTTPClientConfig})
	if err != nil {
		t.Fatal(err)
	}
	const distribution = "sum by (flow) (increase(delay[30s]))"
	got, err := api.QueryHistograms(t.Context(), distribution, now)
	want, failed := s.QueryHistograms(t.Context(), distribution, now)
	if err != nil || failed != nil || len(want) != 1 || len(want[0].Buckets) != 5 || want[0].Count < 170 || !reflect.DeepEqual(got, want) {
		t.Errorf("the API has %+v (%v), the engine %+v (%v)", got, err, want, failed)
	}
	for _, query := range []string{"lost", "nothing"} {
		if got, err := api.QueryHistograms(t.Context(), query, now); err != nil || len(got) > 0 {
			t.Errorf("histograms of %s: %v, %v", query, got, err)
		}
	}
	points, err := api.QueryRange(t.Context(), "rate(lost[10s])", now.Add(-20*time.Second), now, 5*time.Second)
	same, failed := s.QueryRange(t.Context(), "rate(lost[10s])", now.Add(-20*time.Second), now, 5*time.Second)
	if err != nil || failed != nil || len(same) != 1 || len(same[0].Points) != 5 || same[0].Points[4].Value != 2 || !reflect.DeepEqual(points, same) {
		t.Errorf("the API has %+v (%v), the engine %+v (%v)", points, err, same, failed)
	}
	if _, err := s.QueryRange(t.Context(), "delay", now.Add(-time.Second), now, time.Second); err == nil {
		t.Error("histograms count as numbers")
	}
}
