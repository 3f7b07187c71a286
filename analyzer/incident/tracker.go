package incident

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

const (
	// An element must be named in openAfter consecutive cycles (hardOpenAfter for a hard
	// failure) while few flows wait for confirmation, otherwise in openAnyway cycles (rule 1).
	openAfter, hardOpenAfter, openAnyway = 2, 1, 4
	// An element of chosen paths that all its flows show to be at fault, each for longer than a moment, must be named in
	// lastingOpenAfter cycles.
	lastingOpenAfter = 1
	// If no single flow is degraded, but many lost a little, the reason may be one burst.
	// The element must then be named for the time of several windows.
	softOpenAfter = 8
	// While flows without evidence could distinguish an element from its equivalents, a
	// verdict waits for so many cycles (rule 2). Routing may avoid a hard failure.
	distinguishCycles, hardDistinguishCycles = 8, 3
	// keepPast is the number of closed incidents that are kept.
	keepPast = 1000
)

// NoEvidence is the reason for which an incident is held while there is no evidence.
const NoEvidence = "no evidence is available at the moment"

// Options configure a Tracker.
type Options struct {
	Graph *fabric.Graph
	// Part is the part of the fabric whose incidents are published. Nil means all of it.
	Part     *fabric.Part
	Settings evidence.Settings
	// Causes finds why an element is at fault. Nil means that causes are not queried.
	Causes Causes
	// PageNICs is the blast radius above which a verdict that affects no job is critical. 0
	// means DefaultPageNICs.
	PageNICs int
	// Log must not be nil.
	Log *slog.Logger
}

// Flows is what a Tracker has to know about flows in a cycle, besides their findings.
type Flows interface {
	// FlowsCrossing returns the flows whose present path crosses an element. It may be called beside a cycle, and so may CurrentPath.
	FlowsCrossing(fabric.Element) []fabric.Flow
	// CurrentPath returns the present path of a flow, and the time since which the flow has it. It reports false if
	// the path is stale or unknown.
	CurrentPath(fabric.Flow) (p fabric.Path, since time.Time, valid bool)
	HasBaseline(fabric.Flow) bool
	// IsExpected reports whether a flow was seen lately.
	IsExpected(fabric.Flow) bool
	// IsQueried reports whether the cycle queries a flow, and QueriesAll whether it queries every flow.
	IsQueried(fabric.Flow) bool
	QueriesAll() bool
}

// Moment is what a cycle found.
type Moment struct {
	Now time.Time
	// Cycle is the number of the cycle.
	Cycle    int
	Report   fabric.Report
	Findings []judge.Finding
	// Pending is the number of flows that wait for confirmation, and Degraded that of degraded ones, also of other parts.
	Pending, Degraded int
	Flows             Flows
	// Asked has the flows that were asked for. Nil means that none were.
	Asked Asked

	byEdge map[string]*judge.Finding // nil until it is needed
}

// Asked is what a Tracker has to know about flows that were asked for.
type Asked interface {
	// Records returns what was asked about an incident.
	Records(incident string) []fabric.Asked
	// HasEvidence reports whether a finding is of a flow that was asked for an incident, and decided.
	HasEvidence(incident string, findings []judge.Finding) bool
	// ExcludedByHops returns the elements that hop-limited probes exclude.
	ExcludedByHops(incident string) []fabric.Element
}

// Tracker holds the open and the closed incidents. Its methods must not be called concurrently, except Run.
type Tracker struct {
	opts       Options
	pending    map[faultKey]*pendingSuspect
	open, past []*Incident
	resumption resumption
	causes     *causeQueue
	recorded   []*recordedCycle // the oldest first
}

// NewTracker returns a Tracker without incidents.
func NewTracker(o Options) *Tracker {
	return &Tracker{opts: o, pending: map[faultKey]*pendingSuspect{}, causes: newCauseQueue()}
}

// InheritFrom takes over the incidents of another tracker, which has stopped. Open incidents on elements that the
// graph no longer has end at the given time.
func (t *Tracker) InheritFrom(old *Tracker, at time.Time) {
	t.past, t.recorded = old.past, old.recorded
	for _, in := range old.open {
		if t.opts.Graph.HasElement(in.Element) {
			in.foreign = !t.opts.Part.Owns(in.Element)
			t.open = append(t.open, in)
			continue
		}
		t.closeIncident(in, "the topology no longer has the element", at)
	}
}

// OpenIncidents returns the open incidents, the oldest first. They must not be changed, and hold until the next call of
// another method.
func (t *Tracker) OpenIncidents() []*Incident { return t.open }

// HasOpen reports whether an incident is open that may change what flows show. Those on routing that are for information only do not,
// and neither do those that no flow shows: a link that is down and not used may stay so for days.
func (t *Tracker) HasOpen() bool {
	return slices.ContainsFunc(t.open, func(in *Incident) bool { return !in.IsInformation() && !in.isUnused() })
}

// isUnused reports whether switches alone report an incident, and no flow shows it.
func (in *Incident) isUnused() bool { return in.Evidence.Reported && in.Evidence.DegradedEdges == 0 }

// IsInformation reports whether an incident is on routing, and for information only.
func (in *Incident) IsInformation() bool {
	return in.Scenario.IsRouting() && in.Severity == fabric.SeverityInfo
}

// OwnedIncidents returns those of the open incidents that are published (rule 8).
func (t *Tracker) OwnedIncidents() (out []*Incident) {
	for _, in := range t.open {
		if !in.foreign {
			out = append(out, in)
		}
	}
	return out
}

// ListIncidents returns copies of the published incidents, the newest first, and the open ones before the closed ones.
func (t *Tracker) ListIncidents() (out []Incident) {
	for _, in := range slices.Backward(t.open) {
		if !in.foreign {
			out = append(out, *in)
		}
	}
	for _, in := range slices.Backward(t.past) {
		out = append(out, *in)
	}
	return out
}

// SuspectVerdicts returns the verdicts of the open incidents, and of suspects that are not named often enough yet.
func (t *Tracker) SuspectVerdicts() (out []*fabric.Verdict) {
	for _, in := range t.open {
		out = append(out, &in.Verdict)
	}
	for _, c := range t.pending {
		out = append(out, &c.verdict)
	}
	return out
}

// AddExclusions takes over what hop-limited probes exclude from the open incidents.
func (t *Tracker) AddExclusions(asked Asked) {
	for _, in := range t.open {
		for _, e := range asked.ExcludedByHops(in.ID) {
			in.exclude(e)
		}
	}
}

// ExcludedAmong returns which of some elements, that the evidence cannot distinguish, are excluded from the open incidents on
// one of them.
func (t *Tracker) ExcludedAmong(elements []fabric.Element) (out []fabric.Element) {
	for _, in := range t.open {
		if len(in.excluded) == 0 || !slices.Contains(elements, in.Element) {
			continue
		}
		for _, e := range elements {
			if in.IsExcluded(e) {
				out = append(out, e)
			}
		}
	}
	return out
}

// WatchedFlows yields the flows that crossed the elements of the open incidents, and of those that closed after a
// moment.
func (t *Tracker) WatchedFlows(closedAfter time.Time) iter.Seq[fabric.Flow] {
	return func(yield func(fabric.Flow) bool) {
		watched := slices.Clone(t.open)
		for _, in := range slices.Backward(t.past) {
			if !in.Cleared.After(closedAfter) {
				break
			}
			watched = append(watched, in)
		}
		for _, in := range watched {
			for f := range in.crossingFlows {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// OpenClocks returns the clocks whose verdicts are open. Delays measured with them are no
// evidence until they have been steady for a while.
func (t *Tracker) OpenClocks() (out []clocks.Suspect) {
	for _, in := range t.open {
		if in.Kind != fabric.KindClock {
			continue
		}
		s := clocks.Suspect{NIC: in.Element.ID}
		for _, e := range in.Equivalent {
			s.Others = append(s.Others, e.ID)
		}
		out = append(out, s)
	}
	return out
}

// HoldOpen holds the open incidents in a cycle without evidence.
func (t *Tracker) HoldOpen() {
	for _, in := range t.open {
		in.Held = NoEvidence
	}
}

// ResetAfterGap forgets, at the first evidence after a gap, everything that counts only over consecutive cycles.
func (t *Tracker) ResetAfterGap(now time.Time) {
	clear(t.pending)
	for _, in := range t.open {
		if in.Kind == fabric.KindClock {
			in.LastSeen = now // it has to be observed steady
		}
	}
}

// CloseCovered closes the open incidents for whose verdict cover returns true, with the reason that it returns.
func (t *Tracker) CloseCovered(cover func(*fabric.Verdict) (why string, covered bool), now time.Time) {
	t.open = slices.DeleteFunc(t.open, func(in *Incident) bool {
		why, covered := cover(&in.Verdict)
		if covered {
			t.closeIncident(in, why, now)
			t.log(in, slog.LevelInfo, "closed verdict", "why", in.Closed)
		}
		return covered
	})
}

// closeIncident moves an incident to the past ones, if it was published. The caller removes it from the open ones.
func (t *Tracker) closeIncident(in *Incident, why string, now time.Time) {
	in.Open, in.Cleared, in.Closed = false, &now, why
	if !in.foreign {
		t.past = append(t.past, in)
	}
}

// faultKey distinguishes the faults of an element. A fault of routing is beside one of a part, and a failover beside both.
type faultKey struct {
	fabric.Element
	routing, failover bool
}

func keyOf(v *fabric.Verdict) faultKey {
	return faultKey{v.Element, v.Scenario.IsRouting(), v.Scenario == fabric.Convergence}
}

// pendingSuspect represents an element that the last cycles named, and on which no incident is open.
type pendingSuspect struct {
	verdict     fabric.Verdict
	firstSeen   time.Time
	namedCycles int
	lastCycle   int
}

// TrackVerdicts opens, refreshes, narrows, holds and clears incidents.
func (t *Tracker) TrackVerdicts(m *Moment) {
	named := map[*Incident]bool{}
	for _, v := range m.Report.Verdicts {
		if in := t.openFor(v); in != nil {
			named[in] = true
		}
	}
	ending := t.endingIncidents(named, m)
	for _, v := range m.Report.Verdicts {
		in := t.openFor(v)
		if in == nil {
			if c := t.addPending(v, m.Cycle); c.isDue(m) && !t.awaitsFlows(c, m) && !isRemainder(&v, ending) {
				named[t.openIncident(c, m)] = true
			}
			continue
		}
		named[in] = true
		if in.supersededBy(v) {
			was := in.Element.ID
			in.narrowTo(v, m)
			in.foreign = in.foreign && !t.opts.Part.Owns(in.Element)
			t.log(in, slog.LevelWarn, "narrowed verdict", "was", was, "kind", v.Kind, "confidence", v.Confidence)
			t.keepObservations(in, m)
			continue
		}
		in.applyExclusions(&v, m)
		in.addEvidence(v, m.Now)
	}
	maps.DeleteFunc(t.pending, func(_ faultKey, c *pendingSuspect) bool { return c.lastCycle != m.Cycle })
	t.open = slices.DeleteFunc(t.open, func(in *Incident) bool {
		cleared := !named[in] && t.shouldClear(in, m)
		if cleared {
			t.closeIncident(in, in.Closed, m.Now)
			t.log(in, slog.LevelInfo, "cleared verdict", "why", in.Closed)
		}
		return cleared
	})
	if m.Asked != nil {
		for _, in := range t.open {
			in.recordAsked(m.Asked.Records(in.ID))
		}
	}
	t.endResume(m.Now)
	if len(t.past) > keepPast {
		t.past = t.past[len(t.past)-keepPast:]
	}
}

// addPending counts a cycle that names an element without an open incident.
func (t *Tracker) addPending(v fabric.Verdict, cycle int) *pendingSuspect {
	k := keyOf(&v)
	c := t.pending[k]
	if c == nil || c.lastCycle != cycle-1 {
		c = &pendingSuspect{firstSeen: v.FirstSeen}
		t.pending[k] = c
	}
	c.verdict, c.lastCycle = v, cycle
	c.namedCycles++
	return c
}

// isDue reports whether a suspect was named in enough consecutive cycles (rule 1).
func (c *pendingSuspect) isDue(m *Moment) bool {
	v := &c.verdict
	need := openAfter
	switch {
	case v.Kind == fabric.KindHost, v.Kind == fabric.KindCorridor, v.Kind == fabric.KindPair:
		// A host may stall for a moment. An element that only a few flows share may turn out to be a
		// link, once the others have evidence.
		need = openAnyway
	case v.Scenario == fabric.HardFailure && v.Evidence.ContraryEdges == 0, v.Evidence.Reported:
		// Clean flows through a dead element mean that not all flows have fresh evidence yet.
		need = hardOpenAfter
	case m.showsLasting(v):
		need = lastingOpenAfter
	}
	if v.Evidence.DegradedEdges == 0 && v.Kind != fabric.KindClock && !v.Evidence.Reported && c.namedCycles < softOpenAfter {
		return false
	}
	settled := m.pendingBeside(v)*4 <= m.Degraded || v.Kind == fabric.KindClock || v.Evidence.Reported
	return c.namedCycles >= openAnyway || c.namedCycles >= need && settled
}

// awaitsFlows reports whether a suspect waits for flows that could distinguish it from its equivalents (rule 2).
func (t *Tracker) awaitsFlows(c *pendingSuspect, m *Moment) bool {
	longest := distinguishCycles
	if c.verdict.Scenario == fabric.HardFailure {
		longest = hardDistinguishCycles
	}
	return c.namedCycles < longest && couldDistinguish(&c.verdict, m)
}

// endingIncidents returns the open incidents that end, it seems: this cycle and at most clearAfter-1 before it did not name them, and most
// of the flows that showed them are no longer degraded. Clocks and what the fabric reports itself are not among them.
func (t *Tracker) endingIncidents(named map[*Incident]bool, m *Moment) (out []*Incident) {
	var degraded map[fabric.Flow]bool
	for _, in := range t.open {
		if named[in] || in.unnamedCycles >= clearAfter || in.Kind == fabric.KindClock || in.Evidence.Reported {
			continue
		}
		if degraded == nil {
			degraded = map[fabric.Flow]bool{}
			for i := range m.Findings {
				if m.Findings[i].Condition == judge.Degraded {
					degraded[m.Findings[i].Flow] = true
				}
			}
		}
		still := 0
		for _, s := range in.Edges {
			if e, err := fabric.ParseFlow(s); err == nil && degraded[e] {
				still++
			}
		}
		if 2*still < len(in.Edges) {
			out = append(out, in)
		}
	}
	return out
}

// isRemainder reports whether all flows that a verdict explains crossed the element of one of the incidents that end. The windows of
// nodes do not end at the same time, so that for a moment only the flows of a few nodes still show a fault that is over, and these
// few flows share something narrower.
func isRemainder(v *fabric.Verdict, ending []*Incident) bool {
	if len(v.Edges) == 0 || v.Evidence.Reported {
		return false
	}
	return slices.ContainsFunc(ending, func(in *Incident) bool {
		return !slices.ContainsFunc(v.Edges, func(s string) bool {
			e, err := fabric.ParseFlow(s)
			return err != nil || !in.crossingFlows[e]
		})
	})
}

// openFor returns the open incident that a verdict belongs to, or nil. It has the same element, or one that the
// evidence could not distinguish from it.
func (t *Tracker) openFor(v fabric.Verdict) *Incident {
	k := keyOf(&v)
	for _, in := range t.open {
		own := keyOf(&in.Verdict)
		if own == k {
			return in
		}
		if own.routing || k.routing {
			continue // elements that share a fault of routing are no alternatives
		}
		if in.Element == v.Element || slices.Contains(in.Equivalent, v.Element) || slices.Contains(v.Equivalent, in.Element) {
			return in
		}
	}
	return nil
}

func (t *Tracker) openIncident(c *pendingSuspect, m *Moment) *Incident {
	v := c.verdict
	v.FirstSeen = c.firstSeen
	if was := t.takeResumed(&v, m.Now); was != nil {
		v.ID, v.FirstSeen = publishedID(was), was.FirstSeen
	} else {
		v.ID = classify.IDOf(&v)
	}
	in := &Incident{Open: true, OpenedAt: m.Now, LastSeen: m.Now, foreign: !t.opts.Part.Owns(v.Element)}
	in.adoptVerdict(v)
	in.takeCrossingFlows(m)
	t.keepObservations(in, m)
	t.open = append(t.open, in)
	delete(t.pending, keyOf(&v))
	t.log(in, slog.LevelWarn, "opened verdict", "kind", v.Kind, "scenario", v.Scenario, "direction", v.Direction, "confidence", v.Confidence, "flows", v.Evidence.ExplainedEdges)
	return in
}

// log logs what became of an incident, at a level that is lower if its verdict is another analyzer's to publish.
func (t *Tracker) log(in *Incident, level slog.Level, what string, args ...any) {
	if in.foreign {
		level = slog.LevelDebug
	}
	t.opts.Log.Log(context.Background(), level, what, append([]any{"element", in.Element.ID}, args...)...)
}
