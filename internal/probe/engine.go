// Package probe measures one-way delay and loss between NICs. It sends STAMP probes (RFC 8762, RFC 8972), which the
// kernel or the NIC stamps, and traces the paths of the packets. A reply is the answer of the reflecting agent to a
// probe. An agent replies only to the probes of registered peers.
//
// One loop serves all NICs of a node (loop.go). A NIC (nic.go) has a sender (sender.go) and a reflector
// (reflector.go), which share what sends batches and matches transmit stamps (stampmatch.go). What a flow's
// packets mean is decided in flow.go and session.go, without sockets or clocks. What the engine needs of its host is
// in deps.go.
package probe

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/csig"
)

// Engine probes and reflects on all NICs of a node.
type Engine struct {
	log    *slog.Logger
	wire   *wiring
	tracer *tracer
	hops   *hopProber
	turns  turnTimes
	ctx    context.Context // ends with Close
	// profileHash is that of the profile of in-band signals, which takes long for many ports.
	profileHash string
	cancel      context.CancelFunc
	wg          sync.WaitGroup

	applying sync.Mutex // held for one change of the configuration at a time
	phases   uint64     // number of assigned phases; guarded by applying

	mu     sync.Mutex
	cfg    *Config
	nics   []*nic // never changed, only replaced
	closed bool
	err    error // reason why the loop ended

	drain exchangeDrain
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
	if deps.Signals != nil {
		e.profileHash = deps.Signals.Profile.Hash()
	}
	nics, err := e.rebuildNICs(cfg, nil)
	if err != nil {
		return nil, errors.Join(err, e.closeNICs(nics), poll.Close())
	}
	e.cfg, e.nics = cfg, nics
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.tracer = newTracer(cfg.Trace, e.allNICs, log)
	if deps.KnownPath != nil {
		e.tracer.simulated = true
		e.tracer.seek, e.tracer.seekTagged = e.tracer.followKnown(deps.KnownPath), e.tracer.followKnownTagged(deps.KnownPath)
	}
	e.hops = newHopProber(e.tracer)
	e.hops.applyConfig(cfg)
	e.turns.planned.Store(e.wire.monoTime())
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

// startTracing begins to trace flows without a valid path, and to send hop-limited probes.
func (e *Engine) startTracing() {
	e.wg.Go(func() { e.tracer.run(e.ctx) })
	if s := e.wire.deps.Signals; s != nil && s.Format != csig.None {
		e.wg.Go(func() { e.seekTagDrops(e.ctx) })
	}
	if e.wire.deps.KnownPath == nil { // otherwise no switch answers
		e.wg.Go(func() { e.hops.run(e.ctx) })
	}
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
	e.hops.applyConfig(cfg)
	gone := slices.DeleteFunc(slices.Clone(old), func(n *nic) bool { return slices.Contains(nics, n) })
	return errors.Join(err, e.closeNICs(gone), e.wire.poll.Wake())
}

// rebuildNICs makes the NICs of a configuration, and reuses old ones that are the same. A NIC that cannot be opened is
// left out, and the error has the reason.
func (e *Engine) rebuildNICs(cfg *Config, old []*nic) (nics []*nic, err error) {
	e.turns.every.Store(int64(turnOf(cfg)))
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

// setError records the reason why the loop ended.
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
