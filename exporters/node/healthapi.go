package node

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/graylink/graylink/internal/nichealth"
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

// addRoutes adds the API that lists the findings and resets latched ones.
func (h *Health) addRoutes(mux *http.ServeMux, policy *webaccess.Policy) {
	mux.HandleFunc("GET /api/v1/nic-health", h.serveFindings)
	mux.HandleFunc("POST /api/v1/nic-health/reset", policy.AdminHandler(h.serveReset))
}

func (h *Health) serveFindings(w http.ResponseWriter, _ *http.Request) {
	out := healthJSON{Findings: []findingJSON{}, Unread: []unreadJSON{}}
	out.Node, _ = h.node()
	h.mu.Lock()
	if p := h.last; p != nil {
		at, name := p.At, h.nicNames(p)
		out.Polled = &at
		for _, f := range h.monitor.OpenFindings() {
			device, port := entityParts(f.Entity)
			out.Findings = append(out.Findings, findingJSON{f.Entity, name(device, port, ""), f.Code, f.Fatal, f.Latched, f.Since, f.Message})
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
	h.mu.Unlock()
	h.writeJSON(w, out)
}

// serveReset ends latched findings, of one entity or of all.
func (h *Health) serveReset(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Entity string `json:"entity"`
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxResetBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		http.Error(w, `want {"entity":"mlx5_0_port1"}, or no body for all: `+err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	var of nichealth.Entity
	for _, f := range h.monitor.OpenFindings() {
		if f.Entity.Value == body.Entity {
			of = f.Entity
		}
	}
	if body.Entity != "" && of == (nichealth.Entity{}) {
		h.mu.Unlock()
		http.Error(w, "no findings for "+body.Entity+"; GET /api/v1/nic-health lists the findings", http.StatusNotFound)
		return
	}
	webaccess.AddLogAttrs(r, "entity", body.Entity)
	events := h.monitor.Reset(of, time.Now())
	for i := range events {
		h.events[eventKey{events[i].ErrorCode[0], severityOf(&events[i])}]++
	}
	h.mu.Unlock()
	for i := range events {
		h.emitEvent(&events[i])
	}
	h.writeJSON(w, struct {
		Reset int `json:"reset"`
	}{len(events)})
}

func (h *Health) writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := plainjson.NewEncoder(w).Encode(v); err != nil {
		h.log.Debug("cannot write the findings about NICs", "err", err)
	}
}
