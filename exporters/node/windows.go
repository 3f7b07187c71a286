package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/graylink/graylink/internal/window"
)

// windowPatience is how long a request for windows waits for the ones before it.
const windowPatience = time.Second

// windowTurn lets one request for windows be answered at a time.
type windowTurn chan struct{}

func newWindowTurn() windowTurn { return make(windowTurn, 1) }

// take waits for the requests before this one. It returns an error if that takes too long.
func (t windowTurn) take(ctx context.Context) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, windowPatience)
	defer cancel()
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, errors.New("other requests for windows are being answered")
	}
}

// serveWindows answers GET /api/v1/windows.
func (e *Exporter) serveWindows(w http.ResponseWriter, r *http.Request) {
	q, err := window.ParseQuery(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	done, err := e.windows.take(r.Context())
	if err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer done()
	a, err := e.node.FindWindows(&q)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("no windows that ended %s ago: %v", q.Age, err), http.StatusServiceUnavailable)
		return
	}
	e.writeJSON(w, a, "the windows")
}
