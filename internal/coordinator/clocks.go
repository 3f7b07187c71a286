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

// Results of clock reports, as counted.
const (
	reportTaken     = "taken"
	reportPartly    = "taken_partly" // without what names a NIC that the topology has not
	reportFormat    = "unknown_format"
	reportMalformed = "malformed"
	reportForeign   = "foreign" // another node's
	reportEarly     = "early"
	// reportImplausible is taken without offsets that the two nodes' own clocks rule out.
	reportImplausible = "implausible"
)

// plausibleOffset is by how much an offset between two system clocks may differ from what the
// times in the two nodes' own reports say. Those are as late as their reports come in; beyond it
// somebody lies, or a clock is being set.
const plausibleOffset = 10 * time.Second

var clockReportResults = []string{reportTaken, reportPartly, reportFormat, reportMalformed, reportForeign, reportEarly, reportImplausible}

// reportEvery is how often a node's reports are taken at most: several per cycle
// are of no use.
const reportEvery = 100 * time.Millisecond

// What two directions of a path may differ by, as far as it moves an offset, when
// nothing else is said: half of the difference in length of two directions, over
// cables of one class. Within a leaf that is a few meters; a tier further up they
// may be tens of meters, at 5 ns each.
const (
	allowanceLeaf = 25 * time.Nanosecond
	allowanceTier = 100 * time.Nanosecond // for each tier above
	// allowanceKernel is for stamps of the kernel's, which takes packets deeper on
	// their way in than on their way out, more so on a busy host.
	allowanceKernel = 500 * time.Nanosecond
)

// clockService is what the coordinator knows of clocks. Its lock is its own: a cycle
// of a large fleet takes a good part of a second.
type clockService struct {
	reference string

	mu           sync.RWMutex
	graph        *fabric.Graph
	frame        *clocksync.Frame
	nodes        map[string]*clockNode
	reports      map[string]uint64 // by result
	summary      clocksync.Summary
	cycleSeconds float64       // that the last cycle took
	nextCycle    time.Duration // when the next one is
}

// clockNode is a node that reports.
type clockNode struct {
	reportedAt  time.Duration
	clockOffset int64              // ns: its system clock against the coordinator's monotonic one, by its last report
	offsetKnown bool               // ahead holds
	pairIDs     []clocksync.PairID // of its last report
	joins       [][2]string
	clocks      []string // that it is told of: its own and its peers'
}

func newClockService(o Options, g *fabric.Graph, wall time.Time) *clockService {
	w := &clockService{reference: o.ClockReference, graph: g, nodes: map[string]*clockNode{}, reports: map[string]uint64{}}
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
	// Frames of coordinators that follow each other must not be taken for one.
	w.frame = clocksync.NewFrame(clocksync.FrameOptions{ID: uint64(wall.UnixNano()), Allowance: allowance, Reference: o.ClockReference})
	return w
}

// byTopology is the allowance of two NICs' clocks. It needs mu.
func (w *clockService) byTopology(src, dst string) time.Duration {
	a, _ := w.graph.LeafOf(src)
	b, _ := w.graph.LeafOf(dst)
	if a == b {
		return allowanceLeaf
	}
	tier := 2
	if x, y := w.graph.Switch(a), w.graph.Switch(b); x == nil || y == nil || x.Pod == "" || x.Pod != y.Pod {
		for i := range w.graph.Topo.Switches {
			tier = max(tier, w.graph.SwitchTier(w.graph.Topo.Switches[i].Name))
		}
	}
	return allowanceLeaf + time.Duration(tier-1)*allowanceTier
}

// handleReport takes a node's report, or ignores and counts it: what is wrong with it
// must not end the session that probing depends on.
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
		return n != nil && n.ID() == nic // and not an alias: a clock has one name
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

// offsetPlausible reports whether an estimate of two system clocks agrees with what the two nodes' own
// reports say of these clocks. A node decides about its own clock alone, so that a false time costs
// it its own estimates. Of a peer that has not reported yet nothing is known. It needs mu.
func (w *clockService) offsetPlausible(n *clockNode, p *clocksync.PairEstimate) bool {
	peer := w.nodes[fabric.OwnerOf(p.ID.Dst)]
	if p.ID.Kind != clocksync.Kernel || peer == nil || !peer.offsetKnown {
		return true
	}
	off := time.Duration(p.Offset - (peer.clockOffset - n.clockOffset))
	return off.Abs() <= plausibleOffset
}

// recordClocks notes the clocks that the node is to be told of. One whose own clock just
// moved has no estimates, and the same peers.
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

// replaceTopology is another topology.
func (w *clockService) replaceTopology(g *fabric.Graph) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.graph = g
	nodes := nodesOf(g)
	maps.DeleteFunc(w.nodes, func(n string, _ *clockNode) bool { return !nodes[n] })
}

// encodedUpdate is what a node is told.
func (w *clockService) encodedUpdate(node string) []byte {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.nodes[node]
	if n == nil {
		return (&clocksync.Update{Frame: w.frame.ID(), Relative: true}).AppendTo(nil)
	}
	return w.frame.UpdateFor(n.clocks).AppendTo(nil)
}

// runClocks does cycles until ctx ends.
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

// stepClocks relates the clocks if that is due, and has every agent that reports
// on clocks told.
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
	w.mu.Unlock()

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range reporting {
		if a := c.agents[n]; a != nil && a.session != nil {
			a.session.wantClocks = true
			a.session.wakeSender()
		}
	}
}

// ClockStatus is a clock's place in the frame.
type ClockStatus struct {
	Clock       string   `json:"clock"`
	State       string   `json:"state"`
	RefNS       int64    `json:"ref_ns"`
	OffsetNS    int64    `json:"offset_ns"`
	Rate        float64  `json:"rate"`
	SigmaNS     float64  `json:"sigma_ns"`
	BoundNS     *float64 `json:"bound_ns,omitempty"` // statistical, as of now; absent: there is none
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
	Src     string  `json:"src,omitempty"` // of an edge; absent: a reading of one clock of a node against another
	Dst     string  `json:"dst,omitempty"`
	Flow    int     `json:"flow,omitempty"`
	ErrorNS float64 `json:"error_ns"`
	Rate    float64 `json:"rate"`
}

// Clocks is what is known of clocks.
type Clocks struct {
	Frame        uint64        `json:"frame,string"`
	Relative     bool          `json:"relative"`
	Reference    string        `json:"reference,omitempty"`
	CycleSeconds float64       `json:"cycle_seconds"`
	EdgesUsed    int           `json:"edges_used"`
	EdgesDropped int           `json:"edges_dropped"`
	Dropped      []DroppedEdge `json:"dropped"` // the worst
	Clocks       []ClockStatus `json:"clocks"`
}

// Clocks lists all clocks by name.
func (c *Coordinator) Clocks() Clocks {
	w := c.clocks
	w.mu.Lock() // listing may have to sort
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

// ClockStats is what the coordinator publishes about clocks.
type ClockStats struct {
	States  map[string]int
	Edges   map[string]int // used, dropped
	Seconds float64        // that the last cycle took
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
