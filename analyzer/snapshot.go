package analyzer

import (
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/internal/fabric"
)

// LinkView represents one direction of a link, as the probes measure it now.
type LinkView struct {
	Link         string  `json:"link"`
	From         string  `json:"from"`
	To           string  `json:"to"`
	Edges        int     `json:"edges"`
	Degraded     int     `json:"degraded_edges"`
	AddedDelayNS *int64  `json:"added_delay_ns,omitempty"`
	LossRatio    float64 `json:"loss_ratio"`
}

// EdgeView represents one directed flow in its latest window.
type EdgeView struct {
	Obs       fabric.Observation `json:"observation"`
	Condition string             `json:"condition"`
}

// Snapshot represents the state of the analyzer after a cycle.
type Snapshot struct {
	At time.Time `json:"at"`
	// Every is the time between two cycles, or 0 if it is unknown.
	Every      time.Duration            `json:"-"`
	Report     fabric.Report            `json:"report"`
	Incidents  []Incident               `json:"incidents"` // newest first
	Links      []LinkView               `json:"links"`
	Edges      []EdgeView               `json:"-"`
	Paths      map[fabric.PathState]int `json:"paths"`
	PathMap    uint64                   `json:"path_map_version"`
	Hosts      map[string]string        `json:"hosts,omitempty"`
	Floods     []evidence.Flood         `json:"floods,omitempty"` // of packets with a forged HMAC
	Baselines  int                      `json:"baselines"`
	Expected   int                      `json:"expected_edges"`
	Pending    int                      `json:"pending_edges"`
	CycleError string                   `json:"cycle_error,omitempty"`
	// Maintenance lists the present and future maintenance windows.
	Maintenance []maintenance.Window `json:"maintenance,omitempty"`
	// Queries describes which flows this cycle queried. Nil means that every cycle queries all flows.
	Queries *QueryStats `json:"asking,omitempty"`
	// Scopes has the states of the whole fabric, of its parts and of jobs, in this order.
	Scopes []Scope `json:"scopes"`
	// Warnings has the warnings of Prometheus about incomplete responses.
	Warnings []string `json:"warnings,omitempty"`
	// ClockOffsetNS is how far the clock of Prometheus is ahead of the analyzer's, in nanoseconds.
	ClockOffsetNS int64 `json:"prometheus_clock_offset_ns"`

	// Placed has the placements of jobs. Nil means that they are unknown.
	Placed *jobs.Map `json:"-"`
}

// Snapshot returns the state after the last cycle.
func (l *Loop) Snapshot() Snapshot {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.snap
}

func (l *Loop) publishSnapshot(rep fabric.Report, findings []judge.Finding, v *carriedFlows, w evidence.Window, running *jobs.Map, pending, expected int, now time.Time) {
	snap := Snapshot{At: now, Every: l.opts.cycleInterval(), Report: rep, Paths: l.store.StateCounts(), PathMap: l.store.Version(), Hosts: w.Hosts, Floods: w.Floods, Expected: expected, Pending: pending,
		Maintenance: l.opts.Maintenance.CurrentWindows(now), Warnings: w.Warnings, ClockOffsetNS: int64(w.ClockOffset)}
	if l.opts.TwoSteps.MinFlows > 0 {
		asking := l.planner.stats
		snap.Queries = &asking
	}
	for _, m := range l.flowRecords {
		if m.baseline != nil {
			snap.Baselines++
		}
	}
	snap.Report.Verdicts = []fabric.Verdict{}
	for i := len(l.openIncidents) - 1; i >= 0; i-- {
		snap.Incidents = append(snap.Incidents, *l.openIncidents[i])
		snap.Report.Verdicts = append(snap.Report.Verdicts, l.openIncidents[i].Verdict)
	}
	for i := len(l.pastIncidents) - 1; i >= 0; i-- {
		snap.Incidents = append(snap.Incidents, *l.pastIncidents[i])
	}
	switch {
	case len(l.openIncidents) > 0:
		snap.Report.State = fabric.Suspect
	case rep.State == fabric.Suspect || snap.Baselines+l.excludedWithoutBaseline() < expected:
		snap.Report.State = fabric.InsufficientEvidence
	}
	snap.Links = l.linkViews(rep, findings, v)
	snap.Placed = running
	snap.Scopes = l.evaluateScopes(&snap, findings, running)
	for i := range findings {
		snap.Edges = append(snap.Edges, EdgeView{Obs: *findings[i].Obs, Condition: l.conditionLabel(&findings[i])})
	}
	l.mu.Lock()
	l.snap = snap
	l.mu.Unlock()
}

func (l *Loop) conditionLabel(f *judge.Finding) string {
	switch {
	case l.excluded.excludesFlow(f.Flow):
		return "maintenance"
	case f.Obs.Unread:
		return "unread"
	case f.HostSuspect:
		return "host_suspect"
	case f.ClockSuspect:
		return "clock_suspect"
	case f.Condition == judge.Degraded:
		return "degraded"
	case f.Condition == judge.Healthy:
		return "healthy"
	}
	return "undecided"
}

// linkViews returns a view of every directed link of the topology.
func (l *Loop) linkViews(rep fabric.Report, findings []judge.Finding, v *carriedFlows) []LinkView {
	at := map[fabric.Direction]*LinkView{}
	var order []fabric.Direction
	for _, link := range l.store.Graph().Topo.Links {
		for _, d := range []fabric.Direction{{From: link.A, To: link.B}, {From: link.B, To: link.A}} {
			at[d] = &LinkView{Link: link.ID(), From: d.From, To: d.To, Edges: v.crossingCount(d)}
			order = append(order, d)
		}
	}
	clean := map[fabric.Direction]bool{}
	for i := range findings {
		f := &findings[i]
		if f.Condition == judge.Undecided {
			continue
		}
		src, dst := f.Flow.Endpoints()
		for _, d := range f.Obs.Path.LinkDirections(src, dst) {
			v := at[d]
			if v == nil {
				continue
			}
			v.Edges++
			if f.Condition == judge.Degraded {
				v.Degraded++
			}
			if f.HasShift {
				clean[d] = true
			}
		}
	}
	for d, view := range at {
		clean[d] = clean[d] || view.Edges > 0 && v.crossingCount(d) > 0
	}
	for d, yes := range clean {
		if !yes {
			continue
		}
		var zero int64
		at[d].AddedDelayNS = &zero
	}
	for _, x := range rep.LinkDelays {
		if d, err := fabric.ParseDirection(x.Direction); err == nil && at[d] != nil {
			ns := x.AddedDelayNS
			at[d].AddedDelayNS = &ns
		}
	}
	for _, v := range rep.Verdicts {
		if v.Symptom.LossRatio == 0 {
			continue
		}
		for d, view := range at {
			if v.Direction == d.String() || v.Direction == "" && v.Kind == fabric.KindLink && v.Element.ID == view.Link {
				view.LossRatio = v.Symptom.LossRatio
			}
		}
	}
	out := make([]LinkView, 0, len(order))
	for _, d := range order {
		out = append(out, *at[d])
	}
	return out
}
