package analyzer

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/paths"
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
	// A flow is degraded when it was in confirmOf of the last confirmIn windows,
	// or with hard loss over two windows running.
	confirmOf, confirmIn = 3, 4
	// A hard failure may be routed around before every flow has told of it:
	// what it did is remembered this long.
	hardMemory = 5
	// An element must be named openAfter cycles running (hardOpenAfter for a hard
	// failure) while few flows are still waiting for confirmation, or longer.
	openAfter, hardOpenAfter, openAnyway = 2, 1, 4
	// While flows are silent that could tell an element from those that look like
	// it, its name is waited for so long (a hard failure may be routed around).
	apartWithin, hardApartWithin = 8, 3
	// clockSteady is how long a clock that moved must have been steady since.
	clockSteady = 10 * time.Second
	// clearAfter cycles without evidence against it, and with evidence for it,
	// clear an element.
	clearAfter = 4
	// learnWindows make a baseline; keepWindows is how many it remembers.
	learnWindows, keepWindows = 8, 120
	// expireEvery cycles what is too old leaves the path store.
	expireEvery = 10
	// warmUp cycles after the first evidence are not learnt from.
	warmUp = 2
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
	// Expected is the number of directed flows, probes and replies counted apart.
	Expected int
	// Sightings are the switches that tell what crosses them; nil: paths come from
	// traces alone.
	Sightings *Sightings
	// Tables reads the forwarding tables of an InfiniBand fabric, as ibfabric.Watch does;
	// nil: there is none.
	Tables func(context.Context) (ibfabric.Reading, error)
	// NoTraces: paths come from sightings alone, or from forwarding tables.
	NoTraces bool
	Log      *slog.Logger
}

// Sightings say how the switches' agents are reached, and what probes look like.
type Sightings struct {
	Client   *http.Client
	URL      func(sw string) string // base, without a path
	Switches []string
	Mapper   paths.Mapper
}

// Incident is a verdict with its life.
type Incident struct {
	fabric.Verdict
	Open     bool       `json:"open"`
	OpenedAt time.Time  `json:"opened_at"`
	LastSeen time.Time  `json:"last_seen"`
	Cleared  *time.Time `json:"cleared_at,omitempty"`
	// Why it was closed: healed, or replaced by a better explanation.
	Closed string `json:"closed,omitempty"`
	// Held says why an open incident without fresh symptoms is not cleared.
	Held string `json:"held,omitempty"`

	missing  int
	crossing map[fabric.Edge]bool // the flows that crossed it when it opened
}

// LinkView is one direction of a link as the probes see it now.
type LinkView struct {
	Link         string  `json:"link"`
	From         string  `json:"from"`
	To           string  `json:"to"`
	Edges        int     `json:"edges"`
	Degraded     int     `json:"degraded_edges"`
	AddedDelayNS *int64  `json:"added_delay_ns,omitempty"`
	LossRatio    float64 `json:"loss_ratio"`
}

// EdgeView is one directed flow as it was seen last.
type EdgeView struct {
	Obs       fabric.Observation `json:"observation"`
	Condition string             `json:"condition"`
}

// Snapshot is the state of the analyzer after a cycle.
type Snapshot struct {
	At         time.Time                `json:"at"`
	Report     fabric.Report            `json:"report"`
	Incidents  []Incident               `json:"incidents"` // newest first
	Links      []LinkView               `json:"links"`
	Edges      []EdgeView               `json:"-"`
	Paths      map[fabric.PathState]int `json:"paths"`
	PathMap    uint64                   `json:"path_map_version"`
	Hosts      map[string]string        `json:"hosts,omitempty"`
	Baselines  int                      `json:"baselines"`
	Expected   int                      `json:"expected_edges"`
	Pending    int                      `json:"pending_edges"`
	CycleError string                   `json:"cycle_error,omitempty"`
}

// Loop asks, binds, judges, triangulates and keeps the verdicts, once a cycle.
type Loop struct {
	o     LoopOptions
	store *paths.Store
	edges map[fabric.Edge]*memory
	cand  map[fabric.Element]*candidacy
	open  []*Incident
	past  []*Incident
	cycle int
	watch *clocks.Watch
	seen  *paths.Sightings // nil: no switch tells
	pull  *paths.Puller
	// tables bind flows of InfiniBand; nil: LoopOptions.Tables is.
	tables *paths.Tables

	mu   sync.RWMutex
	snap Snapshot

	asks   chan traceAsk
	inWork map[fabric.Edge]bool
	workMu sync.Mutex
}

type traceAsk struct {
	node  string
	edges []fabric.Edge
}

type candidacy struct {
	verdict fabric.Verdict
	first   time.Time
	seen    int
	cycle   int
}

// memory is what the loop remembers of one flow.
type memory struct {
	p50, p99 []int64
	base     *fabric.Quantiles
	mad      int64
	seen     int
	recent   []judge.Condition
	// lastSent and lastLost are the last window's when it was lossy, else 0.
	lastSent, lastLost uint64
	// hard is the worst window of a confirmed hard loss, remembered until the
	// cycle hardUntil.
	hard      *judge.Finding
	hardUntil int
}

// hardLoss takes a window and reports whether it and the one before were both
// lossy, with hard loss over the two. (The counters of the two nodes are not
// read at the same instant: the first window of a total loss can look like half
// of one.)
func (m *memory) hardLoss(f *judge.Finding) bool {
	switch {
	case f.Condition == judge.Undecided:
		return false
	case !f.Lossy:
		m.lastSent, m.lastLost = 0, 0
		return false
	}
	sent, lost := m.lastSent, m.lastLost
	m.lastSent, m.lastLost = f.Obs.Sent, f.Obs.Lost
	return sent > 0 && float64(lost+m.lastLost) >= judge.Defaults().HardLoss*float64(sent+m.lastSent)
}

// NewLoop returns a loop that has not run yet.
func NewLoop(o LoopOptions) *Loop {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Loop{o: o, store: paths.NewStore(o.Graph), edges: map[fabric.Edge]*memory{}, cand: map[fabric.Element]*candidacy{}, watch: clocks.NewWatch(),
		asks: make(chan traceAsk, 64), inWork: map[fabric.Edge]bool{},
		snap: Snapshot{Report: fabric.Report{State: fabric.InsufficientEvidence, Verdicts: []fabric.Verdict{}, LinkDelays: []fabric.LinkDelay{}}}}
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

// Switches are the states of the switches that tell what crosses them, and how
// often they were asked.
func (l *Loop) Switches() (map[string]paths.TableView, paths.PullCounts) {
	if l.pull == nil {
		return nil, paths.PullCounts{}
	}
	return l.seen.Tables(), l.pull.Counts()
}

// Snapshot returns the state after the last cycle.
func (l *Loop) Snapshot() Snapshot {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.snap
}

// Run evaluates every interval until ctx ends, and waits for the tracing it
// started.
func (l *Loop) Run(ctx context.Context, interval time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if l.pull != nil {
		wg.Go(func() { l.pull.Run(ctx, pullEvery) })
	}
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
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if err := l.Step(ctx, now); err != nil && ctx.Err() == nil {
				l.o.Log.Error("cycle failed", "err", err)
				l.mu.Lock()
				l.snap.CycleError = err.Error()
				l.mu.Unlock()
			}
		}
	}
}

// Step runs one cycle for the moment now.
func (l *Loop) Step(ctx context.Context, now time.Time) error {
	w, err := evidence.Ask(ctx, l.o.DB, l.o.Settings, l.o.Graph, now)
	if err != nil {
		return fmt.Errorf("evidence: %w", err)
	}
	l.cycle++
	sort.Slice(w.Observations, func(i, j int) bool { return w.Observations[i].Edge < w.Observations[j].Edge })
	for _, o := range w.Observations {
		l.bind(o)
	}
	raw := judge.All(w.Observations, judge.Defaults())
	moved := l.watch.Update(w.At, raw, series(w.Clocks))
	distrust(raw, append(l.movedBefore(), moved...))
	findings, pending := l.confirm(raw)
	swapped := l.cables(now)
	rep := Infer(l.store.Graph(), findings, moved, l.o.Expected, w.At)
	rep.Verdicts = append(rep.Verdicts, swapped...)
	l.track(rep, findings, pending, now)
	if l.cycle%expireEvery == 0 {
		l.store.Expire(now)
	}
	l.learn(raw)
	if !l.o.NoTraces {
		l.askTraces(findings, now)
	}
	l.publish(rep, findings, w, pending, now)
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
			if bad >= confirmIn-confirmOf+1 {
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

func (l *Loop) memory(e fabric.Edge) *memory {
	m := l.edges[e]
	if m == nil {
		m = &memory{}
		l.edges[e] = m
	}
	return m
}

// learn adds healthy windows to the baselines. Nothing is learnt while an
// incident is open: what is wrong must not become normal.
func (l *Loop) learn(raw []judge.Finding) {
	for i := range raw {
		f := &raw[i]
		m := l.memory(f.Edge)
		m.seen++
		if m.seen <= warmUp || f.Obs.OWD == nil || f.Obs.OWD.P50 == nil || f.HostSuspect || f.ClockSuspect {
			continue
		}
		if m.base != nil && (len(l.open) > 0 || f.Condition != judge.Healthy) {
			continue
		}
		m.p50 = push(m.p50, *f.Obs.OWD.P50)
		if f.Obs.OWD.P99 != nil {
			m.p99 = push(m.p99, *f.Obs.OWD.P99)
		}
		if len(m.p50) < learnWindows || m.base != nil && l.cycle%10 != 0 {
			continue
		}
		p50, mad := medianMAD(append([]int64(nil), m.p50...))
		m.base, m.mad = &fabric.Quantiles{P50: &p50}, mad
		if len(m.p99) > 0 {
			p99, _ := medianMAD(append([]int64(nil), m.p99...))
			m.base.P99 = &p99
		}
	}
}

func push(ring []int64, v int64) []int64 {
	ring = append(ring, v)
	if len(ring) > keepWindows {
		ring = ring[1:]
	}
	return ring
}

// track opens, refreshes, holds and clears incidents.
func (l *Loop) track(rep fabric.Report, findings []judge.Finding, pending int, now time.Time) {
	named := map[fabric.Element]bool{}
	replaced := map[*Incident]fabric.Verdict{}
	for _, v := range rep.Verdicts {
		named[v.Element] = true
		if in := l.openFor(v); in != nil {
			named[in.Element] = true
			if in.outdone(v) {
				replaced[in] = v
			} else {
				l.refresh(in, v, now)
			}
			continue
		}
		c := l.cand[v.Element]
		if c == nil || c.cycle != l.cycle-1 {
			c = &candidacy{first: v.FirstSeen}
			l.cand[v.Element] = c
		}
		c.verdict, c.cycle = v, l.cycle
		c.seen++
		need := openAfter
		// Clean flows through what is said to be dead: not all have told yet.
		if v.Scenario == fabric.HardFailure && v.Evidence.ContraryEdges == 0 || v.Scenario == fabric.Miscabled {
			need = hardOpenAfter
		}
		settled := pending*4 <= rep.Edges.Degraded || v.Kind == fabric.KindClock || v.Scenario == fabric.Miscabled
		if c.seen < openAnyway && (c.seen < need || !settled) {
			continue
		}
		apart := apartWithin
		if v.Scenario == fabric.HardFailure {
			apart = hardApartWithin
		}
		if c.seen >= apart || !l.couldTell(v, findings) {
			l.openIncident(c, now)
		}
	}
	for el, c := range l.cand {
		if c.cycle != l.cycle {
			delete(l.cand, el)
		}
	}
	var still []*Incident
	var better []*candidacy
	for _, in := range l.open {
		v, yes := replaced[in]
		if yes {
			better = append(better, &candidacy{verdict: v, first: in.FirstSeen})
			in.Closed = "replaced: the evidence now names " + v.Element.Element
		}
		if yes || !named[in.Element] && l.cleared(in, findings, now) {
			t := now
			in.Open, in.Cleared = false, &t
			l.past = append(l.past, in)
			l.o.Log.Info("verdict cleared", "element", in.Element.Element, "why", in.Closed)
			continue
		}
		still = append(still, in)
	}
	l.open = still
	for _, c := range better {
		l.openIncident(c, now)
	}
	const keepPast = 1000
	if len(l.past) > keepPast {
		l.past = l.past[len(l.past)-keepPast:]
	}
}

// couldTell reports whether flows that have a baseline, but do not tell now,
// cross the element of a verdict and not all that look like it, or the reverse.
func (l *Loop) couldTell(v fabric.Verdict, findings []judge.Finding) bool {
	if len(v.Alike) == 0 {
		return false
	}
	tells := map[fabric.Edge]bool{}
	for i := range findings {
		if findings[i].Condition != judge.Undecided {
			tells[findings[i].Edge] = true
		}
	}
	named := fabric.Place{Element: v.Element}
	named.Direction, _ = fabric.ParseDirection(v.Direction)
	crossed := map[fabric.Edge]int{}
	for _, p := range append([]fabric.Place{named}, v.Alike...) {
		for _, e := range l.store.Crossing(p.Element) {
			m := l.edges[e]
			if tells[e] || m == nil || m.base == nil {
				continue
			}
			b, _ := l.store.Bind(e)
			src, dst := e.Ends()
			if p.Direction == (fabric.Direction{}) || slices.Contains(b.Path.Directions(src, dst), p.Direction) {
				crossed[e]++
			}
		}
	}
	for _, n := range crossed {
		if n <= len(v.Alike) {
			return true
		}
	}
	return false
}

// outdone reports whether a verdict tells an incident's element from what looked
// like it when it opened, by no less evidence: it was the other one.
func (in *Incident) outdone(v fabric.Verdict) bool {
	alike := slices.ContainsFunc(in.Alike, func(p fabric.Place) bool { return p.Element == v.Element })
	return alike && !slices.Contains(v.Equivalent, in.Element) && v.Evidence.ExplainedEdges >= in.Evidence.ExplainedEdges
}

// openFor finds the open incident that a verdict is about: the same element, or
// one that the evidence could not tell from it.
func (l *Loop) openFor(v fabric.Verdict) *Incident {
	for _, in := range l.open {
		if in.Element == v.Element || slices.Contains(in.Equivalent, v.Element) || slices.Contains(v.Equivalent, in.Element) {
			return in
		}
	}
	return nil
}

func (l *Loop) openIncident(c *candidacy, now time.Time) {
	v := c.verdict
	v.FirstSeen = c.first
	v.ID = classify.ID(v.Kind, v.Element.Element, v.FirstSeen)
	in := &Incident{Verdict: v, Open: true, OpenedAt: now, LastSeen: now, crossing: map[fabric.Edge]bool{}}
	for _, e := range l.store.Crossing(v.Element) {
		in.crossing[e] = true
	}
	for _, s := range v.Edges {
		// Where they go says nothing about a clock.
		if e, err := fabric.ParseEdge(s); err == nil && v.Kind != fabric.KindClock {
			in.crossing[e] = true
		}
	}
	l.open = append(l.open, in)
	delete(l.cand, v.Element)
	l.o.Log.Warn("verdict", "element", v.Element.Element, "kind", v.Kind, "scenario", v.Scenario, "direction", v.Direction,
		"confidence", v.Confidence, "flows", v.Evidence.ExplainedEdges)
}

// refresh takes fresh evidence into an open incident. Its scenario never
// softens while it is open: a failure that was routed around is still one. Nor
// does a clock's evidence shrink.
func (l *Loop) refresh(in *Incident, v fabric.Verdict, now time.Time) {
	in.missing, in.Held, in.LastSeen = 0, "", now
	if in.Kind == fabric.KindClock && v.Element == in.Element && v.Evidence.ExplainedEdges == 0 {
		// The flows told whom it touched; its node, a little later, what it was.
		in.Summary = v.Summary
		return
	}
	if v.Element != in.Element || in.Scenario == fabric.HardFailure && v.Scenario != fabric.HardFailure || v.Evidence.ExplainedEdges*2 < in.Evidence.ExplainedEdges {
		return
	}
	v.ID, v.FirstSeen = in.ID, in.FirstSeen
	in.Verdict = v
}

// cleared decides whether an incident that the report no longer names is over:
// only probes that cross the element, by a path traced since it opened, and
// are healthy can say so. An element that nothing crosses stays suspect.
func (l *Loop) cleared(in *Incident, findings []judge.Finding, now time.Time) bool {
	if in.Scenario == fabric.Miscabled {
		in.Closed = "healed: the cables are where the topology has them"
		return true
	}
	if in.Kind == fabric.KindClock {
		in.Closed = "the clock is steady again"
		return now.Sub(in.LastSeen) >= clockSteady
	}
	in.missing++
	if in.missing < clearAfter {
		return false
	}
	clean, bad := 0, 0
	for i := range findings {
		f := &findings[i]
		if f.Obs.PathState != fabric.PathValid || !f.Obs.PathSince.After(in.OpenedAt) {
			continue
		}
		src, dst := f.Edge.Ends()
		if !paths.Crosses(f.Obs.Path, src, dst, in.Element) {
			continue
		}
		switch f.Condition {
		case judge.Healthy:
			clean++
		case judge.Degraded:
			bad++
		}
	}
	switch {
	case clean == 0:
		in.Held = "no healthy probe has crossed it since: the fabric shows it unused"
		return false
	case bad > clean:
		in.Held = "flows that cross it are still degraded"
		return false
	}
	in.Closed = "healed: probes that cross it are clean again"
	return true
}

// askTraces requests the paths that matter now: of degraded flows, of flows
// that cross an open suspect, of flows without a path; and slowly of all.
func (l *Loop) askTraces(findings []judge.Finding, now time.Time) {
	want := map[fabric.Edge]bool{}
	old := func(e fabric.Edge, age time.Duration) {
		if b, ok := l.store.Bind(e); !ok || now.Sub(b.Checked) >= age {
			want[e] = true
		}
	}
	for i := range findings {
		f := &findings[i]
		switch {
		case f.Condition == judge.Degraded:
			old(f.Edge, retraceAfter)
		case f.Obs.PathState != fabric.PathValid:
			old(f.Edge, 2*retraceAfter)
		}
	}
	for _, in := range l.open {
		for e := range in.crossing {
			old(e, retraceAfter)
		}
	}
	// What was routed around a suspect goes back when it is healed.
	for i := len(l.past) - 1; i >= 0 && now.Sub(*l.past[i].Cleared) < afterCare; i-- {
		for e := range l.past[i].crossing {
			old(e, retraceAfter)
		}
	}
	for _, e := range l.store.Turn(l.cycle, int(retraceAll/time.Second)) {
		old(e, retraceAll/2)
	}
	byNode := map[string][]fabric.Edge{}
	l.workMu.Lock()
	for e := range want {
		if !l.inWork[e] {
			from, _ := e.Ends()
			node := fabric.OwnerOf(from)
			byNode[node] = append(byNode[node], e)
		}
	}
	for node, edges := range byNode {
		select {
		case l.asks <- traceAsk{node, edges}:
			for _, e := range edges {
				l.inWork[e] = true
			}
		default: // the queue is full: the next cycle asks again
		}
	}
	l.workMu.Unlock()
}

func (l *Loop) traceWorker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-l.asks:
			names := make([]string, len(a.edges))
			for i, e := range a.edges {
				names[i] = e.String()
			}
			tctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			traces, err := l.o.Agents.Trace(tctx, a.node, names)
			cancel()
			if err != nil && ctx.Err() == nil {
				l.o.Log.Debug("trace failed", "node", a.node, "err", err)
			}
			l.take(traces)
			l.workMu.Lock()
			for _, e := range a.edges {
				delete(l.inWork, e)
			}
			l.workMu.Unlock()
		}
	}
}

func (l *Loop) take(traces []fabric.Trace) {
	for _, t := range traces {
		if err := l.store.Update(t); err != nil {
			l.o.Log.Warn("trace not used", "edge", t.Edge, "err", err)
		}
	}
}

// pollPaths reads what the nodes traced of themselves, at start above all.
func (l *Loop) pollPaths(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for i := range l.o.Graph.Topo.Nodes {
			traces, err := l.o.Agents.Paths(ctx, l.o.Graph.Topo.Nodes[i].Name)
			if err == nil {
				l.take(traces)
			}
		}
		// Once every flow is known, asking now and then is enough.
		if l.store.States()[fabric.PathValid] >= l.o.Expected && l.o.Expected > 0 {
			tick.Reset(10 * time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (l *Loop) publish(rep fabric.Report, findings []judge.Finding, w evidence.Window, pending int, now time.Time) {
	snap := Snapshot{At: now, Report: rep, Paths: l.store.States(), PathMap: l.store.Version(), Hosts: w.Hosts, Expected: l.o.Expected, Pending: pending}
	for _, m := range l.edges {
		if m.base != nil {
			snap.Baselines++
		}
	}
	snap.Report.Verdicts = []fabric.Verdict{}
	for i := len(l.open) - 1; i >= 0; i-- {
		snap.Incidents = append(snap.Incidents, *l.open[i])
		snap.Report.Verdicts = append(snap.Report.Verdicts, l.open[i].Verdict)
	}
	for i := len(l.past) - 1; i >= 0; i-- {
		snap.Incidents = append(snap.Incidents, *l.past[i])
	}
	switch {
	case len(l.open) > 0:
		snap.Report.State = fabric.Suspect
	case rep.State == fabric.Suspect || snap.Baselines < l.o.Expected:
		snap.Report.State = fabric.InsufficientEvidence
	}
	snap.Links = l.links(rep, findings)
	for i := range findings {
		snap.Edges = append(snap.Edges, EdgeView{Obs: *findings[i].Obs, Condition: condition(&findings[i])})
	}
	l.mu.Lock()
	l.snap = snap
	l.mu.Unlock()
}

func condition(f *judge.Finding) string {
	switch {
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

// links is every directed link of the topology with what crosses it.
func (l *Loop) links(rep fabric.Report, findings []judge.Finding) []LinkView {
	at := map[fabric.Direction]*LinkView{}
	var order []fabric.Direction
	for _, link := range l.store.Graph().Topo.Links {
		for _, d := range []fabric.Direction{{From: link.A, To: link.B}, {From: link.B, To: link.A}} {
			at[d] = &LinkView{Link: link.ID(), From: d.From, To: d.To}
			order = append(order, d)
		}
	}
	clean := map[fabric.Direction]bool{}
	for i := range findings {
		f := &findings[i]
		if f.Condition == judge.Undecided {
			continue
		}
		src, dst := f.Edge.Ends()
		for _, d := range f.Obs.Path.Directions(src, dst) {
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
	for d := range clean {
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
			if v.Direction == d.String() || v.Direction == "" && v.Kind == fabric.KindLink && v.Element.Element == view.Link {
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
