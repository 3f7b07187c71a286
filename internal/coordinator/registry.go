package coordinator

import (
	"bytes"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

// registry has the agents. It needs the coordinator's mu.
type registry struct {
	agents   map[string]*agent // by node
	lives    lifeNumbers
	reports  uint64 // number of reports of interfaces so far
	started  time.Duration
	restored bool // a state file was read at the start, or the number of nodes is not known
	whole    bool // targets are served
}

// checkWhole marks the registry as whole once it has the agents of a state, or of all nodes, or has
// waited for them.
func (r *registry) checkWhole(nodes int, settle, mono time.Duration) {
	if r.restored || len(r.agents) == nodes || mono-r.started >= settle {
		r.whole = true
	}
}

// joined returns the number of agents that are part of the schedule or have a configuration of their
// own.
func (r *registry) joined() (n int) {
	for _, a := range r.agents {
		if a.present || a.ownConfiguration {
			n++
		}
	}
	return n
}

// agentOf returns the agent of a node. It adds one that is new.
func (r *registry) agentOf(node string) *agent {
	a := r.agents[node]
	if a == nil {
		a = &agent{node: node}
		r.agents[node] = a
	}
	return a
}

// agent is the state of the agent of one node.
type agent struct {
	node             string
	ownConfiguration bool // the agent probes by its own configuration and is never part of the schedule
	present          bool // the node is part of the schedule
	lastSeen         time.Time
	lastMessageAt    time.Duration
	software         string
	life             uint64 // number of its process's life; 0 means that it has none
	web              webAccess
	interfaces       interfaceReport // the slice in it is replaced, never changed
	assigned         assignedVersion
	session          *session
	takeovers        []time.Duration
	status           agentStatus
}

// webAccess says where an agent may be scraped.
type webAccess struct {
	address string // host:port that the agent advertises; if empty, the agent is not scraped
	scheme  string // scheme that the agent advertises
	from    string // host of its last session, or sourceSocket; empty if it is not known
	refused string // why address is not served as it is; empty if it is
}

// assignedVersion identifies the assignment of an agent.
type assignedVersion struct {
	version uint64
	hash    [hashSize]byte
}

// agentStatus is what an agent reports of itself in a heartbeat.
type agentStatus struct {
	applied     *agentapi.Applied
	silentEdges int
	silentNames []string
	stalled     time.Duration
	clockOffset time.Duration // its wall clock minus the coordinator's, when the heartbeat came in
	applyError  string
}

// upToDate reports whether the agent has applied its assignment.
func (a *agent) upToDate() bool { return bytes.Equal(a.status.applied.GetHash(), a.assigned.hash[:]) }

// restoreState restores the agents of a state. before has those that the registry had, so that nothing is logged twice. Silence counts from now, since no agent could be heard
// while the coordinator did not run.
func (c *Coordinator) restoreState(s *state, before map[string]*agent, wall time.Time, mono time.Duration) {
	for _, a := range s.Agents {
		if !c.topology.nodes[a.Node] && !c.opts.AnyNode {
			if before == nil {
				c.log.Warn("dropping a node of the state that is not in the topology", "node", a.Node)
			}
			continue
		}
		seen := a.LastSeen
		if seen.After(wall) {
			seen = wall
		}
		n := &agent{node: a.Node, present: a.Present, lastSeen: seen, lastMessageAt: mono, software: a.Software, life: a.Life,
			web: webAccess{address: a.Web, scheme: a.Scheme, from: a.From}, interfaces: interfaceReport{interfaces: a.Interfaces}}
		n.assigned.version = a.Assigned
		copy(n.assigned.hash[:], a.Hash)
		if was := before[a.Node]; was != nil {
			n.web.refused = was.web.refused
		}
		c.registry.agents[a.Node] = n
		c.checkTarget(n)
		if a.Web != "" && a.From == "" {
			c.registry.restored = false // a state from before targets were checked: targets are served after the agents have connected
		}
		if a.Present {
			c.markDirty(true, mono)
		}
	}
	c.moves.list, c.planning.claims = s.scheduleMoves(), s.claimsByNIC()
}

// checkLiveness removes nodes that were silent for too long from the schedule, and ends sessions whose
// certificate has expired.
func (c *Coordinator) checkLiveness() {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	for _, a := range c.registry.agents {
		if a.present && mono-a.lastMessageAt >= c.opts.AbsentAfter {
			c.log.Info("node is absent and leaves the schedule", "node", a.node, "last_seen", a.lastSeen)
			a.present = false
			c.markDirty(true, mono)
		}
		if s := a.session; s != nil && !s.expires.IsZero() && wall.After(s.expires) {
			s.endWith(errExpired)
		}
	}
	c.registry.checkWhole(len(c.topology.nodes), c.opts.RegistrySettle, mono)
}

// Agent is the state of an agent, as the API serves it.
type Agent struct {
	Node             string    `json:"node"`
	State            string    `json:"state"`
	Software         string    `json:"version,omitempty"`
	Web              string    `json:"web,omitempty"`
	WebRefused       string    `json:"web_refused,omitempty"`
	LastSeen         time.Time `json:"last_seen,omitzero"`
	ConnectedSeconds *float64  `json:"connected_seconds,omitempty"`
	SilentSeconds    *float64  `json:"silent_seconds,omitempty"`
	Assigned         uint64    `json:"assigned_version,omitempty"`
	Applied          *uint64   `json:"applied_version,omitempty"`
	UpToDate         *bool     `json:"up_to_date,omitempty"`
	KeyIDs           []uint32  `json:"key_ids,omitempty"`
	SilentEdges      *int      `json:"silent_edges,omitempty"`
	SilentNames      []string  `json:"silent_edge_names,omitempty"`
	StalledSeconds   *float64  `json:"stalled_seconds,omitempty"`
	ClockOffset      *float64  `json:"wall_clock_offset_seconds,omitempty"`
	ApplyError       string    `json:"apply_error,omitempty"`
}

// States of agents. A node of the topology that never had an agent is "never".
const (
	StateConnected = "connected"
	StateSilent    = "silent" // not heard from, but still part of the schedule
	StateAbsent    = "absent"
	StateNever     = "never"
)

// AgentStates lists all states of agents.
var AgentStates = []string{StateConnected, StateSilent, StateAbsent, StateNever}

// stateName returns the state of the agent. It needs mu.
func (a *agent) stateName(mono, heartbeat time.Duration) string {
	switch {
	case a == nil:
		return StateNever
	case a.session != nil && mono-a.lastMessageAt < silentBeats*heartbeat:
		return StateConnected
	case a.present:
		return StateSilent
	}
	return StateAbsent
}

// Interfaces returns the interfaces that connected agents report, by node and name. Of several interfaces of one
// InfiniBand port, the first one has the port's GUID.
func (c *Coordinator) Interfaces() (out []fabric.NodeView) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for node, a := range c.registry.agents {
		if a.session == nil {
			continue
		}
		v := fabric.NodeView{Node: node}
		known := map[string]bool{"": true}
		for _, f := range a.interfaces.interfaces {
			nic := fabric.NICView{NIC: node + "/" + f.Name, Addresses: f.Addresses, Networks: f.Networks, Neighbours: f.Neighbours}
			if guid := f.portGUID(); !known[guid] {
				known[guid] = true
				nic.GUID, nic.RDMADevice = guid, f.deviceOfPort()
			}
			v.NICs = append(v.NICs, nic)
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(x, y fabric.NodeView) int { return compareNames(x.Node, y.Node) })
	return out
}

// Agents returns the state of every node of the topology.
func (c *Coordinator) Agents() []Agent {
	c.mu.Lock()
	defer c.mu.Unlock()
	mono := c.opts.Clock.MonoTime()
	out := make([]Agent, 0, len(c.topology.nodes))
	for i := range c.topology.graph.Topo.Nodes {
		node := c.topology.graph.Topo.Nodes[i].Name
		a := c.registry.agents[node]
		v := Agent{Node: node, State: a.stateName(mono, c.opts.Heartbeat)}
		if a == nil {
			out = append(out, v)
			continue
		}
		v.Software, v.LastSeen, v.Assigned = a.software, a.lastSeen, a.assigned.version
		if a.web.address != "" {
			v.Web, v.WebRefused = c.opts.targetOf(c.topology, a)
		}
		silent := max(0, mono-a.lastMessageAt).Seconds()
		v.SilentSeconds = &silent
		if a.session != nil {
			st := &a.status
			connected, applied, stalled, offset, edges := (mono - a.session.since).Seconds(), st.applied.GetVersion(), st.stalled.Seconds(), st.clockOffset.Seconds(), st.silentEdges
			current := a.upToDate()
			v.ConnectedSeconds, v.Applied, v.UpToDate, v.SilentEdges, v.StalledSeconds, v.ClockOffset = &connected, &applied, &current, &edges, &stalled, &offset
			v.KeyIDs, v.SilentNames, v.ApplyError = st.applied.GetKeyIds(), st.silentNames, st.applyError
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(x, y Agent) int { return compareNames(x.Node, y.Node) })
	return out
}

func compareNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
