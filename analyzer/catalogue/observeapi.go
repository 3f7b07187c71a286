package catalogue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/graylink/graylink/internal/plainjson"
)

// ParseQuestion returns the question of a query: ?job=, and where they are given ?dscp= and ?adaptive_routing=off. An error names the parameter.
func ParseQuestion(v url.Values) (Question, error) {
	q := Question{Job: v.Get("job"), DSCP: 26, AdaptiveRouting: v.Get("adaptive_routing")}
	if q.Job == "" {
		return q, errors.New(`parameter "job": want the name of a job`)
	}
	if text := v.Get("dscp"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 63 {
			return q, fmt.Errorf("parameter %q: %q: want a number from 0 to 63", "dscp", text)
		}
		q.DSCP = n
	}
	if q.AdaptiveRouting != "" && q.AdaptiveRouting != "off" {
		return q, fmt.Errorf("parameter %q: %q: want off or nothing", "adaptive_routing", q.AdaptiveRouting)
	}
	return q, nil
}

// handleObserve serves what the queue pairs of a running job do. They are observed for clients that may build a catalogue, since both make agents send
// packets; others get the last answer.
func (a *API) handleObserve(w http.ResponseWriter, r *http.Request) {
	q, err := ParseQuestion(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var seen *Running
	if refused := a.Policy.CheckAdmin(r); refused != nil {
		seen, err = a.Observer.Last(q, refused.Error())
	} else {
		extendDeadline(w)
		seen, err = a.Observer.Observe(r.Context(), q)
	}
	switch {
	case errors.Is(err, ErrNoJob):
		http.Error(w, fmt.Sprintf("job %q: %v", q.Job, err), http.StatusNotFound)
	case errors.Is(err, context.DeadlineExceeded):
		w.Header().Set("Retry-After", "10")
		http.Error(w, "other jobs are being observed", http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		// This fails only when the client has gone, so the error needs no report.
		_ = plainjson.NewEncoder(w).Encode(seen)
	}
}
