package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

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
func (e *Exporter) Handler(policy *webaccess.Policy) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", e.serveScrapes(metricsConstructors(), true, e.registry))
	mux.Handle("GET /metrics/nics", e.serveScrapes(nicsConstructors(), false, nil))
	mux.Handle("GET /metrics/edges", e.serveScrapes(edgesConstructors(), false, nil))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := e.node.Ready(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("POST /-/reload", policy.ReloadHandler(func(w http.ResponseWriter, _ *http.Request) {
		if err := e.node.Reload(); err != nil {
			e.log.Error("cannot reload the configuration", "err", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "reloaded")
	}))
	mux.HandleFunc("GET /api/v1/paths", e.servePaths)
	mux.HandleFunc("GET /api/v1/clock", e.serveClock)
	mux.HandleFunc("GET /api/v1/nics", e.serveNICs)
	mux.HandleFunc("GET /api/v1/windows", e.serveWindows)
	mux.HandleFunc("POST /api/v1/trace", policy.AskHandler(e.serveTrace))
	mux.HandleFunc("POST /api/v1/trace-tuples", policy.AskHandler(e.serveTraceTuples))
	mux.HandleFunc("POST /api/v1/path-mtu", policy.AskHandler(e.servePathMTU))
	if e.health != nil {
		healthAPI{e.health, e.log}.addRoutes(mux, policy)
	}
	if e.pairs != nil {
		mux.HandleFunc("GET /api/v1/queue-pairs", e.serveQueuePairs)
	}
	if e.follower != nil {
		mux.HandleFunc("GET /api/v1/collectives", collectivesAPI{e.follower, e.log}.serveRecords)
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

	Carrier netip.Addr      `json:"carrier,omitzero"` // that lists the chosen path
	Refused *fabric.Refusal `json:"refused,omitempty"`

	HopProbes []fabric.HopCount `json:"hop_probes,omitempty"`
}

type pathsJSON struct {
	Node    string     `json:"node"`
	Now     string     `json:"now"` // by the clock of traced_at
	Version uint64     `json:"version"`
	Paths   []pathJSON `json:"paths"`
}

// servePaths answers GET /api/v1/paths, with ?within= for what was traced lately.
func (e *Exporter) servePaths(w http.ResponseWriter, r *http.Request) {
	node, version, paths := e.node.TracedPaths()
	if text := r.URL.Query().Get("within"); text != "" {
		within, err := time.ParseDuration(text)
		if err != nil || within <= 0 {
			http.Error(w, fmt.Sprintf("parameter \"within\": %q: a time above 0s is expected", text), http.StatusBadRequest)
			return
		}
		first := time.Now().Add(-within)
		paths = slices.DeleteFunc(slices.Clone(paths), func(p probe.TracedPath) bool { return p.TracedAt.Before(first) && len(p.HopProbes) == 0 })
	}
	e.writePaths(w, node, version, paths)
}

func (e *Exporter) writePaths(w http.ResponseWriter, node string, version uint64, paths []probe.TracedPath) {
	out := pathsJSON{Node: node, Now: time.Now().UTC().Format(time.RFC3339Nano), Version: version, Paths: make([]pathJSON, len(paths))}
	for i := range paths {
		out.Paths[i] = newPathJSON(&paths[i])
	}
	e.writeJSON(w, out, "the paths")
}

// newPathJSON returns the JSON form of a path.
func newPathJSON(p *probe.TracedPath) pathJSON {
	j := pathJSON{Edge: p.Edge.String(), State: p.State, TracedAt: p.TracedAt.UTC().Format(time.RFC3339Nano),
		Reached: p.Reached, Balanced: p.Balanced, Hops: make([]hopJSON, len(p.Hops)), Notes: p.Notes, HopProbes: p.HopProbes,
		Carrier: p.Carrier, Refused: p.Refused}
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
	return j
}

// serveClock answers GET /api/v1/clock.
func (e *Exporter) serveClock(w http.ResponseWriter, _ *http.Request) {
	e.writeJSON(w, e.node.ReportClocks(), "the state of the clock")
}

// serveNICs answers GET /api/v1/nics.
func (e *Exporter) serveNICs(w http.ResponseWriter, _ *http.Request) {
	e.writeJSON(w, e.node.DescribeNICs(), "the list of NICs")
}

// writeJSON answers a request with a value. It logs at debug level if the client does not take it.
func (e *Exporter) writeJSON(w http.ResponseWriter, v any, what string) {
	w.Header().Set("Content-Type", "application/json")
	if err := plainjson.NewEncoder(w).Encode(v); err != nil {
		e.log.Debug("cannot write "+what, "err", err)
	}
}

// parseFlows parses the names of flows. It fails at the first that is none.
func parseFlows(names []string) ([]fabric.Flow, error) {
	flows := make([]fabric.Flow, len(names))
	for i, name := range names {
		f, err := fabric.ParseFlow(name)
		if err != nil {
			return nil, err
		}
		flows[i] = f
	}
	return flows, nil
}

// serveTrace answers POST /api/v1/trace.
func (e *Exporter) serveTrace(w http.ResponseWriter, r *http.Request) {
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
	edges, err := parseFlows(body.Edges)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	webaccess.AddLogAttrs(r, "edges", len(edges))
	node, version, paths, err := e.node.TraceFlows(r.Context(), edges)
	var unknown probe.UnknownEdgeError
	switch {
	case errors.As(err, &unknown):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	e.writePaths(w, node, version, paths)
}

// maxTraceTuples is the largest number of tuples in a request. Their traces take five seconds where one switch answers all.
const maxTraceTuples = 256

// tupleTracesJSON is the response to POST /api/v1/trace-tuples.
type tupleTracesJSON struct {
	Node   string           `json:"node"`
	Now    string           `json:"now"` // by the clock of traced_at
	Traces []tupleTraceJSON `json:"traces"`
}

// tupleTraceJSON is the JSON form of fabric.TupleTrace.
type tupleTraceJSON struct {
	Tuple   fabric.Tuple   `json:"tuple"`
	Marking fabric.Marking `json:"marking"`
	Trace   pathJSON       `json:"trace"`
}

// serveTraceTuples answers POST /api/v1/trace-tuples.
func (e *Exporter) serveTraceTuples(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Tuples []fabric.Tuple `json:"tuples"`
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTraceBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil {
		http.Error(w, `want {"tuples":[{"src","dst","proto","dport","sport","dscp"},...]}: `+err.Error(), http.StatusBadRequest)
		return
	}
	if len(body.Tuples) == 0 || len(body.Tuples) > maxTraceTuples {
		http.Error(w, fmt.Sprintf("%d tuples, want 1 to %d", len(body.Tuples), maxTraceTuples), http.StatusBadRequest)
		return
	}
	webaccess.AddLogAttrs(r, "tuples", len(body.Tuples))
	node, paths, err := e.node.TraceTuples(r.Context(), body.Tuples)
	var refused *probe.TupleError
	switch {
	case errors.As(err, &refused):
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	out := tupleTracesJSON{Node: node, Now: time.Now().UTC().Format(time.RFC3339Nano), Traces: make([]tupleTraceJSON, len(paths))}
	for i := range paths {
		out.Traces[i] = tupleTraceJSON{paths[i].Tuple, paths[i].Marking, newPathJSON(&paths[i].Path)}
	}
	e.writeJSON(w, out, "the traces of tuples")
}
