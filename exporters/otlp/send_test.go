package otlp

import (
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestGRPCFailures(t *testing.T) {
	throttled, err := status.New(codes.ResourceExhausted, "slow down").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(7 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{}
	address := serve(t, r, "127.0.0.1:0")
	s, err := newSender(Options{Endpoint: address, Protocol: GRPC, Insecure: true}, metricsSignal)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, tc := range []struct {
		st    *status.Status
		retry bool
		after time.Duration
	}{
		{throttled, true, 7 * time.Second},
		{status.New(codes.ResourceExhausted, "message too large"), false, 0},
		{status.New(codes.Unavailable, "going away"), true, 0},
		{status.New(codes.Aborted, ""), true, 0},
		{status.New(codes.DataLoss, ""), true, 0},
		{status.New(codes.InvalidArgument, "bad data"), false, 0},
		{status.New(codes.Unauthenticated, ""), false, 0},
		{status.New(codes.Unimplemented, ""), false, 0},
	} {
		r.answers(func(context.Context, *collectorpb.ExportMetricsServiceRequest) (*collectorpb.ExportMetricsServiceResponse, error) {
			return nil, tc.st.Err()
		})
		_, err := s.export(t.Context(), &collectorpb.ExportMetricsServiceRequest{})
		var again retryable
		if err == nil || errors.As(err, &again) != tc.retry || again.after != tc.after {
			t.Errorf("%v: %#v, want retry %v after %v", tc.st, err, tc.retry, tc.after)
		}
	}
	r.answers(func(context.Context, *collectorpb.ExportMetricsServiceRequest) (*collectorpb.ExportMetricsServiceResponse, error) {
		return &collectorpb.ExportMetricsServiceResponse{PartialSuccess: &collectorpb.ExportMetricsPartialSuccess{RejectedDataPoints: 3}}, nil
	})
	if p, err := s.export(t.Context(), &collectorpb.ExportMetricsServiceRequest{}); err != nil || p.rejected != 3 {
		t.Errorf("partial success: %v, %v", p, err)
	}
}

// TestASlowReceiverCostsOneTimeout checks that the attempt ends, can be repeated, and is repeated over another
// connection.
func TestASlowReceiverCostsOneTimeout(t *testing.T) {
	r := &receiver{answer: func(ctx context.Context, _ *collectorpb.ExportMetricsServiceRequest) (*collectorpb.ExportMetricsServiceResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	s, err := newSender(Options{Endpoint: serve(t, r, "127.0.0.1:0"), Protocol: GRPC, Insecure: true}, metricsSignal)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	before := s.(*grpcSender).conn
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = s.export(ctx, &collectorpb.ExportMetricsServiceRequest{})
	var again retryable
	if !errors.As(err, &again) || s.(*grpcSender).conn == before {
		t.Fatalf("%v, want a failure that can be retried, and a new connection", err)
	}
	until(t, "the slow answer's end", func() bool { return len(r.received()) == 1 })
	r.answers(nil)
	if _, err := s.export(t.Context(), &collectorpb.ExportMetricsServiceRequest{}); err != nil {
		t.Error(err)
	}
}

// TestAReceiverThatComesBack checks a receiver that does not listen at first.
func TestAReceiverThatComesBack(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(counter)
	e, _ := newExporter(t, Options{Endpoint: address, Insecure: true, Interval: 20 * time.Millisecond, Timeout: 5 * time.Second,
		Identity: Identity{Service: "graylink-node", Host: "h1", Instance: "h1:9868", Version: "1.2.3"}, Start: time.Unix(1700000000, 0), Gather: []prometheus.Gatherer{registry}})
	run(t, e)
	until(t, "a failed attempt", func() bool { return value(t, e.series.pushes.WithLabelValues(resultRetry)) > 0 })
	r := &receiver{}
	serve(t, r, address)
	until(t, "a push", func() bool { return len(r.received()) > 0 })
	got := r.received()[0].GetResourceMetrics()[0]
	attributes := map[string]string{}
	for _, a := range got.GetResource().GetAttributes() {
		attributes[a.GetKey()] = a.GetValue().GetStringValue()
	}
	for k, v := range map[string]string{"service.name": "graylink-node", "service.version": "1.2.3", "service.instance.id": "h1:9868", "host.name": "h1"} {
		if attributes[k] != v {
			t.Errorf("resource attribute %s is %q, want %q", k, attributes[k], v)
		}
	}
	m := got.GetScopeMetrics()[0].GetMetrics()[0]
	if m.GetName() != "things" || !m.GetSum().GetIsMonotonic() || m.GetSum().GetDataPoints()[0].GetStartTimeUnixNano() == 0 {
		t.Errorf("metric %v", m)
	}
	until(t, "the count of it", func() bool { return value(t, e.series.lastSuccess) > 0 })
}

func TestHTTP(t *testing.T) {
	code, after, body := 200, "", proto.Message(&collectorpb.ExportMetricsServiceResponse{})
	var got *http.Request
	var request collectorpb.ExportMetricsServiceRequest
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		b, err := io.ReadAll(z)
		if err != nil || proto.Unmarshal(b, &request) != nil {
			t.Errorf("request of %d octets: %v", len(b), err)
		}
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.Header().Set("Location", "http://192.0.2.1/")
		w.WriteHeader(code)
		b, err = proto.Marshal(body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(b)
	}))
	defer server.Close()
	s, err := newSender(Options{Endpoint: server.URL, Protocol: HTTP, Insecure: true, HeadersFile: write(t, "headers", "# token\nAuthorization: Bearer abc:def\n\n")}, metricsSignal)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, tc := range []struct {
		code  int
		after string
		body  proto.Message
		retry bool
		wait  time.Duration
		fails bool
	}{
		{200, "", &collectorpb.ExportMetricsServiceResponse{}, false, 0, false},
		{429, "12", &spb.Status{Message: "slow down"}, true, 12 * time.Second, true},
		{503, "", &spb.Status{}, true, 0, true},
		{502, "soon", &spb.Status{}, true, 0, true},
		{504, "", &spb.Status{}, true, 0, true},
		{400, "", &spb.Status{Message: "bad data"}, false, 0, true},
		{401, "", &spb.Status{}, false, 0, true},
		{500, "", &spb.Status{}, false, 0, true},
		{307, "", &spb.Status{}, false, 0, true},
	} {
		code, after, body = tc.code, tc.after, tc.body
		_, err := s.export(t.Context(), &collectorpb.ExportMetricsServiceRequest{})
		var again retryable
		if (err != nil) != tc.fails || errors.As(err, &again) != tc.retry || again.after != tc.wait {
			t.Errorf("%d: %v, want failure %v, retry %v after %v", tc.code, err, tc.fails, tc.retry, tc.wait)
		}
		if st, ok := tc.body.(*spb.Status); ok && err != nil && !strings.Contains(err.Error(), st.GetMessage()) {
			t.Errorf("%v, want what the receiver said: %q", err, st.GetMessage())
		}
	}
	if got.URL.Path != "/v1/metrics" || got.Header.Get("Authorization") != "Bearer abc:def" || got.Header.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("%s %v", got.URL, got.Header)
	}
	code, body = 200, &collectorpb.ExportMetricsServiceResponse{PartialSuccess: &collectorpb.ExportMetricsPartialSuccess{RejectedDataPoints: 2}}
	if p, err := s.export(t.Context(), &collectorpb.ExportMetricsServiceRequest{}); err != nil || p.rejected != 2 {
		t.Errorf("partial success: %v, %v", p, err)
	}
	server.Close()
	var again retryable
	if _, err := s.export(t.Context(), &collectorpb.ExportMetricsServiceRequest{}); !errors.As(err, &again) {
		t.Errorf("server down: %v, want a failure that can be retried", err)
	}
}

func TestRetryAfterDate(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Duration{"": 0, "30": 30 * time.Second, "-3": 0, "Sat, 21 Nov 2026 10:01:30 GMT": 90 * time.Second, "Sat, 21 Nov 2026 09:00:00 GMT": 0} {
		if got := retryAfter(s, now); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}

func TestOptionsThatCannotBeUsed(t *testing.T) {
	for _, tc := range []struct {
		o    Options
		want string
	}{
		{Options{Endpoint: "collector"}, `endpoint "collector": want host:port`},
		{Options{Endpoint: ""}, `endpoint "": want host:port`},
		{Options{Endpoint: "http://collector:4317"}, "want https://"},
		{Options{Endpoint: "https://collector:4317", Insecure: true}, "want http://"},
		{Options{Endpoint: "collector:4317/v1/metrics"}, "want host:port"},
		{Options{Endpoint: "user:secret@collector:4318", Protocol: HTTP}, "want host:port or a URL"},
		{Options{Endpoint: "collector:4317", Protocol: "udp"}, `protocol "udp": want grpc or http`},
		{Options{Endpoint: "collector:4317", Interval: -1}, "want positive durations"},
		{Options{Endpoint: "collector:4317", TLS: TLSFiles{CA: "/nowhere"}}, "/nowhere"},
		{Options{Endpoint: "collector:4317", TLS: TLSFiles{CA: write(t, "ca", "x")}}, "want certificates in PEM"},
		{Options{Endpoint: "collector:4317", TLS: TLSFiles{Cert: "a"}}, "want both"},
		{Options{Endpoint: "collector:4317", TLS: TLSFiles{Cert: "/nowhere", Key: "/nowhere"}}, "/nowhere"},
		{Options{Endpoint: "collector:4317", TLS: TLSFiles{CA: "a"}, Insecure: true}, "cannot be combined with a connection without TLS"},
		{Options{Endpoint: "collector:4317", HeadersFile: "/nowhere"}, "/nowhere"},
	} {
		if _, err := New(tc.o, prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.o, err, tc.want)
		}
	}
}

func TestHeadersFile(t *testing.T) {
	for text, want := range map[string]string{
		"authorization: Bearer s3cret": "", "": "", "# only a comment\n": "",
		"x: 1\nauthorization s3cret\n": "line 2: want", ": s3cret": "line 1: want", "a b: s3cret": "line 1: want", "x:": "line 1: want",
		"x: s3cret\x01": "printable", "content-type: s3cret": "belongs to the protocol", "x: 1\nX: s3cret": "twice",
	} {
		_, err := readHeaders(write(t, "headers", text))
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		case err != nil && strings.Contains(err.Error(), "s3cret"):
			t.Errorf("the error reveals the secret: %v", err)
		}
	}
}

// authority signs certificates for 127.0.0.1.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	var der []byte
	der, a.key = a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.cert = cert
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.n++
	c.SerialNumber, c.Subject = big.NewInt(a.n), pkix.Name{CommonName: "test"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

func (a *authority) pair(t *testing.T, usage x509.ExtKeyUsage) (cert, key string) {
	t.Helper()
	der, k := a.sign(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage}})
	b, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b}))
}

// TestMutualTLS, with a client certificate that is renewed while it is in use.
func TestMutualTLS(t *testing.T) {
	a := newAuthority(t)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	serverCert, serverKey := a.pair(t, x509.ExtKeyUsageServerAuth)
	pair, err := tls.X509KeyPair([]byte(serverCert), []byte(serverKey))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	r := &receiver{}
	address := serve(t, r, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(config)))
	clientCert, clientKey := a.pair(t, x509.ExtKeyUsageClientAuth)
	files := TLSFiles{CA: write(t, "ca.pem", ca), Cert: write(t, "cert.pem", clientCert), Key: write(t, "key.pem", clientKey)}
	export := func(o Options) error {
		s, err := newSender(o, metricsSignal)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = s.export(ctx, &collectorpb.ExportMetricsServiceRequest{})
		return err
	}
	headers := write(t, "headers", "x-scope-orgid: fabric\n")
	if err := export(Options{Endpoint: address, Protocol: GRPC, TLS: files, HeadersFile: headers}); err != nil {
		t.Error(err)
	}
	r.mu.Lock()
	got := r.headers.Get("x-scope-orgid")
	r.mu.Unlock()
	if len(got) != 1 || got[0] != "fabric" {
		t.Errorf("header x-scope-orgid %v, want fabric", got)
	}
	if err := export(Options{Endpoint: address, Protocol: GRPC, TLS: TLSFiles{CA: files.CA}}); err == nil {
		t.Error("a client without a certificate got in")
	}
	if err := export(Options{Endpoint: address, Protocol: GRPC, TLS: TLSFiles{Cert: files.Cert, Key: files.Key}}); err == nil {
		t.Error("a receiver without a known authority was trusted")
	}
	renewedCert, renewedKey := a.pair(t, x509.ExtKeyUsageClientAuth)
	config2, err := files.clientConfig("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{files.Cert: renewedCert, files.Key: renewedKey} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shown, err := config2.GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(renewedCert))
	if string(shown.Certificate[0]) != string(block.Bytes) {
		t.Error("the renewed certificate is not the one shown")
	}
}

// TestAuthoritiesAreRead at every handshake, by both protocols: a receiver of another authority is believed once the file
// has that, and no longer once it has not. Names and addresses are verified as ever.
func TestAuthoritiesAreRead(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	text := func(a *authority) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	}
	config := func(c *x509.Certificate) *tls.Config {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		der, key := a.sign(t, c)
		return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2"}}
	}
	own := func() *tls.Config { return config(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}) }
	grpcAddress := serve(t, &receiver{}, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(own())))
	other := serve(t, &receiver{}, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(config(&x509.Certificate{DNSNames: []string{"other.invalid"}}))))
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	web.TLS = own()
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.StartTLS()
	defer web.Close()
	ca := write(t, "ca.pem", text(a))
	senders := map[string]sender{}
	for name, o := range map[string]Options{"grpc": {Endpoint: grpcAddress, Protocol: GRPC}, "http": {Endpoint: web.Listener.Addr().String(), Protocol: HTTP}, "another name": {Endpoint: other, Protocol: GRPC}} {
		o.TLS.CA = ca
		s, err := newSender(o, metricsSignal)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		senders[name] = s
	}
	believed := func(what string, want bool) {
		t.Helper()
		for name, s := range senders {
			switch x := s.(type) { // a new connection
			case *grpcSender:
				if err := errors.Join(x.close(), x.openClient()); err != nil {
					t.Fatal(err)
				}
			case *httpSender:
				x.client.CloseIdleConnections()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := s.export(ctx, &collectorpb.ExportMetricsServiceRequest{})
			cancel()
			if want := want && name != "another name"; (err == nil) != want {
				t.Errorf("%s by %s: %v, want it believed: %v", what, name, err, want)
			}
		}
	}
	replace := func(text string) {
		if err := os.WriteFile(ca, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	believed("its authority", true)
	replace(text(b))
	believed("another authority", false)
	replace(text(b) + text(a))
	believed("both authorities", true)
	replace("")
	believed("no authority", false)
}
