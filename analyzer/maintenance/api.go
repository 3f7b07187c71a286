package maintenance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/webaccess"
)

// API serves the register: GET lists windows, POST makes one, DELETE ends one.
type API struct {
	Register *Register
	// Coordinator keeps the windows. Nil means that the register does.
	Coordinator *Coordinator
	// Policy decides which clients may create and end windows.
	Policy *webaccess.Policy
	Now    func() time.Time
}

// RegisterHandlers adds the API's paths to a mux.
func (a *API) RegisterHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/maintenance", a.handleList)
	mux.HandleFunc("POST /api/v1/maintenance", a.Policy.AdminHandler(a.handleAdd))
	mux.HandleFunc("DELETE /api/v1/maintenance/{id...}", a.Policy.AdminHandler(a.handleRemove))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// This fails only when the client has gone, so the error needs no report.
	_ = plainjson.NewEncoder(w).Encode(v)
}

func (a *API) handleList(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ListAnswer{a.Register.CurrentWindows(a.Now()), a.Register.SourceStates()})
}

// ListAnswer is the answer of GET: the present and future windows, with whether their sources can be read.
type ListAnswer struct {
	Maintenance []Window      `json:"maintenance"`
	Sources     []SourceState `json:"sources"`
}

// AddRequest represents the body of POST, with the end or the duration.
type AddRequest struct {
	// Element is what is worked on: a switch, a port, a link, a node or a NIC.
	Element string `json:"element" schema:"required"`
	// From is the start. Without it, the window starts at once.
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Duration is a time such as 2h30m, instead of until.
	Duration string `json:"duration"`
	// By is who works on it. An authenticated request may leave it out.
	By     string `json:"by"`
	Reason string `json:"reason"`
	// Relearn is true if the work changes what is normal, so that baselines are learned anew.
	Relearn bool `json:"relearn"`
}

// maxRequest bounds what POST reads, octets.
const maxRequest = 64 << 10

func (a *API) handleAdd(w http.ResponseWriter, r *http.Request) {
	win, err := a.readWindow(w, r)
	if err == nil {
		win, err = a.openWindow(r, win)
	}
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	webaccess.AddLogAttrs(r, "element", win.Element, "id", win.ID, "for", win.By, "until", win.Until.Format(time.RFC3339), "why", win.Reason)
	writeJSON(w, http.StatusCreated, win)
}

// openWindow makes a window where the windows are kept.
func (a *API) openWindow(r *http.Request, win Window) (Window, error) {
	if a.Coordinator == nil {
		return a.Register.AddWindow(win)
	}
	if err := win.checkEnd(); err != nil {
		return win, err
	}
	win, err := a.Coordinator.OpenWindow(r.Context(), win)
	a.follow(r)
	return win, err
}

func (a *API) readWindow(w http.ResponseWriter, r *http.Request) (Window, error) {
	var q AddRequest
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
	if c := webaccess.CallerOf(r); c.Authenticated {
		if win.By != "" && win.By != c.Name {
			return win, fmt.Errorf("field %q: %q: this request is authenticated as %q; leave the field out", "by", win.By, c.Name)
		}
		win.By = c.Name
	}
	if win.By == "" {
		return win, fmt.Errorf("field %q is missing: want who works on it", "by")
	}
	return win, nil
}

// follow reads the coordinator's windows after a change. If that fails, the next read of the source has it.
func (a *API) follow(r *http.Request) {
	_ = UpdateSource(r.Context(), a.Register, *a.Coordinator, a.Now())
}

func (a *API) handleRemove(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	switch removed := a.Register.RemoveWindow(id, a.Now()); {
	case removed:
	case a.Coordinator == nil:
		http.Error(w, "no window of the API has this id; those of files and silences end where they were made", http.StatusNotFound)
		return
	default:
		if err := a.Coordinator.EndWindow(r.Context(), id, webaccess.CallerOf(r).Name); err != nil {
			http.Error(w, err.Error(), statusOf(err))
			return
		}
		a.follow(r)
	}
	w.WriteHeader(http.StatusNoContent)
}
