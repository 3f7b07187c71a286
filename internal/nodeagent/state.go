package nodeagent

import (
	"context"
	"time"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/window"
)

// Source is the interface through which the state of the probe engine is read. *probe.Engine implements it.
type Source interface {
	Snapshot() *probe.Snapshot
	TracedPaths() (version uint64, paths []probe.TracedPath)
	TraceStats() (sent, answered uint64)
	Config() *probe.Config
}

// ClockReader is the interface through which the state of the NICs' clocks is read.
type ClockReader interface {
	// ViewOf returns what is known of the clock that stamps at a NIC. It returns false before the first window has
	// ended.
	ViewOf(nic string) (v ClockView, ok bool)
}

// Conditions is the interface through which the conditions of the flows are read. *window.Recorder implements it.
type Conditions interface {
	// CountConditions returns the number of flows of each NIC in each condition.
	CountConditions() map[string]map[window.Condition]int
}

// State represents a source together with what the node itself knows about it.
type State struct {
	Source
	Clocks  ClockReader // nil means that the clocks are not related
	Windows Conditions  // nil means that the flows are not judged
	// Signals returns what in-band signals have said so far, or nil if the node handles none. It takes no lock of the node, whose
	// configuration does not change as long as the state is valid.
	Signals  func() *observe.Stats
	Started  time.Time // start of the source's counts
	Loaded   time.Time // time when the running configuration was loaded
	ReloadOK bool
}

// ReadState calls f with the current state, which is valid until f returns. The configuration does not change until
// then.
func (n *Node) ReadState(f func(State)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	s := State{Source: n.engine, Signals: n.engine.SignalStats, Started: n.started, Loaded: n.config.loaded, ReloadOK: n.config.reloadOK}
	if n.captures != nil {
		s.Signals = n.captures.Stats
	}
	if n.clocks != nil {
		s.Clocks = n.clocks
	}
	if n.windows != nil {
		s.Windows = n.windows.recorder
	}
	f(s)
}

// SignalProfile returns the profile by which in-band signals are read, or nil if the node handles none.
func (n *Node) SignalProfile() *csig.Profile {
	if n.captures != nil {
		return n.captures.Profile()
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.engine.SignalProfile()
}

// FindWindows answers a query for windows of the node's flows. It returns window.ErrNoWindow if none ended near the moment
// that the query is about.
func (n *Node) FindWindows(q *window.Query) (*window.Answer, error) {
	a, err := n.windows.recorder.FindWindows(q, time.Now())
	if err == nil {
		a.Node = n.Name()
	}
	return a, err
}

// TracedPaths returns the node's name, and the traced paths with their version.
func (n *Node) TracedPaths() (node string, version uint64, paths []probe.TracedPath) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	version, paths = n.engine.TracedPaths()
	return n.engine.Config().Node, version, paths
}

// TraceFlows traces the paths of flows now. It returns the node's name, and the paths with the version that they are
// part of. The error is a probe.UnknownEdgeError if the node has no such flow. A reload ends the trace.
func (n *Node) TraceFlows(ctx context.Context, flows []fabric.Flow) (node string, version uint64, paths []probe.TracedPath, err error) {
	n.mu.RLock()
	engine := n.engine
	n.mu.RUnlock()
	if paths, err = engine.TraceFlows(ctx, flows); err != nil {
		return "", 0, nil, err
	}
	version, _ = engine.TracedPaths()
	return engine.Config().Node, version, paths, nil
}

// TraceTuples traces the paths of tuples now, and returns them with the node's name. The error is a probe.TupleError if one
// of them is not the node's to trace. A reload ends the traces.
func (n *Node) TraceTuples(ctx context.Context, tuples []probe.Tuple) (node string, paths []probe.TuplePath, err error) {
	n.mu.RLock()
	engine := n.engine
	n.mu.RUnlock()
	if paths, err = engine.TraceTuples(ctx, tuples); err != nil {
		return "", nil, err
	}
	return engine.Config().Node, paths, nil
}

// ProbePathMTU tests the paths of flows with packets of a length in octets, and returns what it found with the node's name. The error
// is a probe.UnknownEdgeError if the node has no such flow. A reload ends the test.
func (n *Node) ProbePathMTU(ctx context.Context, flows []fabric.Flow, octets int) (node string, found []fabric.PathMTU, err error) {
	n.mu.RLock()
	engine := n.engine
	n.mu.RUnlock()
	if found, err = engine.ProbePathMTU(ctx, flows, octets); err != nil {
		return "", nil, err
	}
	return engine.Config().Node, found, nil
}

// retraceMoved has the paths of flows traced again soon, since what they show has changed.
func (n *Node) retraceMoved(flows []fabric.Flow) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	n.engine.RetraceMoved(flows)
}

// ChronySamples returns how many windows with a locked system clock there were, by result of the sample for chronyd. It
// returns nil if chronyd gets no samples.
func (n *Node) ChronySamples() map[string]uint64 {
	if n.clocks == nil || n.clocks.steer == nil {
		return nil
	}
	return n.clocks.steer.copyCounts()
}

// SystemClockBound returns how far the host's system clock is from the common time of the fleet at most, by the frame or as
// configured. It is false if that is unknown, and where the node's clock is made wrong for a test.
func (n *Node) SystemClockBound() (bound time.Duration, known bool) {
	if n.clock != nil {
		return 0, false
	}
	if n.clocks != nil {
		return n.clocks.systemClockBound()
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if b := n.engine.Config().ErrorBound; b != nil {
		return *b, true
	}
	return 0, false
}

// ClockReport represents what a node knows of its clocks, as GET /api/v1/clock answers it.
type ClockReport struct {
	Bend      *BendReport      `json:"bend,omitempty"`
	Clocks    []OwnClock       `json:"clocks"`
	Relations []RelationReport `json:"relations"` // edges without a relation are absent
}

// BendReport represents the error that a test gave the clock: at the true time t the clock shows t + offset_ns + rate x
// (t - ref_ns).
type BendReport struct {
	Ref    int64   `json:"ref_ns"`
	Offset int64   `json:"offset_ns"`
	Rate   float64 `json:"rate"`
}

// RelationReport represents the relation of an edge's far clock to the local clock: at the local time t the far clock
// shows t + offset_ns + rate x (t - ref_ns), within bound_ns.
type RelationReport struct {
	Edge      string  `json:"edge"`
	Timestamp string  `json:"timestamp"`
	Ref       int64   `json:"ref_ns"`
	Offset    int64   `json:"offset_ns"`
	Rate      float64 `json:"rate"`
	Bound     int64   `json:"bound_ns"`
}

// OwnClock represents what is known of a NIC's clock: at its time ref_ns it is offset_ns ahead of the frame, within
// bound_ns and allowance_ns. Without an offset, nothing is known.
type OwnClock struct {
	NIC       string  `json:"nic"`
	State     string  `json:"state"`
	Frame     uint64  `json:"frame,string"`
	Ref       int64   `json:"ref_ns"`
	Offset    *int64  `json:"offset_ns,omitempty"`
	Rate      float64 `json:"rate"`
	Bound     int64   `json:"bound_ns"`
	Allowance int64   `json:"allowance_ns"`
}

// ReportClocks returns what is known of the node's clocks.
func (n *Node) ReportClocks() ClockReport {
	out := ClockReport{Clocks: []OwnClock{}, Relations: []RelationReport{}}
	if bent, ok := n.clock.(*bentclock.Clock); ok {
		s := bent.CurrentSegment()
		out.Bend = &BendReport{Ref: s.Ref, Offset: s.Offset, Rate: s.Rate}
	}
	if n.clocks != nil {
		out.Clocks, out.Relations = n.clocks.listOwnClocks(), n.clocks.listRelations()
	}
	return out
}
