package evidence

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang/snappy"
	config_util "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
)

// reading answers remote reads as Prometheus does, and anything else by api.
type reading struct {
	api
	storage storage.ChunkQueryable
	split   bool // every chunk has a frame of its own
	mu      sync.Mutex
	asked   map[string]int
}

func (s *reading) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/prefix/api/v1/read" {
		s.api.ServeHTTP(w, r)
		return
	}
	if s.before != nil && s.before(w, r) {
		return
	}
	packed, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	b, err := snappy.Decode(nil, packed)
	var req prompb.ReadRequest
	if err != nil || req.Unmarshal(b) != nil || len(req.Queries) != 1 || len(req.AcceptedResponseTypes) != 1 {
		http.Error(w, "not a read", http.StatusBadRequest)
		return
	}
	q := req.Queries[0]
	s.mu.Lock()
	s.asked[q.String()]++
	s.mu.Unlock()
	var matchers []*labels.Matcher
	for _, m := range q.Matchers {
		matchers = append(matchers, labels.MustNewMatcher(labels.MatchType(m.Type), m.Name, m.Value))
	}
	cq, err := s.storage.ChunkQuerier(q.StartTimestampMs, q.EndTimestampMs)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer cq.Close()
	w.Header().Set("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
	set := cq.Select(r.Context(), true, nil, matchers...)
	for set.Next() {
		series := prompb.ChunkedSeries{Labels: prompb.FromLabels(set.At().Labels(), nil)}
		for it := set.At().Iterator(nil); it.Next(); {
			c := it.At()
			series.Chunks = append(series.Chunks, prompb.Chunk{MinTimeMs: c.MinTime, MaxTimeMs: c.MaxTime, Type: prompb.Chunk_Encoding(c.Chunk.Encoding()), Data: c.Chunk.Bytes()})
			if s.split {
				w.Write(frame(series))
				// Once more: chunks may overlap.
				w.Write(frame(series))
				series.Chunks = nil
			}
		}
		if !s.split {
			w.Write(frame(series))
		}
	}
}

func frame(s ...prompb.ChunkedSeries) []byte {
	var msg prompb.ChunkedReadResponse
	for i := range s {
		msg.ChunkedSeries = append(msg.ChunkedSeries, &s[i])
	}
	b, err := msg.Marshal()
	if err != nil {
		panic(err)
	}
	out := binary.AppendUvarint(nil, uint64(len(b)))
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(b, castagnoli))
	return append(out, b...)
}

func (s *reading) serve(t *testing.T, edit func(*HTTPOptions)) *RemoteRead {
	t.Helper()
	s.asked = map[string]int{}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	o := HTTPOptions{URL: server.URL + "/prefix/", Client: config_util.DefaultHTTPClientConfig}
	if edit != nil {
		edit(&o)
	}
	r, err := NewRemoteRead(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// TestRemoteReadAnswersAsTheEngineDoes, and reads everything once a cycle.
func TestRemoteReadAnswersAsTheEngineDoes(t *testing.T) {
	for name, parallel := range map[string]int{"in turn": 0, "in parallel": 4} {
		for _, split := range []bool{false, true} {
			db := healthy().load(t).(loaded)
			s := DefaultSettings()
			s.Parallel = parallel
			want, err := ReadWindow(t.Context(), db, s, time.Unix(20, 0))
			if err != nil {
				t.Fatal(err)
			}
			a := &reading{api: api{db: shifted{db, 0}}, storage: db.db, split: split}
			r := a.serve(t, nil)
			got, err := ReadWindow(t.Context(), r, s, time.Unix(20, 0))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(want.Observations) != 2 || shown(got) != shown(want) {
				t.Errorf("%s, split %v: %s\nwant %s", name, split, shown(got), shown(want))
			}
			for q, n := range a.asked {
				if n != 1 {
					t.Errorf("%s: read %d times: %s", name, n, q)
				}
			}
			if n := len(a.asked); n >= len(s.WindowQueries()) || n < 10 {
				t.Errorf("%d reads for %d questions", n, len(s.WindowQueries()))
			}
			if r.Bytes() == 0 {
				t.Error("nothing was counted")
			}
		}
	}
}

func TestRemoteReadBoundsAndRefusals(t *testing.T) {
	db := healthy().load(t).(loaded)
	for name, tt := range map[string]struct {
		edit   func(*HTTPOptions)
		before func(http.ResponseWriter, *http.Request) bool
		want   string
	}{
		"too large": {func(o *HTTPOptions) { o.MaxBytes = 100 }, nil, "100 bytes"},
		"no stream": {nil, func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/x-protobuf")
			return true
		}, "does not stream"},
		"refused": {nil, func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "no", http.StatusForbidden)
			return true
		}, "403"},
		"cut off": {nil, func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
			w.Write(frame(prompb.ChunkedSeries{})[:5])
			return true
		}, "stream of chunks"},
	} {
		a := &reading{api: api{db: db, before: tt.before}, storage: db.db}
		_, err := a.serve(t, tt.edit).QueryInstant(t.Context(), "fabric_probe_sent_total", time.Unix(20, 0))
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "/prefix/api/v1/read") {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func FuzzParseChunks(f *testing.F) {
	good := frame(prompb.ChunkedSeries{Labels: []prompb.Label{{Name: "__name__", Value: "x"}},
		Chunks: []prompb.Chunk{{Type: prompb.Chunk_XOR, Data: []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}}})
	f.Add(good)
	f.Add(append(bytes.Clone(good), good...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		series, err := parseChunks(bytes.NewReader(b), 1<<20)
		if err != nil && series != nil {
			t.Errorf("series of a stream that is none: %v", err)
		}
	})
}
