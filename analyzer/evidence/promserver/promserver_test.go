package promserver

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
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
