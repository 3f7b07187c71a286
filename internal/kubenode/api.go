package kubenode

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
)

// api is the API server, as far as it is used here. client-go brings authentication, rotation of tokens and certificates, and TLS. Its typed
// clients do not fit: they link the types of all of Kubernetes, and graylink-node would have 62.8 MB instead of 31.6 (25.5 without Kubernetes;
// measured with client-go v0.37.0 on amd64).
type api struct {
	base   *url.URL
	client *http.Client
}

func newAPI(config *rest.Config) (*api, error) {
	config = rest.AddUserAgent(config, "graylink-node")
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
	return &api{base: base, client: &own}, nil
}

// failure is a request that the server did not do.
type failure struct {
	code       int           // of HTTP; 0: there was no answer
	retryAfter time.Duration // wait that the server requested; 0 if none
	err        error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Content types of requests.
const (
	typeJSON  = "application/json"
	typePatch = "application/strategic-merge-patch+json"
)

// maxAnswer bounds what is read of an answer, in octets. A Node with the names of many images is some hundreds of kilobytes.
const maxAnswer = 4 << 20

// sendRequest sends a request, and reads the answer into into unless that is nil. Errors are failures.
func (a *api) sendRequest(ctx context.Context, method, contentType string, body, into any, path ...string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	b, err := json.Marshal(body)
	if err != nil {
		return &failure{err: err}
	}
	u := a.base.JoinPath(path...)
	u.RawQuery = url.Values{"fieldManager": {"graylink-node"}}.Encode()
	q, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(b))
	if err != nil {
		return &failure{err: err}
	}
	q.Header.Set("Content-Type", contentType)
	q.Header.Set("Accept", typeJSON)
	answer, err := a.client.Do(q)
	if err != nil {
		return &failure{err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return &failure{err: fmt.Errorf("%s %s: %w", method, u.Path, err)}
	}
	if err := parseAnswer(answer.StatusCode, answer.Header.Get("Retry-After"), text, into); err != nil {
		err.err = fmt.Errorf("%s %s: %w", method, u.Path, err.err)
		return err
	}
	return nil
}

// parseAnswer reads an answer into into, or returns what failed. Failures have a metav1.Status.
func parseAnswer(code int, retryAfter string, text []byte, into any) *failure {
	if code/100 == 2 {
		if into == nil {
			return nil
		}
		if err := json.Unmarshal(text, into); err != nil {
			return &failure{code: code, err: fmt.Errorf("answer %d: %w", code, err)}
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
	f := &failure{code: code, err: fmt.Errorf("%d %s: %q", code, http.StatusText(code), truncateMessage(status.Message))}
	// RFC 9110 section 10.2.3; the API server sends seconds, and what stands before it may send a date.
	if seconds, err := strconv.ParseUint(retryAfter, 10, 31); err == nil {
		f.retryAfter = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(retryAfter); err == nil {
		f.retryAfter = max(0, time.Until(at))
	} else if s := status.Details.RetryAfterSeconds; s > 0 && s < 1<<31 {
		f.retryAfter = time.Duration(s) * time.Second
	}
	return f
}

// isPermanent reports whether the same request would be refused for ever: it is wrong. Rights can be given later, tokens are renewed.
func isPermanent(err *failure) bool {
	switch err.code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	}
	return err.code/100 == 4 || err.code/100 == 3
}
