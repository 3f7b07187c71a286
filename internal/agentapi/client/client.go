// Package client is an agent's side of the protocol: it connects to the coordinator again and again,
// receives assignments, keys and clock updates, and reports the agent's state and its measurements of
// clocks. The agent itself decides what an assignment means.
//
// A new assignment is applied in two steps. At once the agent answers all probes that it answered
// before and all that it is to answer, and stops sending probes that it is not to send any more. After
// the changeover, when the far nodes have the change as well, it begins with the new probes and stops
// answering the old ones.
package client

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
)

// Agent represents the agent that the client connects to the coordinator. Its methods but Clock are called from
// one goroutine, and all must return soon.
type Agent interface {
	// Apply puts an assignment and the keys of its peers to use, either completely or not at all.
	Apply(*agentapi.Assignment, *agentapi.Keys) error
	// Interfaces returns the interfaces of the host in a stable order.
	Interfaces() ([]*agentapi.Interface, error)
	// Heartbeat fills in the silent edges and stalls.
	Heartbeat(*agentapi.Heartbeat)
	// Traces returns the last trace of every edge. The version changes when a trace does.
	Traces() (version uint64, traces []fabric.Trace)
	// Clock passes on a clock update. leads is set if it is of the coordinator that the agent has its session with. It is
	// called from any goroutine.
	Clock(u *agentapi.ClockUpdate, leads bool)
	// Life returns the number of the agent's life. It returns 0 if the agent has none.
	Life() uint64
	// TakeLives passes on life numbers from the coordinator: the agent's own, unless it is 0, and those
	// of other nodes.
	TakeLives(own uint64, peers map[string]uint64)
}

// Config has the addresses of the coordinators and the identity of the agent.
type Config struct {
	Addresses    []string // host:port, or unix:PATH; they are tried in turn
	ServerName   string   // name in the coordinators' certificates; if empty, the host of the address, or "coordinator" at a Unix socket
	Certificates *pki.Keeper
	Node         string
	Version      string
	BootID       string
	Web          *agentapi.WebEndpoint
	StateFile    string // if empty, no state is kept
	Log          *slog.Logger
	// OwnConfiguration is set for an agent that probes by its own configuration and connects for clock
	// synchronization only. The coordinator assigns nothing to it.
	OwnConfiguration bool

	// BackoffLow and BackoffHigh bound the pause between attempts to connect. If they are 0, the bounds
	// are 200 ms and 30 s.
	BackoffLow, BackoffHigh time.Duration
}

// Limits of the intervals that the coordinator sets, and of what is sent.
const (
	heartbeatLow    = 50 * time.Millisecond
	heartbeatHigh   = 5 * time.Minute
	connectWithin   = 60 * time.Second // includes the time in the coordinator's queue of handshakes
	settledAfter    = 10 * time.Second // a session that lasted this long makes the next pause short
	bufferSize      = 4 << 10
	resendWithin    = time.Minute // reports sent in the last minute of a broken session are sent again
	tracesPerReport = 256
)

// Client is the agent's side of the protocol. Run must be called once. ReportClock, ClockReports and
// StateWrites may be called from any goroutine.
type Client struct {
	cfg          Config
	coordinators coordinators
	agent        Agent
	instance     []byte
	assignment   changeover
	lives        lifeBook
	epochs       epochBook
	state        stateFile
	reporter     pathReporter
	clock        clockQueue
	links        clockLinks
}

// lifeBook is what a coordinator has said of life numbers.
type lifeBook struct {
	peers *agentapi.Lives
	given bool // a coordinator has given this process its life number
}

// epochBook has the greatest epoch of a leader that the agent has seen. What a coordinator with a smaller one says is not
// done: another coordinator has taken over from it.
type epochBook struct {
	greatest uint64 // 0 before the first
	proof    []byte // came with it, and goes to every coordinator
}

// accepts reports whether a coordinator with an epoch may lead. 0 is that of a version without epochs.
func (b *epochBook) accepts(epoch uint64) bool { return epoch == 0 || epoch >= b.greatest }

// take takes the epoch of a coordinator that leads, and reports whether it is new.
func (b *epochBook) take(epoch uint64, proof []byte) bool {
	if epoch <= b.greatest || epoch > agentapi.MaxEpoch || len(proof) > agentapi.MaxEpochProof {
		return false
	}
	b.greatest, b.proof = epoch, proof
	return true
}

// New returns a client after it has applied the assignment of the state file. A state file that cannot
// be used is no error, since the coordinator has all of its content.
func New(cfg Config, agent Agent) (*Client, error) {
	if err := fabric.CheckName(cfg.Node); err != nil {
		return nil, err
	}
	if cfg.BackoffLow <= 0 {
		cfg.BackoffLow = 200 * time.Millisecond
	}
	if cfg.BackoffHigh <= 0 {
		cfg.BackoffHigh = 30 * time.Second
	}
	at, err := newCoordinators(cfg.Addresses, cfg.ServerName)
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, coordinators: at, agent: agent, instance: make([]byte, agentapi.InstanceSize), assignment: newChangeover(agent, cfg.Log),
		state: stateFile{path: cfg.StateFile, node: cfg.Node, log: cfg.Log}, reporter: pathReporter{reported: map[string]reportedTrace{}},
		clock: clockQueue{reports: make(chan *agentapi.ClockReport, 1)}}
	c.links = newClockLinks(at.list)
	rand.Read(c.instance)
	if cfg.StateFile != "" {
		c.restoreState()
	}
	return c, nil
}

func (c *Client) restoreState() {
	kept, err := readState(c.cfg.StateFile, c.cfg.Node)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return
	case err != nil:
		c.cfg.Log.Warn("cannot use the kept assignment", "err", err)
		return
	}
	c.assignment.target, c.assignment.keys, c.epochs = kept.assignment, kept.keys, kept.epochs
	c.takeLives(kept.lives)
	c.assignment.apply(kept.assignment, kept.keys)
	c.cfg.Log.Info("using the kept assignment", "version", kept.assignment.GetVersion(), "edges", len(kept.assignment.GetEdges()), "err", c.assignment.failure)
}

// Run connects to the coordinator that leads, again after every failure, until ctx ends. It pauses after a session that
// ended, and when each of the coordinators has refused.
func (c *Client) Run(ctx context.Context) {
	var links sync.WaitGroup
	defer links.Wait()
	for _, l := range c.links.list {
		links.Go(func() { c.runClockLink(ctx, l) })
	}
	pause := c.cfg.BackoffLow
	for ctx.Err() == nil {
		began := time.Now()
		accepted, leader, err := c.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRenew) {
			c.cfg.Log.Info("connecting again with the new certificate")
			continue
		}
		address := c.coordinators.current().address
		if accepted {
			c.coordinators.accept()
		} else if c.coordinators.next(leader) {
			c.cfg.Log.Info("no session with this coordinator; trying the next one", "address", address, "err", status.Convert(err).Message(), "next", c.coordinators.current().address)
			continue
		}
		if accepted && time.Since(began) >= settledAfter {
			pause = c.cfg.BackoffLow
		}
		wait := pause/2 + time.Duration(mathrand.Int64N(int64(pause)))
		c.cfg.Log.Warn("no session with the coordinator; probing continues", "address", address, "err", status.Convert(err).Message(), "again_in", wait)
		pause = min(pause*8/5, c.cfg.BackoffHigh)
		c.waitFor(ctx, wait)
	}
}

// waitFor waits, and ends a changeover that is due meanwhile. It returns early when ctx ends.
func (c *Client) waitFor(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-c.assignment.timer.C:
			c.assignment.end()
		}
	}
}

// ReportClock sends a clock report to each coordinator if that can be done at once. If there is none, or the
// coordinators do not keep up, it drops and counts the report. It does not keep a reference to samples.
func (c *Client) ReportClock(samples []byte) {
	if len(samples) > agentapi.MaxClockReport {
		c.clock.dropped.Add(1)
		return
	}
	r := &agentapi.ClockReport{Format: agentapi.ClockFormat, Samples: slices.Clone(samples)}
	queued := c.clock.add(r)
	for _, l := range c.links.list {
		queued = l.queue.add(r) || queued
	}
	if !queued {
		c.clock.dropped.Add(1)
	}
}

// ClockReports returns the number of clock reports sent, to any coordinator, and of those dropped.
func (c *Client) ClockReports() (sent, dropped uint64) {
	sent, dropped = c.clock.sent.Load(), c.clock.dropped.Load()
	for _, l := range c.links.list {
		sent += l.queue.sent.Load()
	}
	return sent, dropped
}

// takeLives passes the life numbers of peers to the agent. It does nothing if l is nil.
func (c *Client) takeLives(l *agentapi.Lives) {
	c.lives.peers = l
	peers := make(map[string]uint64, len(l.GetNodes()))
	for _, n := range l.GetNodes() {
		if n.GetLife() <= agentapi.MaxLife {
			peers[n.GetNode()] = n.GetLife()
		}
	}
	c.agent.TakeLives(0, peers)
}

// saveState writes the state file. A failed write is repeated with every heartbeat.
func (c *Client) saveState() {
	if c.assignment.target != nil {
		c.state.write(keptState{c.assignment.target, c.assignment.keys, c.lives.peers, c.epochs})
	}
}

// StateWrites returns the number of successful and failed writes of the state file.
func (c *Client) StateWrites() (done, failed uint64) {
	return c.state.done.Load(), c.state.failed.Load()
}

// takeKeys takes keys from the coordinator.
func (c *Client) takeKeys(k *agentapi.Keys) {
	if c.assignment.takeKeys(k) {
		c.saveState()
	}
}

// takeAssignment takes an assignment from the coordinator.
func (c *Client) takeAssignment(a *agentapi.Assignment) {
	if !c.epochs.accepts(a.GetEpoch()) {
		c.cfg.Log.Error("the assignment is not applied: a coordinator with a greater epoch has taken over", "epoch", a.GetEpoch(), "greatest", c.epochs.greatest)
		return
	}
	if c.assignment.takeAssignment(a, c.cfg.Node) {
		c.saveState()
		c.cfg.Log.Info("assignment received", "version", a.GetVersion(), "peers", len(a.GetPeers()), "edges", len(a.GetEdges()), "answers", len(a.GetAnswers()))
	}
}
