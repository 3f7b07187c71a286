package coordinator

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
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
	since    time.Duration       // its start
	life     uint64              // given to the agent's process; 0 means that its version has no life numbers
	wake     chan struct{}
	ended    chan error // buffers one error

	// The fields below need the coordinator's mu.
	sent           [hashSize]byte // hash of the assignment that the agent has, or was sent
	want           pendingMessages
	pathsRequested bool
}

// pendingMessages says which messages a session has to send.
type pendingMessages struct{ assignment, keys, lives, paths, clocks bool }

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
	resultStandby   = "refused_standby"
	resultRevoked   = "revoked" // ended because the certificate was no longer accepted
)

var sessionResults = []string{resultAccepted, resultTakeover, resultIdentity, resultTopology, resultDuplicate, resultTakeovers, resultMalformed, resultStandby, resultRevoked}

func (c *Coordinator) refuseSession(result string, code codes.Code, format string, args ...any) error {
	c.counters.addSession(result)
	return status.Errorf(code, format, args...)
}

// registerAgent begins the session of an agent, or returns a gRPC status with the reason why it may
// not.
func (c *Coordinator) registerAgent(h *agentapi.Hello, id identity) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	if !c.leadership.leads {
		c.counters.addSession(resultStandby)
		return nil, errNotLeader(c.leaderAddress())
	}
	a, err := c.admitAgent(h, id, mono)
	if err != nil {
		return nil, err
	}
	yields, unproven := c.leadership.noteEpoch(h.GetEpoch(), h.GetEpochProof())
	if unproven {
		c.log.Warn("an agent has seen a greater epoch, without a proof: its coordinator's state was lost, or the agent lies", "node", a.node, "epoch", h.GetEpoch())
	}
	if yields {
		c.counters.addSession(resultStandby)
		return nil, errNotLeader(c.leaderAddress())
	}
	s := &session{agent: a, instance: slices.Clone(h.GetInstance()), bootID: h.GetBootId(), expires: id.expires, chain: id.chain, since: mono,
		wake: make(chan struct{}, 1), ended: make(chan error, 1)}
	copy(s.sent[:], h.GetApplied().GetHash())
	c.counters.addSession(resultAccepted)
	a.session, a.lastMessageAt, a.lastSeen = s, mono, wall
	a.status = agentStatus{applied: h.GetApplied(), stalled: a.status.stalled, clockOffset: a.status.clockOffset}
	a.assigned.version = max(a.assigned.version, h.GetApplied().GetVersion())
	web := webAccess{address: h.GetWeb().GetAddress(), scheme: h.GetWeb().GetScheme(), from: cmp.Or(id.from, sourceSocket), refused: a.web.refused}
	if a.web != web || a.software != h.GetVersion() {
		a.web, a.software, c.file.unsaved = web, h.GetVersion(), true
	}
	c.checkTarget(a)
	if h.Life != nil {
		save := false
		s.life, save = c.registry.lives.assignLife(h, a.life)
		c.file.unsaved = c.file.unsaved || save
	} else if a.life != 0 {
		a.life, c.file.unsaved = 0, true // an older version was given to it
	}
	s.want.lives = true
	a.ownConfiguration = h.GetOwnConfiguration()
	if a.ownConfiguration && a.present {
		a.present = false
		c.markDirty(true, mono)
	}
	c.updateInterfaces(a, h.GetInterfaces(), mono)
	c.joinSchedule(a, mono)
	if c.keys != nil && !a.ownConfiguration {
		s.want.keys = !a.upToDate() || !slices.Equal(h.GetApplied().GetKeyIds(), c.keys.epochIDs())
	}
	c.queueUpdates(a)
	s.wakeSender()
	return s, nil
}

// admitAgent returns the agent that sent a hello, whose earlier session it ends, or a gRPC status with
// the reason why the agent gets no session. It needs mu.
func (c *Coordinator) admitAgent(h *agentapi.Hello, id identity, mono time.Duration) (*agent, error) {
	if err := checkHello(h); err != nil {
		return nil, c.refuseSession(resultMalformed, codes.InvalidArgument, "%v", err)
	}
	node := h.GetNode()
	if !slices.Contains(id.names, node) {
		return nil, c.refuseSession(resultIdentity, codes.PermissionDenied, "the certificate is for %q, not for node %q", id.names, node)
	}
	if !c.topology.nodes[node] && !c.opts.AnyNode {
		return nil, c.refuseSession(resultTopology, codes.NotFound, "node %q is not in the topology", node)
	}
	a := c.registry.agentOf(node)
	old := a.session
	if old == nil {
		return a, nil
	}
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
		c.counters.addSession(resultTakeover)
	}
	old.endWith(status.Errorf(codes.Aborted, "another agent of node %q has taken over", node))
	return a, nil
}

// updateInterfaces stores the interfaces that an agent reports. It needs mu.
func (c *Coordinator) updateInterfaces(a *agent, in []*agentapi.Interface, mono time.Duration) {
	before := a.interfaces.interfaces
	out := mergeInterfaces(before, in)
	same := slices.EqualFunc(before, out, func(x, y interfaceState) bool {
		return x.Name == y.Name && x.Hardware == y.Hardware && x.RDMA.equal(y.RDMA) && x.Port.equal(y.Port) && x.AwaitsRDMA == y.AwaitsRDMA && slices.Equal(x.Addresses, y.Addresses) && slices.Equal(x.Networks, y.Networks)
	})
	a.interfaces.interfaces = out // the plan does not depend on neighbours
	if !same {
		c.registry.reports++
		a.interfaces.order = c.registry.reports
		c.markDirty(false, mono)
	}
}

// mergeInterfaces returns the interfaces of a report. What a report leaves out stays as it was before.
func mergeInterfaces(before []interfaceState, in []*agentapi.Interface) (out []interfaceState) {
	for _, f := range in {
		s := interfaceState{Name: f.GetName(), Hardware: f.GetHardwareStamps(), Port: newPortState(f.GetIb()), AwaitsRDMA: f.GetRdma() != nil}
		i := slices.IndexFunc(before, func(o interfaceState) bool { return o.Name == s.Name })
		if f.HardwareStamps == nil {
			s.Hardware = i >= 0 && before[i].Hardware
		}
		if r := f.GetRdma(); r.GetQpn() != 0 {
			s.RDMA = &rdmaState{Device: r.GetDevice(), Port: r.GetPort(), GID: netip.AddrFrom16([16]byte(r.GetGid())), QPN: r.GetQpn(), QKey: r.GetQKey(), LID: r.GetLid(), Hardware: r.GetHardware()}
		} else if r != nil && i >= 0 {
			s.RDMA = before[i].RDMA // it has no queue pair now, and does not change to UDP because of that
		}
		lengths := f.GetPrefixLengths()
		for i, b := range f.GetAddresses() {
			address := agentapi.AddrFromBytes(b)
			s.Addresses = append(s.Addresses, address)
			if len(lengths) == len(f.GetAddresses()) {
				s.Networks = append(s.Networks, netip.PrefixFrom(address, int(lengths[i])).Masked())
			}
		}
		for _, n := range f.GetLldp() {
			s.Neighbours = append(s.Neighbours, fabric.Neighbour{System: n.GetSystem(), Port: n.GetPort(), Chassis: n.GetChassis(), Forwards: n.GetForwards()})
		}
		out = append(out, s)
	}
	return out
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
		c.counters.addTraces(taken, len(p.GetTraces())-taken)
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
		a.status = agentStatus{applied: h.GetApplied(), silentEdges: int(h.GetSilentEdgesTotal()), silentNames: h.GetSilentEdges(),
			stalled: time.Duration(h.GetStalledNs()), applyError: h.GetApplyError(), clockOffset: a.status.clockOffset}
		if h.GetUnixTimeNs() != 0 {
			a.status.clockOffset = time.Unix(0, h.GetUnixTimeNs()).Sub(wall)
		}
		c.noteLife(s)
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
	if ids := a.status.applied.GetKeyIds(); c.keys != nil && (len(ids) == 0 || ids[0] != c.keys.epochs[0].ID) {
		return
	}
	a.present = true
	c.markDirty(true, mono)
}

// takePending returns what a session has to send, and clears it. With an assignment it returns its
// version and hash. Life numbers wait for the plan.
func (c *Coordinator) takePending(s *session) (want pendingMessages, p *plan, keys *keyring, assigned assignedVersion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, keys, assigned, want = c.planning.plan, c.keys, s.agent.assigned, s.want
	want.lives = want.lives && p != nil && !s.agent.ownConfiguration
	s.want = pendingMessages{lives: s.want.lives && !want.lives}
	want.keys = want.keys && keys != nil
	// A plan in which the node is absent has no assignment for it.
	want.assignment = want.assignment && p != nil && p.hash[s.agent.node] == assigned.hash
	if want.assignment {
		s.sent = assigned.hash
	}
	return want, p, keys, assigned
}

// messagesFor returns and clears the pending messages of a session. Keys come before the assignment
// that needs them.
func (c *Coordinator) messagesFor(s *session) (out []*agentapi.CoordinatorMessage) {
	want, p, keys, assigned := c.takePending(s)
	epoch, _ := c.epochProof()
	c.counters.addSent(want)
	node := s.agent.node
	if want.lives {
		if m := c.livesOf(p, node); len(m.Nodes) > 0 {
			out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Lives{Lives: m}})
		}
	}
	if want.keys {
		m := &agentapi.Keys{Ids: keys.epochIDs()}
		if p != nil {
			for _, peer := range p.peerNodes(node) {
				m.Peers = append(m.Peers, &agentapi.PeerKeys{Node: peer, Keys: keys.pairKeys(node, peer)})
			}
		}
		out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Keys{Keys: m}})
	}
	if want.assignment {
		m := p.assignmentFor(node)
		m.Version, m.Hash, m.Epoch = assigned.version, assigned.hash[:], epoch
		out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Assignment{Assignment: m}})
	}
	if want.paths {
		out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_PathsWanted{PathsWanted: &agentapi.PathsWanted{}}})
	}
	if want.clocks {
		m := &agentapi.ClockUpdate{Format: agentapi.ClockFormat, Update: c.clocks.encodedUpdate(node)}
		out = append(out, &agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Clock{Clock: m}})
	}
	return out
}
