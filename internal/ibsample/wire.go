package ibsample

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// The delegator's API, which samplers use:
//
//	POST /api/v1/ib/report?sampler=S&instance=I&vocabulary=V         a Report, gzip; answered by Clock
//	GET  /api/v1/ib/work?sampler=S&instance=I&vocabulary=V&since=R   an Assignment, once it is not R
const (
	reportPath = "/api/v1/ib/report"
	workPath   = "/api/v1/ib/work"
	// maxReport bounds the uncompressed size of a report: 100,000 ports with every counter need about 200 MB.
	maxReport = 256 << 20
	// longPoll bounds how long a request for work waits.
	longPoll = 30 * time.Second
)

// Clock holds when the delegator received a report and when it answered, in Unix nanoseconds. A sampler
// estimates the delegator's clock from it.
type Clock struct {
	Received int64 `json:"received_ns"`
	Answered int64 `json:"answered_ns"`
}

// Handler returns a handler that serves the API. now returns the delegator's time.
func (d *Delegator) Handler(now func() time.Time) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+reportPath, func(w http.ResponseWriter, r *http.Request) {
		received := now()
		q := r.URL.Query()
		// The sampler is verified before anything of the body is read.
		if err := checkSampler(r, q.Get("vocabulary"), q.Get("sampler"), q.Get("instance")); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		var report Report
		if err := readReport(r.Body, &report); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if report.Sampler != q.Get("sampler") || report.Instance != q.Get("instance") || report.Vocabulary != q.Get("vocabulary") {
			http.Error(w, fmt.Sprintf("the report is of sampler %q, the request of %q", report.Sampler, q.Get("sampler")), http.StatusForbidden)
			return
		}
		d.AcceptReport(&report, received)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Clock{Received: received.UnixNano(), Answered: now().UnixNano()})
	})
	mux.HandleFunc("GET "+workPath, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		name, instance := q.Get("sampler"), q.Get("instance")
		since, err := strconv.ParseUint(q.Get("since"), 10, 64)
		if err == nil {
			err = checkSampler(r, q.Get("vocabulary"), name, instance)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		d.awaitRevision(r.Context(), name, instance, since, now)
		if r.Context().Err() != nil {
			return
		}
		a, _ := d.AssignmentFor(name, instance, now())
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a)
	})
	return mux
}

// checkSampler returns an error if a sampler is refused. Where certificates are used, the sampler's name must
// be in its certificate.
func checkSampler(r *http.Request, vocabulary, sampler, instance string) error {
	switch {
	case r.TLS != nil && (len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].VerifyHostname(sampler) != nil):
		return fmt.Errorf("the certificate is not that of a sampler %q", sampler)
	case sampler == "" || instance == "":
		return errors.New("the names of a sampler and its instance are expected")
	case vocabulary != Vocabulary:
		return fmt.Errorf("sampler %s has other counters (%s) than the delegator (%s): run the same version", sampler, vocabulary, Vocabulary)
	}
	return nil
}

// awaitRevision waits until the revision of the sampler's work differs from since, for at most longPoll.
func (d *Delegator) awaitRevision(ctx context.Context, name, instance string, since uint64, now func() time.Time) {
	revision, changed := d.revisionOf(name, instance, now())
	d.markWaiting(name, instance)
	defer func() { d.endWaiting(name, instance, ctx.Err() != nil, now()) }()
	end := time.NewTimer(longPoll)
	defer end.Stop()
	for revision == since {
		select {
		case <-changed:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
		if revision, changed = d.revisionOf(name, instance, now()); ctx.Err() != nil {
			return
		}
	}
}

func readReport(body io.Reader, r *Report) error {
	z, err := gzip.NewReader(body)
	if err != nil {
		return fmt.Errorf("report: gzip is expected: %w", err)
	}
	limited := &io.LimitedReader{R: z, N: maxReport + 1}
	err = json.NewDecoder(limited).Decode(r)
	switch {
	case limited.N <= 0:
		return fmt.Errorf("report: at most %d octets are expected", maxReport)
	case err != nil:
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Remote is a client of a delegator in another process.
type Remote struct {
	Base   *url.URL
	Client *http.Client // with the credentials that the delegator expects
}

// SendReport sends a report to the delegator and returns the delegator's clock.
func (c *Remote) SendReport(ctx context.Context, r *Report) (Clock, error) {
	var body bytes.Buffer
	// Counters are mostly small numbers that repeat: the fastest level is enough.
	z, err := gzip.NewWriterLevel(&body, gzip.BestSpeed)
	if err == nil {
		err = errors.Join(json.NewEncoder(z).Encode(r), z.Close())
	}
	if err != nil {
		return Clock{}, err
	}
	var answer Clock
	u := c.Base.JoinPath(reportPath)
	u.RawQuery = url.Values{"sampler": {r.Sampler}, "instance": {r.Instance}, "vocabulary": {r.Vocabulary}}.Encode()
	return answer, c.doRequest(ctx, http.MethodPost, u, &body, &answer)
}

// FetchAssignment requests an assignment whose revision differs from since, and waits for it for a while.
func (c *Remote) FetchAssignment(ctx context.Context, sampler, instance string, since uint64) (Assignment, error) {
	// Without a limit, a connection whose other end vanished would wait for ever.
	ctx, cancel := context.WithTimeout(ctx, longPoll+longPoll/2)
	defer cancel()
	u := c.Base.JoinPath(workPath)
	u.RawQuery = url.Values{"sampler": {sampler}, "instance": {instance}, "vocabulary": {Vocabulary}, "since": {strconv.FormatUint(since, 10)}}.Encode()
	var a Assignment
	err := c.doRequest(ctx, http.MethodGet, u, nil, &a)
	if err == nil && a.Interval <= 0 {
		err = fmt.Errorf("%s: an interval above 0 is expected, not %v", c.Base.Host, a.Interval)
	}
	return a, err
}

func (c *Remote) doRequest(ctx context.Context, method string, u *url.URL, body io.Reader, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	limited := io.LimitReader(resp.Body, maxReport)
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(limited, 512))
		return fmt.Errorf("%s: %s: %s", u.Host, resp.Status, bytes.TrimSpace(text))
	}
	return json.NewDecoder(limited).Decode(out)
}

// Local is a client of a delegator in the same process.
type Local struct {
	*Delegator
	Now func() time.Time
}

// SendReport passes a report to the delegator and returns the delegator's clock.
func (l Local) SendReport(_ context.Context, r *Report) (Clock, error) {
	t := l.Now()
	l.AcceptReport(r, t)
	return Clock{Received: t.UnixNano(), Answered: t.UnixNano()}, nil
}

// FetchAssignment waits for an assignment whose revision differs from since.
func (l Local) FetchAssignment(ctx context.Context, sampler, instance string, since uint64) (Assignment, error) {
	l.awaitRevision(ctx, sampler, instance, since, l.Now)
	if err := ctx.Err(); err != nil {
		return Assignment{}, err
	}
	a, _ := l.AssignmentFor(sampler, instance, l.Now())
	return a, nil
}
