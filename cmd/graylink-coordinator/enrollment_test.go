package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/enroll"
	"github.com/graylink/graylink/internal/jointoken"
	"github.com/graylink/graylink/internal/pki"
)

// newEnrollRig returns a coordinator at which nodes enroll.
func newEnrollRig(t *testing.T, change func(*enrollFlags)) *rig {
	t.Helper()
	r := newFiles(t, topology(2, 2), nil)
	r.write("ca.key", r.ca.Key)
	r.write("tokens", nil)
	at := func(name string) string { return filepath.Join(r.dir, name) }
	r.enroll = enrollFlags{certFile: at("ca.crt"), keyFile: at("ca.key"), tokenFile: at("tokens"), life: enroll.DefaultLife,
		account: "graylink/graylink-node", audience: enroll.DefaultAudience}
	if change != nil {
		change(&r.enroll)
	}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// token issues a join token.
func (r *rig) token(node string, life time.Duration) string {
	r.t.Helper()
	t, err := jointoken.New(node, pki.ParseCertificates(r.ca.Cert)[0])
	if err != nil {
		r.t.Fatal(err)
	}
	e := jointoken.Entry{Node: node, Expires: time.Now().Add(life), Hash: t.Hash()}
	r.write("tokens", append(r.read("tokens"), e.String()...))
	return t.String()
}

// node returns a node that enrolls in a directory of its own.
func (r *rig) node(token string) *client.Enrollment {
	return &client.Enrollment{Addresses: []string{r.address}, ServerName: "coordinator", Directory: filepath.Join(r.t.TempDir(), "pki"), Log: slog.New(slog.DiscardHandler),
		JoinToken: func() (string, error) { return token, nil }}
}

// ask sends a request over a connection without a certificate, or with that of files.
func (r *rig) ask(q *agentapi.EnrollRequest, files *pki.Files) (*agentapi.EnrollAnswer, error) {
	r.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.ca.Cert)
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "coordinator", NextProtos: []string{"h2"}}
	if files != nil {
		k, err := pki.Open(*files, func(error) {})
		if err != nil {
			r.t.Fatal(err)
		}
		config = k.ClientConfig("coordinator")
	}
	conn, err := grpc.NewClient("passthrough:///"+r.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	if q.SigningRequest == nil {
		key, _, err := pki.NewKey()
		if err != nil {
			r.t.Fatal(err)
		}
		if q.SigningRequest, err = pki.NewSigningRequest(key); err != nil {
			r.t.Fatal(err)
		}
	}
	return agentapi.NewEnrollmentClient(conn).Enroll(ctx, q)
}

func TestAJoinTokenEnrollsItsNode(t *testing.T) {
	r := newEnrollRig(t, nil)
	token := r.token("h1", time.Hour)
	e := r.node(token)
	if err := e.Obtain(t.Context()); err != nil {
		t.Fatal(err)
	}
	files := e.Files()
	k, err := pki.Open(files, func(err error) { t.Error(err) })
	if err != nil || k.CertificateName() != "h1" {
		t.Fatalf("%q %v", k.CertificateName(), err)
	}
	if info, err := os.Stat(files.Key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v %v, want 0600", files.Key, info.Mode(), err)
	}
	left, err := os.ReadDir(e.Directory)
	if err != nil || len(left) != 2 {
		t.Errorf("%v %v, want node.pem and ca.crt alone", left, err)
	}
	r.checkByOpenSSL(files, "h1")
	// The certificate is one for a session.
	assigned := make(chan struct{})
	var once sync.Once
	c, err := client.New(client.Config{Addresses: []string{r.address}, ServerName: "coordinator", Certificates: k, Node: "h1", Web: &agentapi.WebEndpoint{Address: ":9868"}, Log: slog.New(slog.DiscardHandler)},
		idle{func() { once.Do(func() { close(assigned) }) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	r.eventually("the node is connected", func() bool {
		for _, a := range r.c.Agents() {
			if a.Node == "h1" && a.ConnectedSeconds != nil {
				return true
			}
		}
		return false
	})
	cancel()
	wg.Wait()
	// A second Obtain needs neither token nor coordinator.
	r.stop()
	e.JoinToken = nil
	if err := e.Obtain(t.Context()); err != nil {
		t.Error(err)
	}
	// After a restart the coordinator knows that the token was used.
	r.start()
	if err := r.node(token).Obtain(t.Context()); err == nil || !strings.Contains(err.Error(), "used before") {
		t.Errorf("the same token on another machine: %v", err)
	}
}

// checkByOpenSSL has another implementation verify a certificate, and its only name.
func (r *rig) checkByOpenSSL(files pki.Files, node string) {
	r.t.Helper()
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		r.t.Log("openssl is missing: nothing else verified the certificate")
		return
	}
	if out, err := exec.Command(openssl, "verify", "-purpose", "sslclient", "-x509_strict", "-CAfile", files.CA, files.Cert).CombinedOutput(); err != nil {
		r.t.Errorf("openssl verify: %v %s", err, out)
	}
	out, err := exec.Command(openssl, "x509", "-in", files.Cert, "-noout", "-ext", "subjectAltName").CombinedOutput()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "\n    DNS:"+node) {
		r.t.Errorf("openssl x509: %v %s, want the name %s alone", err, out, node)
	}
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("after two minutes: not %s", what)
		}
	}
}

// TestALostAnswerCostsNoToken: the coordinator signed, and the answer did not arrive. The node asks again with its key.
func TestALostAnswerCostsNoToken(t *testing.T) {
	r := newEnrollRig(t, nil)
	e := r.node(r.token("h1", time.Hour))
	if err := e.Obtain(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(e.Files().Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(e.Files().Key, filepath.Join(e.Directory, "pending.key")); err != nil {
		t.Fatal(err)
	}
	if err := e.Obtain(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(e.Files().Key)
	if end := strings.Index(string(key), "-----BEGIN CERT"); err != nil || string(again[:end]) != string(key[:end]) {
		t.Errorf("another key: %v", err)
	}
}

// TestAnAuthorityOfBefore: ca.crt is of another coordinator, to which this node belonged before.
func TestAnAuthorityOfBefore(t *testing.T) {
	r := newEnrollRig(t, nil)
	other, err := pki.NewAuthority("other", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	e := r.node(r.token("h1", time.Hour))
	if err := os.MkdirAll(e.Directory, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(e.Files().CA, other.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Obtain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(e.Files().CA); err != nil || !bytes.Equal(text, r.ca.Cert) {
		t.Errorf("%s: %v, want the authority of the token alone", text, err)
	}
}

func TestTokensAreRefused(t *testing.T) {
	r := newEnrollRig(t, nil)
	h1, old := r.token("h1", time.Hour), r.token("h2", -time.Second)
	stranger, err := jointoken.New("h1", pki.ParseCertificates(r.ca.Cert)[0])
	if err != nil {
		t.Fatal(err)
	}
	unknown := r.token("h99", time.Hour)
	weak, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak224(t))
	if err != nil {
		t.Fatal(err)
	}
	joined := func(token string) *agentapi.EnrollRequest_JoinToken {
		return &agentapi.EnrollRequest_JoinToken{JoinToken: token}
	}
	for _, tc := range []struct {
		what string
		q    *agentapi.EnrollRequest
		code codes.Code
		text string
	}{
		{"no token", &agentapi.EnrollRequest{Node: "h1"}, codes.Unauthenticated, "neither a token"},
		{"another node's token", &agentapi.EnrollRequest{Node: "h2", Credential: joined(h1)}, codes.PermissionDenied, `is for node "h1", not for node "h2"`},
		{"another node's token, renamed", &agentapi.EnrollRequest{Node: "h2", Credential: joined(strings.Replace(h1, ".h1.", ".h2.", 1))}, codes.PermissionDenied, "not issued here"},
		{"a token that was not issued", &agentapi.EnrollRequest{Node: "h1", Credential: joined(stranger.String())}, codes.PermissionDenied, "not issued here"},
		{"an old token", &agentapi.EnrollRequest{Node: "h2", Credential: joined(old)}, codes.PermissionDenied, "expired"},
		{"a node that is not in the topology", &agentapi.EnrollRequest{Node: "h99", Credential: joined(unknown)}, codes.NotFound, "not in the topology"},
		{"no token's text", &agentapi.EnrollRequest{Node: "h1", Credential: joined("x")}, codes.InvalidArgument, "join_token"},
		{"a token of Kubernetes", &agentapi.EnrollRequest{Node: "h1", Credential: &agentapi.EnrollRequest_KubernetesToken{KubernetesToken: "x"}}, codes.PermissionDenied, "no tokens of Kubernetes"},
		{"no name", &agentapi.EnrollRequest{Credential: joined(h1)}, codes.InvalidArgument, "node"},
		{"no request", &agentapi.EnrollRequest{Node: "h1", Credential: joined(h1), SigningRequest: []byte{}}, codes.InvalidArgument, "signing_request"},
		{"a weak key", &agentapi.EnrollRequest{Node: "h1", Credential: joined(h1), SigningRequest: weak}, codes.InvalidArgument, "224 bits"},
		{"a long request", &agentapi.EnrollRequest{Node: "h1", Credential: joined(h1), SigningRequest: make([]byte, agentapi.MaxSigningRequest+1)}, codes.InvalidArgument, "octets"},
	} {
		_, err := r.ask(tc.q, nil)
		if s := status.Convert(err); s.Code() != tc.code || !strings.Contains(s.Message(), tc.text) {
			t.Errorf("%s: %v, want %v with %q", tc.what, err, tc.code, tc.text)
		}
	}
	if _, err := r.ask(&agentapi.EnrollRequest{Node: "h1", Credential: joined(h1)}, nil); err != nil {
		t.Errorf("the refusals used the token up: %v", err)
	}
	if n := r.enrollment.service.Stats()[enroll.Outcome{Proof: enroll.ProofToken, Result: enroll.ResultSigned}]; n != 1 {
		t.Errorf("%d certificates signed, want 1", n)
	}
}

// TestATokenOfAnotherAuthorityIsNotSent: whoever answers at the coordinator's address without the authority of the token
// does not learn the token.
func TestATokenOfAnotherAuthorityIsNotSent(t *testing.T) {
	r := newEnrollRig(t, nil)
	other, err := pki.NewAuthority("other", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	token, err := jointoken.New("h1", pki.ParseCertificates(other.Cert)[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := r.node(token.String()).Obtain(t.Context()); err == nil || !strings.Contains(err.Error(), "not the one of the join token") {
		t.Errorf("%v", err)
	}
	for o, n := range r.enrollment.service.Stats() {
		if n != 0 {
			t.Errorf("%+v: %d, want no call with the token", o, n)
		}
	}
}

func TestClientsWithoutACertificateCanOnlyEnroll(t *testing.T) {
	r := newEnrollRig(t, nil)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.ca.Cert)
	conn, err := grpc.NewClient("passthrough:///"+r.address, grpc.WithTransportCredentials(credentials.NewTLS(
		&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "coordinator", NextProtos: []string{"h2"}})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	agents := agentapi.NewAgentsClient(conn)
	if _, err := agents.Ask(t.Context(), &agentapi.Question{Incident: "i"}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("Ask: %v", err)
	}
	stream, err := agents.Session(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("Session: %v", err)
	}
	// A certificate of another authority is as good as none.
	files := &pki.Files{CA: filepath.Join(r.dir, "ca.crt"), Cert: filepath.Join(r.dir, "h1.crt"), Key: filepath.Join(r.dir, "h1.key")}
	own := r.ca
	if r.ca, err = pki.NewAuthority("other", time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	r.issue("h1")
	r.ca = own
	if _, err := r.ask(&agentapi.EnrollRequest{Node: "h1"}, files); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a certificate of another authority: %v", err)
	}
	limited := 0
	for range 1000 {
		if _, err := agentapi.NewEnrollmentClient(conn).Authorities(t.Context(), &agentapi.AuthoritiesRequest{}); status.Code(err) == codes.ResourceExhausted {
			limited++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if limited == 0 {
		t.Error("1000 calls in a row, and none is refused")
	}
	// A client with a certificate is not limited by them.
	r.issue("h1")
	if _, err := r.ask(&agentapi.EnrollRequest{Node: "h1"}, files); err != nil {
		t.Errorf("a client with a certificate: %v", err)
	}
}

func TestRenewal(t *testing.T) {
	r := newEnrollRig(t, nil)
	e := r.node("")
	e.JoinToken = nil
	f := e.Files()
	// A certificate of an hour, of which 50 minutes have passed.
	p, err := pki.Issue(r.ca, []string{"h1"}, time.Hour, time.Now().Add(-50*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(e.Directory, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{f.CA: r.ca.Cert, f.Cert: append(p.Key, p.Cert...)} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k, err := pki.Open(f, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	before, version := pki.ParseCertificates(p.Cert)[0], k.Version()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { e.Run(ctx, k) })
	r.eventually("the certificate is replaced", func() bool { return k.Version() != version })
	cancel()
	wg.Wait()
	text, err := os.ReadFile(f.Cert)
	if err != nil {
		t.Fatal(err)
	}
	after := pki.ParseCertificates(text)[0]
	if left := time.Until(after.NotAfter); left > enroll.DefaultLife || after.NotAfter.After(pki.ParseCertificates(r.ca.Cert)[0].NotAfter) {
		t.Errorf("%v left, want at most a week and no more than the authority has", left)
	}
	if bytes.Equal(before.RawSubjectPublicKeyInfo, after.RawSubjectPublicKeyInfo) {
		t.Error("the new certificate is for the old key")
	}
	r.checkByOpenSSL(f, "h1")
	// Not for another node, and not with a revoked certificate or one of another authority.
	if _, err := r.ask(&agentapi.EnrollRequest{Node: "h2"}, &f); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another node's certificate: %v", err)
	}
	other, err := pki.NewAuthority("other", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own := r.ca
	r.write("ca.crt.both", append(append([]byte{}, own.Cert...), other.Cert...))
	r.write("ca.crt", r.read("ca.crt.both"))
	r.ca = other
	r.issue("h1")
	r.ca = own
	foreign := pki.Files{CA: filepath.Join(r.dir, "ca.crt"), Cert: filepath.Join(r.dir, "h1.crt"), Key: filepath.Join(r.dir, "h1.key")}
	if _, err := r.ask(&agentapi.EnrollRequest{Node: "h1"}, &foreign); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "another authority") {
		t.Errorf("an accepted certificate of another authority: %v", err)
	}
	r.write("revoked", []byte(after.SerialNumber.Text(16)+"\n"))
	if _, err := r.ask(&agentapi.EnrollRequest{Node: "h1"}, &f); err == nil {
		t.Error("a revoked certificate was renewed")
	}
}

// apiServer answers TokenReviews as the API server of Kubernetes does.
type apiServer struct {
	*httptest.Server
	mu     sync.Mutex
	status map[string]map[string]any // by token
	asked  []map[string]any
	down   bool
}

func newAPIServer(t *testing.T) (*apiServer, string) {
	s := &apiServer{status: map[string]map[string]any{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"x","context":{"cluster":"c"}}],"current-context":"x"}`, s.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, file
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	var review map[string]any
	if err := json.NewDecoder(q.Body).Decode(&review); err != nil || q.Method != "POST" || q.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	spec, _ := review["spec"].(map[string]any)
	s.asked = append(s.asked, spec)
	token, _ := spec["token"].(string)
	review["status"] = map[string]any{"error": "unknown token"}
	if st := s.status[token]; st != nil {
		review["status"] = st
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review) // a client that is gone is the test's failure
}

// review returns the status of an accepted token, of which a case changes something.
func review(change func(status, user, extra map[string]any)) map[string]any {
	extra := map[string]any{"authentication.kubernetes.io/pod-name": []string{"graylink-node-x7"}, "authentication.kubernetes.io/node-name": []string{"h1"}}
	user := map[string]any{"username": "system:serviceaccount:graylink:graylink-node", "extra": extra}
	status := map[string]any{"authenticated": true, "audiences": []string{enroll.DefaultAudience}, "user": user}
	if change != nil {
		change(status, user, extra)
	}
	return status
}

func TestKubernetesTokens(t *testing.T) {
	api, kubeconfig := newAPIServer(t)
	r := newEnrollRig(t, func(f *enrollFlags) { f.kubernetes, f.kubeconfig = true, kubeconfig })
	for _, tc := range []struct {
		what   string
		node   string
		status map[string]any
		code   codes.Code
		text   string
	}{
		{"the agent's", "h1", review(nil), codes.OK, ""},
		{"another node's", "h2", review(nil), codes.PermissionDenied, `on node "h1", not on node "h2"`},
		{"of a pod that was deleted", "h1", map[string]any{"error": "pod graylink-node-x7 was deleted"}, codes.PermissionDenied, "was deleted"},
		{"of another service account", "h1", review(func(_, user, _ map[string]any) { user["username"] = "system:serviceaccount:graylink:default" }), codes.PermissionDenied, "want \"system:serviceaccount:graylink:graylink-node\""},
		{"of a service account of another namespace", "h1", review(func(_, user, _ map[string]any) { user["username"] = "system:serviceaccount:evil:graylink-node" }), codes.PermissionDenied, "evil"},
		{"for another audience", "h1", review(func(s, _, _ map[string]any) { s["audiences"] = []string{"vault"} }), codes.PermissionDenied, "audiences"},
		{"of a server without audiences", "h1", review(func(s, _, _ map[string]any) { delete(s, "audiences") }), codes.PermissionDenied, "audiences"},
		{"of no pod", "h1", review(func(_, _, x map[string]any) { delete(x, "authentication.kubernetes.io/pod-name") }), codes.PermissionDenied, "pod"},
		{"of no node", "h1", review(func(_, _, x map[string]any) { delete(x, "authentication.kubernetes.io/node-name") }), codes.PermissionDenied, "1.30"},
		{"that is unknown", "h1", nil, codes.PermissionDenied, "unknown token"},
	} {
		token := "token " + tc.what
		api.mu.Lock()
		api.status[token] = tc.status
		api.mu.Unlock()
		answer, err := r.ask(&agentapi.EnrollRequest{Node: tc.node, Credential: &agentapi.EnrollRequest_KubernetesToken{KubernetesToken: token}}, nil)
		if s := status.Convert(err); s.Code() != tc.code || !strings.Contains(s.Message(), tc.text) {
			t.Errorf("a token %s: %v, want %v with %q", tc.what, err, tc.code, tc.text)
		}
		if err == nil {
			if names := pki.NamesOf(pki.ParseCertificates(answer.GetCertificate())[0]); len(names) != 1 || names[0] != tc.node {
				t.Errorf("a token %s: a certificate for %q", tc.what, names)
			}
		}
	}
	for _, spec := range api.asked {
		if a, ok := spec["audiences"].([]any); !ok || len(a) != 1 || a[0] != enroll.DefaultAudience {
			t.Errorf("asked for the audiences %v", spec["audiences"])
		}
	}
	// While the API server is away a node tries again.
	api.mu.Lock()
	api.down, api.status["good"] = true, review(nil)
	api.mu.Unlock()
	e := r.node("")
	e.JoinToken, e.Node, e.CA, e.KubernetesTokenFile = nil, "h1", filepath.Join(r.dir, "ca.crt"), filepath.Join(r.dir, "sa-token")
	r.write("sa-token", []byte("good\n"))
	done := make(chan error, 1)
	go func() { done <- e.Obtain(t.Context()) }()
	failed := enroll.Outcome{Proof: enroll.ProofKubernetes, Result: enroll.ResultFailed}
	r.eventually("a question failed", func() bool { return r.enrollment.service.Stats()[failed] > 0 })
	api.mu.Lock()
	api.down = false
	api.mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(e.Directory, "ca.crt")); err == nil {
		t.Error("ca.crt was written beside --coordinator.ca")
	}
}

func TestEnrollFlagsThatCannotBeUsed(t *testing.T) {
	r := newEnrollRig(t, nil)
	other, err := pki.NewAuthority("other", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.write("other.crt", other.Cert)
	r.write("other.key", other.Key)
	r.write("both.crt", append(append([]byte{}, other.Cert...), r.ca.Cert...))
	at := func(name string) string { return filepath.Join(r.dir, name) }
	log := slog.New(slog.DiscardHandler)
	c, err := coordinator.New(r.options, log)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*enrollFlags){
		"would not trust this coordinator": func(f *enrollFlags) { f.certFile, f.keyFile = at("other.crt"), at("other.key") },
		"would not be accepted":            func(f *enrollFlags) { f.certFile, f.keyFile = at("both.crt"), at("other.key") },
		"not that of its certificate":      func(f *enrollFlags) { f.keyFile = at("other.key") },
		"no such file":                     func(f *enrollFlags) { f.tokenFile = at("nothing") },
		"at least 15m0s":                   func(f *enrollFlags) { f.life = time.Minute },
		"want NAMESPACE/NAME":              func(f *enrollFlags) { f.kubernetes, f.kubeconfig, f.account = true, kubeconfigFile(t), "graylink-node" },
	} {
		f := r.enroll
		change(&f)
		used, err := f.openUsedTokens(&r.options)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.open(c, r.certificates, used, log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for want, f := range map[string]enrollFlags{
		"belong together":              {certFile: "x"},
		"need --enroll.ca-cert":        {tokenFile: "x"},
		"needs --enroll.join-token-fi": {certFile: "x", keyFile: "x"},
	} {
		if err := f.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// weak224 returns a key that is shorter than what is accepted.
func weak224(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func kubeconfigFile(t *testing.T) string {
	_, file := newAPIServer(t)
	return file
}

var enrollNodes = flag.Int("enroll.nodes", 150, "nodes that enroll at once in TestManyNodesEnroll")

// TestManyNodesEnroll has all nodes of a fabric enroll at once, from one address, which is the worst case for its limits.
func TestManyNodesEnroll(t *testing.T) {
	const hosts = 50
	leaves := (*enrollNodes + hosts - 1) / hosts
	r := newFiles(t, topology(leaves, hosts), nil)
	r.write("ca.key", r.ca.Key)
	at := func(name string) string { return filepath.Join(r.dir, name) }
	r.enroll = enrollFlags{certFile: at("ca.crt"), keyFile: at("ca.key"), tokenFile: at("tokens"), life: enroll.DefaultLife}
	var entries strings.Builder
	tokens := make([]string, *enrollNodes)
	for i := range tokens {
		token, err := jointoken.New(fmt.Sprintf("h%d", i), pki.ParseCertificates(r.ca.Cert)[0])
		if err != nil {
			t.Fatal(err)
		}
		tokens[i] = token.String()
		entries.WriteString(jointoken.Entry{Node: token.Node, Expires: time.Now().Add(time.Hour), Hash: token.Hash()}.String())
	}
	r.write("tokens", []byte(entries.String()))
	r.start()
	t.Cleanup(func() { r.stop() })
	began := time.Now()
	var wg sync.WaitGroup
	for i, token := range tokens {
		e := r.node(token)
		wg.Go(func() {
			if err := e.Obtain(t.Context()); err != nil {
				t.Error(err)
				return
			}
			k, err := pki.Open(e.Files(), func(err error) { t.Error(err) })
			if err != nil || k.CertificateName() != fmt.Sprintf("h%d", i) {
				t.Errorf("h%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d nodes enrolled in %.1f s", len(tokens), time.Since(began).Seconds())
	if n := r.enrollment.service.Stats()[enroll.Outcome{Proof: enroll.ProofToken, Result: enroll.ResultSigned}]; n != uint64(len(tokens)) {
		t.Errorf("%d certificates for %d nodes", n, len(tokens))
	}
}
