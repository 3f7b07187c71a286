package coordinator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
)

// Limits of connections.
const (
	bufferSize      = 4 << 10 // octets of a connection's buffer in each direction; messages may be larger
	streamsPerAgent = 4
)

// Certificates decide which clients are accepted. Their answers change when their files do.
type Certificates interface {
	// ServerConfig returns a configuration that requires a certificate of the client.
	ServerConfig() *tls.Config
	// ClientConfig returns a configuration for one connection to a server of that name.
	ClientConfig(serverName string) *tls.Config
	// Version returns a number that changes when the accepted certificates do.
	Version() uint64
	// Verify returns an error if a client with this chain, its own certificate first, would not be
	// accepted now.
	Verify(chain []*x509.Certificate) error
}

// Listen opens the address of --agents.listen-address: host:port or unix:PATH. It replaces a socket
// file without a listener.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return lc.Listen(ctx, "tcp", address)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		var d net.Dialer
		if conn, err := d.DialContext(ctx, "unix", path); err == nil {
			conn.Close()
			return nil, fmt.Errorf("listen on %s: another process listens on it", address)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
	}
	return lc.Listen(ctx, "unix", path)
}

// Server serves the sessions of agents.
type Server struct {
	grpc         *grpc.Server
	c            *Coordinator
	certificates Certificates
	admission    *admission
	anonymous    *anonymousClients
	wg           sync.WaitGroup
	agentapi.UnimplementedAgentsServer
}

// NewServer returns a server that requires certificates of its clients, except where they enroll: enrollment signs
// certificates, and is nil if there is no such service. From then on the coordinator ends sessions whose certificates
// are no longer accepted.
func NewServer(c *Coordinator, certificates Certificates, enrollment agentapi.EnrollmentServer) *Server {
	s := &Server{c: c, certificates: certificates, admission: newAdmission(c.opts.HandshakesPerAddress, c.unfinishedMost), anonymous: newAnonymousClients()}
	c.server.start(certificates, s.admission)
	config := certificates.ServerConfig()
	if enrollment != nil {
		config = withoutClientCertificate(config)
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(&boundedCreds{credentials.NewTLS(config), s.admission, s.anonymous}),
		grpc.UnaryInterceptor(s.guardCall), grpc.StreamInterceptor(s.guardStream),
		grpc.ConnectionTimeout(connectWithin),
		grpc.ReadBufferSize(bufferSize), grpc.WriteBufferSize(bufferSize),
		grpc.MaxRecvMsgSize(agentapi.MaxAgentMessage), grpc.MaxSendMsgSize(agentapi.MaxCoordinatorMessage),
		grpc.MaxConcurrentStreams(streamsPerAgent), grpc.MaxHeaderListSize(16<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	agentapi.RegisterAgentsServer(s.grpc, s)
	agentapi.RegisterMaintenanceServer(s.grpc, maintenanceServer{Server: s})
	if c.leadership.paired {
		agentapi.RegisterReplicationServer(s.grpc, replicationServer{Server: s})
	}
	if enrollment != nil {
		agentapi.RegisterEnrollmentServer(s.grpc, leaderEnrollment{enrollment, c})
	}
	return s
}

// withoutClientCertificate returns a configuration that accepts clients without a certificate as well. A certificate that
// a client sends has to be accepted all the same.
func withoutClientCertificate(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.ClientAuth = tls.VerifyClientCertIfGiven
	if each := c.GetConfigForClient; each != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			own, err := each(h)
			if err != nil || own == nil {
				return own, err
			}
			own = own.Clone()
			own.ClientAuth = tls.VerifyClientCertIfGiven
			return own, nil
		}
	}
	return c
}

// Serve accepts agents until Stop.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil // Stop came first
	}
	return err
}

// Stop ends all sessions and waits for them.
func (s *Server) Stop() {
	s.c.mu.Lock()
	for _, a := range s.c.registry.agents {
		if a.session != nil {
			a.session.endWith(errStopping)
		}
	}
	s.c.mu.Unlock()
	s.admission.stop()
	s.grpc.Stop()
	s.wg.Wait()
}

// clientIdentity returns the identity in the certificate of a stream's client. It returns an error
// unless the certificate is accepted now: the connection may be older than the list of authorities, or
// of revoked certificates.
func (s *Server) clientIdentity(ctx context.Context) (identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return identity{}, status.Error(codes.Unauthenticated, "the connection has no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return identity{}, status.Error(codes.Unauthenticated, "the client has no certificate")
	}
	chain := info.State.PeerCertificates
	if err := s.certificates.Verify(chain); err != nil {
		return identity{}, status.Errorf(codes.Unauthenticated, "the certificate is not accepted: %v", err)
	}
	id := identity{names: slices.Clone(chain[0].DNSNames), chain: chain, expires: chain[0].NotAfter}
	for _, ip := range chain[0].IPAddresses {
		id.names = append(id.names, ip.String())
	}
	if a, ok := p.Addr.(*net.TCPAddr); ok {
		id.from = a.AddrPort().Addr().Unmap().WithZone("").String()
	}
	return id, nil
}

// Session serves one agent. The handler sends. A second goroutine receives, and ends with the stream,
// which ends when the handler returns.
func (s *Server) Session(stream agentapi.Agents_SessionServer) error {
	id, err := s.clientIdentity(stream.Context())
	if err != nil {
		return err
	}
	type first struct {
		m   *agentapi.AgentMessage
		err error
	}
	hello, accepted := make(chan first, 1), make(chan *session, 1)
	defer close(accepted)
	s.wg.Go(func() {
		m, err := stream.Recv()
		hello <- first{m, err}
		ses := <-accepted
		if ses == nil {
			return
		}
		for {
			m, err := stream.Recv()
			if err == nil {
				err = s.c.handleMessage(ses, m)
			}
			if err != nil {
				ses.endWith(err)
				return
			}
		}
	})
	timer := time.NewTimer(helloWithin)
	defer timer.Stop()
	var f first
	select {
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	case <-timer.C:
		return status.Errorf(codes.DeadlineExceeded, "no hello within %v", helloWithin)
	case f = <-hello:
	}
	if f.err != nil {
		return f.err
	}
	ses, err := s.c.registerAgent(f.m.GetHello(), id)
	if err != nil {
		refused := &agentapi.Refused{Reason: status.Convert(err).Message()}
		if refused.NotLeader = status.Code(err) == codes.Unavailable; refused.NotLeader {
			refused.Leader = s.c.leaderAddressNow()
		} else {
			s.c.log.Warn("session of an agent refused", "certificate", id.names, "from", id.from, "err", refused.Reason)
		}
		_ = stream.Send(&agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Refused{Refused: refused}}) // the status has the same reason
		return err
	}
	defer s.c.endSession(ses)
	accepted <- ses
	s.c.log.Debug("agent connected", "node", ses.agent.node, "from", id.from)
	welcome := &agentapi.Welcome{Version: s.c.opts.Version, HeartbeatNs: uint64(s.c.opts.Heartbeat), Life: ses.life}
	welcome.Epoch, welcome.EpochProof = s.c.epochProof()
	if err := stream.Send(&agentapi.CoordinatorMessage{Body: &agentapi.CoordinatorMessage_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case err := <-ses.ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ses.wake:
			for _, m := range s.c.messagesFor(ses) {
				if err := stream.Send(m); err != nil {
					return err
				}
			}
		}
	}
}
