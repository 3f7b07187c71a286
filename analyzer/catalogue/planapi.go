package catalogue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/graylink/graylink/internal/plan"
)

// planJobs traces the paths that jobs need and returns a plan for them, which avoids what is excluded. The error is that of
// Build, or an InvalidError.
func (b *Builder) planJobs(ctx context.Context, jobs []plan.Job, r Request, excluded []Exclusion) (*plan.Plan, error) {
	g := b.graph()
	n, err := plan.NewNetwork(g, plan.DefaultGoodput)
	if err != nil {
		return nil, &InvalidError{err}
	}
	r.Pairs = nil
	err = n.Pairs(jobs, func(src string, dst []string) error {
		// The members of a bond share an address, so that the tuples of one have the paths to all.
		r.Pairs = append(r.Pairs, Pair{src, dst[0]})
		return nil
	})
	if err != nil {
		return nil, &InvalidError{err}
	}
	for _, e := range r.Exclude {
		if err := n.Exclude(e, "excluded"); err != nil {
			return nil, &InvalidError{fmt.Errorf("exclude: %w", err)}
		}
	}
	// Without them in the network, the ideal rates do not count them either.
	for _, x := range excluded {
		n.ExcludeWhere(x.Exclusion, x.touches)
	}
	entries, err := b.Build(ctx, r, excluded)
	if err != nil {
		return nil, err
	}
	c := plan.NewCatalogue(n)
	for i := range entries {
		c.Add(&entries[i])
	}
	p, err := plan.Make(&plan.Request{Network: n, Catalogue: c, Jobs: jobs, QPs: r.QPs})
	if err != nil {
		return nil, &InvalidError{err}
	}
	return p, nil
}

// handlePlan plans the jobs of a request, which is a file of jobs, and keeps the plan for handlePlanOf.
func (a *API) handlePlan(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	request := Request{DSCP: 26, QPs: 8, AdaptiveRouting: q.Get("adaptive_routing"), Exclude: q["exclude"]}
	for name, to := range map[string]*int{"dscp": &request.DSCP, "qps": &request.QPs} {
		if text := q.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				http.Error(w, fmt.Sprintf("parameter %q: %q: want a number", name, text), http.StatusBadRequest)
				return
			}
			*to = n
		}
	}
	jobs, err := plan.ParseJobs("request", http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	extendDeadline(w)
	p, err := a.Builder.planJobs(r.Context(), jobs, request, a.excluded())
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	a.mu.Lock()
	a.last = p
	a.mu.Unlock()
	writePlan(w, p)
}

// handlePlanOf serves the last plan, or with ?job= what it has of a job.
func (a *API) handlePlanOf(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	p := a.last
	a.mu.Unlock()
	job := r.URL.Query().Get("job")
	if p != nil && job != "" {
		p = planOf(p, job)
	}
	if p == nil {
		http.Error(w, "no plan was made of this", http.StatusNotFound)
		return
	}
	writePlan(w, p)
}

// planOf returns the part of a plan that is about one job, or nil if the plan does not have the job.
func planOf(p *plan.Plan, job string) *plan.Plan {
	out := *p
	out.Assignments, out.Jobs, out.Unplaced = nil, nil, nil
	for _, a := range p.Assignments {
		if a.Job == job {
			out.Assignments = append(out.Assignments, a)
		}
	}
	for _, j := range p.Jobs {
		if j.Job == job {
			out.Jobs = append(out.Jobs, j)
		}
	}
	for _, u := range p.Unplaced {
		if u.Job == job {
			out.Unplaced = append(out.Unplaced, u)
		}
	}
	if len(out.Jobs) == 0 && len(out.Unplaced) == 0 {
		return nil
	}
	return &out
}

func writePlan(w http.ResponseWriter, p *plan.Plan) {
	w.Header().Set("Content-Type", "application/json")
	// This fails only when the client has gone, so the error needs no report.
	_ = p.Write(w)
}

// statusOf returns the HTTP status of an error of a build or a plan.
func statusOf(err error) int {
	var invalid *InvalidError
	switch {
	case errors.As(err, &invalid):
		return http.StatusBadRequest
	case errors.Is(err, ErrBusy):
		return http.StatusConflict
	}
	return http.StatusBadGateway
}
