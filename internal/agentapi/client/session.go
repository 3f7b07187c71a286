package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/pki"
)

// errRenew ends a session when the certificate has been replaced.
var errRenew = errors.New("the certificate was replaced")

// Limits of connections where there is another coordinator to try. A host that is gone does not answer at all.
const (
	reachWithin     = 5 * time.Second  // a TCP connection is there
	keepaliveEvery  = 10 * time.Second // the least that gRPC allows
	keepaliveWithin = 5 * time.Second
)

// dialCoordinator prepares a connection, with the certificates as they are now.
func dialCoordinator(at coordinatorAt, certificates *pki.Keeper) (*grpc.ClientConn, error) {
	return dial(at, certificates.ClientConfig(at.serverName))
}

// dial prepares a connection.
func dial(at coordinatorAt, config *tls.Config) (*grpc.ClientConn, error) {
	network, address, d := "tcp", at.address, net.Dialer{Timeout: reachWithin}
	alive := keepalive.ClientParameters{Time: keepaliveEvery, Timeout: keepaliveWithin}
	if at.alone {
		d.Timeout, alive = 0, keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	return grpc.NewClient("passthrough:///coordinator",
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return d.DialContext(ctx, network, address)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectWithin}),
		grpc.WithKeepaliveParams(alive),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(agentapi.MaxCoordinatorMessage)))
}

// session is one connection to the coordinator.
type session struct {
	*Client
	stream      agentapi.Agents_SessionClient
	certificate uint64 // version of the certificates that it began with
	beat        *time.Timer
	interval    time.Duration // between two heartbeats
	accepted    bool          // the coordinator has welcomed the agent
	stale       error         // set when another coordinator has taken over from this one
	leader      string        // address of the coordinator that leads instead, if this one has named it
}

// runSession connects once and serves the session until it ends. It always returns an error with the
// reason of the end, whether the coordinator had accepted the agent, and the leader that it named if not.
func (c *Client) runSession(ctx context.Context) (accepted bool, leader string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session{Client: c, certificate: c.cfg.Certificates.Version(), beat: time.NewTimer(time.Hour)}
	s.beat.Stop()
	defer s.beat.Stop()
	conn, err := dialCoordinator(c.coordinators.current(), c.cfg.Certificates)
	if err != nil {
		return false, "", err
	}
	defer conn.Close()
	if s.stream, err = agentapi.NewAgentsClient(conn).Session(ctx); err != nil {
		return false, "", err
	}
	if err := s.sendHello(); err != nil {
		_, err = s.stream.Recv() // the error states the reason
		return false, "", err
	}
	received, ended := make(chan *agentapi.CoordinatorMessage), make(chan error, 1)
	var receiver sync.WaitGroup
	defer func() { cancel(); receiver.Wait() }()
	receiver.Go(func() { ended <- s.receive(ctx, received) })
	c.reporter.beginSession(time.Now())
	defer c.clock.endSession()
	defer c.links.setSession(noSession)
	err = s.serve(received, ended)
	return s.accepted, s.leader, err
}

// receive passes the coordinator's messages on until the stream or ctx ends, and returns the error of
// that.
func (s *session) receive(ctx context.Context, received chan<- *agentapi.CoordinatorMessage) error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		select {
		case received <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendHello sends the first message.
func (s *session) sendHello() error {
	in, err := s.agent.Interfaces()
	if err != nil {
		s.cfg.Log.Warn("cannot list the interfaces", "err", err)
	}
	s.reporter.interfaces = in
	hello := &agentapi.Hello{Node: s.cfg.Node, Instance: s.instance, BootId: s.cfg.BootID, Version: s.cfg.Version, Web: s.cfg.Web,
		Interfaces: in, Applied: s.assignment.applied, OwnConfiguration: s.cfg.OwnConfiguration,
		Life: proto.Uint64(s.agent.Life()), LifeAssigned: s.lives.given, Epoch: s.epochs.greatest, EpochProof: s.epochs.proof}
	return s.stream.Send(&agentapi.AgentMessage{Body: &agentapi.AgentMessage_Hello{Hello: hello}})
}

// serve handles messages, clock reports and timers until the stream has ended or cannot be used.
func (s *session) serve(received <-chan *agentapi.CoordinatorMessage, ended <-chan error) error {
	for {
		answer := false
		select {
		case r := <-s.clock.reports:
			if err := sendMessage(s.stream, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Clock{Clock: r}}); err != nil {
				return err
			}
			s.clock.sent.Add(1)
		case err := <-ended:
			return err
		case <-s.assignment.timer.C:
			s.assignment.end()
		case <-s.beat.C:
			if err := s.sendChanges(); err != nil {
				return err
			}
			answer = true
			s.beat.Reset(s.interval)
		case m := <-received:
			answer = s.handleMessage(m)
		}
		if s.stale != nil {
			return s.stale
		}
		if answer {
			if err := s.sendHeartbeat(); err != nil {
				return err
			}
		}
	}
}

// sendChanges repeats what failed before, and sends the interfaces and traces that have changed. It
// returns errRenew when the certificate has been replaced.
func (s *session) sendChanges() error {
	if s.cfg.Certificates.Version() != s.certificate {
		return errRenew
	}
	if s.assignment.failure != "" {
		s.assignment.begin()
	}
	if s.state.unsaved {
		s.saveState()
	}
	if in, err := s.agent.Interfaces(); err != nil {
		s.cfg.Log.Warn("cannot list the interfaces", "err", err)
	} else if err := s.reporter.sendInterfaces(s.stream, in); err != nil {
		return err
	}
	version, traces := s.agent.Traces()
	return s.reporter.sendTraces(s.stream, version, traces)
}

// handleMessage processes a message of the coordinator. It reports whether a heartbeat has to answer
// it.
func (s *session) handleMessage(m *agentapi.CoordinatorMessage) (answer bool) {
	switch b := m.GetBody().(type) {
	case *agentapi.CoordinatorMessage_Welcome:
		s.begin(b.Welcome)
	case *agentapi.CoordinatorMessage_Refused:
		if s.leader = b.Refused.GetLeader(); !b.Refused.GetNotLeader() {
			s.cfg.Log.Error("the coordinator refuses this agent", "reason", b.Refused.GetReason())
		}
	case *agentapi.CoordinatorMessage_Keys:
		if !s.cfg.OwnConfiguration {
			s.takeKeys(b.Keys)
			return true
		}
	case *agentapi.CoordinatorMessage_Assignment:
		if !s.cfg.OwnConfiguration {
			s.takeAssignment(b.Assignment)
			return true
		}
	case *agentapi.CoordinatorMessage_Clock:
		if u := b.Clock; u.GetFormat() == agentapi.ClockFormat && len(u.GetUpdate()) <= agentapi.MaxClockUpdate {
			s.agent.Clock(u, true)
		}
	case *agentapi.CoordinatorMessage_Lives:
		s.takeLives(b.Lives)
		s.saveState()
	case *agentapi.CoordinatorMessage_PathsWanted:
		s.reporter.forgetTraces()
	}
	return false
}

// begin sets the session up as the coordinator's first message says.
func (s *session) begin(w *agentapi.Welcome) {
	if !s.epochs.accepts(w.GetEpoch()) {
		s.stale = fmt.Errorf("the coordinator has the epoch %d, and one with the epoch %d has taken over from it", w.GetEpoch(), s.epochs.greatest)
		return
	}
	s.accepted = true
	if s.epochs.take(w.GetEpoch(), w.GetEpochProof()) {
		s.saveState()
	}
	s.interval = min(max(time.Duration(w.GetHeartbeatNs()), heartbeatLow), heartbeatHigh)
	s.clock.connected.Store(true)
	s.links.setSession(s.coordinators.at)
	s.beat.Reset(time.Duration(mathrand.Int64N(int64(s.interval))))
	if life := w.GetLife(); life > s.agent.Life() {
		s.lives.given = true
		s.agent.TakeLives(life, nil)
	}
	s.cfg.Log.Info("connected to the coordinator", "coordinator", w.GetVersion())
}

// sendHeartbeat sends the state of the agent.
func (s *session) sendHeartbeat() error {
	h := &agentapi.Heartbeat{Applied: s.assignment.applied, UnixTimeNs: time.Now().UnixNano(), ApplyError: s.assignment.failure}
	s.agent.Heartbeat(h)
	h.SilentEdges = h.SilentEdges[:min(len(h.SilentEdges), agentapi.MaxSilentEdges)]
	if len(h.ApplyError) > 1024 {
		h.ApplyError = strings.ToValidUTF8(h.ApplyError[:1024], "")
	}
	return sendMessage(s.stream, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Heartbeat{Heartbeat: h}})
}
