// Package fabricswitch publishes the state of internal/switchagent as Prometheus series and serves graylink-switch's HTTP
// API.
package fabricswitch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/switchagent"
	"github.com/graylink/graylink/internal/webaccess"
)

// Exporter serves the series and the API of an agent.
type Exporter struct {
	agent *switchagent.Agent
	log   *slog.Logger
}

// New returns an Exporter of an agent.
func New(a *switchagent.Agent, log *slog.Logger) *Exporter { return &Exporter{a, log} }

// Handler returns the handler of the agent's series and API, and of the expiry of the certificates that the process
// uses. The policy states who may make the agent list its interfaces again.
func (e *Exporter) Handler(policy *webaccess.Policy, used ...pki.Source) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(e.agent, e.log), certificates.NewCollector(used...), versioncollector.NewCollector("graylink_switch"), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := e.agent.Ready(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("POST /-/reload", policy.ReloadHandler(func(w http.ResponseWriter, r *http.Request) {
		if err := e.agent.Reload(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "reloaded")
	}))
	mux.HandleFunc("GET /api/v1/sightings", e.serveSightings)
	mux.HandleFunc("GET /api/v1/routes", e.serveRoutes)
	mux.HandleFunc("GET /api/v1/ports", e.servePorts)
	return mux
}

// SightingsHandler serves the sightings and the readiness of the agent, and no state of this machine's interfaces.
func (e *Exporter) SightingsHandler() http.Handler {
	all := e.Handler(&webaccess.Policy{})
	mux := http.NewServeMux()
	mux.Handle("GET /-/ready", all)
	mux.Handle("GET /api/v1/sightings", all)
	return mux
}

// serveSightings answers with the changes since a version of an instance, or with the whole table.
func (e *Exporter) serveSightings(w http.ResponseWriter, r *http.Request) {
	since, err := sinceOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	report, whole := e.agent.ReportSince(r.URL.Query().Get("instance"), since)
	if !whole {
		e.writeJSON(w, report)
		return
	}
	if err := e.writeWhole(w, report); err != nil {
		e.log.Debug("cannot write the table", "err", err)
	}
}

// sinceOf returns the version that a request has, or 0 if it has none.
func sinceOf(r *http.Request) (uint64, error) {
	s := r.URL.Query().Get("since")
	if s == "" {
		return 0, nil
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("since %q: the version of an earlier answer is expected", s)
	}
	return v, nil
}

// serveRoutes answers with the changes of routes and sessions since a version of an instance, or with all of them.
func (e *Exporter) serveRoutes(w http.ResponseWriter, r *http.Request) {
	since, err := sinceOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	report, ok := e.agent.RoutesSince(r.URL.Query().Get("instance"), since)
	if !ok {
		http.Error(w, "this agent does not read routes: it does with --routes", http.StatusNotFound)
		return
	}
	e.writeJSON(w, report)
}

// partFlows is the number of flows of a whole table that are encoded at a time, because the table may be large and the
// client slow.
const partFlows = 2048

// writeWhole writes a report with the whole table, part by part.
func (e *Exporter) writeWhole(w http.ResponseWriter, report sighting.Report) error {
	w.Header().Set("Content-Type", "application/json")
	head, err := json.Marshal(report)
	if err != nil {
		return err
	}
	head[len(head)-1] = ','
	if _, err := w.Write(append(head, `"seen":[`...)); err != nil {
		return err
	}
	var buf bytes.Buffer
	enc := plainjson.NewEncoder(&buf)
	for at, first := 0, true; ; {
		flows, next := e.agent.TablePart(at, partFlows)
		buf.Reset()
		for i := range flows {
			if !first {
				buf.WriteByte(',')
			}
			first = false
			if err := enc.Encode(&flows[i]); err != nil {
				return err
			}
		}
		if _, err := w.Write(buf.Bytes()); err != nil {
			return err
		}
		if next == 0 {
			_, err := w.Write([]byte("]}\n"))
			return err
		}
		at = next
	}
}

func (e *Exporter) servePorts(w http.ResponseWriter, _ *http.Request) {
	out, err := e.agent.DescribePorts()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	e.writeJSON(w, out)
}

func (e *Exporter) writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := plainjson.NewEncoder(w).Encode(v); err != nil {
		e.log.Debug("cannot write an answer", "err", err)
	}
}
