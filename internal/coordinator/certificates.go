package coordinator

import (
	"crypto/tls"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// checkCertificatesEvery is the minimum time between two checks of the accepted certificates.
const checkCertificatesEvery = time.Second

// serverState is what the coordinator knows of its server. It has a lock of its own.
type serverState struct {
	mu             sync.Mutex
	certificates   Certificates // nil if there is no server
	admission      *admission   // nil if there is no server
	checkedAt      time.Duration
	checkedVersion uint64 // version of the certificates that was checked last
}

// start stores the certificates and the admission of a server. The present version of the certificates
// counts as checked.
func (s *serverState) start(certificates Certificates, a *admission) {
	version := certificates.Version()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.certificates, s.admission, s.checkedVersion = certificates, a, version
}

// changedCertificates returns the certificates if a check is due and they have changed since the last
// one, and nil otherwise.
func (s *serverState) changedCertificates(mono time.Duration) Certificates {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.certificates == nil || mono-s.checkedAt < checkCertificatesEvery {
		return nil
	}
	version := s.certificates.Version()
	changed := version != s.checkedVersion
	s.checkedAt, s.checkedVersion = mono, version
	if !changed {
		return nil
	}
	return s.certificates
}

// clientConfig returns the configuration of a connection to a coordinator with that name, and the version of the
// certificates in it. It returns nil if there is no server.
func (s *serverState) clientConfig(serverName string) (*tls.Config, uint64) {
	s.mu.Lock()
	certificates := s.certificates
	s.mu.Unlock()
	if certificates == nil {
		return nil, 0
	}
	version := certificates.Version()
	return certificates.ClientConfig(serverName), version
}

// handshakes returns the numbers of handshakes, which are zero without a server.
func (s *serverState) handshakes() Handshakes {
	s.mu.Lock()
	a := s.admission
	s.mu.Unlock()
	if a == nil {
		return Handshakes{}
	}
	return a.handshakeStats()
}

// checkCertificates ends the sessions of clients that would no longer be accepted: their authority was
// removed from its file, or their certificate was revoked.
func (c *Coordinator) checkCertificates() {
	certificates := c.server.changedCertificates(c.opts.Clock.MonoTime())
	if certificates == nil {
		return
	}
	var open []*session
	c.mu.Lock()
	for _, a := range c.registry.agents {
		if a.session != nil && len(a.session.chain) > 0 {
			open = append(open, a.session)
		}
	}
	c.mu.Unlock()
	for _, s := range open {
		if err := certificates.Verify(s.chain); err != nil {
			c.log.Warn("session ended: the certificate is no longer accepted", "node", s.agent.node, "err", err)
			s.endWith(status.Errorf(codes.Unauthenticated, "the certificate of this session is no longer accepted: %v", err))
			c.endSession(s) // further messages of the session are ignored
			c.counters.addSession(resultRevoked)
		}
	}
}
