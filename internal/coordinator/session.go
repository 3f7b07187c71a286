package coordinator

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
)

// Limits of sessions.
const (
	silentBeats   = 3 // heartbeats of silence after which an agent may be replaced
	takeoversMost = 3 // maximum number of takeovers of one node by restarted processes
	takeoversIn   = time.Minute
	helloWithin   = 10 * time.Second
)

// Errors that sessions end with.
var (
	errExpired       = status.Error(codes.Unauthenticated, "the certificate that this session began with has expired: connect again with a new one")
	errNotInTopology = status.Error(codes.NotFound, "the node is not in the coordinator's topology any more")
	errNoPlan        = errors.New("there is no schedule yet")
	errStopping      = status.Error(codes.Unavailable, "the coordinator is stopping")
)

// session is one agent's stream. Pending messages are flags, so that nothing accumulates when the agent
// is slow.
type session struct {
	agent    *agent
	instance []byte
	bootID   string
	expires  time.Time           // expiry of the certificate
	chain    []*x509.Certificate // chain that the client sent, its own certificate first
	life     uint64              // given to the agent's process; 0 means that its version has no life numbers
	wake     chan struct{}
	ended    chan error // buffers one error

	// The fields below need the coordinator's mu.
	sent           [hashSize]byte // hash of the assignment that the agent has, or was sent
	wantAssignment bool
	wantKeys       bool
	wantLives      bool
	wantPaths      bool
	wantClocks     bool
	pathsRequested bool
}

func (s *session) wakeSender() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// endWith makes the stream's handler return err. Only the first call has an effect.
func (s *session) endWith(err error) {
	select {
	case s.ended <- err:
	default:
	}
}

// identity is the content of a client's certificate.
type identity struct {
	names   []string // DNS names and addresses
	chain   []*x509.Certificate
	expires time.Time
	from    string // host that the connection came from; empty if there is none
}

// Results of sessions, as they are counted.
const (
	resultAccepted  = "accepted"
	resultTakeover  = "takeover"
	resultIdentity  = "refused_identity"
	resultTopology  = "refused_topology"
	resultDuplicate = "refused_duplicate"
	resultTakeovers = "refused_takeovers"
	resultMalformed = "refused_malformed"
	resultRevoked   = "revoked" // ended because the certificate was no longer accepted
)

var sessionResults = []string{resultAccepted, resultTakeover, resultIdentity, resultTopology, resultDuplicate, resultTakeovers, resultMalformed, resultRevoked}

func (c *Coordinator) refuseSession(result string, code codes.Code, format string, args ...any) error {
	c.count.sessions[result]++
	return status.Errorf(code, format, args...)
}

// registerAgent begins the session of an agent, or returns a gRPC status with the reason why it may
// not.
func (c *Coordinator) registerAgent(h *agentapi.Hello, id identity) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	if err := checkHello(h); err != nil {
		return nil, c.refuseSession(resultMalformed, codes.InvalidArgument, "%v", err)
	}
	node := h.GetNode()
	if !slices.Contains(id.names, node) {
		return nil, c.refuseSession(resultIdentity, codes.PermissionDenied, "the certificate is for %q, not for node %q", id.names, node)
	}
	if !c.nodes[node] {
		return nil, c.refuseSession(resultTopology, codes.NotFound, "node %q is not in the topology", node)
	}
	a := c.agents[node]
	if a == nil {
		a = &agent{node: node}
		c.agents[node] = a
	}
	if old := a.session; old != nil {
		switch {
		case bytes.Equal(old.instance, h.GetInstance()):
			// The process is the same: its old stream broke without notice.
		case mono-a.lastMessageAt >= silentBeats*c.opts.Heartbeat:
			c.log.Warn("replacing a silent agent", "node", node, "silent", mono-a.lastMessageAt)
		case old.bootID != h.GetBootId() || h.GetBootId() == "":
			return nil, c.refuseSession(resultDuplicate, codes.AlreadyExists, "node %q already has a live agent on another host", node)
		default:
			a.takeovers = slices.DeleteFunc(a.takeovers, func(t time.Duration) bool { return mono-t >= takeoversIn })
			if len(a.takeovers) >= takeoversMost {
				return nil, c.refuseSession(resultTakeovers, codes.AlreadyExists, "node %q already has an agent, which was replaced %d times within %v: two agents may use its name", node, len(a.takeovers), takeoversIn)
			}
			a.takeovers = append(a.takeovers, mono)
			c.count.sessions[resultTakeover]++
		}
		old.endWith(status.Errorf(codes.Aborted, "another agent of node %q has taken over", node))
	}
	s := &session{agent: a, instance: slices.Clone(h.GetInstance()), bootID: h.GetBootId(), expires: id.expires, chain: id.chain,
		wake: make(chan struct{}, 1), ended: make(chan error, 1)}
	copy(s.sent[:], h.GetApplied().GetHash())
	c.count.sessions[resultAccepted]++
	a.session, a.sessionSince, a.lastMessageAt, a.lastSeen = s, mono, mono, wall
	a.applied, a.silentEdges, a.silentNames, a.applyError = h.GetApplied(), 0, nil, ""
	a.version = max(a.version, h.GetApplied().GetVersion())
	web, scheme, from := h.GetWeb().GetAddress(), h.GetWeb().GetScheme(), cmp.Or(id.from, sourceSocket)
	if a.webAddress != web || a.webScheme != scheme || a.sessionFrom != from || a.software != h.GetVersion() {
		a.webAddress, a.webScheme, a.sessionFrom, a.software, c.unsaved = web, scheme, from, h.GetVersion(), true
	}
	c.checkTarget(a)
	if h.Life != nil {
		save := false
		s.life, save = c.lives.assignLife(h)
		c.unsaved = c.unsaved || save
	} else if a.life != 0 {
		a.life, c.unsaved = 0, true // an older version was given to it
	}
	s.wantLives = true
	a.ownConfiguration = h.GetOwnConfiguration()
	if a.ownConfiguration && a.present {
		a.present = false
		c.markDirty(true, mono)
	}
	c.updateInterfaces(a, h.GetInterfaces(), mono)
	c.joinSchedule(a, mono)
	current := bytes.Equal(h.GetApplied().GetHash(), a.hash[:])
	if c.keys != nil && !a.ownConfiguration {
		s.wantKeys = !current || !slices.Equal(h.GetApplied().GetKeyIds(), c.keys.epochIDs())
	}
	a.queueUpdates(c)
	s.wakeSender()
	return s, nil
}

// updateInterfaces stores the interfaces that an agent reports. It needs mu.
func (c *Coordinator) updateInterfaces(a *agent, in []*agentapi.Interface, mono time.Duration) {
	var out []interfaceState
	for _, f := range in {
		s := interfaceState{Name: f.GetName(), Hardware: f.GetHardwareStamps()}
		if f.HardwareStamps == nil {
			i := slices.IndexFunc(a.interfaces, func(o interfaceState) bool { return o.Name == s.Name })
			s.Hardware = i >= 0 && a.interfaces[i].Hardware
		}
		if r := f.GetRdma(); r.GetQpn() != 0 {
			s.RDMA = &rdmaState{Device: r.GetDevice(), Port: r.GetPort(), GID: netip.AddrFrom16([16]byte(r.GetGid())), QPN: r.GetQpn(), QKey: r.GetQKey(), LID: r.GetLid(), Hardware: r.GetHardware()}
		} else if i := slices.IndexFunc(a.interfaces, func(o interfaceState) bool { return o.Name == s.Name }); r != nil && i >= 0 {
			s.RDMA = a.interfaces[i].RDMA // it has no queue pair now, and does not change to UDP because of that
		}
		for _, b := range f.GetAddresses() {
			s.Addresses = append(s.Addresses, agentapi.AddrFromBytes(b))
		}
		out = append(out, s)
	}
	same := slices.EqualFunc(a.interfaces, out, func(x, y interfaceState) bool {
		return x.Name == y.Name && x.Hardware == y.Hardware && x.RDMA.equal(y.RDMA) && slices.Equal(x.Addresses, y.Addresses)
	})
	if !same {
		c.reports++
		a.interfaces, a.reported = out, c.reports
		c.markDirty(false, mono)
	}
}

// endSession ends a session. The agent stays known.
func (c *Coordinator) endSession(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.agent.session == s {
		s.agent.session = nil
		s.agent.lastSeen = c.opts.Clock.WallTime()
	}
}

// handleMessage processes a message of a session. If it returns an error, the session ends.
func (c *Coordinator) handleMessage(s *session, m *agentapi.AgentMessage) error {
	if err := checkMessage(m); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	c.mu.Lock()
	current := s.agent.session == s
	c.mu.Unlock()
	if !current {
		return nil // the session is ending already
	}
	if p := m.GetPaths(); p != nil {
		taken := c.paths.addTraces(s.agent.node, p.GetTraces())
		c.mu.Lock()
		c.count.traces["taken"] += uint64(taken)
		c.count.traces["ignored"] += uint64(len(p.GetTraces()) - taken)
		c.mu.Unlock()
	}
	if r := m.GetClock(); r != nil {
		c.clocks.handleReport(s.agent.node, r, c.opts.Clock.MonoTime())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a := s.agent
	if a.session != s {
		return nil // the session is ending already
	}
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	a.lastMessageAt, a.lastSeen = mono, wall
	switch b := m.GetBody().(type) {
	case *agentapi.AgentMessage_Hello:
		return status.Error(codes.InvalidArgument, "a second hello")
	case *agentapi.AgentMessage_Heartbeat:
		h := b.Heartbeat
		if s.life != a.life { // the agent has had the number since the welcome
			a.life, c.unsaved = s.life, true
		}
		a.applied, a.silentEdges, a.silentNames = h.GetApplied(), int(h.GetSilentEdgesTotal()), h.GetSilentEdges()
		a.stalled, a.applyError = time.Duration(h.GetStalledNs()), h.GetApplyError()
		if h.GetUnixTimeNs() != 0 {
			a.clockOffset = time.Unix(0, h.GetUnixTimeNs()).Sub(wall)
		}
	case *agentapi.AgentMessage_Addresses:
		c.updateInterfaces(a, b.Addresses.GetInterfaces(), mono)
	}
	c.joinSchedule(a, mono)
	return nil
}

// joinSchedule adds a node to the schedule, once it sends with the key that its peers send with. It
// needs mu.
func (c *Coordinator) joinSchedule(a *agent, mono time.Duration) {
	if a.present || a.ownConfiguration {
		return
	}
	if ids := a.applied.GetKeyIds(); c.keys != nil && (len(ids) == 0 || ids[0] != c.keys.epochs[0].ID) {
		return
	}
	a.present = true
	c.markDirty(true, mono)
}

// pendingMessages returns and clears the pending messages of a session. Keys come before the assignment
// that needs them.
func (c *Coordinator) pendingMessages(s *session) (out []*agentapi.CoordinatorMessage) {
	c.mu.Lock()
	p, keys, a := c.plan, c.keys, s.agent
	wantLives := s.wantLives && p != nil && !a.ownConfiguration
	s.wantLives = s.wantLives && !wantLives
	wantKeys, wantAssignment, wantPaths, wantClocks := s.wantKeys && keys != nil, s.wantAssignment && p != nil, s.wantPaths, s.wantClocks
	s.wantKeys, s.wantAssignment, s.wantPaths, s.wantClocks = false, false, false, false
	node, version, hash := a.node, a.version, a.hash
	if wantAssignment {
		// A plan in which the node is absent has no assignment for it.
		if p.hash[node] != hash {
			wantAssignment = false
		} else {
			s.sent = hash
			c.count.assignments++
		}
	}
	if wantKeys {
		c.count.keysSent++
	}
	if wantClocks {
		c.count.clockUpdates++
	}
	c.mu.Unlock()

	if wantLives {
		if m := c.livesOf(p, node); len(m.Nodes) > 0 {
			out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Lives{Lives: m}})
		}
	}
	if wantKeys {
		m := &agentapi.Keys{Ids: keys.epochIDs()}
		if p != nil {
			for _, peer := range p.peerNodes(node) {
				m.Peers = append(m.Peers, &agentapi.PeerKeys{Node: peer, Keys: keys.pairKeys(node, peer)})
			}
		}
		out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Keys{Keys: m}})
	}
	if wantAssignment {
		m := p.assignmentFor(node)
		m.Version, m.Hash = version, hash[:]
		out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Assignment{Assignment: m}})
	}
	if wantPaths {
		out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_PathsWanted{PathsWanted: &agentapi.PathsWanted{}}})
	}
	if wantClocks {
		m := &agentapi.ClockUpdate{Format: agentapi.ClockFormat, Update: c.clocks.encodedUpdate(node)}
		out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Clock{Clock: m}})
	}
	return out
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

// Agents returns the state of every node of the topology.
func (c *Coordinator) Agents() []Agent {
	c.mu.Lock()
	defer c.mu.Unlock()
	mono := c.opts.Clock.MonoTime()
	out := make([]Agent, 0, len(c.nodes))
	for i := range c.graph.Topo.Nodes {
		node := c.graph.Topo.Nodes[i].Name
		a := c.agents[node]
		v := Agent{Node: node, State: a.stateName(mono, c.opts.Heartbeat)}
		if a == nil {
			out = append(out, v)
			continue
		}
		v.Software, v.LastSeen, v.Assigned = a.software, a.lastSeen, a.version
		if a.webAddress != "" {
			v.Web, v.WebRefused = c.targetOf(a)
		}
		silent := max(0, mono-a.lastMessageAt).Seconds()
		v.SilentSeconds = &silent
		if a.session != nil {
			connected, applied, stalled, offset, edges := (mono - a.sessionSince).Seconds(), a.applied.GetVersion(), a.stalled.Seconds(), a.clockOffset.Seconds(), a.silentEdges
			current := bytes.Equal(a.applied.GetHash(), a.hash[:])
			v.ConnectedSeconds, v.Applied, v.UpToDate, v.SilentEdges, v.StalledSeconds, v.ClockOffset = &connected, &applied, &current, &edges, &stalled, &offset
			v.KeyIDs, v.SilentNames, v.ApplyError = a.applied.GetKeyIds(), a.silentNames, a.applyError
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
	p := c.plan
	c.mu.Unlock()
	if p == nil {
		return sum, nil, false
	}
	sum = Schedule{Hash: fmt.Sprintf("%016x", scheduleHash(p.sched)), NICs: len(p.sched.NICs), Edges: len(p.sched.Edges),
		Components: len(p.sched.Components), Findings: append([]string{}, p.sched.Findings...)}
	for _, f := range p.conflicts {
		sum.Findings = append(sum.Findings, f.text)
	}
	for _, i := range p.nics[node] {
		for _, e := range p.sched.Edges[p.firstEdge[i]:p.firstEdge[i+1]] {
			v := Edge{Edge: p.sched.FlowID(e).String(), Tier: int(e.Tier), CadenceNS: int64(e.Cadence)}
			if int(e.Class) < len(p.sched.Classes) {
				v.Class = p.sched.Classes[e.Class]
			}
			edges = append(edges, v)
		}
	}
	return sum, edges, true
}

// Stats are the statistics that the coordinator publishes about itself.
type Stats struct {
	Agents          map[string]int    // number by state
	Sessions        map[string]uint64 // number by result
	Whole           bool
	HasPlan         bool
	Conflicts       map[string]int // reported addresses and GIDs that are not used, by reason; nil without a plan
	Edges           map[string]int // number by state
	Runs            map[string]uint64
	RunSeconds      float64
	RunAt           time.Time
	Assignments     uint64
	KeysSent        uint64
	OutOfDate       int // connected agents that have not applied their assignment
	KeysEpoch       uint32
	KeysHeld        int
	KeysUnconfirmed int // connected agents that have not confirmed the newest key
	Traces          map[string]uint64
	Refused         map[string]int // agents that are not scraped at their advertised address, by reason
	Handshakes      Handshakes
	Clocks          ClockStats
	ClockUpdates    uint64
	Moves           uint64
	Saves           map[string]uint64
	StepAt          time.Time
	TopologyHash    string
	ReloadOK        bool
	ReloadedAt      time.Time
	Links           []LinkEdges // nil before the first path is bound
	LinkEdges       int         // number wanted on every link
}

// Stats returns the present statistics.
func (c *Coordinator) Stats() Stats {
	links, probes, _ := c.paths.linkCounts()
	clocks := c.clocks.clockStats()
	c.mu.Lock()
	defer c.mu.Unlock()
	mono := c.opts.Clock.MonoTime()
	s := Stats{Agents: map[string]int{}, Sessions: map[string]uint64{}, Whole: c.registryWhole, HasPlan: c.plan != nil, Edges: map[string]int{},
		Runs: map[string]uint64{"done": c.count.runs["done"], "failed": c.count.runs["failed"]}, RunSeconds: c.count.runSeconds, RunAt: c.count.runAt,
		Assignments: c.count.assignments, KeysSent: c.count.keysSent, Traces: map[string]uint64{"taken": c.count.traces["taken"], "ignored": c.count.traces["ignored"]},
		Clocks: clocks, ClockUpdates: c.count.clockUpdates, Moves: c.count.moves, Saves: map[string]uint64{"done": c.count.saves["done"], "failed": c.count.saves["failed"]},
		StepAt: c.count.stepAt, TopologyHash: c.topoSum, ReloadOK: c.reloadOK, ReloadedAt: c.reloadedAt, Links: links, LinkEdges: c.opts.LinkEdges}
	for _, st := range AgentStates {
		s.Agents[st] = 0
	}
	for _, r := range sessionResults {
		s.Sessions[r] = c.count.sessions[r]
	}
	newest := uint32(0)
	if c.keys != nil {
		s.KeysEpoch, s.KeysHeld = c.keys.epochs[0].ID, len(c.keys.epochs)
		for _, e := range c.keys.epochs {
			newest = max(newest, e.ID)
		}
	}
	s.Refused = map[string]int{}
	for _, r := range refusedReasons {
		s.Refused[r] = 0
	}
	if c.admission != nil {
		s.Handshakes = c.admission.handshakeStats()
	}
	silent := 0
	for n := range c.nodes {
		a := c.agents[n]
		if a != nil && a.webRefused != "" {
			s.Refused[a.webRefused]++
		}
		s.Agents[a.stateName(mono, c.opts.Heartbeat)]++
		if a == nil || a.session == nil || a.ownConfiguration {
			continue
		}
		silent += a.silentEdges
		if !bytes.Equal(a.applied.GetHash(), a.hash[:]) {
			s.OutOfDate++
		}
		if newest != 0 && !containsID(a.applied.GetKeyIds(), newest) {
			s.KeysUnconfirmed++
		}
	}
	if c.plan != nil {
		s.Conflicts = map[string]int{}
		for _, reason := range conflictReasons {
			s.Conflicts[reason] = 0
		}
		for _, f := range c.plan.conflicts {
			s.Conflicts[f.reason]++
		}
		total := len(c.plan.sched.Edges)
		s.Edges = map[string]int{"all": total, "unaddressed": c.plan.unaddressed, "silent": silent, "path_known": probes, "path_unknown": total - probes}
	}
	return s
}

// Ready returns nil if agents get assignments, and an error before the first schedule.
func (c *Coordinator) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plan == nil {
		return errNoPlan
	}
	return nil
}
