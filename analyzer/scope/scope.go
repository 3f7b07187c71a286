// Package scope judges the parts of the fabric: planes, pods, and the paths of jobs.
package scope

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evaluate"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Scope represents the state of a part of the fabric, or of the network for a job. Rules:
//
//  1. A plane or pod consists of its switches with all their cables, and of the flows from or to
//     its NICs. A job consists of all paths that its packets may take. A flow from or to its NICs
//     is evidence about the job if it stays on these paths. An analyzer of a part of the fabric judges the links
//     of the part alone: it has the scopes of its pods, and of the jobs that may cross its links.
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
	// JobPrefix begins the names of the scopes of jobs.
	JobPrefix = "job_name:"
)

// tally counts the links and flows of a scope.
type tally struct {
	Scope
	directions, crossed     int
	usable, withoutBaseline int // decided flows with a path; flows without a baseline
}

// Link is a directed link, and whether decided flows cover it.
type Link struct {
	Direction fabric.Direction
	Covered   bool
}

// Index has the planes and pods of the NICs and switches of a graph, so that they are not looked up for each flow in each
// cycle.
type Index struct {
	Graph  *fabric.Graph
	part   *fabric.Part
	names  []string         // of scopes
	scopes map[string][]int // by NIC, with those of its leaf, and by switch
}

// NewIndex returns the index of a graph, of which some part is published. Nil means all of it. A part has the scopes of its
// pods alone: it has no state of a whole plane.
func NewIndex(g *fabric.Graph, part *fabric.Part) *Index {
	x := &Index{Graph: g, part: part, scopes: map[string][]int{}}
	ids := map[string]int{}
	add := func(of string, ends ...string) {
		for _, name := range scopesOf(g, ends...) {
			if pod, ok := strings.CutPrefix(name, scopePod); part != nil && (!ok || !part.HasPod(pod)) {
				continue
			}
			id, known := ids[name]
			if !known {
				id = len(x.names)
				ids[name], x.names = id, append(x.names, name)
			}
			x.scopes[of] = append(x.scopes[of], id)
		}
	}
	for _, nic := range g.NICIDs() {
		add(nic, nic, g.PeerOf(nic))
	}
	for i := range g.Topo.Switches {
		add(g.Topo.Switches[i].Name, g.Topo.Switches[i].Name)
	}
	return x
}

// at returns the scopes of a NIC or of the switch of a port.
func (x *Index) at(end string) []int {
	if fabric.IsNIC(end) {
		return x.scopes[end]
	}
	return x.scopes[fabric.OwnerOf(end)]
}

// Input is what a cycle knows about the fabric.
type Input struct {
	Index *Index
	Cycle int
	// Report has the state, the coverage and the number of flows of the whole fabric.
	Report    *fabric.Report
	Links     []Link
	Findings  []judge.Finding
	Open      []*incident.Incident
	Jobs      *jobs.Map // nil if placements are unknown
	Baselines *baseline.Book
	Planner   *selection.Planner
	Excluder  *maintenance.Excluder
}

// tallies are the counts of the planes and pods, by their place in the index, and of the jobs, by name.
type tallies struct {
	parts []tally
	jobs  map[string]*tally
}

// ofJob returns the counts of a job.
func (all *tallies) ofJob(name string) *tally {
	t := all.jobs[name]
	if t == nil {
		t = &tally{Scope: Scope{Scope: JobPrefix + name}}
		all.jobs[name] = t
	}
	return t
}

// eachOf calls count with the counts of each scope of two lists.
func (all *tallies) eachOf(a, b []int, count func(*tally)) {
	for _, id := range a {
		count(&all.parts[id])
	}
	for _, id := range b {
		if !slices.Contains(a, id) {
			count(&all.parts[id])
		}
	}
}

// eachPart calls count with the counts of each scope that one of two ends belongs to.
func (all *tallies) eachPart(x *Index, a, b string, count func(*tally)) {
	all.eachOf(x.at(a), x.at(b), count)
}

// EvaluateScopes returns the scopes: first the whole fabric, then the planes, the pods and the jobs.
func EvaluateScopes(in *Input) []Scope {
	all := tallies{parts: make([]tally, len(in.Index.names)), jobs: map[string]*tally{}}
	for id, name := range in.Index.names {
		all.parts[id].Scope.Scope = name
	}
	all.countLinks(in)
	all.countFlows(in)
	var counted []*tally
	for id := range all.parts {
		if t := &all.parts[id]; t.directions+t.Flows > 0 {
			counted = append(counted, t)
		}
	}
	for t := range maps.Values(all.jobs) {
		if in.Index.part == nil || t.directions > 0 {
			counted = append(counted, t)
		}
	}
	slices.SortFunc(counted, func(a, b *tally) int { return cmp.Compare(a.Scope.Scope, b.Scope.Scope) })
	out := []Scope{wholeFabric(in)}
	for _, t := range counted {
		out = append(out, t.finishScope(blamingIncidents(in.Open, func(x *incident.Incident) bool { return concernsScope(in.Index.Graph, x, t.Scope.Scope) })))
	}
	return out
}

// wholeFabric returns the scope of the whole fabric, whose state the report has.
func wholeFabric(in *Input) Scope {
	whole := Scope{Scope: scopeFabric, State: in.Report.State, Coverage: in.Report.Coverage, Flows: in.Report.Edges.Total, Degraded: in.Report.Edges.Degraded}
	for i := range in.Findings {
		if f := &in.Findings[i]; f.Condition == judge.Healthy && in.Index.part.OwnsFlow(f.Flow) {
			whole.Clean++
		}
	}
	if in.Planner.IsEnabled() {
		whole.Clean += in.Planner.CycleStats().CarriedFlows
	}
	whole.Why = stateReason(&whole, blamingIncidents(in.Open, func(*incident.Incident) bool { return true }))
	return whole
}

// countLinks counts the directed links of each scope, except those under maintenance.
func (all *tallies) countLinks(in *Input) {
	covered := map[fabric.Direction]bool{} // of jobs' links
	withJobs := len(in.Jobs.JobNames()) > 0
	for _, l := range in.Links {
		if withJobs {
			covered[l.Direction] = l.Covered
		}
		if !in.Excluder.ExcludesDirection(l.Direction) {
			all.eachPart(in.Index, l.Direction.From, l.Direction.To, func(t *tally) { t.countDirection(l.Covered) })
		}
	}
	for _, name := range in.Jobs.JobNames() {
		t := all.ofJob(name)
		for d := range in.Jobs.DirectionsOf(name) {
			crossed, owned := covered[d]
			if (owned || in.Index.part == nil) && !in.Excluder.ExcludesDirection(d) {
				t.countDirection(crossed)
			}
		}
	}
}

// countFlows counts the expected flows of each scope, except those under maintenance.
func (all *tallies) countFlows(in *Input) {
	findingOf := make(map[fabric.Flow]*judge.Finding, len(in.Findings))
	for i := range in.Findings {
		findingOf[in.Findings[i].Flow] = &in.Findings[i]
	}
	jobsOf := map[string][]string{} // by NIC
	for _, name := range in.Jobs.JobNames() {
		for _, nic := range in.Jobs.NICsOf(name) {
			jobsOf[nic] = append(jobsOf[nic], name)
		}
	}
	if in.remembersAll() {
		all.countRemembered(in, findingOf, jobsOf)
		return
	}
	for e, learnt := range in.Baselines.ExpectedFlows(in.Cycle) {
		if in.Excluder.ExcludesFlow(e) {
			continue
		}
		x := flowEvidence{finding: findingOf[e], hasBaseline: learnt}
		if x.finding == nil {
			x.carried, x.hasPath = in.Planner.IsCarried(e)
		}
		src, dst := e.Endpoints()
		all.countFlow(in, &e, &x, in.Index.at(src), in.Index.at(dst), jobsOf[src], jobsOf[dst])
	}
}

// remembersAll reports whether the planner remembers every flow with a baseline, as it does after a round.
func (in *Input) remembersAll() bool {
	if !in.Planner.IsEnabled() || in.Planner.QueriesAll() {
		return false
	}
	return in.Planner.HasAllOf(in.Baselines)
}

// countRemembered counts the flows that the planner remembers, which are the expected ones. Nothing is looked up for a flow
// that was not queried, since a large fleet has hundreds of thousands of them.
func (all *tallies) countRemembered(in *Input, findingOf map[fabric.Flow]*judge.Finding, jobsOf map[string][]string) {
	names := in.Planner.NICNames()
	scopes, jobs := make([][]int, len(names)), make([][]string, len(names))
	sets := make([]int32, len(names)) // the numbers of the same scopes
	numbers := map[string]int32{}
	var key []byte
	for i, nic := range names {
		scopes[i], jobs[i] = in.Index.at(nic), jobsOf[nic]
		key = key[:0]
		for _, id := range scopes[i] {
			key = binary.AppendVarint(key, int64(id))
		}
		n, known := numbers[string(key)]
		if !known {
			n = int32(len(numbers))
			numbers[string(key)] = n
		}
		sets[i] = n
	}
	// alike are flows between the same scopes, counted by what is known of them.
	type alike struct {
		src, dst []int
		counts   [8]int
	}
	between := make([]map[int32]*alike, len(numbers))
	for i := range between {
		between[i] = map[int32]*alike{}
	}
	for v := range in.Planner.EachFlow(in.Cycle) {
		if in.Excluder.ExcludesFlow(*v.Flow) {
			continue
		}
		x := flowEvidence{hasBaseline: v.Learnt, carried: v.Carried, hasPath: v.HasPath}
		if v.Queried {
			x.finding = findingOf[*v.Flow]
		}
		if x.finding != nil || len(jobs[v.Src])+len(jobs[v.Dst]) > 0 {
			all.countFlow(in, v.Flow, &x, scopes[v.Src], scopes[v.Dst], jobs[v.Src], jobs[v.Dst])
			continue
		}
		like := between[sets[v.Src]][sets[v.Dst]]
		if like == nil {
			like = &alike{src: scopes[v.Src], dst: scopes[v.Dst]}
			between[sets[v.Src]][sets[v.Dst]] = like
		}
		like.counts[x.number()]++
	}
	for _, row := range between {
		for like := range maps.Values(row) {
			for number, n := range like.counts {
				x := evidenceOf(number)
				all.eachOf(like.src, like.dst, func(t *tally) { t.countFlows(&x, n, true) })
			}
		}
	}
}

// countFlow counts a flow for the scopes and the jobs of its ends.
func (all *tallies) countFlow(in *Input, e *fabric.Flow, x *flowEvidence, srcScopes, dstScopes []int, srcJobs, dstJobs []string) {
	all.eachOf(srcScopes, dstScopes, func(t *tally) { t.countFlows(x, 1, true) })
	if len(srcJobs)+len(dstJobs) == 0 {
		return
	}
	src, dst := e.Endpoints()
	for _, name := range unionOf(srcJobs, dstJobs) {
		all.ofJob(name).countFlows(x, 1, x.finding == nil || staysWithin(in.Jobs.DirectionsOf(name), x.finding.Obs.Path, src, dst))
	}
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
			add(scopePod, s.PodName())
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

// flowEvidence represents what a cycle knows about a flow.
type flowEvidence struct {
	finding     *judge.Finding // nil if it has none in this cycle
	hasBaseline bool
	// carried means that the flow was not queried and is known to be healthy, and hasPath that its path is known.
	carried, hasPath bool
}

// number returns a number from 0 to 7 for evidence without a finding. evidenceOf returns the evidence of a number.
func (x *flowEvidence) number() (n int) {
	for i, is := range [...]bool{x.hasBaseline, x.carried, x.hasPath} {
		if is {
			n |= 1 << i
		}
	}
	return n
}

func evidenceOf(number int) flowEvidence {
	return flowEvidence{hasBaseline: number&1 != 0, carried: number&2 != 0, hasPath: number&4 != 0}
}

// countFlows counts n flows of the same evidence. inside reports whether they stay on the links of a job: a degraded flow that
// leaves them is not counted.
func (t *tally) countFlows(x *flowEvidence, n int, inside bool) {
	t.Flows += n
	if !x.hasBaseline {
		t.withoutBaseline += n
	}
	f := x.finding
	switch {
	case f == nil && x.carried:
		t.Clean += n
		if x.hasPath {
			t.usable += n
		}
		return
	case f == nil || f.Condition == judge.Undecided:
		return
	case f.Condition == judge.Healthy:
		t.Clean += n
	case inside:
		t.Degraded += n
	}
	if len(f.Obs.Path) > 0 {
		t.usable += n
	}
}

func (t *tally) finishScope(blame []*incident.Incident) Scope {
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
	case s.Degraded == 0 && t.withoutBaseline == 0 && s.Coverage.Links >= evaluate.MinLinkCoverage && s.Coverage.Edges >= evaluate.MinEdgeCoverage:
		s.State = fabric.Innocent
	default:
		s.State = fabric.InsufficientEvidence
	}
	s.Why = stateReason(&s, blame)
	return s
}

// WithoutEvidence returns the scopes for a cycle without evidence. Suspect scopes stay suspect, and none is innocent.
func WithoutEvidence(all []Scope) []Scope {
	out := slices.Clone(all)
	for i := range out {
		s := &out[i]
		s.Coverage, s.Clean, s.Degraded = fabric.Coverage{}, 0, 0
		if s.State == fabric.Innocent {
			s.State = fabric.InsufficientEvidence
		}
		if s.State != fabric.Suspect {
			s.Why = "insufficient evidence: " + incident.NoEvidence
		}
	}
	return out
}

// stateReason returns the reason for a scope's state, in words.
func stateReason(s *Scope, blame []*incident.Incident) string {
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
func blamingIncidents(open []*incident.Incident, keep func(*incident.Incident) bool) (out []*incident.Incident) {
	for _, in := range open {
		if incident.BlamesNetwork(&in.Verdict) && keep(in) {
			out = append(out, in)
		}
	}
	slices.SortStableFunc(out, func(a, b *incident.Incident) int { return cmp.Compare(b.Confidence, a.Confidence) })
	return out
}

// concernsScope reports whether the element of an incident is in a scope.
func concernsScope(g *fabric.Graph, in *incident.Incident, scope string) bool {
	if name, ok := strings.CutPrefix(scope, JobPrefix); ok {
		return slices.Contains(in.Jobs, name)
	}
	if name, ok := strings.CutPrefix(scope, scopePlane); ok && in.Plane == name {
		return true
	}
	return slices.Contains(scopesOf(g, placesOf(g, in.Element)...), scope)
}

// placesOf returns the ends and switches of an element, and the far end of a NIC or port.
func placesOf(g *fabric.Graph, e fabric.Element) []string {
	switch e.Kind {
	case fabric.KindNIC, fabric.KindClock, fabric.KindPort:
		return []string{e.ID, g.PeerOf(e.ID)}
	case fabric.KindLink, fabric.KindAccessLink, fabric.KindQueue:
		return e.Ends()
	case fabric.KindPair, fabric.KindCorridor:
		return e.Waypoints()
	}
	return []string{e.ID}
}
