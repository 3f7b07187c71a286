// Package rdma sends and receives datagrams over unreliable datagram queue pairs (IBTA 1.0 chapter 9.8.3), with one
// queue pair per port of an RDMA device for any number of peers. The library is behind the interface Verbs. It is
// libibverbs if the program was built with the tag rdma, or the fake of package rdmatest.
//
// The tests are named after these rules of a port:
//
//  1. A port without a device, a GID or a working queue pair is not a fatal error. Its status has the reason, and the
//     port is checked again every checkEvery.
//  2. A queue pair that is not ready to send is reset and keeps its number. If the reset fails, a new queue pair is
//     made.
//  3. A device that is removed, or that reports a fatal error, is closed at once, because drivers wait for that. When
//     it is back, there is a new queue pair.
//  4. A GID that moved to another index, a port that was down, and a table that changed require new address handles,
//     but not a new queue pair.
//  5. Datagrams from a GID that is not a peer, or from another queue pair than the peer's, are dropped and counted.
//  6. Packets that cannot be sent are reported one by one, and sending never blocks.
//  7. On InfiniBand, packets are sent to the LID that the peer was given by, with a global route header. A peer without
//     a LID, or of another subnet, is not sent to. A new LID of a peer requires new address handles. A new LID of the
//     port is reported by LIDChanges, because peers cannot answer before they know it.
package rdma

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

const (
	// eventEvery is the interval at which events are read. checkEvery is the interval at which the rest is checked and
	// missing parts are tried again.
	eventEvery = 200 * time.Millisecond
	checkEvery = time.Second
	// depth is the depth of the queues: twice the packets of one turn at 50,000 packets per second.
	depth = 512
)

// MaxQKey is the highest Q_Key. With the highest bit set, a Q_Key would stand for the queue pair's own (IBTA 10.2.5),
// and setting it needs privileges.
const MaxQKey = 1<<31 - 1

// DefaultPKey is the P_Key of the default partition.
const DefaultPKey = 0xffff

// MaxPKeyIndex is the index of the last entry that a table of P_Keys can have (IBTA 10.9.2).
const MaxPKeyIndex = 1<<16 - 1

// Options holds the options of a port.
type Options struct {
	Device    string
	Port      int
	GIDChoice GIDChoice
	PKey      uint16 // DefaultPKey for the default partition
	PKeyIndex *int   // entry of the port's table of P_Keys, instead of PKey; nil means that PKey is looked up
	QKey      uint32 // of the own queue pair: 1 to MaxQKey
	Busy      time.Duration
}

// Peer represents a queue pair that datagrams may be sent to and received from.
type Peer struct {
	GID  netip.Addr
	QPN  uint32
	QKey uint32
	LID  uint16 // on InfiniBand; 0 means not known
}

// Names of events, as counted.
const (
	CountPortDown    = "port_down"
	CountPortUp      = "port_up"
	CountQueueError  = "queue_error"
	CountDeviceGone  = "device_gone"
	CountGIDChanged  = "gid_changed"
	CountLIDChanged  = "lid_changed"
	CountQueueReset  = "queue_reset"
	CountQueueOpened = "queue_opened"
)

// CountNames holds the keys of Status.Counts.
var CountNames = []string{CountPortDown, CountPortUp, CountQueueError, CountDeviceGone, CountGIDChanged, CountLIDChanged, CountQueueReset, CountQueueOpened}

// Status holds what is known of a port.
type Status struct {
	Device         string
	Port           int
	Queue          bool // reports whether there is a queue pair, which QPN and LID belong to
	QPN            uint32
	LID            uint16 // on InfiniBand; 0 means that the port has none
	InfiniBand     bool
	Hardware       bool
	State          string // one of QPStates
	GID            netip.Addr
	GIDIndex       int
	GIDType        GIDType
	PortState      string            // empty if it is not known
	Why            string            // reason why the port cannot be used; empty if it can
	RecvErrors     map[string]uint64 // completions with an error, by status
	SendErrors     map[string]uint64
	Counts         map[string]uint64 // by CountNames
	Handles        int
	HandleErrors   uint64
	Strangers      uint64  // datagrams from GIDs that are not peers
	WrongQPN       uint64  // datagrams from another queue pair than the peer's
	Headless       uint64  // datagrams without a header, or without an immediate that identifies the flow
	QKeyViolations *uint32 // as counted by the port; nil means not known
}

// Arrival represents a received datagram. Data is valid until the next Recv.
type Arrival struct {
	Data      []byte
	From      netip.Addr // the peer's GID
	SrcPort   uint16     // ports of the flow, from the immediate
	DstPort   uint16
	TClass    uint8
	Hops      uint8
	Truncated bool
	Stamp     int64 // time at which the program's thread read it, Unix nanoseconds
	Hardware  int64 // time at which the device completed it, nanoseconds of its clock; 0: not known
}

// Port represents a port of a device, and its queue pair while it has one. Several goroutines may call its methods, but
// only one at a time may call those that send, and only one at a time those that receive.
type Port struct {
	o          Options
	verbs      Verbs
	log        *slog.Logger
	now        func() int64 // monotonic nanoseconds
	event      *unix.EventFD
	stop       chan struct{}
	makeSignal chan struct{} // signals that there are handles to make
	wg         sync.WaitGroup
	busy       sync.WaitGroup // uses of the queue outside mu

	mu        sync.Mutex
	q         Queue // nil if there is none
	info      QueueInfo
	gid       *GID // nil if none can be used
	lastGID   *GID
	lastLID   uint16 // the last one that was not 0
	state     int
	port      *PortState
	why       string
	checkedAt int64
	closed    bool
	checkSoon bool // an event or a completion requires a check of the queue
	handles   handles
	peers     map[netip.Addr]Peer
	sl        [64]uint8 // service level by DSCP
	counts    map[string]uint64
	recvErrs  Errors // errors of queues that are closed
	sendErrs  Errors
	ahErrors  uint64
	strangers uint64
	wrongQPN  uint64
	headless  uint64

	out      [BatchSize]Out
	nout     int
	in       [BatchSize]In
	arrivals [BatchSize]Arrival
	done     [BatchSize]Completion
}

// Validate returns an error that names the first field that is not valid.
func (o *Options) Validate() error {
	switch {
	case o.Device == "":
		return errors.New("device: missing, want the name of an RDMA device, such as mlx5_0")
	case o.Port < 1 || o.Port > 255:
		return fmt.Errorf("port: %d, want 1 to 255", o.Port)
	case o.QKey == 0 || o.QKey > MaxQKey:
		return fmt.Errorf("qkey: %#x, want 1 to %#x: the highest bit has another meaning", o.QKey, MaxQKey)
	case o.PKeyIndex != nil && (*o.PKeyIndex < 0 || *o.PKeyIndex > MaxPKeyIndex):
		return fmt.Errorf("pkey_index: %d, want 0 to %d", *o.PKeyIndex, MaxPKeyIndex)
	case o.PKeyIndex == nil && o.PKey&0x7fff == 0:
		return fmt.Errorf("pkey: %#x, want one whose low 15 bits are not 0", o.PKey)
	case o.Busy < 0:
		return fmt.Errorf("busy_poll: %v, want 0 or more", o.Busy)
	}
	return nil
}

// Open opens a port and keeps it working until Close. A missing device is not an error. errors.Is holds for
// ErrNotBuilt.
func Open(o Options, v Verbs, log *slog.Logger) (*Port, error) {
	p, err := newPort(o, v, log)
	if err != nil {
		return nil, err
	}
	p.maintainOnce()
	p.wg.Go(p.maintainLoop)
	p.wg.Go(p.makeLoop)
	return p, nil
}

// newPort makes a port without starting the goroutines that maintain it.
func newPort(o Options, v Verbs, log *slog.Logger) (*Port, error) {
	if v == nil {
		return nil, ErrNotBuilt
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	event, err := unix.NewEventFD()
	if err != nil {
		return nil, err
	}
	base := time.Now()
	return &Port{o: o, verbs: v, log: log.With("device", o.Device, "port", o.Port), now: func() int64 { return int64(time.Since(base)) }, event: event,
		stop: make(chan struct{}), makeSignal: make(chan struct{}, 1), state: stateAbsent, checkedAt: -int64(checkEvery), handles: newHandles(),
		peers: map[netip.Addr]Peer{}, counts: map[string]uint64{}}, nil
}

// FD returns a descriptor that is readable when there is something to receive.
func (p *Port) FD() int { return p.event.FD() }

// Close stops the maintenance of the port and closes the queue pair.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	close(p.stop)
	p.wg.Wait()
	err := p.closeQueue()
	return errors.Join(err, p.event.Close())
}

// maintainLoop maintains the port until Close.
func (p *Port) maintainLoop() {
	t := time.NewTicker(eventEvery)
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-t.C:
			p.maintainOnce()
		}
	}
}

// acquireQueue returns the queue pair, which is not closed before put is called.
func (p *Port) acquireQueue() (q Queue, put func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.q == nil {
		return nil, func() {}
	}
	p.busy.Add(1)
	return p.q, p.busy.Done
}

// maintainOnce processes events and runs the checks that are due. It must not be called concurrently.
func (p *Port) maintainOnce() {
	now := p.now()
	p.mu.Lock()
	q, due := p.q, now-p.checkedAt >= int64(checkEvery)
	p.mu.Unlock()
	if q == nil {
		if due {
			p.openQueue(now)
		}
		return
	}
	gone := false
	for _, e := range q.Events() {
		p.mu.Lock()
		switch e {
		case EventPortUp:
			p.counts[CountPortUp]++
			p.handles.invalidateGID(netip.Addr{}, now)
		case EventPortDown:
			p.counts[CountPortDown]++
		case EventQueueFatal:
			p.counts[CountQueueError]++
		case EventDeviceFatal:
			gone = true
		}
		p.mu.Unlock()
		due = due || e != EventOther
	}
	p.mu.Lock()
	due = due || p.checkSoon
	p.mu.Unlock()
	if !due {
		return
	}
	if gone || !p.verbs.Present(p.info) {
		p.dropDevice(now, fmt.Errorf("RDMA device %s port %d: the device is gone", p.o.Device, p.o.Port))
		return
	}
	p.checkQueue(q, now)
}

// dropDevice closes the queue pair of a device that was removed.
func (p *Port) dropDevice(now int64, why error) {
	p.mu.Lock()
	p.counts[CountDeviceGone]++
	p.mu.Unlock()
	if err := p.closeQueue(); err != nil {
		p.log.Warn("cannot close the queue pair", "err", err)
	}
	p.reportUsability(why)
	p.mu.Lock()
	p.checkedAt = now
	p.mu.Unlock()
}

// reportUsability records why the port cannot be used, and logs changes. A nil error means that it can be used.
func (p *Port) reportUsability(err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	p.mu.Lock()
	same := why == p.why
	p.why = why
	p.mu.Unlock()
	switch {
	case same:
	case err != nil:
		p.log.Error("RDMA cannot be used", "err", err)
	default:
		p.log.Info("RDMA can be used", "status", p.describeQueue())
	}
}

func (p *Port) describeQueue() string {
	s := p.Status()
	return fmt.Sprintf("queue pair %d, GID %v at index %d", s.QPN, s.GID, s.GIDIndex)
}

// openQueue makes a queue pair. A failure is recorded in the status.
func (p *Port) openQueue(now int64) {
	p.mu.Lock()
	p.checkedAt = now
	p.mu.Unlock()
	q, err := p.verbs.Open(QueueOptions{Device: p.o.Device, Port: p.o.Port, PKey: p.o.PKey, PKeyIndex: p.o.PKeyIndex, QKey: p.o.QKey, Depth: depth, Busy: p.o.Busy, Notify: p.event.FD()})
	if err != nil {
		p.reportUsability(err)
		return
	}
	p.mu.Lock()
	p.q, p.info, p.handles, p.lastGID = q, q.Info(), newHandles(), nil
	p.counts[CountQueueOpened]++
	p.mu.Unlock()
	p.checkQueue(q, now)
}

// checkQueue checks whether the queue pair works, and repairs it if it does not.
func (p *Port) checkQueue(q Queue, now int64) {
	p.mu.Lock()
	p.checkedAt, p.checkSoon = now, false
	p.mu.Unlock()
	state, err := q.State()
	if err == nil && state != stateRTS {
		p.mu.Lock()
		p.counts[CountQueueReset]++
		// Nothing is sent or received during the reset.
		err = q.Reset()
		p.mu.Unlock()
		p.log.Warn("reset the queue pair", "state", QPStates[state], "err", err)
		if err == nil {
			state, err = q.State()
		}
	}
	if err != nil {
		if e := p.closeQueue(); e != nil {
			p.log.Warn("cannot close the queue pair", "err", e)
		}
		p.reportUsability(err)
		return
	}
	port, portErr := q.Port()
	table, err := q.GIDs()
	p.mu.Lock()
	p.state = state
	if portErr == nil {
		p.port = &port
		p.recordLID(port.LID)
	}
	var gid GID
	if err == nil {
		gid, err = SelectGID(p.o.Device, p.o.Port, table, p.info.InfiniBand, p.o.GIDChoice, p.lastGID)
	}
	switch {
	case err != nil:
		if p.gid != nil {
			p.counts[CountGIDChanged]++
			p.handles.invalidateGID(netip.Addr{}, now)
		}
		p.gid = nil
	default:
		if p.lastGID != nil && *p.lastGID != gid {
			p.counts[CountGIDChanged]++
			p.handles.invalidateGID(netip.Addr{}, now)
		}
		p.gid, p.lastGID = &gid, &gid
	}
	old := p.handles.removeExpired(now, false)
	p.mu.Unlock()
	for _, ah := range old {
		if err := q.DropAH(ah); err != nil {
			p.log.Warn("cannot destroy an address handle", "err", err)
		}
	}
	if err == nil && portErr != nil {
		err = portErr
	}
	if err == nil && !port.Active {
		err = fmt.Errorf("RDMA device %s port %d: the port is %s, want active", p.o.Device, p.o.Port, port.State)
	}
	if err == nil && q.Info().InfiniBand && port.LID == 0 {
		err = fmt.Errorf("RDMA device %s port %d: the port has no LID, want one from a subnet manager", p.o.Device, p.o.Port)
	}
	p.reportUsability(err)
}

// recordLID records the LID of a port of InfiniBand. A port that is not active may have none for a while, which is no
// change. The caller holds mu.
func (p *Port) recordLID(lid uint16) {
	if !p.info.InfiniBand {
		p.info.LID = 0
		return
	}
	p.info.LID = lid
	if lid == 0 || lid == p.lastLID {
		return
	}
	if p.lastLID != 0 {
		p.counts[CountLIDChanged]++
	}
	p.lastLID = lid
}

// LIDChanges returns how often the port got another LID than before.
func (p *Port) LIDChanges() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[CountLIDChanged]
}

// closeQueue closes the queue pair.
func (p *Port) closeQueue() error {
	p.mu.Lock()
	q := p.q
	if q == nil {
		p.mu.Unlock()
		return nil
	}
	p.q, p.state, p.gid, p.port = nil, stateAbsent, nil, nil
	recv, send := q.Errors()
	for i := range recv {
		p.recvErrs[i] += recv[i]
		p.sendErrs[i] += send[i]
	}
	p.mu.Unlock()
	p.busy.Wait()
	p.mu.Lock()
	now := p.now()
	p.handles.invalidateGID(netip.Addr{}, now)
	old := p.handles.removeExpired(now, true)
	p.handles = newHandles()
	p.mu.Unlock()
	var errs []error
	for _, ah := range old {
		errs = append(errs, q.DropAH(ah))
	}
	return errors.Join(append(errs, q.Close())...)
}

// makeLoop makes address handles until Close.
func (p *Port) makeLoop() {
	for {
		select {
		case <-p.stop:
			return
		case <-p.makeSignal:
		}
		for p.makeNextHandle() {
			select {
			case <-p.stop:
				return
			default:
			}
		}
	}
}

// makeNextHandle makes the next requested handle. It returns false if there is none.
func (p *Port) makeNextHandle() bool {
	q, put := p.acquireQueue()
	defer put()
	if q == nil {
		return false
	}
	p.mu.Lock()
	k, ok := p.handles.nextRequested()
	t, err := p.targetOf(k)
	p.mu.Unlock()
	if !ok {
		return false
	}
	var ah uint64
	if err == nil {
		ah, err = q.MakeAH(t)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		ah = 0
		p.ahErrors++
		p.log.Debug("cannot make an address handle", "err", err)
	}
	p.handles.recordMade(k, ah, p.now())
	return true
}

// targetOf returns where the address handle of a key leads. It fails with EADDRNOTAVAIL without an own GID. On
// InfiniBand it fails with EHOSTUNREACH if the peer's LID is not known, and with ENETUNREACH if the peer is of another
// subnet, in which its LID belongs to another port. The caller holds mu.
func (p *Port) targetOf(k handleKey) (Target, error) {
	if p.gid == nil {
		return Target{}, syscall.EADDRNOTAVAIL
	}
	t := Target{GID: k.gid, GIDIndex: p.gid.Index, FlowLabel: k.label, SL: p.sl[k.tclass>>2], TClass: k.tclass, HopLimit: 64}
	if p.info.InfiniBand {
		t.LID = p.peers[k.gid].LID
		switch {
		case SubnetPrefix(k.gid) != SubnetPrefix(p.gid.Addr):
			return Target{}, fmt.Errorf("%v is of another subnet than %v: %w", k.gid, p.gid.Addr, syscall.ENETUNREACH)
		case t.LID == 0:
			return Target{}, fmt.Errorf("the LID of %v is not known: %w", k.gid, syscall.EHOSTUNREACH)
		}
	}
	return t, nil
}

// SetPeers sets the peers that datagrams may be sent to and received from.
func (p *Port) SetPeers(peers []Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	old := p.peers
	p.peers = make(map[netip.Addr]Peer, len(peers))
	for _, v := range peers {
		v.GID = CanonicalGID(v.GID)
		p.peers[v.GID] = v
	}
	for gid, v := range old {
		if n, ok := p.peers[gid]; !ok || n.LID != v.LID {
			p.handles.invalidateGID(gid, now)
		}
	}
}

// SetClasses sets the service level of each DSCP.
func (p *Port) SetClasses(sl [64]uint8) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sl != sl {
		p.sl = sl
		p.handles.invalidateGID(netip.Addr{}, p.now())
	}
}

// OutBuffer returns the memory for the next packet, or nil if the batch is full.
func (p *Port) OutBuffer() []byte {
	if p.nout == BatchSize {
		return nil
	}
	return p.out[p.nout].Data[:]
}

// PendingCount returns the number of packets that wait for Send.
func (p *Port) PendingCount() int { return p.nout }

// Commit queues the first n octets of OutBuffer for the peer with a GID, as a packet between two ports of a flow with a
// traffic class.
func (p *Port) Commit(n int, gid netip.Addr, src, dst uint16, tclass uint8, id uint32) {
	o := &p.out[p.nout]
	p.nout++
	o.Len, o.ID, o.Imm, o.Errno, o.AH = uint32(n), id, uint32(src)<<16|uint32(dst), 0, 0
	p.mu.Lock()
	defer p.mu.Unlock()
	peer, known := p.peers[gid]
	if p.q == nil || p.gid == nil || !known {
		return
	}
	o.QPN, o.QKey = peer.QPN, peer.QKey
	ah, ask := p.handles.handleFor(handleKey{gid, tclass, FlowLabel(src, dst)}, p.now())
	o.AH = ah
	if ask {
		select {
		case p.makeSignal <- struct{}{}:
		default:
		}
	}
}

// Send sends the queued packets. It calls failed for each packet that was not posted, with the packet's place in the
// batch. The errno is ENETDOWN without a queue pair, EADDRNOTAVAIL without a GID, EHOSTUNREACH without an address
// handle, ENOBUFS if the queue is full, EMSGSIZE beyond the port's MTU, or the device's error. It returns the time at
// which the packets were posted, in Unix nanoseconds.
func (p *Port) Send(failed func(i int, errno syscall.Errno)) (at int64, err error) {
	n := p.nout
	p.nout = 0
	p.mu.Lock()
	q, gid := p.q, p.gid
	switch {
	case q == nil || gid == nil:
		errno := syscall.ENETDOWN
		if q != nil {
			errno = syscall.EADDRNOTAVAIL
		}
		for i := range n {
			p.out[i].Errno = int32(errno)
		}
	default:
		at = time.Now().UnixNano()
		if err = q.Send(p.out[:n]); err != nil {
			p.checkSoon = true
		}
	}
	p.mu.Unlock()
	for i := range n {
		if e := p.out[i].Errno; e != 0 {
			failed(i, syscall.Errno(e))
		}
	}
	return at, nil
}

// Recv receives at most BatchSize packets without waiting, and returns their number.
func (p *Port) Recv() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.receivePackets(p.in[:])
	if n < BatchSize {
		// Between the two reads no packet is missed, and there is no needless wake-up.
		p.event.Clear()
		n += p.receivePackets(p.in[n:])
	}
	if n == BatchSize {
		if err := p.event.Signal(); err != nil {
			p.log.Error("cannot signal that packets are left", "err", err)
		}
	}
	k := 0
	for i := range n {
		if p.acceptPacket(&p.in[i], &p.arrivals[k]) {
			k++
		}
	}
	return k
}

// receivePackets receives packets from the queue pair, if there is one.
func (p *Port) receivePackets(in []In) int {
	if p.q == nil {
		return 0
	}
	n, err := p.q.Recv(in)
	if err != nil {
		p.checkSoon = true
		return 0
	}
	return n
}

// acceptPacket fills in a for a received packet. It returns false if the packet is dropped.
func (p *Port) acceptPacket(in *In, a *Arrival) bool {
	h, ok := parseHeader(&in.GRH)
	if !ok || in.Flags&hasGRH == 0 || in.Flags&hasImm == 0 {
		p.headless++
		return false
	}
	peer, known := p.peers[h.source]
	switch {
	case !known:
		p.strangers++
		return false
	case peer.QPN != in.SrcQPN:
		p.wrongQPN++
		return false
	}
	*a = Arrival{Data: in.Data[:min(in.Len, MaxDatagram)], From: h.source, SrcPort: uint16(in.Imm >> 16), DstPort: uint16(in.Imm),
		TClass: h.tclass, Hops: h.hops, Truncated: in.Len > MaxDatagram, Stamp: in.Stamp, Hardware: p.clockNanos(in.Hardware)}
	return true
}

// ArrivalAt returns the i-th datagram of the last Recv.
func (p *Port) ArrivalAt(i int) *Arrival { return &p.arrivals[i] }

// clockNanos converts a time of the device's clock to nanoseconds.
func (p *Port) clockNanos(raw uint64) int64 {
	if raw == 0 || p.info.ClockKilohertz == 0 {
		return 0
	}
	hi, lo := bits.Mul64(raw, 1e6)
	if hi >= p.info.ClockKilohertz {
		return 0
	}
	n, _ := bits.Div64(hi, lo, p.info.ClockKilohertz)
	return int64(n)
}

// DrainSent reads at most BatchSize completions of sends, which makes room for more sends, and returns their number. It
// calls stamp for each packet that was sent. A completion with an error causes a check of the queue pair.
func (p *Port) DrainSent(stamp func(id uint32, hardware int64)) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.q == nil {
		return 0
	}
	n := p.q.PollSent(p.done[:])
	for i := range n {
		d := &p.done[i]
		if d.Status != 0 {
			p.checkSoon = true
			continue
		}
		stamp(d.ID, p.clockNanos(d.Hardware))
	}
	return n
}

// HasHardwareStamps reports whether the device stamps what it sends and receives.
func (p *Port) HasHardwareStamps() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.q != nil && p.info.Hardware
}

// ErrNoClock is the error of a port whose device has no clock that can be read now.
var ErrNoClock = errors.New("the RDMA device has no clock that can be read")

// CrossTimestamp reads the device's clock and the system's at one moment, which is known to within width nanoseconds.
func (p *Port) CrossTimestamp() (device, system, width int64, err error) {
	q, put := p.acquireQueue()
	defer put()
	if q == nil {
		return 0, 0, 0, ErrNoClock
	}
	raw, before, after, err := q.Clock()
	if err != nil {
		return 0, 0, 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if device = p.clockNanos(raw); device == 0 {
		return 0, 0, 0, ErrNoClock
	}
	return device, before + (after-before)/2, after - before, nil
}

// Status returns the state of the port.
func (p *Port) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Device: p.o.Device, Port: p.o.Port, Queue: p.q != nil, State: QPStates[p.state], Why: p.why, GIDIndex: -1, Handles: len(p.handles.byKey), HandleErrors: p.ahErrors,
		Strangers: p.strangers, WrongQPN: p.wrongQPN, Headless: p.headless, RecvErrors: map[string]uint64{}, SendErrors: map[string]uint64{}, Counts: make(map[string]uint64, len(CountNames))}
	recv, send := p.recvErrs, p.sendErrs
	if p.q != nil {
		s.QPN, s.LID, s.InfiniBand, s.Hardware = p.info.QPN, p.info.LID, p.info.InfiniBand, p.info.Hardware
		r, t := p.q.Errors()
		for i := range recv {
			recv[i] += r[i]
			send[i] += t[i]
		}
	}
	for i := range recv {
		if recv[i] > 0 {
			s.RecvErrors[StatusName(i)] = recv[i]
		}
		if send[i] > 0 {
			s.SendErrors[StatusName(i)] = send[i]
		}
	}
	for _, n := range CountNames {
		s.Counts[n] = p.counts[n]
	}
	if p.gid != nil {
		s.GID, s.GIDIndex, s.GIDType = p.gid.Addr, p.gid.Index, p.gid.Type
	}
	if p.port != nil {
		v := p.port.QKeyViolations
		s.PortState, s.QKeyViolations = p.port.State, &v
	}
	return s
}
