package steer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer/workload"
)

// Order is what an actuator does: one action on one node, for one diagnosis.
type Order struct {
	ID        string // of the action, the same at each attempt
	At        time.Time
	Target    string // the node's name at the scheduler
	Node      string // the node's name in the topology
	Witness   WitnessKind
	Diagnosis *workload.Diagnosis
}

// reasonLength bounds the text that is left at a node, in octets.
const reasonLength = 200

// reasonPrefix begins the text that is left at a node, and has the identifier by which the action is recognized.
func (o *Order) reasonPrefix() string { return "graylink " + printable(o.ID) + ":" }

// reason returns the text that is left at a node.
func (o *Order) reason() string {
	text := o.reasonPrefix() + " job " + printable(o.Diagnosis.Job) + ": " + printable(o.Diagnosis.Summary)
	return text[:min(len(text), reasonLength)]
}

// printable replaces everything but printable ASCII: parts of the text are from users' records.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// Actuator takes a node out of use. Doing the same order again changes nothing.
type Actuator interface {
	// Name returns the actuator's name in series and in the audit log.
	Name() string
	// Act returns OutcomeDone, or OutcomeLeftAlone if the node is already out of use, or an error.
	Act(ctx context.Context, o *Order) (outcome string, err error)
}

// attempts is how often a request is sent, and firstWait the wait before the second one, which doubles.
const (
	attempts  = 3
	firstWait = time.Second
)

// server sends requests to one server.
type server struct {
	name    string
	client  *http.Client
	base    string
	timeout time.Duration
	wait    func(ctx context.Context, d time.Duration) // between attempts
}

// newServer returns a server that is reached by the settings of a target.
func newServer(name string, t *Target, o Options) (*server, error) {
	client, err := config_util.NewClientFromConfig(t.Client, "graylink_steering", append(o.ClientOptions, config_util.WithUserAgent("graylink-analyzer"))...)
	if err != nil {
		return nil, &FieldError{name, err}
	}
	// A redirect would take the credentials elsewhere.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	wait := o.Wait
	if wait == nil {
		wait = pause
	}
	return &server{name: name, client: client, base: strings.TrimSuffix(t.URL, "/"), timeout: t.Timeout, wait: wait}, nil
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// temporary is an error after which the same request may succeed.
type temporary struct{ error }

func (t temporary) Unwrap() error { return t.error }

// repeat calls an attempt until it succeeds, fails for good, or was called three times.
func (s *server) repeat(ctx context.Context, attempt func(ctx context.Context) (string, error)) (outcome string, err error) {
	for n := range attempts {
		if n > 0 {
			s.wait(ctx, firstWait<<(n-1))
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		outcome, err = attempt(ctx)
		var again temporary
		if err == nil || !errors.As(err, &again) {
			break
		}
	}
	return outcome, err
}

// maxAnswer bounds what is read of an answer, in octets.
const maxAnswer = 4 << 20

// send sends a request and reads the answer into into, unless that is nil. Errors of the connection, and the statuses of HTTP by
// which a server asks for another attempt, are temporary.
func (s *server) send(ctx context.Context, method, path, contentType string, header http.Header, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, s.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	for key, values := range header {
		q.Header[key] = values
	}
	q.Header.Set("Accept", "application/json")
	if body != nil {
		q.Header.Set("Content-Type", contentType)
	}
	answer, err := s.client.Do(q)
	if err != nil {
		return temporary{fmt.Errorf("%s: %w", s.name, err)}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return temporary{fmt.Errorf("%s: %s %s: %w", s.name, method, q.URL.Path, err)}
	case answer.StatusCode/100 != 2:
		return statusError(answer.StatusCode, fmt.Errorf("%s: %s %s: %s", s.name, method, q.URL.Path, answer.Status))
	case into == nil:
		return nil
	case len(text) > maxAnswer:
		return fmt.Errorf("%s: %s %s: the answer has more than %d octets", s.name, method, q.URL.Path, maxAnswer)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %s %s: the answer: %w", s.name, method, q.URL.Path, err)
	}
	return nil
}

// statusError returns an error that is temporary if another attempt may succeed. A conflict is: the node is read again.
func statusError(code int, err error) error {
	switch code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return temporary{err}
	}
	if code/100 == 5 && code != http.StatusNotImplemented {
		return temporary{err}
	}
	return err
}

// nodePath returns the path of a node, or an error if its name would be another path.
func nodePath(prefix, name string) (string, error) {
	if name == "" || name == "." || name == ".." || url.PathEscape(name) != name {
		return "", fmt.Errorf("node %q: a name of letters, digits, dots and hyphens is expected", name)
	}
	return prefix + name, nil
}
