package probe

import (
	"net/netip"

	"github.com/graylink/graylink/internal/stamp"
)

type sessionKey struct {
	from netip.AddrPort
	ssid uint16
}

// reflector answers the probes of a NIC's peers.
type reflector struct {
	self   *identity
	clock  *timeline
	ports  *ports
	out    *outbox
	filter *packetFilter
	signal *nicSignals

	sessions    map[sessionKey]*session
	maxSessions int
	withoutT2   uint64 // probes that lacked the kernel's receive stamp
	restarts    uint64 // observed restarts of senders
}

// applyPeers sets the number of sessions that there may be, drops those of peers that are gone, and reserves room for
// the transmit stamps of the replies.
func (f *reflector) applyPeers(peers map[netip.Addr]*peer) {
	expected, answers := 0.0, 0
	for _, p := range peers {
		for _, a := range p.answers {
			expected += 1 / a.cfg.Cadence.Seconds()
			answers++
		}
	}
	f.maxSessions = max(64, 4*answers)
	f.ports.reserveRefs(int(2 * expected))
	for k, s := range f.sessions {
		if p := peers[k.from.Addr()]; p != s.peer {
			delete(f.sessions, k)
		}
	}
}

// incomingProbe represents a probe that the reflector verifies and answers.
type incomingProbe struct {
	arrivedPacket
	stamp.SenderPacket
	key     *stamp.Authenticator // that verified it; nil means it is not authenticated
	base    int                  // octets before the TLVs
	checked stamp.VerifiedTLVs
	life    uint64
	hasLife bool
}

// reflectProbe verifies a probe that arrived at s and answers it.
func (f *reflector) reflectProbe(s *socket, g arrivedPacket) error {
	q := incomingProbe{arrivedPacket: g}
	if !f.parseProbe(&q) || !f.admitProbe(&q) {
		return nil
	}
	// Longer packets are those of tests of a path, whose answers are limited below. They come back in the same length.
	if len(q.Data) > maxProbe && q.SSID&traceSSID == 0 {
		f.filter.countDropped(dropOversized)
		return nil
	}
	pr := g.peer
	at := f.ports.receivedAt(g.Datagram, g.readAt)
	kind := f.ports.kindFor(pr)
	for at[kind] == 0 {
		kind--
	}
	v := stamp.ReflectorValues{ReceivedDSCP: g.TOS >> 2, ReceivedECN: g.TOS & 3, PermittedDSCP: ^uint64(0),
		TimestampInfo: stamp.TimestampInfo{SyncIn: stamp.SyncLocal, MethodIn: kind.stampMethod(), SyncOut: stamp.SyncLocal, MethodOut: stamp.MethodControl}}
	if kind == userStamps && !pr.rdma {
		f.withoutT2++
	}
	var sess *session
	seq := q.Seq // stateless, for a packet of a trace: RFC 8762 section 4.2
	if q.SSID&traceSSID != 0 {
		if !pr.traces.takeToken(g.mono) {
			f.filter.countDropped(dropRate)
			return nil
		}
		v.Unsupported = stamp.NewTypeSet(stamp.TypeDirectMeasurement, stamp.TypeFollowUp)
	} else {
		if sess = f.countProbe(q.inSession(f.self)); sess == nil {
			return nil
		}
		seq = sess.nextReply()
		v.RxCount, v.TxCount, v.FollowUp = sess.rx, sess.tx, sess.follows.nextFollowUp()
		if v.SeesSignals = f.signal.readsTags(); v.SeesSignals {
			tag, ok := f.signal.arrivedTag(&q.arrivedPacket, s.port)
			sess.putRequestSignal(&v.Signal, tag, ok)
		}
	}
	return f.sendReply(s, &q, sess, seq, at[kind], &v)
}

// parseProbe parses a probe, and verifies it with the peer's keys if there are any. It returns false for a packet that
// is dropped.
func (f *reflector) parseProbe(q *incomingProbe) bool {
	q.base = stamp.BaseLen
	if len(q.peer.keys.auth) == 0 {
		if q.Parse(q.Data) != nil {
			f.filter.countDropped(dropMalformed)
			return false
		}
	} else {
		q.base = stamp.AuthBaseLen
		expected, plausible := f.expectsProbe(&q.arrivedPacket)
		if !plausible {
			return false
		}
		if q.key = f.filter.verifyPacket(q.peer, expected, q.mono, func(a *stamp.Authenticator) error { return q.ParseAuth(q.Data, a) }); q.key == nil {
			return false
		}
	}
	if q.peer.cfg.SSID != 0 && q.SSID&ssidMask != q.peer.cfg.SSID {
		f.filter.countDropped(dropForeignSSID)
		return false
	}
	return true
}

// admitProbe verifies the TLVs of a probe, and reports whether the life of its sender allows its use.
func (f *reflector) admitProbe(q *incomingProbe) bool {
	q.checked = stamp.VerifyTLVs(q.Data, q.base, q.key)
	q.life, q.hasLife = q.checked.SenderLife(q.peer.nameHash)
	if q.key == nil || f.sessions[sessionKey{q.From, q.SSID}].continuesLife(q.life) {
		return true
	}
	return f.filter.admitLife(q.peer, q.life, q.checked.IsAuthentic(), q.mono)
}

// sessionProbe holds what the account of a session needs of a probe.
type sessionProbe struct {
	peer      *peer
	key       sessionKey
	flow      int
	seq       uint32
	sentAt    int64 // by the sender's clock, Unix nanoseconds
	mono      int64 // time at which it was read, monotonic nanoseconds
	life      uint64
	hasLife   bool
	authentic bool
}

// inSession returns what the account of the probe's session needs of it.
func (q *incomingProbe) inSession(self *identity) sessionProbe {
	return sessionProbe{peer: q.peer, key: sessionKey{q.From, q.SSID}, flow: self.flowOf(q.From.Port()), seq: q.Seq, sentAt: q.Timestamp.Nanos(q.ErrorEstimate),
		mono: q.mono, life: q.life, hasLife: q.hasLife, authentic: q.key != nil}
}

// countProbe accounts for a probe in its session, and returns the session. It returns nil for a probe that is dropped.
func (f *reflector) countProbe(q sessionProbe) *session {
	asked := q.peer.answers[q.flow]
	sess := f.sessionFor(q.peer, asked, q.key, q.mono)
	if sess == nil {
		f.filter.countDropped(dropSessions)
		return nil
	}
	before := sess.restarts
	var came arrival
	if q.hasLife {
		came = sess.acceptInLife(q.life, q.seq, q.sentAt)
	} else {
		came = sess.acceptProbe(q.seq, q.sentAt, q.authentic)
	}
	f.restarts += sess.restarts - before
	if q.authentic && came != arrivalNew {
		f.filter.countDropped(dropReplay)
		return nil
	}
	sess.lastSeen = q.mono
	if asked != nil && came == arrivalNew {
		asked.received++
		asked.arrived = q.mono
	}
	if !sess.bucket.takeToken(q.mono) {
		f.filter.countDropped(dropRate)
		return nil
	}
	return sess
}

// sendReply queues the reply to a probe. sess is nil for a packet of a trace. received is the time at which the probe
// arrived.
func (f *reflector) sendReply(s *socket, q *incomingProbe, sess *session, seq uint32, received int64, v *stamp.ReflectorValues) error {
	carrier := netip.Addr{}
	if asked := q.peer.answers[f.self.flowOf(q.From.Port())]; asked != nil && len(q.Data) <= maxCarried {
		carrier = asked.cfg.Carrier
	}
	g, err := f.out.beginPacket(s, carrier)
	if err != nil {
		return err
	}
	buf := g.payload
	sent := f.clock.nodeNow()
	r := stamp.ReflectorPacket{Seq: seq, Timestamp: stamp.TimestampPTP(sent), ErrorEstimate: f.self.estimate,
		Receive: stamp.TimestampPTP(received), SenderTTL: q.TTL}
	r.EchoProbe(&q.SenderPacket)
	if q.key == nil {
		r.Put(buf)
	} else {
		r.PutAuth(buf, q.key)
	}
	v.Life, v.Who = f.self.life.now.Load(), nameHash(f.self.cfg.NIC)
	done := v.ReflectVerified(buf, q.Data, q.base, q.key, q.checked)
	if q.key != nil && done.Integrity {
		f.filter.countDropped(dropBadHMAC)
		f.filter.chargeForged(q.peer, q.mono)
	}
	id := g.commitPacket(done.Len, q.From, done.DSCP<<2|ect0)
	f.out.registerSent(sentRef{id: id, wants: f.ports.txStampKinds(s), sess: sess, seq: seq, user: sent})
	return nil
}

// expectsProbe checks a packet that claims to be a probe of a peer, before anything of it is verified. It reports
// whether the packet can be a probe at all, and otherwise counts it as dropped. It also reports whether a session
// expects it. A probe of a sender that restarted is not expected, but plausible.
func (f *reflector) expectsProbe(g *arrivedPacket) (expected, plausible bool) {
	if len(g.Data) < stamp.AuthBaseLen {
		f.filter.countDropped(dropMalformed)
		return false, false
	}
	seq, _, ssid := stamp.PeekAuth(g.Data)
	flow := f.self.flowOf(g.From.Port())
	switch {
	case flow < 0 || flow >= max(1, len(f.self.node.Stamp.Classes))*FlowsPerClass:
		f.filter.countDropped(dropForeignPort)
	case g.peer.cfg.SSID != 0 && ssid&ssidMask != g.peer.cfg.SSID:
		f.filter.countDropped(dropForeignSSID)
	default:
		sess := f.sessions[sessionKey{g.From, ssid}]
		return sess != nil && sess.expectsSeq(seq), true
	}
	return false, false
}

// sessionFor finds or opens the session of a probe. It returns nil if the peer opens more sessions than it may.
func (f *reflector) sessionFor(pr *peer, asked *answeredFlow, key sessionKey, mono int64) *session {
	s := f.sessions[key]
	if s == nil {
		if !pr.sessions.takeToken(mono) {
			return nil
		}
		if len(f.sessions) >= f.maxSessions {
			var oldest *session
			for _, s := range f.sessions {
				if oldest == nil || s.lastSeen < oldest.lastSeen {
					oldest = s
				}
			}
			delete(f.sessions, oldest.key)
		}
		s = &session{key: key, peer: pr}
		f.sessions[key] = s
	}
	// The permitted rate can change while the session continues.
	cadence := f.self.node.Cadence
	if asked != nil {
		cadence = asked.cfg.Cadence
	}
	if s.cadence != cadence {
		s.cadence = cadence
		rate := rateHeadroom / cadence.Seconds()
		s.bucket = newBucket(rate, max(rate, 16), mono)
	}
	return s
}
