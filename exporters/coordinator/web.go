// Package coordinator publishes the state of internal/coordinator as Prometheus
// series and serves the coordinator's HTTP API.
package coordinator

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/enroll"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/webaccess"
)

// Handler returns a handler that serves the API of a coordinator and publishes the certificates that the
// process uses, and the outcomes of its enrollment, which is nil if there is none. The policy decides who may reload the
// topology, rotate keys and make this coordinator the leader.
func Handler(c *coordinator.Coordinator, policy *webaccess.Policy, log *slog.Logger, enrollment *enroll.Service, used ...pki.Source) http.Handler {
	metrics := prometheus.NewRegistry()
	if enrollment != nil {
		metrics.MustRegister(&enrollmentCollector{enrollment})
	}
	metrics.MustRegister(newCollector(c), certificates.NewCollector(used...), version.NewCollector("graylink_coordinator"), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Ready(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	act := func(done string, do func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := do(); err != nil {
				log.Error("request failed", "path", r.URL.Path, "err", err)
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			fmt.Fprintln(w, done)
		}
	}
	mux.HandleFunc("POST /-/reload", policy.ReloadHandler(act("reloaded", c.Reload)))
	mux.HandleFunc("POST /-/promote", policy.AdminHandler(func(w http.ResponseWriter, r *http.Request) {
		act("this coordinator leads", func() error { return c.Promote(r.Context()) })(w, r)
	}))
	mux.HandleFunc("POST /api/v1/keys/rotate", policy.AdminHandler(act("the rotation has begun", c.RotateKeys)))
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		enc := plainjson.NewEncoder(w)
		if err := enc.Encode(v); err != nil {
			log.Debug("cannot write the response", "err", err)
		}
	}
	mux.HandleFunc("GET /api/v1/targets", func(w http.ResponseWriter, _ *http.Request) {
		targets, ok := c.Targets()
		if !ok {
			http.Error(w, "the registry is not whole yet: some nodes have not connected, and --registry.settle has not passed", http.StatusServiceUnavailable)
			return
		}
		answer(w, targetGroups(targets))
	})
	mux.HandleFunc("GET /api/v1/agents", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"agents": c.Agents()})
	})
	mux.HandleFunc("GET /api/v1/leader", func(w http.ResponseWriter, _ *http.Request) { answer(w, c.Leadership()) })
	mux.HandleFunc("GET /api/v1/interfaces", func(w http.ResponseWriter, _ *http.Request) { answer(w, c.Interfaces()) })
	mux.HandleFunc("GET /api/v1/clocks", func(w http.ResponseWriter, _ *http.Request) { answer(w, c.Clocks()) })
	mux.HandleFunc("GET /api/v1/schedule", func(w http.ResponseWriter, r *http.Request) {
		node := r.URL.Query().Get("node")
		sum, edges, ok := c.ScheduleOf(node)
		if !ok {
			http.Error(w, "there is no schedule yet", http.StatusServiceUnavailable)
			return
		}
		out := struct {
			coordinator.Schedule
			Node  string             `json:"node,omitempty"`
			Edges []coordinator.Edge `json:"node_edges,omitempty"`
		}{sum, node, edges}
		if node != "" && len(edges) == 0 {
			http.Error(w, fmt.Sprintf("node %q has no edges", node), http.StatusNotFound)
			return
		}
		answer(w, out)
	})
	return mux
}
