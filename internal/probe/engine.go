// Package probe measures one-way delay and loss between NICs. It sends STAMP probes (RFC 8762, RFC 8972), which the
// kernel or the NIC stamps, and traces the paths of the packets. A reply is the answer of the reflecting agent to a
// probe. An agent replies only to the probes of registered peers.
//
// One loop with a thread of its own serves all NICs of a node (engine.go). What a NIC sends and receives is in nic.go.
// What a flow's packets mean is decided in flow.go, without sockets or clocks.
package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/unix"
)

const (
	longestWait = 50 * time.Millisecond // of the loop if nothing is due
	stallAfter  = 20 * time.Millisecond // a turn that is later than this shows a stall of the host
	// Between two turns, while packets arrive, there are turnMin to turnMax. The interval is longer if there are fewer
	// packets, so that a turn has turnPackets to process. Probes that become due between two turns leave together, and
	// so do replies. The times that matter are the kernel's or the NIC's, so waiting for the turn costs no accuracy and
	// saves most of the system calls and wake-ups.
	turnMin, turnMax = 2 * time.Millisecond, 5 * time.Millisecond
	turnPackets      = 16
	// quietAfter is the time after the last packet from which on the loop waits for the next packet rather than for its
	// turn.
	quietAfter = 100 * time.Millisecond
)

// Engine probes and reflects on all NICs of a node.
type Engine struct {
	log    *slog.Logger
	wire   *wiring
	tracer *tracer
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	phases uint64 // number of assigned phases; guarded by applying

	planned atomic.Int64 // time of the loop's next turn, monotonic nanoseconds
	every   atomic.Int64 // interval between turns, nanoseconds

	applying sync.Mutex // held for one change of the configuration at a time
	mu       sync.Mutex
	cfg      *Config
	nics     []*nic // never changed, only replaced
	closed   bool
	err      error // reason why the loop ended

	drainMu sync.Mutex // held for one call of DrainExchanges at a time
	drained exchanges
}

// New opens the sockets of every NIC. Start begins to probe, and Close ends it. errors.Is holds for the socket errors of
// internal/unix.
func New(cfg *Config, deps Deps, log *slog.Logger) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	poll, err := deps.Network.OpenPoller()
	if err != nil {
		return nil, err
	}
	e := &Engine{log: log, wire: newWiring(deps, poll)}
	nics, err := e.rebuildNICs(cfg, nil)
	if err != nil {
		return nil, errors.Join(err, e.closeNICs(nics), poll.Close())
	}
	e.cfg, e.nics = cfg, nics
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.tracer = newTracer(cfg.Trace, e.allNICs, log)
	if deps.KnownPath != nil {
		e.tracer.seek = e.tracer.followKnown(deps.KnownPath)
	}
	e.planned.Store(e.wire.monoTime())
	return e, nil
}

// Start begins to probe, to reflect and to trace.
func (e *Engine) Start() {
	e.wg.Go(func() {
		if err := e.run(e.ctx); err != nil {
			e.log.Error("probe loop ended", "err", err)
			e.setError(err)
		}
	})
	e.startTracing()
}

// startTracing begins to trace flows without a valid path.
func (e *Engine) startTracing() {
	e.wg.Go(func() { e.tracer.run(e.ctx) })
}

// Apply changes the configuration. What both configurations have continues without interruption: the probes of an edge
// keep their numbers, their counts and their phase. If a socket cannot be opened, Apply returns an error. Everything
// else has changed then, and the next Apply tries again. errors.Is holds for the socket errors of internal/unix and
// ErrClosed.
func (e *Engine) Apply(cfg *Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	e.applying.Lock()
	defer e.applying.Unlock()
	e.mu.Lock()
	closed, old := e.closed, e.nics
	e.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if err := e.wire.deps.Frozen; err != nil {
		return err
	}
	nics, err := e.rebuildNICs(cfg, old)
	e.mu.Lock()
	e.cfg, e.nics = cfg, nics
	e.mu.Unlock()
	e.tracer.applyConfig(cfg.Trace, cfg)
	gone := slices.DeleteFunc(slices.Clone(old), func(n *nic) bool { return slices.Contains(nics, n) })
	return errors.Join(err, e.closeNICs(gone), e.wire.poll.Wake())
}

// rebuildNICs makes the NICs of a configuration, and reuses old ones that are the same. A NIC that cannot be opened is
// left out, and the error has the reason.
func (e *Engine) rebuildNICs(cfg *Config, old []*nic) (nics []*nic, err error) {
	e.every.Store(int64(turnOf(cfg)))
	e.wire.lives.own.raiseTo(cfg.Life)
	var errs []error
	for _, c := range cfg.NICs {
		var n *nic
		if i := slices.IndexFunc(old, func(n *nic) bool { return n.nicName() == c.NIC }); i >= 0 {
			n = old[i]
		} else {
			fresh, err := openNIC(c, cfg, e.wire, e.log)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			n = fresh
		}
		n.mu.Lock()
		err := n.applyConfig(c, cfg, e.nextPhase)
		if err != nil {
			errs = append(errs, err, n.close())
		}
		n.mu.Unlock()
		if err == nil {
			nics = append(nics, n)
		}
	}
	return nics, errors.Join(errs...)
}

// turnOf returns the time between turns under a configuration.
func turnOf(cfg *Config) time.Duration {
	perSecond := 1.0
	for _, edges := range [][]EdgeConfig{cfg.Edges, cfg.Answers} {
		for i := range edges {
			perSecond += 1 / edges[i].Cadence.Seconds()
		}
	}
	return min(turnMax, max(turnMin, time.Duration(turnPackets/perSecond*float64(time.Second))))
}

// nextPhase returns the phase of the next edge. It spreads the edges of a node over their cadence by the golden ratio:
// however many edges there are, the next one falls into a widest gap, and no other edge moves.
func (e *Engine) nextPhase() float64 {
	e.phases++
	_, f := math.Modf(float64(e.phases) * (math.Phi - 1))
	return f
}

// allNICs returns the NICs of the engine.
func (e *Engine) allNICs() []*nic {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.nics
}

// run runs the engine's loop until ctx ends. The loop has a thread of its own, so that no other goroutine's work delays
// a probe.
func (e *Engine) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.TightTimers(); err != nil {
		e.log.Warn("cannot set tight timers; turns of the probe loop may be late", "err", err)
	}
	stop := context.AfterFunc(ctx, func() {
		if err := e.wire.poll.Wake(); err != nil {
			e.log.Error("cannot wake the probe loop", "err", err)
		}
	})
	defer stop()
	last, heard := e.wire.monoTime(), int64(-1)<<32
	due := last
	for ctx.Err() == nil {
		now := e.wire.monoTime()
		planned := min(now+int64(longestWait), due)
		busy := now-heard < int64(quietAfter)
		if every := e.every.Load(); busy || planned < last+every {
			planned = last + every
		}
		planned = max(planned, now)
		e.planned.Store(planned)
		wait := time.Duration(planned - now)
		if busy {
			unix.Nanosleep(wait)
			wait = 0
		}
		events, err := e.wire.poll.Wait(wait)
		if err != nil {
			return err
		}
		last = e.wire.monoTime()
		var got bool
		if due, got, err = e.runTurn(last, planned, events); err != nil {
			return err
		}
		if got {
			heard = last
		}
	}
	return nil
}

// runTurn runs one turn of the loop, which was planned for planned. It returns the time of the next probe, and whether
// packets arrived.
func (e *Engine) runTurn(now, planned int64, events int) (due int64, got bool, err error) {
	e.planned.Store(now) // the time up to here is accounted for
	stalled := stallTime(now, planned)
	sockets := *e.wire.poll.sockets.Load()
	// Under a flood half of the time is left for sending, and for other processes.
	half := e.every.Load() / 2
	until := now + half
	for i := range events {
		token, readable, queued := e.wire.poll.EventAt(i)
		if token < 0 || int(token) >= len(sockets) || sockets[token].socket == nil {
			continue
		}
		s, n := sockets[token].socket, sockets[token].nic
		n.mu.Lock()
		if !s.closed {
			if queued {
				err = n.drainErrors(s)
			}
			// An error without an entry in the queue is cleared only by a receive. Otherwise it would wake the loop for
			// ever.
			if err == nil {
				err = n.receivePackets(s, until)
			}
		}
		n.mu.Unlock()
		got = got || readable
		if err != nil {
			return 0, got, fmt.Errorf("NIC %s: %w", n.nicName(), err)
		}
	}
	due = math.MaxInt64
	for _, n := range e.allNICs() {
		n.mu.Lock()
		n.stalled += stalled
		if !n.closed {
			if err = n.runTurn(now, now+half); err == nil {
				due = min(due, n.nextDue())
			}
		}
		n.mu.Unlock()
		if err != nil {
			return 0, got, fmt.Errorf("NIC %s: %w", n.nicName(), err)
		}
	}
	return due, got, nil
}

// stallTime returns the time by which now is later than planned, beyond stallAfter.
func stallTime(now, planned int64) int64 { return max(0, now-planned-int64(stallAfter)) }

func (e *Engine) setError(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// holdOpen keeps the engine's sockets open until leave is called. The returned context ends with Close.
func (e *Engine) holdOpen(ctx context.Context) (_ context.Context, leave func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, ErrClosed
	}
	e.wg.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() { stop(); cancel(); e.wg.Done() }, nil
}

// ErrClosed is the error of operations of an engine after Close.
var ErrClosed = errors.New("the probe engine is closed")

// Err returns the reason why a probe loop ended, or nil while all run. After Close it returns an error that is
// ErrClosed, or an earlier one.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil && e.closed {
		return ErrClosed
	}
	return e.err
}

// Close stops probing, waits for the loop and closes the sockets.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel()
	e.wg.Wait()
	e.applying.Lock()
	defer e.applying.Unlock()
	return errors.Join(e.closeNICs(e.allNICs()), e.wire.poll.Close())
}

func (e *Engine) closeNICs(nics []*nic) error {
	var errs []error
	for _, n := range nics {
		n.mu.Lock()
		errs = append(errs, n.close())
		n.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Now returns the true time by which the engine works. It is the time of its clock's Now.
func (e *Engine) Now() time.Time { return e.wire.Now() }

// NodeTime returns the time that the node's clock shows at the true time t, in Unix nanoseconds.
func (e *Engine) NodeTime(t int64) int64 { return e.wire.NodeTime(t) }

// Config returns the configuration that the engine runs.
func (e *Engine) Config() *Config {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cfg
}

// Delays holds the one-way delays of one direction, by the kind of their stamps.
type Delays struct {
	Hardware, Kernel, User Histogram
}

// EdgeStats holds the state of one edge.
type EdgeStats struct {
	FlowCounters
	Edge           fabric.Flow
	Class          string
	Tier           int
	Plane          string
	Leaf, PeerLeaf string
	OWD            [2]Delays      // forward, reverse
	Unresolved     uint64         // probes that nothing is known about
	PeerBound      *time.Duration // error bound of the peer's clock, as its replies state it; nil: not known
}

// ReceivedStats counts the probes of one flow of a peer.
type ReceivedStats struct {
	Edge     fabric.Flow
	Class    string
	Tier     int
	Plane    string
	Received uint64
}

// SocketStats holds the state of one socket.
type SocketStats struct {
	Name  string
	Drops uint64 // datagrams that the kernel dropped because the receive buffer was full
}

// ICMPErrors counts the ICMP errors of one type and code (RFC 792).
type ICMPErrors struct {
	Type, Code uint8
	Count      uint64
}

// NICStats holds the state of one NIC.
type NICStats struct {
	NICConfig
	Edges       []EdgeStats
	Received    []ReceivedStats
	Sockets     []SocketStats
	KernelDelay Histogram         // from user space to the kernel's stamp, of sent packets
	NICDelay    Histogram         // from the kernel's stamp to the NIC's, of sent packets
	Stalled     time.Duration     // time by which the loop ran late, beyond 20 ms each time
	SendErrors  map[string]uint64 // by errno
	Dropped     map[string]uint64 // by reason
	Forgers     []Forger          // sources of packets that failed verification, by address; the first one stands for all others
	Unread      map[string]uint64 // packets for the NIC that were lost here and not in the network, by reason
	ICMPErrors  []ICMPErrors      // about probes and replies
	Missing     map[string]uint64 // samples that lack a stamp, by stamp
	Unmatched   uint64            // transmit stamps of packets that are no longer known
	Skipped     uint64            // probes that were not sent because their time had passed
	Unbound     int               // peers whose authenticated packets carry no life number
	Overrun     uint64            // exchanges that were discarded before clock sync read them
	Sessions    int
	Restarts    map[string]uint64 // observed restarts of senders and of reflectors
	TxKind      string            // hardware or kernel, or user by RDMA; empty before the first stamp
	RxKind      string
	KindWhy     string       // reason why the NIC's own stamps are not used; empty if they are
	LastTurn    time.Time    // time at which the loop last planned its next turn
	Port        *rdma.Status // of the RDMA port; nil if it has none
}

// Snapshot holds the state of a node at one moment.
type Snapshot struct {
	NICs []NICStats
}

// Snapshot returns a copy of the state. It blocks a NIC's loop for the time that copying that NIC's counts takes.
func (e *Engine) Snapshot() *Snapshot {
	nics := e.allNICs()
	s := &Snapshot{NICs: make([]NICStats, len(nics))}
	planned := e.planned.Load()
	for i, n := range nics {
		s.NICs[i] = n.copyStats(planned)
	}
	return s
}

// nicName returns the NIC's name, which never changes.
func (n *nic) nicName() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cfg.NIC
}

func (n *nic) copyStats(planned int64) NICStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.wire.monoTime()
	s := NICStats{NICConfig: n.cfg, KernelDelay: n.kernelDelay.Clone(), NICDelay: n.nicDelay.Clone(), Sessions: len(n.sessions),
		Stalled:    time.Duration(n.stalled + stallTime(now, planned)),
		SendErrors: map[string]uint64{}, Dropped: map[string]uint64{}, Missing: map[string]uint64{}, Unmatched: n.unmatched, Skipped: n.skipped,
		Restarts: map[string]uint64{"sender": n.restarts}, LastTurn: time.Now().Add(-time.Duration(max(0, now-planned))), KindWhy: n.kindWhy}
	for k := kernelStamps; k < stampKinds; k++ {
		if n.stamps[0][k] {
			s.TxKind = kindNames[k]
		}
		if n.stamps[1][k] {
			s.RxKind = kindNames[k]
		}
	}
	for errno, v := range n.sendErrors {
		s.SendErrors[errnoName(errno)] = v
	}
	for k, v := range n.icmpErrors {
		s.ICMPErrors = append(s.ICMPErrors, ICMPErrors{Type: k[0], Code: k[1], Count: v})
	}
	for i, v := range n.dropped {
		s.Dropped[dropNames[i]] = v
	}
	s.Forgers = slices.Clone(n.forgers)
	s.Unread = map[string]uint64{"unverified": n.dropped[dropUnverified], "socket_full": n.overflown, "no_life": n.unproven}
	for _, p := range n.peers {
		if p.unbound && len(p.auth) > 0 {
			s.Unbound++
		}
	}
	if n.rdma != nil {
		st := n.rdma.Status()
		s.Port = &st
		if n.reflector == nil && st.Queue {
			s.TxKind = kindNames[userStamps]
			if n.rdmaClock != nil {
				s.TxKind = kindNames[hardwareStamps]
			}
			s.RxKind = s.TxKind
		}
	}
	missing := [4]uint64{1: n.missing[0]}
	for _, e := range n.edges {
		for i, v := range e.Missing {
			missing[i] += v
		}
		s.Restarts["reflector"] += e.Restarts
		if e.clocks != nil {
			s.Overrun += e.clocks.rings[forward].overrun + e.clocks.rings[reverse].overrun
		}
		es := EdgeStats{FlowCounters: e.FlowCounters, Edge: e.id, Class: n.node.Stamp.ClassOf(e.cfg.Flow).Name, Tier: e.cfg.Tier, Plane: e.peer.cfg.Plane,
			Leaf: n.cfg.Leaf, PeerLeaf: e.peer.cfg.Leaf, Unresolved: e.unresolvedProbes(), PeerBound: e.peer.clockBound()}
		for d := range directions {
			es.OWD[d] = Delays{Hardware: e.owd[d][hardwareStamps].Clone(), Kernel: e.owd[d][kernelStamps].Clone(), User: e.owd[d][userStamps].Clone()}
		}
		s.Edges = append(s.Edges, es)
	}
	for i, v := range missing {
		s.Missing["t"+strconv.Itoa(i+1)] = v
	}
	byNIC := make(map[string]*peer, len(n.peers))
	for _, p := range n.peers {
		byNIC[p.cfg.NIC] = p
	}
	for i := range n.node.Answers {
		c := &n.node.Answers[i]
		if p := byNIC[c.Src]; p != nil && c.Dst == n.cfg.NIC {
			s.Received = append(s.Received, ReceivedStats{Edge: c.ID(), Class: n.node.Stamp.ClassOf(c.Flow).Name,
				Tier: c.Tier, Plane: p.cfg.Plane, Received: p.answers[c.Flow].received})
		}
	}
	socks := make([]*socket, 0, len(n.senders)+1)
	for _, sock := range n.senders {
		if !sock.rdma {
			socks = append(socks, sock)
		}
	}
	slices.SortFunc(socks, func(a, b *socket) int { return int(a.port) - int(b.port) })
	if n.reflector != nil {
		socks = append(socks, n.reflector)
	}
	for _, sock := range socks {
		s.Sockets = append(s.Sockets, SocketStats{Name: sock.name, Drops: sock.Drops()})
		s.Unread["socket_full"] += sock.Drops()
	}
	return s
}

func errnoName(e syscall.Errno) string {
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return fmt.Sprintf("errno%d", int(e))
}
