package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/internal/fabric"
)

// api answers as Prometheus does, from a backend.
type api struct {
	db       Querier
	ahead    time.Duration // what its clock is ahead of this machine's
	warnings []string
	before   func(w http.ResponseWriter, r *http.Request) (done bool)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.before != nil && a.before(w, r) {
		return
	}
	if r.Method != http.MethodPost || r.URL.Path != "/prefix/api/v1/query" {
		http.Error(w, "not here", http.StatusNotFound)
		return
	}
	at := time.Now().Add(a.ahead)
	if s := r.FormValue("time"); s != "" {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		at = time.UnixMilli(int64(f*1e3 + 0.5))
	}
	type element struct {
		Metric map[string]string `json:"metric"`
		Value  [2]any            `json:"value"`
	}
	result := []element{}
	v, err := a.db.QueryInstant(r.Context(), r.FormValue("query"), at)
	for _, s := range v {
		result = append(result, element{s.Labels, [2]any{float64(at.UnixMilli()) / 1e3, strconv.FormatFloat(s.Value, 'g', -1, 64)}})
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		json.NewEncoder(w).Encode(map[string]any{"status": "error", "errorType": "execution", "error": err.Error()})
		return
	}
	json.NewEncoder(w).Encode(map[string]any{"status": "success", "warnings": a.warnings, "infos": []string{"not about what is missing"},
		"data": map[string]any{"resultType": "vector", "result": result}})
}

// shifted is a backend whose clock is ahead.
type shifted struct {
	Querier
	ahead time.Duration
}

func (s shifted) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	if query == "vector(time())" {
		return []Sample{{Labels: map[string]string{}, Value: float64(at.UnixMilli()) / 1e3}}, nil
	}
	return s.Querier.QueryInstant(ctx, query, at.Add(-s.ahead))
}

func (a *api) serve(t *testing.T, edit func(*HTTPOptions)) *HTTP {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	o := HTTPOptions{URL: server.URL + "/prefix/", Client: config_util.DefaultHTTPClientConfig}
	if edit != nil {
		edit(&o)
	}
	h, err := NewHTTP(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// TestHTTPAnswersAsTheEngineDoes: the same windows by both ways, whatever the
// server's clock says.
func TestHTTPAnswersAsTheEngineDoes(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Minute, -time.Minute} {
		for name, parallel := range map[string]int{"in turn": 0, "in parallel": 4} {
			db := healthy().load(t)
			s := DefaultSettings()
			s.Parallel = parallel
			want, err := ReadWindow(t.Context(), db, s, time.Unix(20, 0))
			if err != nil {
				t.Fatal(err)
			}
			a := &api{db: shifted{db, ahead}, ahead: ahead}
			got, err := ReadWindow(t.Context(), a.serve(t, nil), s, time.Unix(20, 0))
			if err != nil {
				t.Fatalf("%s, %s: %v", name, ahead, err)
			}
			if off := got.ClockOffset - ahead; off.Abs() > 100*time.Millisecond {
				t.Errorf("%s: offset %s, want %s", name, got.ClockOffset, ahead)
			}
			if len(want.Observations) == 0 || len(got.Observations) != len(want.Observations) {
				t.Fatalf("%s, %s: %d observations, want %d", name, ahead, len(got.Observations), len(want.Observations))
			}
			for i, o := range got.Observations {
				if !o.Start.Equal(want.Observations[i].Start) {
					t.Errorf("a window by the server's clock: %s, want %s", o.Start, want.Observations[i].Start)
				}
			}
			// Where the clocks agree the same moment is asked for, to the millisecond.
			if ahead == 0 && shown(got) != shown(want) {
				t.Errorf("%s: %s\nwant %s", name, shown(got), shown(want))
			}
		}
	}
}

func shown(w Window) string {
	slices.SortFunc(w.Observations, func(a, b *fabric.Observation) int { return strings.Compare(a.Edge, b.Edge) })
	b, err := json.Marshal(w.Observations)
	return fmt.Sprint(string(b), err, w.Hosts, w.Flows)
}

func TestRule1OneQuestionFails(t *testing.T) {
	a := &api{db: healthy().load(t)}
	db := shifted{a.db, 0}
	a.db = querier(func(ctx context.Context, q string, at time.Time) ([]Sample, error) {
		if strings.Contains(q, "0.99") {
			return nil, errors.New("too many samples")
		}
		return db.QueryInstant(ctx, q, at)
	})
	w, err := ReadWindow(t.Context(), a.serve(t, nil), DefaultSettings(), time.Unix(20, 0))
	if err == nil || len(w.Observations) != 0 {
		t.Fatalf("%d observations, %v", len(w.Observations), err)
	}
	for _, want := range []string{`query "p99"`, "/prefix/api/v1/query", "422", "too many samples"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

type querier func(context.Context, string, time.Time) ([]Sample, error)

func (q querier) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	return q(ctx, query, at)
}

func TestRule2Patience(t *testing.T) {
	var asked atomic.Int32
	a := &api{db: shifted{healthy().load(t), 0}}
	a.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.FormValue("query") == "vector(time())" {
			return false
		}
		asked.Add(1)
		if d, err := time.ParseDuration(r.FormValue("timeout")); err != nil || d > 300*time.Millisecond {
			t.Errorf("the server gets a timeout of %s, %v", d, err)
		}
		<-r.Context().Done() // until the client no longer waits
		return true
	}
	s := DefaultSettings()
	s.Patience = 300 * time.Millisecond
	_, err := ReadWindow(t.Context(), a.serve(t, nil), s, time.Unix(20, 0))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that the time is over", err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d questions after the time was over", n-1)
	}
}

func TestRule4AnIncompleteAnswerIsMarked(t *testing.T) {
	a := &api{db: shifted{healthy().load(t), 0}, warnings: []string{"a store is away"}}
	w, err := ReadWindow(t.Context(), a.serve(t, nil), DefaultSettings(), time.Unix(20, 0))
	if err != nil || len(w.Observations) != 2 || len(w.Warnings) != len(DefaultSettings().WindowQueries()) || !strings.Contains(w.Warnings[0], "a store is away") {
		t.Errorf("%d observations, warnings %q, %v", len(w.Observations), w.Warnings, err)
	}
}

func TestRule5ServerClock(t *testing.T) {
	base := time.Unix(1000, 0)
	type exchange struct {
		at, took, ahead time.Duration // by this machine's clock; the server's clock is read in the middle
		want            time.Duration
		back            bool
	}
	for name, exchanges := range map[string][]exchange{
		"clocks that may agree do":            {{0, 400 * time.Millisecond, 150 * time.Millisecond, 0, false}},
		"never more than is known":            {{0, 40 * time.Millisecond, time.Minute, time.Minute - 20*time.Millisecond, false}},
		"nor when it is behind":               {{0, 40 * time.Millisecond, -time.Minute, -time.Minute + 21*time.Millisecond, false}},
		"a short exchange is worth more":      {{0, time.Second, time.Minute, time.Minute - 500*time.Millisecond, false}, {time.Second, 2 * time.Millisecond, time.Minute, time.Minute - time.Millisecond, false}, {2 * time.Second, time.Second, time.Minute, time.Minute - time.Millisecond, false}},
		"a clock that went ahead is taken":    {{0, 2 * time.Millisecond, 0, 0, false}, {time.Second, 2 * time.Millisecond, time.Minute, time.Minute - time.Millisecond, false}},
		"one that went back must catch up":    {{0, 2 * time.Millisecond, time.Minute, time.Minute - time.Millisecond, false}, {time.Second, 2 * time.Millisecond, 0, 0, true}, {50 * time.Second, 2 * time.Millisecond, 0, 0, true}, {60 * time.Second, 2 * time.Millisecond, 0, 0, false}},
		"replicas differ by some of a second": {{0, 2 * time.Millisecond, 300 * time.Millisecond, 299 * time.Millisecond, false}, {100 * time.Millisecond, 2 * time.Millisecond, -400 * time.Millisecond, -398 * time.Millisecond, false}},
	} {
		var c serverClock
		for i, x := range exchanges {
			sent := base.Add(x.at)
			server := sent.Add(x.took/2 + x.ahead)
			got, err := c.addExchange(sent, sent.Add(x.took), server)
			if (err != nil) != x.back || err == nil && (got-x.want).Abs() > time.Millisecond {
				t.Errorf("%s, exchange %d: %s, %v; want %s", name, i+1, got, err, x.want)
			}
		}
	}
}

// TestRule5ByThisMachinesClock: who asks not for a cycle's evidence need not know.
func TestRule5ByThisMachinesClock(t *testing.T) {
	db := healthy().load(t)
	for _, ahead := range []time.Duration{0, time.Minute} {
		h := (&api{db: shifted{db, ahead}, ahead: ahead}).serve(t, nil)
		v, err := NewLocalQuerier(h).QueryInstant(t.Context(), `fabric_probe_sent_total{direction="forward"}`, time.Unix(20, 500e6))
		if err != nil || len(v) != 1 || v[0].Value != 2000 {
			t.Errorf("a clock %s ahead: %v, %v, want what was at second 20", ahead, v, err)
		}
	}
}

func TestRule6BoundsAndSecrets(t *testing.T) {
	const secret = "s3cr3t"
	flood := &api{before: func(w http.ResponseWriter, _ *http.Request) bool {
		io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[`)
		for range 1 << 12 {
			io.WriteString(w, `{"metric":{"a":"b"},"value":[1,"1"]},`)
		}
		return true
	}}
	h := flood.serve(t, func(o *HTTPOptions) { o.MaxBytes = 1000 })
	if _, err := h.QueryInstant(t.Context(), "x", time.Unix(1, 0)); err == nil || !strings.Contains(err.Error(), "1000 bytes") || h.Bytes() > 2000 {
		t.Errorf("%v after %d bytes", err, h.Bytes())
	}
	var header string
	refuse := &api{before: func(w http.ResponseWriter, r *http.Request) bool {
		header = r.Header.Get("Authorization")
		http.Error(w, "unknown\nuser", http.StatusUnauthorized)
		return true
	}}
	h = refuse.serve(t, func(o *HTTPOptions) { o.Client.BasicAuth = &config_util.BasicAuth{Username: "gray", Password: secret} })
	_, err := h.QueryInstant(t.Context(), "x", time.Unix(1, 0))
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "401") || !strings.HasPrefix(header, "Basic ") {
		t.Errorf("%v; header %q", err, header)
	}
	gone := &api{}
	h = gone.serve(t, func(o *HTTPOptions) {
		proxy, _ := url.Parse("http://user:" + secret + "@127.0.0.1:1")
		o.Client.ProxyURL = config_util.URL{URL: proxy}
	})
	if _, err := h.QueryInstant(t.Context(), "x", time.Unix(1, 0)); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
	for _, u := range []string{"http://a:" + secret + "@host", "http://host/?token=" + secret, "ftp://host", "host", "http://", "http://\x7f" + secret} {
		if _, err := NewHTTP(HTTPOptions{URL: u}); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", u, err)
		}
	}
}

func TestParseAnswer(t *testing.T) {
	vector := func(result string) string {
		return `{"status":"success","data":{"resultType":"vector","result":` + result + `}}`
	}
	for text, want := range map[string]string{
		vector(`[{"metric":{"a":"b"},"value":[1.5,"NaN"]},{"metric":{},"value":[1,"-Inf"]}]`): "",
		vector(`[{"metric":{},"histogram":[1,{}]}]`):                                          "number is expected",
		vector(`[{"metric":{},"value":[1]}]`):                                                 "number in quotes",
		vector(`[{"metric":{},"value":[1,"x"]}]`):                                             "number in quotes",
		vector(`{}`): "result",
		`{"status":"success","data":{"resultType":"matrix","result":[]}}`: "want vector",
		`{"status":"error","errorType":"bad_data","error":"parse"}`:       "bad_data: parse",
		`<html>`:    "not from Prometheus",
		vector(`[`): "not from Prometheus",
	} {
		v, err := parseAnswer(strings.NewReader(text))
		if want == "" && (err != nil || len(v) != 2) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v; want %q", text, v, err, want)
		}
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(`{"status":"success","warnings":["w"],"data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1.5,"2"]}]}}`)
	f.Add(`{"status":"error","errorType":"e","error":"x"}`)
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseAnswer(strings.NewReader(text))
		var partial *PartialError
		if err != nil && !errors.As(err, &partial) && v != nil {
			t.Errorf("samples of an answer that is none: %v, %v", v, err)
		}
	})
}

func TestOverrides(t *testing.T) {
	s := DefaultSettings()
	for name, query := range map[string]string{"p5O": "x", "p50": "sum by (", "sent": ""} {
		if s.CheckOverride(name, query) == nil {
			t.Errorf("%s: %q is accepted", name, query)
		}
	}
	const query = `sum by ($flow, direction) (rate(fabric_probe_sent_total{cluster="a"}$delay)) * $seconds`
	if err := s.CheckOverride("sent", query); err != nil {
		t.Error(err)
	}
	s.Override = map[string]string{"sent": query}
	if got := s.WindowQueries()["sent"]; got != `sum by (src, dst, flow, class, tier, plane, direction) (rate(fabric_probe_sent_total{cluster="a"}[3000ms])) * 2` {
		t.Error(got)
	}
}
