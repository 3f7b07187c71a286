package analyzer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sort"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
)

// Agents are the nodes' APIs.
type Agents interface {
	// TracedPaths returns what a node has traced.
	TracedPaths(ctx context.Context, node string) ([]fabric.Trace, error)
	// TraceFlows asks a node to trace flows now.
	TraceFlows(ctx context.Context, node string, edges []string) ([]fabric.Trace, error)
}

// Timing of the loop, in cycles of one evaluation each (one second by default).
const (
	// defaultCycle is how long one is, unless the settings have another scrape interval.
	defaultCycle = time.Second
	// A flow is degraded when it was in confirmOf of the last confirmIn windows,
	// or with hard loss over two windows running.
	confirmOf, confirmIn = 3, 4
	// A hard failure may be routed around before every flow has told of it:
	// what it did is remembered this long.
	hardMemory = 5
	// An element must be named openAfter cycles running (hardOpenAfter for a hard
	// failure) while few flows are still waiting for confirmation, or longer.
	openAfter, hardOpenAfter, openAnyway = 2, 1, 4
	// Where no flow is degraded for itself, but many lost a little, that may be one
	// burst: the element must be named for several windows' time.
	softOpenAfter = 8
	// While flows are silent that could tell an element from those that look like
	// it, its name is waited for so long (a hard failure may be routed around).
	distinguishCycles, hardDistinguishCycles = 8, 3
	// clockSteady is how long a clock that moved must have been steady since, and no fewer
	// than clearAfter cycles.
	clockSteady = 10 * time.Second
	// clearAfter cycles without evidence against it, and with evidence for it,
	// clear an element.
	clearAfter = 4
	// spanningClearAfter is for what comes and goes: it is not over when it pauses.
	spanningClearAfter = 8
	// learnWindows make a baseline; keepWindows is how many it remembers.
	learnWindows, keepWindows = 8, 120
	// expireEvery cycles what is too old leaves the path store.
	expireEvery = 10
	// warmUp cycles after the first evidence are not learnt from.
	warmUp = 2
	// maxLearnBound is a bound, ns, of the two clocks of a flow with which nothing is learnt if
	// something is known already. Clocks begin with less: clocksync.LockBound each.
	maxLearnBound = 2e6
)

// pullEvery is how often switches are asked for what changed, tablesEvery how often
// forwarding tables are read;
// retraceAfter is the age at which the path of a flow that matters now is asked for again;
// background re-tracing takes retraceAll for a round over all flows; flows of a
// suspect that was cleared are asked for again during afterCare.
const (
	pullEvery         = 500 * time.Millisecond
	tablesEvery       = 500 * time.Millisecond
	retraceAfterClear = 10 * time.Second
	retraceAfter      = 3 * time.Second
	retraceAll        = 60 * time.Second
)

// LoopOptions configure a Loop.
type LoopOptions struct {
	Graph    *fabric.Graph
	DB       evidence.Querier
	Agents   Agents
	Settings evidence.Settings
	// Expected is the number of directed flows, probes and replies counted apart;
	// 0: as many as were counted at a time in the last ten minutes.
	Expected int
	// SwitchAgents are the switches that tell what crosses them; nil: paths come from
	// traces alone.
	SwitchAgents *SwitchAgents
	// Tables reads the forwarding tables of an InfiniBand fabric, as ibfabric.Watch does;
	// nil: there is none.
	Tables func(context.Context) (ibfabric.Reading, error)
	// Causes says why an element is at fault; nil: nobody does.
	Causes Causes
	// Maintenance says what somebody works on; nil: nothing.
	Maintenance *maintenance.Register
	// Jobs says which jobs run where; nil: nobody knows.
	Jobs *jobs.Register
	// PageNICs is the blast radius above which a verdict that hurts no job is critical; 0:
	// DefaultPageNICs.
	PageNICs int
	// NoTraces: paths come from sightings alone, or from forwarding tables.
	NoTraces bool
	// TwoSteps say when flows are asked about only where there is a reason to; by default never.
	TwoSteps TwoStepOptions
	// Recall says what was normal before the loop began; nil: that is learnt.
	Recall func(context.Context) (evidence.History, error)
	// RecallVerdicts says what was published of verdicts before; nil: nobody knows.
	RecallVerdicts func(context.Context) ([]evidence.PastVerdict, error)
	Log            *slog.Logger
}

// cycleInterval is the time between two cycles.
func (o *LoopOptions) cycleInterval() time.Duration { return cmp.Or(o.Settings.Scrape, defaultCycle) }

// SwitchAgents say how the switches' agents are reached, and what probes look like.
type SwitchAgents struct {
	Client   *http.Client
	URL      func(sw string) string // base, without a path
	Switches []string
	Mapper   paths.Mapper
}

// Loop asks, binds, judges, triangulates and keeps the verdicts, once a cycle.
type Loop struct {
	opts            LoopOptions
	store           *paths.Store
	flowRecords     map[fabric.Flow]*flowRecord
	pendingSuspects map[fabric.Element]*pendingSuspect
	openIncidents   []*Incident
	pastIncidents   []*Incident
	// resumption is what was open when the loop began.
	resumption resumption
	cycle      int
	clockWatch *clocks.Watch
	// history is what the flows did in the last cycles.
	history *classify.History
	engine  *triangulate.Engine
	// lastEvidenceAt is the moment of the last evidence, flows how many were counted then and
	// before; unseen: a cycle since had none.
	lastEvidenceAt time.Time
	missedEvidence bool
	flowCounts     []int
	sightings      *paths.Sightings // nil: no switch tells
	puller         *paths.Puller
	neighbours     *neighbourPoller
	// tables bind flows of InfiniBand; nil: LoopOptions.Tables is.
	tables *paths.Tables

	planner *planner
	// excluded is what is under maintenance in this cycle, touched what each window touched
	// so far, by its identifier.
	excluded        exclusions
	touchedByWindow map[string]*touchedFlows

	mu     sync.RWMutex
	snap   Snapshot
	counts Counts
	// refusedTraces counts the traces of nodes that were not used.
	refusedTraces map[TraceRefusal]uint64

	traceRequests     chan traceRequest
	causeRequests     chan causeRequest
	workMu            sync.Mutex
	beingTraced       map[fabric.Flow]bool
	traceWarnedAt     map[string]time.Time          // of nodes whose traces failed
	causeAnswers      map[string]fabric.Attribution // by incident
	causeRequestCycle map[string]int                // in which cycle
}

// NewLoop returns a loop that has not run yet.
func NewLoop(o LoopOptions) *Loop {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Loop{opts: o, store: paths.NewStore(o.Graph), flowRecords: map[fabric.Flow]*flowRecord{}, pendingSuspects: map[fabric.Element]*pendingSuspect{}, clockWatch: clocks.NewWatch(), history: classify.NewHistory(o.cycleInterval()),
		traceRequests: make(chan traceRequest, 64), beingTraced: map[fabric.Flow]bool{}, causeRequests: make(chan causeRequest, 64), causeAnswers: map[string]fabric.Attribution{}, causeRequestCycle: map[string]int{}, touchedByWindow: map[string]*touchedFlows{}, planner: newPlanner(), refusedTraces: map[TraceRefusal]uint64{}, traceWarnedAt: map[string]time.Time{},
		snap: Snapshot{Report: fabric.Report{State: fabric.InsufficientEvidence, Verdicts: []fabric.Verdict{}, LinkDelays: []fabric.LinkDelay{}}}}
	l.neighbours = newNeighbourPoller(o.DB, o.Settings, l.store)
	if o.Tables != nil {
		l.tables = paths.NewTables(l.store, 0)
	}
	if from := o.SwitchAgents; from != nil {
		l.sightings = paths.NewSightings(l.store, from.Mapper)
		l.puller = &paths.Puller{Sightings: l.sightings, Client: from.Client, URL: from.URL, Switches: from.Switches, Log: o.Log}
	}
	return l
}

// readTables takes a reading of the forwarding tables. One that fails confirms nothing:
// paths are stale until there are two more.
func (l *Loop) readTables(ctx context.Context) {
	r, err := l.opts.Tables(ctx)
	if err != nil {
		if ctx.Err() == nil {
			l.opts.Log.Error("forwarding tables", "err", err)
		}
		return
	}
	l.tables.ApplyReading(r)
}

// PathStore gives access to the bound paths.
func (l *Loop) PathStore() *paths.Store { return l.store }

// MaintenanceRegister is what somebody works on; nil: the loop is not told.
func (l *Loop) MaintenanceRegister() *maintenance.Register { return l.opts.Maintenance }

// SwitchStates are the states of the switches that tell what crosses them, and how
// often they were asked.
func (l *Loop) SwitchStates() (map[string]paths.TableView, paths.PullCounts) {
	if l.puller == nil {
		return nil, paths.PullCounts{}
	}
	return l.sightings.TableViews(), l.puller.TotalCounts()
}

// Run evaluates every interval until ctx ends, and waits for the tracing it
// started.
func (l *Loop) Run(ctx context.Context, interval time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if l.puller != nil {
		wg.Go(func() { l.puller.Run(ctx, pullEvery) })
	}
	wg.Go(func() { l.watchNeighbours(ctx) })
	if l.tables != nil {
		wg.Go(func() {
			tick := time.NewTicker(tablesEvery)
			defer tick.Stop()
			for {
				l.readTables(ctx)
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	if !l.opts.NoTraces {
		wg.Go(func() { l.pollPaths(ctx) })
		const tracers = 8
		for range tracers {
			wg.Go(func() { l.traceWorker(ctx) })
		}
	}
	if l.opts.Causes != nil {
		wg.Go(func() { l.causeWorker(ctx) })
	}
	if l.opts.Recall != nil && len(l.flowRecords) == 0 {
		l.recallBaselines(ctx, interval)
		if l.opts.RecallVerdicts != nil && ctx.Err() == nil {
			l.recallVerdicts(ctx)
		}
	}
	var before time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(untilNext(time.Now(), interval)):
			// The tick may have waited for a cycle that took long: what is asked for is now.
			now := time.Now()
			l.measureCycle(now, before, interval, func() error {
				err := l.RunCycle(ctx, now)
				if err != nil && ctx.Err() == nil {
					l.opts.Log.Error("cycle failed", "err", err)
				}
				return err
			})
			before = now
		}
	}
}

// untilNext is how long it is to the next cycle: they begin shortly after the multiples of the
// interval, which are what they ask for.
func untilNext(now time.Time, interval time.Duration) time.Duration {
	after := interval / 20
	return now.Add(-after).Truncate(interval).Add(interval + after).Sub(now)
}

// RunCycle runs one cycle at the moment now. What it asks for is the last multiple of the scrape
// interval, so that another analyzer beside the same Prometheus asks for the same: their
// verdicts then have the same first window, and so the same identifiers. They differ where one
// has missed a cycle, or knows fewer baselines since it was started later.
func (l *Loop) RunCycle(ctx context.Context, now time.Time) error {
	w, err := l.queryEvidence(ctx, now.Truncate(l.opts.Settings.Scrape))
	if err != nil {
		err = fmt.Errorf("evidence: %w", err)
		l.recordNoEvidence(err)
		return err
	}
	l.resetAfterGap(now)
	l.cycle++
	expected := l.updateExpected(w.Flows)
	sort.Slice(w.Observations, func(i, j int) bool { return w.Observations[i].Edge < w.Observations[j].Edge })
	for _, o := range w.Observations {
		l.bindPath(o)
	}
	raw := judge.FindingsOf(w.Observations, judge.DefaultParameters())
	l.excludeMaintenance(raw, now)
	moved := l.clockWatch.AddWindow(w.At, raw, clockSeries(w.Clocks))
	distrustDelays(raw, append(l.openClockSuspects(), moved...))
	l.history.AddMoment(raw)
	findings, pending := l.confirmFindings(raw)
	l.recordFlowStates(raw, findings, now)
	unasked := l.carryForward(findings, now)
	swapped := l.miscablingVerdicts(now)
	l.markRecabledWindows(swapped)
	g := l.store.Graph() // another one when cables were found swapped
	if l.engine == nil || l.engine.Graph() != g {
		l.engine = triangulate.NewEngine(g)
	}
	rep := inferExcluding(l.engine, &classify.Scene{Graph: g, Findings: findings, History: l.history, First: w.At}, moved, expected, &l.excluded, unasked)
	rep.Verdicts = append(rep.Verdicts, swapped...)
	l.applyMaintenance(&rep, now)
	l.trackIncidents(rep, findings, pending, now)
	l.applyCauses()
	l.requestCauses(now)
	running := l.opts.Jobs.MapAt(now)
	for _, in := range l.openIncidents {
		in.updateImpact(running, cmp.Or(l.opts.PageNICs, DefaultPageNICs))
	}
	if l.cycle%expireEvery == 0 {
		l.store.ExpireFlows(now)
		l.forgetFlows()
	}
	l.learnBaselines(raw)
	if !l.opts.NoTraces {
		l.requestTraces(findings, now)
	}
	l.publishSnapshot(rep, findings, unasked, w, running, pending, expected, now)
	return nil
}

func clockSeries(of map[string]evidence.Clock) map[string]clocks.Series {
	out := make(map[string]clocks.Series, len(of))
	for nic, c := range of {
		out[nic] = clocks.Series{Steps: c.Steps, Drifts: c.Drifts, Offset: c.Offset, Drift: c.Drift}
	}
	return out
}

// openClockSuspects are the clocks whose verdicts are open: until they have been steady
// for a while, delays by them say nothing.
func (l *Loop) openClockSuspects() []clocks.Suspect {
	var out []clocks.Suspect
	for _, in := range l.openIncidents {
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

func (l *Loop) bindPath(o *fabric.Observation) {
	e, err := o.ParseFlow()
	if err != nil {
		return
	}
	end := o.Start.Add(time.Duration(o.WindowNS))
	if l.tables != nil {
		l.tables.FollowFlow(e, end)
	}
	b, _ := l.store.BindingAt(e, o.Start, end)
	if b.State == fabric.PathUnknown && len(b.Before) > 0 && lostAll(o) {
		// It went the old way: by the new one packets were seen to arrive.
		b.Path, b.State, b.Candidates = b.Before, fabric.PathStale, nil
	}
	o.Path, o.PathState, o.Paths, o.PathSince = b.Path, b.State, b.Candidates, b.Confirmed
	if m := l.flowRecords[e]; m != nil && m.baseline != nil {
		o.Baseline, o.BaselineMADNS = m.baseline, &m.baselineMAD
	}
}

// lostAll reports whether (nearly) everything a flow sent in its window was lost.
func lostAll(o *fabric.Observation) bool {
	return o.Sent > 0 && o.Lost*10 >= o.Sent*9
}

// confirmFindings turns the judgement of single windows into one that lasts: what has
// just begun, or just ended, is neither degraded nor healthy yet.
func (l *Loop) confirmFindings(raw []judge.Finding) (out []judge.Finding, pending int) {
	out = make([]judge.Finding, 0, len(raw))
	seen := map[fabric.Flow]bool{}
	for i := range raw {
		f := raw[i]
		seen[f.Flow] = true
		m := l.recordFor(f.Flow)
		m.lastCycle = l.cycle
		if !l.planner.wasQueried(f.Flow) {
			m.recentConditions, m.lastSent, m.lastLost = nil, 0, 0
		}
		m.recentConditions = append(m.recentConditions, f.Condition)
		if len(m.recentConditions) > confirmIn {
			m.recentConditions = m.recentConditions[1:]
		}
		hard := m.hardLoss(&f)
		bad := 0
		for _, c := range m.recentConditions {
			if c == judge.Degraded {
				bad++
			}
		}
		if l.cycle > m.hardUntil || f.HostSuspect {
			m.hard = nil // over, or the host's doing after all
		}
		if hard {
			m.hardUntil = l.cycle + hardMemory
			// Where it went is best known of the windows before anybody rerouted.
			lostMore := m.hard == nil || f.Obs.Lost*m.hard.Obs.Sent >= m.hard.Obs.Lost*f.Obs.Sent
			if lostMore && (m.hard == nil || len(f.Obs.Path) > 0 || len(m.hard.Obs.Path) == 0) {
				keep := f
				m.hard = &keep
			}
		}
		switch f.Condition {
		case judge.Degraded:
			if bad < confirmOf && !hard {
				f.Condition = judge.Undecided
				pending++
			}
		case judge.Healthy:
			if bad >= confirmIn-confirmOf+1 || endedIn(&f) {
				f.Condition = judge.Undecided
			}
		}
		if m.hard != nil && (f.Condition != judge.Degraded || len(f.Obs.Path) == 0) {
			f = *m.hard
		}
		out = append(out, f)
	}
	for e, m := range l.flowRecords {
		if !seen[e] && m.hard != nil && l.cycle <= m.hardUntil {
			out = append(out, *m.hard)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Flow.String() < out[j].Flow.String() })
	return out, pending
}
