package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/webaccess"
)

// maxPathMTUFlows is the largest number of flows in a request. A flow whose path drops long packets takes some ten seconds.
const maxPathMTUFlows = 256

// pathMTUJSON is the response to POST /api/v1/path-mtu.
type pathMTUJSON struct {
	Node  string           `json:"node"`
	Found []fabric.PathMTU `json:"found"`
}

// servePathMTU answers POST /api/v1/path-mtu.
func (e *Exporter) servePathMTU(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Edges  []string `json:"edges"`
		Octets int      `json:"octets"`
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTraceBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil {
		http.Error(w, `want {"edges":["SRC>DST#N",...],"octets":N}: `+err.Error(), http.StatusBadRequest)
		return
	}
	if len(body.Edges) == 0 || len(body.Edges) > maxPathMTUFlows {
		http.Error(w, fmt.Sprintf("%d edges, want 1 to %d", len(body.Edges), maxPathMTUFlows), http.StatusBadRequest)
		return
	}
	edges, err := parseFlows(body.Edges)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	webaccess.AddLogAttrs(r, "edges", len(edges), "octets", body.Octets)
	node, found, err := e.node.ProbePathMTU(r.Context(), edges, body.Octets)
	var unknown probe.UnknownEdgeError
	var length probe.PathMTULengthError
	switch {
	case errors.As(err, &length):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.As(err, &unknown):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		e.writeJSON(w, pathMTUJSON{Node: node, Found: found}, "the MTUs of paths")
	}
}
