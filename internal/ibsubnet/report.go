package ibsubnet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/plainjson"
)

// reportPath is where an agent serves its report.
const reportPath = "/api/v1/subnet"

// Report is what an agent says of its readings. All times are of its clock.
type Report struct {
	// Instance changes when the agent starts, and Number when two readings differ.
	Instance string `json:"instance"`
	Number   uint64 `json:"number"`
	// Now is when the report was made.
	Now time.Time `json:"now"`
	// HeldSince is the end of the first of the readings that are not broken since then.
	HeldSince time.Time `json:"held_since"`
	// SameSince is the end of the first of the readings that have agreed since then, none of them broken. It is absent if the last
	// reading is the first of its kind.
	SameSince time.Time `json:"same_since,omitzero"`
	// Broken is set if a change was reported after the last reading, so that it confirms nothing.
	Broken bool `json:"broken,omitempty"`
	// Begun and Ended are those of the last reading.
	Begun time.Time `json:"begun"`
	Ended time.Time `json:"ended"`
	// Origin is what the agent reads.
	Origin string   `json:"source"`
	Found  []string `json:"found,omitempty"`
	// Fabric is the fabric as ibfabric.EncodeFabric has it. It is absent if the request says that its sender has it.
	Fabric json.RawMessage `json:"fabric,omitempty"`
}

// Server hands out the readings of a subnet. It is an http.Handler, and safe for concurrent use.
type Server struct {
	mu      sync.Mutex
	report  Report // without the fabric
	fabric  *ibfabric.Fabric
	encoded json.RawMessage // of the fabric; nil until it is asked for
	failed  error           // of the last attempt
	same    time.Time       // the end of the first of the readings that agree
}

// NewServer returns a server without readings.
func NewServer() *Server { return &Server{report: Report{Instance: rand.Text()}} }

// Apply takes a reading of a source.
func (s *Server) Apply(r ibfabric.Reading, origin string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.report
	again := r.Fabric == s.fabric && r.Begun.Equal(p.Begun) && r.Ended.Equal(p.Ended) // the last reading, which a change ends
	p.Broken = again && r.Broken
	if p.Broken {
		return
	}
	other := r.Fabric != s.fabric
	if other {
		p.Number++
		s.fabric, s.encoded = r.Fabric, nil
	}
	if r.Broken || s.failed != nil || p.HeldSince.IsZero() {
		p.HeldSince, other = r.Ended, true
	}
	if other {
		s.same, p.SameSince = r.Ended, time.Time{}
	} else {
		p.SameSince = s.same
	}
	p.Begun, p.Ended, p.Origin, p.Found, s.failed = r.Begun, r.Ended, origin, r.Found, nil
}

// Fail takes an attempt to read that failed.
func (s *Server) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
}

// ServeHTTP answers with the report. The parameters instance and number say which fabric the client has.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out, err := s.makeReport(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = plainjson.NewEncoder(w).Encode(out) // a client that has gone
}

func (s *Server) makeReport(q url.Values) (*Report, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return nil, fmt.Errorf("the subnet cannot be read: %w", s.failed)
	case s.fabric == nil:
		return nil, errors.New("the subnet has not been read yet")
	}
	out := s.report
	out.Now = time.Now()
	if q.Get("instance") == out.Instance && q.Get("number") == strconv.FormatUint(out.Number, 10) {
		return &out, nil
	}
	if s.encoded == nil {
		text, err := ibfabric.EncodeFabric(s.fabric)
		if err != nil {
			return nil, err
		}
		s.encoded = text
	}
	out.Fabric = s.encoded
	return &out, nil
}

const (
	// maxReport bounds a report in octets: a fabric of 49,151 LIDs has tables of 48 KiB a switch.
	maxReport = 256 << 20
	// answerTimeout bounds the time until an agent answers at all, if there is another one.
	answerTimeout = 2 * Interval
	// reportTimeout bounds the time of one request to an agent.
	reportTimeout = 10 * time.Second
)

// Agents reads a subnet from agents, of which the first that answers is used until it fails.
type Agents struct {
	Client *http.Client
	// URLs are the base URLs of the agents of the subnet, without a path.
	URLs []string

	at   int // index of the agent in use
	last Report
	from ibfabric.Reading
}

// Read implements Source. If the agent in use does not answer, the others are asked in turn.
func (a *Agents) Read(ctx context.Context) (ibfabric.Reading, error) {
	var errs []error
	for range a.URLs {
		r, err := a.readOne(ctx, a.URLs[a.at])
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		errs = append(errs, fmt.Errorf("agent %s: %w", a.URLs[a.at], err))
		a.at = (a.at + 1) % len(a.URLs)
		a.from = ibfabric.Reading{}
	}
	return ibfabric.Reading{}, errors.Join(errs...)
}

func (a *Agents) readOne(ctx context.Context, base string) (ibfabric.Reading, error) {
	at, err := url.JoinPath(base, reportPath)
	if err != nil {
		return ibfabric.Reading{}, err
	}
	if a.from.Fabric != nil {
		at += "?" + url.Values{"instance": {a.last.Instance}, "number": {strconv.FormatUint(a.last.Number, 10)}}.Encode()
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return ibfabric.Reading{}, err
	}
	var silent *time.Timer
	if len(a.URLs) > 1 {
		silent = time.AfterFunc(answerTimeout, cancel)
	}
	sent := time.Now()
	resp, err := a.Client.Do(req)
	if silent != nil && !silent.Stop() && err != nil {
		return ibfabric.Reading{}, fmt.Errorf("no answer in %v", answerTimeout)
	}
	if err != nil {
		return ibfabric.Reading{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReport+1))
	received := time.Now()
	switch {
	case err != nil:
		return ibfabric.Reading{}, err
	case resp.StatusCode != http.StatusOK:
		return ibfabric.Reading{}, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body[:min(len(body), 512)])))
	case len(body) > maxReport:
		return ibfabric.Reading{}, fmt.Errorf("a report of more than %d octets", maxReport)
	}
	var p Report
	if err := json.Unmarshal(body, &p); err != nil {
		return ibfabric.Reading{}, fmt.Errorf("report: %w", err)
	}
	return a.apply(p, sent, received)
}

// apply returns the reading of a report that was requested and received at these times.
func (a *Agents) apply(p Report, sent, received time.Time) (ibfabric.Reading, error) {
	before, known := a.last, a.from.Fabric != nil
	same := known && p.Instance == before.Instance
	r := ibfabric.Reading{Fabric: a.from.Fabric, Found: p.Found, Begun: p.Begun.Add(sent.Sub(p.Now)), Ended: p.Ended.Add(received.Sub(p.Now))}
	switch {
	case p.Now.IsZero() || p.Begun.IsZero() || p.Ended.Before(p.Begun) || p.Now.Before(p.Ended):
		return ibfabric.Reading{}, errors.New("report: begun, ended and now: times in this order are expected")
	case len(p.Fabric) > 0:
		f, _, err := ibfabric.DecodeFabric(p.Fabric)
		if err != nil {
			return ibfabric.Reading{}, fmt.Errorf("report: %w", err)
		}
		if r.Fabric == nil || !f.Equal(r.Fabric) {
			r.Fabric = f
		}
	case !same || p.Number != before.Number:
		return ibfabric.Reading{}, errors.New("report: fabric: it is expected where the request's number is another")
	}
	// What changed between two reports more than once may have been undone.
	r.Broken = p.Broken || !same || p.Number > before.Number+1 || p.Number < before.Number || p.HeldSince.After(before.Ended)
	if r.Broken && !p.Broken && !p.SameSince.IsZero() {
		r.Since = p.SameSince.Add(received.Sub(p.Now)) // the agent has confirmed it
		if !r.Since.Before(r.Begun) {
			r.Since = time.Time{}
		}
	}
	p.Fabric = nil
	a.last, a.from = p, r
	return r, nil
}

// Pause implements Source.
func (a *Agents) Pause() time.Duration { return Interval }

// Origin implements Source.
func (a *Agents) Origin() string {
	if a.last.Origin == "" {
		return "agent " + a.URLs[a.at]
	}
	return fmt.Sprintf("agent %s: %s", a.URLs[a.at], a.last.Origin)
}

// Close implements Source.
func (a *Agents) Close() error {
	a.Client.CloseIdleConnections()
	return nil
}
