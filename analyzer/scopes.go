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

// Scope is the answer for a part of the fabric, or for a job. Rules:
//
//  1. A plane and a pod are their switches with all cables at them, and the flows from or to
//     their NICs. A job is every way that its packets may take; a flow from or to its NICs
//     speaks of it as far as it stays on those.
//  2. A scope is suspect while a verdict blames something in it; of a job, something that it
//     may cross. A starved host or a clock is not the network.
//  3. It is innocent with enough coverage by flows that tell, none of them degraded, and all
//     of them with a baseline. Else the evidence does not suffice.
type Scope struct {
	Scope    string          `json:"scope"` // fabric, plane:a, pod:p1, job_name:x
	State    fabric.State    `json:"state"`
	Coverage fabric.Coverage `json:"coverage"`
	// Flows are those that should tell, Clean and Degraded those that do.
	Flows    int `json:"flows"`
	Clean    int `json:"clean"`
	Degraded int `json:"degraded"`
	// Why it is so, in words.
	Why string `json:"why"`
}

// Names of scopes.
const (
	scopeFabric = "fabric"
	scopePlane  = "plane:"
	scopePod    = "pod:"
	scopeJob    = "job_name:"
)

// tally is a scope that is being counted.
type tally struct {
	Scope
	directions, crossed     int
	usable, withoutBaseline int // flows that tell with a path; flows without a baseline
	job                     string
}

// evaluateScopes answers for the planes, the pods and the jobs, after all of the fabric.
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
	telling := map[fabric.Direction]bool{}
	for i := range snap.Links {
		telling[fabric.Direction{From: snap.Links[i].From, To: snap.Links[i].To}] = snap.Links[i].Edges > 0
	}
	of := map[string][]string{} // jobs by NIC
	for _, name := range m.JobNames() {
		t := at(scopeJob + name)
		t.job = name
		for d := range m.DirectionsOf(name) {
			if !l.excluded.excludesDirection(d) {
				t.countDirection(telling[d])
			}
		}
		for _, nic := range m.NICsOf(name) {
			of[nic] = append(of[nic], name)
		}
	}
	tells := make(map[fabric.Flow]*judge.Finding, len(findings))
	for i := range findings {
		tells[findings[i].Flow] = &findings[i]
	}
	for e, mem := range l.flowRecords {
		if l.cycle-mem.lastCycle > expectFor || l.excluded.excludesFlow(e) {
			continue
		}
		src, dst := e.Endpoints()
		f := tells[e]
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

// scopesOf lists the planes and pods that ends belong to.
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

// unionOf joins two short lists.
func unionOf(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// staysWithin reports whether a path stays on a job's ways.
func staysWithin(ways map[fabric.Direction]bool, p fabric.Path, src, dst string) bool {
	return !slices.ContainsFunc(p.LinkDirections(src, dst), func(d fabric.Direction) bool { return !ways[d] })
}

func (t *tally) countDirection(told bool) {
	t.directions++
	if told {
		t.crossed++
	}
}

// countFlow counts a flow; f is nil where it was not seen, and it may be vouched for. What leaves a
// job's ways says nothing of them when it is degraded.
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

// scopesWithoutEvidence are scopes without evidence: what is suspect stays so, nothing is innocent.
func scopesWithoutEvidence(all []Scope) []Scope {
	out := slices.Clone(all)
	for i := range out {
		s := &out[i]
		s.Coverage, s.Clean, s.Degraded = fabric.Coverage{}, 0, 0
		if s.State == fabric.Innocent {
			s.State = fabric.InsufficientEvidence
		}
		if s.State != fabric.Suspect {
			s.Why = "not enough is known: " + noEvidenceReason
		}
	}
	return out
}

// stateReason says in words what a scope's state rests on.
func stateReason(s *Scope, blame []*Incident) string {
	evidence := fmt.Sprintf("flows that tell cover %.0f %% of its ways; of %d flows %d are clean and %d degraded", s.Coverage.Links*100, s.Flows, s.Clean, s.Degraded)
	switch {
	case len(blame) > 0:
		return fmt.Sprintf("%s (%s): %s", blame[0].Element.ID, blame[0].Scenario, evidence)
	case s.State == fabric.Innocent:
		return "nothing in it stands out: " + evidence
	}
	return "not enough is known: " + evidence
}

// blamingIncidents are the open incidents that blame the network, of those that keep holds for, the
// surest first.
func blamingIncidents(open []*Incident, keep func(*Incident) bool) (out []*Incident) {
	for _, in := range open {
		if blamesNetwork(&in.Verdict) && keep(in) {
			out = append(out, in)
		}
	}
	slices.SortStableFunc(out, func(a, b *Incident) int { return cmp.Compare(b.Confidence, a.Confidence) })
	return out
}

// concernsScope reports whether an incident is about something in a scope.
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

// JobView is what is known of a job: whether the network is to blame, and by what evidence.
type JobView struct {
	Scope
	jobs.Placement
	NICs []string `json:"nics"`
	// Verdicts are the open ones on what it may cross, and on its hosts and their clocks, which
	// the network is not to blame for.
	Verdicts []Incident `json:"verdicts"`
	// Before are those of the past that named it, newest first, at most maxBefore.
	Before []Incident `json:"before"`
	// Peers are other jobs that share ways with it: those that are clean speak for what is shared.
	Peers []PeerJob `json:"peers"`
	// Unknown is how many nodes and NICs of all placements the topology does not have.
	Unknown int `json:"unknown_nodes,omitempty"`
}

// PeerJob is a job that shares ways with another one.
type PeerJob struct {
	Job   string       `json:"job"`
	State fabric.State `json:"state"`
	// Shared is how many directed links both may cross; Accused says that it may cross what is
	// blamed, too.
	Shared  int  `json:"shared_links"`
	Accused bool `json:"crosses_suspect"`
}

// What is told of one job at most.
const (
	maxBefore = 20
	maxPeers  = 20
)

// JobNames lists the jobs that run, nil where no placement is known.
func (s *Snapshot) JobNames() []string { return s.Placed.JobNames() }

// FindJob answers for a job, by its name or its scheduler's identifier.
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
