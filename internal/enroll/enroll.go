// Package enroll is the coordinator's side of enrollment: it signs the certificates of nodes. Its rules:
//
//  1. A certificate is for one node of the topology, and for nothing else. The name comes from what proves it, never from
//     the signing request.
//  2. A join token is good for the node that it was issued for, once, until it expires. The same key may use it again,
//     because an answer can be lost. No certificate is signed before all coordinators that follow know of the use.
//  3. A token of Kubernetes is good for the node that the pod of the agent runs on. The API server has to confirm the
//     audience, the service account of the node agent, the pod and the node. A token without a pod is good for nothing.
//  4. A certificate that this authority signed is good for the next one of the same node, until it ends or is revoked.
//  5. A client without a certificate can do nothing else, and its calls are limited by address. What it sends is checked
//     in the order of the costs, and questions to the API server are limited.
//  6. The log has every certificate with its node, the proof, and the address of the caller. It has no secrets.
package enroll

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/jointoken"
	"github.com/graylink/graylink/internal/pki"
)

// DefaultLife is the default life of certificates.
const DefaultLife = 7 * 24 * time.Hour

// minLife leaves some minutes between two renewals: certificates begin five minutes before they are signed.
const minLife = 15 * time.Minute

// Options are the options of a Service.
type Options struct {
	Authority   *pki.Authority // signs
	Authorities []byte         // PEM text of the authorities that nodes have to trust: those of the coordinator's certificate
	Life        time.Duration  // of certificates; 0 means DefaultLife
	Tokens      *jointoken.Book
	// ConfirmUse returns once all that have to know of the use of a token do. Nil means that none has to.
	ConfirmUse func(ctx context.Context) error
	Kubernetes *Reviewer
	// Known reports whether the topology has a node.
	Known func(node string) bool
	// Accepted returns an error if a client with a certificate would not be accepted now.
	Accepted func(chain []*x509.Certificate) error
	Log      *slog.Logger
}

// Proofs are what a client can prove its node's name with.
const (
	ProofToken       = "join_token"
	ProofKubernetes  = "kubernetes"
	ProofCertificate = "certificate"
	proofNone        = "none"
)

// Results of calls, as they are counted.
const (
	ResultSigned    = "signed"
	ResultRefused   = "refused"   // the proof is not good for the node
	ResultMalformed = "malformed" // the request is invalid
	ResultUnknown   = "unknown_node"
	ResultFailed    = "failed" // the proof could not be checked, or the use of a token not recorded
)

// Outcome is a proof and the result of a call with it.
type Outcome struct{ Proof, Result string }

// Service implements agentapi.EnrollmentServer.
type Service struct {
	agentapi.UnimplementedEnrollmentServer
	o Options

	mu     sync.Mutex
	counts map[Outcome]uint64
}

// New returns a service. It returns an error if it would sign nothing, or certificates that no node could use.
func New(o Options) (*Service, error) {
	if o.Life == 0 {
		o.Life = DefaultLife
	}
	switch {
	case o.Life < minLife:
		return nil, fmt.Errorf("a life of certificates of %v: want at least %v", o.Life, minLife)
	case len(pki.ParseCertificates(o.Authorities)) == 0:
		return nil, errors.New("there is no PEM certificate of an authority")
	}
	s := &Service{o: o, counts: map[Outcome]uint64{}}
	for _, p := range []string{ProofToken, ProofKubernetes, ProofCertificate} {
		for _, r := range []string{ResultSigned, ResultRefused, ResultMalformed, ResultUnknown, ResultFailed} {
			s.counts[Outcome{p, r}] = 0
		}
	}
	s.counts[Outcome{proofNone, ResultMalformed}], s.counts[Outcome{proofNone, ResultRefused}] = 0, 0
	return s, nil
}

// Stats returns the number of calls by their outcome.
func (s *Service) Stats() map[Outcome]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

// Authorities implements agentapi.EnrollmentServer.
func (s *Service) Authorities(context.Context, *agentapi.AuthoritiesRequest) (*agentapi.AuthoritiesAnswer, error) {
	return &agentapi.AuthoritiesAnswer{Authorities: s.o.Authorities}, nil
}

// refusal is why no certificate is signed.
type refusal struct {
	result string
	code   codes.Code
	err    error
}

func refuse(result string, code codes.Code, format string, args ...any) *refusal {
	return &refusal{result, code, fmt.Errorf(format, args...)}
}

// Enroll implements agentapi.EnrollmentServer. Errors are gRPC statuses. Unavailable and ResourceExhausted are worth
// another attempt.
func (s *Service) Enroll(ctx context.Context, q *agentapi.EnrollRequest) (*agentapi.EnrollAnswer, error) {
	from, chain := clientOf(ctx)
	proof, answer, no := s.sign(ctx, q, chain, time.Now())
	result := ResultSigned
	if no != nil {
		result = no.result
	}
	s.mu.Lock()
	s.counts[Outcome{proof, result}]++
	s.mu.Unlock()
	if no != nil {
		s.o.Log.Warn("no certificate signed", "node", printable(q.GetNode()), "proof", proof, "from", from, "err", no.err)
		return nil, status.Error(no.code, no.err.Error())
	}
	c := pki.ParseCertificates(answer.GetCertificate())[0]
	s.o.Log.Info("certificate signed", "node", q.GetNode(), "proof", proof, "from", from, "serial", c.SerialNumber.Text(16), "expires", c.NotAfter)
	return answer, nil
}

// printable returns a name from outside as far as it can stand in a log.
func printable(name string) string {
	if fabric.CheckName(name) != nil {
		return ""
	}
	return name
}

// clientOf returns the address of the caller, and the certificates that it sent, which its handshake verified.
func clientOf(ctx context.Context) (from string, chain []*x509.Certificate) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", nil
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		chain = info.State.PeerCertificates
	}
	if p.Addr != nil {
		from = p.Addr.String()
	}
	return from, chain
}

// sign checks a request and signs the certificate.
func (s *Service) sign(ctx context.Context, q *agentapi.EnrollRequest, chain []*x509.Certificate, now time.Time) (proof string, answer *agentapi.EnrollAnswer, no *refusal) {
	proof = proofOf(q, chain)
	node := q.GetNode()
	if err := checkRequest(q); err != nil {
		return proof, nil, refuse(ResultMalformed, codes.InvalidArgument, "%w", err)
	}
	key, err := pki.KeyOfRequest(q.GetSigningRequest())
	if err != nil {
		return proof, nil, refuse(ResultMalformed, codes.InvalidArgument, "signing_request: %w", err)
	}
	switch proof {
	case ProofToken:
		no = s.checkToken(ctx, node, q.GetJoinToken(), key, now)
	case ProofKubernetes:
		no = s.checkKubernetes(ctx, node, q.GetKubernetesToken())
	case ProofCertificate:
		no = s.checkCertificate(node, chain)
	default:
		no = refuse(ResultRefused, codes.Unauthenticated, "the request has neither a token, nor a certificate to renew")
	}
	if no != nil {
		return proof, nil, no
	}
	if !s.o.Known(node) {
		return proof, nil, refuse(ResultUnknown, codes.NotFound, "node %q is not in the topology", node)
	}
	der, err := s.o.Authority.Sign(key, []string{node}, s.o.Life, now)
	if err != nil {
		return proof, nil, refuse(ResultFailed, codes.Internal, "%w", err)
	}
	return proof, &agentapi.EnrollAnswer{Certificate: pki.EncodeCertificate(der), Authorities: s.o.Authorities}, nil
}

func proofOf(q *agentapi.EnrollRequest, chain []*x509.Certificate) string {
	switch {
	case q.GetJoinToken() != "":
		return ProofToken
	case q.GetKubernetesToken() != "":
		return ProofKubernetes
	case len(chain) > 0:
		return ProofCertificate
	}
	return proofNone
}

// checkRequest returns an error that names the field if a request is invalid.
func checkRequest(q *agentapi.EnrollRequest) error {
	if err := fabric.CheckName(q.GetNode()); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	switch {
	case len(q.GetNode()) > agentapi.MaxName:
		return fmt.Errorf("node: %d octets, want at most %d", len(q.GetNode()), agentapi.MaxName)
	case len(q.GetSigningRequest()) > agentapi.MaxSigningRequest:
		return fmt.Errorf("signing_request: %d octets, want at most %d", len(q.GetSigningRequest()), agentapi.MaxSigningRequest)
	case len(q.GetJoinToken()) > agentapi.MaxCredential || len(q.GetKubernetesToken()) > agentapi.MaxCredential:
		return fmt.Errorf("credential: want at most %d octets", agentapi.MaxCredential)
	}
	return nil
}

func (s *Service) checkToken(ctx context.Context, node, text string, key any, now time.Time) *refusal {
	if s.o.Tokens == nil {
		return refuse(ResultRefused, codes.PermissionDenied, "this coordinator accepts no join tokens")
	}
	t, err := jointoken.Parse(text)
	if err != nil {
		return refuse(ResultMalformed, codes.InvalidArgument, "join_token: %w", err)
	}
	if t.Node != node {
		return refuse(ResultRefused, codes.PermissionDenied, "the join token is for node %q, not for node %q", t.Node, node)
	}
	public, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return refuse(ResultMalformed, codes.InvalidArgument, "signing_request: %w", err)
	}
	switch err := s.o.Tokens.Redeem(t, public, now); {
	case errors.Is(err, jointoken.ErrUnknown), errors.Is(err, jointoken.ErrExpired), errors.Is(err, jointoken.ErrUsed):
		return refuse(ResultRefused, codes.PermissionDenied, "%w", err)
	case err != nil:
		s.o.Log.Error("cannot check or record a join token", "node", node, "err", err)
		return refuse(ResultFailed, codes.Unavailable, "the coordinator cannot check join tokens now")
	}
	if s.o.ConfirmUse == nil {
		return nil
	}
	if err := s.o.ConfirmUse(ctx); err != nil {
		return refuse(ResultFailed, codes.Unavailable, "%w", err)
	}
	return nil
}

func (s *Service) checkKubernetes(ctx context.Context, node, token string) *refusal {
	if s.o.Kubernetes == nil {
		return refuse(ResultRefused, codes.PermissionDenied, "this coordinator accepts no tokens of Kubernetes")
	}
	proved, err := s.o.Kubernetes.NodeOf(ctx, token)
	var denied *DeniedError
	switch {
	case errors.As(err, &denied):
		return refuse(ResultRefused, codes.PermissionDenied, "%w", err)
	case err != nil:
		s.o.Log.Error("cannot have a token reviewed by Kubernetes", "node", node, "err", err)
		return refuse(ResultFailed, codes.Unavailable, "the coordinator cannot have tokens reviewed now")
	case proved != node:
		return refuse(ResultRefused, codes.PermissionDenied, "the token is of a pod on node %q, not on node %q", proved, node)
	}
	return nil
}

func (s *Service) checkCertificate(node string, chain []*x509.Certificate) *refusal {
	if err := s.o.Accepted(chain); err != nil {
		return refuse(ResultRefused, codes.Unauthenticated, "the certificate is not accepted: %w", err)
	}
	if err := chain[0].CheckSignatureFrom(s.o.Authority.Certificate()); err != nil {
		return refuse(ResultRefused, codes.PermissionDenied, "the certificate is of another authority than the one that enrolls")
	}
	if names := pki.NamesOf(chain[0]); !slices.Contains(names, node) {
		return refuse(ResultRefused, codes.PermissionDenied, "the certificate is for %q, not for node %q", names, node)
	}
	return nil
}
