package catalogue

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
	"github.com/graylink/graylink/internal/webaccess"
)

// API serves the catalogue and plans. GET lists what is known, and POST traces what is lacking for pairs of NICs or jobs.
type API struct {
	Builder  *Builder
	Graph    func() *fabric.Graph
	Snapshot func() snapshot.Snapshot
	// Policy decides which clients may have tuples traced.
	Policy *webaccess.Policy
	Now    func() time.Time
	// Observer observes the queue pairs of running jobs.
	Observer *Observer

	mu   sync.Mutex
	last *plan.Plan // that was made; nil if none was
}

const (
	maxRequest = 1 << 20 // octets
	// buildWithin bounds the time of a build. A batch of ports takes about half a second.
	buildWithin = 10 * time.Minute
)

// RegisterHandlers adds the API's paths to a mux.
func (a *API) RegisterHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/catalogue", a.handleList)
	mux.HandleFunc("POST /api/v1/catalogue", a.Policy.AdminHandler(a.handleBuild))
	mux.HandleFunc("GET /api/v1/plan", a.handlePlanOf)
	mux.HandleFunc("POST /api/v1/plan", a.Policy.AdminHandler(a.handlePlan))
	if a.Observer != nil {
		mux.HandleFunc("GET /api/v1/observe", a.handleObserve)
	}
}

// excluded returns what plans avoid now.
func (a *API) excluded() []Exclusion {
	s := a.Snapshot()
	return ExcludedBy(a.Graph(), &s, a.Now())
}

// handleList serves the entries of ?src= and ?dst=.
func (a *API) handleList(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	for _, name := range []string{"src", "dst"} {
		if nic := q.Get(name); nic != "" && a.Graph().NIC(nic) == nil {
			http.Error(w, fmt.Sprintf("parameter %q: %q: want a NIC of the topology", name, nic), http.StatusNotFound)
			return
		}
	}
	writeLines(w, a.Builder.List(q.Get("src"), q.Get("dst"), a.excluded()))
}

// handleBuild builds the catalogue of a request, and serves it.
func (a *API) handleBuild(w http.ResponseWriter, r *http.Request) {
	var q Request
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		http.Error(w, fmt.Sprintf("request: %v", err), http.StatusBadRequest)
		return
	}
	webaccess.AddLogAttrs(r, "pairs", len(q.Pairs))
	extendDeadline(w)
	entries, err := a.Builder.Build(r.Context(), q, a.excluded())
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	writeLines(w, entries)
}

// extendDeadline gives a response the time of a build.
func extendDeadline(w http.ResponseWriter) {
	// A server that cannot change its deadline has none that is longer.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(buildWithin))
}

func writeLines(w http.ResponseWriter, entries []plan.Entry) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	// This fails only when the client has gone, so the error needs no report.
	_ = WriteEntries(w, entries)
}

// WriteEntries writes entries as lines of a catalogue.
func WriteEntries(w io.Writer, entries []plan.Entry) error {
	var b []byte
	for i := range entries {
		var err error
		if b, err = plan.AppendEntry(b[:0], &entries[i]); err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
