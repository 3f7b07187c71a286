package evidence

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
)

// RemoteRead reads series by a server's streamed remote read, as the chunks that they
// are stored in, and evaluates PromQL here: what several questions of one moment
// need is read once. What time it is at the server, and what its history was, is
// still asked of its HTTP API.
type RemoteRead struct {
	*HTTP
	endpoint string
	engine   *promql.Engine
}

// lookback is how old the sample of an instant selector may be.
const lookback = 5 * time.Minute

// NewRemoteRead returns a backend that has not asked anything yet.
func NewRemoteRead(o HTTPOptions) (*RemoteRead, error) {
	h, err := NewHTTP(o)
	if err != nil {
		return nil, err
	}
	base, err := url.Parse(o.URL)
	if err != nil {
		return nil, err
	}
	return &RemoteRead{HTTP: h, endpoint: base.JoinPath("api/v1/read").String(), engine: promql.NewEngine(promql.EngineOpts{Logger: h.o.Log,
		MaxSamples: 50_000_000, Timeout: h.o.Timeout, LookbackDelta: lookback, EnableAtModifier: true, EnableNegativeOffset: true})}, nil
}

// QueryInstant evaluates a PromQL expression at one moment by the server's clock.
func (r *RemoteRead) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	return r.SharedQuerier().QueryInstant(ctx, query, at)
}

// SharedQuerier returns a querier that reads each selection once, for as long as it is kept.
func (r *RemoteRead) SharedQuerier() Querier { return &sharedRead{r: r, read: map[string]*selection{}} }

// Close lets go of the connections.
func (r *RemoteRead) Close() error { return errors.Join(r.engine.Close(), r.HTTP.Close()) }

// sharedRead keeps what was read.
type sharedRead struct {
	r    *RemoteRead
	mu   sync.Mutex
	read map[string]*selection
}

// selection is what matchers select in a range.
type selection struct {
	once   sync.Once
	series []*chunkedSeries
	err    error
}

// QueryInstant implements Querier.
func (s *sharedRead) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	v, err := EvaluateAt(ctx, s.r.engine, s, query, at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.r.endpoint, err)
	}
	return v, nil
}

// Querier implements storage.Queryable.
func (s *sharedRead) Querier(mint, maxt int64) (storage.Querier, error) {
	return &rangeRead{s, mint, maxt}, nil
}

// rangeRead selects within a range of time, in milliseconds.
type rangeRead struct {
	s          *sharedRead
	mint, maxt int64
}

var errNoLabels = errors.New("labels are not asked for by remote read")

// LabelValues implements storage.LabelQuerier.
func (*rangeRead) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errNoLabels
}

// LabelNames implements storage.LabelQuerier.
func (*rangeRead) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errNoLabels
}

// Close implements storage.LabelQuerier.
func (*rangeRead) Close() error { return nil }

// Select implements storage.Querier.
func (q *rangeRead) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	mint, maxt := q.mint, q.maxt
	if hints != nil {
		mint, maxt = max(mint, hints.Start), min(maxt, hints.End)
	}
	var key strings.Builder
	fmt.Fprint(&key, mint, " ", maxt)
	for _, m := range matchers {
		fmt.Fprint(&key, " ", m)
	}
	q.s.mu.Lock()
	sel := q.s.read[key.String()]
	if sel == nil {
		sel = &selection{}
		q.s.read[key.String()] = sel
	}
	q.s.mu.Unlock()
	sel.once.Do(func() { sel.series, sel.err = q.s.r.readSelection(ctx, mint, maxt, matchers) })
	return &chunkedSet{selection: sel}
}

var matchTypes = map[labels.MatchType]prompb.LabelMatcher_Type{labels.MatchEqual: prompb.LabelMatcher_EQ, labels.MatchNotEqual: prompb.LabelMatcher_NEQ,
	labels.MatchRegexp: prompb.LabelMatcher_RE, labels.MatchNotRegexp: prompb.LabelMatcher_NRE}

// readSelection reads one selection. Series arrive sorted by their labels.
func (r *RemoteRead) readSelection(ctx context.Context, mint, maxt int64, matchers []*labels.Matcher) ([]*chunkedSeries, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	q := &prompb.Query{StartTimestampMs: mint, EndTimestampMs: maxt}
	for _, m := range matchers {
		q.Matchers = append(q.Matchers, &prompb.LabelMatcher{Type: matchTypes[m.Type], Name: m.Name, Value: m.Value})
	}
	msg := prompb.ReadRequest{Queries: []*prompb.Query{q}, AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS}}
	b, err := msg.Marshal()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.endpoint, bytes.NewReader(snappy.Encode(nil, b)))
	if err != nil {
		return nil, err
	}
	for key, value := range map[string]string{"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Read-Version": "0.1.0"} {
		req.Header.Set(key, value)
	}
	resp, err := r.client.Do(req)
	var long *url.Error
	switch {
	case errors.As(err, &long):
		return nil, long.Err
	case err != nil:
		return nil, err
	}
	defer resp.Body.Close()
	body := &io.LimitedReader{R: resp.Body, N: r.o.MaxBytes + 1}
	defer func() { r.bytes.Add(uint64(r.o.MaxBytes + 1 - body.N)) }()
	if resp.StatusCode != http.StatusOK {
		return nil, refusalError(resp.Status, body)
	}
	const streamed = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"
	if got := resp.Header.Get("Content-Type"); got != streamed {
		return nil, fmt.Errorf("the server does not stream: %.100q, where %q is expected", got, streamed)
	}
	series, err := parseChunks(body, r.o.MaxBytes)
	if body.N <= 0 {
		return nil, fmt.Errorf("the answer is larger than the %d bytes that are accepted", r.o.MaxBytes)
	}
	return series, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readFrame reads the next frame of a stream: its length (varint), a CRC-32C of it
// (four octets, big endian), and a ChunkedReadResponse, as the documentation of
// Prometheus' remote read API has it. io.EOF: there is no other.
func readFrame(r *bufio.Reader, limit int64) (*prompb.ChunkedReadResponse, error) {
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return nil, err
	}
	if size > uint64(limit) {
		return nil, fmt.Errorf("a frame of %d bytes", size)
	}
	var sum [4]byte
	if _, err := io.ReadFull(r, sum[:]); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	// What is announced is believed as far as it comes.
	var b bytes.Buffer
	if n, err := io.CopyN(&b, r, int64(size)); err != nil {
		return nil, fmt.Errorf("%d bytes of a frame of %d: %w", n, size, io.ErrUnexpectedEOF)
	}
	if crc32.Checksum(b.Bytes(), castagnoli) != binary.BigEndian.Uint32(sum[:]) {
		return nil, errors.New("a frame with a wrong checksum")
	}
	frame := new(prompb.ChunkedReadResponse)
	return frame, frame.Unmarshal(b.Bytes())
}

// parseChunks reads a stream of frames, each with some series' chunks.
func parseChunks(r io.Reader, limit int64) ([]*chunkedSeries, error) {
	frames := bufio.NewReader(r)
	var out []*chunkedSeries
	names := labels.NewScratchBuilder(16)
	for {
		frame, err := readFrame(frames, limit)
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("the stream of chunks: %w", err)
		}
		for _, s := range frame.ChunkedSeries {
			names.Reset()
			for _, l := range s.Labels {
				names.Add(l.Name, l.Value)
			}
			names.Sort()
			series := &chunkedSeries{labels: names.Labels()}
			// A series that is too long for one frame goes on in the next.
			if n := len(out); n > 0 && labels.Equal(out[n-1].labels, series.labels) {
				series = out[n-1]
			} else {
				out = append(out, series)
			}
			for _, c := range s.Chunks {
				const header = 2 // the number of samples
				if len(c.Data) < header {
					return nil, fmt.Errorf("series %s: a chunk of %d bytes", series.labels, len(c.Data))
				}
				chunk, err := chunkenc.FromData(chunkenc.Encoding(c.Type), c.Data)
				if err != nil {
					return nil, fmt.Errorf("series %s: %w", series.labels, err)
				}
				series.chunks = append(series.chunks, chunk)
			}
		}
	}
}

// chunkedSet goes through a selection.
type chunkedSet struct {
	*selection
	next int
}

// Next implements storage.SeriesSet.
func (s *chunkedSet) Next() bool {
	s.next++
	return s.next <= len(s.series)
}

// At implements storage.SeriesSet.
func (s *chunkedSet) At() storage.Series { return s.series[s.next-1] }

// Err implements storage.SeriesSet.
func (s *chunkedSet) Err() error { return s.err }

// Warnings implements storage.SeriesSet.
func (*chunkedSet) Warnings() annotations.Annotations { return nil }

// chunkedSeries has the samples of chunks that follow each other, and may overlap: also
// some from before and after what was asked for, which PromQL passes over.
type chunkedSeries struct {
	labels labels.Labels
	chunks []chunkenc.Chunk
}

// Labels implements storage.Series.
func (s *chunkedSeries) Labels() labels.Labels { return s.labels }

// Iterator implements storage.Series.
func (s *chunkedSeries) Iterator(chunkenc.Iterator) chunkenc.Iterator {
	each := make([]chunkenc.Iterator, len(s.chunks))
	for i, c := range s.chunks {
		each[i] = c.Iterator(nil)
	}
	return storage.ChainSampleIteratorFromIterators(nil, each)
}
