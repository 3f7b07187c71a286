package node

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/webaccess"
)

// maxResetBody limits the body of a request to reset findings, in octets.
const maxResetBody = 4 << 10

// findingJSON represents an open finding.
type findingJSON struct {
	Entity  nichealth.Entity `json:"entity"`
	NIC     string           `json:"nic"`
	Code    string           `json:"code"`
	Fatal   bool             `json:"fatal"`
	Latched bool             `json:"latched"` // stays open until it is reset
	Since   time.Time        `json:"since"`
	Message string           `json:"message"`
}

// healthJSON represents the findings of a node about its NICs. Polled is absent before the first poll.
type healthJSON struct {
	Node     string        `json:"node"`
	Polled   *time.Time    `json:"polled,omitempty"`
	Findings []findingJSON `json:"findings"`
	// Unread lists the files that could not be read in the last poll.
	Unread []unreadJSON `json:"unread"`
}

type unreadJSON struct {
	Device string `json:"device"`
	Path   string `json:"path"`
	Why    string `json:"why"`
	Error  string `json:"error,omitempty"`
}

// healthAPI lists the findings about the node's NICs and resets latched ones.
type healthAPI struct {
	watcher *health.Watcher
	log     *slog.Logger
}

func (a healthAPI) addRoutes(mux *http.ServeMux, policy *webaccess.Policy) {
	mux.HandleFunc("GET /api/v1/nic-health", a.serveFindings)
	mux.HandleFunc("POST /api/v1/nic-health/reset", policy.AdminHandler(a.serveReset))
}

func (a healthAPI) serveFindings(w http.ResponseWriter, _ *http.Request) {
	s := a.watcher.Snapshot()
	out := healthJSON{Node: s.Node, Findings: []findingJSON{}, Unread: []unreadJSON{}}
	if p := s.Poll; p != nil {
		out.Polled = &p.At
		for _, f := range s.Findings {
			out.Findings = append(out.Findings, findingJSON{f.Entity, f.NIC, f.Code, f.Fatal, f.Latched, f.Since, f.Message})
		}
		for i := range p.Errors {
			e := &p.Errors[i]
			u := unreadJSON{Device: e.Device, Path: e.Path, Why: string(e.Sort)}
			if e.Err != nil {
				u.Error = e.Err.Error()
			}
			out.Unread = append(out.Unread, u)
		}
	}
	a.writeJSON(w, out)
}

// serveReset ends latched findings, of one entity or of all.
func (a healthAPI) serveReset(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Entity string `json:"entity"`
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxResetBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		http.Error(w, `want {"entity":"mlx5_0_port1"}, or no body for all: `+err.Error(), http.StatusBadRequest)
		return
	}
	ended, err := a.watcher.Reset(body.Entity, time.Now())
	if err != nil {
		http.Error(w, err.Error()+"; GET /api/v1/nic-health lists the findings", http.StatusNotFound)
		return
	}
	webaccess.AddLogAttrs(r, "entity", body.Entity)
	a.writeJSON(w, struct {
		Reset int `json:"reset"`
	}{ended})
}

func (a healthAPI) writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := plainjson.NewEncoder(w).Encode(v); err != nil {
		a.log.Debug("cannot write the findings about NICs", "err", err)
	}
}
