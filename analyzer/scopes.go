package analyzer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// Scope represents the state of a part of the fabric, or of the network for a job. Rules:
//
//  1. A plane or pod consists of its switches with all their cables, and of the flows from or to
//     its NICs. A job consists of all paths that its packets may take. A flow from or to its NICs
//     is evidence about the job if it stays on these paths.
//  2. A scope is suspect while a verdict blames an element in it, or, for a job, an element that
//     it may cross. A starved host or a clock is not the network.
//  3. A scope is innocent if the decided flows cover enough of it, none of them is degraded, and
//     all flows have a baseline. Otherwise the evidence is insufficient.
type Scope struct {
	Scope    string          `json:"scope"` // fabric, plane:a, pod:p1, job_name:x
	State    fabric.State    `json:"state"`
	Coverage fabric.Coverage `json:"coverage"`
	// Flows is the number of expected flows. Clean and Degraded are the numbers of decided ones.
	Flows    int `json:"flows"`
	Clean    int `json:"clean"`
	Degraded int `json:"degraded"`
	// Why is the reason for the state, in words.
	Why string `json:"why"`
}

// Names of scopes.
const (
	scopeFabric = "fabric"
	scopePlane  = "plane:"
	scopePod    = "pod:"
	scopeJob    = "job_name:"
)

// tally counts the links and flows of a scope.
type tally struct {
	Scope
	directions, crossed     int
	usable, withoutBaseline int // decided flows with a path; flows without a baseline
	job                     string
}

// evaluateScopes returns the scopes: first the whole fabric, then the planes, the pods and the jobs.
func (l *Loop) evaluateScopes(snap *Snapshot, findings []judge.Finding, m *jobs.Map) []Scope {
	g := l.store.Graph()
	all := map[string]*tally{}
	at := func(name string) *tally {
		t := all[name]
		if t == nil {
			t = &tally{Scope: Scope{Scope: name}}
			all[name] = t
		}
		return t
	}
	for i := range snap.Links {
		v := &snap.Links[i]
		if l.excluded.excludesDirection(fabric.Direction{From: v.From, To: v.To}) {
			continue
		}
		for _, name := range scopesOf(g, v.From, v.To) {
			at(name).countDirection(v.Edges > 0)
		}
	}
	covered := map[fabric.Direction]bool{}
	for i := range snap.Links {
		covered[fabric.Direction{From: snap.Links[i].From, To: snap.Links[i].To}] = snap.Links[i].Edges > 0
	}
	of := map[string][]string{} // jobs by NIC
	for _, name := range m.JobNames() {
		t := at(scopeJob + name)
		t.job = name
		for d := range m.DirectionsOf(name) {
			if !l.excluded.excludesDirection(d) {
				t.countDirection(covered[d])
			}
		}
		for _, nic := range m.NICsOf(name) {
			of[nic] = append(of[nic], name)
		}
	}
	findingOf := make(map[fabric.Flow]*judge.Finding, len(findings))
	for i := range findings {
		findingOf[findings[i].Flow] = &findings[i]
	}
	for e, mem := range l.flowRecords {
		if l.cycle-mem.lastCycle > expectFor || l.excluded.excludesFlow(e) {
			continue
		}
		src, dst := e.Endpoints()
		f := findingOf[e]
		for _, name := range scopesOf(g, src, g.PeerOf(src), dst, g.PeerOf(dst)) {
			at(name).countFlow(f, mem, true)
		}
		for _, name := range unionOf(of[src], of[dst]) {
			at(scopeJob+name).countFlow(f, mem, f == nil || staysWithin(m.DirectionsOf(name), f.Obs.Path, src, dst))
		}
	}
	whole := Scope{Scope: scopeFabric, State: snap.Report.State, Coverage: snap.Report.Coverage, Flows: snap.Report.Edges.Total, Degraded: snap.Report.Edges.Degraded}
	for i := range findings {
		if findings[i].Condition == judge.Healthy {
			whole.Clean++
		}
	}
	if snap.Queries != nil {
		whole.Clean += snap.Queries.CarriedFlows
	}
	whole.Why = stateReason(&whole, blamingIncidents(l.openIncidents, func(*Incident) bool { return true }))
	out := []Scope{whole}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[name].finishScope(blamingIncidents(l.openIncidents, func(in *Incident) bool { return l.concernsScope(in, name) })))
	}
	return out
}

// scopesOf returns the planes and pods that ends belong to.
func scopesOf(g *fabric.Graph, ends ...string) (out []string) {
	add := func(kind, name string) {
		if s := kind + name; name != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	for _, end := range ends {
		if s := g.Switch(fabric.OwnerOf(end)); s != nil && !fabric.IsNIC(end) {
			add(scopePlane, s.Plane)
			add(scopePod, s.Pod)
		} else if n := g.NIC(end); n != nil {
			add(scopePlane, n.Plane)
		}
	}
	return out
}

// unionOf returns the union of two short lists.
func unionOf(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// staysWithin reports whether all links of a path are in a set of directed links.
func staysWithin(ways map[fabric.Direction]bool, p fabric.Path, src, dst string) bool {
	return !slices.ContainsFunc(p.LinkDirections(src, dst), func(d fabric.Direction) bool { return !ways[d] })
}

func (t *tally) countDirection(covered bool) {
	t.directions++
	if covered {
		t.crossed++
	}
}

// countFlow counts a flow. f is nil if the flow has no finding in this cycle, and its state may be carried forward
// then. inside reports whether the flow stays on the links of a job: a degraded flow that leaves them is not counted.
func (t *tally) countFlow(f *judge.Finding, m *flowRecord, inside bool) {
	t.Flows++
	if m.baseline == nil {
		t.withoutBaseline++
	}
	switch {
	case f == nil && m.state != nil && m.state.carried:
		t.Clean++
		if len(m.state.segments) > 0 {
			t.usable++
		}
		return
	case f == nil || f.Condition == judge.Undecided:
		return
	case f.Condition == judge.Healthy:
		t.Clean++
	case inside:
		t.Degraded++
	}
	if len(f.Obs.Path) > 0 {
		t.usable++
	}
}

func (t *tally) finishScope(blame []*Incident) Scope {
	s := t.Scope
	if t.directions > 0 {
		s.Coverage.Links = float64(t.crossed) / float64(t.directions)
	}
	if t.Flows > 0 {
		s.Coverage.Edges = float64(t.usable) / float64(t.Flows)
	}
	switch {
	case len(blame) > 0:
		s.State = fabric.Suspect
	case s.Degraded == 0 && t.withoutBaseline == 0 && s.Coverage.Links >= minLinkCoverage && s.Coverage.Edges >= minEdgeCoverage:
		s.State = fabric.Innocent
	default:
		s.State = fabric.InsufficientEvidence
	}
	s.Why = stateReason(&s, blame)
	return s
}

// scopesWithoutEvidence returns the scopes for a cycle without evidence. Suspect scopes stay suspect, and none is innocent.
func scopesWithoutEvidence(all []Scope) []Scope {
	out := slices.Clone(all)
	for i := range out {
		s := &out[i]
		s.Coverage, s.Clean, s.Degraded = fabric.Coverage{}, 0, 0
		if s.State == fabric.Innocent {
			s.State = fabric.InsufficientEvidence
		}
		if s.State != fabric.Suspect {
			s.Why = "insufficient evidence: " + noEvidenceReason
		}
	}
	return out
}

// stateReason returns the reason for a scope's state, in words.
func stateReason(s *Scope, blame []*Incident) string {
	evidence := fmt.Sprintf("flows with evidence cover %.0f %% of the link directions; %d of %d flows are clean and %d degraded", s.Coverage.Links*100, s.Clean, s.Flows, s.Degraded)
	switch {
	case len(blame) > 0:
		return fmt.Sprintf("%s (%s): %s", blame[0].Element.ID, blame[0].Scenario, evidence)
	case s.State == fabric.Innocent:
		return "no flow is degraded: " + evidence
	}
	return "insufficient evidence: " + evidence
}

// blamingIncidents returns the open incidents that blame the network and for which keep returns true, the most
// confident first.
func blamingIncidents(open []*Incident, keep func(*Incident) bool) (out []*Incident) {
	for _, in := range open {
		if blamesNetwork(&in.Verdict) && keep(in) {
			out = append(out, in)
		}
	}
	slices.SortStableFunc(out, func(a, b *Incident) int { return cmp.Compare(b.Confidence, a.Confidence) })
	return out
}

// concernsScope reports whether the element of an incident is in a scope.
func (l *Loop) concernsScope(in *Incident, scope string) bool {
	if name, ok := strings.CutPrefix(scope, scopeJob); ok {
		return slices.Contains(in.Jobs, name)
	}
	if name, ok := strings.CutPrefix(scope, scopePlane); ok && in.Plane == name {
		return true
	}
	g := l.store.Graph()
	var ends []string
	for _, way := range strings.Split(in.Element.ID, "->") {
		a, b, ok := fabric.SplitLink(way)
		if !ok {
			a, b = way, g.PeerOf(way)
		}
		ends = append(ends, a, b)
	}
	return slices.Contains(scopesOf(g, ends...), scope)
}

// JobView represents the state of the network for a job, with the evidence.
type JobView struct {
	Scope
	jobs.Placement
	NICs []string `json:"nics"`
	// Verdicts are the open verdicts on elements that the job may cross, and on its hosts and their clocks. The
	// latter do not blame the network.
	Verdicts []Incident `json:"verdicts"`
	// Before are past verdicts that affected the job, newest first, at most maxBefore.
	Before []Incident `json:"before"`
	// Peers are other jobs that share links with it. Clean ones are evidence for the shared links.
	Peers []PeerJob `json:"peers"`
	// Unknown is the number of nodes and NICs in all placements that the topology does not have.
	Unknown int `json:"unknown_nodes,omitempty"`
}

// PeerJob represents a job that shares links with another one.
type PeerJob struct {
	Job   string       `json:"job"`
	State fabric.State `json:"state"`
	// Shared is the number of directed links that both may cross. Accused is set if the peer may cross a blamed
	// element, too.
	Shared  int  `json:"shared_links"`
	Accused bool `json:"crosses_suspect"`
}

// Bounds of the lists in a JobView.
const (
	maxBefore = 20
	maxPeers  = 20
)

// JobNames returns the running jobs, or nil if no placement is known.
func (s *Snapshot) JobNames() []string { return s.Placed.JobNames() }

// FindJob returns the view of a job, which it finds by name or by the identifier of its scheduler. It reports false if
// there is no such job.
func (s *Snapshot) FindJob(name string) (JobView, bool) {
	p, ok := s.Placed.FindJob(name)
	if !ok {
		return JobView{}, false
	}
	v := JobView{Placement: p, NICs: s.Placed.NICsOf(p.Job), Verdicts: []Incident{}, Before: []Incident{}, Peers: []PeerJob{}, Unknown: s.Placed.Unknown}
	states := map[string]Scope{}
	for _, sc := range s.Scopes {
		states[sc.Scope] = sc
	}
	v.Scope = states[scopeJob+p.Job]
	own := s.Placed.DirectionsOf(p.Job)
	accused := map[string]bool{}
	for i := range s.Incidents {
		in := &s.Incidents[i]
		switch named := slices.Contains(in.Jobs, p.Job); {
		case in.Open && (named || in.Kind == fabric.KindClock && s.Placed.HasNIC(p.Job, in.Element.ID)):
			v.Verdicts = append(v.Verdicts, *in)
			for _, other := range in.Jobs {
				accused[other] = accused[other] || blamesNetwork(&in.Verdict)
			}
		case !in.Open && named && len(v.Before) < maxBefore:
			v.Before = append(v.Before, *in)
		}
	}
	for _, other := range s.Placed.JobNames() {
		shared := 0
		for d := range s.Placed.DirectionsOf(other) {
			if own[d] {
				shared++
			}
		}
		if other != p.Job && shared > 0 {
			v.Peers = append(v.Peers, PeerJob{Job: other, State: states[scopeJob+other].State, Shared: shared, Accused: accused[other]})
		}
	}
	slices.SortStableFunc(v.Peers, func(a, b PeerJob) int { return cmp.Compare(b.Shared, a.Shared) })
	v.Peers = v.Peers[:min(len(v.Peers), maxPeers)]
	return v, true
}
