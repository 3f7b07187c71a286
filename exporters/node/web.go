package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/webaccess"
)

// Limits of a trace request.
const (
	maxTraceBody  = 1 << 20 // octets
	maxTraceEdges = 4096
)

// Handler returns the handler of the node's series and API. The policy states who may reload the configuration, trace
// paths and reset findings.
func (n *Node) Handler(policy *webaccess.Policy) http.Handler {
	metrics, edges := n.Gatherers()
	opts := promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, EnableOpenMetrics: true}

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, opts))
	mux.Handle("GET /metrics/edges", promhttp.HandlerFor(edges, opts))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := n.Ready(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("POST /-/reload", policy.ReloadHandler(func(w http.ResponseWriter, _ *http.Request) {
		if err := n.Reload(); err != nil {
			n.log.Error("cannot reload the configuration", "err", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "reloaded")
	}))
	mux.HandleFunc("GET /api/v1/paths", func(w http.ResponseWriter, _ *http.Request) {
		n.mu.RLock()
		version, paths := n.engine.TracedPaths()
		name := n.engine.Config().Node
		n.mu.RUnlock()
		n.writePaths(w, name, version, paths)
	})
	mux.HandleFunc("GET /api/v1/clock", n.serveClock)
	mux.HandleFunc("GET /api/v1/nics", n.serveNICs)
	mux.HandleFunc("POST /api/v1/trace", policy.FrequentAdminHandler(n.serveTrace))
	if n.health != nil {
		n.health.addRoutes(mux, policy)
	}
	return mux
}

type hopJSON struct {
	TTL     int    `json:"ttl"`
	Address string `json:"address,omitempty"`
	RTT     int64  `json:"rtt_ns,omitempty"`

	Interface *fabric.Interface `json:"interface,omitempty"`
	MPLS      []fabric.Label    `json:"mpls,omitempty"`
}

type pathJSON struct {
	Edge     string           `json:"edge"`
	State    fabric.PathState `json:"state"`
	TracedAt string           `json:"traced_at"`
	Reached  bool             `json:"reached"`
	Balanced bool             `json:"balanced,omitempty"`
	Hops     []hopJSON        `json:"hops"`
	Notes    []string         `json:"notes"`
}

type pathsJSON struct {
	Node    string     `json:"node"`
	Now     string     `json:"now"` // by the clock of traced_at
	Version uint64     `json:"version"`
	Paths   []pathJSON `json:"paths"`
}

func (n *Node) writePaths(w http.ResponseWriter, node string, version uint64, paths []probe.TracedPath) {
	out := pathsJSON{Node: node, Now: time.Now().UTC().Format(time.RFC3339Nano), Version: version, Paths: make([]pathJSON, len(paths))}
	for i, p := range paths {
		j := pathJSON{Edge: p.Edge.String(), State: p.State, TracedAt: p.TracedAt.UTC().Format(time.RFC3339Nano),
			Reached: p.Reached, Balanced: p.Balanced, Hops: make([]hopJSON, len(p.Hops)), Notes: p.Notes}
		if j.Notes == nil {
			j.Notes = []string{}
		}
		for k, h := range p.Hops {
			j.Hops[k].TTL = h.TTL
			if h.Address.IsValid() {
				j.Hops[k].Address, j.Hops[k].RTT = h.Address.String(), int64(h.RTT)
				j.Hops[k].Interface, j.Hops[k].MPLS = h.Incoming, h.Labels
			}
		}
		out.Paths[i] = j
	}
	w.Header().Set("Content-Type", "application/json")
	enc := plainjson.NewEncoder(w)
	if err := enc.Encode(out); err != nil {
		n.log.Debug("cannot write the paths", "err", err)
	}
}

// bendJSON represents the error that a test gave the clock: at the true time t the clock shows t + offset_ns + rate x
// (t - ref_ns).
type bendJSON struct {
	Ref    int64   `json:"ref_ns"`
	Offset int64   `json:"offset_ns"`
	Rate   float64 `json:"rate"`
}

// relationJSON represents the relation of an edge's far clock to the local clock: at the local time t the far clock
// shows t + offset_ns + rate x (t - ref_ns), within bound_ns.
type relationJSON struct {
	Edge      string  `json:"edge"`
	Timestamp string  `json:"timestamp"`
	Ref       int64   `json:"ref_ns"`
	Offset    int64   `json:"offset_ns"`
	Rate      float64 `json:"rate"`
	Bound     int64   `json:"bound_ns"`
}

// ownClockJSON represents what is known of a NIC's clock: at its time ref_ns it is offset_ns ahead of the frame, within
// bound_ns and allowance_ns. Without an offset, nothing is known.
type ownClockJSON struct {
	NIC       string  `json:"nic"`
	State     string  `json:"state"`
	Frame     uint64  `json:"frame,string"`
	Ref       int64   `json:"ref_ns"`
	Offset    *int64  `json:"offset_ns,omitempty"`
	Rate      float64 `json:"rate"`
	Bound     int64   `json:"bound_ns"`
	Allowance int64   `json:"allowance_ns"`
}

type clockJSON struct {
	Bend      *bendJSON      `json:"bend,omitempty"`
	Clocks    []ownClockJSON `json:"clocks"`
	Relations []relationJSON `json:"relations"` // edges without a relation are absent
}

// serveClock answers GET /api/v1/clock.
func (n *Node) serveClock(w http.ResponseWriter, _ *http.Request) {
	out := clockJSON{Clocks: []ownClockJSON{}, Relations: []relationJSON{}}
	if bent, ok := n.clock.(*bentclock.Clock); ok {
		s := bent.CurrentSegment()
		out.Bend = &bendJSON{Ref: s.Ref, Offset: s.Offset, Rate: s.Rate}
	}
	if n.clocks != nil {
		out.Clocks, out.Relations = n.clocks.listOwnClocks(), n.clocks.listRelations()
	}
	w.Header().Set("Content-Type", "application/json")
	if err := plainjson.NewEncoder(w).Encode(out); err != nil {
		n.log.Debug("cannot write the state of the clock", "err", err)
	}
}

// serveTrace answers POST /api/v1/trace.
func (n *Node) serveTrace(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Edges []string `json:"edges"`
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTraceBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil {
		http.Error(w, `want {"edges":["SRC>DST#N",...]}: `+err.Error(), http.StatusBadRequest)
		return
	}
	if len(body.Edges) > maxTraceEdges {
		http.Error(w, fmt.Sprintf("%d edges, want at most %d", len(body.Edges), maxTraceEdges), http.StatusBadRequest)
		return
	}
	edges := make([]fabric.Flow, len(body.Edges))
	for i, s := range body.Edges {
		e, err := fabric.ParseFlow(s)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		edges[i] = e
	}
	webaccess.AddLogAttrs(r, "edges", len(edges))
	n.mu.RLock()
	engine := n.engine // a reload ends the trace
	n.mu.RUnlock()
	paths, err := engine.TraceFlows(r.Context(), edges)
	var unknown probe.UnknownEdgeError
	switch {
	case errors.As(err, &unknown):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	version, _ := engine.TracedPaths()
	n.writePaths(w, engine.Config().Node, version, paths)
}
