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
	// Paths returns what a node has traced.
	Paths(ctx context.Context, node string) ([]fabric.Trace, error)
	// Trace asks a node to trace flows now.
	Trace(ctx context.Context, node string, edges []string) ([]fabric.Trace, error)
}

// Timing of the loop, in cycles of one evaluation each (one second by default).
const (
	// cycle is how long one is, unless the settings have another scrape interval.
	cycle = time.Second
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
	apartWithin, hardApartWithin = 8, 3
	// clockSteady is how long a clock that moved must have been steady since, and no fewer
	// than clearAfter cycles.
	clockSteady = 10 * time.Second
	// clearAfter cycles without evidence against it, and with evidence for it,
	// clear an element.
	clearAfter = 4
	// timelyClearAfter is for what comes and goes: it is not over when it pauses.
	timelyClearAfter = 8
	// learnWindows make a baseline; keepWindows is how many it remembers.
	learnWindows, keepWindows = 8, 120
	// expireEvery cycles what is too old leaves the path store.
	expireEvery = 10
	// warmUp cycles after the first evidence are not learnt from.
	warmUp = 2
	// vague is a bound, ns, of the two clocks of a flow with which nothing is learnt if
	// something is known already. Clocks begin with less: clocksync.LockBound each.
	vague = 2e6
)

// pullEvery is how often switches are asked for what changed, tablesEvery how often
// forwarding tables are read;
// retraceAfter is the age at which the path of a flow that matters now is asked for again;
// background re-tracing takes retraceAll for a round over all flows; flows of a
// suspect that was cleared are asked for again during afterCare.
const (
	pullEvery    = 500 * time.Millisecond
	tablesEvery  = 500 * time.Millisecond
	afterCare    = 10 * time.Second
	retraceAfter = 3 * time.Second
	retraceAll   = 60 * time.Second
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
	// Sightings are the switches that tell what crosses them; nil: paths come from
	// traces alone.
	Sightings *Sightings
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
	TwoSteps TwoSteps
	// Recall says what was normal before the loop began; nil: that is learnt.
	Recall func(context.Context) (evidence.History, error)
	// RecallVerdicts says what was published of verdicts before; nil: nobody knows.
	RecallVerdicts func(context.Context) ([]evidence.PastVerdict, error)
	Log            *slog.Logger
}

// every is the time between two cycles.
func (o *LoopOptions) every() time.Duration { return cmp.Or(o.Settings.Scrape, cycle) }

// Sightings say how the switches' agents are reached, and what probes look like.
type Sightings struct {
	Client   *http.Client
	URL      func(sw string) string // base, without a path
	Switches []string
	Mapper   paths.Mapper
}

// Loop asks, binds, judges, triangulates and keeps the verdicts, once a cycle.
type Loop struct {
	o     LoopOptions
	store *paths.Store
	edges map[fabric.Edge]*memory
	cand  map[fabric.Element]*candidacy
	open  []*Incident
	past  []*Incident
	// resume is what was open when the loop began.
	resume resume
	cycle  int
	watch  *clocks.Watch
	// history is what the flows did in the last cycles.
	history *classify.History
	engine  *triangulate.Engine
	// seenAt is the moment of the last evidence, flows how many were counted then and
	// before; unseen: a cycle since had none.
	seenAt time.Time
	unseen bool
	flows  []int
	seen   *paths.Sightings // nil: no switch tells
	pull   *paths.Puller
	near   *neighbours
	// tables bind flows of InfiniBand; nil: LoopOptions.Tables is.
	tables *paths.Tables

	asking *asking
	// aside is what is under maintenance in this cycle, touched what each window touched
	// so far, by its identifier.
	aside   aside
	touched map[string]*touched

	mu     sync.RWMutex
	snap   Snapshot
	counts Counts
	// refused counts the traces of nodes that were not used.
	refused map[TraceRefusal]uint64

	asks      chan traceAsk
	causeAsks chan causeAsk
	workMu    sync.Mutex
	inWork    map[fabric.Edge]bool
	warned    map[string]time.Time          // of nodes whose traces failed
	answers   map[string]fabric.Attribution // by incident
	asked     map[string]int                // in which cycle
}

// NewLoop returns a loop that has not run yet.
func NewLoop(o LoopOptions) *Loop {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Loop{o: o, store: paths.NewStore(o.Graph), edges: map[fabric.Edge]*memory{}, cand: map[fabric.Element]*candidacy{}, watch: clocks.NewWatch(), history: classify.NewHistory(o.every()),
		asks: make(chan traceAsk, 64), inWork: map[fabric.Edge]bool{}, causeAsks: make(chan causeAsk, 64), answers: map[string]fabric.Attribution{}, asked: map[string]int{}, touched: map[string]*touched{}, asking: newAsking(), refused: map[TraceRefusal]uint64{}, warned: map[string]time.Time{},
		snap: Snapshot{Report: fabric.Report{State: fabric.InsufficientEvidence, Verdicts: []fabric.Verdict{}, LinkDelays: []fabric.LinkDelay{}}}}
	l.near = newNeighbours(o.DB, o.Settings, l.store)
	if o.Tables != nil {
		l.tables = paths.NewTables(l.store, 0)
	}
	if from := o.Sightings; from != nil {
		l.seen = paths.NewSightings(l.store, from.Mapper)
		l.pull = &paths.Puller{Sightings: l.seen, Client: from.Client, URL: from.URL, Switches: from.Switches, Log: o.Log}
	}
	return l
}

// readTables takes a reading of the forwarding tables. One that fails confirms nothing:
// paths are stale until there are two more.
func (l *Loop) readTables(ctx context.Context) {
	r, err := l.o.Tables(ctx)
	if err != nil {
		if ctx.Err() == nil {
			l.o.Log.Error("forwarding tables", "err", err)
		}
		return
	}
	l.tables.Take(r)
}

// Store gives access to the bound paths.
func (l *Loop) Store() *paths.Store { return l.store }

// Maintenance is what somebody works on; nil: the loop is not told.
func (l *Loop) Maintenance() *maintenance.Register { return l.o.Maintenance }

// Switches are the states of the switches that tell what crosses them, and how
// often they were asked.
func (l *Loop) Switches() (map[string]paths.TableView, paths.PullCounts) {
	if l.pull == nil {
		return nil, paths.PullCounts{}
	}
	return l.seen.Tables(), l.pull.Counts()
}

// Run evaluates every interval until ctx ends, and waits for the tracing it
// started.
func (l *Loop) Run(ctx context.Context, interval time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if l.pull != nil {
		wg.Go(func() { l.pull.Run(ctx, pullEvery) })
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
	if !l.o.NoTraces {
		wg.Go(func() { l.pollPaths(ctx) })
		const tracers = 8
		for range tracers {
			wg.Go(func() { l.traceWorker(ctx) })
		}
	}
	if l.o.Causes != nil {
		wg.Go(func() { l.causeWorker(ctx) })
	}
	if l.o.Recall != nil && len(l.edges) == 0 {
		l.recall(ctx, interval)
		if l.o.RecallVerdicts != nil && ctx.Err() == nil {
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
			l.turn(now, before, interval, func() error {
				err := l.Step(ctx, now)
				if err != nil && ctx.Err() == nil {
					l.o.Log.Error("cycle failed", "err", err)
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

// Step runs one cycle at the moment now. What it asks for is the last multiple of the scrape
// interval, so that another analyzer beside the same Prometheus asks for the same: their
// verdicts then have the same first window, and so the same identifiers. They differ where one
// has missed a cycle, or knows fewer baselines since it was started later.
func (l *Loop) Step(ctx context.Context, now time.Time) error {
	w, err := l.ask(ctx, now.Truncate(l.o.Settings.Scrape))
	if err != nil {
		err = fmt.Errorf("evidence: %w", err)
		l.blind(err)
		return err
	}
	l.see(now)
	l.cycle++
	expected := l.expect(w.Flows)
	sort.Slice(w.Observations, func(i, j int) bool { return w.Observations[i].Edge < w.Observations[j].Edge })
	for _, o := range w.Observations {
		l.bind(o)
	}
	raw := judge.All(w.Observations, judge.Defaults())
	l.setAside(raw, now)
	moved := l.watch.Update(w.At, raw, series(w.Clocks))
	distrust(raw, append(l.movedBefore(), moved...))
	l.history.Add(raw)
	findings, pending := l.confirm(raw)
	l.note(raw, findings, now)
	unasked := l.vouch(findings, now)
	swapped := l.cables(now)
	l.recabled(swapped)
	g := l.store.Graph() // another one when cables were found swapped
	if l.engine == nil || l.engine.Graph() != g {
		l.engine = triangulate.NewEngine(g)
	}
	rep := infer(l.engine, &classify.Scene{Graph: g, Findings: findings, History: l.history, First: w.At}, moved, expected, &l.aside, unasked)
	rep.Verdicts = append(rep.Verdicts, swapped...)
	l.underMaintenance(&rep, now)
	l.track(rep, findings, pending, now)
	l.takeCauses()
	l.askCauses(now)
	running := l.o.Jobs.At(now)
	for _, in := range l.open {
		in.affect(running, cmp.Or(l.o.PageNICs, DefaultPageNICs))
	}
	if l.cycle%expireEvery == 0 {
		l.store.Expire(now)
		l.forget()
	}
	l.learn(raw)
	if !l.o.NoTraces {
		l.askTraces(findings, now)
	}
	l.publish(rep, findings, unasked, w, running, pending, expected, now)
	return nil
}

func series(of map[string]evidence.Clock) map[string]clocks.Series {
	out := make(map[string]clocks.Series, len(of))
	for nic, c := range of {
		out[nic] = clocks.Series{Steps: c.Steps, Drifts: c.Drifts, Offset: c.Offset, Drift: c.Drift}
	}
	return out
}

// movedBefore are the clocks whose verdicts are open: until they have been steady
// for a while, delays by them say nothing.
func (l *Loop) movedBefore() []clocks.Suspect {
	var out []clocks.Suspect
	for _, in := range l.open {
		if in.Kind != fabric.KindClock {
			continue
		}
		s := clocks.Suspect{NIC: in.Element.Element}
		for _, e := range in.Equivalent {
			s.Others = append(s.Others, e.Element)
		}
		out = append(out, s)
	}
	return out
}

func (l *Loop) bind(o *fabric.Observation) {
	e, err := o.Flow()
	if err != nil {
		return
	}
	end := o.Start.Add(time.Duration(o.WindowNS))
	if l.tables != nil {
		l.tables.Follow(e, end)
	}
	b, _ := l.store.At(e, o.Start, end)
	if b.State == fabric.PathUnknown && len(b.Before) > 0 && lostAll(o) {
		// It went the old way: by the new one packets were seen to arrive.
		b.Path, b.State, b.Candidates = b.Before, fabric.PathStale, nil
	}
	o.Path, o.PathState, o.Paths, o.PathSince = b.Path, b.State, b.Candidates, b.Confirmed
	if m := l.edges[e]; m != nil && m.base != nil {
		o.Baseline, o.BaselineMADNS = m.base, &m.mad
	}
}

// lostAll reports whether (nearly) everything a flow sent in its window was lost.
func lostAll(o *fabric.Observation) bool {
	return o.Sent > 0 && o.Lost*10 >= o.Sent*9
}

// confirm turns the judgement of single windows into one that lasts: what has
// just begun, or just ended, is neither degraded nor healthy yet.
func (l *Loop) confirm(raw []judge.Finding) (out []judge.Finding, pending int) {
	out = make([]judge.Finding, 0, len(raw))
	seen := map[fabric.Edge]bool{}
	for i := range raw {
		f := raw[i]
		seen[f.Edge] = true
		m := l.memory(f.Edge)
		m.cycle = l.cycle
		if !l.asking.askedBefore(f.Edge) {
			m.recent, m.lastSent, m.lastLost = nil, 0, 0
		}
		m.recent = append(m.recent, f.Condition)
		if len(m.recent) > confirmIn {
			m.recent = m.recent[1:]
		}
		hard := m.hardLoss(&f)
		bad := 0
		for _, c := range m.recent {
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
	for e, m := range l.edges {
		if !seen[e] && m.hard != nil && l.cycle <= m.hardUntil {
			out = append(out, *m.hard)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Edge.String() < out[j].Edge.String() })
	return out, pending
}
