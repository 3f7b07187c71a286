package evidence

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"

	"github.com/graylink/graylink/internal/fabric"
)

// ranges serves the range API of a store.
func ranges(t *testing.T, load string) *HTTP {
	t.Helper()
	db := promqltest.LoadedStorage(t, load)
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, promqltest.DefaultMaxSamplesPerQuery)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/query_range" {
			http.NotFound(w, r)
			return
		}
		number := func(name string) float64 {
			v, err := strconv.ParseFloat(r.FormValue(name), 64)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return v
		}
		at := func(name string) time.Time { return time.UnixMilli(int64(number(name) * 1e3)) }
		q, err := engine.NewRangeQuery(r.Context(), db, nil, r.FormValue("query"), at("start"), at("end"), time.Duration(number("step")*float64(time.Second)))
		if err != nil {
			t.Error(err)
			return
		}
		defer q.Close()
		m, err := q.Exec(r.Context()).Matrix()
		if err != nil {
			t.Errorf("%s: %v", r.FormValue("query"), err)
			return
		}
		type series struct {
			Metric map[string]string `json:"metric"`
			Values []promql.FPoint   `json:"values"`
		}
		out := []series{}
		for _, s := range m {
			out = append(out, series{s.Metric.Map(), s.Floats})
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "matrix", "result": out}}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	h, err := NewHTTP(HTTPOptions{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Close()
		db.Close()
	})
	return h
}

// TestRecallVerdicts: one verdict of two analyzers is one; two of one element are two; the
// scenario that was said last is the verdict's; one that was not cleared stays open.
func TestRecallVerdicts(t *testing.T) {
	const link = `element="leaf1:up1--spine1:dn1", kind="link"`
	h := ranges(t, `load 10s
  fabric_suspect_first_seen_timestamp_seconds{job="a", instance="1", `+link+`} _x10 100x20 stale _x20 600x10 stale
  fabric_suspect_first_seen_timestamp_seconds{job="a", instance="2", `+link+`} _x10 100x20 stale
  fabric_suspect_info{job="a", instance="1", `+link+`, scenario="corridor", from="spine1:dn1", to="leaf1:up1", tier="2", plane="a", class="", severity="warning"} _x10 1x3 0x17 stale
  fabric_suspect_info{job="a", instance="1", `+link+`, scenario="hard_failure", from="spine1:dn1", to="leaf1:up1", tier="2", plane="a", class="", severity="critical"} _x14 1x2 0x14 stale _x20 1x10 stale
  fabric_suspect_info{job="a", instance="2", `+link+`, scenario="hard_failure", from="spine1:dn1", to="leaf1:up1", tier="2", plane="a", class="", severity="critical"} _x14 1x2 0x14 stale
  fabric_suspect_cleared_timestamp_seconds{job="a", instance="1", `+link+`} _x17 165.5x13 stale
  fabric_suspect_cleared_timestamp_seconds{job="a", instance="2", `+link+`} _x17 165x13 stale
  fabric_suspect_added_delay_seconds{job="a", instance="1", `+link+`} _x10 0.002x3 0.004 0x16 stale
  fabric_suspect_loss_ratio{job="a", instance="1", `+link+`} _x53 0.5x9
`)
	s := SettingsFor(time.Second)
	s.Past.Search = 30 * time.Minute
	all, err := RecallVerdicts(t.Context(), h, s, time.Unix(620, 0))
	if err != nil || len(all) != 2 {
		t.Fatalf("%v: %+v", err, all)
	}
	a, b := all[0], all[1]
	if a.Element != (fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}) || a.FirstSeen.Unix() != 100 || a.Cleared.UnixMilli() != 165_500 ||
		a.Scenario != fabric.HardFailure || a.Severity != "critical" || a.Direction.From != "spine1:dn1" || a.Plane != "a" || a.Symptom.AddedDelayNS < 2e6 || a.Symptom.LossRatio != 0 {
		t.Errorf("the first: %+v", a)
	}
	if b.FirstSeen.Unix() != 600 || !b.Cleared.IsZero() || b.LastSeen.Unix() < 600 || b.Symptom.LossRatio != 0.5 {
		t.Errorf("the second: %+v", b)
	}
	if all, err := RecallVerdicts(t.Context(), ranges(t, ""), s, time.Unix(620, 0)); err != nil || len(all) != 0 {
		t.Errorf("nothing was published: %v, %+v", err, all)
	}
}

func TestParseMatrix(t *testing.T) {
	for text, want := range map[string]string{
		`{"status":"success","data":{"resultType":"vector","result":[]}}`:                                                                        "want matrix",
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[["1","2"]]}]}}`:                                      "a time and a number",
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,2]]}]}}`:                                          "a time and a number",
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"histograms":[[1,{}]]}]}}`:                                     "a histogram",
		`{"status":"success","warnings":["half"],"data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1.5,"2"],[3,"NaN"]]}]}}`: "half",
		`{`: "not from Prometheus",
	} {
		out, err := parseMatrix(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if partial := want == "half"; partial != (len(out) == 1) || partial && (len(out[0].Points) != 2 || out[0].Points[0].At.UnixMilli() != 1500) {
			t.Errorf("%s: %+v", text, out)
		}
	}
}
