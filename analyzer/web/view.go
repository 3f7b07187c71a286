package web

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/asking"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// staleAfter is the age from which the last cycle is stale, unless staleCycles cycles take
// longer.
const (
	staleAfter  = 5 * time.Second
	staleCycles = 3
)

// What the page lists at most.
const (
	maxOpen    = 50
	maxHistory = 50
	maxEdges   = 100
	maxRows    = 30
	maxHosts   = 20
	maxFloods  = 8
	// maxCandidates bounds the elements without a verdict.
	maxCandidates = 8
)

type query struct {
	src, dst, pod, job, dscp, routing string
	// refused says why the client may not make agents send packets; empty if it may.
	refused string
}

// view holds everything that the templates show.
type view struct {
	Title string
	// Pages are the links to the other pages.
	Pages  []pageLink
	Banner banner
	Fabric drawing
	// Discovered reports whether switches stand for networks of which nothing else is known.
	Discovered bool
	Open       []verdictView
	OpenTotal  int
	History    []verdictView
	PastTotal  int
	Timeline   timeline
	// Waits lists what jobs wait for, if collectives are followed.
	Waits     []waitRow
	WaitTotal int
	// Running is what the queue pairs of a job do. It is nil if no agents list them, or no job is known.
	Running *runningView
	// Scopes lists the parts of the fabric and the jobs. Those that are not innocent come first.
	Scopes     []scopeRow
	ScopeTotal int
	// Shards lists the other parts of the fabric, of which other analyzers are responsible.
	Shards  []shardRow
	Subnets []subnetRow
	// Audit is the latest audit. It is nil if there is no report of audits.
	Audit      *auditView
	Candidates []candidateRow
	// Maintenance lists the elements under maintenance, with the owner and the end of the work.
	Maintenance []string
	// UnreadWindows lists the sources of windows that cannot be read, with the reason.
	UnreadWindows []string
	Links         []linkRow
	LinkTotal     int
	Edges         []edgeRow
	EdgeTotal     int
	Lookup        lookup
}

type banner struct {
	State, Icon string // State is suspect, innocent, insufficient
	Head        string
	More        []string // further suspects, or the reasons why the evidence is insufficient
	Coverage    string
	Stale       string
	CycleError  string
	At, Age     string
}

type verdictView struct {
	incident.Incident
	Level, Symptom, ConfidenceText string
	From, To, Where                string
	Since, Until, Lasted           string
	Equivalents                    []string
	WouldSplit, Asked              []string
	Bottleneck                     string
	Asks                           []promQuery
	Page                           string // the address of its own page, or ""
}

type candidateRow struct {
	Element, Kind, Probability, Flows string
	WouldSplit                        []string
}

type scopeRow struct{ Scope, State, Clean, Degraded, Coverage, Why string }

type linkRow struct {
	From, To, Delay, Loss string
	Edges, Degraded       string
}

type edgeRow struct {
	Edge, Src, Dst, Condition      string
	P50, P99, Base50, Base99, Loss string
	Path, PathState                string
	Asks                           []promQuery
}

func (h *Handler) buildView(s snapshot.Snapshot, now time.Time, q query) view {
	v := view{Title: h.title(), Pages: h.pageLinks("", "")}
	open := openIncidents(s.Incidents)
	past := slices.DeleteFunc(slices.Clone(s.Incidents), func(in incident.Incident) bool { return in.Open })
	v.Banner = newBanner(s, open, now)
	v.Fabric = h.drawFabric(s, open, q.pod)
	v.Discovered = slices.ContainsFunc(h.Store.Graph().Topo.Switches, func(s fabric.Switch) bool { return s.Discovered })
	v.OpenTotal, v.PastTotal = len(open), len(past)
	planner := asking.NewPlanner(h.Store.Graph())
	for _, in := range open[:min(len(open), maxOpen)] {
		if len(in.SameFlowEquivalents) > 0 {
			in.Verdict = planner.AddVerdictMeasurements([]fabric.Verdict{in.Verdict})[0]
		}
		open := newVerdict(in, now)
		open.Page = h.pageOf(in.ID)
		open.Asks = h.promQueries(report.ElementQueries(in.Element))
		v.Open = append(v.Open, open)
	}
	for _, in := range past[:min(len(past), maxHistory)] {
		closed := newVerdict(in, now)
		closed.Page = h.pageOf(in.ID)
		v.History = append(v.History, closed)
	}
	for i := range s.Maintenance {
		w := &s.Maintenance[i]
		from := ""
		if w.From.After(now) {
			from = " from " + clockTime(w.From)
		}
		v.Maintenance = append(v.Maintenance, w.Element+from+": "+w.String()+" ("+w.Source+")")
	}
	for _, state := range s.MaintenanceSources {
		if !state.Up {
			v.UnreadWindows = append(v.UnreadWindows, state.String())
		}
	}
	v.Candidates = h.candidateRows(s.Report.Candidates)
	v.Timeline = newTimeline(s.Incidents, s.At, h.pageOf)
	v.Scopes, v.ScopeTotal = scopeRows(s.Scopes)
	v.Running = h.buildRunning(s.JobNames(), q, now)
	if h.Collectives != nil {
		state := h.Collectives()
		v.Waits, v.WaitTotal = waitRows(&state)
	}
	v.Shards = shardRows(&s)
	if h.Subnets != nil {
		v.Subnets = subnetRows(h.Subnets(), now)
	}
	if h.Audit != nil {
		v.Audit = newAuditView(h.Audit(now), now)
	}
	v.Links, v.LinkTotal = linkRows(s.Links)
	v.Edges, v.EdgeTotal = h.edgeRows(s.Edges)
	v.Lookup = h.lookUpFlows(s, q)
	return v
}

// candidateRows returns the likeliest candidates, with the measurements that would show more of them.
func (h *Handler) candidateRows(of []fabric.Candidate) (out []candidateRow) {
	if len(of) == 0 {
		return nil
	}
	for _, c := range asking.NewPlanner(h.Store.Graph()).AddMeasurements(of[:min(len(of), maxCandidates)]) {
		row := candidateRow{Element: c.ID, Kind: strings.ReplaceAll(string(c.Kind), "_", " "), Probability: formatPercent(c.Probability), Flows: formatCount(c.Edges)}
		if from, to, ok := directionOwners(c.Direction); ok {
			row.Element += ", from " + from + " to " + to
		}
		for i := range c.WouldSplit {
			row.WouldSplit = append(row.WouldSplit, c.WouldSplit[i].String())
		}
		out = append(out, row)
	}
	return out
}

// compareStrength orders incidents: fresh ones before held ones, then by severity, then by confidence.
func compareStrength(a, b incident.Incident) int {
	weight := func(in incident.Incident) int {
		w := map[string]int{fabric.SeverityWarning: 1, fabric.SeverityCritical: 2}[in.Severity]
		if in.Held == "" {
			w += 10
		}
		return w
	}
	return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(b.Confidence, a.Confidence))
}

func newBanner(s snapshot.Snapshot, open []incident.Incident, now time.Time) banner {
	b := banner{At: clockTime(s.At), CycleError: s.CycleError}
	c := s.Report.Coverage
	b.Coverage = fmt.Sprintf("Evidence covers %s of the link directions and %s of %s.",
		formatPercent(c.Links), formatPercent(c.Edges), pluralCount(s.Report.Edges.Total, "flow", "flows"))
	if n := s.Report.Paths.Sprayed; n > 0 {
		b.Coverage += fmt.Sprintf(" Switches spray the packets of %s.", pluralCount(n, "flow", "flows"))
	}
	var notes []incident.Incident // which blame nothing, and may stand for as long as the fabric is so
	open, notes = separateNotes(open)
	switch {
	case len(open) > 0:
		b.State, b.Icon = "suspect", "!"
		b.Head = suspectLine(open[0])
		for _, in := range open[1:min(len(open), 5)] {
			b.More = append(b.More, suspectLine(in))
		}
		if len(open) > 5 {
			b.More = append(b.More, "and "+formatCount(len(open)-5)+" more, listed below")
		}
	case s.Report.State == fabric.Innocent:
		b.State, b.Icon, b.Head = "innocent", "✓", "The network is innocent"
	default:
		b.State, b.Icon, b.Head = "insufficient", "?", "Insufficient evidence"
		b.More = missingEvidence(s)
	}
	for i := range notes[:min(len(notes), maxNotes)] {
		b.More = append(b.More, "For information: "+notes[i].Summary)
	}
	for _, f := range s.Floods[:min(len(s.Floods), maxFloods)] {
		b.More = append(b.More, f.String())
	}
	for _, f := range s.Signals {
		b.More = append(b.More, f.Text)
	}
	b.addShards(&s)
	switch old := now.Sub(s.At); {
	case s.At.IsZero():
		b.State, b.Icon, b.Head, b.Coverage = "insufficient", "?", "Insufficient evidence", ""
		b.More = []string{"the analyzer has not finished a cycle yet"}
	case old > max(staleAfter, staleCycles*s.Every):
		b.Age = formatAge(old)
		b.Stale = "STALE: the last cycle ended " + formatAge(old) + " ago. The data below may be outdated."
		b.Head = "Last known: " + b.Head
	default:
		b.Age = formatAge(old)
	}
	return b
}

// maxNotes bounds the incidents for information that the banner has. The list below it has all.
const maxNotes = 2

// separateNotes separates the incidents that are for information only from the others.
func separateNotes(all []incident.Incident) (blaming, notes []incident.Incident) {
	for i := range all {
		if all[i].IsInformation() {
			notes = append(notes, all[i])
		} else {
			blaming = append(blaming, all[i])
		}
	}
	return blaming, notes
}

func suspectLine(in incident.Incident) string {
	out := "Suspect: " + in.Element.ID
	if s := formatSymptom(in.Symptom); s != "" {
		out += ", " + s
	} else if in.Scenario != "" {
		out += ", " + strings.ReplaceAll(string(in.Scenario), "_", " ")
	}
	if from, to, ok := directionOwners(in.Direction); ok {
		out += " from " + from + " to " + to
	}
	if in.Held != "" {
		out += " (held open)"
	}
	return out
}

// missingEvidence returns the reasons why the evidence is insufficient.
func missingEvidence(s snapshot.Snapshot) []string {
	var out []string
	if s.Baselines < s.Expected {
		out = append(out, fmt.Sprintf("baselines are known for %s of %s flows", formatCount(s.Baselines), formatCount(s.Expected)))
	}
	e := s.Report.Edges
	if e.Degraded > 0 {
		out = append(out, pluralCount(e.Degraded, "flow is", "flows are")+" degraded, and no single element has explained this for long enough yet")
	}
	if s.Pending > 0 {
		out = append(out, pluralCount(s.Pending, "flow waits", "flows wait")+" for more windows to confirm a change")
	}
	if e.UnknownPath > 0 {
		out = append(out, pluralCount(e.UnknownPath, "flow has", "flows have")+" no known path")
	}
	if e.ClockSuspect > 0 {
		out = append(out, pluralCount(e.ClockSuspect, "flow is", "flows are")+" excluded because a clock is not trusted")
	}
	if e.Unread > 0 {
		out = append(out, pluralCount(e.Unread, "flow is", "flows are")+" excluded because a NIC drops packets before it reads them")
	}
	if n := e.HostSuspect - e.Unread; n > 0 {
		out = append(out, pluralCount(n, "flow is", "flows are")+" excluded because a host is not trusted")
	}
	if len(s.Hosts) > 0 {
		names := make([]string, 0, len(s.Hosts))
		for name, why := range s.Hosts {
			names = append(names, name+" ("+why+")")
		}
		slices.SortFunc(names, fabric.CompareNatural)
		more := ""
		if len(names) > maxHosts {
			more = " and " + formatCount(len(names)-maxHosts) + " more"
			names = names[:maxHosts]
		}
		out = append(out, pluralCount(len(s.Hosts), "host provides", "hosts provide")+" no evidence: "+strings.Join(names, ", ")+more)
	}
	return out
}

func newVerdict(in incident.Incident, now time.Time) verdictView {
	v := verdictView{Incident: in, Level: "suspect", Symptom: cmp.Or(formatSymptom(in.Symptom), absent), ConfidenceText: formatPercent(in.Confidence),
		Since: clockTime(in.FirstSeen), Lasted: formatAge(now.Sub(in.FirstSeen))}
	if in.Held != "" {
		v.Level = "held"
	}
	v.Bottleneck = formatBottleneck(in.Attribution)
	if d, err := fabric.ParseDirection(in.Direction); err == nil {
		v.From, v.To = d.From, d.To
	}
	var where []string
	if in.Tier > 0 {
		where = append(where, fmt.Sprintf("tier %d", in.Tier))
	}
	for _, p := range [][2]string{{"plane", in.Plane}, {"class", in.Class}} {
		if p[1] != "" {
			where = append(where, p[0]+" "+p[1])
		}
	}
	v.Where = cmp.Or(strings.Join(where, ", "), absent)
	for i := range in.WouldSplit {
		v.WouldSplit = append(v.WouldSplit, in.WouldSplit[i].String())
	}
	for i := range in.Evidence.Asked {
		v.Asked = append(v.Asked, in.Evidence.Asked[i].String())
	}
	for _, e := range in.Equivalent {
		v.Equivalents = append(v.Equivalents, strings.ReplaceAll(string(e.Kind), "_", " ")+" "+e.ID)
	}
	if in.Cleared != nil {
		v.Until = clockTime(*in.Cleared)
		v.Lasted = formatAge(in.Cleared.Sub(in.FirstSeen))
	}
	return v
}

// scopeRows returns the rows of all scopes except the first, the whole fabric, which the banner shows. The total counts
// also those beyond maxRows.
func scopeRows(all []scope.Scope) (rows []scopeRow, total int) {
	if len(all) < 2 {
		return nil, 0
	}
	parts := slices.Clone(all[1:])
	badness := map[fabric.State]int{fabric.Suspect: 0, fabric.InsufficientEvidence: 1, fabric.Innocent: 2}
	slices.SortStableFunc(parts, func(a, b scope.Scope) int {
		return cmp.Or(cmp.Compare(badness[a.State], badness[b.State]), fabric.CompareNatural(a.Scope, b.Scope))
	})
	for _, s := range parts[:min(len(parts), maxRows)] {
		rows = append(rows, scopeRow{s.Scope, strings.ReplaceAll(string(s.State), "_", " "), formatCount(s.Clean), formatCount(s.Degraded), formatPercent(s.Coverage.Edges), s.Why})
	}
	return rows, len(parts)
}

// linkRows returns the link directions that add delay or lose packets, the worst first.
func linkRows(links []snapshot.LinkView) (rows []linkRow, total int) {
	var out []snapshot.LinkView
	for _, l := range links {
		if l.LossRatio > 0 || l.AddedDelayNS != nil && *l.AddedDelayNS > 0 {
			out = append(out, l)
		}
	}
	ns := func(l snapshot.LinkView) int64 {
		if l.AddedDelayNS == nil {
			return 0
		}
		return *l.AddedDelayNS
	}
	slices.SortStableFunc(out, func(a, b snapshot.LinkView) int {
		return cmp.Or(cmp.Compare(b.LossRatio, a.LossRatio), cmp.Compare(ns(b), ns(a)))
	})
	for _, l := range out[:min(len(out), maxRows)] {
		rows = append(rows, linkRow{l.From, l.To, delayOr(l.AddedDelayNS), formatPercent(l.LossRatio), formatCount(l.Edges), formatCount(l.Degraded)})
	}
	return rows, len(out)
}

func (h *Handler) edgeRows(edges []snapshot.EdgeView) (rows []edgeRow, total int) {
	var out []*snapshot.EdgeView
	for i := range edges {
		if edges[i].Condition == snapshot.Degraded {
			out = append(out, &edges[i])
		}
	}
	loss := func(e *snapshot.EdgeView) float64 { r, _ := e.Obs.LossRatio(); return r }
	slices.SortStableFunc(out, func(a, b *snapshot.EdgeView) int {
		return cmp.Or(cmp.Compare(loss(b), loss(a)), cmp.Compare(medianShift(b), medianShift(a)))
	})
	for _, e := range out[:min(len(out), maxEdges)] {
		row := newEdge(e)
		if h.Prometheus != "" {
			row.Asks = h.promQueries(report.FlowQueries(e.Flow))
		}
		rows = append(rows, row)
	}
	return rows, len(out)
}

// medianShift returns by how many nanoseconds the median is above its baseline, or 0 when either is absent.
func medianShift(e *snapshot.EdgeView) int64 {
	if e.Obs.OWD == nil || e.Obs.OWD.P50 == nil || e.Obs.Baseline == nil || e.Obs.Baseline.P50 == nil {
		return 0
	}
	return *e.Obs.OWD.P50 - *e.Obs.Baseline.P50
}

func newEdge(e *snapshot.EdgeView) edgeRow {
	o := &e.Obs
	r := edgeRow{Edge: o.Edge, Src: o.Src, Dst: o.Dst, Condition: strings.ReplaceAll(string(e.Condition), "_", " "), Path: formatPath(o.Path),
		PathState: string(cmp.Or(o.PathState, fabric.PathUnknown)), P50: absent, P99: absent, Base50: absent, Base99: absent, Loss: absent}
	if o.OWD != nil {
		r.P50, r.P99 = delayOr(o.OWD.P50), delayOr(o.OWD.P99)
	}
	if o.Baseline != nil {
		r.Base50, r.Base99 = delayOr(o.Baseline.P50), delayOr(o.Baseline.P99)
	}
	if ratio, ok := o.LossRatio(); ok {
		r.Loss = formatPercent(ratio)
		if o.LossScope == fabric.LossRoundTrip {
			r.Loss += " (both ways)"
		}
	}
	return r
}
