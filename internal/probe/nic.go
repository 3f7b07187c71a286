package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// Session identifiers (RFC 8972 section 3). Those of probes have both bits
// clear; a packet of a path trace has traceSSID, and traceReplySSID as well
// when it stands for a reply, so that neither ever enters the accounts.
const (
	traceSSID      = 0x8000
	traceReplySSID = 0x4000
	ssidMask       = 0x3fff
)

// ect0 marks probes and replies as ECN-capable: RFC 3168 section 5.
const ect0 = 2

const (
	receiveBuffer = 4 << 20               // octets
	longestWait   = 50 * time.Millisecond // of the loop without anything due
	stallAfter    = 20 * time.Millisecond // later than this is a stall of the host
	sendAhead     = 100 * time.Microsecond
	rateHeadroom  = 4  // replies to a session, in units of the expected rate
	traceReplies  = 50 // trace packets answered per peer and second
)

// edge is one flow to one peer.
type edge struct {
	flow
	id     fabric.Edge
	peer   *peer
	n      int // flow number
	target netip.AddrPort
	phase  int64 // nanoseconds after the beginning of a cycle
}

// peer is another node's NIC as one of our NICs sees it.
type peer struct {
	cfg      PeerConfig
	first    int      // index of its first edge; -1: not probed from here
	received []uint64 // probes that arrived, by the peer's flow number
	arrivals []int64  // when the last one did, monotonic nanoseconds; 0: never
	sessions bucket   // for new sessions
	traces   bucket   // for answers to trace packets
}

type sessionKey struct {
	from netip.AddrPort
	ssid uint16
}

// sentRef says which packet a transmit stamp's number belongs to.
type sentRef struct {
	id   uint32
	used bool
	edge int32    // sender: index of the edge
	sess *session // reflector
	seq  uint32
	user int64
}

// socket is a socket and the packets whose transmit stamps are awaited.
type socket struct {
	*unix.UDP
	name string
	refs []sentRef
}

func (s *socket) remember(r sentRef) { s.refs[int(r.id)&(len(s.refs)-1)] = r }

func (s *socket) recall(id uint32) (sentRef, bool) {
	r := &s.refs[int(id)&(len(s.refs)-1)]
	if !r.used || r.id != id {
		return sentRef{}, false
	}
	r.used = false
	return *r, true
}

// nic probes from one NIC and reflects what its peers send to it. Its loop
// owns the sockets' receiving side; mu guards everything below it, for the
// loop, the tracer's sends and the scrapes.
type nic struct {
	cfg       NICConfig
	node      *Config
	log       *slog.Logger
	base      time.Time
	estimate  stamp.ErrorEstimate
	ssid      uint16
	senders   []*socket // by flow number
	reflector *socket
	poll      *unix.Poller
	planned   atomic.Int64 // when the loop wants to run next, monotonic nanoseconds

	mu       sync.Mutex
	in, out  *unix.Batch
	errs     *unix.Batch // for error queues
	peers    map[netip.Addr]*peer
	edges    []*edge
	next     int   // index of the edge that is due next
	cycle    int64 // beginning of its cycle, monotonic nanoseconds
	settled  int64 // when losses were settled last
	sessions map[sessionKey]*session
	maxSess  int

	outSocket  *socket // whose packets out holds
	outRefs    [unix.BatchSize]sentRef
	failed     func(int, syscall.Errno)
	sendErrors map[syscall.Errno]uint64
	dropped    [dropReasons]uint64
	missing    [2]uint64 // of the reflector: T2 and T3
	kernel     Histogram
	stamps     [2]bool // a kernel stamp was seen: tx, rx
	stalled    int64   // nanoseconds
	restarts   uint64  // of senders, as the reflector noticed

	icmpErrors map[[2]uint8]uint64 // about probes and replies, by type and code
	traceSeq   uint32
	awaited    map[uint32]*traceProbe
}

// dropReason is why a received packet was not used.
type dropReason uint8

const (
	dropMalformed dropReason = iota
	dropUnregistered
	dropRate
	dropSessions
	dropUnsolicited
	dropForeignSSID
	dropTraceCopy
	dropReasons
)

var dropNames = [dropReasons]string{"malformed", "unregistered", "rate_limited", "session_limit", "unsolicited", "foreign_ssid", "trace_copy"}

func (n *nic) mono() int64 { return int64(time.Since(n.base)) }

func openNIC(cfg NICConfig, node *Config, base time.Time, ssid uint16, log *slog.Logger) (_ *nic, err error) {
	n := &nic{cfg: cfg, node: node, log: log.With("nic", cfg.NIC), base: base, ssid: ssid,
		in: unix.NewBatch(unix.BatchSize), out: unix.NewBatch(unix.BatchSize), errs: unix.NewBatch(unix.BatchSize),
		peers: map[netip.Addr]*peer{}, sessions: map[sessionKey]*session{},
		sendErrors: map[syscall.Errno]uint64{}, awaited: map[uint32]*traceProbe{}, icmpErrors: map[[2]uint8]uint64{}}
	n.failed = n.sendFailed
	n.estimate = stamp.NewErrorEstimate(stamp.UnknownBound, false, true)
	if node.ErrorBound != nil {
		n.estimate = stamp.NewErrorEstimate(int64(*node.ErrorBound), true, true)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.poll, err = unix.NewPoller(); err != nil {
		return n, err
	}
	var perFlow []int // edges that share the socket of a flow
	expected := 0
	for _, p := range node.Peers {
		pr := &peer{cfg: p, first: -1, received: make([]uint64, p.Flows), arrivals: make([]int64, p.Flows),
			sessions: newBucket(1, float64(4*p.Flows), 0), traces: newBucket(traceReplies, traceReplies, 0)}
		n.peers[p.Address] = pr
		expected += p.Flows
		if !p.probedFrom(cfg.NIC) {
			continue
		}
		pr.first = len(n.edges)
		for f := range p.Flows {
			if f == len(perFlow) {
				perFlow = append(perFlow, 0)
			}
			perFlow[f]++
			n.edges = append(n.edges, &edge{flow: newFlow(node.Cadence, node.ReplyTimeout), n: f, peer: pr,
				id:     fabric.Edge{Src: cfg.NIC, Dst: p.NIC, Flow: f},
				target: netip.AddrPortFrom(p.Address, node.Stamp.Port)})
		}
	}
	for i, e := range n.edges {
		e.phase = int64(node.Cadence) * int64(i) / int64(len(n.edges))
	}
	n.maxSess = max(64, 4*expected)
	perSecond := func(packets int) int { return int(float64(packets) / node.Cadence.Seconds()) }
	for f, edges := range perFlow {
		s, err := n.open(fmt.Sprintf("sender%d", f), node.Stamp.SourcePort+uint16(f), perSecond(edges))
		if err != nil {
			return n, err
		}
		n.senders = append(n.senders, s)
	}
	n.reflector, err = n.open("reflector", node.Stamp.Port, perSecond(expected))
	return n, err
}

// open opens a socket; awaited is how many packets wait for their transmit
// stamps at most: those of one second.
func (n *nic) open(name string, port uint16, awaited int) (*socket, error) {
	at := netip.AddrPortFrom(n.cfg.Address, port)
	u, err := unix.ListenUDP(at, unix.UDPOptions{ReceiveBuffer: receiveBuffer})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("NIC %s: UDP %v is in use, want a free port: %w", n.cfg.NIC, at, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("NIC %s: %v is not an address of this host, want one of its own: %w", n.cfg.NIC, n.cfg.Address, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("NIC %s: no permission for UDP port %d, want root, CAP_NET_BIND_SERVICE or a port above 1023: %w", n.cfg.NIC, port, err)
	case err != nil:
		return nil, fmt.Errorf("NIC %s: %w", n.cfg.NIC, err)
	}
	token := int32(len(n.senders))
	if name == "reflector" {
		token = reflectorToken
	}
	if err := n.poll.Add(u, token); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return &socket{UDP: u, name: name, refs: make([]sentRef, ringSize(max(256, awaited)))}, nil
}

const reflectorToken = 1 << 20

func (n *nic) close() error {
	var errs []error
	for _, s := range n.senders {
		errs = append(errs, s.Close())
	}
	if n.reflector != nil {
		errs = append(errs, n.reflector.Close())
	}
	if n.poll != nil {
		errs = append(errs, n.poll.Close())
	}
	return errors.Join(errs...)
}

// run is the NIC's event loop. It has a thread to itself, so that no other
// goroutine's work delays a probe.
func (n *nic) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, func() {
		if err := n.poll.Wake(); err != nil {
			n.log.Error("wake the probe loop", "err", err)
		}
	})
	defer stop()
	n.cycle = n.mono()
	for ctx.Err() == nil {
		now := n.mono()
		planned := min(now+int64(longestWait), n.due())
		n.planned.Store(planned)
		events, err := n.poll.Wait(time.Duration(planned - now))
		if err != nil {
			return fmt.Errorf("NIC %s: %w", n.cfg.NIC, err)
		}
		n.mu.Lock()
		err = n.turn(planned, events)
		n.mu.Unlock()
		if err != nil {
			return fmt.Errorf("NIC %s: %w", n.cfg.NIC, err)
		}
	}
	return nil
}

// due is when the next probe is to be sent. Only the loop calls it.
func (n *nic) due() int64 {
	if len(n.edges) == 0 {
		return 1<<63 - 1
	}
	return n.cycle + n.edges[n.next].phase
}

// turn is one turn of the loop, which was to run at planned.
func (n *nic) turn(planned int64, events int) error {
	now := n.mono()
	n.stalled += overshoot(now, planned)
	n.planned.Store(now) // accounted for up to here
	for i := range events {
		token, readable, queued := n.poll.Event(i)
		s := n.reflector
		switch {
		case token < 0:
			continue
		case token < reflectorToken:
			s = n.senders[token]
		}
		if queued {
			if err := n.drainErrors(s); err != nil {
				return err
			}
		}
		// An error without an entry in the queue is only taken by a receive;
		// left alone it would wake the loop for ever.
		if readable || queued {
			if err := n.drain(s); err != nil {
				return err
			}
		}
	}
	if err := n.sendDue(now); err != nil {
		return err
	}
	if now-n.settled >= int64(settleEvery) {
		n.settled = now
		for _, e := range n.edges {
			e.settle()
		}
	}
	return nil
}

// overshoot is by how much more than stallAfter now is later than planned.
func overshoot(now, planned int64) int64 { return max(0, now-planned-int64(stallAfter)) }

// sendDue sends the probes whose time has come. After a stall it goes on with
// the present cycle: a burst would measure itself.
func (n *nic) sendDue(now int64) error {
	if len(n.edges) == 0 {
		return nil
	}
	cadence := int64(n.node.Cadence)
	if late := now - n.due(); late > cadence {
		n.cycle += late / cadence * cadence
	}
	for n.due() <= now+int64(sendAhead) {
		if err := n.probe(n.next); err != nil {
			return err
		}
		if n.next++; n.next == len(n.edges) {
			n.next = 0
			n.cycle += cadence
		}
	}
	return n.flush()
}

// probe queues one probe of an edge.
func (n *nic) probe(i int) error {
	e := n.edges[i]
	s := n.senders[e.n]
	buf, err := n.outBuffer(s)
	if err != nil {
		return err
	}
	wall := time.Now()
	user := wall.UnixNano()
	seq, tx := e.nextProbe(int64(wall.Sub(n.base)), user)
	size := n.putRequest(buf, seq, user, n.ssid, tx)
	id := n.out.Commit(s.UDP, size, e.target, n.node.Stamp.DSCP<<2|ect0, 0)
	n.note(sentRef{id: id, used: true, edge: int32(i), seq: seq, user: user})
	return nil
}

// putRequest writes a probe and returns its length in octets.
func (n *nic) putRequest(buf []byte, seq uint32, user int64, ssid uint16, tx uint32) int {
	p := stamp.SenderPacket{Seq: seq, Timestamp: stamp.PTP(user), ErrorEstimate: n.estimate, SSID: ssid}
	p.Put(buf)
	b := stamp.AppendTimestampInfo(buf[:stamp.BaseLen])
	b = stamp.AppendClassOfService(b, n.node.Stamp.DSCP)
	b = stamp.AppendDirectMeasurement(b, tx)
	b = stamp.AppendFollowUp(b)
	return len(b)
}

// outBuffer is the memory for the next packet over s.
func (n *nic) outBuffer(s *socket) ([]byte, error) {
	if n.outSocket != s || n.out.OutBuffer() == nil {
		if err := n.flush(); err != nil {
			return nil, err
		}
		n.outSocket = s
	}
	return n.out.OutBuffer(), nil
}

func (n *nic) note(r sentRef) {
	n.outRefs[n.out.Out()-1] = r
	n.outSocket.remember(r)
}

// flush sends what is queued and takes the transmit stamps that are there at
// once, as software stamps mostly are.
func (n *nic) flush() error {
	s := n.outSocket
	if s == nil || n.out.Out() == 0 {
		return nil
	}
	if err := n.out.Send(s.UDP, n.failed); err != nil {
		return err
	}
	return n.drainErrors(s)
}

// sendFailed takes the i-th packet of the batch back.
func (n *nic) sendFailed(i int, errno syscall.Errno) {
	n.sendErrors[errno]++
	r := n.outRefs[i]
	n.outSocket.recall(r.id)
	switch {
	case r.sess != nil:
		r.sess.tx--
	case r.edge >= 0:
		n.edges[r.edge].sendFailed(r.seq)
	}
}

// drainErrors empties a socket's error queue: transmit stamps and ICMP errors.
func (n *nic) drainErrors(s *socket) error {
	for {
		k, err := n.errs.RecvErrors(s.UDP)
		if err != nil {
			return err
		}
		for i := range k {
			switch r := n.errs.Report(i); r.Kind {
			case unix.ReportTxStamp:
				n.txStamp(s, r)
			case unix.ReportICMP:
				n.icmp(s, r)
			}
		}
		if k < unix.BatchSize {
			return nil
		}
	}
}

func (n *nic) txStamp(s *socket, r *unix.Report) {
	ref, ok := s.recall(r.ID)
	if !ok || r.Stamp == 0 {
		return
	}
	n.stamps[0] = true
	switch {
	case ref.sess != nil:
		n.kernel.Observe(r.Stamp - ref.user)
		// A session that started anew meanwhile has other numbers.
		if newer(ref.sess.seq, ref.seq) {
			ref.sess.learn(stamp.FollowUp{Seq: ref.seq, Timestamp: stamp.PTP(r.Stamp), Method: stamp.MethodSoftware})
		}
	case ref.edge >= 0:
		if d, ok := n.edges[ref.edge].txStamp(ref.seq, r.Stamp); ok {
			n.kernel.Observe(d)
		}
	}
}

// drain receives everything that waits at a socket.
func (n *nic) drain(s *socket) error {
	for {
		k, err := n.in.Recv(s.UDP)
		if err != nil {
			return err
		}
		wall := time.Now()
		for i := range k {
			g := n.in.Datagram(i)
			if g.Stamp != 0 {
				n.stamps[1] = true
				n.kernel.Observe(wall.UnixNano() - g.Stamp)
			}
			if s == n.reflector {
				err = n.reflect(g, wall)
			} else {
				n.replied(s, g, wall)
			}
			if err != nil {
				return err
			}
		}
		if err := n.flush(); err != nil {
			return err
		}
		if k < unix.BatchSize {
			return nil
		}
	}
}

// replied takes a reply at a sender's socket.
func (n *nic) replied(s *socket, g *unix.Datagram, wall time.Time) {
	pr := n.peers[g.From.Addr()]
	if pr == nil || g.From.Port() != n.node.Stamp.Port {
		n.dropped[dropUnregistered]++
		return
	}
	var p stamp.ReflectorPacket
	if p.Parse(g.Data) != nil {
		n.dropped[dropMalformed]++
		return
	}
	user := wall.UnixNano()
	if p.SSID&traceSSID != 0 {
		if p.SSID&traceReplySSID != 0 || p.SSID&ssidMask != n.ssid {
			n.dropped[dropTraceCopy]++ // a copy of a reply, sent by the peer's tracer
			return
		}
		n.traceReached(p.SenderSeq, stampOr(g.Stamp, user))
		return
	}
	if p.SSID != n.ssid {
		n.dropped[dropForeignSSID]++
		return
	}
	e := n.edgeTo(pr, s)
	if e == nil {
		n.dropped[dropUnsolicited]++
		return
	}
	r := reply{seq: p.Seq, senderSeq: p.SenderSeq, t2: p.Receive.Nanos(p.ErrorEstimate), t3: p.Timestamp.Nanos(p.ErrorEstimate),
		t4: stampOr(g.Stamp, user), t4Kernel: g.Stamp != 0, ecn: g.TOS & 3}
	if r.answers.Parse(g.Data, stamp.BaseLen, nil) != nil {
		n.dropped[dropMalformed]++
		return
	}
	if e.take(int64(wall.Sub(n.base)), &r) == outcomeUnsolicited {
		n.dropped[dropUnsolicited]++
	}
}

func stampOr(kernel, user int64) int64 {
	if kernel != 0 {
		return kernel
	}
	return user
}

// edgeTo finds the edge of a socket and peer. A NIC has few edges per peer,
// one after the other.
func (n *nic) edgeTo(pr *peer, s *socket) *edge {
	flow := int(s.LocalAddr().Port() - n.node.Stamp.SourcePort)
	if pr.first < 0 || flow >= pr.cfg.Flows {
		return nil
	}
	return n.edges[pr.first+flow]
}

// reflect answers a probe.
func (n *nic) reflect(g *unix.Datagram, wall time.Time) error {
	pr := n.peers[g.From.Addr()]
	if pr == nil {
		n.dropped[dropUnregistered]++
		return nil
	}
	var p stamp.SenderPacket
	if p.Parse(g.Data) != nil {
		n.dropped[dropMalformed]++
		return nil
	}
	mono, user := int64(wall.Sub(n.base)), wall.UnixNano()
	v := stamp.ReflectorValues{ReceivedDSCP: g.TOS >> 2, ReceivedECN: g.TOS & 3, PermittedDSCP: ^uint64(0),
		TimestampInfo: stamp.TimestampInfo{SyncIn: stamp.SyncLocal, MethodIn: stamp.MethodSoftware, SyncOut: stamp.SyncLocal, MethodOut: stamp.MethodControl}}
	if g.Stamp == 0 {
		v.TimestampInfo.MethodIn = stamp.MethodControl
		n.missing[0]++
	}
	var sess *session
	var seq uint32
	if p.SSID&traceSSID != 0 {
		if !pr.traces.take(mono) {
			n.dropped[dropRate]++
			return nil
		}
		seq = p.Seq // statelessly: RFC 8762 section 4.2
		v.Unsupported = stamp.Types(stamp.TypeDirectMeasurement, stamp.TypeFollowUp)
	} else {
		if sess = n.session(pr, g.From, p.SSID, mono); sess == nil {
			n.dropped[dropSessions]++
			return nil
		}
		before := sess.restarts
		duplicate := sess.arrive(p.Seq, p.Timestamp.Nanos(p.ErrorEstimate))
		n.restarts += sess.restarts - before
		sess.lastSeen = mono
		if f := sess.flow; f >= 0 && !duplicate {
			pr.received[f]++
			pr.arrivals[f] = mono
		}
		if !sess.bucket.take(mono) {
			n.dropped[dropRate]++
			return nil
		}
		seq = sess.seq
		sess.seq++
		sess.tx++
		v.RxCount, v.TxCount, v.FollowUp = sess.rx, sess.tx, sess.tell()
	}
	buf, err := n.outBuffer(n.reflector)
	if err != nil {
		return err
	}
	sent := time.Now().UnixNano()
	r := stamp.ReflectorPacket{Seq: seq, Timestamp: stamp.PTP(sent), ErrorEstimate: n.estimate,
		Receive: stamp.PTP(stampOr(g.Stamp, user)), SenderTTL: g.TTL}
	r.Answer(&p)
	r.Put(buf)
	done := v.Reflect(buf, g.Data, stamp.BaseLen, nil)
	id := n.out.Commit(n.reflector.UDP, done.Len, g.From, done.DSCP<<2|ect0, 0)
	n.note(sentRef{id: id, used: true, edge: -1, sess: sess, seq: seq, user: sent})
	return nil
}

// session finds or opens the session of a probe; nil when the peer opens more
// than it may.
func (n *nic) session(pr *peer, from netip.AddrPort, ssid uint16, mono int64) *session {
	key := sessionKey{from, ssid}
	if s := n.sessions[key]; s != nil {
		return s
	}
	if !pr.sessions.take(mono) {
		return nil
	}
	if len(n.sessions) >= n.maxSess {
		var oldest *session
		for _, s := range n.sessions {
			if oldest == nil || s.lastSeen < oldest.lastSeen {
				oldest = s
			}
		}
		delete(n.sessions, oldest.key)
	}
	rate := rateHeadroom / n.node.Cadence.Seconds()
	s := &session{key: key, peer: pr, flow: -1, bucket: newBucket(rate, max(rate, 16), mono)}
	if f := int(from.Port()) - int(n.node.Stamp.SourcePort); f >= 0 && f < len(pr.received) {
		s.flow = f
	}
	n.sessions[key] = s
	return s
}
