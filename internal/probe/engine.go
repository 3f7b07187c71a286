// Package probe measures one-way delay and loss between NICs with STAMP
// probes (RFC 8762, RFC 8972) that the kernel stamps, answers those of
// registered peers, and traces the paths both take.
//
// A NIC has a loop with a thread of its own (nic.go). What a flow's packets
// mean is decided in flow.go, without sockets or clocks.
package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Engine probes and reflects on all NICs of a node.
type Engine struct {
	cfg    *Config
	log    *slog.Logger
	base   time.Time
	nics   []*nic
	tracer *tracer
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	err    error // of the first loop that failed
}

// Start opens the sockets of every NIC and begins to probe. Close ends it.
// errors.Is holds for the socket errors of internal/unix.
func Start(cfg *Config, log *slog.Logger) (*Engine, error) {
	e := &Engine{cfg: cfg, log: log, base: time.Now()}
	for _, c := range cfg.NICs {
		ssid := uint16(1 + rand.IntN(ssidMask))
		n, err := openNIC(c, cfg, e.base, ssid, log)
		if err != nil {
			return nil, errors.Join(err, e.closeNICs())
		}
		e.nics = append(e.nics, n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.ctx, e.cancel = ctx, cancel
	e.tracer = newTracer(cfg.Trace, e.nics, log)
	for _, n := range e.nics {
		n.planned.Store(n.mono())
		e.wg.Go(func() {
			if err := n.run(ctx); err != nil {
				log.Error("probe loop ended", "err", err)
				e.fail(err)
			}
		})
	}
	e.wg.Go(func() { e.tracer.run(ctx) })
	return e, nil
}

func (e *Engine) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// enter keeps the engine's sockets open until leave is called. ctx ends with
// Close.
func (e *Engine) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
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

// ErrClosed is returned by what an engine cannot do after Close.
var ErrClosed = errors.New("the probe engine is closed")

// Err is why a probe loop ended; nil while all run.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Close stops probing, waits for the loops and closes the sockets.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel()
	e.wg.Wait()
	return e.closeNICs()
}

func (e *Engine) closeNICs() error {
	var errs []error
	for _, n := range e.nics {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// Config is the configuration the engine runs.
func (e *Engine) Config() *Config { return e.cfg }

// Delays are the one-way delays of one direction, by how they were stamped.
type Delays struct {
	Kernel, User Histogram
}

// EdgeStats is the state of one edge.
type EdgeStats struct {
	FlowCounters
	Edge           fabric.Edge
	Class          string
	Tier           int
	Plane          string
	Leaf, PeerLeaf string
	OWD            [2]Delays // forward, reverse
	Unresolved     uint64    // probes nothing is known about
}

// ReceivedStats counts the probes of one flow of a peer.
type ReceivedStats struct {
	Edge     fabric.Edge
	Class    string
	Tier     int
	Plane    string
	Received uint64
}

// SocketStats is the state of one socket.
type SocketStats struct {
	Name  string
	Drops uint64 // datagrams dropped by the kernel, the receive buffer being full
}

// ICMPErrors counts the ICMP errors of one type and code (RFC 792).
type ICMPErrors struct {
	Type, Code uint8
	Count      uint64
}

// NICStats is the state of one NIC.
type NICStats struct {
	NICConfig
	Edges       []EdgeStats
	Received    []ReceivedStats
	Sockets     []SocketStats
	KernelDelay Histogram
	Stalled     time.Duration     // by which the loop ran late, beyond 20 ms each time
	SendErrors  map[string]uint64 // by errno
	Dropped     map[string]uint64 // by reason
	ICMPErrors  []ICMPErrors      // about probes and replies
	Missing     map[string]uint64 // samples without a kernel stamp, by which
	Sessions    int
	Restarts    map[string]uint64 // noticed of senders and of reflectors
	TxKind      string            // kernel; "" as long as there was no stamp
	RxKind      string
	LastTurn    time.Time // when the loop last planned its next turn
}

// Snapshot is the state of a node at one moment.
type Snapshot struct {
	NICs []NICStats
}

// Snapshot copies the state. It holds a NIC's loop up for the time it takes to
// copy that NIC's counts.
func (e *Engine) Snapshot() *Snapshot {
	s := &Snapshot{NICs: make([]NICStats, len(e.nics))}
	for i, n := range e.nics {
		s.NICs[i] = n.snapshot()
	}
	return s
}

func (n *nic) snapshot() NICStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, planned := n.mono(), n.planned.Load()
	s := NICStats{NICConfig: n.cfg, KernelDelay: n.kernel.Clone(), Sessions: len(n.sessions),
		Stalled:    time.Duration(n.stalled + overshoot(now, planned)),
		SendErrors: map[string]uint64{}, Dropped: map[string]uint64{}, Missing: map[string]uint64{},
		Restarts: map[string]uint64{"sender": n.restarts}, LastTurn: n.base.Add(time.Duration(min(planned, now)))}
	if n.stamps[0] {
		s.TxKind = "kernel"
	}
	if n.stamps[1] {
		s.RxKind = "kernel"
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
	missing := [4]uint64{1: n.missing[0]}
	for _, e := range n.edges {
		for i, v := range e.Missing {
			missing[i] += v
		}
		s.Restarts["reflector"] += e.Restarts
		p := &e.peer.cfg
		es := EdgeStats{FlowCounters: e.FlowCounters, Edge: e.id, Class: n.node.Stamp.Class, Tier: p.Tier, Plane: p.Plane,
			Leaf: n.cfg.Leaf, PeerLeaf: p.Leaf, Unresolved: e.unresolved()}
		for d := range directions {
			es.OWD[d] = Delays{Kernel: e.owd[d][kernelStamps].Clone(), User: e.owd[d][userStamps].Clone()}
		}
		s.Edges = append(s.Edges, es)
	}
	for i, v := range missing {
		s.Missing["t"+strconv.Itoa(i+1)] = v
	}
	for i := range n.node.Peers {
		p := n.peers[n.node.Peers[i].Address]
		for f, v := range p.received {
			s.Received = append(s.Received, ReceivedStats{Edge: fabric.Edge{Src: p.cfg.NIC, Dst: n.cfg.NIC, Flow: f},
				Class: n.node.Stamp.Class, Tier: p.cfg.Tier, Plane: p.cfg.Plane, Received: v})
		}
	}
	for _, sock := range append(append([]*socket{}, n.senders...), n.reflector) {
		s.Sockets = append(s.Sockets, SocketStats{Name: sock.name, Drops: sock.Drops()})
	}
	return s
}

func errnoName(e syscall.Errno) string {
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return fmt.Sprintf("errno%d", int(e))
}
