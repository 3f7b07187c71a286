package audit

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Window is what one window of evidence has.
type Window struct {
	// Observations have their paths.
	Observations []*fabric.Observation
	// Hosts are the nodes that were starved or did not answer, with the reason.
	Hosts map[string]string
	// Clocks are the states of the clocks by NIC.
	Clocks map[string]ClockState
}

// ClockState is the state of a clock in one window. Nil means that a value is absent.
type ClockState struct {
	State   string
	BoundNS *int64
	Steps   *float64 // counted since the start of its agent
}

// lockedState is the state of a clock that is related to the others.
const lockedState = "locked"

// Recorder sums up windows. It keeps at most MaxWindows delays of each flow.
type Recorder struct {
	e     Evidence
	flows map[recordKey]*FlowRecord
	steps map[string]float64 // the latest count by NIC
	nics  map[string]*nicCounts
}

// MaxWindows is the number of windows whose delays are kept.
const MaxWindows = 120

type recordKey struct {
	flow  fabric.Flow
	class string
	path  string
}

// nicCounts are the probes of the flows of a NIC whose far end answered.
type nicCounts struct{ sent, lost uint64 }

// NewRecorder returns a recorder for a fabric as it is planned.
func NewRecorder(g *fabric.Graph, start time.Time) *Recorder {
	return &Recorder{e: Evidence{Graph: g, Start: start, Clocks: map[string]ClockRecord{}, Hosts: map[string]HostRecord{}},
		flows: map[recordKey]*FlowRecord{}, steps: map[string]float64{}, nics: map[string]*nicCounts{}}
}

// AddMissed counts a window that could not be read.
func (r *Recorder) AddMissed() { r.e.Missed++ }

// AddWindow adds a window.
func (r *Recorder) AddWindow(w *Window) {
	r.e.Windows++
	r.addHosts(w)
	for nic, c := range w.Clocks {
		r.addClock(nic, c)
	}
	for _, o := range w.Observations {
		f, err := o.ParseFlow()
		if err != nil || f.IsTemporary() || o.CarriesSignals() || o.HostSuspect {
			continue
		}
		r.addObservation(f, o)
	}
}

// addHosts counts the windows of nodes that have NICs in the fabric.
func (r *Recorder) addHosts(w *Window) {
	seen := map[string]bool{}
	for _, o := range w.Observations {
		seen[fabric.OwnerOf(o.Src)], seen[fabric.OwnerOf(o.Dst)] = true, true
	}
	for nic := range w.Clocks {
		seen[fabric.OwnerOf(nic)] = true
	}
	for node := range w.Hosts {
		seen[node] = true
	}
	for node := range seen {
		h := r.e.Hosts[node]
		h.Windows++
		if why := w.Hosts[node]; why != "" {
			h.Excluded++
			h.Reason = why
		}
		r.e.Hosts[node] = h
	}
}

func (r *Recorder) addClock(nic string, c ClockState) {
	k := r.e.Clocks[nic]
	k.Windows++
	if c.State == lockedState {
		k.Locked++
	} else {
		k.State = c.State
	}
	if c.BoundNS != nil && (k.WorstBoundNS == nil || *c.BoundNS > *k.WorstBoundNS) {
		bound := *c.BoundNS
		k.WorstBoundNS = &bound
	}
	if c.Steps != nil {
		if before, known := r.steps[nic]; known && *c.Steps > before { // a restarted agent counts from 0
			k.Steps += *c.Steps - before
		}
		r.steps[nic] = *c.Steps
	}
	r.e.Clocks[nic] = k
}

func (r *Recorder) addObservation(f fabric.Flow, o *fabric.Observation) {
	for _, nic := range []string{o.Src, o.Dst} {
		n := r.nics[nic]
		if n == nil {
			n = &nicCounts{}
			r.nics[nic] = n
		}
		n.sent += o.Sent
		n.lost += o.Lost
	}
	var path fabric.Path
	// A path that nothing confirms any more is where the packets went before. Losses are enough reason to suspect it.
	if known := o.PathState == fabric.PathValid || o.PathState == fabric.PathStale && o.Lost > 0; known && !o.Sprayed {
		path = o.Path
	}
	key := recordKey{f, o.Class, path.CanonicalKey()}
	c := r.flows[key]
	if c == nil {
		src, dst := f.Endpoints()
		c = &FlowRecord{Flow: f, Src: src, Dst: dst, Class: o.Class, Path: path}
		r.flows[key] = c
	}
	c.Windows++
	if o.PathState == fabric.PathValid {
		c.Confirmed++
	}
	if o.LossScope == fabric.LossRoundTrip {
		c.RoundTrip += o.Lost
		return
	}
	c.Sent += o.Sent
	c.Lost += o.Lost
	if o.ECN != nil {
		c.Marked += *o.ECN
		c.MarkedOf += o.Sent - o.Lost
	}
	if o.OWD == nil || o.ClockSuspect || len(c.Medians) == MaxWindows {
		return
	}
	c.Timestamp = cmp.Or(c.Timestamp, o.Timestamp)
	c.addDelays(o)
}

// addDelays adds the quantiles of a window that are known, and the bound of their error.
func (c *FlowRecord) addDelays(o *fabric.Observation) {
	if o.OWD.P50 != nil {
		c.Medians = append(c.Medians, *o.OWD.P50)
	}
	if o.OWD.P99 != nil {
		c.Tails = append(c.Tails, *o.OWD.P99)
	}
	if o.ClockErrorNS == nil {
		c.clockless, c.ClockErrorNS = true, nil
	} else if !c.clockless && (c.ClockErrorNS == nil || *o.ClockErrorNS > *c.ClockErrorNS) {
		bound := *o.ClockErrorNS
		c.ClockErrorNS = &bound
	}
}

// Evidence returns the evidence of all windows, which ended at a time.
func (r *Recorder) Evidence(end time.Time, swaps []Swap, neighbours []Neighbour) *Evidence {
	e := r.e
	e.End, e.Swaps, e.Neighbours = end, swaps, neighbours
	keys := slices.SortedFunc(maps.Keys(r.flows), func(a, b recordKey) int {
		return cmp.Or(cmp.Compare(a.flow.Src, b.flow.Src), cmp.Compare(a.flow.Dst, b.flow.Dst), cmp.Compare(a.flow.Number, b.flow.Number), compareBools(a.flow.Reply, b.flow.Reply), cmp.Compare(a.class, b.class), cmp.Compare(a.path, b.path))
	})
	e.Flows = make([]FlowRecord, len(keys))
	for i, k := range keys {
		e.Flows[i] = *r.flows[k]
	}
	e.Unanswered = map[string]uint64{}
	for nic, n := range r.nics {
		if n.sent > 0 && n.lost >= n.sent {
			e.Unanswered[nic] = n.sent
		}
	}
	return &e
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
