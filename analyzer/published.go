package analyzer

import (
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/compare"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Counts holds the counters of a loop since its start.
type Counts struct {
	Cycles  uint64 // with evidence
	Failed  uint64 // without
	Skipped uint64 // left out, since the cycle before took too long
	// Last is the duration of the last cycle.
	Last time.Duration
}

// published represents what others may read while a cycle runs.
type published struct {
	mu     sync.RWMutex
	snap   snapshot.Snapshot
	counts Counts
	// changes announces each new snapshot. A loop that inherits has that of the loop before, whose readers follow it.
	changes *snapshot.Changes
}

func (p *published) inheritFrom(old *published) {
	p.snap, p.counts, p.changes = old.snap, old.counts, old.changes
	p.changes.Announce()
}

// Changes announces each new snapshot.
func (l *Loop) Changes() *snapshot.Changes { return l.published.changes }

// Snapshot returns the state after the last cycle.
func (l *Loop) Snapshot() snapshot.Snapshot {
	l.published.mu.RLock()
	defer l.published.mu.RUnlock()
	return l.published.snap
}

// SampleAge returns how old the newest samples of nine of ten nodes were in the last cycle, and whether that is known.
func (l *Loop) SampleAge() (age time.Duration, known bool) {
	if m := l.opts.Settings.Arrival; m != nil {
		return m.SampleAge()
	}
	return 0, false
}

// CycleCounts returns the counters of the loop.
func (l *Loop) CycleCounts() Counts {
	l.published.mu.RLock()
	defer l.published.mu.RUnlock()
	return l.published.counts
}

// measureCycle runs the cycle of a moment, and counts it. before is the moment of the last cycle, and zero for the first one.
func (p *published) measureCycle(now, before time.Time, interval time.Duration, step func() error) {
	began := time.Now()
	err := step()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Last = time.Since(began)
	if err == nil {
		p.counts.Cycles++
	} else {
		p.counts.Failed++
	}
	if !before.IsZero() {
		if late := int64(now.Sub(before)+interval/2) / int64(interval); late > 1 {
			p.counts.Skipped += uint64(late - 1)
		}
	}
}

func (p *published) countFailure() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Failed++
}

// recordNoEvidence publishes that a cycle had no evidence: open incidents are held, and nothing is innocent.
func (p *published) recordNoEvidence(err error) {
	defer p.changes.Announce()
	p.mu.Lock()
	defer p.mu.Unlock()
	incidents := slices.Clone(p.snap.Incidents)
	for i := range incidents {
		if incidents[i].Open {
			incidents[i].Held = incident.NoEvidence
		}
	}
	p.snap.Incidents = incidents
	p.snap.CycleError = err.Error()
	p.snap.Report.Coverage = fabric.Coverage{}
	p.snap.Scopes = scope.WithoutEvidence(p.snap.Scopes)
	if p.snap.Report.State == fabric.Innocent {
		p.snap.Report.State = fabric.InsufficientEvidence
	}
}

// cycleResult represents what a cycle found.
type cycleResult struct {
	now               time.Time
	report            fabric.Report
	findings          []judge.Finding
	carried           *selection.Carried
	window            *evidence.Window
	running           *jobs.Map
	pending, expected int
}

// publishSnapshot publishes the state after a cycle.
func (l *Loop) publishSnapshot(c *cycleResult) {
	w := c.window
	snap := snapshot.Snapshot{At: c.now, Every: l.opts.Settings.CycleInterval(), Report: c.report, Incidents: l.incidents.ListIncidents(), Paths: l.store.StateCounts(), PathMap: l.store.Version(), Hosts: w.Hosts, Floods: w.Floods, Signals: l.signals.currentFindings(),
		Baselines: l.countBaselines(), Expected: c.expected, Pending: c.pending, Maintenance: l.opts.Maintenance.CurrentWindows(c.now), MaintenanceSources: l.opts.Maintenance.SourceStates(), Warnings: w.Warnings, ClockOffsetNS: int64(w.ClockOffset), LagNS: int64(w.Lag), Placed: c.running}
	if l.opts.Shards != nil {
		snap.Shard = snapshot.NewShard(l.opts.Shards.Own, l.opts.Part, l.others.Load())
	}
	snap.FreshFor = freshCycles * snap.Every
	if l.planner.IsEnabled() {
		stats := l.planner.CycleStats()
		snap.Queries = &stats
		if stats.TwoSteps {
			snap.FreshFor += l.planner.RoundDuration()
		}
	}
	open := l.incidents.OwnedIncidents()
	snap.Report.Verdicts = []fabric.Verdict{}
	for i := range snap.Incidents {
		if snap.Incidents[i].Open {
			snap.Report.Verdicts = append(snap.Report.Verdicts, snap.Incidents[i].Verdict)
		}
	}
	snap.Report.Candidates = l.ownedCandidates(l.withoutVerdict(c.report.Candidates))
	switch {
	case slices.ContainsFunc(open, func(in *incident.Incident) bool { return !in.IsInformation() }):
		snap.Report.State = fabric.Suspect
	case c.report.State == fabric.Suspect || snap.Baselines+l.excludedWithoutBaseline() < c.expected:
		snap.Report.State = fabric.InsufficientEvidence
	}
	if g := l.store.Graph(); l.indices.links == nil || l.indices.links.Graph != g {
		l.indices.links, l.indices.scopes = snapshot.NewLinkIndex(g, l.opts.Part), scope.NewIndex(g, l.opts.Part)
	}
	snap.Links = l.indices.links.ViewLinks(c.report, c.findings, c.carried)
	snap.Edges = snapshot.ViewEdges(c.findings, l.excluder)
	snap.Scopes = scope.EvaluateScopes(&scope.Input{Index: l.indices.scopes, Cycle: l.progress.cycle, Report: &snap.Report, Links: scopeLinks(snap.Links), Findings: c.findings,
		Open: open, Jobs: c.running, Baselines: l.baselines.Book, Planner: l.planner, Excluder: l.excluder})
	l.matrix.Record(l.store.Graph(), &snap)
	l.published.mu.Lock()
	l.published.snap = snap
	l.published.mu.Unlock()
	l.published.changes.Announce()
}

// freshCycles is the number of cycles for which what was read of a flow counts, if every cycle reads all flows.
const freshCycles = 5

// Matrix returns what was last measured between the leaves.
func (l *Loop) Matrix() *matrix.Store { return l.matrix }

// PastMatrix returns what reads the matrix of past moments.
func (l *Loop) PastMatrix() *matrix.Past {
	return &matrix.Past{DB: evidence.NewLocalQuerier(l.opts.DB), Graph: l.store.Graph}
}

// NewComparer returns what compares spans of the past.
func (l *Loop) NewComparer() *compare.Comparer {
	return compare.New(evidence.NewLocalQuerier(l.opts.DB), l.store.Graph)
}

// Reports returns what makes the reports of verdicts.
func (l *Loop) Reports() *report.Collector {
	return &report.Collector{Snapshot: l.Snapshot, Store: l.store, DB: l.opts.DB, Evidence: l.opts.Settings, Now: time.Now}
}

// ownedCandidates returns the candidates that belong to the part.
func (l *Loop) ownedCandidates(candidates []fabric.Candidate) []fabric.Candidate {
	return slices.DeleteFunc(slices.Clone(candidates), func(c fabric.Candidate) bool { return !l.opts.Part.Owns(c.Element) })
}

// countBaselines returns the number of flows of the part with a baseline.
func (l *Loop) countBaselines() int {
	if l.opts.Part == nil {
		return l.baselines.CountBaselines(nil)
	}
	return l.baselines.CountBaselines(l.opts.Part.OwnsFlow)
}

// withoutVerdict returns the candidates that no open verdict names.
func (l *Loop) withoutVerdict(candidates []fabric.Candidate) []fabric.Candidate {
	return slices.DeleteFunc(slices.Clone(candidates), func(c fabric.Candidate) bool {
		return slices.ContainsFunc(l.incidents.OpenIncidents(), func(in *incident.Incident) bool {
			return in.Element == c.Element || slices.Contains(in.Equivalent, c.Element)
		})
	})
}

func scopeLinks(views []snapshot.LinkView) []scope.Link {
	out := make([]scope.Link, len(views))
	for i, v := range views {
		out[i] = scope.Link{Direction: fabric.Direction{From: v.From, To: v.To}, Covered: v.Edges > 0}
	}
	return out
}

// excludedWithoutBaseline returns the number of excluded flows without a baseline. The state does not wait for them.
func (l *Loop) excludedWithoutBaseline() (n int) {
	for e := range l.excluder.ExcludedFlows() {
		if !l.baselines.HasBaseline(e) && l.opts.Part.OwnsFlow(e) {
			n++
		}
	}
	return n
}
