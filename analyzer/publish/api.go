package publish

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/asking"
	"github.com/graylink/graylink/analyzer/audit/latest"
	"github.com/graylink/graylink/analyzer/compare"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/schema/openapi"
)

func formatInt(n int) string { return strconv.Itoa(n) }

// API serves the analyzer's state as JSON.
type API struct {
	Snapshot func() snapshot.Snapshot
	Store    *paths.Store
	// Collectives returns the report on the operations of a job. Nil means that they are not followed.
	Collectives func(job string) (workload.Report, bool)
	// Matrix has the matrices of leaves and NICs. Its store is nil if there are none.
	Matrix matrix.Source
	// Compare compares two spans of the past. Nil means that the past is not known.
	Compare func(ctx context.Context, r compare.Request) (*compare.Comparison, error)
	// Reports makes the reports of verdicts, and ReportStyle is the style sheet of those that are HTML.
	Reports     *report.Collector
	ReportStyle string
	// Audit returns what is known of the latest audit. Nil means that the analyzer has no report of audits.
	Audit func(now time.Time) latest.View
}

// RegisterHandlers adds the API's paths to a mux.
func (a *API) RegisterHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/openapi.json", handleDescription)
	mux.HandleFunc("GET /api/v1/verdicts", a.handleVerdicts)
	mux.HandleFunc("GET /api/v1/verdicts/{id}", a.handleVerdict)
	mux.HandleFunc("GET /api/v1/verdicts/{id}/observations", a.handleVerdictObservations)
	mux.HandleFunc("GET /api/v1/verdicts/{id}/report", a.handleReport)
	mux.HandleFunc("GET /api/v1/jobs", a.handleJobs)
	mux.HandleFunc("GET /api/v1/jobs/{name...}", a.handleJob)
	mux.HandleFunc("GET /api/v1/paths", a.handlePaths)
	mux.HandleFunc("GET /api/v1/links", a.handleLinks)
	mux.HandleFunc("GET /api/v1/observations", a.handleObservations)
	mux.HandleFunc("GET /api/v1/matrix", a.handleMatrix)
	mux.HandleFunc("GET /api/v1/compare", a.handleCompare)
	mux.HandleFunc("GET /api/v1/audit", a.handleAudit)
}

// handleAudit serves the report of the latest audit.
func (a *API) handleAudit(w http.ResponseWriter, _ *http.Request) {
	if a.Audit == nil {
		http.Error(w, "the analyzer has no report of audits: audit_report of its configuration names one", http.StatusNotFound)
		return
	}
	writeJSON(w, a.Audit(time.Now()))
}

// handleMatrix serves a matrix. Its parameters are those of the page, and ?row= and ?column= select cells.
func (a *API) handleMatrix(w http.ResponseWriter, r *http.Request) {
	if a.Matrix.Store == nil {
		http.Error(w, "there is no matrix here", http.StatusNotFound)
		return
	}
	values, now := r.URL.Query(), time.Now()
	var g *matrix.Grid
	var warning string
	q, err := matrix.ParseQuery(values, now)
	if err == nil {
		g, warning, err = a.Matrix.Grid(r.Context(), &q, now)
	}
	var t *matrix.Table
	if err == nil {
		t, err = g.Table(q.Of, values.Get("row"), values.Get("column"))
	}
	switch {
	case errors.Is(err, matrix.ErrUnread):
		http.Error(w, err.Error(), http.StatusBadGateway)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		t.Warning = warning
		writeJSON(w, t)
	}
}

// handleCompare serves what became worse from one span to another. ?from= and ?to= are their ends.
func (a *API) handleCompare(w http.ResponseWriter, r *http.Request) {
	if a.Compare == nil {
		http.Error(w, "past moments are not known here", http.StatusNotFound)
		return
	}
	request, err := compare.ParseRequest(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c, err := a.Compare(r.Context(), request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, c)
}

// handleDescription serves the OpenAPI description of the API.
func handleDescription(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openapi.Analyzer()) // the client may be gone
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// This fails only when the client has gone, so the error needs no report.
	_ = plainjson.NewEncoder(w).Encode(v)
}

// handleVerdicts serves the state and all verdicts, newest first. ?job= keeps the verdicts that affect a job, and leaves out the
// candidates.
func (a *API) handleVerdicts(w http.ResponseWriter, r *http.Request) {
	s := a.Snapshot()
	out := VerdictsAnswer{State: s.Report.State, Shard: s.Shard, At: s.At, Coverage: s.Report.Coverage, Edges: s.Report.Edges, Paths: s.Report.Paths, Hosts: s.Hosts, Floods: s.Floods, Signals: s.Signals, Scopes: s.Scopes,
		Asking: s.Queries, Maintenance: s.Maintenance, Warnings: s.Warnings, Verdicts: []incident.Incident{}, Candidates: []fabric.Candidate{}}
	if s.Shard != nil {
		out.FabricState = s.JoinedState()
	}
	for _, f := range s.Floods {
		out.Findings = append(out.Findings, f.String())
	}
	for _, f := range s.Signals {
		out.Findings = append(out.Findings, f.Text)
	}
	job := r.URL.Query().Get("job")
	planner := asking.NewPlanner(a.Store.Graph())
	if job == "" {
		out.Candidates = append(out.Candidates, planner.AddMeasurements(s.Report.Candidates)...)
	}
	for _, in := range s.Incidents {
		if job == "" || slices.Contains(in.Jobs, job) {
			out.Verdicts = append(out.Verdicts, addMeasurements(planner, in))
		}
	}
	writeJSON(w, out)
}

// addMeasurements adds the probes that would distinguish the element of an open verdict from its equivalents.
func addMeasurements(planner *asking.Planner, in incident.Incident) incident.Incident {
	if in.Open {
		in.Verdict = planner.AddVerdictMeasurements([]fabric.Verdict{in.Verdict})[0]
	}
	return in
}

// handleVerdict serves one verdict, as it is in the list of all.
func (a *API) handleVerdict(w http.ResponseWriter, r *http.Request) {
	all := a.Snapshot().Incidents
	i := indexOfVerdict(w, r, all)
	if i < 0 {
		return
	}
	writeJSON(w, addMeasurements(asking.NewPlanner(a.Store.Graph()), all[i]))
}

// indexOfVerdict returns the position of the verdict that a request names. If there is none, it answers the request and returns -1.
func indexOfVerdict(w http.ResponseWriter, r *http.Request, all []incident.Incident) int {
	id := r.PathValue("id")
	i := slices.IndexFunc(all, func(in incident.Incident) bool { return in.ID == id })
	if i < 0 {
		http.Error(w, fmt.Sprintf("no verdict has the identifier %q: it never had one, or the verdict closed too long ago", id), http.StatusNotFound)
	}
	return i
}

// handleJobs serves the running jobs with the state of the network for each.
func (a *API) handleJobs(w http.ResponseWriter, _ *http.Request) {
	s := a.Snapshot()
	known := s.JobNames()
	if known == nil {
		http.Error(w, "no placement of jobs is known: the analyzer has no source of placements", http.StatusNotFound)
		return
	}
	out := JobsAnswer{s.At, []JobState{}}
	for _, sc := range s.Scopes {
		if name, ok := strings.CutPrefix(sc.Scope, "job_name:"); ok {
			out.Jobs = append(out.Jobs, JobState{name, sc.State, sc.Why})
		}
	}
	writeJSON(w, out)
}

// handleJob serves the state of the network for a job, which it finds by name or identifier.
func (a *API) handleJob(w http.ResponseWriter, r *http.Request) {
	s := a.Snapshot()
	name := r.PathValue("name")
	v, ok := s.FindJob(name)
	switch {
	case s.JobNames() == nil:
		http.Error(w, "no placement of jobs is known: the analyzer has no source of placements", http.StatusNotFound)
		return
	case !ok:
		http.Error(w, fmt.Sprintf("no job %q runs now on a node of the topology", name), http.StatusNotFound)
		return
	}
	writeJSON(w, JobAnswer{s.At, v, a.jobCollectives(v.Job)})
}

// jobCollectives returns the report on the operations of a job, or nil if none are known.
func (a *API) jobCollectives(job string) *workload.Report {
	if a.Collectives == nil {
		return nil
	}
	rep, ok := a.Collectives(job)
	if !ok {
		return nil
	}
	return &rep
}

// maxPaths bounds a response that is not restricted to a NIC.
const maxPaths = 10_000

// handlePaths serves the paths of flows. ?src= and ?dst= keep the flows of a probing and a probed NIC, and ?at=
// selects a moment in the past.
func (a *API) handlePaths(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	src, dst := q.Get("src"), q.Get("dst")
	for _, nic := range []string{src, dst} {
		if nic != "" && !fabric.IsNIC(nic) {
			http.Error(w, fmt.Sprintf("%q: want a NIC, node/device", nic), http.StatusBadRequest)
			return
		}
	}
	var at time.Time
	if s := q.Get("at"); s != "" {
		var err error
		if at, err = evidence.ParseMoment(s, time.Now()); err != nil {
			http.Error(w, "at: "+err.Error(), http.StatusBadRequest)
			return
		}
	}
	if n := a.Store.Len(); src == "" && dst == "" && n > maxPaths {
		http.Error(w, fmt.Sprintf("there are %d flows, too many for one response: set src or dst", n), http.StatusBadRequest)
		return
	}
	out := PathsAnswer{a.Store.Version(), at, []BoundPath{}}
	for _, e := range a.Store.FlowsBetween(src, dst) {
		b, ok := a.Store.CurrentBinding(e)
		if !at.IsZero() {
			b, ok = a.Store.BindingAt(e, at, at)
		}
		if ok {
			out.Paths = append(out.Paths, BoundPath{e.String(), b.State, b.Path, b.Candidates, b.Sprayed, b.Source, b.Version, b.Since, b.Confirmed, b.Checked, b.Notes})
		}
	}
	writeJSON(w, out)
}

func (a *API) handleLinks(w http.ResponseWriter, _ *http.Request) {
	s := a.Snapshot()
	links := s.Links
	if links == nil {
		links = []snapshot.LinkView{}
	}
	writeJSON(w, LinksAnswer{s.At, links})
}

// handleObservations serves the last window of every flow as an observation file, which graylink localize can
// read.
func (a *API) handleObservations(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := plainjson.NewEncoder(w)
	for _, e := range a.Snapshot().Edges {
		if err := enc.Encode(e.Obs); err != nil {
			return
		}
	}
}

// handleVerdictObservations serves what was observed in the cycle in which a verdict opened, or was narrowed last, as an
// observation file, from which graylink localize makes the verdict again.
func (a *API) handleVerdictObservations(w http.ResponseWriter, r *http.Request) {
	all := a.Snapshot().Incidents
	i := indexOfVerdict(w, r, all)
	if i < 0 {
		return
	}
	file := all[i].Observations()
	if file == nil {
		http.Error(w, "what this verdict rests on is not kept any more: the analyzer was started after it opened, or many others opened since", http.StatusGone)
		return
	}
	plain, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	_, _ = io.Copy(w, plain) // the client may be gone
}
