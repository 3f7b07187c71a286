// Package looptest runs an analyzer's loop on a fabric with faults, for tests. The loop's queries are answered as
// Prometheus would answer them after it has scraped the nodes, and time is the test's.
package looptest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// Rig runs a loop on a world. It answers the loop's queries from the world's flows, and its requests for traces from the
// world's paths.
type Rig struct {
	World *worldtest.World
	Loop  *analyzer.Loop
	Now   time.Time
	// Silent are the nodes whose agent does not answer, Late those whose probe loop is starved.
	Silent, Late map[string]bool
	// Untraced means that no trace is answered.
	Untraced bool
	// Steps are the clock steps that nodes count, and States are the states of clocks, by NIC.
	Steps  map[string]float64
	States map[string]string
	// Carriers is how often the carriers of ports changed in the last minutes, by port.
	Carriers map[string]int
	// PortUp is 1 for ports that carry packets, and 0 for others. Ports that are absent are not reported.
	PortUp map[string]int
	// Sessions answers queries for sessions of ports. Nil means that there are no series of them.
	Sessions evidence.Querier
	// Bursts means that what is lost is lost in every other second.
	Bursts bool
	// Unjudging reports whether the node of a NIC does not judge its flows, as those of earlier versions. Nil means that
	// all do.
	Unjudging func(nic string) bool
	// Lying are NICs whose node calls all flows healthy, and Crying those whose node calls them all shifted.
	Lying, Crying map[string]bool
	// Mute are the nodes that do not answer for windows. Garble changes what a node answers; it may be nil.
	Mute   map[string]bool
	Garble func(node string, a *window.Answer)
	// WindowRequests counts the requests for windows.
	WindowRequests int
	// Asked is called with each query's name, and the flows that it selects. It may be nil.
	Asked func(name string, only func(fabric.Flow) bool)
	// Prometheus is how the server is.
	Prometheus Prometheus
	// Mesh grants temporary flows. Nil means that there is no coordinator to ask.
	Mesh *Mesh
	// Stream has the packets of the world. Nil means that each cycle has a window of its own, without any that a fault began in.
	Stream *Stream

	t       *testing.T
	options analyzer.LoopOptions
	names   map[string]string // by text of the query
	frame   map[fabric.Flow]*fabric.Observation
	trips   map[fabric.Flow]roundTrips // with Stream
	judges  nodeJudges
	asked   sync.Mutex
}

// Prometheus is how a server answers.
type Prometheus struct {
	// Down means that no query is answered.
	Down bool
	// Hidden reports whether the series of a flow are missing. It may be nil.
	Hidden func(fabric.Flow) bool
	// Latency is the time of one query. With it, Ages has how old the moment of each query was.
	Latency time.Duration
	Ages    []time.Duration
}

// NewRig returns a rig of two spines and four leaves with two hosts each, whose loop has queried nothing yet.
func NewRig(t *testing.T, seed uint64) *Rig { return NewRigOf(t, worldtest.NewClos(t, 2, 4, 2), seed) }

// NewRigOf returns a rig of a fabric whose loop has queried nothing yet.
func NewRigOf(t *testing.T, g *fabric.Graph, seed uint64) *Rig {
	r := &Rig{t: t, World: worldtest.NewWorld(g, seed), Now: time.Unix(100000, 0).UTC(), names: map[string]string{}, Silent: map[string]bool{}, Late: map[string]bool{}}
	s := evidence.DefaultSettings()
	s.Patience = 0 // the rig answers the queries itself, as fast as a busy machine lets it
	for name, q := range s.WindowQueries() {
		r.names[q] = name
	}
	for name, q := range s.OverviewQueries() {
		r.names[q] = name
	}
	r.options = analyzer.LoopOptions{Graph: g, DB: r, Agents: r, Settings: s, Expected: len(r.World.Flows)}
	r.Loop = analyzer.NewLoop(r.options)
	return r
}

// Configure replaces the loop by one with other options that has seen nothing yet.
func (r *Rig) Configure(change func(*analyzer.LoopOptions)) {
	change(&r.options)
	r.Loop = analyzer.NewLoop(r.options)
}

// Restrict makes the loop responsible for some planes alone.
func (r *Rig) Restrict(planes ...string) {
	r.t.Helper()
	part, err := r.World.Graph.Topo.OnlyPlanes(planes)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Configure(func(o *analyzer.LoopOptions) {
		o.Graph = fabric.NewGraph(part)
		o.Settings.Scope = evidence.Scope{Planes: planes, Has: func(nic string) bool { return o.Graph.NIC(nic) != nil }}
	})
}

// RestrictToPods makes the loop responsible for some pods alone, and with core for what is above them.
func (r *Rig) RestrictToPods(core bool, pods ...string) {
	r.t.Helper()
	part, err := fabric.NewPart(r.World.Graph, pods, core)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Configure(func(o *analyzer.LoopOptions) {
		o.Part, o.Settings.Scope.Part = part, part
		o.TwoSteps.OwnRounds = o.Settings.Windows != nil
	})
}

// NewLoop returns another loop with the same options.
func (r *Rig) NewLoop() *analyzer.Loop { return analyzer.NewLoop(r.options) }

// Reload replaces the loop by one with other options that takes over its state, as a reload of the configuration does.
func (r *Rig) Reload(change func(*analyzer.LoopOptions)) {
	r.t.Helper()
	old := r.Loop
	r.Configure(change)
	r.Loop.InheritFrom(old)
	r.TraceAll()
}

// QueryInstant implements evidence.Querier.
func (r *Rig) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	if strings.Contains(query, "fabric_switch_port_neighbor_info") {
		return nil, nil // no switch has neighbours
	}
	if strings.Contains(query, "fabric_switch_port_carrier_changes_total") {
		return portSamples(r.Carriers), nil
	}
	if strings.Contains(query, "fabric_switch_port_oper_up") {
		return portSamples(r.PortUp), nil
	}
	if strings.Contains(query, "fabric_switch_bgp_session_up") {
		if r.Sessions == nil {
			return nil, nil
		}
		return r.Sessions.QueryInstant(ctx, query, at)
	}
	if strings.Contains(query, "fabric_probe_acked_total{class!=") {
		return nil, nil // what flows lost is known by their windows alone
	}
	if strings.Contains(query, "fabric:leafpair_") {
		return nil, nil // no rule records anything
	}
	p := &r.Prometheus
	if p.Down {
		return nil, errors.New("connection refused")
	}
	if p.Latency > 0 {
		p.Ages = append(p.Ages, time.Since(at))
		select {
		case <-time.After(p.Latency):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return r.answerQuery(query), nil
}

func portSamples(of map[string]int) (out []evidence.Sample) {
	for end, n := range of {
		sw, port, _ := fabric.SplitPort(end)
		out = append(out, evidence.Sample{Labels: map[string]string{"switch": sw, "port": port}, Value: float64(n)})
	}
	return out
}

// TracedPaths implements tracing.Agents. The nodes have traced nothing on their own but flows with hop-limited probes.
func (r *Rig) TracedPaths(_ context.Context, node string, _ time.Duration) ([]fabric.Trace, error) {
	if r.Mesh == nil {
		return nil, nil
	}
	return r.Mesh.tracesOf(r, node), nil
}

// TraceFlows implements tracing.Agents.
func (r *Rig) TraceFlows(_ context.Context, _ string, flows []string) ([]fabric.Trace, error) {
	var out []fabric.Trace
	if r.Untraced {
		return nil, nil
	}
	for _, s := range flows {
		e, err := fabric.ParseFlow(s)
		if err != nil {
			return nil, err
		}
		out = append(out, r.World.TraceOf(e, r.Now))
	}
	return out, nil
}

// TraceAll adds a trace of every flow to the loop's paths.
func (r *Rig) TraceAll() {
	r.t.Helper()
	for e := range r.World.Paths {
		if r.options.Graph.NIC(e.Src) == nil {
			continue
		}
		r.AddTrace(r.World.TraceOf(e, r.Now))
	}
}

// AddTrace adds a trace to the loop's paths.
func (r *Rig) AddTrace(trace fabric.Trace) {
	r.t.Helper()
	if err := r.Loop.PathStore().AddTrace(trace); err != nil {
		r.t.Fatal(err)
	}
}

// Step lets a second pass, and runs a cycle.
func (r *Rig) Step() snapshot.Snapshot {
	r.t.Helper()
	r.Now = r.Now.Add(time.Second)
	if r.Mesh != nil {
		r.Mesh.applyGrants(r)
	}
	r.frame = map[fabric.Flow]*fabric.Observation{}
	var windows []*fabric.Observation
	if r.Stream != nil {
		windows, r.trips = r.Stream.windows(r.Now)
	} else {
		windows = r.World.Observe(0)
	}
	for _, o := range windows {
		e, err := o.ParseFlow()
		if err != nil {
			r.t.Fatal(err)
		}
		r.frame[e] = o
	}
	r.judges.addFrame(r.frame)
	if err := r.Loop.RunCycle(r.t.Context(), r.Now); err != nil {
		r.t.Fatal(err)
	}
	r.Loop.AnswerQueued(r.t.Context())
	return r.Loop.Snapshot()
}

// StepWithoutEvidence lets seconds pass in which Prometheus does not answer.
func (r *Rig) StepWithoutEvidence(seconds int) snapshot.Snapshot {
	r.t.Helper()
	r.Prometheus.Down = true
	for range seconds {
		r.Now = r.Now.Add(time.Second)
		if err := r.Loop.RunCycle(r.t.Context(), r.Now); err == nil {
			r.t.Fatal("a cycle without evidence succeeded")
		}
	}
	r.Prometheus.Down = false
	return r.Loop.Snapshot()
}

// Until steps until cond holds, at most n times, and returns how many it took.
func (r *Rig) Until(n int, what string, cond func(snapshot.Snapshot) bool) int {
	r.t.Helper()
	for i := 1; i <= n; i++ {
		if cond(r.Step()) {
			return i
		}
	}
	r.t.Fatalf("not within %d cycles: %s; state %+v", n, what, r.Loop.Snapshot().Report.Edges)
	return 0
}

// Learn steps until every flow has a baseline and the fabric is innocent.
func (r *Rig) Learn() {
	r.t.Helper()
	r.TraceAll()
	r.Until(20, "baselines and innocence", func(s snapshot.Snapshot) bool {
		return s.Baselines == len(r.World.Flows) && s.Report.State == fabric.Innocent
	})
}

// Baselines returns the medians of the baselines by which the last cycle judged flows, in nanoseconds.
func (r *Rig) Baselines() map[fabric.Flow]int64 {
	out := map[fabric.Flow]int64{}
	for _, v := range r.Loop.Snapshot().Edges {
		if e, err := v.Obs.ParseFlow(); err == nil && v.Obs.Baseline != nil {
			out[e] = *v.Obs.Baseline.P50
		}
	}
	return out
}

// OpenVerdicts returns the elements, directions and scenarios of the open verdicts.
func OpenVerdicts(s snapshot.Snapshot) []string {
	return describeVerdicts(s.Report.Verdicts)
}

func describeVerdicts(all []fabric.Verdict) (out []string) {
	for _, v := range all {
		out = append(out, v.Element.ID+" "+v.Direction+" "+string(v.Scenario))
	}
	return out
}
