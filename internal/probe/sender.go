package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// edge represents one flow to one peer.
type edge struct {
	flow
	cfg       EdgeConfig
	id        fabric.Flow
	dscp      uint8
	peer      *peer
	signals   *edgeSignals // nil if the flow has none
	sock      *socket
	target    netip.AddrPort
	next      int64 // time of the next probe, monotonic nanoseconds
	sinceTwin int   // probes since the last one that had a twin
	refused   bool  // a switch refuses its carrier
	gone      bool  // the configuration no longer has it
}

// socketKey identifies an endpoint among those of a NIC's flows.
type socketKey struct {
	port uint16 // the source port
	rdma bool
}

// sender sends the probes of a NIC and accounts for the replies.
type sender struct {
	self   *identity
	clock  *timeline
	log    *slog.Logger
	ports  *ports
	out    *outbox
	filter *packetFilter
	traces *traceAnswers
	signal *nicSignals

	sockets    map[socketKey]*socket
	edges      []*edge
	refusals   *refusals
	anyRefused bool   // some edge is refused
	settled    int64  // time at which losses were last settled
	skipped    uint64 // probes that were not sent because their time had passed
}

// closeSockets closes the sockets that probes are sent from.
func (sd *sender) closeSockets() error {
	var errs []error
	for key, s := range sd.sockets {
		errs = append(errs, sd.ports.closeSocket(s))
		delete(sd.sockets, key)
	}
	return errors.Join(errs...)
}

// applyEdges changes the edges to those of the configuration. phase returns the phase of the next edge.
func (sd *sender) applyEdges(peers map[netip.Addr]*peer, phase func() float64) error {
	known := make(map[fabric.Flow]*edge, len(sd.edges))
	for _, e := range sd.edges {
		e.gone = true
		known[e.id] = e
	}
	before := sd.edges
	sd.edges = sd.edges[:0:0]
	for _, p := range peers {
		clear(p.edges)
	}
	byNIC := peersByNIC(peers)
	rates := map[*socket]float64{}
	mono := sd.clock.monoTime()
	for i := range sd.self.node.Edges {
		cfg := &sd.self.node.Edges[i]
		if cfg.Src != sd.self.cfg.NIC {
			continue
		}
		p := byNIC[cfg.Dst]
		if p == nil {
			continue // of the other address family: the caller reports it
		}
		s, err := sd.socketFor(cfg.Flow, p)
		if err != nil {
			return err
		}
		e := sd.edgeFor(known[cfg.ID()], cfg, p, mono, phase)
		if e.sock != s {
			e.sock = s
			s.queue.pushEdge(e)
		}
		p.edges[cfg.Flow] = e
		sd.edges = append(sd.edges, e)
		rates[s] += 1 / cfg.Cadence.Seconds()
	}
	for _, e := range before {
		if e.gone {
			sd.signal.releaseEdge(e)
		}
	}
	sd.retireSockets(rates)
	return sd.signal.tagEdges(sd.edges)
}

// socketFor returns the socket that probes a peer by a flow number, and opens it if there is none.
func (sd *sender) socketFor(flow int, p *peer) (s *socket, err error) {
	key := socketKey{sd.self.node.Stamp.SourcePort + uint16(flow), p.rdma}
	if s = sd.sockets[key]; s != nil {
		return s, nil
	}
	name := fmt.Sprintf("sender%d", flow)
	if p.rdma {
		s = sd.ports.newLane("rdma_"+name, key.port)
	} else if s, err = sd.ports.openSocket(name, key.port); err != nil {
		return nil, err
	}
	sd.sockets[key] = s
	return s, nil
}

// edgeFor returns the edge of a configuration: the one known so far, or a new one if that is nil.
func (sd *sender) edgeFor(e *edge, cfg *EdgeConfig, p *peer, mono int64, phase func() float64) *edge {
	node := sd.self.node
	fresh := e == nil
	switch {
	case fresh:
		e = &edge{flow: newFlow(cfg.Cadence, node.ReplyTimeout), id: cfg.ID()}
	case e.cfg.Cadence != cfg.Cadence || e.timeout != int64(node.ReplyTimeout):
		e.setPace(cfg.Cadence, node.ReplyTimeout)
	}
	if fresh || e.cfg.Cadence != cfg.Cadence {
		e.next = mono + int64(phase()*float64(cfg.Cadence))
	}
	if p.moved {
		e.losses.interrupt(e.seq)
	}
	e.gone, e.cfg, e.peer = false, *cfg, p
	e.setClockSync(node.ClockSync, cfg.Cadence)
	e.dscp = node.Stamp.ClassOf(cfg.Flow).DSCP
	e.target = netip.AddrPortFrom(p.remoteAddr(), node.Stamp.Port)
	e.userStampsOnly = p.rdma && sd.ports.rdma.clock == nil
	sd.signal.applyEdge(e)
	return e
}

// retireSockets closes the sockets without edges, and reserves room for the transmit stamps of the others. rates has
// the probes per second of each socket.
func (sd *sender) retireSockets(rates map[*socket]float64) {
	queued := 0.0
	for key, s := range sd.sockets {
		if rates[s] == 0 {
			delete(sd.sockets, key)
			if err := sd.ports.closeSocket(s); err != nil {
				sd.log.Warn("cannot close a sender's socket", "err", err)
			}
			continue
		}
		s.queue.dropGone()
		if s.rdma {
			queued += rates[s]
			continue
		}
		s.reserveRefs(int(2 * rates[s]))
	}
	if q := sd.ports.rdma.queue; q != nil {
		q.reserveRefs(int(2 * queued))
	}
}

// limitStamps sets whether edges by RDMA have the program's own stamps only.
func (sd *sender) limitStamps() {
	for _, e := range sd.edges {
		e.userStampsOnly = e.sock.rdma && sd.ports.rdma.clock == nil
	}
}

// interruptLosses makes the accounts of the edges by RDMA continue with probes that are sent from now on.
func (sd *sender) interruptLosses() {
	for _, e := range sd.edges {
		if e.sock.rdma {
			e.losses.interrupt(e.seq)
		}
	}
}

// nextDue returns the time of the next probe.
func (sd *sender) nextDue() int64 {
	due := int64(math.MaxInt64)
	for _, s := range sd.sockets {
		due = min(due, s.queue[0].next)
	}
	return due
}

// settleIfDue settles the losses of all edges every settleEvery.
func (sd *sender) settleIfDue(now int64) {
	if now-sd.settled < int64(settleEvery) {
		return
	}
	sd.settled = now
	sd.settleRefusals(now)
	retag := false
	for _, e := range sd.edges {
		e.settleLoss()
		retag = e.signals != nil && e.signals.trial.endPause(now) || retag
	}
	if retag {
		sd.retagEdges()
	}
}

// retagEdges tags the probes of other edges than before, after a trial of a path has ended or begun.
func (sd *sender) retagEdges() {
	if err := sd.signal.tagEdges(sd.edges); err != nil {
		sd.log.Warn("cannot choose the flows whose probes carry in-band signals", "err", err)
	}
}

// sendDue sends the probes whose time is not after horizon. After a stall it skips the missed ones, because a burst
// would measure itself.
func (sd *sender) sendDue(now, horizon int64) error {
	for _, s := range sd.sockets {
		for s.queue[0].next <= horizon {
			e := s.queue[0]
			cadence := int64(e.cfg.Cadence)
			if late := now - e.next; late > cadence {
				sd.skipped += uint64(late / cadence)
				e.next += late / cadence * cadence
			}
			e.next += cadence
			s.queue.siftDown()
			if err := sd.queueProbes(e); err != nil {
				return err
			}
		}
	}
	return sd.out.flushBatch()
}

// queueProbes queues a probe of an edge, and its twin if it has one.
func (sd *sender) queueProbes(e *edge) error {
	twins := false
	if sd.self.node.ClockSync {
		e.sinceTwin = (e.sinceTwin + 1) % pairEvery
		twins = e.sinceTwin == 0
	}
	if !twins {
		return sd.queueProbe(e)
	}
	if e.sock.link.PendingCount() >= unix.BatchSize-1 { // both must leave in one batch
		if err := sd.out.flushBatch(); err != nil {
			return err
		}
	}
	if err := sd.queueProbe(e); err != nil {
		return err
	}
	return sd.queueProbe(e)
}

// queueProbe queues one probe of an edge.
func (sd *sender) queueProbe(e *edge) error {
	g, err := sd.out.beginPacket(e.sock, e.cfg.Carrier)
	if err != nil {
		return err
	}
	wall := sd.clock.Now()
	user := sd.clock.NodeTime(wall.UnixNano())
	seq, tx := e.nextProbe(sd.clock.monoAt(wall), user)
	if e.refused {
		e.Refused++
	}
	size := sd.self.putRequest(g.payload, seq, user, sd.self.ssid, tx, e.dscp, e.signals != nil, e.peer.keys.sendKey())
	id := g.commitPacket(size, e.target, e.dscp<<2|ect0)
	sd.out.registerSent(sentRef{id: id, wants: sd.ports.txStampKinds(e.sock), edge: e, seq: seq, user: user})
	return nil
}

// handleReply processes a reply at one of the sender's sockets.
func (sd *sender) handleReply(s *socket, g arrivedPacket) {
	var p stamp.ReflectorPacket
	a, base, ok := sd.parseReply(s, &g, &p)
	if !ok {
		return
	}
	var r reply
	malformed := r.answers.Parse(g.Data, base, a)
	if errors.Is(malformed, stamp.ErrIntegrity) {
		sd.filter.countDropped(dropBadHMAC)
		return
	}
	if a != nil && !sd.admitLives(&g, &r.answers) {
		return
	}
	e := g.peer.edges[sd.self.flowOf(s.port)]
	switch {
	case p.SSID&traceSSID != 0 && (p.SSID&traceReplySSID != 0 || p.SSID&ssidMask != sd.self.ssid):
		sd.filter.countDropped(dropTraceCopy) // a copy of a reply, sent by the peer's tracer
	case p.SSID&traceSSID != 0:
		sd.traces.traceReached(p.SenderSeq, stampOr(g.Stamp, g.readAt))
	case p.SSID != sd.self.ssid:
		sd.filter.countDropped(dropForeignSSID)
	case e == nil:
		sd.filter.countDropped(dropUnsolicited)
	case malformed != nil:
		sd.filter.countDropped(dropMalformed)
	default:
		r.seq, r.senderSeq, r.ecn = p.Seq, p.SenderSeq, g.TOS&3
		r.t2, r.t3, r.t4 = p.Receive.Nanos(p.ErrorEstimate), p.Timestamp.Nanos(p.ErrorEstimate), sd.ports.receivedAt(g.Datagram, g.readAt)
		own, hasOwn := sd.signal.arrivedTag(&g, s.port)
		sd.acceptReply(e, g.mono, p.ErrorEstimate, &r, own, hasOwn)
	}
}

// acceptReply accounts for a reply to a probe of an edge. estimate is the error of the peer's clock. own is the tag with which the reply
// arrived, if hasOwn is true.
func (sd *sender) acceptReply(e *edge, mono int64, estimate stamp.ErrorEstimate, r *reply, own csig.ArrivedSignal, hasOwn bool) {
	e.peer.estimate = estimate
	switch e.acceptReply(mono, r) {
	case outcomeUnsolicited:
		sd.filter.countDropped(dropUnsolicited)
	case outcomeAcked, outcomeLate:
		if sd.signal.addReply(e, r, own, hasOwn, mono) {
			sd.retagEdges()
		}
	}
}

// parseReply parses a reply, and verifies it with the peer's keys if there are any. It returns the key that verified
// it, and the length of the base packet. It returns false for a packet that is dropped.
func (sd *sender) parseReply(s *socket, g *arrivedPacket, p *stamp.ReflectorPacket) (a *stamp.Authenticator, base int, ok bool) {
	if len(g.peer.keys.auth) == 0 {
		if p.Parse(g.Data) != nil {
			sd.filter.countDropped(dropMalformed)
			return nil, 0, false
		}
		return nil, stamp.BaseLen, true
	}
	expected, plausible := sd.expectsReply(s, g)
	if !plausible {
		return nil, 0, false
	}
	a = sd.filter.verifyPacket(g.peer, expected, g.mono, func(a *stamp.Authenticator) error { return p.ParseAuth(g.Data, a) })
	return a, stamp.AuthBaseLen, a != nil
}

// admitLives reports whether the lives that a reply carries allow its use, and otherwise counts it as dropped.
func (sd *sender) admitLives(g *arrivedPacket, answers *stamp.Answers) bool {
	lives := answers.Lives
	if !lives.BelongTo(g.Data, g.peer.nameHash) {
		lives = stamp.Lives{}
	}
	if !sd.filter.admitLife(g.peer, lives.Reflector, true, g.mono) {
		return false
	}
	if lives != (stamp.Lives{}) && !sd.self.life.mayBeOwn(lives.Sender) {
		sd.filter.countDropped(dropReplay)
		return false
	}
	return true
}

// expectsReply checks a packet that claims to be a reply of a peer, before anything of it is verified. It reports
// whether the packet can be a reply at all, and otherwise counts it as dropped. It also reports whether a probe waits
// for it.
func (sd *sender) expectsReply(s *socket, g *arrivedPacket) (expected, plausible bool) {
	if len(g.Data) < stamp.AuthBaseLen {
		sd.filter.countDropped(dropMalformed)
		return false, false
	}
	_, seq, ssid := stamp.PeekAuth(g.Data)
	e := g.peer.edges[sd.self.flowOf(s.port)]
	switch {
	case ssid&traceSSID != 0 && (ssid&traceReplySSID != 0 || ssid&ssidMask != sd.self.ssid):
		sd.filter.countDropped(dropTraceCopy)
	case ssid&traceSSID != 0:
		return sd.traces.awaited[seq] != nil, true
	case ssid != sd.self.ssid:
		sd.filter.countDropped(dropForeignSSID)
	case e == nil:
		sd.filter.countDropped(dropUnsolicited)
	default:
		slot := e.slotOf(seq)
		return slot != nil && slot.state == slotWaiting, true
	}
	return false, false
}
