// Package kubeapi sends requests to the API server of Kubernetes.
package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/graylink/graylink/internal/pki"
)

// Client is the API server, as far as it is used here. client-go brings authentication, rotation of tokens and
// certificates, and TLS. Its typed clients do not fit: they link the types of all of Kubernetes, and graylink-node would
// have 62.8 MB instead of 31.6 (25.5 without Kubernetes; measured with client-go v0.37.0 on amd64).
type Client struct {
	name         string
	base         *url.URL
	client       *http.Client
	certificates *pki.Watch
}

// requestTimeout is how long a request may take.
const requestTimeout = 10 * time.Second

// Open returns a client whose requests have the name of a program as their user agent and field manager. A kubeconfig
// has the address and credentials of the API server; "" means the pod's service account. Open returns an error if it is
// not known how to reach an API server. Whether there is one shows with the first request.
func Open(kubeconfig, name string) (*Client, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read how to reach Kubernetes: %w", err)
	}
	c, err := New(config, name)
	if err != nil {
		return nil, err
	}
	c.certificates = pki.NewWatch(certificates(config, kubeconfig)...)
	return c, nil
}

// New returns a client by a configuration of client-go.
func New(config *rest.Config, name string) (*Client, error) {
	config = rest.AddUserAgent(config, name)
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("API server %q: %w", config.Host, err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", base.Host, err)
	}
	// A redirect would take the token elsewhere. The client is a copy: it can be the default one.
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{name: name, base: base, client: &own, certificates: pki.NewWatch()}, nil
}

// certificates lists those of the connections to the API server: data of the kubeconfig, else files, which client-go
// reads again as well.
func certificates(config *rest.Config, kubeconfig string) []pki.CertificateFile {
	files := pki.FilesOf(config.CAFile, config.CertFile)
	for i, data := range [][]byte{config.CAData, config.CertData} {
		if len(data) > 0 {
			files[i].Name, files[i].Text = kubeconfig, string(data)
		}
	}
	return files
}

// Expiries implements pki.Source: it lists the certificates of the connections to the API server.
func (c *Client) Expiries() []pki.Expiry { return c.certificates.Expiries() }

// CloseIdleConnections closes the connections that no request uses.
func (c *Client) CloseIdleConnections() { c.client.CloseIdleConnections() }

// Failure is a request that the server did not do.
type Failure struct {
	Code       int           // of HTTP; 0: there was no answer
	RetryAfter time.Duration // wait that the server requested; 0 if none
	Err        error
}

// Error implements error.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Err }

// IsPermanent reports whether err is a Failure, and the same request would be refused for ever because it is wrong. Rights
// can be given later, and tokens are renewed.
func IsPermanent(err error) bool {
	var f *Failure
	if !errors.As(err, &f) {
		return false
	}
	switch f.Code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	}
	return f.Code/100 == 4 || f.Code/100 == 3
}

// HasCode reports whether err is a Failure with a status of HTTP.
func HasCode(err error, code int) bool {
	var f *Failure
	return errors.As(err, &f) && f.Code == code
}

// Content types of requests.
const (
	TypeJSON  = "application/json"
	TypePatch = "application/strategic-merge-patch+json"
)

// maxAnswer bounds what is read of an answer, in octets. A Node with the names of many images is some hundreds of
// kilobytes.
const maxAnswer = 4 << 20

// SendRequest sends a request to a path of the API, and reads the answer into into unless that is nil. Errors are
// Failures.
func (c *Client) SendRequest(ctx context.Context, method, contentType string, body, into any, path ...string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	b, err := json.Marshal(body)
	if err != nil {
		return &Failure{Err: err}
	}
	u := c.base.JoinPath(path...)
	u.RawQuery = url.Values{"fieldManager": {c.name}}.Encode()
	q, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(b))
	if err != nil {
		return &Failure{Err: err}
	}
	q.Header.Set("Content-Type", contentType)
	q.Header.Set("Accept", TypeJSON)
	answer, err := c.client.Do(q)
	if err != nil {
		return &Failure{Err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return &Failure{Err: fmt.Errorf("%s %s: %w", method, u.Path, err)}
	}
	if err := parseAnswer(answer.StatusCode, answer.Header.Get("Retry-After"), text, into); err != nil {
		err.Err = fmt.Errorf("%s %s: %w", method, u.Path, err.Err)
		return err
	}
	return nil
}

// parseAnswer reads an answer into into, or returns what failed. Failures have a metav1.Status.
func parseAnswer(code int, retryAfter string, text []byte, into any) *Failure {
	if code/100 == 2 {
		if into == nil {
			return nil
		}
		if err := json.Unmarshal(text, into); err != nil {
			return &Failure{Code: code, Err: fmt.Errorf("answer %d: %w", code, err)}
		}
		return nil
	}
	var status struct {
		Message string `json:"message"`
		Details struct {
			RetryAfterSeconds int64 `json:"retryAfterSeconds"`
		} `json:"details"`
	}
	if json.Unmarshal(text, &status) != nil {
		status.Message = ""
	}
	f := &Failure{Code: code, Err: fmt.Errorf("%d %s: %q", code, http.StatusText(code), Truncate(status.Message))}
	// RFC 9110 section 10.2.3; the API server sends seconds, and what stands before it may send a date.
	if seconds, err := strconv.ParseUint(retryAfter, 10, 31); err == nil {
		f.RetryAfter = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(retryAfter); err == nil {
		f.RetryAfter = max(0, time.Until(at))
	} else if s := status.Details.RetryAfterSeconds; s > 0 && s < 1<<31 {
		f.RetryAfter = time.Duration(s) * time.Second
	}
	return f
}

// MaxMessage is the maximum length of messages of conditions and events, in octets.
const MaxMessage = 1024

// Truncate cuts a message to MaxMessage between characters, and makes it valid UTF-8.
func Truncate(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= MaxMessage {
		return s
	}
	const end = "..."
	n := MaxMessage - len(end)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + end
}
