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
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
)

// Agent represents the agent that the client connects to the coordinator. Its methods are called from
// one goroutine, and must return soon.
type Agent interface {
	// Apply puts an assignment and the keys of its peers to use, either completely or not at all.
	Apply(*agentapi.Assignment, *agentapi.Keys) error
	// Interfaces returns the interfaces of the host in a stable order.
	Interfaces() ([]*agentapi.Interface, error)
	// Heartbeat fills in the silent edges and stalls.
	Heartbeat(*agentapi.Heartbeat)
	// Traces returns the last trace of every edge. The version changes when a trace does.
	Traces() (version uint64, traces []fabric.Trace)
	// Clock passes on a clock update.
	Clock(*agentapi.ClockUpdate)
	// Life returns the number of the agent's life. It returns 0 if the agent has none.
	Life() uint64
	// TakeLives passes on life numbers from the coordinator: the agent's own, unless it is 0, and those
	// of other nodes.
	TakeLives(own uint64, peers map[string]uint64)
}

// Config has the address of the coordinator and the identity of the agent.
type Config struct {
	Address      string // host:port, or unix:PATH
	ServerName   string // name in the coordinator's certificate; if empty, the host of the address, or "coordinator" at a Unix socket
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

// unixServerName is the name in the coordinator's certificate when the address has no host.
const unixServerName = "coordinator"

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
	cfg      Config
	agent    Agent
	instance []byte

	target          *agentapi.Assignment // the newest that was received
	keys            *agentapi.Keys
	working         *agentapi.Assignment // the assignment that the agent applied, possibly a step on the way to target
	workingKeys     *agentapi.Keys
	applied         *agentapi.Applied
	lives           *agentapi.Lives
	assigned        bool   // a coordinator has given this process its life number
	applyError      string // why the agent could not apply the assignment
	changeoverTimer *time.Timer

	interfaces   []*agentapi.Interface
	reported     map[string]reportedTrace
	pathsVersion uint64
	resendPaths  bool
	stateUnsaved bool // the last write of the state file failed

	clockReports                          chan *agentapi.ClockReport // buffers one report
	connected                             atomic.Bool                // there is a session that accepts reports
	clockReportsSent, clockReportsDropped atomic.Uint64
	stateWritesDone, stateWritesFailed    atomic.Uint64
}

type reportedTrace struct {
	fingerprint string
	at          time.Time
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
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(cfg.Address)
		switch {
		case strings.HasPrefix(cfg.Address, "unix:"):
			cfg.ServerName = unixServerName
		case err != nil || host == "":
			return nil, fmt.Errorf("coordinator address %q: want host:port or unix:PATH", cfg.Address)
		default:
			cfg.ServerName = host
		}
	}
	c := &Client{cfg: cfg, agent: agent, instance: make([]byte, agentapi.InstanceSize), applied: &agentapi.Applied{}, reported: map[string]reportedTrace{},
		changeoverTimer: time.NewTimer(0), clockReports: make(chan *agentapi.ClockReport, 1)}
	c.changeoverTimer.Stop()
	rand.Read(c.instance)
	if cfg.StateFile != "" {
		c.restoreState()
	}
	return c, nil
}

func (c *Client) restoreState() {
	a, k, lives, err := readState(c.cfg.StateFile, c.cfg.Node)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return
	case err != nil:
		c.cfg.Log.Warn("cannot use the kept assignment", "err", err)
		return
	}
	c.target, c.keys = a, k
	c.takeLives(lives)
	c.applyAssignment(a, k)
	c.cfg.Log.Info("using the kept assignment", "version", a.GetVersion(), "edges", len(a.GetEdges()), "err", c.applyError)
}

// applyAssignment gives the agent an assignment with its keys, and logs a failure.
func (c *Client) applyAssignment(a *agentapi.Assignment, k *agentapi.Keys) {
	if err := c.agent.Apply(a, k); err != nil {
		if c.applyError != err.Error() {
			c.cfg.Log.Error("cannot apply the assignment; trying again later", "version", a.GetVersion(), "err", err)
		}
		c.applyError = err.Error()
		return
	}
	c.applyError, c.working, c.workingKeys = "", a, k
	c.applied = &agentapi.Applied{Version: c.target.GetVersion(), Hash: c.target.GetHash(), KeyIds: k.GetIds()}
}

// beginChangeover applies the first step from the working assignment to the target, which does not
// disturb other agents.
func (c *Client) beginChangeover() {
	if c.target == nil {
		if c.keys != nil {
			c.applied = &agentapi.Applied{KeyIds: c.keys.GetIds()}
		}
		return
	}
	step := changeoverStep(c.working, c.target)
	if step == nil {
		c.changeoverTimer.Stop()
		c.applyAssignment(c.target, c.keys)
		return
	}
	c.applyAssignment(step, joinKeys(c.keys, c.workingKeys))
	c.changeoverTimer.Reset(time.Duration(c.target.GetChangeoverNs()))
}

// endChangeover applies the target assignment.
func (c *Client) endChangeover() {
	if c.target != nil {
		c.applyAssignment(c.target, c.keys)
	}
}

// Run connects to the coordinator, again after every failure, until ctx ends.
func (c *Client) Run(ctx context.Context) {
	pause := c.cfg.BackoffLow
	for ctx.Err() == nil {
		began := time.Now()
		err := c.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRenew) {
			c.cfg.Log.Info("connecting again with the new certificate")
			continue
		}
		if time.Since(began) >= settledAfter {
			pause = c.cfg.BackoffLow
		}
		wait := pause/2 + time.Duration(mathrand.Int64N(int64(pause)))
		c.cfg.Log.Warn("no session with the coordinator; probing continues", "address", c.cfg.Address, "err", status.Convert(err).Message(), "again_in", wait)
		pause = min(pause*8/5, c.cfg.BackoffHigh)
		timer := time.NewTimer(wait)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				waiting = false
			case <-timer.C:
				waiting = false
			case <-c.changeoverTimer.C:
				c.endChangeover()
			}
		}
		timer.Stop()
	}
}

// ReportClock sends a clock report if that can be done at once. Without a coordinator, or when the
// coordinator does not keep up, it drops and counts the report. It does not keep a reference to
// samples.
func (c *Client) ReportClock(samples []byte) {
	if c.connected.Load() && len(samples) <= agentapi.MaxClockReport {
		select {
		case c.clockReports <- &agentapi.ClockReport{Format: agentapi.ClockFormat, Samples: slices.Clone(samples)}:
			return
		default:
		}
	}
	c.clockReportsDropped.Add(1)
}

// ClockReports returns the number of clock reports sent and dropped.
func (c *Client) ClockReports() (sent, dropped uint64) {
	return c.clockReportsSent.Load(), c.clockReportsDropped.Load()
}

// errRenew ends a session when the certificate has been replaced.
var errRenew = errors.New("the certificate was replaced")

func (c *Client) dialCoordinator() (*grpc.ClientConn, error) {
	network, address := "tcp", c.cfg.Address
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	return grpc.NewClient("passthrough:///coordinator",
		grpc.WithTransportCredentials(credentials.NewTLS(c.cfg.Certificates.ClientConfig(c.cfg.ServerName))),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectWithin}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(agentapi.MaxCoordinatorMessage)))
}

// runSession connects once and serves the session until it ends. It always returns an error with the
// reason of the end.
func (c *Client) runSession(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	certificate := c.cfg.Certificates.Version()
	conn, err := c.dialCoordinator()
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := agentapi.NewAgentsClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	if c.interfaces, err = c.agent.Interfaces(); err != nil {
		c.cfg.Log.Warn("cannot list the interfaces", "err", err)
	}
	hello := &agentapi.Hello{Node: c.cfg.Node, Instance: c.instance, BootId: c.cfg.BootID, Version: c.cfg.Version, Web: c.cfg.Web,
		Interfaces: c.interfaces, Applied: c.applied, OwnConfiguration: c.cfg.OwnConfiguration,
		Life: proto.Uint64(c.agent.Life()), LifeAssigned: c.assigned}
	if err := stream.Send(&agentapi.AgentMessage{Body: &agentapi.AgentMessage_Hello{Hello: hello}}); err != nil {
		_, err = stream.Recv() // the error states the reason
		return err
	}
	received, ended := make(chan *agentapi.CoordinatorMessage), make(chan error, 1)
	var receiver sync.WaitGroup
	defer func() { cancel(); receiver.Wait() }()
	receiver.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case received <- m:
			case <-ctx.Done():
				return
			}
		}
	})

	lost := time.Now().Add(-resendWithin)
	for e, r := range c.reported {
		if r.at.After(lost) {
			delete(c.reported, e)
		}
	}
	c.resendPaths = true // traces changed while there was no session
	beat := time.NewTimer(time.Hour)
	beat.Stop()
	defer beat.Stop()
	interval := time.Duration(0)
	defer func() {
		c.connected.Store(false)
		select {
		case <-c.clockReports: // the report belongs to a time that is over when the next session begins
			c.clockReportsDropped.Add(1)
		default:
		}
	}()
	for {
		answer := false
		select {
		case r := <-c.clockReports:
			if err := sendMessage(stream, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Clock{Clock: r}}); err != nil {
				return err
			}
			c.clockReportsSent.Add(1)
		case err := <-ended:
			return err
		case <-c.changeoverTimer.C:
			c.endChangeover()
		case <-beat.C:
			if c.cfg.Certificates.Version() != certificate {
				return errRenew
			}
			if c.applyError != "" {
				c.beginChangeover()
			}
			if c.stateUnsaved {
				c.saveState()
			}
			if err := c.sendChanges(stream); err != nil {
				return err
			}
			answer = true
			beat.Reset(interval)
		case m := <-received:
			switch b := m.GetBody().(type) {
			case *agentapi.CoordinatorMessage_Welcome:
				interval = min(max(time.Duration(b.Welcome.GetHeartbeatNs()), heartbeatLow), heartbeatHigh)
				c.connected.Store(true)
				beat.Reset(time.Duration(mathrand.Int64N(int64(interval))))
				if life := b.Welcome.GetLife(); life > c.agent.Life() {
					c.assigned = true
					c.agent.TakeLives(life, nil)
				}
				c.cfg.Log.Info("connected to the coordinator", "coordinator", b.Welcome.GetVersion())
			case *agentapi.CoordinatorMessage_Refused:
				c.cfg.Log.Error("the coordinator refuses this agent", "reason", b.Refused.GetReason())
			case *agentapi.CoordinatorMessage_Keys:
				answer = !c.cfg.OwnConfiguration && c.takeKeys(b.Keys)
			case *agentapi.CoordinatorMessage_Assignment:
				answer = !c.cfg.OwnConfiguration && c.takeAssignment(b.Assignment)
			case *agentapi.CoordinatorMessage_Clock:
				if u := b.Clock; u.GetFormat() == agentapi.ClockFormat && len(u.GetUpdate()) <= agentapi.MaxClockUpdate {
					c.agent.Clock(u)
				}
			case *agentapi.CoordinatorMessage_Lives:
				c.takeLives(b.Lives)
				c.saveState()
			case *agentapi.CoordinatorMessage_PathsWanted:
				clear(c.reported)
				c.resendPaths = true
			}
		}
		if answer {
			if err := c.sendHeartbeat(stream); err != nil {
				return err
			}
		}
	}
}

// takeLives passes the life numbers of peers to the agent. It does nothing if l is nil.
func (c *Client) takeLives(l *agentapi.Lives) {
	c.lives = l
	peers := make(map[string]uint64, len(l.GetNodes()))
	for _, n := range l.GetNodes() {
		if n.GetLife() <= agentapi.MaxLife {
			peers[n.GetNode()] = n.GetLife()
		}
	}
	c.agent.TakeLives(0, peers)
}

func (c *Client) takeKeys(k *agentapi.Keys) (taken bool) {
	if err := checkKeys(k); err != nil {
		c.cfg.Log.Error("cannot use the received keys", "err", err)
		c.applyError = err.Error()
		return true
	}
	c.keys = k
	if c.target != nil && c.working != nil {
		// The assignment that needs the new keys comes next. The keys in use stay.
		c.applyAssignment(c.working, joinKeys(k, c.workingKeys))
	} else {
		c.beginChangeover()
	}
	c.saveState()
	return true
}

func (c *Client) takeAssignment(a *agentapi.Assignment) (taken bool) {
	if err := checkAssignment(a, c.cfg.Node); err != nil {
		c.cfg.Log.Error("cannot use the received assignment", "err", err)
		c.applyError = err.Error()
		return true
	}
	c.target = a
	c.beginChangeover()
	c.saveState()
	c.cfg.Log.Info("assignment received", "version", a.GetVersion(), "peers", len(a.GetPeers()), "edges", len(a.GetEdges()), "answers", len(a.GetAnswers()))
	return true
}

// saveState writes the state file. A failed write is repeated with every heartbeat.
func (c *Client) saveState() {
	if c.cfg.StateFile == "" || c.target == nil {
		return
	}
	if err := writeState(c.cfg.StateFile, c.cfg.Node, c.target, c.keys, c.lives); err != nil {
		c.stateWritesFailed.Add(1)
		if !c.stateUnsaved {
			c.cfg.Log.Error("cannot write the state file: until a later write succeeds, this agent needs the coordinator after a restart", "file", c.cfg.StateFile, "err", err)
		}
		c.stateUnsaved = true
		return
	}
	c.stateWritesDone.Add(1)
	if c.stateUnsaved {
		c.cfg.Log.Info("the state file is written again", "file", c.cfg.StateFile)
	}
	c.stateUnsaved = false
}

// StateWrites returns the number of successful and failed writes of the state file.
func (c *Client) StateWrites() (done, failed uint64) {
	return c.stateWritesDone.Load(), c.stateWritesFailed.Load()
}

func (c *Client) sendHeartbeat(stream agentapi.Agents_SessionClient) error {
	h := &agentapi.Heartbeat{Applied: c.applied, UnixTimeNs: time.Now().UnixNano(), ApplyError: c.applyError}
	c.agent.Heartbeat(h)
	h.SilentEdges = h.SilentEdges[:min(len(h.SilentEdges), agentapi.MaxSilentEdges)]
	if len(h.ApplyError) > 1024 {
		h.ApplyError = strings.ToValidUTF8(h.ApplyError[:1024], "")
	}
	return sendMessage(stream, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Heartbeat{Heartbeat: h}})
}

// sendChanges sends the interfaces and traces that have changed.
func (c *Client) sendChanges(stream agentapi.Agents_SessionClient) error {
	in, err := c.agent.Interfaces()
	if err != nil {
		c.cfg.Log.Warn("cannot list the interfaces", "err", err)
	} else if !slices.EqualFunc(in, c.interfaces, func(a, b *agentapi.Interface) bool { return proto.Equal(a, b) }) {
		c.interfaces = in
		if err := sendMessage(stream, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: in}}}); err != nil {
			return err
		}
	}
	version, traces := c.agent.Traces()
	if version == c.pathsVersion && !c.resendPaths {
		return nil
	}
	for len(traces) > 0 {
		part := &agentapi.PathReport{}
		for len(traces) > 0 && len(part.Traces) < tracesPerReport {
			t := traces[0]
			traces = traces[1:]
			f := pathFingerprint(t)
			if c.reported[t.Edge].fingerprint == f {
				continue
			}
			c.reported[t.Edge] = reportedTrace{f, time.Now()}
			part.Traces = append(part.Traces, traceMessage(t))
		}
		if len(part.Traces) == 0 {
			continue
		}
		if err := sendMessage(stream, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: part}}); err != nil {
			return err
		}
	}
	c.pathsVersion, c.resendPaths = version, false
	return nil
}

// sendMessage sends a message. Its error does not state why the stream broke: the receiver gets the
// reason, and ends the session with it.
func sendMessage(stream agentapi.Agents_SessionClient, m *agentapi.AgentMessage) error {
	if err := stream.Send(m); err != nil {
		return fmt.Errorf("the stream broke: %w", err)
	}
	return nil
}

// pathFingerprint returns a text that changes when the path of a trace does.
func pathFingerprint(t fabric.Trace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %t %t", t.State, t.Reached, t.Balanced)
	for _, h := range t.Hops {
		fmt.Fprintf(&b, " %d %s", h.TTL, h.Address)
	}
	return b.String()
}

func traceMessage(t fabric.Trace) *agentapi.Trace {
	out := &agentapi.Trace{Edge: t.Edge, TracedAtUnixNs: t.TracedAt.UnixNano(), Reached: t.Reached, Balanced: t.Balanced}
	switch t.State {
	case fabric.PathValid:
		out.State = agentapi.PathState_PATH_STATE_VALID
	case fabric.PathStale:
		out.State = agentapi.PathState_PATH_STATE_STALE
	}
	for i, h := range t.Hops {
		if i == agentapi.MaxHops {
			break
		}
		m := &agentapi.Hop{Ttl: uint32(h.TTL)}
		if h.Address.IsValid() {
			m.Address = h.Address.AsSlice()
		}
		if h.RTTNS != nil && *h.RTTNS > 0 {
			m.RttNs = uint64(*h.RTTNS)
		}
		out.Hops = append(out.Hops, m)
	}
	return out
}
