package otlp

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	logscollectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcgzip "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// sender sends requests of one signal by one protocol. Its errors are either retryable or final.
type sender interface {
	export(context.Context, proto.Message) (partialSuccess, error)
	close() error
}

// partialSuccess represents a receiver's answer to a request that it accepted: the number of rejected parts, and a message.
type partialSuccess struct {
	rejected int64
	message  string
}

// signal represents a signal of OTLP: metrics or logs.
type signal struct {
	name   string // for messages: "metrics"
	parts  string // what a receiver counts: "points"
	path   string // of OTLP/HTTP, from its specification
	method string // of OTLP/gRPC, from the service in the protocol's .proto
	// newResponse returns an empty response, and a function that returns its content after the response was decoded.
	newResponse func() (proto.Message, func() partialSuccess)
}

var metricsSignal = signal{name: "metrics", parts: "points", path: "/v1/metrics", method: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
	newResponse: func() (proto.Message, func() partialSuccess) {
		var r collectorpb.ExportMetricsServiceResponse
		return &r, func() partialSuccess {
			return partialSuccess{r.GetPartialSuccess().GetRejectedDataPoints(), r.GetPartialSuccess().GetErrorMessage()}
		}
	}}

var logsSignal = signal{name: "logs", parts: "records", path: "/v1/logs", method: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
	newResponse: func() (proto.Message, func() partialSuccess) {
		var r logscollectorpb.ExportLogsServiceResponse
		return &r, func() partialSuccess {
			return partialSuccess{r.GetPartialSuccess().GetRejectedLogRecords(), r.GetPartialSuccess().GetErrorMessage()}
		}
	}}

// retryable is a failure that may be temporary.
type retryable struct {
	err   error
	after time.Duration // delay that the receiver asked for; 0 if it asked for none
}

func (r retryable) Error() string { return r.err.Error() }
func (r retryable) Unwrap() error { return r.err }

func newSender(o Options, of signal) (sender, error) {
	target, err := parseEndpoint(o, of)
	if err != nil {
		return nil, err
	}
	var t *tls.Config
	if o.Insecure {
		if o.TLS != (TLSFiles{}) {
			return nil, errors.New("OTLP: certificates cannot be combined with a connection without TLS")
		}
	} else if t, err = o.TLS.clientConfig(target.Hostname()); err != nil {
		return nil, err
	}
	if o.HeadersFile != "" {
		if _, err := readHeaders(o.HeadersFile); err != nil {
			return nil, err
		}
	}
	if o.Protocol == HTTP {
		transport := &http.Transport{TLSClientConfig: t, ForceAttemptHTTP2: true, IdleConnTimeout: 2 * o.Interval}
		// Following a redirect would send the credentials to another host.
		stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		return &httpSender{signal: of, url: target.String(), headersFile: o.HeadersFile, client: &http.Client{Transport: transport, CheckRedirect: stay}}, nil
	}
	s := &grpcSender{signal: of, target: target.Host, headersFile: o.HeadersFile, creds: insecure.NewCredentials()}
	if t != nil {
		s.creds = credentials.NewTLS(t)
	}
	return s, s.openClient()
}

// parseEndpoint returns the URL of an endpoint. An HTTP endpoint without a path gets the path of the OTLP specification.
func parseEndpoint(o Options, of signal) (*url.URL, error) {
	want := map[string]string{GRPC: "host:port", HTTP: "host:port or a URL"}[o.Protocol]
	if want == "" {
		return nil, fmt.Errorf("OTLP protocol %q: want %s or %s", o.Protocol, GRPC, HTTP)
	}
	scheme := "https"
	if o.Insecure {
		scheme = "http"
	}
	text := o.Endpoint
	if !strings.Contains(text, "://") {
		text = scheme + "://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("OTLP endpoint %q: want %s", o.Endpoint, want)
	case u.Scheme != scheme:
		return nil, fmt.Errorf("OTLP endpoint %q: want %s:// (plain text has to be enabled)", o.Endpoint, scheme)
	case o.Protocol == GRPC && (u.Port() == "" || strings.Trim(u.Path, "/") != ""):
		return nil, fmt.Errorf("OTLP endpoint %q: want host:port", o.Endpoint)
	case o.Protocol == HTTP && strings.Trim(u.Path, "/") == "":
		u.Path = of.path
	}
	return u, nil
}

// TLSFiles holds the names of PEM files. All may be empty. The receiver's certificate is then verified by the system's
// authorities, and the client presents none.
type TLSFiles struct{ CA, Cert, Key string }

// clientConfig returns the TLS configuration of connections to a receiver of that name or address. The files are read at
// every handshake: certificates are renewed while daemons run.
func (f TLSFiles) clientConfig(receiver string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: receiver}
	if f.CA != "" {
		if _, err := f.authorities(); err != nil {
			return nil, err
		}
		// RootCAs cannot change during the life of a configuration. verify does what crypto/tls would do with them.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(s tls.ConnectionState) error { return f.verify(s.PeerCertificates, receiver) }
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("OTLP client certificate: want both the certificate and the key, or neither")
	}
	if f.Cert == "" {
		return c, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("OTLP client certificate: %w", err)
		}
		return &pair, nil
	}
	// The files are read at every handshake, because certificates are renewed while the program runs.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	_, err := load()
	return c, err
}

// authorities reads the authorities that sign the receiver's certificate.
func (f TLSFiles) authorities() (*x509.CertPool, error) {
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("OTLP authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("OTLP authority %s: want certificates in PEM", f.CA)
	}
	return pool, nil
}

// verify checks the certificates that the receiver showed, its own first, against the authorities and its name.
func (f TLSFiles) verify(chain []*x509.Certificate, receiver string) error {
	roots, err := f.authorities()
	if err != nil {
		return err
	}
	o := x509.VerifyOptions{Roots: roots, DNSName: receiver, Intermediates: x509.NewCertPool()}
	for _, c := range chain[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(o); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}

// readHeaders reads "name: value" lines. It skips empty lines and lines that begin with #. Errors name the line and never
// the value.
func readHeaders(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("OTLP headers: %w", err)
	}
	out := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok || name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || value == "":
			return nil, fmt.Errorf("%s: line %d: want \"name: value\"", file, n)
		case strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) >= 0:
			return nil, fmt.Errorf("%s: line %d: header %s: want a value of printable ASCII", file, n, name)
		case name == "content-type" || name == "content-encoding" || strings.HasPrefix(name, "grpc-"):
			return nil, fmt.Errorf("%s: line %d: header %s belongs to the protocol, want another", file, n, name)
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%s: line %d: header %s is given twice", file, n, name)
		}
		out[name] = value
	}
	return out, lines.Err()
}

// grpcSender sends by OTLP/gRPC.
type grpcSender struct {
	signal      signal
	target      string
	headersFile string
	creds       credentials.TransportCredentials
	conn        *grpc.ClientConn
}

func (s *grpcSender) openClient() (err error) {
	s.conn, err = grpc.NewClient(s.target, grpc.WithTransportCredentials(s.creds), grpc.WithDefaultCallOptions(grpc.UseCompressor(grpcgzip.Name)))
	if err != nil {
		return fmt.Errorf("OTLP endpoint %s: %w", s.target, err)
	}
	return nil
}

func (s *grpcSender) close() error { return s.conn.Close() }

// retryableCodes holds the codes of "Failures" under OTLP/gRPC in the OTLP specification. RESOURCE_EXHAUSTED is retryable
// only with RetryInfo.
var retryableCodes = []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss}

func (s *grpcSender) export(ctx context.Context, request proto.Message) (partialSuccess, error) {
	if s.headersFile != "" {
		headers, err := readHeaders(s.headersFile)
		if err != nil {
			return partialSuccess{}, retryable{err: err}
		}
		ctx = metadata.NewOutgoingContext(ctx, metadata.New(headers))
	}
	response, says := s.signal.newResponse()
	err := s.conn.Invoke(ctx, s.signal.method, request, response)
	if err == nil {
		return says(), nil
	}
	st := status.Convert(err)
	var after time.Duration
	throttled := false
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			after, throttled = info.GetRetryDelay().AsDuration(), true
		}
	}
	if st.Code() == codes.DeadlineExceeded {
		// gRPC notices only after a quarter of an hour that the other end of a connection vanished. A new connection fails at once.
		if err := errors.Join(s.conn.Close(), s.openClient()); err != nil {
			return partialSuccess{}, err
		}
	}
	if slices.Contains(retryableCodes, st.Code()) || st.Code() == codes.ResourceExhausted && throttled {
		return partialSuccess{}, retryable{err: err, after: after}
	}
	return partialSuccess{}, err
}

// httpSender sends by OTLP/HTTP with binary protobuf.
type httpSender struct {
	signal      signal
	url         string
	headersFile string
	client      *http.Client
}

func (s *httpSender) close() error {
	s.client.CloseIdleConnections()
	return nil
}

// maxAnswer limits the octets that are read of a receiver's answer.
const maxAnswer = 64 << 10

func (s *httpSender) export(ctx context.Context, request proto.Message) (partialSuccess, error) {
	plain, err := proto.Marshal(request)
	if err != nil {
		return partialSuccess{}, fmt.Errorf("OTLP request: %w", err)
	}
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	if _, err := z.Write(plain); err != nil {
		return partialSuccess{}, fmt.Errorf("OTLP request: %w", err)
	}
	if err := z.Close(); err != nil {
		return partialSuccess{}, fmt.Errorf("OTLP request: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, &body)
	if err != nil {
		return partialSuccess{}, fmt.Errorf("OTLP request: %w", err)
	}
	if s.headersFile != "" {
		headers, err := readHeaders(s.headersFile)
		if err != nil {
			return partialSuccess{}, retryable{err: err}
		}
		for name, value := range headers {
			r.Header.Set(name, value)
		}
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Content-Encoding", "gzip")
	answer, err := s.client.Do(r)
	if err != nil {
		return partialSuccess{}, retryable{err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return partialSuccess{}, retryable{err: fmt.Errorf("%s: %w", s.url, err)}
	}
	if answer.StatusCode/100 == 2 {
		response, says := s.signal.newResponse()
		if answer.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(text, response) != nil {
			return partialSuccess{}, nil // the request was accepted; the rest of the answer cannot be decoded
		}
		return says(), nil
	}
	why := &spb.Status{}
	if proto.Unmarshal(text, why) != nil {
		why.Message = ""
	}
	err = fmt.Errorf("%s: %s: %q", s.url, answer.Status, why.GetMessage())
	switch answer.StatusCode {
	// "Retryable Response Codes" in the OTLP specification.
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return partialSuccess{}, retryable{err: err, after: retryAfter(answer.Header.Get("Retry-After"), time.Now())}
	}
	return partialSuccess{}, err
}

// retryAfter parses a Retry-After header (RFC 9110 section 10.2.3). It returns 0 if there is none, or if it is malformed.
func retryAfter(s string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
