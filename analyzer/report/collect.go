package report

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/asking"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Bounds of the queries for a report.
const (
	patience = 8 * time.Second
	parallel = 4
	// keptOpen is how long a report counts that is not complete, and maxKept the number of reports that are kept.
	keptOpen = 5 * time.Second
	maxKept  = 64
)

// ErrUnknown means that no verdict has an identifier.
var ErrUnknown = errors.New("no verdict has this identifier: it never had one, or the verdict closed too long ago")

// Collector makes reports.
type Collector struct {
	Snapshot func() snapshot.Snapshot
	Store    *paths.Store
	// DB answers queries. What it cannot answer is unknown in the reports: an evidence.Ranger has time lines, and an
	// evidence.Distributor distributions.
	DB evidence.Querier
	// Evidence has the times of the queries.
	Evidence evidence.Settings
	// Version is that of the program, ConfigHash that of its configuration, and Shard its part of the fabric. All may be "".
	Version, ConfigHash, Shard string
	Now                        func() time.Time

	mu   sync.Mutex
	kept []*keptReport // the last ones that somebody wanted, the newest first
	hash struct {
		graph *fabric.Graph
		text  string
	}
}

// keptReport is a report, or one that is being made.
type keptReport struct {
	id     string
	mu     sync.Mutex // held while it is made
	report *Report
	madeAt time.Time
	state  string // of the incident when it was made
}

// Report returns the report of a verdict. Reports that were made lately are used again. It fails with ErrUnknown if there is no such
// verdict, and if ctx ends.
func (c *Collector) Report(ctx context.Context, id string) (*Report, error) {
	all := c.Snapshot().Incidents
	i := slices.IndexFunc(all, func(in incident.Incident) bool { return in.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("%w: %q", ErrUnknown, id)
	}
	in := &all[i]
	k := c.keptFor(id)
	k.mu.Lock()
	defer k.mu.Unlock()
	// A closed verdict may have opened again, or have another cause since.
	state := fmt.Sprint(in.Open, in.LastSeen, in.Attribution != nil && !in.Attribution.Until.IsZero())
	if k.report != nil && (k.report.isFinal() && !in.Open && k.state == state || c.Now().Sub(k.madeAt) < keptOpen) {
		return k.report, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := c.build(ctx, in)
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return nil, err // the client is gone, and its report may lack answers
	}
	k.report, k.madeAt, k.state = r, c.Now(), state
	return r, nil
}

// isFinal reports whether a later report of the same verdict would have the same, or less where Prometheus has dropped data since.
func (r *Report) isFinal() bool {
	return r.Complete && !slices.ContainsFunc(r.Queries, func(q Query) bool { return q.Problem != "" || len(q.Warnings) > 0 })
}

// keptFor returns the place of a verdict's report.
func (c *Collector) keptFor(id string) *keptReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.kept, func(k *keptReport) bool { return k.id == id })
	k := &keptReport{id: id}
	if i >= 0 {
		k = c.kept[i]
		c.kept = slices.Delete(c.kept, i, i+1)
	}
	c.kept = append([]*keptReport{k}, c.kept[:min(len(c.kept), maxKept-1)]...)
	return k
}

// builder makes one report.
type builder struct {
	*Collector
	store    *paths.Store
	graph    *fabric.Graph
	report   *Report
	grain    grain // that was asked last
	opening  *opening
	named    map[fabric.Direction]bool
	affected []fabric.Flow
	ahead    time.Duration // of the server's clock

	queries sync.Mutex
	limit   chan struct{}
}

// build makes the report of an incident. What cannot be read in time is unknown.
func (c *Collector) build(ctx context.Context, in *incident.Incident) *Report {
	g := c.Store.Graph()
	b := &builder{Collector: c, store: c.Store, graph: g, limit: make(chan struct{}, parallel)}
	b.report = &Report{Format: format, Verdict: *in, Delays: []Distribution{}, Affected: []Flow{}, Healthy: []Flow{}, Lines: []Line{}, Causes: []Cause{},
		Queries: []Query{}, Unknown: []string{}}
	r := b.report
	if in.Open {
		r.Verdict.Verdict = asking.NewPlanner(g).AddVerdictMeasurements([]fabric.Verdict{in.Verdict})[0]
	}
	b.named = namedDirections(in, g)
	var unknown string
	if b.opening, unknown = readOpening(in); unknown != "" {
		r.Unknown = append(r.Unknown, unknown)
	}
	affected, total, presumed := affectedFlows(in, b.opening, c.Store)
	if presumed != "" {
		r.Unknown = append(r.Unknown, presumed)
	}
	b.affected, r.AffectedTotal = affected, total
	for _, f := range affected[:min(len(affected), maxAffected)] {
		r.Affected = append(r.Affected, b.describeFlow(f, ""))
	}
	near := healthyNeighbours(in, b.opening, affected)
	r.HealthyTotal = len(near)
	for _, n := range near[:min(len(near), maxHealthy)] {
		r.Healthy = append(r.Healthy, b.describeFlow(n.flow, n.near))
	}
	r.Settings = c.settings(g)
	b.chooseSpan(c.Now())
	b.ask(ctx)
	b.listUnasked()
	return r
}

// Times of a report, beside those of the incident.
const (
	before       = 5 * time.Minute
	after        = 5 * time.Minute
	longestDelay = time.Hour // of the distribution during the incident
	mostPoints   = 240
)

// chooseSpan sets the span of a report by the incident's own times, to the second.
func (b *builder) chooseSpan(now time.Time) {
	r, in := b.report, &b.report.Verdict
	last := now.Add(-b.Evidence.CurrentLag()).Truncate(time.Second)
	s := Span{Began: in.FirstSeen.Truncate(time.Second), Ended: last}
	s.From, s.Until = s.Began.Add(-before), last
	if in.Cleared != nil {
		s.Ended = in.Cleared.Truncate(time.Second)
		s.Until = s.Ended.Add(after)
		if r.Complete = !s.Until.After(last); !r.Complete {
			s.Until = last
		}
	}
	if s.Ended.Before(s.Began.Add(time.Second)) {
		s.Ended = s.Began.Add(time.Second)
	}
	if s.Until.Before(s.Ended) {
		s.Until = s.Ended
	}
	step := max(b.Evidence.CycleInterval(), s.Until.Sub(s.From)/mostPoints)
	if rest := step % time.Second; rest > 0 {
		step += time.Second - rest
	}
	s.StepSeconds = step.Seconds()
	r.Span = s
}

// settings returns the settings that a report lists.
func (c *Collector) settings(g *fabric.Graph) Settings {
	e := &c.Evidence
	p := judge.DefaultParameters()
	return Settings{Version: c.Version, ConfigHash: c.ConfigHash, Shard: c.Shard, Topology: c.topology(g),
		ScrapeSeconds: e.Scrape.Seconds(), LagSeconds: e.Lag.Seconds(), DelayWindowSeconds: e.Delay.Seconds(), HardWindowSeconds: e.Hard.Seconds(),
		Thresholds: []Threshold{
			{"median moved by", p.ShiftMADs, "deviations of the baseline"},
			{"median moved by", p.TailSpreads, "times p99 - p50 of the baseline"},
			{"median moved by, hardware time stamps", float64(p.FloorHardware), "ns"},
			{"median moved by, kernel time stamps", float64(p.FloorKernel), "ns"},
			{"median moved by, user time stamps", float64(p.FloorUser), "ns"},
			{"lost probes", float64(p.MinLost), "probes"},
			{"evidence of loss", p.LossEvidence, "nats"},
			{"loss of a healthy path", p.BaseLoss, "ratio"},
			{"hard failure from", p.HardLoss, "ratio"},
			{"marked probes", float64(p.MinMarked), "probes"},
			{"marks of a healthy path", p.BaseMark, "ratio"},
		}}
}

// topology returns what identifies a topology.
func (c *Collector) topology(g *fabric.Graph) Topology {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hash.graph != g {
		sum := sha256.New()
		for _, id := range g.ElementIDs() {
			_, _ = io.WriteString(sum, id+"\n") // a hash takes everything
		}
		c.hash.graph, c.hash.text = g, hex.EncodeToString(sum.Sum(nil)[:8])
	}
	return Topology{Nodes: len(g.Topo.Nodes), NICs: len(g.NICIDs()), Switches: len(g.Topo.Switches), Links: len(g.Topo.Links), Hash: c.hash.text}
}

// median sorts values, and returns their median, or nil if there are none.
func median(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	v := values[len(values)/2]
	if len(values)%2 == 0 {
		v = (v + values[len(values)/2-1]) / 2
	}
	return &v
}
