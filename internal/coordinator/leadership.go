package coordinator

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
)

// Modes of a pair of coordinators.
const (
	ModeManual = "manual" // a request makes the standby the leader
	ModeLease  = "lease"  // the holder of a lease of Kubernetes leads
)

// errStandby is the error of an act that only a leader may do.
var errStandby = errors.New("this coordinator is a standby, want the one that leads")

// leadership says whether this coordinator leads. It needs the coordinator's mu.
type leadership struct {
	paired   bool   // there is another coordinator
	leads    bool   // agents get sessions
	resumes  bool   // the state is that of a leader, which leads again unless the other one does
	epoch    uint64 // of the leader that this coordinator is or follows: the greatest that is one of the fleet's
	claimed  uint64 // the greatest epoch that an agent has reported without its proof
	fenceKey []byte
	instance []byte // of the process
	yieldTo  uint64 // epoch of another leader, which this one has to make way for; 0 means none

	replica  *state // of a standby: what it leads with when it is made the leader; nil if it has none. It is never changed
	followed bool   // since the start of the process it had the whole state of the leader
	syncedAt time.Duration
	peer     peerView
}

// peerView is what is known of the other coordinator.
type peerView struct {
	tried   bool          // a first call has ended
	heardAt time.Duration // of its last answer or call; 0 means never
	leads   bool
	epoch   uint64
}

// peerHeardFor is how long an answer of the other coordinator counts.
const peerHeardFor = 4 * time.Second

func (p *peerView) leading(mono time.Duration) bool {
	return p.leads && p.heardAt != 0 && mono-p.heardAt < peerHeardFor
}

// newLeadership returns the leadership that continues a state, which is nil if there is none. A coordinator that is alone
// leads at once. One of a pair leads when that is known to be right.
func newLeadership(s *state, ha *HAOptions, wall time.Time, mono time.Duration) leadership {
	l := leadership{paired: ha.Paired(), instance: newSecret()[:agentapi.InstanceSize], syncedAt: mono, replica: s}
	if s != nil {
		l.epoch, l.fenceKey = s.Epoch, s.FenceKey
		l.resumes = !s.Standby && ha.Mode == ModeManual
	} else {
		l.resumes = l.paired && ha.Mode == ModeManual && ha.isInitial()
	}
	if !l.paired {
		l.epoch = l.firstEpoch(wall)
		if s != nil && s.Standby {
			l.epoch++ // the leader that it followed may still be there
		}
	}
	return l
}

// firstEpoch returns the epoch of a leader that continues by its own state: the epoch of that, or else the time in seconds,
// so that a fleet whose state was lost goes on above the epochs that its agents have seen.
func (l *leadership) firstEpoch(wall time.Time) uint64 {
	if l.epoch != 0 {
		return l.epoch
	}
	return uint64(max(wall.Unix(), 1))
}

// nextEpoch returns an epoch above all that are known.
func (l *leadership) nextEpoch(wall time.Time) uint64 {
	if l.epoch == 0 && l.claimed == 0 && l.peer.epoch == 0 {
		return l.firstEpoch(wall)
	}
	return max(l.epoch, l.claimed, l.peer.epoch) + 1
}

// proof returns the text by which a coordinator of the fleet recognises an epoch as one of the fleet's.
func (l *leadership) proof(epoch uint64) []byte {
	m := hmac.New(sha256.New, l.fenceKey)
	m.Write([]byte("graylink epoch\x00"))
	m.Write(binary.BigEndian.AppendUint64(nil, epoch))
	return m.Sum(nil)
}

// noteEpoch takes the epoch that an agent has seen. With its proof it counts as that of another leader. Without, it is
// remembered for the next time that somebody makes this coordinator the leader: an agent may lie. It reports whether this
// coordinator must make way, and whether the number is new and has no proof.
func (l *leadership) noteEpoch(epoch uint64, proof []byte) (yields, unproven bool) {
	if epoch <= l.epoch || epoch >= agentapi.MaxEpoch {
		return false, false
	}
	if len(l.fenceKey) == 0 || !hmac.Equal(proof, l.proof(epoch)) {
		unproven = epoch > l.claimed
		l.claimed = max(l.claimed, epoch)
		return false, unproven
	}
	if !l.paired {
		l.epoch = epoch + 1 // an older state was restored: the epoch goes on
		return false, false
	}
	l.yieldTo = max(l.yieldTo, epoch)
	return l.leads, false
}

// meet takes what the other coordinator is. Of two leaders the one with the smaller epoch makes way; if the epochs are
// equal, which happens when both were made leaders while neither reached the other, the one with the smaller instance does.
func (l *leadership) meet(p *agentapi.PeerState, mono time.Duration) {
	l.peer = peerView{tried: true, heardAt: mono, leads: p.GetLeads(), epoch: min(p.GetEpoch(), agentapi.MaxEpoch-1)}
	tie := l.peer.leads && l.peer.epoch == l.epoch && slices.Compare(l.instance, p.GetInstance()) < 0
	if l.leads && (l.peer.epoch > l.epoch || tie) {
		l.yieldTo = max(l.yieldTo, l.peer.epoch)
	}
}

// leaderAddress returns the address of the other coordinator if that leads, else an empty text. It needs mu.
func (c *Coordinator) leaderAddress() string {
	if c.leadership.peer.leading(c.opts.Clock.MonoTime()) {
		return c.opts.HA.PeerAddress
	}
	return ""
}

// leaderAddressNow does what leaderAddress does, without mu.
func (c *Coordinator) leaderAddressNow() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaderAddress()
}

// epochProof returns the epoch of this leader, and its proof.
func (c *Coordinator) epochProof() (epoch uint64, proof []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leadership.epoch, c.leadership.proof(c.leadership.epoch)
}

// Leads reports whether this coordinator leads.
func (c *Coordinator) Leads() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leadership.leads
}

// errNotLeader returns the gRPC status of a request that only a leader answers.
func errNotLeader(leader string) error {
	if leader == "" {
		return status.Error(codes.Unavailable, "this coordinator is a standby, and no leader is known")
	}
	return status.Errorf(codes.Unavailable, "this coordinator is a standby: the leader is %s", leader)
}

// requireLeader returns the gRPC status of a request that only a leader answers, or nil from a leader.
func (c *Coordinator) requireLeader() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leadership.leads {
		return nil
	}
	return errNotLeader(c.leaderAddress())
}

// allConnected reports whether a coordinator of a pair has sessions with all nodes of the schedule. Those that are missing
// may be connected to the other one, and would not get what this one changes. Of a coordinator that is alone it is always
// true. It needs mu.
func (c *Coordinator) allConnected() bool {
	if !c.leadership.paired {
		return true
	}
	for _, a := range c.registry.agents {
		if a.present && a.session == nil {
			return false
		}
	}
	return true
}

// peerState returns what this coordinator is.
func (c *Coordinator) peerState() *agentapi.PeerState {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.leadership
	return &agentapi.PeerState{Leads: l.leads, Epoch: l.epoch, Instance: l.instance}
}

// lead makes this coordinator the leader, by a state that is nil if there is none. Agents that are connected to no other
// coordinator find the schedule, the keys and the life numbers of that state. It needs changeMu, or exclusive access.
func (c *Coordinator) lead(s *state, epoch uint64) error {
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	c.mu.Lock()
	l := &c.leadership
	if l.epoch = epoch; len(l.fenceKey) == 0 {
		l.fenceKey = newSecret()
	}
	l.resumes, l.yieldTo = false, 0
	c.moves, c.asked = portMoves{movedAt: mono}, askedFlows{}
	c.planning, c.keys = planState{}, nil
	c.maintenance = newMaintenanceBook(s)
	c.loadAgents(s, wall, mono)
	if c.opts.Keys {
		c.keys = newKeyring(s, c.opts.RotateEvery, wall, mono)
	}
	dirty := c.planning.dirty
	c.mu.Unlock()
	c.paths.reset()
	// A state that was read is enough to run on: agents continue with keys that are in the file.
	// Without a state, or with a new key, the first write has to succeed, since no agent may hold a key
	// that a restart would forget.
	if err := c.saveWith(c.keys); err != nil && (s == nil || c.opts.Keys && len(s.Keys) == 0) {
		return err
	}
	if dirty {
		if err := c.rebuildPlan(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.leads, l.replica = true, nil
	return nil
}

// loadAgents replaces the registry by the agents, claims and moves of a state, which is nil if there is none. It needs mu
// and changeMu, or exclusive access.
func (c *Coordinator) loadAgents(s *state, wall time.Time, mono time.Duration) {
	before := c.registry.agents
	c.registry = registry{agents: map[string]*agent{}, lives: newLifeNumbers(s, wall), started: mono, restored: s != nil || c.opts.AnyNode}
	if s != nil {
		c.restoreState(s, before, wall, mono)
		c.registry.checkWhole(len(c.topology.nodes), c.opts.RegistrySettle, mono)
	}
}

// stepDown makes a leader the standby of one with a greater epoch, or with the same. Its agents go to that one. It needs
// changeMu.
func (c *Coordinator) stepDown(epoch uint64, reason string) {
	s := c.currentState(c.keys)
	s.Standby = true
	c.mu.Lock()
	if !c.leadership.leads {
		c.mu.Unlock()
		return
	}
	c.leadership.leads, c.leadership.followed, c.leadership.replica, c.leadership.yieldTo = false, false, s, 0
	c.leadership.syncedAt = c.opts.Clock.MonoTime()
	own := c.leadership.epoch
	for _, a := range c.registry.agents {
		if a.session != nil {
			a.session.endWith(errNotLeader(c.leaderAddress()))
			a.session = nil
		}
	}
	c.keys = nil
	c.planning = planState{claims: c.planning.claims}
	c.mu.Unlock()
	c.replication.end()
	c.paths.reset()
	c.log.Warn("this coordinator is a standby from now on", "epoch", own, "greater_epoch", epoch, "reason", reason)
	_ = c.saveState() // saveState logs and counts a failure, and is tried again
}

// Promote makes this coordinator the leader, with an epoch above all that it knows. A coordinator that leads gets a greater
// epoch. Agents of another leader stay there until that one, or they, hear of the epoch.
func (c *Coordinator) Promote(ctx context.Context) error {
	c.mu.Lock()
	epoch := c.leadership.nextEpoch(c.opts.Clock.WallTime())
	c.mu.Unlock()
	if c.opts.HA.Lease != nil {
		found, err := c.opts.HA.Lease.Hold(ctx, LeaseRequest{AtLeast: epoch, Take: true, Force: true})
		if err != nil {
			return fmt.Errorf("take the lease: %w", err)
		}
		epoch = found.Epoch
	}
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	return c.promoteTo(epoch, "a request")
}

// promoteTo makes this coordinator the leader with an epoch. It needs changeMu.
func (c *Coordinator) promoteTo(epoch uint64, reason string) error {
	c.mu.Lock()
	l := &c.leadership
	was, s := l.leads, l.replica
	if was {
		l.epoch, l.yieldTo = max(l.epoch, epoch), 0
		c.file.unsaved = true
	}
	c.mu.Unlock()
	if was {
		return c.saveState()
	}
	if err := c.lead(s, epoch); err != nil {
		c.mu.Lock()
		l.replica, c.keys = s, nil
		c.mu.Unlock()
		return fmt.Errorf("cannot lead: %w", err)
	}
	c.log.Warn("this coordinator leads from now on", "epoch", epoch, "reason", reason)
	return nil
}

// followLeadership does what follows from what is known of other leaders. It reports whether this coordinator leads. It
// needs changeMu.
func (c *Coordinator) followLeadership() bool {
	mono := c.opts.Clock.MonoTime()
	c.mu.Lock()
	l := &c.leadership
	leads, yieldTo, s := l.leads, l.yieldTo, l.replica
	// The state of a leader leads again when the other coordinator is away, or answers that it does not lead and has seen
	// nothing newer.
	resumes := l.resumes && l.peer.tried && !l.peer.leading(mono) && l.peer.epoch <= l.epoch
	if l.resumes && l.peer.leading(mono) {
		l.resumes = false
	}
	epoch := l.firstEpoch(c.opts.Clock.WallTime())
	c.mu.Unlock()
	switch {
	case leads && yieldTo != 0:
		c.stepDown(yieldTo, "another coordinator leads")
		return false
	case !leads && resumes:
		if err := c.lead(s, epoch); err != nil {
			c.log.Error("cannot lead", "err", err)
			c.mu.Lock()
			c.leadership.replica, c.keys = s, nil
			c.mu.Unlock()
			return false
		}
		c.log.Info("this coordinator leads", "epoch", epoch)
		return true
	}
	return leads
}

// Leadership says which role a coordinator has, as the API serves it.
type Leadership struct {
	Leads bool   `json:"leads"`
	Epoch uint64 `json:"epoch"`
	Mode  string `json:"mode,omitempty"` // empty if there is no other coordinator
	// Leader is the address of the other coordinator if that leads.
	Leader string `json:"leader,omitempty"`
	// LagSeconds is the time since a standby had the whole state of the leader; of one that never had it, since its start.
	LagSeconds *float64 `json:"replication_lag_seconds,omitempty"`
	// Standbys is the number of coordinators that follow this leader.
	Standbys *int `json:"standbys,omitempty"`
}

// Leadership returns the role of this coordinator.
func (c *Coordinator) Leadership() Leadership {
	followers := c.replication.followers()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.leadership
	out := Leadership{Leads: l.leads, Epoch: l.epoch}
	if !l.paired {
		return out
	}
	out.Mode = c.opts.HA.Mode
	if l.leads {
		out.Standbys = &followers
		return out
	}
	lag := (c.opts.Clock.MonoTime() - l.syncedAt).Seconds()
	out.LagSeconds, out.Leader = &lag, c.leaderAddress()
	return out
}

// readyStandby returns nil unless there is a leader whose state this standby has not got yet. It needs mu.
func (c *Coordinator) readyStandby() error {
	l := &c.leadership
	switch {
	case !l.peer.tried:
		return errors.New("the other coordinator was not called yet")
	case l.peer.leading(c.opts.Clock.MonoTime()) && !l.followed:
		return errors.New("the standby has not got the state of the leader yet")
	}
	return nil
}
