package ufm

import (
	"cmp"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Options say how to reach a service of UFM.
type Options struct {
	// URL is the service's URL without a path: https://ufm.example or http://ufm:9001.
	URL string
	// UsernameFile and PasswordFile select basic authentication, base /ufmRest.
	UsernameFile, PasswordFile string
	// TokenFile selects token authentication, base /ufmRestV3.
	TokenFile string
	// CertFile and KeyFile select a client certificate, base /ufmRestV2.
	CertFile, KeyFile string
	// CAFile has the trusted certificates. If it is empty, the system's are trusted.
	CAFile string
	// ServerName is the name in the service's certificate. If it is empty, the URL's host is expected.
	ServerName string
	// Insecure turns off the verification of certificates.
	Insecure bool
	// Timeout bounds one request with its body.
	Timeout time.Duration
	// Retries is how often a request is repeated after no connection was made, or the service was busy (429,
	// 502, 503, 504). A request whose body breaks off is not repeated.
	Retries int
	// MaxBody is the largest size of a body in octets.
	MaxBody int64
	// Sleep waits between tries; nil means a timer. Random returns a number in [0, 1); nil means math/rand.
	Sleep  func(context.Context, time.Duration) error
	Random func() float64
}

// Validate returns an error that names the first key with a wrong value.
func (o *Options) Validate() error {
	u, err := url.Parse(o.URL)
	ways := 0
	for _, w := range []bool{o.UsernameFile != "" || o.PasswordFile != "", o.TokenFile != "", o.CertFile != "" || o.KeyFile != ""} {
		if w {
			ways++
		}
	}
	switch {
	case err != nil: // the error's text contains the URL, which may have a password
		return errors.New("endpoint: a URL is expected")
	case u.User != nil:
		return errors.New("endpoint: credentials are expected in files, not in the URL")
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return fmt.Errorf("endpoint: %q: http://HOST or https://HOST is expected", o.URL)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("endpoint: %q: a URL without path and query is expected", o.URL)
	case (o.UsernameFile == "") != (o.PasswordFile == ""):
		return errors.New("auth: username_file and password_file are expected together")
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("auth: cert_file and key_file are expected together")
	case ways > 1:
		return errors.New("auth: one of username_file, token_file and cert_file is expected")
	case ways > 0 && u.Scheme != "https":
		return errors.New("endpoint: https is expected where credentials are sent")
	case u.Scheme != "https" && (o.CAFile != "" || o.ServerName != "" || o.Insecure):
		return errors.New("tls: https is expected of the endpoint")
	case o.Insecure && o.CAFile != "":
		return errors.New("tls: ca_file and insecure_skip_verify exclude each other")
	case o.Timeout < 10*time.Millisecond || o.Timeout > 10*time.Minute:
		return fmt.Errorf("timeout: %v: 10ms to 10m are expected", o.Timeout)
	case o.Retries < 0 || o.Retries > 16:
		return fmt.Errorf("retries: %d: 0 to 16 are expected", o.Retries)
	case o.MaxBody < 1<<10 || o.MaxBody > 4<<30:
		return fmt.Errorf("max_body_bytes: %d: 1 KiB to 4 GiB are expected", o.MaxBody)
	}
	return nil
}

// Client sends requests to one service.
type Client struct {
	options Options
	base    *url.URL
	http    *http.Client
}

// NewClient returns a client for valid options. Files are read again whenever they are needed; the file of
// trusted certificates must also exist at the start.
func NewClient(o Options) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, errors.New("endpoint: a URL is expected")
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName, InsecureSkipVerify: o.Insecure}
	if o.CAFile != "" {
		if _, err := o.trusted(); err != nil {
			return nil, err
		}
		// RootCAs cannot change during the life of a configuration. verify does what crypto/tls would do with them.
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(s tls.ConnectionState) error {
			// The state has no name where the service, or a proxy before it, is known by its address.
			return o.verify(s.PeerCertificates, cmp.Or(s.ServerName, o.ServerName, u.Hostname()))
		}
	}
	if o.CertFile != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
			if err != nil {
				return nil, errorf(KindCredentials, "cert_file, key_file: %w", err)
			}
			return &c, nil
		}
	}
	if o.Sleep == nil {
		o.Sleep = sleepContext
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return &Client{options: o, base: u, http: &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true,
			DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 2, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// trusted returns the certificates of the file of trusted ones.
func (o *Options) trusted() (*x509.CertPool, error) {
	pem, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, errorf(KindCredentials, "ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errorf(KindCredentials, "ca_file: %s: certificates in PEM are expected", o.CAFile)
	}
	return pool, nil
}

// verify returns an error unless the certificates of the service, its own first, are valid for the trusted ones and
// its name.
func (o *Options) verify(chain []*x509.Certificate, name string) error {
	roots, err := o.trusted()
	if err != nil {
		return err
	}
	v := x509.VerifyOptions{Roots: roots, DNSName: name, Intermediates: x509.NewCertPool()}
	for _, c := range chain[1:] {
		v.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(v); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Endpoint returns the scheme and the host of the service, for persons.
func (c *Client) Endpoint() string { return "UFM " + c.base.Scheme + "://" + c.base.Host }

// BasePath returns the path of the REST interface for the client's way of authentication.
func (c *Client) BasePath() string {
	switch {
	case c.options.TokenFile != "":
		return "/ufmRestV3"
	case c.options.CertFile != "":
		return "/ufmRestV2"
	}
	return "/ufmRest"
}

func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// The back-off begins with firstWait, doubles up to maxWait, and is reduced at random by up to half, so that
// many clients do not return together.
const (
	firstWait = 500 * time.Millisecond
	maxWait   = 30 * time.Second
)

func (c *Client) backoffDelay(try int, asked time.Duration) time.Duration {
	d := maxWait
	if try < 6 {
		d = min(maxWait, firstWait<<try)
	}
	d = max(d, min(asked, maxWait))
	return d/2 + time.Duration(c.options.Random()*float64(d/2))
}

// readSecret returns a file's text without its end of line. The text never becomes part of an error.
func readSecret(key, file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", errorf(KindCredentials, "%s: %w", key, err)
	}
	text := strings.TrimRight(string(b), "\r\n")
	if text == "" || strings.ContainsAny(text, "\r\n\x00") {
		return "", errorf(KindCredentials, "%s: %s: one line is expected", key, file)
	}
	return text, nil
}

func (c *Client) addCredentials(r *http.Request) error {
	switch {
	case c.options.TokenFile != "":
		token, err := readSecret("token_file", c.options.TokenFile)
		if err != nil {
			return err
		}
		// UFM expects tokens under the scheme Basic.
		r.Header.Set("Authorization", "Basic "+token)
	case c.options.UsernameFile != "":
		user, err := readSecret("username_file", c.options.UsernameFile)
		if err != nil {
			return err
		}
		password, err := readSecret("password_file", c.options.PasswordFile)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
	}
	return nil
}

// Get requests a path with a query and passes the body, bounded in size and time, to read. It returns errors of
// type Error.
func (c *Client) Get(ctx context.Context, path string, read func(io.Reader) error) error {
	for try := 0; ; try++ {
		asked, again, err := c.getOnce(ctx, path, read)
		if err == nil || !again || try >= c.options.Retries || ctx.Err() != nil {
			return err
		}
		if c.options.Sleep(ctx, c.backoffDelay(try, asked)) != nil {
			return err
		}
	}
}

func (c *Client) getOnce(ctx context.Context, path string, read func(io.Reader) error) (asked time.Duration, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	u := *c.base
	u.Path, u.RawQuery, _ = strings.Cut(path, "?")
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, false, errorf(KindMalformed, "%s: %w", path, err)
	}
	if err := c.addCredentials(r); err != nil {
		return 0, false, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		var own *Error
		if errors.As(err, &own) {
			return 0, false, own
		}
		k := transportKind(err)
		return 0, k == KindConnect, errorf(k, "%w", err)
	}
	defer resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
		// Proxies and login pages answer 200 with a page for people. Other content types are not checked,
		// because services differ in how they label their documents.
		if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && (kind == "text/html" || kind == "application/xhtml+xml") {
			return 0, false, errorf(KindMalformed, "%s answers a page of type %s, data is expected", u.String(), kind)
		}
	case code == http.StatusNotFound:
		return 0, false, errorf(KindStatus, "%s answers %s: %w", u.String(), resp.Status, ErrNotOffered)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return 0, false, errorf(KindUnauthorized, "%s answers %s", u.String(), resp.Status)
	case code >= 300 && code < 400:
		return 0, false, errorf(KindRedirect, "%s answers %s: redirects are not followed", u.String(), resp.Status)
	default:
		busy := code == http.StatusTooManyRequests || code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout
		return retryAfter(resp.Header), busy, errorf(KindStatus, "%s answers %s", u.String(), resp.Status)
	}
	err = read(&boundedReader{resp.Body, c.options.MaxBody, c.options.MaxBody})
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		// The end of the body is no evidence: a service that sees the client leave may end its document
		// properly, in the middle.
		return 0, false, errorf(KindTimeout, "%s: not all of it came within %v: %w", u.String(), c.options.Timeout, cmp.Or(err, ctx.Err()))
	case err != nil:
		k := KindMalformed
		var own *Error
		if errors.As(err, &own) {
			k = own.Kind
		}
		return 0, false, &Error{k, fmt.Errorf("%s: %w", u.String(), err)}
	}
	return 0, false, nil
}

// ErrNotOffered is wrapped by the error about a path that the service does not have.
var ErrNotOffered = errors.New("the service does not have it")

// retryAfter returns how long the service wants the client to wait: a number of seconds, or a date by the
// service's own clock (RFC 9110 section 10.2.3).
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if s, err := strconv.ParseUint(text, 10, 16); err == nil {
		return time.Duration(s) * time.Second
	}
	at, err1 := http.ParseTime(text)
	now, err2 := http.ParseTime(h.Get("Date"))
	if err1 != nil || err2 != nil {
		return 0
	}
	return max(0, at.Sub(now))
}

// boundedReader ends a body that is too large with an error instead of io.EOF.
type boundedReader struct {
	r         io.Reader
	left, max int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errorf(KindTooLarge, "the body has more than %d octets", b.max)
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, errorf(KindTooLarge, "the body has more than %d octets", b.max)
	}
	return n, err
}

// transportKind returns the kind of an error of net/http.
func transportKind(err error) Kind {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verify *tls.CertificateVerificationError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	var timeout interface{ Timeout() bool }
	var deflate flate.CorruptInputError
	switch {
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.As(err, &deflate):
		return KindMalformed
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid), errors.As(err, &verify), errors.As(err, &alert), errors.As(err, &record):
		return KindTLS
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return KindTimeout
	}
	return KindConnect
}

// fetchList requests a list of the REST interface and calls each with each of its elements.
func fetchList[T any](ctx context.Context, c *Client, path string, each func(T)) error {
	return c.Get(ctx, c.BasePath()+path, func(r io.Reader) error { return decodeList(r, each) })
}

// maxElements bounds the number of elements of a list, and so its memory.
const maxElements = 1 << 20

// decodeList reads an array, or an object that has an array as its only one, element by element. It calls each
// after the whole document has been read. An unexpected element is an error.
func decodeList[T any](r io.Reader, each func(T)) error {
	d := json.NewDecoder(r)
	var all []T
	if err := expectDelim(d, json.Delim('[')); err != nil {
		return err
	}
	for d.More() {
		var x T
		if err := d.Decode(&x); err != nil {
			return decodeError(err, len(all)+1)
		}
		if all = append(all, x); len(all) > maxElements {
			return errorf(KindTooLarge, "element %d: %d at most are expected", len(all), maxElements)
		}
	}
	if err := expectDelim(d, json.Delim(']')); err != nil {
		return err
	}
	for _, x := range all {
		each(x)
	}
	return nil
}

func expectDelim(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		return decodeError(err, 0)
	}
	if t != want {
		return errorf(KindMalformed, "octet %d: %v is expected", d.InputOffset(), want)
	}
	return nil
}

func decodeError(err error, element int) error {
	var own *Error
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errorf(KindTruncated, "element %d: the document ends in the middle", element)
	case errors.As(err, &syntax), errors.As(err, &typ):
		return errorf(KindMalformed, "element %d: %w", element, err)
	}
	var net net.Error
	if errors.As(err, &net) {
		return &Error{transportKind(err), err}
	}
	return errorf(KindMalformed, "element %d: %w", element, err)
}
