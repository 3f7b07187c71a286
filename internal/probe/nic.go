package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// Session identifiers (RFC 8972 section 3). Those of probes have both bits clear. A packet of a path trace has
// traceSSID, and also traceReplySSID if it imitates a reply, so that neither ever enters the accounts.
const (
	traceSSID      = 0x8000
	traceReplySSID = 0x4000
	ssidMask       = 0x3fff
)

// ect0 marks probes and replies as ECN-capable: RFC 3168 section 5.
const ect0 = 2

const (
	receiveBuffer = 4 << 20 // octets
	rateHeadroom  = 4       // replies to a session, in units of the expected rate
	traceReplies  = 500     // trace packets answered per peer and second
	// peerForgeries is the number of packets per second that may fail verification for one peer before they use the
	// budget of the whole NIC. While one peer's address is flooded, the packets of all others are still verified.
	peerForgeries = 1000
	// forgedBudget is the number of HMACs per second that a NIC computes for packets that turn out to be forged, beyond
	// peerForgeries. One HMAC takes 0.4 to 0.6 us (BenchmarkOperation/ParseForgedPacket in internal/stamp), so a flood
	// costs a tenth of a core. Packets beyond the budget are dropped without verification and counted. They are no loss
	// of the network.
	forgedBudget = 200_000
	// forgedBurst is the part of the budget that can be saved up. Packets that a session does not expect may use only
	// the upper half of it.
	forgedBurst = forgedBudget / 4
	// maxForgers limits the source addresses of forged packets that are counted separately, and forgerFrom is the
	// number of packets from which on an address is.
	maxForgers = 8
	forgerFrom = 100
)

// otherForgers stands for all addresses that are not counted separately.
const otherForgers = "other"

// Forger counts the packets from one source address that were not authentic, or that were not verified because too many
// others had not been authentic.
type Forger struct {
	From    string // an address, or "other"
	Packets uint64
}

// edge represents one flow to one peer.
type edge struct {
	flow
	cfg       EdgeConfig
	id        fabric.Flow
	dscp      uint8
	peer      *peer
	sock      *socket
	target    netip.AddrPort
	next      int64 // time of the next probe, monotonic nanoseconds
	sinceTwin int   // probes since the last one that had a twin
	gone      bool  // the configuration no longer has it
}

// answeredFlow represents what is known of the probes of one flow of a peer.
type answeredFlow struct {
	cfg      EdgeConfig
	received uint64
	arrived  int64 // time of the last one, monotonic nanoseconds; 0: never
}

// peer represents another node's NIC as seen from one NIC of this node.
type peer struct {
	cfg      PeerConfig
	rdma     bool                  // probed by RDMA, which both ends have; otherwise by UDP
	edges    map[int]*edge         // by flow number
	answers  map[int]*answeredFlow // by the peer's flow number
	sessions bucket                // for new sessions
	traces   bucket                // for answers to trace packets
	forged   bucket                // for packets that fail verification, before the NIC's budget is used
	failures uint64                // packets that failed verification, until the peer is a forger
	forger   int                   // index among the NIC's forgers; 0: it is one of the others
	estimate stamp.ErrorEstimate   // error of its clock, from its last reply
	auth     []*stamp.Authenticator
	verified int // index of the key that verified a packet last
	life     *peerLife
	nameHash uint64 // hash of its name
	unbound  bool   // reports whether its last authentic packet carried no life number
}

// remoteAddr returns the peer's address, or its GID.
func (p *peer) remoteAddr() netip.Addr {
	if p.rdma {
		return rdma.CanonicalGID(p.cfg.RDMA.GID)
	}
	return p.cfg.Address
}

// tryKeys runs parse with each key until one verifies, and begins with the key that verified last.
func (p *peer) tryKeys(parse func(*stamp.Authenticator) error) (*stamp.Authenticator, error) {
	var err error
	for i := range p.auth {
		k := (p.verified + i) % len(p.auth)
		if err = parse(p.auth[k]); !errors.Is(err, stamp.ErrHMAC) {
			p.verified = k
			return p.auth[k], err
		}
	}
	return nil, err
}

// sendKey returns the key that authenticates packets to the peer, or nil if there is none.
func (p *peer) sendKey() *stamp.Authenticator {
	if len(p.auth) == 0 {
		return nil
	}
	return p.auth[0]
}

type sessionKey struct {
	from netip.AddrPort
	ssid uint16
}

// sentRef represents the packet that a transmit stamp's number belongs to.
type sentRef struct {
	id          uint32
	wants       uint8 // bit k is set while a stamp of kind k is awaited
	sent        bool  // false if the packet was taken back because it could not be sent
	edge        *edge
	sess        *session // reflector
	seq         uint32
	user        int64
	kernelStamp int64 // the kernel's stamp
}

// socketKey identifies an endpoint among those of a NIC's flows.
type socketKey struct {
	port uint16 // the source port
	rdma bool
}

// socket represents an endpoint and the packets whose transmit stamps are awaited.
type socket struct {
	Endpoint
	link      Transport
	rdma      bool
	refsOwner *socket // the socket that has the awaited packets: itself, or the queue pair's
	name      string
	port      uint16
	queue     sendQueue // edges probed over it
	refs      []sentRef
	closed    bool
}

func (s *socket) rememberSent(r sentRef) { s.refs[int(r.id)&(len(s.refs)-1)] = r }

func (s *socket) recallSent(id uint32, kind stampKind) *sentRef {
	r := &s.refs[int(id)&(len(s.refs)-1)]
	if r.id != id || r.wants&(1<<kind) == 0 {
		return nil
	}
	r.wants &^= 1 << kind
	return r
}

// reserveRefs reserves room for the transmit stamps of so many packets per second. Some NICs deliver a stamp only after
// half a second.
func (s *socket) reserveRefs(packets int) {
	n := ringSize(max(256, packets))
	if n <= len(s.refs) {
		return
	}
	old := s.refs
	s.refs = make([]sentRef, n)
	for _, r := range old {
		if r.wants != 0 {
			s.rememberSent(r)
		}
	}
}

// sendQueue is a heap of edges, ordered by the time of their next probe.
type sendQueue []*edge

func (q *sendQueue) pushEdge(e *edge) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].next <= h[i].next {
			return
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

// siftDown restores the order after the first edge's time was moved to later.
func (q sendQueue) siftDown() {
	for i := 0; ; {
		low := 2*i + 1
		if low >= len(q) {
			return
		}
		if low+1 < len(q) && q[low+1].next < q[low].next {
			low++
		}
		if q[i].next <= q[low].next {
			return
		}
		q[i], q[low] = q[low], q[i]
		i = low
	}
}

// dropGone drops the edges that the configuration no longer has.
func (q *sendQueue) dropGone() {
	old := *q
	*q = nil
	for _, e := range old {
		if !e.gone {
			q.pushEdge(e)
		}
	}
}

// nic probes from one NIC and reflects what its peers send to it. mu guards all of it, because the engine's loop, the
// tracer's sends, the scrapes and changes of the configuration use it.
type nic struct {
	link Transport // by UDP
	log  *slog.Logger
	wire *wiring

	mu        sync.Mutex
	cfg       NICConfig
	node      *Config
	estimate  stamp.ErrorEstimate
	bound     int64 // error bound of its clock, under ClockSync; stamp.UnknownBound: not known
	ssid      uint16
	senders   map[socketKey]*socket
	reflector *socket   // nil if the NIC has no UDP
	clock     *nicClock // nil if the kernel's stamps are used
	kindWhy   string    // the reason for that
	closed    bool

	rdma          *queuePair // nil if the NIC has no RDMA
	rdmaQueue     *socket    // of rdma
	rdmaReflector *socket    // the reflector on rdma
	rdmaClock     *nicClock  // clock of the RDMA device; nil if the program's times are used
	copies        *copier    // sends copies of packets by RDMA, for traces; nil if the NIC has no RDMA

	peers    map[netip.Addr]*peer // by address, or by GID as 16 octets
	edges    []*edge
	settled  int64 // time at which losses were last settled
	sessions map[sessionKey]*session
	maxSess  int

	outSocket   *socket // socket whose packets its transport holds
	outRefs     [unix.BatchSize]*sentRef
	failed      func(int, syscall.Errno)
	sendErrors  map[syscall.Errno]uint64
	dropped     [dropReasons]uint64
	missing     [2]uint64 // stamps that the reflector lacked: T2 and T3
	unmatched   uint64    // transmit stamps of packets that are no longer known
	skipped     uint64    // probes that were not sent because their time had passed
	overflown   uint64    // packets that did not fit into the buffers of sockets that are closed now
	unproven    uint64    // packets without a life number that may have been a peer's own
	budget      bucket    // for HMACs of forged packets
	forgers     []Forger  // the first one stands for all others
	kernelDelay Histogram
	nicDelay    Histogram           // from the kernel's stamp to the NIC's, of what is sent
	stamps      [2][stampKinds]bool // kinds of stamps that were seen by UDP: tx, rx
	stalled     int64               // nanoseconds
	restarts    uint64              // restarts of senders, as the reflector observed them

	icmpErrors map[[2]uint8]uint64 // about probes and replies, by type and code
	traceSeq   uint32
	awaited    map[uint32]*traceProbe

	shortQuotes bool // switches quote too little to distinguish a flow's packets
}

// dropReason is the reason why a received packet was not used.
type dropReason uint8

const (
	dropMalformed dropReason = iota
	dropOversized
	dropUnregistered
	dropBadHMAC
	dropReplay
	dropRate
	dropSessions
	dropUnsolicited
	dropForeignSSID
	dropTraceCopy
	dropForeignPort
	dropUnverified
	dropReasons
)

var dropNames = [dropReasons]string{"malformed", "oversized", "unregistered", "bad_hmac", "replay", "rate_limited", "session_limit", "unsolicited", "foreign_ssid", "trace_copy", "foreign_port", "unverified"}

// openNIC opens a NIC without peers. applyConfig adds them.
func openNIC(cfg NICConfig, node *Config, w *wiring, log *slog.Logger) (_ *nic, err error) {
	n := &nic{link: w.deps.Network.NewTransport(), cfg: cfg, node: node, bound: stamp.UnknownBound, log: log.With("nic", cfg.NIC), wire: w,
		senders: map[socketKey]*socket{}, peers: map[netip.Addr]*peer{}, sessions: map[sessionKey]*session{},
		sendErrors: map[syscall.Errno]uint64{}, awaited: map[uint32]*traceProbe{}, icmpErrors: map[[2]uint8]uint64{}}
	n.failed = n.sendFailed
	n.budget, n.forgers = newBucket(forgedBudget, forgedBurst, n.wire.monoTime()), []Forger{{From: otherForgers}}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.openReflectors(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// openReflectors selects the kind of stamps and opens the reflectors.
func (n *nic) openReflectors() (err error) {
	if n.cfg.RDMA != nil {
		if err := n.openRDMA(); err != nil {
			return err
		}
	}
	if !n.cfg.Address.IsValid() {
		n.kindWhy = "the NIC has no UDP"
		return nil
	}
	n.kindWhy = "the configuration selects them"
	if n.cfg.Timestamps == TimestampsAuto {
		name := n.cfg.Device
		if name == "" {
			name, err = n.wire.deps.Device.InterfaceName(n.cfg.Address)
		}
		if err == nil {
			n.clock, err = hardwareOf(n.wire.deps.Device, name)
		}
		if err != nil {
			n.kindWhy = err.Error()
		}
	}
	if n.clock == nil {
		n.log.Info("using the kernel's time stamps", "reason", n.kindWhy)
	} else {
		n.kindWhy = ""
		n.log.Info("using the NIC's time stamps")
	}
	n.reflector, err = n.openSocket("reflector", n.node.Stamp.Port)
	return err
}

func (n *nic) openSocket(name string, port uint16) (*socket, error) {
	at := netip.AddrPortFrom(n.cfg.Address, port)
	u, err := n.wire.deps.Network.OpenUDP(at, unix.UDPOptions{ReceiveBuffer: receiveBuffer, Hardware: n.clock != nil})
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
	s := &socket{Endpoint: u, link: n.link, name: name, port: port}
	s.refsOwner = s
	s.reserveRefs(0)
	if err := n.wire.poll.addSocket(s, n); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return s, nil
}

func (n *nic) closeSocket(s *socket) error {
	s.closed = true
	n.wire.poll.removeSocket(s)
	n.overflown += s.Drops()
	if n.outSocket == s {
		n.outSocket = nil
	}
	return s.Close()
}

// close closes the NIC's sockets. The caller holds mu.
func (n *nic) close() error {
	n.closed = true
	return n.closeSockets()
}

// closeSockets closes the sockets and the clock, at the end or before the NIC gets another address.
func (n *nic) closeSockets() error {
	var errs []error
	for port, s := range n.senders {
		errs = append(errs, n.closeSocket(s))
		delete(n.senders, port)
	}
	if n.reflector != nil {
		errs = append(errs, n.closeSocket(n.reflector))
		n.reflector = nil
	}
	if n.rdmaQueue != nil {
		errs = append(errs, n.closeSocket(n.rdmaReflector), n.closeSocket(n.rdmaQueue), n.copies.Close())
		n.rdmaQueue, n.rdmaReflector, n.rdma, n.rdmaClock, n.copies = nil, nil, nil, nil, nil
	}
	if n.clock != nil {
		errs = append(errs, n.clock.clock.Close())
		n.clock = nil
	}
	return errors.Join(errs...)
}

// applyConfig changes the NIC to match the configuration. What stays keeps its counts, sequence numbers and phase. The
// caller holds mu.
func (n *nic) applyConfig(cfg NICConfig, node *Config, phase func() float64) error {
	moved := cfg.Address != n.cfg.Address || cfg.Device != n.cfg.Device || cfg.Timestamps != n.cfg.Timestamps || !cfg.RDMA.Equal(n.cfg.RDMA) || node.Stamp.Port != n.node.Stamp.Port
	ports := node.Stamp.SourcePort != n.node.Stamp.SourcePort
	n.cfg, n.node = cfg, node
	n.setEstimate()
	switch {
	case cfg.SSID != 0:
		n.ssid = cfg.SSID
	case n.ssid == 0:
		n.ssid = n.wire.ssids.drawSSID()
	}
	if moved {
		if err := n.closeSockets(); err != nil {
			n.log.Warn("cannot close the sockets of the old address", "err", err)
		}
		if err := n.openReflectors(); err != nil {
			return err
		}
	}
	n.applyPeers(node)
	if err := n.applyEdges(node, moved || ports, phase); err != nil {
		return err
	}
	expected := 0.0
	answers := 0
	for _, p := range n.peers {
		for _, a := range p.answers {
			expected += 1 / a.cfg.Cadence.Seconds()
			answers++
		}
	}
	n.maxSess = max(64, 4*answers)
	for _, s := range []*socket{n.reflector, n.rdmaQueue} {
		if s != nil {
			s.reserveRefs(int(2 * expected))
		}
	}
	for k, s := range n.sessions {
		if p := n.peers[k.from.Addr()]; p != s.peer {
			delete(n.sessions, k)
		}
	}
	return nil
}

func (n *nic) applyPeers(node *Config) {
	known := make(map[string]*peer, len(n.peers))
	for _, p := range n.peers {
		known[p.cfg.NIC] = p
	}
	wanted := map[string]bool{}
	for i := range node.Edges {
		if e := &node.Edges[i]; e.Src == n.cfg.NIC {
			wanted[e.Dst] = true
		}
	}
	asked := map[string][]EdgeConfig{}
	for i := range node.Answers {
		if e := &node.Answers[i]; e.Dst == n.cfg.NIC {
			wanted[e.Src] = true
			asked[e.Src] = append(asked[e.Src], *e)
		}
	}
	n.peers = make(map[netip.Addr]*peer, len(wanted))
	mono := n.wire.monoTime()
	for i := range node.Peers {
		cfg := node.Peers[i]
		byRDMA := n.rdma != nil && cfg.RDMA != nil
		at := cfg.Address
		if byRDMA {
			at = rdma.CanonicalGID(cfg.RDMA.GID)
		}
		if !wanted[cfg.NIC] || !byRDMA && (!at.IsValid() || !n.cfg.Address.IsValid() || at.Is4() != n.cfg.Address.Is4()) {
			continue
		}
		p := known[cfg.NIC]
		if p == nil {
			p = &peer{edges: map[int]*edge{}, answers: map[int]*answeredFlow{},
				traces: newBucket(traceReplies, traceReplies, mono), forged: newBucket(peerForgeries, peerForgeries, mono)}
		}
		if p.auth == nil || !slices.EqualFunc(p.cfg.Keys, cfg.Keys, func(a, b Key) bool { return a.ID == b.ID && string(a.Secret) == string(b.Secret) }) {
			p.auth, p.verified = nil, 0
			for _, k := range cfg.Keys {
				p.auth = append(p.auth, stamp.NewAuthenticator(k.Secret))
			}
		}
		if p.cfg.Address != cfg.Address || p.rdma != byRDMA {
			p.forger, p.failures = 0, 0
		}
		p.cfg, p.rdma = cfg, byRDMA
		p.life, p.nameHash = n.wire.lives.lifeOf(fabric.OwnerOf(cfg.NIC)), nameHash(cfg.NIC)
		old := p.answers
		p.answers = make(map[int]*answeredFlow, len(asked[cfg.NIC]))
		for _, a := range asked[cfg.NIC] {
			o := old[a.Flow]
			if o == nil {
				o = &answeredFlow{}
			}
			o.cfg = a
			p.answers[a.Flow] = o
		}
		p.sessions = newBucket(1, float64(max(4, 4*len(p.answers))), mono)
		n.peers[at] = p
	}
	n.configureRDMA()
}

func (n *nic) applyEdges(node *Config, moved bool, phase func() float64) error {
	known := make(map[fabric.Flow]*edge, len(n.edges))
	for _, e := range n.edges {
		e.gone = true
		known[e.id] = e
	}
	n.edges = n.edges[:0:0]
	byNIC := make(map[string]*peer, len(n.peers))
	for _, p := range n.peers {
		clear(p.edges)
		byNIC[p.cfg.NIC] = p
	}
	rates := map[*socket]float64{}
	mono := n.wire.monoTime()
	for i := range node.Edges {
		cfg := node.Edges[i]
		if cfg.Src != n.cfg.NIC {
			continue
		}
		p := byNIC[cfg.Dst]
		if p == nil {
			continue // of the other address family: the caller reports it
		}
		key := socketKey{node.Stamp.SourcePort + uint16(cfg.Flow), p.rdma}
		s := n.senders[key]
		if s == nil {
			name := fmt.Sprintf("sender%d", cfg.Flow)
			if p.rdma {
				s = n.newLane("rdma_"+name, key.port)
			} else {
				var err error
				if s, err = n.openSocket(name, key.port); err != nil {
					return err
				}
			}
			n.senders[key] = s
		}
		e := known[cfg.ID()]
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
		e.gone, e.cfg, e.peer = false, cfg, p
		e.setClockSync(node.ClockSync, cfg.Cadence)
		e.dscp = node.Stamp.ClassOf(cfg.Flow).DSCP
		e.target = netip.AddrPortFrom(p.remoteAddr(), node.Stamp.Port)
		e.userStampsOnly = p.rdma && n.rdmaClock == nil
		if e.sock != s {
			e.sock = s
			s.queue.pushEdge(e)
		}
		p.edges[cfg.Flow] = e
		n.edges = append(n.edges, e)
		rates[s] += 1 / cfg.Cadence.Seconds()
	}
	queued := 0.0
	for key, s := range n.senders {
		if rates[s] == 0 {
			delete(n.senders, key)
			if err := n.closeSocket(s); err != nil {
				n.log.Warn("cannot close a sender's socket", "err", err)
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
	if n.rdmaQueue != nil {
		n.rdmaQueue.reserveRefs(int(2 * queued))
	}
	return nil
}

// nextDue returns the time of the next probe.
func (n *nic) nextDue() int64 {
	due := int64(1<<63 - 1)
	for _, s := range n.senders {
		due = min(due, s.queue[0].next)
	}
	return due
}

// runTurn sends the due probes and settles the accounts.
func (n *nic) runTurn(now, horizon int64) error {
	if n.clock != nil {
		if err := n.clock.readIfDue(n.wire.Now().UnixNano()); err != nil {
			n.log.Warn("cannot use the NIC's clock for hardware samples", "err", err)
		}
	}
	if err := n.maintainRDMA(); err != nil {
		return err
	}
	if err := n.sendDue(now, horizon); err != nil {
		return err
	}
	if now-n.settled >= int64(settleEvery) {
		n.settled = now
		for _, e := range n.edges {
			e.settleLoss()
		}
	}
	return nil
}

// sendDue sends the probes whose time is not after horizon. After a stall it skips the missed ones, because a burst
// would measure itself.
func (n *nic) sendDue(now, horizon int64) error {
	for _, s := range n.senders {
		for s.queue[0].next <= horizon {
			e := s.queue[0]
			cadence := int64(e.cfg.Cadence)
			if late := now - e.next; late > cadence {
				n.skipped += uint64(late / cadence)
				e.next += late / cadence * cadence
			}
			e.next += cadence
			s.queue.siftDown()
			if err := n.queueProbes(e); err != nil {
				return err
			}
		}
	}
	return n.flushBatch()
}

// queueProbes queues a probe of an edge, and its twin if it has one.
func (n *nic) queueProbes(e *edge) error {
	twins := false
	if n.node.ClockSync {
		e.sinceTwin = (e.sinceTwin + 1) % pairEvery
		twins = e.sinceTwin == 0
	}
	if !twins {
		return n.queueProbe(e)
	}
	if e.sock.link.PendingCount() >= unix.BatchSize-1 { // both must leave in one batch
		if err := n.flushBatch(); err != nil {
			return err
		}
	}
	if err := n.queueProbe(e); err != nil {
		return err
	}
	return n.queueProbe(e)
}

// queueProbe queues one probe of an edge.
func (n *nic) queueProbe(e *edge) error {
	buf, err := n.outBuffer(e.sock)
	if err != nil {
		return err
	}
	wall := n.wire.Now()
	user := n.wire.NodeTime(wall.UnixNano())
	seq, tx := e.nextProbe(n.wire.monoAt(wall), user)
	size := n.putRequest(buf, seq, user, n.ssid, tx, e.dscp, e.peer.sendKey())
	id := e.sock.link.Commit(e.sock.Endpoint, size, e.target, e.dscp<<2|ect0, 0)
	n.registerSent(sentRef{id: id, wants: n.txStampKinds(e.sock), edge: e, seq: seq, user: user})
	return nil
}

// txStampKinds returns the kinds of transmit stamps that come back for each packet over s, as bits.
func (n *nic) txStampKinds(s *socket) uint8 {
	if s.rdma {
		if n.rdmaClock != nil {
			return 1 << hardwareStamps
		}
		return 0
	}
	if n.clock != nil {
		return 1<<kernelStamps | 1<<hardwareStamps
	}
	return 1 << kernelStamps
}

// putRequest writes a probe and returns its length in octets. It authenticates the probe with a, unless a is nil.
func (n *nic) putRequest(buf []byte, seq uint32, user int64, ssid uint16, tx uint32, dscp uint8, a *stamp.Authenticator) int {
	p := stamp.SenderPacket{Seq: seq, Timestamp: stamp.TimestampPTP(user), ErrorEstimate: n.estimate, SSID: ssid}
	base := stamp.BaseLen
	if a == nil {
		p.Put(buf)
	} else {
		base = stamp.AuthBaseLen
		p.PutAuth(buf, a)
	}
	b := stamp.AppendTimestampInfo(buf[:base])
	b = stamp.AppendClassOfService(b, dscp)
	b = stamp.AppendDirectMeasurement(b, tx)
	b = stamp.AppendFollowUp(b)
	if a != nil {
		b = stamp.AppendLives(b, n.wire.lives.own.now.Load(), nameHash(n.cfg.NIC))
		b = stamp.AppendHMAC(b, base, a)
	}
	if pad := n.node.Stamp.Padding; pad > 0 {
		b = stamp.AppendExtraPadding(b, pad)
	}
	return len(b)
}

// outBuffer returns the memory for the next packet over s. It flushes the batch first if that is full or another
// socket's.
func (n *nic) outBuffer(s *socket) ([]byte, error) {
	if n.outSocket != s || s.link.OutBuffer() == nil {
		if err := n.flushBatch(); err != nil {
			return nil, err
		}
		n.outSocket = s
	}
	return s.link.OutBuffer(), nil
}

func (n *nic) registerSent(r sentRef) {
	b := n.outSocket.refsOwner
	r.sent = true
	b.rememberSent(r)
	n.outRefs[n.outSocket.link.PendingCount()-1] = &b.refs[int(r.id)&(len(b.refs)-1)]
}

// flushBatch sends the batch, and reads the transmit stamps that are available at once, as software stamps mostly are.
func (n *nic) flushBatch() error {
	s := n.outSocket
	if s == nil || s.link.PendingCount() == 0 {
		return nil
	}
	batch := n.outRefs[:s.link.PendingCount()]
	at, err := s.link.Send(s.Endpoint, n.failed)
	if err != nil {
		return err
	}
	if at != 0 {
		at = n.wire.NodeTime(at)
		for _, r := range batch {
			switch {
			case r.edge != nil:
				r.edge.setSendTime(r.seq, at)
			case r.sess != nil && r.sent && seqNewer(r.sess.seq, r.seq):
				r.sess.addFollowUp(stamp.FollowUp{Seq: r.seq, Timestamp: stamp.TimestampPTP(at), Method: userStamps.stampMethod()})
			}
		}
	}
	return n.drainErrors(s)
}

// sendFailed takes the i-th packet of the batch back, because it could not be sent.
func (n *nic) sendFailed(i int, errno syscall.Errno) {
	n.sendErrors[errno]++
	r := n.outRefs[i]
	r.wants, r.sent = 0, false
	switch {
	case r.sess != nil:
		r.sess.tx--
	case r.edge != nil:
		r.edge.sendFailed(r.seq)
	}
}

// drainErrors reads all transmit stamps and ICMP errors in a socket's error queue.
func (n *nic) drainErrors(s *socket) error {
	for {
		k, err := s.link.RecvErrors(s.Endpoint)
		if err != nil {
			return err
		}
		for i := range k {
			r := s.link.ReportAt(i)
			r.Stamp = n.wire.NodeTime(r.Stamp)
			switch r.Kind {
			case unix.ReportTxStamp:
				n.txStamp(s, r)
			case unix.ReportICMP, unix.ReportICMP6:
				n.handleICMP(s, r)
			}
		}
		if k < unix.BatchSize {
			return nil
		}
	}
}

func (n *nic) txStamp(s *socket, r *unix.Report) {
	kind, at := kernelStamps, r.Stamp
	if r.Hardware != 0 {
		kind = hardwareStamps
		var ok bool
		if at, ok = n.hardwareTime(n.clockFor(s.rdma), r.Hardware); !ok {
			at = 0
		}
	}
	ref := s.refsOwner.recallSent(r.ID, kind)
	if ref == nil {
		n.unmatched++
		return
	}
	if at == 0 {
		return
	}
	if !s.rdma {
		n.stamps[0][kind] = true
	}
	if kind == kernelStamps {
		ref.kernelStamp = at
		if ref.edge != nil || ref.sess != nil {
			n.kernelDelay.Observe(at - ref.user)
		}
	} else if ref.kernelStamp != 0 {
		n.nicDelay.Observe(at - ref.kernelStamp)
	}
	switch {
	case ref.sess != nil:
		// A session that started anew in the meantime has other numbers.
		if kind == n.kindFor(ref.sess.peer) && seqNewer(ref.sess.seq, ref.seq) {
			ref.sess.addFollowUp(stamp.FollowUp{Seq: ref.seq, Timestamp: stamp.TimestampPTP(at), Method: kind.stampMethod()})
		}
	case ref.edge != nil:
		ref.edge.txStamp(ref.seq, kind, at)
	}
}

// kindFor returns the kind of stamps that replies to a peer carry, which is the best kind that both ends have.
func (n *nic) kindFor(p *peer) stampKind {
	switch {
	case p.rdma && n.rdmaClock != nil && p.cfg.RDMA.Hardware:
		return hardwareStamps
	case !p.rdma && n.clock != nil && p.cfg.Hardware:
		return hardwareStamps
	case p.rdma:
		return userStamps
	}
	return kernelStamps
}

// clockFor returns the clock that stamps packets by RDMA, or by UDP, or nil if there is none.
func (n *nic) clockFor(rdma bool) *nicClock {
	if rdma {
		return n.rdmaClock
	}
	return n.clock
}

// hardwareTime translates a stamp of a clock to the node's time. It returns false if that is not possible.
func (n *nic) hardwareTime(c *nicClock, raw int64) (at int64, ok bool) {
	at, ok = c.systemTime(raw)
	return n.wire.NodeTime(at), ok
}

// receivedAt returns the time at which a datagram arrived, by every kind of stamp that it has.
func (n *nic) receivedAt(g *unix.Datagram, user int64) (t stampedTime) {
	t[userStamps], t[kernelStamps] = user, g.Stamp
	if at, ok := n.hardwareTime(n.clockFor(g.Port != 0), g.Hardware); ok {
		t[hardwareStamps] = at
	}
	for k := kernelStamps; k < stampKinds; k++ {
		if t[k] != 0 && g.Port == 0 {
			n.stamps[1][k] = true
		}
	}
	return t
}

// receivePackets receives packets from a socket until the given time. It reads at least one batch, and leaves the rest
// for the next turn.
func (n *nic) receivePackets(s *socket, until int64) error {
	for {
		k, err := s.link.Recv(s.Endpoint)
		if err != nil {
			return err
		}
		wall := n.wire.Now()
		for i := range k {
			g := s.link.DatagramAt(i)
			g.Stamp = n.wire.NodeTime(g.Stamp)
			if g.Truncated {
				n.dropped[dropOversized]++
				continue
			}
			switch to := n.socketOf(s, g); to {
			case nil:
				n.dropped[dropUnsolicited]++
			case n.reflector, n.rdmaReflector:
				err = n.reflectProbe(g, wall)
			default:
				n.handleReply(to, g, wall)
			}
			if err != nil {
				return err
			}
		}
		if err := n.flushBatch(); err != nil {
			return err
		}
		if k < unix.BatchSize || n.wire.monoAt(wall) >= until {
			return nil
		}
	}
}

// socketOf returns the socket that a datagram received at s is for, or nil if there is none.
func (n *nic) socketOf(s *socket, g *unix.Datagram) *socket {
	switch g.Port {
	case 0:
		if s.rdma {
			return nil // no flow has this port
		}
		return s
	case n.node.Stamp.Port:
		return n.rdmaReflector
	}
	return n.senders[socketKey{g.Port, true}]
}

// readTime returns the time at which the program read a datagram, which was at wall by its clock.
func (n *nic) readTime(g *unix.Datagram, wall time.Time) int64 {
	if g.User != 0 {
		return n.wire.NodeTime(g.User)
	}
	return n.wire.NodeTime(wall.UnixNano())
}

// handleReply processes a reply at a sender's socket.
func (n *nic) handleReply(s *socket, g *unix.Datagram, wall time.Time) {
	pr := n.peers[g.From.Addr()]
	if pr == nil || pr.rdma != s.rdma || g.From.Port() != n.node.Stamp.Port {
		n.dropped[dropUnregistered]++
		return
	}
	mono, user := n.wire.monoAt(wall), n.readTime(g, wall)
	var p stamp.ReflectorPacket
	var a *stamp.Authenticator
	base := stamp.BaseLen
	if len(pr.auth) == 0 {
		if p.Parse(g.Data) != nil {
			n.dropped[dropMalformed]++
			return
		}
	} else {
		base = stamp.AuthBaseLen
		expected, plausible := n.expectsReply(pr, s, g)
		if !plausible {
			return
		}
		if a = n.verifyPacket(pr, expected, mono, func(a *stamp.Authenticator) error { return p.ParseAuth(g.Data, a) }); a == nil {
			return
		}
	}
	var r reply
	malformed := r.answers.Parse(g.Data, base, a)
	if errors.Is(malformed, stamp.ErrIntegrity) {
		n.dropped[dropBadHMAC]++
		return
	}
	if a != nil {
		lives := r.answers.Lives
		if !lives.BelongTo(g.Data, pr.nameHash) {
			lives = stamp.Lives{}
		}
		if !n.admitLife(pr, lives.Reflector, true, mono) {
			return
		}
		if lives != (stamp.Lives{}) && !n.wire.lives.own.mayBeOwn(lives.Sender) {
			n.dropped[dropReplay]++
			return
		}
	}
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
	e := pr.edges[int(s.port)-int(n.node.Stamp.SourcePort)]
	if e == nil {
		n.dropped[dropUnsolicited]++
		return
	}
	if malformed != nil {
		n.dropped[dropMalformed]++
		return
	}
	r.seq, r.senderSeq, r.ecn = p.Seq, p.SenderSeq, g.TOS&3
	r.t2, r.t3, r.t4 = p.Receive.Nanos(p.ErrorEstimate), p.Timestamp.Nanos(p.ErrorEstimate), n.receivedAt(g, user)
	pr.estimate = p.ErrorEstimate
	if e.acceptReply(mono, &r) == outcomeUnsolicited {
		n.dropped[dropUnsolicited]++
	}
}

// expectsReply checks a packet that claims to be a reply of a peer, before anything of it is verified. It reports
// whether the packet can be a reply at all, and otherwise counts it as dropped. It also reports whether a probe waits
// for it.
func (n *nic) expectsReply(pr *peer, s *socket, g *unix.Datagram) (expected, plausible bool) {
	if len(g.Data) < stamp.AuthBaseLen {
		n.dropped[dropMalformed]++
		return false, false
	}
	_, seq, ssid := stamp.PeekAuth(g.Data)
	e := pr.edges[int(s.port)-int(n.node.Stamp.SourcePort)]
	switch {
	case ssid&traceSSID != 0 && (ssid&traceReplySSID != 0 || ssid&ssidMask != n.ssid):
		n.dropped[dropTraceCopy]++
	case ssid&traceSSID != 0:
		return n.awaited[seq] != nil, true
	case ssid != n.ssid:
		n.dropped[dropForeignSSID]++
	case e == nil:
		n.dropped[dropUnsolicited]++
	default:
		slot := e.slotOf(seq)
		return slot != nil && slot.state == slotWaiting, true
	}
	return false, false
}

// expectsProbe does the same for a packet that claims to be a probe of a peer. A probe of a sender that restarted is
// not expected either, but is plausible.
func (n *nic) expectsProbe(pr *peer, g *unix.Datagram) (expected, plausible bool) {
	if len(g.Data) < stamp.AuthBaseLen {
		n.dropped[dropMalformed]++
		return false, false
	}
	seq, _, ssid := stamp.PeekAuth(g.Data)
	flow := int(g.From.Port()) - int(n.node.Stamp.SourcePort)
	switch {
	case flow < 0 || flow >= max(1, len(n.node.Stamp.Classes))*FlowsPerClass:
		n.dropped[dropForeignPort]++
	case pr.cfg.SSID != 0 && ssid&ssidMask != pr.cfg.SSID:
		n.dropped[dropForeignSSID]++
	default:
		sess := n.sessions[sessionKey{g.From, ssid}]
		return sess != nil && sess.expectsSeq(seq), true
	}
	return false, false
}

// verifyPacket returns the key that a packet of a peer verifies with. If there is none, or if too many packets have
// failed for this one to be verified, it counts the packet as dropped and returns nil.
func (n *nic) verifyPacket(pr *peer, expected bool, mono int64, parse func(*stamp.Authenticator) error) *stamp.Authenticator {
	if !pr.forged.maySpend(mono, expected) && !n.budget.maySpend(mono, expected) {
		n.dropped[dropUnverified]++
		n.countForged(pr)
		return nil
	}
	a, err := pr.tryKeys(parse)
	switch {
	case err == nil:
		return a
	case errors.Is(err, stamp.ErrHMAC):
		n.dropped[dropBadHMAC]++
		n.chargeForged(pr, mono)
	default:
		n.dropped[dropMalformed]++
	}
	return nil
}

// chargeForged charges the budgets for the HMACs of a packet that failed verification.
func (n *nic) chargeForged(pr *peer, mono int64) {
	n.countForged(pr)
	if !pr.forged.takeToken(mono) {
		n.budget.spendTokens(mono, float64(len(pr.auth)))
	}
}

// countForged counts a packet by its source address, for as many addresses as are counted separately.
func (n *nic) countForged(pr *peer) {
	if pr.forger == 0 {
		if pr.failures++; pr.failures >= forgerFrom && len(n.forgers) <= maxForgers {
			from := pr.remoteAddr().String()
			if pr.forger = slices.IndexFunc(n.forgers, func(f Forger) bool { return f.From == from }); pr.forger < 0 {
				pr.forger = len(n.forgers)
				n.forgers = append(n.forgers, Forger{From: from})
			}
		}
	}
	n.forgers[pr.forger].Packets++
}

func stampOr(kernel, user int64) int64 {
	if kernel != 0 {
		return kernel
	}
	return user
}

// reflectProbe verifies a probe and answers it.
func (n *nic) reflectProbe(g *unix.Datagram, wall time.Time) error {
	pr, s := n.peers[g.From.Addr()], n.reflector
	if g.Port != 0 {
		s = n.rdmaReflector
	}
	if pr == nil || pr.rdma != s.rdma {
		n.dropped[dropUnregistered]++
		return nil
	}
	mono, user := n.wire.monoAt(wall), n.readTime(g, wall)
	var p stamp.SenderPacket
	var a *stamp.Authenticator
	base := stamp.BaseLen
	if len(pr.auth) == 0 {
		if p.Parse(g.Data) != nil {
			n.dropped[dropMalformed]++
			return nil
		}
	} else {
		base = stamp.AuthBaseLen
		expected, plausible := n.expectsProbe(pr, g)
		if !plausible {
			return nil
		}
		if a = n.verifyPacket(pr, expected, mono, func(a *stamp.Authenticator) error { return p.ParseAuth(g.Data, a) }); a == nil {
			return nil
		}
	}
	if pr.cfg.SSID != 0 && p.SSID&ssidMask != pr.cfg.SSID {
		n.dropped[dropForeignSSID]++
		return nil
	}
	checked := stamp.VerifyTLVs(g.Data, base, a)
	life, hasLife := checked.SenderLife(pr.nameHash)
	key := sessionKey{g.From, p.SSID}
	if a != nil && !n.sessions[key].continuesLife(life) && !n.admitLife(pr, life, checked.IsAuthentic(), mono) {
		return nil
	}
	at := n.receivedAt(g, user)
	kind := n.kindFor(pr)
	for at[kind] == 0 {
		kind--
	}
	v := stamp.ReflectorValues{ReceivedDSCP: g.TOS >> 2, ReceivedECN: g.TOS & 3, PermittedDSCP: ^uint64(0),
		TimestampInfo: stamp.TimestampInfo{SyncIn: stamp.SyncLocal, MethodIn: kind.stampMethod(), SyncOut: stamp.SyncLocal, MethodOut: stamp.MethodControl}}
	if kind == userStamps && !pr.rdma {
		n.missing[0]++
	}
	var sess *session
	var seq uint32
	if p.SSID&traceSSID != 0 {
		if !pr.traces.takeToken(mono) {
			n.dropped[dropRate]++
			return nil
		}
		seq = p.Seq // stateless: RFC 8762 section 4.2
		v.Unsupported = stamp.NewTypeSet(stamp.TypeDirectMeasurement, stamp.TypeFollowUp)
	} else {
		asked := pr.answers[int(g.From.Port())-int(n.node.Stamp.SourcePort)]
		if sess = n.sessionFor(pr, asked, key, mono); sess == nil {
			n.dropped[dropSessions]++
			return nil
		}
		before := sess.restarts
		var came arrival
		if hasLife {
			came = sess.acceptInLife(life, p.Seq, p.Timestamp.Nanos(p.ErrorEstimate))
		} else {
			came = sess.acceptProbe(p.Seq, p.Timestamp.Nanos(p.ErrorEstimate), a != nil)
		}
		n.restarts += sess.restarts - before
		if a != nil && came != arrivalNew {
			n.dropped[dropReplay]++
			return nil
		}
		sess.lastSeen = mono
		if asked != nil && came == arrivalNew {
			asked.received++
			asked.arrived = mono
		}
		if !sess.bucket.takeToken(mono) {
			n.dropped[dropRate]++
			return nil
		}
		seq = sess.seq
		sess.seq++
		sess.tx++
		v.RxCount, v.TxCount, v.FollowUp = sess.rx, sess.tx, sess.nextFollowUp()
	}
	buf, err := n.outBuffer(s)
	if err != nil {
		return err
	}
	sent := n.wire.nodeNow()
	r := stamp.ReflectorPacket{Seq: seq, Timestamp: stamp.TimestampPTP(sent), ErrorEstimate: n.estimate,
		Receive: stamp.TimestampPTP(at[kind]), SenderTTL: g.TTL}
	r.EchoProbe(&p)
	if a == nil {
		r.Put(buf)
	} else {
		r.PutAuth(buf, a)
	}
	v.Life, v.Who = n.wire.lives.own.now.Load(), nameHash(n.cfg.NIC)
	done := v.ReflectVerified(buf, g.Data, base, a, checked)
	if a != nil && done.Integrity {
		n.dropped[dropBadHMAC]++
		n.chargeForged(pr, mono)
	}
	id := s.link.Commit(s.Endpoint, done.Len, g.From, done.DSCP<<2|ect0, 0)
	n.registerSent(sentRef{id: id, wants: n.txStampKinds(s), sess: sess, seq: seq, user: sent})
	return nil
}

// admitLife reports whether the life of an authentic packet allows its use, and otherwise counts the packet as dropped.
// The life in TLVs that are not authentic is not known.
func (n *nic) admitLife(pr *peer, life uint64, authentic bool, mono int64) bool {
	switch pr.life.admitLife(life, mono) {
	case admitted:
		pr.unbound = life == 0
		return true
	case unproven:
		if !authentic {
			n.dropped[dropBadHMAC]++
			n.chargeForged(pr, mono)
			return false
		}
		if pr.life.isSilent(mono) {
			n.unproven++
		}
	}
	n.dropped[dropReplay]++
	return false
}

// sessionFor finds or opens the session of a probe. It returns nil if the peer opens more sessions than it may.
func (n *nic) sessionFor(pr *peer, asked *answeredFlow, key sessionKey, mono int64) *session {
	s := n.sessions[key]
	if s == nil {
		if !pr.sessions.takeToken(mono) {
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
		s = &session{key: key, peer: pr}
		n.sessions[key] = s
	}
	// The permitted rate can change while the session continues.
	cadence := n.node.Cadence
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
