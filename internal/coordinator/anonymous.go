package coordinator

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
)

// Limits of clients without a certificate. There are such clients only where nodes may enroll.
const (
	anonymousFor        = 30 * time.Second // life of a connection
	anonymousMost       = 4096             // connections
	anonymousPerAddress = 128              // connections
	anonymousRate       = 100              // calls of one address in a second
	anonymousBurst      = 400              // calls of one address at once
)

// anonymousMethods are the calls that a client without a certificate may make.
var anonymousMethods = map[string]bool{
	agentapi.Enrollment_Authorities_FullMethodName: true,
	agentapi.Enrollment_Enroll_FullMethodName:      true,
}

var errAnonymousMost = errors.New("too many connections without a certificate")

// anonymousClients bounds what clients without a certificate cost.
type anonymousClients struct {
	mu      sync.Mutex
	open    int
	byFrom  map[netip.Prefix]int
	limiter map[netip.Prefix]*rate.Limiter
}

func newAnonymousClients() *anonymousClients {
	return &anonymousClients{byFrom: map[netip.Prefix]int{}, limiter: map[netip.Prefix]*rate.Limiter{}}
}

// bound returns a connection that ends after anonymousFor, or an error if there are too many.
func (a *anonymousClients) bound(conn net.Conn) (net.Conn, error) {
	from := addressOf(conn.RemoteAddr())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open >= anonymousMost || a.byFrom[from] >= anonymousPerAddress {
		return nil, errAnonymousMost
	}
	a.open++
	a.byFrom[from]++
	release := sync.OnceFunc(func() { a.remove(from) })
	end := time.AfterFunc(anonymousFor, func() {
		release()
		_ = conn.Close() // there is nothing left to do about a failure
	})
	return &anonymousConn{conn, end, release}, nil
}

func (a *anonymousClients) remove(from netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	if a.byFrom[from]--; a.byFrom[from] == 0 {
		delete(a.byFrom, from)
	}
}

// allowCall reports whether a client at that address may call now.
func (a *anonymousClients) allowCall(from netip.Prefix) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.limiter[from]
	if l == nil {
		if len(a.limiter) >= anonymousMost {
			a.dropIdleLimiters()
		}
		l = rate.NewLimiter(anonymousRate, anonymousBurst)
		a.limiter[from] = l
	}
	return l.Allow()
}

// dropIdleLimiters makes room. An address that did not call for a while has its whole burst again.
func (a *anonymousClients) dropIdleLimiters() {
	for from, l := range a.limiter {
		if l.Tokens() >= anonymousBurst {
			delete(a.limiter, from)
		}
	}
	if len(a.limiter) >= anonymousMost {
		clear(a.limiter)
	}
}

// anonymousConn is the connection of a client without a certificate.
type anonymousConn struct {
	net.Conn
	end     *time.Timer
	release func()
}

// Close implements net.Conn.
func (c *anonymousConn) Close() error {
	c.end.Stop()
	c.release()
	return c.Conn.Close()
}

// hasCertificate reports whether the handshake of a connection verified a certificate of the client.
func hasCertificate(info credentials.AuthInfo) bool {
	i, ok := info.(credentials.TLSInfo)
	return ok && len(i.State.PeerCertificates) > 0
}

// guardCall refuses calls of clients without a certificate, unless they enroll and are within their limits.
func (s *Server) guardCall(ctx context.Context, q any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	p, ok := peer.FromContext(ctx)
	switch {
	case !ok:
		return nil, status.Error(codes.Unauthenticated, "the connection has no peer")
	case hasCertificate(p.AuthInfo):
	case !anonymousMethods[info.FullMethod]:
		return nil, status.Error(codes.Unauthenticated, "the client has no certificate")
	case !s.anonymous.allowCall(addressOf(p.Addr)):
		return nil, status.Error(codes.ResourceExhausted, "too many calls without a certificate from this address")
	}
	return handler(ctx, q)
}

// guardStream refuses streams of clients without a certificate.
func (s *Server) guardStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if p, ok := peer.FromContext(stream.Context()); !ok || !hasCertificate(p.AuthInfo) {
		return status.Error(codes.Unauthenticated, "the client has no certificate")
	}
	return handler(srv, stream)
}
