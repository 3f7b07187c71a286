package nodeagent

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/probe"
)

// exchanger is the part of the probe engine that clock estimation uses.
type exchanger interface {
	DrainExchanges(yield func(id clocksync.PairID, dir int, sent, received int64))
	SetRelations(map[clocksync.PairID]clocksync.Relation)
	SetClockBound(nic string, bound time.Duration, known bool)
	Config() *probe.Config
	ClockKinds(yield func(nic string, k clocksync.Kind, width int64))
	ClockWitnesses(yield func(clocksync.Witness))
	Now() time.Time
	NodeTime(t int64) int64
}

// clocks estimates the clocks of a node's peers once a window, and reports the estimates to the coordinator. It places
// the engine's samples by the frame that the coordinator computes from all nodes' estimates, and by the node's own
// estimates while the coordinator is silent.
type clocks struct {
	node   string
	engine exchanger
	log    *slog.Logger
	report func([]byte) // sends a report to the coordinator if it is connected; called with mu held
	steer  *steering    // nil if the system clock is not steered by the frame

	mu        sync.Mutex
	pairs     map[clocksync.PairID]*clocksync.Pair
	follower  *clocksync.Follower
	related   map[clocksync.PairID]clocksync.Relation
	kinds     map[string]clocksync.Kind // kind of the clock that stamps, by NIC
	frame     frameView
	now       clockTimes
	buffer    []byte
	witnesses []clocksync.Witness
}

// frameView represents the frame as it is published.
type frameView struct {
	number       uint64
	since        time.Duration      // when the number was first known, by the monotonic clock
	wholeSeconds map[string]float64 // whole seconds off the frame when that was first known, by clock
}

// clockTimes represents the times up to which the clocks are known.
type clockTimes struct {
	endMono    time.Duration // end of the last window
	endWall    int64
	latestMono time.Duration // latest time at which anything was done
}

// witnessEvery is the interval at which the engine's observations of moving clocks are read.
const witnessEvery = 100 * time.Millisecond

func newClocks(node string, e exchanger, report func([]byte), log *slog.Logger) *clocks {
	return &clocks{node: node, engine: e, log: log, report: report, pairs: map[clocksync.PairID]*clocksync.Pair{},
		follower: clocksync.NewFollower(), related: map[clocksync.PairID]clocksync.Relation{}, kinds: map[string]clocksync.Kind{}, frame: frameView{wholeSeconds: map[string]float64{}}}
}

// run ends a window whenever one is full, until ctx ends.
func (c *clocks) run(ctx context.Context) {
	base := c.engine.Now()
	tick := time.NewTicker(clocksync.Window)
	defer tick.Stop()
	look := time.NewTicker(witnessEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			c.checkWitnesses(c.engine.Now().Sub(base))
		case <-tick.C:
			now := c.engine.Now()
			wall, mono := c.engine.NodeTime(now.UnixNano()), now.Sub(base)
			c.closeWindow(wall, mono)
			if c.steer != nil {
				c.steer.processWindow(ctx, c.systemStatus(), wall, mono)
			}
		}
	}
}

// closeWindow ends a window at now by the system's clock and at mono by the monotonic clock.
func (c *clocks) closeWindow(now int64, mono time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.endMono, c.now.endWall, c.now.latestMono = mono, now, mono
	c.collectWitnesses()
	c.follower.FallBack(mono)
	c.noteFrame()
	c.engine.DrainExchanges(func(id clocksync.PairID, dir int, sent, received int64) {
		p := c.pairs[id]
		if p == nil {
			p = clocksync.NewPair(id.Kind)
			c.pairs[id] = p
		}
		if dir == 0 {
			p.AddForward(sent, received)
		} else {
			p.AddReverse(sent, received)
		}
	})
	c.dropUnprobedPairs()
	r := clocksync.Report{Node: c.node, End: now, Pairs: make([]clocksync.PairEstimate, 0, len(c.pairs))}
	for id, p := range c.pairs {
		if hint, sigma, ok := c.follower.MapHint(id, now, mono); ok {
			p.SetHint(hint, sigma)
		}
		e := p.CloseWindow(now)
		c.follower.AddEstimate(id, e, mono)
		// A jump within the window spoils it. The next window gives an estimate again.
		if e.Quality != clocksync.None && !c.follower.WindowSpoilt(id, mono) {
			r.Pairs = append(r.Pairs, clocksync.PairEstimate{ID: id, Estimate: e})
		}
	}
	c.updateRelations()
	// The relation of a NIC's own clock to the system's clock is known as precisely as both clocks can be read.
	c.engine.ClockKinds(func(nic string, k clocksync.Kind, width int64) {
		if k == clocksync.Hardware {
			r.Joins = append(r.Joins, clocksync.Join{A: c.node, B: nic, Ref: now, Width: width})
		}
	})
	if len(c.pairs) > 0 {
		c.buffer = r.AppendTo(c.buffer[:0])
		c.report(c.buffer)
	}
}

// checkWitnesses lowers the quality of what is known if edges observed that clocks moved.
func (c *clocks) checkWitnesses(mono time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.latestMono = mono
	moved := c.collectWitnesses()
	if c.follower.FallBack(mono) || moved {
		c.noteFrame()
		c.updateRelations()
	}
}

// collectWitnesses reads what edges observed, and reports whether less is known because of it.
func (c *clocks) collectWitnesses() bool {
	c.witnesses = c.witnesses[:0]
	c.engine.ClockWitnesses(func(w clocksync.Witness) { c.witnesses = append(c.witnesses, w) })
	return c.follower.ApplyWitnesses(c.witnesses, c.now.latestMono)
}

// dropUnprobedPairs drops pairs of edges that are no longer probed.
func (c *clocks) dropUnprobedPairs() {
	cfg := c.engine.Config()
	known := make(map[clocksync.PairID]bool, len(cfg.Edges))
	for i := range cfg.Edges {
		e := &cfg.Edges[i]
		known[clocksync.PairID{Src: e.Src, Dst: e.Dst, Flow: e.Flow}] = true
	}
	keep := func(id clocksync.PairID) bool { id.Kind = 0; return known[id] }
	for id := range c.pairs {
		if !keep(id) {
			delete(c.pairs, id)
		}
	}
	c.follower.ForgetPairs(keep)
}

// updateRelations passes the current relations to the engine.
func (c *clocks) updateRelations() {
	clear(c.related)
	for id := range c.pairs {
		if r, ok := c.follower.RelationFor(id, c.now.endWall, c.now.endMono); ok {
			c.related[id] = r
		}
	}
	c.engine.SetRelations(c.related)
	c.engine.ClockKinds(func(nic string, k clocksync.Kind, _ int64) { c.kinds[nic] = k })
	for nic := range c.kinds {
		s := c.clockStatus(nic)
		c.engine.SetClockBound(nic, time.Duration(s.Bound+s.Allowance), s.Known)
	}
}

// applyUpdate applies an update of a coordinator, which leads or not, and logs one that cannot be parsed.
func (c *clocks) applyUpdate(update []byte, leads bool) {
	u, err := clocksync.ParseUpdate(update)
	if err != nil {
		c.log.Warn("cannot apply the coordinator's clock update", "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.collectWitnesses()
	c.follower.ApplyUpdate(u, c.now.latestMono, leads)
	c.noteFrame()
	c.updateRelations()
}

// noteFrame forgets what was published of an earlier frame.
func (c *clocks) noteFrame() {
	if number := c.follower.Frame(); number != c.frame.number {
		c.frame.number, c.frame.since = number, c.now.latestMono
		clear(c.frame.wholeSeconds)
	}
}

// clockStatus returns what is known of the clock that stamps at a NIC.
func (c *clocks) clockStatus(nic string) clocksync.Status {
	return c.follower.StatusOf(clocksync.ClockOf(nic, c.kinds[nic]), c.now.endWall, c.now.endMono)
}

// systemStatus returns what is known of the system clock at the end of the last window.
func (c *clocks) systemStatus() clocksync.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.follower.StatusOf(c.node, c.now.endWall, c.now.endMono)
}

// frameSettles is the time after a change of the frame in which some nodes may still follow the one before.
const frameSettles = 10 * clocksync.Window

// systemClockBound returns how far the system clock is from the frame at most, whether or not it is steered by the frame. It is
// false if that is unknown.
func (c *clocks) systemClockBound() (bound time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.follower.StatusOf(c.node, c.now.endWall, c.now.endMono)
	if !s.Known || s.State != clocksync.Locked && s.State != clocksync.Holdover || c.now.latestMono-c.frame.since < frameSettles {
		return 0, false
	}
	// The status is of the end of the last window, and the clock goes on until the next one is known.
	moves := math.Ceil(math.Abs(s.Drift) * float64(2*clocksync.Window))
	ns := math.Abs(float64(s.Offset)) + float64(s.Bound) + float64(s.Allowance) + moves
	if ns > math.MaxInt64/4 {
		return 0, false
	}
	return time.Duration(ns), true
}

// listOwnClocks lists what is known of the clocks that stamp at the node's NICs.
func (c *clocks) listOwnClocks() []OwnClock {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]OwnClock, 0, len(c.kinds))
	for _, nic := range slices.Sorted(maps.Keys(c.kinds)) {
		s := c.clockStatus(nic)
		j := OwnClock{NIC: nic, State: s.State.String(), Frame: s.Frame, Ref: c.now.endWall}
		if s.Known {
			j.Offset, j.Rate, j.Bound, j.Allowance = &s.Offset, s.Drift, s.Bound, s.Allowance
		}
		out = append(out, j)
	}
	return out
}

// listRelations lists the relations by which edges are placed now.
func (c *clocks) listRelations() []RelationReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]RelationReport, 0, len(c.related))
	for id, r := range c.related {
		kind := "kernel"
		if id.Kind == clocksync.Hardware {
			kind = kindHardware
		}
		e := probe.EdgeConfig{Src: id.Src, Dst: id.Dst, Flow: id.Flow}
		out = append(out, RelationReport{Edge: e.ID().String(), Timestamp: kind, Ref: r.Ref, Offset: r.Offset, Rate: r.Rate, Bound: r.Bound})
	}
	slices.SortFunc(out, func(a, b RelationReport) int { return strings.Compare(a.Edge+a.Timestamp, b.Edge+b.Timestamp) })
	return out
}

// ClockView represents a NIC's clock as it is published.
type ClockView struct {
	clocksync.Status
	WholeSeconds float64 // whole seconds of the offset, as they were when first known
}

// ViewOf returns what is known of the clock that stamps at a NIC. It returns false before the first window has ended.
func (c *clocks) ViewOf(nic string) (v ClockView, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.endWall == 0 {
		return v, false
	}
	v.Status = c.clockStatus(nic)
	if v.Known {
		if _, had := c.frame.wholeSeconds[nic]; !had {
			c.frame.wholeSeconds[nic] = math.Round(float64(v.Offset) / 1e9)
		}
		v.WholeSeconds = c.frame.wholeSeconds[nic]
	}
	return v, true
}
