package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// planState has the plan in use, and what the next one has to follow. It needs the coordinator's mu.
type planState struct {
	plan          *plan            // nil before the first one
	claims        map[string]claim // by NIC; the map is replaced, never changed
	dirty         bool             // the plan is older than the state of the agents
	dirtySchedule bool             // more than addresses changed
	dirtyFirst    time.Duration
	dirtyLast     time.Duration
}

// markDirty records that the plan must follow a change.
func (s *planState) markDirty(schedule bool, mono time.Duration) {
	if !s.dirty {
		s.dirtyFirst = mono
	}
	s.dirty, s.dirtyLast = true, mono
	s.dirtySchedule = s.dirtySchedule || schedule
}

// settled reports whether the changes have settled, or have gone on for most.
func (s *planState) settled(settle, most, mono time.Duration) bool {
	return mono-s.dirtyLast >= settle || mono-s.dirtyFirst >= most
}

// hasNode reports whether the plan has an assignment for a node.
func (s *planState) hasNode(node string) bool {
	return s.plan != nil && s.plan.hasNode(node)
}

// markDirty records that the plan must follow a change, and that the state is not saved. It needs mu,
// or exclusive access.
func (c *Coordinator) markDirty(schedule bool, mono time.Duration) {
	c.planning.markDirty(schedule, mono)
	c.file.unsaved = true
}

// planDue reports whether a new plan is due. Without a state the first plan waits until the fleet has
// gathered.
func (c *Coordinator) planDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.planning.dirty {
		return false
	}
	most := c.opts.SettleMost
	if c.planning.plan == nil {
		if c.registry.joined() == len(c.topology.nodes) {
			return true
		}
		most = max(most, c.opts.RegistrySettle)
	}
	return c.planning.settled(c.opts.Settle, most, c.opts.Clock.MonoTime())
}

// takeInput returns everything that the next plan depends on, with the plan in use, and whether more
// than addresses changed since. The state then counts as followed. It needs changeMu.
func (c *Coordinator) takeInput() (in planInput, old *plan, anew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in = planInput{graph: c.topology.graph, options: c.opts.Schedule, present: map[string]bool{}, reported: make(map[string]interfaceReport, len(c.registry.agents)),
		claims: c.planning.claims, prefixes: c.opts.AddressPrefixes}
	in.options.Absent = map[string]bool{}
	in.options.Moves = slices.Clone(c.moves.list)
	for n := range c.topology.nodes {
		a := c.registry.agents[n]
		if a != nil && a.present {
			in.present[n] = true
		} else {
			in.options.Absent[n] = true
		}
		if a != nil {
			in.reported[n] = a.interfaces
		}
	}
	old, anew = c.planning.plan, c.planning.dirtySchedule
	c.planning.dirty, c.planning.dirtySchedule = false, false
	return in, old, anew
}

// makePlan computes a plan. It computes the schedule anew if that is needed, or if there is none.
func (c *Coordinator) makePlan(in planInput, old *plan, anew bool) (*plan, error) {
	if old != nil && !anew {
		return newPlan(in, old.base, c.opts.probeSettings())
	}
	s, err := c.opts.Planner.Make(in.graph, in.options)
	if err != nil {
		return nil, fmt.Errorf("compute the schedule: %w", err)
	}
	return newPlan(in, s, c.opts.probeSettings())
}

// rebuildPlan computes a plan from the current state and hands it out. It needs changeMu.
func (c *Coordinator) rebuildPlan() error {
	in, old, anew := c.takeInput()
	began := c.opts.Clock.MonoTime()
	p, err := c.makePlan(in, old, anew)
	if err == nil {
		p, err = c.asked.addTo(p)
	}
	took := c.opts.Clock.MonoTime() - began
	if err != nil {
		c.counters.addRun(false, took, c.opts.Clock.WallTime())
		c.mu.Lock()
		defer c.mu.Unlock()
		c.markDirty(anew, began+c.opts.SettleMost-c.opts.Settle) // tries again, after a delay
		return err
	}
	for _, f := range p.conflicts {
		if old == nil || !slices.Contains(old.conflicts, f) {
			c.log.Warn("a reported address is not used", "reason", f.reason, "conflict", f.text)
		}
	}
	if anew || old == nil {
		for _, f := range p.sched.Findings {
			c.log.Warn("the schedule has a shortfall", "finding", f)
		}
	}
	c.paths.setPlan(p)
	changed := c.usePlan(p)
	c.counters.addRun(true, took, c.opts.Clock.WallTime())
	c.log.Info("schedule computed", "edges", len(p.base.Edges), "nodes", len(p.hash), "changed", changed, "hash", fmt.Sprintf("%016x", scheduleHash(p.base)), "seconds", took.Seconds())
	return nil
}

// usePlan hands out a plan. It returns the number of agents whose assignment has changed.
func (c *Coordinator) usePlan(p *plan) (changed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file.unsaved = c.file.unsaved || !maps.Equal(c.planning.claims, p.claims)
	c.planning.plan, c.planning.claims = p, p.claims
	for node, h := range p.hash {
		a := c.registry.agents[node]
		if a == nil {
			continue
		}
		if a.assigned.hash != h || a.assigned.version == 0 {
			a.assigned = assignedVersion{a.assigned.version + 1, h}
			c.file.unsaved = true
			changed++
		}
		c.queueUpdates(a)
	}
	return changed
}

// queueUpdates marks what the agent's session has to send. It needs mu.
func (c *Coordinator) queueUpdates(a *agent) {
	s := a.session
	if s == nil || a.ownConfiguration || !c.planning.hasNode(a.node) {
		return
	}
	if s.sent != a.assigned.hash {
		s.want.assignment, s.want.keys, s.want.lives = true, c.keys != nil, true
	}
	if !s.pathsRequested && !c.paths.hasTraces(a.node) {
		s.want.paths = true
	}
	s.pathsRequested = true
	s.wakeSender()
}

// Edge is a scheduled edge, as the API serves it.
type Edge struct {
	Edge      string `json:"edge"`
	Tier      int    `json:"tier"`
	Class     string `json:"class"`
	CadenceNS int64  `json:"cadence_ns"`
}

// Schedule is a summary of the schedule.
type Schedule struct {
	Hash       string   `json:"hash"`
	NICs       int      `json:"nics"`
	Edges      int      `json:"edges"`
	Components int      `json:"components"`
	Findings   []string `json:"findings"`
}

// ScheduleOf returns a summary of the schedule, and the edges that a node probes if a node is named. ok
// is false before there is a schedule.
func (c *Coordinator) ScheduleOf(node string) (sum Schedule, edges []Edge, ok bool) {
	c.mu.Lock()
	p := c.planning.plan
	c.mu.Unlock()
	if p == nil {
		return sum, nil, false
	}
	sum = Schedule{Hash: fmt.Sprintf("%016x", scheduleHash(p.base)), NICs: len(p.sched.NICs), Edges: len(p.base.Edges),
		Components: len(p.sched.Components), Findings: append([]string{}, p.sched.Findings...)}
	for _, f := range p.conflicts {
		sum.Findings = append(sum.Findings, f.text)
	}
	for _, i := range p.nics[node] {
		for _, e := range p.outgoing(i) {
			v := Edge{Edge: p.sched.FlowID(e).String(), Tier: int(e.Tier), CadenceNS: int64(e.Cadence)}
			if int(e.Class) < len(p.sched.Classes) {
				v.Class = p.sched.Classes[e.Class]
			}
			edges = append(edges, v)
		}
	}
	return sum, edges, true
}

// Ready returns nil if agents get assignments, and an error before the first schedule.
func (c *Coordinator) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leadership.leads {
		return c.readyStandby()
	}
	if c.planning.plan == nil {
		return errNoPlan
	}
	return nil
}
