package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	config_util "github.com/prometheus/common/config"
)

// HTTPOptions say how a server is reached that speaks Prometheus' HTTP API:
// Prometheus itself, Mimir, Thanos.
type HTTPOptions struct {
	// URL is what /api/v1/query is below. It holds no credentials: those are Client's.
	URL string
	// Client is what Prometheus' own configuration files say of a server: TLS,
	// credentials, proxy.
	Client config_util.HTTPClientConfig
	// ClientOptions are further options of the HTTP client.
	ClientOptions []config_util.HTTPClientOption
	// Timeout bounds one question; 0: 5 s.
	Timeout time.Duration
	// MaxBytes bounds one answer, after decompression; 0: 256 MiB.
	MaxBytes int64
	Log      *slog.Logger
}

// Defaults of HTTPOptions. A million edges' quantile is 210 MB.
const (
	defaultTimeout  = 5 * time.Second
	defaultMaxBytes = 256 << 20
)

// HTTP asks a server by its HTTP API.
type HTTP struct {
	o        HTTPOptions
	endpoint string // of the questions
	client   *http.Client
	bytes    atomic.Uint64

	mu    sync.Mutex
	clock serverClock
}

// NewHTTP returns a backend that has not asked anything yet: that the server is
// away is known when it is asked.
func NewHTTP(o HTTPOptions) (*HTTP, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	base, err := ServerURL(o.URL)
	if err != nil {
		return nil, err
	}
	client, err := config_util.NewClientFromConfig(o.Client, "graylink_analyzer", append(slices.Clone(o.ClientOptions), config_util.WithUserAgent("graylink-analyzer"))...)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", base, err)
	}
	return &HTTP{o: o, endpoint: base.JoinPath("api/v1/query").String(), client: client}, nil
}

// ServerURL parses a server's base. Credentials and parameters are refused: the URL
// is shown in errors and logs.
func ServerURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.New("an http or https URL is expected")
	case u.User != nil:
		return nil, errors.New("a URL without credentials is expected: they belong to basic_auth or authorization")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("a URL without parameters is expected")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("%q: an http or https URL is expected", s)
	}
	return u, nil
}

// QueryInstant evaluates a PromQL expression at one moment by the server's clock.
func (h *HTTP) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	form := url.Values{"query": {query}}
	if !at.IsZero() {
		form.Set("time", formatUnix(at))
	}
	return evaluateQuery(ctx, h, h.endpoint, form, parseAnswer)
}

// QueryRange implements Ranger.
func (h *HTTP) QueryRange(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]Series, error) {
	form := url.Values{"query": {query}, "start": {formatUnix(from)}, "end": {formatUnix(to)}, "step": {strconv.FormatFloat(step.Seconds(), 'f', 3, 64)}}
	return evaluateQuery(ctx, h, h.endpoint+"_range", form, parseMatrix)
}

// formatUnix writes a moment in seconds.
func formatUnix(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1e3, 'f', 3, 64)
}

// evaluateQuery asks one question, within the time that one may take.
func evaluateQuery[T any](ctx context.Context, h *HTTP, at string, form url.Values, parse func(io.Reader) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, h.o.Timeout)
	defer cancel()
	// The server need not continue when the client no longer waits.
	deadline, _ := ctx.Deadline()
	form.Set("timeout", strconv.FormatInt(max(1, time.Until(deadline).Milliseconds()), 10)+"ms")
	v, err := postQuery(ctx, h, at, form, parse)
	var partial *PartialError
	if err != nil && !errors.As(err, &partial) {
		return *new(T), fmt.Errorf("%s: %w", at, err)
	}
	return v, err
}

func postQuery[T any](ctx context.Context, h *HTTP, at string, form url.Values, parse func(io.Reader) (T, error)) (none T, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader(form.Encode()))
	if err != nil {
		return none, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := h.client.Do(req)
	var long *url.Error
	switch {
	case errors.As(err, &long):
		return none, long.Err // the URL is said once
	case err != nil:
		return none, err
	}
	defer resp.Body.Close()
	body := &io.LimitedReader{R: resp.Body, N: h.o.MaxBytes + 1}
	defer func() { h.bytes.Add(uint64(h.o.MaxBytes + 1 - body.N)) }()
	if resp.StatusCode != http.StatusOK {
		return none, refusalError(resp.Status, body)
	}
	v, err := parse(body)
	if body.N <= 0 {
		return none, fmt.Errorf("the answer is larger than the %d bytes that are accepted", h.o.MaxBytes)
	}
	return v, err
}

// refusalError returns the error that a server sent instead of a result.
func refusalError(status string, body io.Reader) error {
	const enough = 4096
	b, _ := io.ReadAll(io.LimitReader(body, enough))
	var a answer
	if json.Unmarshal(b, &a) == nil && a.Error != "" {
		return fmt.Errorf("%s: %s: %s", status, a.ErrorType, a.Error)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return fmt.Errorf("%s: %.200q", status, line)
}

// answer is what the API answers to a query. (What a server of version 3
// has in "infos" is about the question and not about what is missing.)
type answer struct {
	Status    string   `json:"status"`
	ErrorType string   `json:"errorType"`
	Error     string   `json:"error"`
	Warnings  []string `json:"warnings"`
	Data      struct {
		Type   string          `json:"resultType"`
		Result json.RawMessage `json:"result"`
	} `json:"data"`
}

// decodeResult reads an answer of a type into what that type is. With a *Partial error the
// result holds.
func decodeResult(r io.Reader, kind string, into any) error {
	var a answer
	if err := json.NewDecoder(r).Decode(&a); err != nil {
		return fmt.Errorf("the response is not from Prometheus: %w", err)
	}
	if a.Status != "success" {
		return fmt.Errorf("status %q: %s: %s", a.Status, a.ErrorType, a.Error)
	}
	if a.Data.Type != kind {
		return fmt.Errorf("a result of type %q, want %s", a.Data.Type, kind)
	}
	if err := json.Unmarshal(a.Data.Result, into); err != nil {
		return fmt.Errorf("the answer's result: %w", err)
	}
	if len(a.Warnings) > 0 {
		return &PartialError{Warnings: a.Warnings}
	}
	return nil
}

// parseMatrix reads series of numbers. With a *Partial error they hold.
func parseMatrix(r io.Reader) ([]Series, error) {
	var all []struct {
		Metric     map[string]string `json:"metric"`
		Values     [][2]any          `json:"values"`
		Histograms json.RawMessage   `json:"histograms"`
	}
	err := decodeResult(r, "matrix", &all)
	var partial *PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	out := make([]Series, len(all))
	for i, s := range all {
		if s.Histograms != nil {
			return nil, fmt.Errorf("%v has a histogram, where a number is expected", s.Metric)
		}
		out[i] = Series{Labels: s.Metric, Points: make([]Point, len(s.Values))}
		for j, p := range s.Values {
			at, isTime := p[0].(float64)
			text, _ := p[1].(string)
			v, err := strconv.ParseFloat(text, 64)
			if err != nil || !isTime {
				return nil, fmt.Errorf("%v has the value %v, where a time and a number in quotes are expected", s.Metric, p)
			}
			out[i].Points[j] = Point{timeFromSeconds(at), v}
		}
	}
	return out, err
}

// parseAnswer reads an instant vector of numbers. With a *Partial error the samples hold.
func parseAnswer(r io.Reader) ([]Sample, error) {
	var all []struct {
		Metric map[string]string `json:"metric"`
		Value  *[2]any           `json:"value"`
	}
	err := decodeResult(r, "vector", &all)
	var partial *PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	out := make([]Sample, len(all))
	for i, s := range all {
		if s.Value == nil {
			return nil, fmt.Errorf("%v has a histogram, where a number is expected", s.Metric)
		}
		text, _ := s.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%v has the value %v, where a number in quotes is expected", s.Metric, s.Value[1])
		}
		out[i] = Sample{Labels: s.Metric, Value: v}
	}
	return out, err
}

// Bytes returns the number of received octets, after decompression.
func (h *HTTP) Bytes() uint64 { return h.bytes.Load() }

// Close lets go of the connections.
func (h *HTTP) Close() error {
	h.client.CloseIdleConnections()
	return nil
}

// ClockOffset implements Clocked: it asks the server what time it is.
func (h *HTTP) ClockOffset(ctx context.Context) (time.Duration, error) {
	sent := time.Now()
	v, err := h.QueryInstant(ctx, "vector(time())", time.Time{})
	got := time.Now()
	var partial *PartialError
	if err != nil && !errors.As(err, &partial) {
		return 0, err
	}
	if len(v) != 1 {
		return 0, fmt.Errorf("%s: vector(time()) has %d elements, where one is expected", h.endpoint, len(v))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	doubted := h.clock.isDoubtful()
	offset, err := h.clock.addExchange(sent, got, time.UnixMilli(int64(v[0].Value*1e3)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", h.endpoint, err)
	}
	if now := h.clock.isDoubtful(); now != doubted {
		h.o.Log.Warn("the clocks of Prometheus and of this machine differ", "ahead_by", offset, "beyond_bound", now, "bound", clockBound)
	}
	return offset, nil
}

// NewLocalQuerier returns a Querier whose moments are by this machine's clock.
func NewLocalQuerier(db Querier) Querier {
	if c, ok := db.(Clocked); ok {
		return localQuerier{db, c}
	}
	return db
}

type localQuerier struct {
	Querier
	clock Clocked
}

// QueryInstant implements Querier.
func (l localQuerier) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	offset, err := l.clock.ClockOffset(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read the server's time: %w", err)
	}
	return l.Querier.QueryInstant(ctx, query, at.Add(offset))
}

// serverClock represents how far a server's clock is ahead of this machine's, as bounded by
// exchanges with it.
type serverClock struct {
	lo, hi time.Duration // it is ahead by something between
	latest time.Time     // the latest time of the server
}

// Clock bounds. An offset beyond clockBound gives a warning. A clock that is more than clockBack
// before its latest time went back. Replicas behind one address do not agree to the
// millisecond.
const (
	clockBound = time.Second
	clockBack  = time.Second
)

// addExchange adds one exchange: its times by this machine's clock, and the server's time. It returns
// the smallest offset that explains all exchanges, which is 0 if the clocks may agree. It fails if
// the server's clock went back.
func (c *serverClock) addExchange(sent, got, server time.Time) (time.Duration, error) {
	if back := c.latest.Sub(server); back > clockBack {
		// Its data of this moment is of an earlier one, and it stores nothing new.
		return 0, fmt.Errorf("the server's clock went back by %s, and its data is not current until it has caught up", back.Round(time.Millisecond))
	}
	if server.After(c.latest) {
		c.latest = server
	}
	lo, hi := server.Sub(got), server.Sub(sent)+time.Millisecond // it has whole milliseconds
	if l, h := max(c.lo, lo), min(c.hi, hi); l <= h {
		lo, hi = l, h
	}
	c.lo, c.hi = lo, hi
	return c.currentOffset(), nil
}

func (c *serverClock) currentOffset() time.Duration { return min(max(0, c.lo), c.hi) }

func (c *serverClock) isDoubtful() bool { return c.currentOffset().Abs() > clockBound }
