package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/jointoken"
	"github.com/graylink/graylink/internal/pki"
)

// Enrollment keeps the certificate of this node: it gets the first one from the coordinator by a token, and renews it.
// The private key never leaves the node.
type Enrollment struct {
	Addresses  []string // host:port of the coordinators, or unix:PATH; they are tried in turn
	ServerName string   // name in their certificates; if empty, the host of the address, or "coordinator" at a Unix socket
	// Directory holds node.pem, which is the certificate with its key, and ca.crt. It is created when it is missing.
	Directory string
	// CA is a PEM file of the authorities of the coordinator, which is kept elsewhere. If it is empty, ca.crt begins with the
	// authority that a join token confirms, and is written with every certificate.
	CA   string
	Node string // if it is empty, the join token's
	// JoinToken returns a join token. It is nil if there is none, and is called only when a first certificate is needed.
	JoinToken func() (string, error)
	// KubernetesTokenFile holds the token of a service account. It is read for every use, since it is rotated. It is empty
	// if there is none.
	KubernetesTokenFile string
	Log                 *slog.Logger
}

// Times of enrollment.
const (
	enrollWithin    = 60 * time.Second // of one attempt
	enrollPauseLow  = 200 * time.Millisecond
	enrollPauseHigh = 30 * time.Second
	renewPauseHigh  = 10 * time.Minute
	// renewJitter is the share of a certificate's life over which the renewals of a fleet are spread.
	renewJitter = 0.05
)

// Files returns the names of the files of certificates, which are there after Obtain.
func (e *Enrollment) Files() pki.Files {
	own := filepath.Join(e.Directory, "node.pem")
	f := pki.Files{CA: e.CA, Cert: own, Key: own}
	if f.CA == "" {
		f.CA = filepath.Join(e.Directory, "ca.crt")
	}
	return f
}

// Obtain returns when there is a certificate of the node that has not ended. It tries again while the coordinator cannot
// be reached, until ctx ends, and returns an error when trying again is of no use.
func (e *Enrollment) Obtain(ctx context.Context) error {
	if err := os.MkdirAll(e.Directory, 0o700); err != nil {
		return err
	}
	if c := e.current(); c != nil && time.Now().Before(c.NotAfter) {
		return nil
	}
	pause := enrollPauseLow
	for {
		err := e.enroll(ctx)
		if err == nil {
			return nil
		}
		if !worthRetrying(err) {
			return fmt.Errorf("enroll with the coordinator at %s: %w", strings.Join(e.Addresses, ", "), plain(err))
		}
		wait := pause/2 + mathrand.N(pause)
		e.Log.Warn("cannot enroll yet", "addresses", e.Addresses, "err", plain(err), "again_in", wait)
		pause = min(pause*8/5, enrollPauseHigh)
		if !sleepContext(ctx, wait) {
			return ctx.Err()
		}
	}
}

// plain returns an error without the words of gRPC.
func plain(err error) error {
	if s, ok := status.FromError(err); ok {
		return errors.New(s.Message())
	}
	return err
}

// worthRetrying reports whether the same call may succeed later.
func worthRetrying(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch s.Code() {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Aborted:
		return true
	}
	return false
}

func sleepContext(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// current returns the certificate of node.pem if it is of this node and has its key, else nil.
func (e *Enrollment) current() *x509.Certificate {
	f := e.Files()
	if _, err := os.Stat(f.CA); err != nil {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil
	}
	c, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil || e.Node != "" && !slices.Contains(pki.NamesOf(c), e.Node) {
		return nil
	}
	return c
}

// enroll gets a certificate by a token.
func (e *Enrollment) enroll(ctx context.Context) error {
	q := &agentapi.EnrollRequest{Node: e.Node}
	token, err := e.proof(q)
	if err != nil {
		return err
	}
	key, text, err := e.pendingKey()
	if err != nil {
		return err
	}
	if err := e.findAuthority(ctx, token); err != nil {
		return err
	}
	if err := e.request(ctx, q, key, text, nil); err != nil {
		return err
	}
	os.Remove(e.pendingFile())
	return nil
}

// proof fills in the proof of the node's name, and the name if it is the token's. It returns the join token, if it is one.
func (e *Enrollment) proof(q *agentapi.EnrollRequest) (*jointoken.Token, error) {
	switch {
	case e.JoinToken != nil:
		text, err := e.JoinToken()
		if err != nil {
			return nil, fmt.Errorf("read the join token: %w", err)
		}
		t, err := jointoken.Parse(text)
		if err != nil {
			return nil, err
		}
		if q.Node == "" {
			q.Node = t.Node
		}
		if q.Node != t.Node {
			return nil, fmt.Errorf("the join token is for node %q, not for node %q", t.Node, q.Node)
		}
		q.Credential = &agentapi.EnrollRequest_JoinToken{JoinToken: t.String()}
		return &t, nil
	case e.KubernetesTokenFile != "":
		text, err := os.ReadFile(e.KubernetesTokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token of the service account: %w", err)
		}
		q.Credential = &agentapi.EnrollRequest_KubernetesToken{KubernetesToken: strings.TrimSpace(string(text))}
		return nil, fabric.CheckName(q.Node)
	}
	return nil, errors.New("there is no certificate, and no token to get one with")
}

func (e *Enrollment) pendingFile() string { return filepath.Join(e.Directory, "pending.key") }

// pendingKey returns the key for the first certificate. It is on the disk before it is used: the coordinator gives a
// certificate for a used join token to the same key only.
func (e *Enrollment) pendingKey() (*ecdsa.PrivateKey, []byte, error) {
	text, err := os.ReadFile(e.pendingFile())
	if err == nil {
		if key, err := pki.ParseKey(text); err == nil {
			return key, text, nil
		}
	}
	key, text, err := pki.NewKey()
	if err != nil {
		return nil, nil, err
	}
	return key, text, durable.WriteFile(e.pendingFile(), text)
}

// findAuthority writes ca.crt if it is missing or has not the authority of the token: the coordinator says which
// authorities are its own, and the token says which of them is the right one. Until then nothing that the coordinator says
// counts, and no secret is sent.
func (e *Enrollment) findAuthority(ctx context.Context, token *jointoken.Token) error {
	file := e.Files().CA
	text, err := os.ReadFile(file)
	switch {
	case err != nil && e.CA != "":
		return fmt.Errorf("the authorities of the coordinator: %w", err)
	case err != nil && token == nil:
		return fmt.Errorf("without a join token, the authorities of the coordinator have to be given: %w", err)
	case err == nil && (token == nil || e.CA != "" || hasAuthority(text, token)):
		return nil
	}
	// The fingerprint verifies what comes over this connection.
	unverified := func(coordinatorAt) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}}, nil
	}
	var answer *agentapi.AuthoritiesAnswer
	if err := e.call(ctx, unverified, func(ctx context.Context, service agentapi.EnrollmentClient) (err error) {
		answer, err = service.Authorities(ctx, &agentapi.AuthoritiesRequest{})
		return err
	}); err != nil {
		return err
	}
	for _, c := range pki.ParseCertificates(answer.GetAuthorities()) {
		if jointoken.Fingerprint(c) == token.Authority {
			return durable.WriteFile(file, pki.EncodeCertificate(c.Raw))
		}
	}
	return errors.New("the authority of the coordinator is not the one of the join token: another program answers at this address, or the authority was replaced since the token was made")
}

// hasAuthority reports whether a PEM text has the authority of a token.
func hasAuthority(text []byte, token *jointoken.Token) bool {
	return slices.ContainsFunc(pki.ParseCertificates(text), func(c *x509.Certificate) bool { return jointoken.Fingerprint(c) == token.Authority })
}

// request gets a certificate for a key and writes the files. certificates are those to renew, or nil.
func (e *Enrollment) request(ctx context.Context, q *agentapi.EnrollRequest, key *ecdsa.PrivateKey, keyText []byte, certificates *pki.Keeper) error {
	var err error
	if q.SigningRequest, err = pki.NewSigningRequest(key); err != nil {
		return err
	}
	var answer *agentapi.EnrollAnswer
	verified := func(at coordinatorAt) (*tls.Config, error) { return e.clientConfig(at, certificates) }
	if err := e.call(ctx, verified, func(ctx context.Context, service agentapi.EnrollmentClient) (err error) {
		answer, err = service.Enroll(ctx, q)
		return err
	}); err != nil {
		return err
	}
	own := pki.ParseCertificates(answer.GetCertificate())
	if len(own) == 0 || !key.PublicKey.Equal(own[0].PublicKey) || !slices.Contains(pki.NamesOf(own[0]), q.GetNode()) {
		return errors.New("the coordinator's answer is no certificate for this node and its key")
	}
	f := e.Files()
	if authorities := answer.GetAuthorities(); e.CA == "" && len(pki.ParseCertificates(authorities)) > 0 {
		if err := durable.WriteFile(f.CA, authorities); err != nil {
			return err
		}
	}
	// One file for both, so that a crash leaves no certificate without its key.
	if err := durable.WriteFile(f.Cert, append(slices.Clone(keyText), answer.GetCertificate()...)); err != nil {
		return err
	}
	e.Log.Info("certificate obtained", "node", q.GetNode(), "file", f.Cert, "serial", own[0].SerialNumber.Text(16), "expires", own[0].NotAfter)
	return nil
}

// call calls the service of one coordinator after the other until one answers.
func (e *Enrollment) call(ctx context.Context, configure func(coordinatorAt) (*tls.Config, error), do func(context.Context, agentapi.EnrollmentClient) error) error {
	all, err := newCoordinators(e.Addresses, e.ServerName)
	if err != nil {
		return err
	}
	return all.try(func(at coordinatorAt) error {
		config, err := configure(at)
		if err != nil {
			return err
		}
		conn, err := dial(at, config)
		if err != nil {
			return err
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(ctx, enrollWithin)
		defer cancel()
		return do(ctx, agentapi.NewEnrollmentClient(conn))
	})
}

// clientConfig returns the configuration of a connection that verifies the coordinator, and shows the certificate to
// renew if there is one.
func (e *Enrollment) clientConfig(at coordinatorAt, certificates *pki.Keeper) (*tls.Config, error) {
	if certificates != nil {
		return certificates.ClientConfig(at.serverName), nil
	}
	file := e.Files().CA
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: holds no PEM certificate", file)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: at.serverName, NextProtos: []string{"h2"}}, nil
}

// Run renews the certificate after two thirds of its life, until ctx ends. A keeper of the files notices by itself. A
// certificate that has ended can be replaced by a token only.
func (e *Enrollment) Run(ctx context.Context, certificates *pki.Keeper) {
	share, pause := 2./3+renewJitter*mathrand.Float64(), enrollPauseLow
	for {
		wait := time.Minute // a wall clock may jump
		if c := e.current(); c != nil {
			life := c.NotAfter.Sub(c.NotBefore)
			wait = min(wait, max(time.Second, time.Until(c.NotBefore.Add(time.Duration(share*float64(life))))))
		}
		if !sleepContext(ctx, wait) {
			return
		}
		if !e.due(share) {
			continue
		}
		err := e.renew(ctx, certificates)
		if err == nil {
			share, pause = 2./3+renewJitter*mathrand.Float64(), enrollPauseLow
			continue
		}
		wait = pause/2 + mathrand.N(pause)
		e.Log.Warn("cannot renew the certificate", "addresses", e.Addresses, "err", plain(err), "again_in", wait)
		pause = min(pause*2, renewPauseHigh)
		if !sleepContext(ctx, wait) {
			return
		}
	}
}

// due reports whether the share of the certificate's life has passed.
func (e *Enrollment) due(share float64) bool {
	c := e.current()
	return c == nil || time.Since(c.NotBefore) >= time.Duration(share*float64(c.NotAfter.Sub(c.NotBefore)))
}

// renew gets another certificate: by the present one, or by a token when that has ended.
func (e *Enrollment) renew(ctx context.Context, certificates *pki.Keeper) error {
	c := e.current()
	if c == nil || !time.Now().Before(c.NotAfter) {
		return e.enroll(ctx)
	}
	key, text, err := pki.NewKey()
	if err != nil {
		return err
	}
	return e.request(ctx, &agentapi.EnrollRequest{Node: pki.NamesOf(c)[0]}, key, text, certificates)
}
