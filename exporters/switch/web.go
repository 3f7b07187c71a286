package fabricswitch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/webaccess"
)

// Handler returns the handler of the agent's series and API, and of the expiry of the certificates that the process
// uses. The policy states who may make the agent list its interfaces again.
func (a *Agent) Handler(policy *webaccess.Policy, used ...pki.Source) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(a, certificates.NewCollector(used...), versioncollector.NewCollector("graylink_switch"), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.Ready(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("POST /-/reload", policy.ReloadHandler(func(w http.ResponseWriter, r *http.Request) {
		if err := a.Reload(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "reloaded")
	}))
	mux.HandleFunc("GET /api/v1/sightings", a.serveSightings)
	mux.HandleFunc("GET /api/v1/ports", a.servePorts)
	return mux
}

// serveSightings answers with the changes since a version of an instance, or with the whole table.
func (a *Agent) serveSightings(w http.ResponseWriter, r *http.Request) {
	var since uint64
	if s := r.URL.Query().Get("since"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			http.Error(w, fmt.Sprintf("since %q: the version of an earlier answer is expected", s), http.StatusBadRequest)
			return
		}
		since = v
	}
	report, whole := a.reportSince(r.URL.Query().Get("instance"), since)
	if !whole {
		a.writeJSON(w, report)
		return
	}
	if err := a.writeWhole(w, report); err != nil {
		a.log.Debug("cannot write the table", "err", err)
	}
}

// partFlows is the number of flows of a whole table that are encoded at a time, because the table may be large and the
// client slow.
const partFlows = 2048

// writeWhole writes a report with the whole table, part by part.
func (a *Agent) writeWhole(w http.ResponseWriter, report sighting.Report) error {
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
		flows, next := a.tablePart(at, partFlows)
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

func (a *Agent) servePorts(w http.ResponseWriter, _ *http.Request) {
	own, beyond, err := listAddresses()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	a.mu.RLock()
	links := a.ports
	heard := a.lldp.CurrentNeighbours(time.Now(), a.portName)
	a.mu.RUnlock()
	rates := linkSpeeds(links)
	out := fabric.SwitchView{Switch: a.o.Switch, Ports: make([]fabric.PortView, 0, len(links))}
	for _, l := range links {
		p := fabric.PortView{Port: l.Name, MAC: l.MAC.String(), Up: l.Running, SpeedGbps: rates[l.Name] * 8 / 1e9, Addresses: own[l.Number], LearnedAddresses: beyond[l.Number]}
		for _, n := range heard {
			if n.Port == l.Name {
				p.System, p.SystemPort = n.System, n.SystemPort
			}
		}
		if p.Addresses == nil {
			p.Addresses = []netip.Prefix{}
		}
		if p.LearnedAddresses == nil {
			p.LearnedAddresses = []fabric.LearnedAddress{}
		}
		out.Ports = append(out.Ports, p)
	}
	a.writeJSON(w, out)
}

func (a *Agent) writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := plainjson.NewEncoder(w).Encode(v); err != nil {
		a.log.Debug("cannot write an answer", "err", err)
	}
}
