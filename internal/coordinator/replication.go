package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
)

// Limits of replication.
const (
	replicaPart      = 1 << 20         // octets of a part of a change
	replicaMost      = 1 << 30         // octets of a whole state
	replicateEvery   = time.Second     // time between two messages of a leader that has nothing new
	replicaSilentFor = 5 * time.Second // silence after which a standby calls the leader again
)

// replication hands the state of a leader to its standbys. It has a lock of its own, which no other lock is taken under.
type replication struct {
	mu       sync.Mutex
	state    *state // the last one that was published; nil before the first
	sequence uint64
	open     map[*follower]bool
	progress chan struct{} // is closed when a standby has written something, or follows no more; nil if nothing waits for it
}

// follower is a standby that follows.
type follower struct {
	wake  chan struct{}
	ended chan struct{}
	acked uint64 // sequence that it has written
}

// publish hands a state, which is never changed from now on, to all standbys.
func (r *replication) publish(s *state) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = s
	r.sequence++
	r.wakeFollowers()
}

// wakeFollowers wakes the streams of all standbys. It needs mu.
func (r *replication) wakeFollowers() {
	for f := range r.open {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// end ends all streams, and forgets the state.
func (r *replication) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = nil
	for f := range r.open {
		close(f.ended)
	}
	clear(r.open)
	r.wakeWaiting()
}

// wakeWaiting lets what waits for standbys look again. It needs mu.
func (r *replication) wakeWaiting() {
	if r.progress != nil {
		close(r.progress)
		r.progress = nil
	}
}

// waitWritten waits until every standby that follows has written a sequence. It returns an error if ctx ends before.
func (r *replication) waitWritten(ctx context.Context, sequence uint64) error {
	for {
		progress := r.waitingFor(sequence)
		if progress == nil {
			return nil
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitingFor returns nil if every standby that follows has written a sequence, and else a channel that is closed when that may
// have changed.
func (r *replication) waitingFor(sequence uint64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.behindOf(sequence) {
		return nil
	}
	if r.progress == nil {
		r.progress = make(chan struct{})
	}
	return r.progress
}

func (r *replication) add() *follower {
	f := &follower{wake: make(chan struct{}, 1), ended: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[*follower]bool{}
	}
	r.open[f] = true
	return f
}

func (r *replication) remove(f *follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, f)
	r.wakeWaiting()
}

func (r *replication) confirm(f *follower, sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.acked = max(f.acked, min(sequence, r.sequence))
	r.wakeWaiting()
}

func (r *replication) latest() (*state, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.sequence
}

// followers returns the number of standbys that follow.
func (r *replication) followers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open)
}

// announce wakes the standbys for something that is part of no state, and returns the sequence that has it.
func (r *replication) announce() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sequence++
	r.wakeFollowers()
	return r.sequence
}

// behind reports whether a standby follows that has not yet written the last state.
func (r *replication) behind() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behindOf(r.sequence)
}

// behindOf reports whether a standby follows that has not yet written a sequence. It needs mu.
func (r *replication) behindOf(sequence uint64) bool {
	for f := range r.open {
		if f.acked < sequence {
			return true
		}
	}
	return false
}

// stateDiff makes changes of the successive states that one standby gets.
type stateDiff struct {
	begun  bool
	last   *state // the one that was sent
	tokens int    // used join tokens that were sent
	head   [sha256.Size]byte
	agents map[string][sha256.Size]byte
}

// changeParts are the parts of a change, of which none is too long.
type changeParts struct {
	sequence uint64
	done     []*agentapi.StateChange
	part     *agentapi.StateChange // the present one
	size     int                   // octets in it
}

// room returns the part that n more octets belong to.
func (c *changeParts) room(n int) *agentapi.StateChange {
	if c.size += n; c.size > replicaPart {
		c.done = append(c.done, c.part)
		c.part, c.size = &agentapi.StateChange{Sequence: c.sequence}, n
	}
	return c.part
}

// complete returns all parts.
func (c *changeParts) complete() []*agentapi.StateChange {
	c.part.Complete = true
	return append(c.done, c.part)
}

// changeTo returns the parts of the change from the last state to this one, and with the tokens that were used since.
func (d *stateDiff) changeTo(s *state, tokens TokenRecord, sequence uint64) ([]*agentapi.StateChange, error) {
	parts := &changeParts{sequence: sequence, part: &agentapi.StateChange{Sequence: sequence, Whole: !d.begun}}
	if s != d.last {
		if err := d.addState(parts, s); err != nil {
			return nil, err
		}
	}
	if tokens != nil {
		lines := tokens.Since(d.tokens)
		for _, line := range lines {
			part := parts.room(len(line))
			part.UsedTokens = append(part.UsedTokens, line)
		}
		d.tokens += len(lines)
	}
	d.begun, d.last = true, s
	return parts.complete(), nil
}

// addState adds the change from the last state to this one.
func (d *stateDiff) addState(parts *changeParts, s *state) error {
	head := *s
	head.Agents, head.Written = nil, time.Time{}
	text, err := json.Marshal(&head)
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	if sum := sha256.Sum256(text); !d.begun || sum != d.head {
		d.head = sum
		for piece := range slices.Chunk(text, replicaPart) {
			parts.room(len(piece)).Head = piece
		}
	}
	agents := make(map[string][sha256.Size]byte, len(s.Agents))
	for i := range s.Agents {
		a := &s.Agents[i]
		if text, err = json.Marshal(a); err != nil {
			return fmt.Errorf("encode the agent of node %s: %w", a.Node, err)
		}
		agents[a.Node] = sha256.Sum256(text)
		if old, ok := d.agents[a.Node]; !ok || old != agents[a.Node] {
			part := parts.room(len(text))
			part.Agents = append(part.Agents, text)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(d.agents)) {
		if _, ok := agents[node]; !ok {
			part := parts.room(len(node))
			part.RemovedAgents = append(part.RemovedAgents, node)
		}
	}
	d.agents = agents
	return nil
}

// stateBuilder puts the state together again. Its input is from the other coordinator.
type stateBuilder struct {
	head    *state // without agents; nil before the first one
	text    []byte // part of the next head
	agents  map[string]agentState
	size    int  // octets since the last complete change
	changed bool // the state, since then
}

// take takes a part of a change. It returns the state when the change is complete and changes the state, and an error if
// there is none that can be used.
func (b *stateBuilder) take(m *agentapi.StateChange) (*state, error) {
	if m.GetWhole() {
		*b = stateBuilder{agents: map[string]agentState{}}
	}
	if b.agents == nil {
		return nil, errors.New("the first change is not of the whole state")
	}
	b.changed = b.changed || m.GetWhole() || len(m.GetHead())+len(m.GetAgents())+len(m.GetRemovedAgents()) > 0
	b.size += len(m.GetHead())
	b.text = append(b.text, m.GetHead()...)
	for _, text := range m.GetAgents() {
		b.size += len(text)
		var a agentState
		if err := json.Unmarshal(text, &a); err != nil {
			return nil, fmt.Errorf("an agent of the state: %w", err)
		}
		b.agents[a.Node] = a
	}
	for _, node := range m.GetRemovedAgents() {
		delete(b.agents, node)
	}
	if b.size > replicaMost {
		return nil, fmt.Errorf("the state has more than %d octets", replicaMost)
	}
	if !m.GetComplete() {
		return nil, nil
	}
	b.size = 0
	if len(b.text) > 0 {
		head := &state{}
		if err := json.Unmarshal(b.text, head); err != nil {
			return nil, errors.New("the head of the state is not that of a coordinator") // the cause could quote a secret
		}
		b.head, b.text = head, nil
	}
	switch {
	case b.head == nil:
		return nil, errors.New("the state has no head")
	case !b.changed:
		return nil, nil
	}
	b.changed = false
	s := *b.head
	s.Version, s.MinReader, s.Standby, s.Agents = stateVersion, 0, true, nil
	for _, node := range slices.Sorted(maps.Keys(b.agents)) {
		s.Agents = append(s.Agents, b.agents[node])
	}
	return &s, s.validate()
}

// peerIdentity returns a gRPC status unless the client's certificate has one of the names that may replicate.
func (s *Server) peerIdentity(ctx context.Context) error {
	id, err := s.clientIdentity(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(id.names, func(n string) bool { return slices.Contains(s.c.opts.HA.Peers, n) }) {
		s.c.log.Warn("replication refused", "certificate", id.names, "from", id.from)
		return status.Errorf(codes.PermissionDenied, "the certificate is for %q, and --ha.peers has none of these names", id.names)
	}
	return nil
}

// leaderEnrollment lets only a leader sign certificates, since a use of a join token has to be known to both coordinators.
type leaderEnrollment struct {
	agentapi.EnrollmentServer
	c *Coordinator
}

// Enroll implements agentapi.EnrollmentServer.
func (e leaderEnrollment) Enroll(ctx context.Context, q *agentapi.EnrollRequest) (*agentapi.EnrollAnswer, error) {
	if err := e.c.requireLeader(); err != nil {
		return nil, err
	}
	return e.EnrollmentServer.Enroll(ctx, q)
}

// addUsedTokens records the join tokens that the other coordinator knows as used.
func (c *Coordinator) addUsedTokens(lines []string) error {
	if c.opts.UsedTokens == nil || len(lines) == 0 {
		return nil
	}
	return c.opts.UsedTokens.Add(lines, c.opts.Clock.WallTime())
}

// ConfirmTokenUse returns once a standby that follows has recorded the join tokens that were used until now. It returns an
// error if that takes too long, or if this coordinator does not lead any more.
func (c *Coordinator) ConfirmTokenUse(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writtenWithin)
	defer cancel()
	if err := c.replication.waitWritten(ctx, c.replication.announce()); err != nil {
		return errors.New("the standby coordinator has not recorded the use of the token in time")
	}
	return c.requireLeader()
}

// replicationServer answers the other coordinator.
type replicationServer struct {
	*Server
	agentapi.UnimplementedReplicationServer
}

// Meet exchanges what two coordinators know of who leads.
func (s replicationServer) Meet(ctx context.Context, p *agentapi.PeerState) (*agentapi.PeerState, error) {
	if err := s.peerIdentity(ctx); err != nil {
		return nil, err
	}
	s.c.meetPeer(p)
	return s.c.peerState(), nil
}

// meetPeer takes what the other coordinator is.
func (c *Coordinator) meetPeer(p *agentapi.PeerState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leadership.meet(p, c.opts.Clock.MonoTime())
}

// Replicate sends the state to a standby until this coordinator does not lead any more.
func (s replicationServer) Replicate(stream agentapi.Replication_ReplicateServer) error {
	if err := s.peerIdentity(stream.Context()); err != nil {
		return err
	}
	if err := s.c.requireLeader(); err != nil {
		return err
	}
	r := &s.c.replication
	f := r.add()
	defer r.remove(f)
	s.c.log.Info("a standby follows")
	s.wg.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return // the handler ends with the stream
			}
			if err := s.c.addUsedTokens(m.GetUsedTokens()); err != nil {
				s.c.log.Error("cannot record the join tokens that a standby knows as used", "err", err)
			}
			r.confirm(f, m.GetSequence())
		}
	})
	tick := time.NewTicker(replicateEvery)
	defer tick.Stop()
	var diff stateDiff
	var sent uint64
	for {
		state, sequence := r.latest()
		var parts []*agentapi.StateChange
		switch {
		case state == nil: // the first one is being written
		case diff.begun && sequence == sent:
			parts = []*agentapi.StateChange{{Sequence: sequence, Complete: true}}
		default:
			var err error
			if parts, err = diff.changeTo(state, s.c.opts.UsedTokens, sequence); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
		}
		for _, m := range parts {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		sent = sequence
		select {
		case <-stream.Context().Done():
			s.c.log.Warn("a standby follows no more")
			return status.FromContextError(stream.Context().Err()).Err()
		case <-f.ended:
			return s.c.requireLeader()
		case <-f.wake:
		case <-tick.C:
		}
	}
}
