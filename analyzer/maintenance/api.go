package maintenance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/graylink/graylink/internal/webaccess"
)

// API serves the register: GET lists windows, POST makes one, DELETE ends one.
type API struct {
	Register *Register
	// WebConfig is the exporter toolkit's file; without authentication in it only loopback
	// clients may act.
	WebConfig string
	Now       func() time.Time
}

// Handle adds the API's paths to a mux.
func (a *API) Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/maintenance", a.list)
	mux.HandleFunc("POST /api/v1/maintenance", a.add)
	mux.HandleFunc("DELETE /api/v1/maintenance/{id...}", a.remove)
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client has gone when this fails; there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(v)
}

func (a *API) list(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, struct {
		Maintenance []Window `json:"maintenance"`
	}{a.Register.List(a.Now())})
}

// request is what POST takes: until, or for how long.
type request struct {
	Element  string    `json:"element"`
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	Duration string    `json:"duration"`
	By       string    `json:"by"`
	Reason   string    `json:"reason"`
	Relearn  bool      `json:"relearn"`
}

// maxRequest bounds what POST reads, octets.
const maxRequest = 64 << 10

func (a *API) add(w http.ResponseWriter, r *http.Request) {
	if err := webaccess.MayAct(r, a.WebConfig); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	win, err := a.read(w, r)
	if err == nil {
		win, err = a.Register.Add(win)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	reply(w, http.StatusCreated, win)
}

func (a *API) read(w http.ResponseWriter, r *http.Request) (Window, error) {
	var q request
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return Window{}, fmt.Errorf("request: %w", err)
	}
	now := a.Now().UTC()
	win := Window{Element: q.Element, From: q.From, Until: q.Until, By: q.By, Reason: q.Reason, Relearn: q.Relearn}
	if win.From.IsZero() {
		win.From = now
	}
	if q.Duration != "" {
		long, err := time.ParseDuration(q.Duration)
		if err != nil || long <= 0 || !q.Until.IsZero() {
			return win, fmt.Errorf("field %q: %q: want a time such as 2h30m, and no until beside it", "duration", q.Duration)
		}
		win.Until = win.From.Add(long)
	}
	if user, _, ok := r.BasicAuth(); ok {
		win.By = cmp.Or(win.By, user)
	}
	if win.By == "" {
		return win, fmt.Errorf("field %q is missing: want who works on it", "by")
	}
	return win, nil
}

func (a *API) remove(w http.ResponseWriter, r *http.Request) {
	if err := webaccess.MayAct(r, a.WebConfig); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	if !a.Register.Remove(r.PathValue("id"), a.Now()) {
		http.Error(w, "no window of the API has this id; those of files and silences end where they were made", http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
