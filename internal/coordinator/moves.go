package coordinator

import (
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// Limits of moving source ports.
const (
	traceWithin = 2 * time.Minute // time after which a moved edge without a trace is no longer waited for

	movesPerEdge = 8 // source ports tried for an edge, on average, before moving ends
	movesFloor   = 10_000
	slowestRound = 7 // doublings of the time between rounds that bring nothing
)

// portMoves has the source ports that were moved, and decides when the next round of moves is due. It
// needs changeMu.
type portMoves struct {
	list         []schedule.Move
	movedAt      time.Duration // time of the last round
	movedFor     uint64        // version of the paths at the last round
	awaited      []fabric.Flow // edges that were moved and are not yet traced
	awaitedSince time.Duration
	missing      int // edges that links lacked before the last round
	fruitless    int // consecutive rounds that did not lower missing
}

// due reports whether the time between two rounds has passed. Fruitless rounds become rarer.
func (m *portMoves) due(every, mono time.Duration) bool {
	return mono-m.movedAt >= every<<min(m.fruitless, slowestRound)
}

// awaitsTraces reports whether an edge that was moved is still to be traced.
func (m *portMoves) awaitsTraces(paths *pathStore, mono time.Duration) bool {
	if mono-m.awaitedSince >= traceWithin {
		return false
	}
	return slices.ContainsFunc(m.awaited, func(e fabric.Flow) bool { return !paths.hasBothTraces(e) })
}

// roundLimit returns the maximum number of moves of a round.
func (m *portMoves) roundLimit(edges int) int {
	return min(max(20, edges/100), max(movesFloor, movesPerEdge*edges)-len(m.list))
}

// addRound adds the moves of a round that began with so many edges missing on links.
func (m *portMoves) addRound(next []schedule.Move, missing int, version uint64, mono time.Duration) {
	m.movedAt, m.movedFor = mono, version
	if m.missing > 0 && missing >= m.missing {
		m.fruitless++
	} else {
		m.fruitless = 0
	}
	m.missing = missing
	if len(next) == 0 {
		return
	}
	m.list = slices.Concat(m.list, next)
	m.awaited, m.awaitedSince = nil, mono
	for _, v := range next {
		m.awaited = append(m.awaited, fabric.Flow{Src: v.Src, Dst: v.Dst, Number: v.To})
	}
}

// replaceTopology drops the moves of NICs that a topology lacks.
func (m *portMoves) replaceTopology(g *fabric.Graph) {
	m.list = slices.DeleteFunc(m.list, func(v schedule.Move) bool { return g.NIC(v.Src) == nil || g.NIC(v.Dst) == nil })
	m.missing, m.fruitless = 0, 0
}

// rebalancePorts moves source ports once all edges that were moved before are traced. It needs
// changeMu.
func (c *Coordinator) rebalancePorts() {
	mono := c.opts.Clock.MonoTime()
	c.mu.Lock()
	p, dirty, all := c.planning.plan, c.planning.dirty, c.allConnected()
	c.mu.Unlock()
	if c.opts.LinkEdges <= 0 || c.opts.Planner.Rebalance == nil || p == nil || dirty || !all || !c.moves.due(c.opts.RebalanceEvery, mono) || c.moves.awaitsTraces(c.paths, mono) {
		return
	}
	version, bound := c.paths.tracedPaths()
	// Where paths are chosen, another source port is on the same path.
	if version == c.moves.movedFor || len(bound) == 0 || p.carriers != nil {
		return
	}
	// The share of edges without a path limits how reliable the counts are.
	if len(bound)*10 < len(p.base.Edges)*2*9 {
		return
	}
	limit := c.moves.roundLimit(len(p.base.Edges))
	if limit <= 0 {
		return
	}
	missing := 0
	links, _, _ := c.paths.linkCounts()
	for _, l := range links {
		missing += max(0, c.opts.LinkEdges-l.Edges)
	}
	next := c.opts.Planner.Rebalance(p.graph, p.base, bound, slices.Clone(c.moves.list), c.opts.LinkEdges, limit)
	if len(next) > limit {
		next = next[:limit]
	}
	c.moves.addRound(next, missing, version, mono)
	if len(next) == 0 {
		return
	}
	c.log.Info("source ports moved", "edges", len(next))
	c.counters.add(func(n *counts) { n.moves += uint64(len(next)) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.markDirty(true, mono-c.opts.Settle) // several moves count as one change that has already settled
}
