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

// Agents represents the APIs of the nodes.
type Agents interface {
	// TracedPaths returns what a node has traced.
	TracedPaths(ctx context.Context, node string) ([]fabric.Trace, error)
	// TraceFlows makes a node trace flows, and returns the traces.
	TraceFlows(ctx context.Context, node string, edges []string) ([]fabric.Trace, error)
}

// Timing of the loop, in cycles of one evaluation each (one second by default).
const (
	// defaultCycle is the length of a cycle, unless the settings have another scrape interval.
	defaultCycle = time.Second
	// A flow is degraded when it was in confirmOf of the last confirmIn windows,
	// or with hard loss over two consecutive windows.
	confirmOf, confirmIn = 3, 4
	// Routing may avoid a hard failure before every flow has evidence of it, so hard
	// losses are remembered for hardMemory cycles.
	hardMemory = 5
	// An element must be named in openAfter consecutive cycles (hardOpenAfter for a hard
	// failure) while few flows wait for confirmation, otherwise in openAnyway cycles.
	openAfter, hardOpenAfter, openAnyway = 2, 1, 4
	// If no single flow is degraded, but many lost a little, the reason may be one burst.
	// The element must then be named for the time of several windows.
	softOpenAfter = 8
	// While flows without evidence could distinguish an element from its equivalents, a
	// verdict waits for so many cycles. Routing may avoid a hard failure.
	distinguishCycles, hardDistinguishCycles = 8, 3
	// clockSteady is the time for which a clock that moved must have been steady before its
	// verdict clears. It is at least clearAfter cycles.
	clockSteady = 10 * time.Second
	// clearAfter consecutive cycles that do not name an element, with healthy flows through
	// it, clear it.
	clearAfter = 4
	// spanningClearAfter applies to faults that come and go, since they are not over when they pause.
	spanningClearAfter = 8
	// learnWindows is the number of windows that a baseline needs, keepWindows the number that it keeps.
	learnWindows, keepWindows = 8, 120
	// Old entries leave the path store every expireEvery cycles.
	expireEvery = 10
	// Nothing is learnt in the first warmUp cycles after the first evidence.
	warmUp = 2
	// maxLearnBound is the bound of the two clocks of a flow, in nanoseconds, from which a known
	// baseline learns nothing. Clocks begin with less: clocksync.LockBound each.
	maxLearnBound = 2e6
)

// pullEvery is the interval at which sightings are pulled from switches, and tablesEvery the one at
// which forwarding tables are read. retraceAfter is the age at which the path of a flow that matters
// now is traced again. Tracing all flows in the background takes retraceAll. Flows of a cleared
// suspect are traced again for retraceAfterClear.
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
	// Expected is the number of directed flows, with probes and replies counted separately.
	// 0 means the largest number of the last ten minutes.
	Expected int
	// SwitchAgents are the switches that report sightings. Nil means that paths come from
	// traces alone.
	SwitchAgents *SwitchAgents
	// Tables reads the forwarding tables of an InfiniBand fabric, as ibfabric.Watch does.
	// Nil means that there is no such fabric.
	Tables func(context.Context) (ibfabric.Reading, error)
	// Causes finds why an element is at fault. Nil means that causes are not queried.
	Causes Causes
	// Maintenance has the maintenance windows. Nil means that there are none.
	Maintenance *maintenance.Register
	// Jobs has the placements of jobs. Nil means that they are unknown.
	Jobs *jobs.Register
	// PageNICs is the blast radius above which a verdict that affects no job is critical. 0
	// means DefaultPageNICs.
	PageNICs int
	// NoTraces means that paths come from sightings or forwarding tables alone.
	NoTraces bool
	// TwoSteps configures queries of selected flows. By default every cycle queries all flows.
	TwoSteps TwoStepOptions
	// Recall returns the baselines from before the loop started. Nil means that they are learnt.
	Recall func(context.Context) (evidence.History, error)
	// RecallVerdicts returns the verdicts that were published before. Nil means that they are unknown.
	RecallVerdicts func(context.Context) ([]evidence.PastVerdict, error)
	Log            *slog.Logger
}

// cycleInterval returns the time between two cycles.
func (o *LoopOptions) cycleInterval() time.Duration { return cmp.Or(o.Settings.Scrape, defaultCycle) }

// SwitchAgents configures the access to the agents of switches, and the mapping of their sightings to flows.
type SwitchAgents struct {
	Client   *http.Client
	URL      func(sw string) string // returns the base URL of a switch, without a path
	Switches []string
	Mapper   paths.Mapper
}

// Loop runs one cycle after the other: it queries the evidence, binds paths, judges, triangulates, and keeps the
// incidents.
type Loop struct {
	opts            LoopOptions
	store           *paths.Store
	flowRecords     map[fabric.Flow]*flowRecord
	pendingSuspects map[fabric.Element]*pendingSuspect
	openIncidents   []*Incident
	pastIncidents   []*Incident
	// resumption holds the verdicts that were open when the loop started.
	resumption resumption
	cycle      int
	clockWatch *clocks.Watch
	// history holds the conditions of the flows in the last cycles.
	history *classify.History
	engine  *triangulate.Engine
	// lastEvidenceAt is the moment of the last evidence, flowCounts the numbers of flows then and
	// before. missedEvidence is set if a cycle since had no evidence.
	lastEvidenceAt time.Time
	missedEvidence bool
	flowCounts     []int
	sightings      *paths.Sightings // nil if no switch reports sightings
	puller         *paths.Puller
	neighbours     *neighbourPoller
	// tables binds flows of InfiniBand. It is nil if LoopOptions.Tables is.
	tables *paths.Tables

	planner *planner
	// excluded has the flows under maintenance in this cycle, and touchedByWindow the flows that
	// each window has touched so far, by its identifier.
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

// readTables reads the forwarding tables. A reading that fails confirms nothing, and paths are
// stale until two more succeed.
func (l *Loop) readTables(ctx context.Context) {
	r, err := l.opts.Tables(ctx)
	if err != nil {
		if ctx.Err() == nil {
			l.opts.Log.Error("cannot read forwarding tables", "err", err)
		}
		return
	}
	l.tables.ApplyReading(r)
}

// PathStore returns the store of the bound paths.
func (l *Loop) PathStore() *paths.Store { return l.store }

// MaintenanceRegister returns the maintenance windows, or nil if the loop has none.
func (l *Loop) MaintenanceRegister() *maintenance.Register { return l.opts.Maintenance }

// SwitchStates returns the states of the switches that report sightings, and the numbers of
// requests to them.
func (l *Loop) SwitchStates() (map[string]paths.TableView, paths.PullCounts) {
	if l.puller == nil {
		return nil, paths.PullCounts{}
	}
	return l.sightings.TableViews(), l.puller.TotalCounts()
}

// Run runs a cycle every interval until ctx ends, and waits for the goroutines that it
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
			// The tick may have waited for a slow cycle. The next one evaluates the present moment.
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

// untilNext returns the time until the next cycle. Cycles begin shortly after the multiples of the
// interval, which are the moments that they evaluate.
func untilNext(now time.Time, interval time.Duration) time.Duration {
	after := interval / 20
	return now.Add(-after).Truncate(interval).Add(interval + after).Sub(now)
}

// RunCycle runs one cycle at the moment now. It evaluates the last multiple of the scrape interval,
// so that another analyzer with the same Prometheus evaluates the same moment. Their verdicts
// then have the same first window, and so the same identifiers. They differ if one analyzer has
// missed a cycle, or has fewer baselines because it was started later. RunCycle fails if the
// evidence cannot be read.
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
	g := l.store.Graph() // a different one if cables were found swapped
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

// openClockSuspects returns the clocks whose verdicts are open. Delays measured with them are no
// evidence until they have been steady for a while.
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
		// The flow took the old path, since packets arrived by the new one.
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

// confirmFindings returns findings that several windows confirm, and the number of flows that wait
// for confirmation. A condition that has just begun or ended is undecided.
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
			m.hard = nil // over, or the fault of the host
		}
		if hard {
			m.hardUntil = l.cycle + hardMemory
			// The windows before routing changed have the most reliable path.
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
