package publish

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/schema/openapi/openapitest"
)

var update = flag.Bool("update", false, "rewrite the golden exposition")

const topo = `version: 1
switches: [{name: leaf1, role: leaf}, {name: leaf2, role: leaf}, {name: spine1, role: spine}]
nodes: [{name: h1, nics: [{device: eth1}]}, {name: h2, nics: [{device: eth1}]}]
links:
  - {a: "h1/eth1", b: "leaf1:dn1", a_address: 10.0.1.2/24, b_address: 10.0.1.1/24}
  - {a: "h2/eth1", b: "leaf2:dn1", a_address: 10.0.2.2/24, b_address: 10.0.2.1/24}
  - {a: "leaf1:up1", b: "spine1:dn1", a_address: 172.16.0.0/31, b_address: 172.16.0.1/31}
  - {a: "leaf2:up1", b: "spine1:dn2", a_address: 172.16.0.2/31, b_address: 172.16.0.3/31}
`

var now = time.Unix(1_800_000_000, 0).UTC()

func fixture(t *testing.T) (*Collector, *API, *snapshot.Snapshot) {
	t.Helper()
	tp, found := fabric.ParseTopology("t.yaml", []byte(topo))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	g := fabric.NewGraph(tp)
	store := paths.NewStore(g)
	var hops []fabric.RawHop
	for i, a := range []string{"10.0.1.1", "172.16.0.1", "172.16.0.2"} {
		hops = append(hops, fabric.RawHop{TTL: i + 1, Address: netip.MustParseAddr(a)})
	}
	if err := store.AddTrace(fabric.Trace{Edge: "h1/eth1>h2/eth1#0", State: fabric.PathValid, TracedAt: now, Reached: true, Hops: hops}); err != nil {
		t.Fatal(err)
	}
	cleared, old := now.Add(-time.Minute), now.Add(-10*time.Minute)
	added, zero := int64(48000), int64(0)
	snap := &snapshot.Snapshot{At: now, PathMap: 1, Paths: store.StateCounts(), Expected: 4, Baselines: 4, Hosts: map[string]string{"h2": "late"},
		Report: fabric.Report{State: fabric.Suspect, Coverage: fabric.Coverage{Links: 0.5, Edges: 0.25}},
		Links: []snapshot.LinkView{{Link: "leaf1:up1--spine1:dn1", From: "leaf1:up1", To: "spine1:dn1", Edges: 3, AddedDelayNS: &added},
			{Link: "leaf1:up1--spine1:dn1", From: "spine1:dn1", To: "leaf1:up1", Edges: 0},
			{Link: "h1/eth1--leaf1:dn1", From: "h1/eth1", To: "leaf1:dn1", Edges: 1, AddedDelayNS: &zero}},
		Incidents: []incident.Incident{
			{Open: true, OpenedAt: now, Verdict: fabric.Verdict{ID: "a", FirstSeen: now.Add(-5500 * time.Millisecond), Element: fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}, Direction: "leaf1:up1->spine1:dn1",
				Confidence: 0.99, Symptom: fabric.Symptom{AddedDelayNS: 48000}, Scenario: fabric.Corridor, Tier: 2, Plane: "a", Severity: "warning",
				Evidence: fabric.EvidenceCount{ExplainedEdges: 3}, Edges: []string{"h1/eth1>h2/eth1#0"}, Causes: []string{"congestion", "drops", "congestion"}, Jobs: []string{"train7"}}},
			{Cleared: &cleared, Verdict: fabric.Verdict{ID: "b", FirstSeen: cleared.Add(-time.Hour), Element: fabric.Element{ID: "h2/eth1", Kind: fabric.KindNIC}, Confidence: 0.9, Scenario: fabric.BadNIC}},
			{Cleared: &old, Verdict: fabric.Verdict{ID: "c", Element: fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, Confidence: 0.9, Scenario: fabric.HotSpine}},
		}}
	snap.Maintenance = []maintenance.Window{{ID: "1", Element: "spine1", Source: maintenance.SourceFile}, {ID: "2", Element: "spine1", From: now.Add(-time.Minute), Source: maintenance.SourceFile},
		{ID: "3", Element: "leaf2", From: now.Add(time.Hour), Source: maintenance.SourceAPI}}
	link := fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}
	snap.Report.Candidates = []fabric.Candidate{{Element: link, Direction: "leaf2:up1->spine1:dn2", Probability: 0.4, Edges: 3,
		Others: []fabric.DirectedElement{{Element: fabric.Element{ID: "h2/eth1", Kind: fabric.KindNIC}}}}, {Element: link, Direction: "spine1:dn2->leaf2:up1", Probability: 0.1}}
	snap.Warnings = []string{"lost: an incomplete answer"}
	snap.Floods = []evidence.Flood{{NIC: "h2/eth1", From: "10.0.1.2", PerSecond: 5012.4, Unread: true}}
	snap.Signals = []signals.Finding{{Kind: signals.ProfilesDiffer, Text: "h9 has another profile"}}
	get := func() snapshot.Snapshot { return *snap }
	switches := func() (map[string]paths.TableView, switchpoll.Counts) {
		return map[string]paths.TableView{"leaf1": {Kind: sighting.KindEBPF, Flows: 12, AnsweredAt: now, Dropped: 1, OverLimit: 2, Foreign: 3}}, switchpoll.Counts{Pulls: 9, Failures: 4}
	}
	return &Collector{Snapshot: get, Store: store, Switches: switches, URL: "https://graylink.example/fabric/"}, &API{Snapshot: get, Store: store}, snap
}

func expose(t *testing.T, c *Collector) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return rec.Body.String()
}

func TestExposition(t *testing.T) {
	c, _, _ := fixture(t)
	got := expose(t, c)
	const golden = "testdata/suspect.metrics"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("exposition differs from %s (rewrite it with -update):\n%s", golden, got)
	}
}

// TestOpenIsNeverAnAllClear: an open incident with a confidence of 0 has a positive score, since a score of 0
// would end its alert.
func TestOpenIsNeverAnAllClear(t *testing.T) {
	c, _, snap := fixture(t)
	snap.Incidents[0].Confidence = 0
	if got := expose(t, c); !strings.Contains(got, `fabric_suspect_score{element="leaf1:up1--spine1:dn1",kind="link"} 0.001`) {
		t.Error(got)
	}
}

// TestFailoverIsBesideItsLink: the series have one incident of an element. That of a link stays when a newer one on its failover opens.
func TestFailoverIsBesideItsLink(t *testing.T) {
	c, _, snap := fixture(t)
	failover := snap.Incidents[0]
	failover.Scenario, failover.Severity = fabric.Convergence, fabric.SeverityInfo
	snap.Incidents = append([]incident.Incident{failover}, snap.Incidents...)
	if got := expose(t, c); !strings.Contains(got, `scenario="corridor"`) || strings.Contains(got, `scenario="convergence"`) {
		t.Error(got)
	}
	snap.Incidents[1].Open, snap.Incidents[1].Cleared = false, &now
	if got := expose(t, c); !strings.Contains(got, `scenario="convergence"`) {
		t.Error(got)
	}
}

// TestAfterglow: a suspect's series stand at 0 for five minutes, then go.
func TestAfterglow(t *testing.T) {
	c, _, snap := fixture(t)
	has := func(s string) bool { return strings.Contains(expose(t, c), s) }
	if !has(`fabric_suspect_score{element="h2/eth1",kind="nic"} 0`) {
		t.Error("cleared a minute ago: not at 0")
	}
	if has(`element="spine1",kind`) {
		t.Error("cleared ten minutes ago: still there")
	}
	snap.At = now.Add(5 * time.Minute)
	if has(`element="h2/eth1"`) {
		t.Error("cleared six minutes ago: still there")
	}
}

// TestPlaces: under the names that the series of ports and NICs have, so that they join.
func TestPlaces(t *testing.T) {
	for _, tt := range []struct {
		kind    fabric.Kind
		element string
		want    []location
	}{
		{fabric.KindLink, "leaf1:up1--spine1:dn1", []location{{"leaf1", "up1", ""}, {"spine1", "dn1", ""}}},
		{fabric.KindAccessLink, "h1/eth1--leaf1:dn1", []location{{"", "", "h1/eth1"}, {"leaf1", "dn1", ""}}},
		{fabric.KindPort, "leaf1:Ethernet1/12", []location{{"leaf1", "Ethernet1/12", ""}}},
		{fabric.KindQueue, "leaf1:up1@tc3", []location{{"leaf1", "up1", ""}}},
		{fabric.KindNIC, "h1/eth1", []location{{"", "", "h1/eth1"}}},
		{fabric.KindClock, "h1/eth1", []location{{"", "", "h1/eth1"}}},
		{fabric.KindSwitch, "spine1", []location{{"spine1", "", ""}}},
		{fabric.KindLeafUplinks, "leaf1", []location{{"leaf1", "", ""}}},
		{fabric.KindCorridor, "leaf1->spine1->leaf2", []location{{"leaf1", "", ""}, {"spine1", "", ""}, {"leaf2", "", ""}}},
		{fabric.KindPair, "leaf1->leaf2", []location{{"leaf1", "", ""}, {"leaf2", "", ""}}},
		{fabric.KindHost, "h1", nil},
	} {
		if got := elementLocations(fabric.Element{ID: tt.element, Kind: tt.kind}); !slices.Equal(got, tt.want) {
			t.Errorf("%s %s: %+v, want %+v", tt.kind, tt.element, got, tt.want)
		}
	}
}

// TestNothingBeforeTheFirstCycle: silence is insufficient evidence, and no count of 0.
func TestNothingBeforeTheFirstCycle(t *testing.T) {
	c, _, snap := fixture(t)
	*snap = snapshot.Snapshot{Report: fabric.Report{State: fabric.InsufficientEvidence}}
	got := expose(t, c)
	if !strings.Contains(got, `fabric_verdict_state{scope="fabric",state="insufficient_evidence"} 1`) || strings.Contains(got, "coverage") {
		t.Errorf("before the first cycle:\n%s", got)
	}
}

// TestObservationsAreAFile: what the API gives, the file's reader takes.
func TestObservationsAreAFile(t *testing.T) {
	_, api, snap := fixture(t)
	p50, bound := int64(5000), int64(2000)
	snap.Edges = []snapshot.EdgeView{{Obs: fabric.Observation{Edge: "h1/eth1>h2/eth1#0", Src: "h1/eth1", Dst: "h2/eth1", Start: now, WindowNS: 2e9, Sent: 200,
		OWD: &fabric.Quantiles{P50: &p50}, ClockErrorNS: &bound, Timestamp: "kernel", PathState: fabric.PathUnknown}}}
	mux := http.NewServeMux()
	api.RegisterHandlers(mux)
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/observations", nil))
	n := 0
	err := fabric.ReadObservations(rec.Body, func(_ int, o *fabric.Observation) error {
		n++
		if *o.OWD.P50 != 5000 || o.OWD.P99 != nil || *o.ClockErrorNS != 2000 || !o.Start.Equal(now) {
			t.Errorf("read back as %+v", o)
		}
		return nil
	}, func(e fabric.LineError) { t.Error(e) })
	if err != nil || n != 1 {
		t.Errorf("%d lines, %v", n, err)
	}
}

// TestOneVerdictIsAsInTheList asks for each verdict by its identifier, open and closed ones: the answer is the entry of the list. An unknown one is 404.
func TestOneVerdictIsAsInTheList(t *testing.T) {
	_, api, _ := fixture(t)
	mux := http.NewServeMux()
	api.RegisterHandlers(mux)
	get := func(path string, out any) (int, string) {
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		if rec.Code == http.StatusOK {
			if err := json.Unmarshal(rec.Body.Bytes(), out); err != nil {
				t.Fatal(err)
			}
		}
		return rec.Code, rec.Body.String()
	}
	var all struct {
		Verdicts []json.RawMessage `json:"verdicts"`
	}
	if code, text := get("/api/v1/verdicts", &all); code != 200 || len(all.Verdicts) != 3 {
		t.Fatalf("%d %s", code, text)
	}
	for i, id := range []string{"a", "b", "c"} {
		var one json.RawMessage
		if code, _ := get("/api/v1/verdicts/"+id, &one); code != 200 || !bytes.Equal(one, all.Verdicts[i]) {
			t.Errorf("%s: %d %s, in the list %s", id, code, one, all.Verdicts[i])
		}
	}
	for _, id := range []string{"d", "..", "A", "%22%0a"} {
		if code, text := get("/api/v1/verdicts/"+id, nil); code != 404 && code != 307 || strings.Count(text, "\n") != 1 && code == 404 {
			t.Errorf("%s: %d %q", id, code, text)
		}
	}
}

// TestObservationsThatAreNotKept: an unknown verdict is 404, and one from before the start 410.
func TestObservationsThatAreNotKept(t *testing.T) {
	_, api, snap := fixture(t)
	mux := http.NewServeMux()
	api.RegisterHandlers(mux)
	for id, want := range map[string]int{"unknown": http.StatusNotFound, snap.Incidents[0].ID: http.StatusGone} {
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/verdicts/"+id+"/observations", nil))
		if rec.Code != want {
			t.Errorf("%s: %d %s, want %d", id, rec.Code, rec.Body, want)
		}
	}
}

// TestNotAllPathsOfALargeFabric: a request for all paths is refused, and the error names the parameters.
func TestNotAllPathsOfALargeFabric(t *testing.T) {
	_, api, _ := fixture(t)
	mux := http.NewServeMux()
	api.RegisterHandlers(mux)
	status := func(path string) int {
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		return rec.Code
	}
	addTraces := func(n int) {
		for i := range n {
			if err := api.Store.AddTrace(fabric.Trace{Edge: fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1", Number: i}.String(), TracedAt: now, State: fabric.PathUnknown}); err != nil {
				t.Fatal(err)
			}
		}
	}
	addTraces(maxPaths)
	if got := status("/api/v1/paths"); got != 200 {
		t.Errorf("%d flows: status %d", maxPaths, got)
	}
	addTraces(maxPaths + 1)
	if all, some := status("/api/v1/paths"), status("/api/v1/paths?dst=h2/eth1"); all != 400 || some != 200 {
		t.Errorf("%d flows: status %d, and %d for one NIC", maxPaths+1, all, some)
	}
}

// TestJobs checks the series and responses on jobs, and that there are none while no placement is known.
func TestJobs(t *testing.T) {
	c, api, snap := fixture(t)
	mux := http.NewServeMux()
	api.RegisterHandlers(mux)
	get := func(path string) (int, string) {
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		return rec.Code, rec.Body.String()
	}
	for _, path := range []string{"/api/v1/jobs", "/api/v1/jobs/train7"} {
		if code, text := get(path); code != 404 || !strings.Contains(text, "no placement of jobs is known") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if strings.Contains(expose(t, c), "fabric_suspect_affected_jobs") {
		t.Error("jobs are counted although none is known")
	}
	r := jobs.NewRegister(api.Store.Graph())
	r.ReplaceSource("test", []jobs.Placement{{Job: "ml/train7", ID: "4711", Nodes: []string{"h1", "h2"}}})
	n := 1
	snap.Placed, snap.Incidents[0].Jobs, snap.Incidents[0].BlastRadius.Jobs = r.MapAt(now), []string{"ml/train7"}, &n
	snap.Scopes = []scope.Scope{{Scope: "fabric", State: fabric.Suspect}, {Scope: "job_name:ml/train7", State: fabric.Suspect, Coverage: fabric.Coverage{Links: 0.75}, Why: "because"}}
	for path, want := range map[string][]string{
		"/api/v1/jobs":              {`"job":"ml/train7","state":"suspect","why":"because"`},
		"/api/v1/jobs/ml/train7":    {`"scope":"job_name:ml/train7"`, `"state":"suspect"`, `"id":"4711"`, `"element":"leaf1:up1--spine1:dn1"`, `"peers":[]`},
		"/api/v1/jobs/4711":         {`"job":"ml/train7"`},
		"/api/v1/verdicts?job=nope": {`"verdicts":[]`, `"scopes":[{"scope":"fabric"`},
	} {
		code, text := get(path)
		for _, w := range want {
			if code != 200 || !strings.Contains(text, w) {
				t.Errorf("%s: %d lacks %s: %s", path, code, w, text)
			}
		}
	}
	if code, text := get("/api/v1/jobs/other"); code != 404 || !strings.Contains(text, `no job "other" runs now`) {
		t.Errorf("%d %s", code, text)
	}
	text := expose(t, c)
	for _, w := range []string{`fabric_suspect_affected_jobs{element="leaf1:up1--spine1:dn1",kind="link"} 1`, `fabric_verdict_state{scope="job_name:ml/train7",state="suspect"} 1`,
		`fabric_verdict_state{scope="job_name:ml/train7",state="innocent"} 0`, `fabric_evidence_coverage_ratio{scope="job_name:ml/train7"} 0.75`} {
		if !strings.Contains(text, w) {
			t.Errorf("lacks %s", w)
		}
	}
}

func TestAPI(t *testing.T) {
	_, api, _ := fixture(t)
	checker := openapitest.New(t)
	mux := http.NewServeMux()
	api.RegisterHandlers(mux)
	tests := []struct {
		path   string
		status int
		want   []string
		not    []string
	}{
		{"/api/v1/verdicts", 200, []string{`"state":"suspect"`, `"element":"leaf1:up1--spine1:dn1"`, `"open":true`, `"element":"spine1"`, `"maintenance":[{"id":"1"`, `"warnings":["lost: an incomplete answer"]`,
			`"floods":[{"nic":"h2/eth1","from":"10.0.1.2","packets_per_second":5012.4,"unread":true}]`,
			`"findings":["NIC h2/eth1 is flooded by packets with forged HMAC from 10.0.1.2 (5012 a second); its flows are no evidence","h9 has another profile"]`, `"signals":[{"kind":"profiles_differ","text":"h9 has another profile"}]`}, nil},
		{"/api/v1/verdicts?job=train7", 200, []string{`"leaf1:up1--spine1:dn1"`}, []string{`"element":"h2/eth1"`}},
		{"/api/v1/paths?src=h1/eth1", 200, []string{`"edge":"h1/eth1>h2/eth1#0"`, `"switch":"spine1"`}, nil},
		{"/api/v1/paths?dst=h1/eth1", 200, []string{`"paths":[]`}, nil},
		{"/api/v1/paths?src=h1", 400, []string{"node/device"}, nil},
		{"/api/v1/paths?src=h1/eth1&dst=h2/eth1", 200, []string{`"source":"trace"`, `"version":1`, `"confirmed":`}, nil},
		{"/api/v1/paths?src=h1/eth1&at=" + now.Format(time.RFC3339Nano), 200, []string{`"at":`, `"state":"valid"`, `"switch":"spine1"`}, nil},
		{"/api/v1/paths?src=h1/eth1&at=" + now.Add(-time.Hour).Format(time.RFC3339), 200, []string{`"state":"unknown"`, `"candidates":[[`}, []string{`"path":`}},
		{"/api/v1/paths?src=h1/eth1&at=" + now.Add(time.Hour).Format(time.RFC3339), 200, []string{`"state":"stale"`, `"switch":"spine1"`}, nil},
		{"/api/v1/paths?at=yesterday", 400, []string{`at: "yesterday"`, "RFC 3339"}, nil},
		{"/api/v1/links", 200, []string{`"added_delay_ns":48000`}, nil},
	}
	for _, tt := range tests {
		rec := checker.Serve(t, mux, httptest.NewRequest(http.MethodGet, tt.path, http.NoBody))
		body := rec.Body.String()
		if rec.Code != tt.status {
			t.Errorf("%s: status %d, want %d", tt.path, rec.Code, tt.status)
		}
		if tt.status == 200 && !json.Valid(rec.Body.Bytes()) {
			t.Errorf("%s: not JSON: %s", tt.path, body)
		}
		for _, w := range tt.want {
			if !strings.Contains(body, w) {
				t.Errorf("%s lacks %s: %s", tt.path, w, body)
			}
		}
		for _, n := range tt.not {
			if strings.Contains(body, n) {
				t.Errorf("%s holds %s", tt.path, n)
			}
		}
	}
}

// TestCandidatesSayWhatWouldSplitThem: a hop-limited probe that ends at the leaf does not reach the NIC behind it.
func TestCandidatesSayWhatWouldSplitThem(t *testing.T) {
	_, api, snap := fixture(t)
	mux := http.NewServeMux()
	api.RegisterHandlers(mux)
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/verdicts", nil))
	var got struct {
		Candidates []fabric.Candidate `json:"candidates"`
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || len(got.Candidates) != 2 {
		t.Fatalf("%v: %s", err, rec.Body)
	}
	c := got.Candidates[0]
	if len(c.WouldSplit) != 1 || c.WouldSplit[0].Meets.ID != "h2/eth1" && c.WouldSplit[0].EndsAt != "leaf2" || c.Probability != 0.4 || c.Edges != 3 {
		t.Errorf("%+v", c)
	}
	if len(snap.Report.Candidates[0].WouldSplit) != 0 {
		t.Error("the snapshot was changed")
	}
}
