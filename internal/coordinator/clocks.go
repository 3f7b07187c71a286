package coordinator

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/fabric"
)

// Results of clock reports, as they are counted.
const (
	reportTaken     = "taken"
	reportPartly    = "taken_partly" // the part that names NICs outside the topology is ignored
	reportFormat    = "unknown_format"
	reportMalformed = "malformed"
	reportForeign   = "foreign" // the report is of another node
	reportEarly     = "early"
	// reportImplausible counts reports that were taken without the offsets that contradict the two
	// nodes' own clocks.
	reportImplausible = "implausible"
)

// plausibleOffset is the largest difference between a reported offset of two system clocks and the
// offset that follows from the times of the two nodes' own reports. These times are late by the delay
// of the reports. A larger difference means that a report is false, or that a clock is being set.
const plausibleOffset = 10 * time.Second

var clockReportResults = []string{reportTaken, reportPartly, reportFormat, reportMalformed, reportForeign, reportEarly, reportImplausible}

// reportEvery is the minimum time between two reports of a node that are taken. More than one report
// per cycle has no use.
const reportEvery = 100 * time.Millisecond

// Default allowances for the asymmetry of paths, as far as it moves an offset: half of the difference
// in length of two directions, over cables of one class. Within a leaf the difference is a few meters.
// A tier further up it may be tens of meters, at 5 ns each.
const (
	allowanceLeaf = 25 * time.Nanosecond
	allowanceTier = 100 * time.Nanosecond // for each tier above
	// allowanceKernel is for stamps of the kernel. The kernel stamps packets later on their way in than
	// on their way out, and more so on a busy host.
	allowanceKernel = 500 * time.Nanosecond
)

// clockService holds the state of the coordinator's clocks. It has a lock of its own, since a cycle of
// a large fleet takes a good part of a second.
type clockService struct {
	reference string

	mu           sync.RWMutex
	graph        *fabric.Graph
	frame        *clocksync.Frame
	nodes        map[string]*clockNode
	streams      map[string]*clockStream // by node: those of agents without a session
	reports      map[string]uint64       // number by result
	summary      clocksync.Summary
	cycleSeconds float64       // duration of the last cycle
	nextCycle    time.Duration // monotonic time at which the next cycle is due
}

// clockNode is a node that sends clock reports.
type clockNode struct {
	reportedAt  time.Duration
	clockOffset int64              // ns: its system clock minus the coordinator's monotonic clock, by its last report
	offsetKnown bool               // clockOffset is valid
	pairIDs     []clocksync.PairID // pairs of its last report
	joins       [][2]string
	clocks      []string // clocks that the node gets updates of: its own and those of its peers
}

func newClockService(o Options, g *fabric.Graph, wall time.Time) *clockService {
	w := &clockService{reference: o.ClockReference, graph: g, nodes: map[string]*clockNode{}, reports: map[string]uint64{}, streams: map[string]*clockStream{}}
	allowance := func(id clocksync.PairID) time.Duration {
		a := w.byTopology(id.Src, id.Dst)
		if id.Kind == clocksync.Kernel {
			a += allowanceKernel
		}
		return a
	}
	if o.ClockAllowance > 0 {
		allowance = func(clocksync.PairID) time.Duration { return o.ClockAllowance }
	}
	// The frames of successive coordinators need different identifiers.
	w.frame = clocksync.NewFrame(clocksync.FrameOptions{ID: uint64(wall.UnixNano()), Allowance: allowance, Reference: o.ClockReference})
	return w
}

// byTopology returns the allowance for the asymmetry between the clocks of two NICs. It needs mu.
func (w *clockService) byTopology(src, dst string) time.Duration {
	a, _ := w.graph.LeafOf(src)
	b, _ := w.graph.LeafOf(dst)
	if a == b {
		return allowanceLeaf
	}
	tier := 2
	if x, y := w.graph.Switch(a), w.graph.Switch(b); x == nil || y == nil || x.PodName() == "" || x.PodName() != y.PodName() {
		tier = max(tier, w.graph.HighestTier())
	}
	return allowanceLeaf + time.Duration(tier-1)*allowanceTier
}

// handleReport processes a node's report, or ignores it, and counts the result. An invalid report does
// not end the session, since probing depends on the session.
func (w *clockService) handleReport(node string, m *agentapi.ClockReport, mono time.Duration) {
	result := w.addToFrame(node, m, mono)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports[result]++
}

func (w *clockService) addToFrame(node string, m *agentapi.ClockReport, mono time.Duration) (result string) {
	if m.GetFormat() != agentapi.ClockFormat {
		return reportFormat
	}
	w.mu.Lock()
	n := w.nodes[node]
	if n == nil {
		n = &clockNode{reportedAt: -reportEvery}
		w.nodes[node] = n
	}
	early := mono-n.reportedAt < reportEvery
	if !early {
		n.reportedAt = mono
	}
	g := w.graph
	w.mu.Unlock()
	if early {
		return reportEarly
	}
	r, err := clocksync.ParseReport(m.GetSamples())
	if err != nil {
		return reportMalformed
	}
	if r.Node != node {
		return reportForeign
	}
	had := len(r.Pairs) + len(r.Joins)
	known := func(nic string) bool {
		n := g.NIC(nic)
		return n != nil && n.ID() == nic // excludes aliases, since a clock has one name
	}
	r.Pairs = slices.DeleteFunc(r.Pairs, func(p clocksync.PairEstimate) bool { return !known(p.ID.Src) || !known(p.ID.Dst) })
	r.Joins = slices.DeleteFunc(r.Joins, func(j clocksync.Join) bool {
		return j.A != node && !known(j.A) || j.B != node && !known(j.B)
	})
	result = reportTaken
	if len(r.Pairs)+len(r.Joins) < had {
		result = reportPartly
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n.recordClocks(r)
	if len(r.Pairs)+len(r.Joins) > 0 {
		n.clockOffset, n.offsetKnown = r.End-int64(mono), true
	}
	taken := len(r.Pairs)
	r.Pairs = slices.DeleteFunc(r.Pairs, func(p clocksync.PairEstimate) bool { return !w.offsetPlausible(n, &p) })
	if len(r.Pairs) < taken {
		result = reportImplausible
	}
	w.frame.AddReport(r, mono)
	return result
}

// offsetPlausible reports whether an estimate of two system clocks agrees with the times in the two
// nodes' own reports. A node affects its own clock only, so that a false time removes only its own
// estimates. A peer that has not reported yet passes. It needs mu.
func (w *clockService) offsetPlausible(n *clockNode, p *clocksync.PairEstimate) bool {
	peer := w.nodes[fabric.OwnerOf(p.ID.Dst)]
	if p.ID.Kind != clocksync.Kernel || peer == nil || !peer.offsetKnown {
		return true
	}
	off := time.Duration(p.Offset - (peer.clockOffset - n.clockOffset))
	return off.Abs() <= plausibleOffset
}

// recordClocks stores the clocks that the node gets updates of. A node whose own clock has just moved
// has no estimates and keeps the same peers.
func (n *clockNode) recordClocks(r *clocksync.Report) {
	if len(r.Pairs) == 0 {
		return
	}
	same := len(n.pairIDs) == len(r.Pairs) && len(n.joins) == len(r.Joins)
	for i := 0; same && i < len(n.pairIDs); i++ {
		same = n.pairIDs[i] == r.Pairs[i].ID
	}
	for i := 0; same && i < len(n.joins); i++ {
		same = n.joins[i] == [2]string{r.Joins[i].A, r.Joins[i].B}
	}
	if same {
		return
	}
	n.pairIDs, n.joins = n.pairIDs[:0], n.joins[:0]
	clocks := map[string]bool{}
	for i := range r.Pairs {
		id := r.Pairs[i].ID
		id.Src, id.Dst = strings.Clone(id.Src), strings.Clone(id.Dst)
		n.pairIDs = append(n.pairIDs, id)
		clocks[id.LocalClock()], clocks[id.PeerClock()] = true, true
	}
	for _, j := range r.Joins {
		n.joins = append(n.joins, [2]string{j.A, j.B})
		clocks[j.A], clocks[j.B] = true, true
	}
	n.clocks = slices.Sorted(maps.Keys(clocks))
}

// replaceTopology replaces the topology and drops the nodes that it lacks.
func (w *clockService) replaceTopology(g *fabric.Graph) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.graph = g
	nodes := nodesOf(g)
	maps.DeleteFunc(w.nodes, func(n string, _ *clockNode) bool { return !nodes[n] })
}

// encodedUpdate returns the encoded clock update for a node.
func (w *clockService) encodedUpdate(node string) []byte {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.nodes[node]
	if n == nil {
		return (&clocksync.Update{Frame: w.frame.ID(), Relative: true}).AppendTo(nil)
	}
	return w.frame.UpdateFor(n.clocks).AppendTo(nil)
}

// runClocks runs cycles until ctx ends.
func (c *Coordinator) runClocks(ctx context.Context) {
	t := time.NewTicker(min(stepEvery, c.opts.ClockEvery))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.stepClocks()
		}
	}
}

// stepClocks relates the clocks if a cycle is due, and queues an update for every agent that reports on
// clocks.
func (c *Coordinator) stepClocks() {
	w := c.clocks
	w.mu.Lock()
	mono := c.opts.Clock.MonoTime()
	if mono < w.nextCycle {
		w.mu.Unlock()
		return
	}
	w.nextCycle = mono + c.opts.ClockEvery
	w.summary = *w.frame.Solve(mono)
	w.cycleSeconds = (c.opts.Clock.MonoTime() - mono).Seconds()
	reporting := slices.Collect(maps.Keys(w.nodes))
	for _, s := range w.streams {
		s.wakeSender()
	}
	w.mu.Unlock()

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range reporting {
		if a := c.registry.agents[n]; a != nil && a.session != nil {
			a.session.want.clocks = true
			a.session.wakeSender()
		}
	}
}

// ClockStatus is the state of a clock in the frame.
type ClockStatus struct {
	Clock       string   `json:"clock"`
	State       string   `json:"state"`
	RefNS       int64    `json:"ref_ns"`
	OffsetNS    int64    `json:"offset_ns"`
	Rate        float64  `json:"rate"`
	SigmaNS     float64  `json:"sigma_ns"`
	BoundNS     *float64 `json:"bound_ns,omitempty"` // statistical, as of now; absent if there is none
	AllowanceNS int64    `json:"allowance_ns"`
	Component   uint32   `json:"component"`
	Steps       uint32   `json:"steps"`
	Drifts      uint32   `json:"drifts"`
	Peers       uint32   `json:"peers"`
	AgeSeconds  float64  `json:"age_seconds"`
}

// DroppedEdge is an estimate that contradicts the others.
type DroppedEdge struct {
	A       string  `json:"a"` // clocks
	B       string  `json:"b"`
	Src     string  `json:"src,omitempty"` // ends of the edge; absent for a reading of one clock of a node against another
	Dst     string  `json:"dst,omitempty"`
	Flow    int     `json:"flow,omitempty"`
	ErrorNS float64 `json:"error_ns"`
	Rate    float64 `json:"rate"`
}

// Clocks is the state of all clocks, as the API serves it.
type Clocks struct {
	Frame        uint64        `json:"frame,string"`
	Relative     bool          `json:"relative"`
	Reference    string        `json:"reference,omitempty"`
	CycleSeconds float64       `json:"cycle_seconds"`
	EdgesUsed    int           `json:"edges_used"`
	EdgesDropped int           `json:"edges_dropped"`
	Dropped      []DroppedEdge `json:"dropped"` // the worst ones
	Clocks       []ClockStatus `json:"clocks"`
}

// Clocks returns the state of all clocks, sorted by name.
func (c *Coordinator) Clocks() Clocks {
	w := c.clocks
	w.mu.Lock() // UpdateFor and AllMaps may have to sort
	defer w.mu.Unlock()
	mono := c.opts.Clock.MonoTime()
	out := Clocks{Frame: w.frame.ID(), Relative: true, Reference: w.reference, CycleSeconds: w.cycleSeconds, EdgesUsed: w.summary.Edges,
		EdgesDropped: w.summary.Dropped, Dropped: []DroppedEdge{}, Clocks: []ClockStatus{}}
	if w.reference != "" {
		u := w.frame.UpdateFor([]string{w.reference})
		out.Relative = u.Relative || len(u.Maps) == 0
	}
	for _, o := range w.summary.Outliers {
		d := DroppedEdge{A: o.A, B: o.B, ErrorNS: o.Error, Rate: o.Rate}
		if o.ID.Flow >= 0 {
			d.Src, d.Dst, d.Flow = o.ID.Src, o.ID.Dst, o.ID.Flow
		}
		out.Dropped = append(out.Dropped, d)
	}
	for m := range w.frame.AllMaps() {
		solved, _ := w.frame.SolvedAt(m.Clock)
		v := ClockStatus{Clock: m.Clock, State: m.State.String(), RefNS: m.Ref, OffsetNS: m.Offset, Rate: m.Rate, SigmaNS: m.Sigma, AllowanceNS: m.Allowance,
			Component: m.Component, Steps: m.Steps, Drifts: m.Drifts, Peers: m.Peers, AgeSeconds: (mono - solved).Seconds()}
		if m.State == clocksync.Locked || m.State == clocksync.Holdover {
			bound := clocksync.StatisticalBound(m.Sigma, m.RateSigma, mono-solved)
			v.BoundNS = &bound
		}
		out.Clocks = append(out.Clocks, v)
	}
	return out
}

// ClockStats are the statistics that the coordinator publishes about clocks.
type ClockStats struct {
	States  map[string]int
	Edges   map[string]int // used, dropped
	Seconds float64        // duration of the last cycle
	Reports map[string]uint64
}

func (w *clockService) clockStats() ClockStats {
	w.mu.RLock()
	defer w.mu.RUnlock()
	s := ClockStats{States: map[string]int{}, Edges: map[string]int{"used": w.summary.Edges, "dropped": w.summary.Dropped}, Seconds: w.cycleSeconds, Reports: map[string]uint64{}}
	for i, name := range clocksync.StateNames() {
		s.States[name] = w.summary.Clocks[i]
	}
	for _, r := range clockReportResults {
		s.Reports[r] = w.reports[r]
	}
	return s
}
