// Package analyzer joins the stages that lead from the measurements of the probes to a verdict:
// query, bind, judge, triangulate, classify, publish. Its packages hold the stages and their state. Loop runs
// them one after the other beside Prometheus.
//
// Rules of a Loop whose evidence fails, in whole or in part (the package comment of evidence
// lists the failures):
//
//  1. A cycle without evidence opens and clears no incident, and learns no baseline. The state
//     is insufficient_evidence, or suspect while incidents are open. These are held. The
//     coverage is 0.
//  2. After a gap, windows from before the gap confirm nothing.
//  3. The number of expected flows does not shrink when fewer flows report. It is the largest
//     number of the last ten minutes, or the number in LoopOptions.
//  4. A flow without evidence is undecided. An incident is not cleared while most of the flows
//     that showed it are undecided.
//  5. The cycle after a slow one evaluates the present moment. The moments in between are
//     skipped.
//  6. A Loop that can recall baselines does so before its first cycle. A start during an
//     incident thus neither forgets the baselines nor learns them from the incident.
//
// Rules 7 to 12 are those of package selection, for a Loop that queries in two steps.
package analyzer

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/evaluate"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/questions"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/analyzer/routing/pull"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Old entries leave the path store and the baselines every expireEvery cycles.
const expireEvery = 10

// LoopOptions configure a Loop.
type LoopOptions struct {
	Graph *fabric.Graph
	// Part is the part of the graph that the loop is responsible for. Nil means all of it. Evidence about more than that
	// may be read, and only what belongs to the part is published.
	Part     *fabric.Part
	DB       evidence.Querier
	Settings evidence.Settings
	// Expected is the number of directed flows, with probes and replies counted separately.
	// 0 means the largest number of the last ten minutes.
	Expected int
	// Agents trace flows. Nil means that paths come from sightings or forwarding tables alone.
	Agents tracing.Agents
	// SwitchAgents are the switches that report sightings. Nil means that none does.
	SwitchAgents *tracing.SwitchAgents
	// SwitchRoutes returns what switches report of their routes and sessions, by name. Nil means that the loop reads that from
	// SwitchAgents.
	SwitchRoutes func() map[string]*routing.Switch
	// Subnets are the InfiniBand subnets whose forwarding tables are read.
	Subnets []tracing.Subnet
	// Asker asks for flows that distinguish suspects. Nil means that nothing is asked.
	Asker questions.Asker
	// Causes finds why an element is at fault. Nil means that causes are not queried.
	Causes incident.Causes
	// Maintenance has the maintenance windows. Nil means that there are none.
	Maintenance *maintenance.Register
	// Jobs has the placements of jobs. Nil means that they are unknown.
	Jobs *jobs.Register
	// PageNICs is the blast radius above which a verdict that affects no job is critical. 0
	// means incident.DefaultPageNICs.
	PageNICs int
	// TwoSteps configures queries of selected flows. By default every cycle queries all flows.
	TwoSteps selection.Options
	// Recall returns the baselines from before the loop started. Nil means that they are learnt.
	Recall func(context.Context) (evidence.History, error)
	// RecallHour returns what flows showed in an hour of a past day, and so long before it. Nil means that hours of the
	// day are learnt.
	RecallHour func(ctx context.Context, start time.Time, before time.Duration) (evidence.PastHour, error)
	// RecallVerdicts returns the verdicts that were published before. Nil means that they are unknown.
	RecallVerdicts func(context.Context) ([]evidence.PastVerdict, error)
	// Signals has in-band signals (CSIG) checked.
	Signals bool
	// Shards is set if other analyzers are responsible for other parts of the fabric.
	Shards *Shards
	Log    *slog.Logger
}

// Loop runs one cycle after the other: it queries the evidence, binds paths, judges, triangulates, and keeps the
// incidents. The state between cycles is that of its parts.
type Loop struct {
	opts      LoopOptions
	store     *paths.Store
	mesh      mesh
	planner   *selection.Planner
	baselines baselines
	evaluator *evaluate.Evaluator
	excluder  *maintenance.Excluder
	incidents *incident.Tracker
	routing   *routing.Watcher
	routes    *pull.Reader // of the routes of switches; nil if none has an agent
	// routingFlows is memory that each cycle uses again.
	routingFlows []routing.Flow
	readSessions readSessions
	progress     progress
	published    published
	matrix       *matrix.Store
	others       otherShards
	signals      signalChecks
	indices      struct { // of the present graph
		links  *snapshot.LinkIndex
		scopes *scope.Index
	}
}

// mesh is what the loop has the nodes do: trace flows, and measure flows that distinguish suspects.
type mesh struct {
	sources   *tracing.Sources
	questions *questions.Desk // nil if nothing is asked
}

// baselines are what is normal for the flows, with what is read of past days.
type baselines struct {
	*baseline.Book
	past pastHours
}

// progress represents how far the loop has come.
type progress struct {
	cycle int
	// lastEvidenceAt is the moment of the last evidence. missedEvidence is set if a cycle since had none.
	lastEvidenceAt time.Time
	missedEvidence bool
}

// NewLoop returns a loop that has not run yet.
func NewLoop(o LoopOptions) *Loop {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Loop{opts: o, store: paths.NewStore(o.Graph), planner: selection.NewPlanner(o.TwoSteps, o.Part), baselines: baselines{Book: baseline.NewBook(), past: pastHours{ready: make(chan evidence.PastHour, 1)}}, evaluator: evaluate.NewEvaluator(o.Settings.CycleInterval()), excluder: maintenance.NewExcluder(), matrix: matrix.NewStore()}
	l.signals.checker = signals.Checker{Reader: l.newSignalReader(), NICs: func() []string { return l.store.Graph().NICIDs() },
		SwitchAt: func(a netip.Addr) string { return fabric.OwnerOf(l.store.Graph().EndOf(a)) }}
	l.routing = routing.NewWatcher()
	if from := o.SwitchAgents; from != nil && o.SwitchRoutes == nil {
		l.routes = &pull.Reader{Poller: switchpoll.Poller{Client: from.Client, URL: from.URL, Switches: from.Switches, Log: o.Log}}
		l.opts.SwitchRoutes = func() map[string]*routing.Switch { return l.routes.Reported(time.Now()) }
	}
	l.mesh.questions = questions.NewDesk(o.Asker, o.Log)
	l.mesh.sources = tracing.NewSources(tracing.Options{Store: l.store, DB: o.DB, Settings: o.Settings, Agents: o.Agents, SwitchAgents: o.SwitchAgents, Subnets: o.Subnets, HopCounts: l.mesh.questions.RecordHops, Log: o.Log})
	l.incidents = incident.NewTracker(incident.Options{Graph: o.Graph, Part: o.Part, Settings: o.Settings, Causes: o.Causes, PageNICs: o.PageNICs, Log: o.Log})
	l.published.changes = &snapshot.Changes{}
	l.published.snap.Report = fabric.Report{State: fabric.InsufficientEvidence, Verdicts: []fabric.Verdict{}, Candidates: []fabric.Candidate{}, LinkDelays: []fabric.LinkDelay{}}
	return l
}

// InheritFrom takes over the state of a stopped loop: its baselines, its snapshot, and the incidents on elements
// that the topology still has. It is called before Run.
func (l *Loop) InheritFrom(old *Loop) {
	if l.opts.Maintenance != nil && old.opts.Maintenance != nil {
		l.opts.Maintenance.InheritFrom(old.opts.Maintenance)
	}
	l.opts.Settings.Arrival.InheritFrom(old.opts.Settings.Arrival)
	l.mesh.sources.InheritFrom(old.mesh.sources)
	l.mesh.questions.InheritFrom(old.mesh.questions)
	l.planner.InheritFrom(old.planner)
	l.evaluator.InheritFrom(old.evaluator)
	l.incidents.InheritFrom(old.incidents, old.Snapshot().At)
	l.baselines, l.excluder, l.progress, l.routing, l.matrix = old.baselines, old.excluder, old.progress, old.routing, old.matrix
	l.published.inheritFrom(&old.published)
}

// AnswerQueued answers the requests for traces, flows and causes that are queued now, for callers that do not use Run.
func (l *Loop) AnswerQueued(ctx context.Context) {
	l.mesh.sources.Tracer().AnswerQueued(ctx)
	l.mesh.questions.AnswerQueued(ctx)
	l.incidents.AnswerQueued(ctx)
}

// Sources returns what feeds the store of paths.
func (l *Loop) Sources() *tracing.Sources { return l.mesh.sources }

// PathStore returns the store of the bound paths.
func (l *Loop) PathStore() *paths.Store { return l.store }

// MaintenanceRegister returns the maintenance windows, or nil if the loop has none.
func (l *Loop) MaintenanceRegister() *maintenance.Register { return l.opts.Maintenance }

// RunCycle runs one cycle at the moment now. It evaluates the last multiple of the scrape interval,
// so that another analyzer with the same Prometheus evaluates the same moment. Their verdicts
// then have the same first window, and so the same identifiers. They differ if one analyzer has
// missed a cycle, or has fewer baselines because it was started later. RunCycle fails if the
// evidence cannot be read.
func (l *Loop) RunCycle(ctx context.Context, now time.Time) error {
	w, err := l.planner.QueryEvidence(ctx, &selection.Request{DB: l.opts.DB, Settings: l.opts.Settings, Graph: l.opts.Graph, Now: now.Truncate(l.opts.Settings.Scrape),
		Cycle: l.progress.cycle + 1, Suspects: l.incidents.SuspectVerdicts(), Asked: l.mesh.questions.Sources()})
	if err != nil {
		err = fmt.Errorf("evidence: %w", err)
		l.recordNoEvidence(err)
		return err
	}
	l.resetAfterGap(now)
	l.progress.cycle++
	expected := l.expectedFlows(&w)
	l.takePastHour()
	for e, b := range w.NodeBaselines {
		l.baselines.AdoptBaseline(e, &b.Quantiles, b.MADNS)
	}
	l.bindPaths(w.Observations, w.At)
	refusals := resolveRefusals(l.store.Graph(), w.Refusals)
	markRefused(w.Observations, refusals)
	raw := judge.FindingsOf(w.Observations, judge.DefaultParameters())
	l.excludeMaintenance(raw, now)
	moved := l.evaluator.MovedClocks(w.At, withoutTemporary(raw), clockSeries(w.Clocks))
	l.evaluator.AddMoment(raw, append(l.incidents.OpenClocks(), moved...))
	findings, pending := l.baselines.ConfirmFindings(raw, l.progress.cycle, l.planner.WasQueried)
	carried := l.carryForward(raw, findings, now)
	swapped := l.miscablingVerdicts(now)
	if l.mesh.questions != nil {
		l.incidents.AddExclusions(l.mesh.questions)
	}
	rep := l.evaluator.InferReport(&evaluate.Moment{Graph: l.store.Graph(), Part: l.opts.Part, Findings: findings, Moved: moved, First: w.At, Expected: expected, Excluder: l.excluder, Carried: carried, ExcludedAmong: l.incidents.ExcludedAmong})
	rep.Verdicts = append(rep.Verdicts, swapped...)
	l.addDownVerdicts(&rep, findings, now)
	l.addRoutingVerdicts(ctx, &rep, refusals, raw, findings, now)
	l.dropGoneLinks(&rep, now)
	l.applyMaintenance(&rep, now)
	l.trackIncidents(rep, findings, pending, now)
	l.mesh.questions.Review(now, l.store.Graph(), l.incidents.OwnedIncidents(), l.ownedCandidates(rep.Candidates), findings)
	running := l.opts.Jobs.MapAt(now)
	l.incidents.UpdateImpact(running)
	if l.progress.cycle%expireEvery == 0 {
		l.expireFlows(now)
	}
	l.baselines.LearnWindows(raw, baseline.Learning{Cycle: l.progress.cycle, At: w.At, Frozen: l.incidents.HasOpen(), Seldom: !l.planner.QueriesAll(), Excluded: l.excluder.ExcludesFlow})
	l.mesh.sources.Tracer().RequestTraces(&tracing.Demand{Now: now, Cycle: l.progress.cycle, Interval: l.opts.Settings.CycleInterval(), Findings: findings, Pending: l.nearlyDegraded(raw), Watched: l.incidents.WatchedFlows(now.Add(-tracing.RetraceAfterClear)), Urgent: l.mesh.questions.HopNodes()})
	l.publishSnapshot(&cycleResult{now: now, report: rep, findings: findings, carried: carried, window: &w, running: running, pending: pending, expected: expected})
	return nil
}

// withoutTemporary returns the findings of flows that stay. What is usual on a path does not have the error of the clocks of
// a flow, so the others say nothing of clocks.
func withoutTemporary(in []judge.Finding) []judge.Finding {
	for i := range in { // most cycles have none, and findings are large
		if in[i].Flow.IsTemporary() {
			return slices.DeleteFunc(slices.Clone(in), func(f judge.Finding) bool { return f.Flow.IsTemporary() })
		}
	}
	return in
}

// expectedFlows returns the expected number of directed flows of the part, after a cycle with a window (rule 3).
func (l *Loop) expectedFlows(w *evidence.Window) int {
	if l.opts.Expected > 0 {
		return l.opts.Expected
	}
	return l.planner.AddFlowCount(w.Flows, w.OwnFlows)
}

// bindPaths sorts the observations of a moment by flow, and sets their paths and baselines.
func (l *Loop) bindPaths(obs []*fabric.Observation, at time.Time) {
	sort.Slice(obs, func(i, j int) bool { return obs[i].Edge < obs[j].Edge })
	for _, o := range obs {
		changed := l.mesh.sources.BindPath(o)
		if e, err := o.ParseFlow(); err == nil && e.IsTemporary() {
			if base, mad := l.baselines.EstimateOnRoute(o.Path, at); base != nil && !changed {
				o.Baseline, o.BaselineMADNS = base, &mad
			}
		} else if err == nil {
			if o.PathState == fabric.PathValid {
				l.baselines.FollowRoute(e, o.Path)
			}
			// While the path changes, no delay is normal.
			if base, mad := l.baselines.BaselineAt(e, o.OWD, at); base != nil && !changed {
				o.Baseline, o.BaselineMADNS = base, &mad
			}
		}
	}
}

// excludeMaintenance excludes the flows that may cross an element under maintenance from the findings
// and from the remembered hard losses. It forgets the baselines of flows whose cables were changed during a
// maintenance that is over.
func (l *Loop) excludeMaintenance(raw []judge.Finding, now time.Time) {
	windows := l.opts.Maintenance.WindowsBetween(maintenance.EarliestStart(raw, now), now)
	for _, t := range l.excluder.BeginCycle(windows) {
		for e := range t.Flows {
			l.forgetFlow(e)
		}
		l.opts.Log.Info("forgot baselines after maintenance", "element", t.Window.Element, "flows", len(t.Flows), "at", now)
	}
	if !l.excluder.IsActive() {
		return
	}
	g := l.store.Graph()
	l.excluder.ExcludeFindings(g, raw)
	l.baselines.DropHardLosses(func(f *judge.Finding) bool { return l.excluder.MayTouch(g, f) })
}

// nearlyDegraded yields the flows that one more window confirms as degraded.
func (l *Loop) nearlyDegraded(raw []judge.Finding) iter.Seq[fabric.Flow] {
	return func(yield func(fabric.Flow) bool) {
		for i := range raw {
			f := &raw[i]
			if f.Condition == judge.Degraded && l.baselines.DegradedWindows(f.Flow) == baseline.ConfirmedBy-1 && !yield(f.Flow) {
				return
			}
		}
	}
}

func (l *Loop) forgetFlow(e fabric.Flow) {
	l.baselines.ForgetFlow(e)
	l.planner.ForgetFlow(e)
}

// expireFlows drops what is known of flows that were not seen for a long time.
func (l *Loop) expireFlows(now time.Time) {
	l.store.ExpireFlows(now)
	for _, e := range l.baselines.ForgetUnseen(l.progress.cycle) {
		l.planner.ForgetFlow(e)
	}
}

func clockSeries(of map[string]evidence.Clock) map[string]clocks.Series {
	out := make(map[string]clocks.Series, len(of))
	for nic, c := range of {
		out[nic] = clocks.Series{Steps: c.Steps, Drifts: c.Drifts, Offset: c.Offset, Drift: c.Drift}
	}
	return out
}

// carryForward records the queried flows, and returns those that were not queried and are known to be healthy, or nil
// if every flow was queried.
func (l *Loop) carryForward(raw, findings []judge.Finding, now time.Time) *selection.Carried {
	m := &selection.Moment{Now: now, Cycle: l.progress.cycle, Raw: raw, Findings: findings, Baselines: l.baselines.Book, Excluder: l.excluder, Graph: l.store.Graph(), Suspects: l.incidents.SuspectVerdicts()}
	l.planner.RecordFlows(m)
	return l.planner.CarryForward(m)
}

// miscablingVerdicts returns the verdicts on cables that are not where the topology has them. From then on
// paths follow the fabric as it is.
func (l *Loop) miscablingVerdicts(now time.Time) []fabric.Verdict {
	var out []fabric.Verdict
	for _, m := range l.mesh.sources.CheckCables(now) {
		out = append(out, classify.SwapVerdict(l.opts.Graph, classify.Swap{Topology: m.Topology, Fabric: m.Fabric, Flows: m.Flows, LLDP: m.LLDP, First: m.Found}))
	}
	l.excluder.MarkRecabled(l.opts.Graph, out)
	return out
}

// addDownVerdicts adds verdicts on what the readings of InfiniBand subnets show to be down, unless probes name it as well. A
// verdict on more than a link that is down, all of whose flows cross the link, is about the link.
func (l *Loop) addDownVerdicts(rep *fabric.Report, findings []judge.Finding, now time.Time) {
	down := l.mesh.sources.DownElements(now)
	if len(down) == 0 {
		return
	}
	g := l.store.Graph()
	// Seldom is anything wider than a link named: the flows are listed then only.
	observations := sync.OnceValue(func() map[string]*fabric.Observation {
		out := make(map[string]*fabric.Observation, len(findings))
		for i := range findings {
			out[findings[i].Flow.String()] = findings[i].Obs
		}
		return out
	})
	for _, d := range down {
		a, b, isLink := fabric.SplitLink(d.ID)
		crosses := func(flow string) bool {
			o := observations()[flow]
			if o == nil {
				return false
			}
			return slices.ContainsFunc(o.Path.LinkDirections(o.Src, o.Dst), func(x fabric.Direction) bool { return x.LinkID() == d.ID })
		}
		rep.Verdicts = slices.DeleteFunc(rep.Verdicts, func(v fabric.Verdict) bool {
			wider := isLink && v.Kind != fabric.KindLink && (v.Element.ID == fabric.OwnerOf(a) || v.Element.ID == fabric.OwnerOf(b))
			return wider && len(v.Edges) > 0 && !slices.ContainsFunc(v.Edges, func(flow string) bool { return !crosses(flow) })
		})
		named := func(v fabric.Verdict) bool { return v.Element == d.Element || slices.Contains(v.Equivalent, d.Element) }
		if !slices.ContainsFunc(rep.Verdicts, named) {
			rep.Verdicts = append(rep.Verdicts, classify.DownVerdict(g, d.Element, d.Since, d.Outages))
		}
	}
}

// dropGoneLinks removes verdicts on links that neither the topology has nor the fabric as it is cabled now, as those of swapped cables
// that were put back, and closes their open incidents: nothing will cross them again. What was lost on the way there was lost for the
// change of cables.
func (l *Loop) dropGoneLinks(rep *fabric.Report, now time.Time) {
	gone := func(v *fabric.Verdict) bool { return isGone(v.Element, l.opts.Graph, l.store.Graph()) }
	rep.Verdicts = slices.DeleteFunc(rep.Verdicts, func(v fabric.Verdict) bool { return gone(&v) })
	l.incidents.CloseCovered(func(v *fabric.Verdict) (why string, covered bool) {
		return "the fabric no longer has the link", gone(v)
	}, now)
}

// isGone reports whether an element is a link that none of the graphs has.
func isGone(e fabric.Element, graphs ...*fabric.Graph) bool {
	return e.Kind == fabric.KindLink && !slices.ContainsFunc(graphs, func(g *fabric.Graph) bool { return g.HasElement(e) })
}

// applyMaintenance removes verdicts and candidates on elements under maintenance from a report, and closes their open
// incidents.
func (l *Loop) applyMaintenance(rep *fabric.Report, now time.Time) {
	windowOf := func(v *fabric.Verdict) *maintenance.Window { return l.excluder.WindowCovering(l.opts.Graph, v) }
	rep.Verdicts = slices.DeleteFunc(rep.Verdicts, func(v fabric.Verdict) bool { return windowOf(&v) != nil })
	rep.Candidates = slices.DeleteFunc(rep.Candidates, func(c fabric.Candidate) bool {
		return windowOf(&fabric.Verdict{Element: c.Element, Direction: c.Direction}) != nil
	})
	l.incidents.CloseCovered(func(v *fabric.Verdict) (why string, covered bool) {
		if w := windowOf(v); w != nil {
			return w.String(), true
		}
		return "", false
	}, now)
}

// trackIncidents passes a report to the incidents, with their causes as far as they are known.
func (l *Loop) trackIncidents(rep fabric.Report, findings []judge.Finding, pending int, now time.Time) {
	m := &incident.Moment{Now: now, Cycle: l.progress.cycle, Report: rep, Findings: findings, Pending: pending, Flows: flowFacts{l}, Asked: l.mesh.questions}
	for i := range findings {
		if findings[i].Condition == judge.Degraded {
			m.Degraded++
		}
	}
	l.incidents.TrackVerdicts(m)
	l.incidents.ApplyCauses()
	l.incidents.RequestCauses(m)
}

// flowFacts is what the incidents have to know about flows. It implements incident.Flows.
type flowFacts struct{ l *Loop }

func (f flowFacts) FlowsCrossing(e fabric.Element) []fabric.Flow {
	return slices.DeleteFunc(f.l.store.FlowsCrossing(e), fabric.Flow.IsTemporary)
}
func (f flowFacts) HasBaseline(e fabric.Flow) bool { return f.l.baselines.HasBaseline(e) }
func (f flowFacts) IsExpected(e fabric.Flow) bool {
	return f.l.baselines.IsExpected(e, f.l.progress.cycle)
}
func (f flowFacts) IsQueried(e fabric.Flow) bool { return f.l.planner.IsQueried(e) }
func (f flowFacts) QueriesAll() bool             { return f.l.planner.QueriesAll() }
func (f flowFacts) CurrentPath(e fabric.Flow) (p fabric.Path, since time.Time, valid bool) {
	b, ok := f.l.store.CurrentBinding(e)
	return b.Path, b.Since, ok && b.State == fabric.PathValid
}
