package catalogue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
	"github.com/graylink/graylink/internal/webaccess"
)

// testGraph returns a fabric of two leaves, four spines and two hosts, whose links have addresses.
func testGraph(t *testing.T) *fabric.Graph {
	t.Helper()
	var b strings.Builder
	b.WriteString("version: 1\nswitches:\n")
	for i := 1; i <= 4; i++ {
		fmt.Fprintf(&b, "  - {name: spine%d, role: spine}\n", i)
	}
	b.WriteString("  - {name: leaf1, role: leaf}\n  - {name: leaf2, role: leaf}\nnodes:\n")
	b.WriteString("  - {name: h1, nics: [{device: eth1}]}\n  - {name: h2, nics: [{device: eth1}]}\nlinks:\n")
	b.WriteString("  - {a: h1/eth1, b: \"leaf1:dn1\", a_address: 10.0.1.2/24, b_address: 10.0.1.1/24, speed_gbps: 400}\n")
	b.WriteString("  - {a: h2/eth1, b: \"leaf2:dn1\", a_address: 10.0.2.2/24, b_address: 10.0.2.1/24, speed_gbps: 400}\n")
	for leaf := 1; leaf <= 2; leaf++ {
		for i := 1; i <= 4; i++ {
			fmt.Fprintf(&b, "  - {a: \"leaf%d:up%d\", b: \"spine%d:dn%d\", a_address: 10.%d.%d.2/24, b_address: 10.%d.%d.1/24, speed_gbps: 100}\n", leaf, i, i, leaf, leaf, i, leaf, i)
		}
	}
	topo, found := fabric.ParseTopology("t.yaml", []byte(b.String()))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(topo)
}

// hashingTracer is a fabric whose leaves choose a spine by a function.
type hashingTracer struct {
	g       *fabric.Graph
	choose  func(t fabric.Tuple, packet int) int // spine, from 0
	marking fabric.Marking
	now     func() time.Time
	// balanced means that several switches answer at a hop limit of every trace.
	balanced bool

	mu     sync.Mutex
	lose   map[int]int // traces without any answer, by source port
	traced []fabric.Tuple
	err    error
}

func (h *hashingTracer) TraceTuples(_ context.Context, node string, tuples []fabric.Tuple) ([]fabric.TupleTrace, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	out := make([]fabric.TupleTrace, len(tuples))
	for i, t := range tuples {
		if fabric.OwnerOf(t.Src) != node || t.DPort != 4791 {
			return nil, fmt.Errorf("tuple %+v at node %s", t, node)
		}
		h.traced = append(h.traced, t)
		spine := h.choose(t, 0)
		tr := fabric.Trace{State: fabric.PathValid, TracedAt: h.now(), Balanced: h.balanced}
		for n := 1; n < max(1, t.Packets); n++ {
			tr.Balanced = tr.Balanced || h.choose(t, n) != spine
		}
		from, to := 1, 2 // leaves
		if t.Src == "h2/eth1" {
			from, to = 2, 1
		}
		for ttl, end := range []string{fmt.Sprintf("leaf%d:dn1", from), fmt.Sprintf("spine%d:dn%d", spine+1, from), fmt.Sprintf("leaf%d:up%d", to, spine+1)} {
			l := h.g.LinkAt(end)
			a := l.AAddress
			if l.B == end {
				a = l.BAddress
			}
			tr.Hops = append(tr.Hops, fabric.RawHop{TTL: ttl + 1, Address: a.Addr()})
		}
		if h.lose[t.SPort] > 0 {
			h.lose[t.SPort]--
			tr.State, tr.Hops = fabric.PathUnknown, nil
		}
		out[i] = fabric.TupleTrace{Tuple: t, Marking: h.marking, Trace: tr}
	}
	return out, nil
}

// hashPort spreads source ports over so many spines.
func hashPort(t fabric.Tuple, spines int) int { return int(uint32(t.SPort)*2654435761>>16) % spines }

type rig struct {
	*Builder
	tracer *hashingTracer
	clock  time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := testGraph(t)
	r := &rig{clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	now := func() time.Time { return r.clock }
	r.tracer = &hashingTracer{g: g, marking: fabric.MarkingNone, now: now, choose: func(t fabric.Tuple, _ int) int { return hashPort(t, 4) }}
	r.Builder = NewBuilder(func() *fabric.Graph { return g }, r.tracer, now)
	return r
}

func request() Request { return Request{Pairs: []Pair{{"h1/eth1", "h2/eth1"}}, DSCP: 26, QPs: 8} }

func (r *rig) build(t *testing.T, q Request, excluded ...Exclusion) []plan.Entry {
	t.Helper()
	out, err := r.Build(t.Context(), q, excluded)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// perUplink counts the valid entries of each uplink.
func perUplink(entries []plan.Entry) map[string]int {
	out := map[string]int{}
	for _, e := range entries {
		if e.State == plan.Valid {
			out[e.Path[0].Out]++
		}
	}
	return out
}

func TestBatchesUntilEveryUplinkHasEnough(t *testing.T) {
	r := newRig(t)
	entries := r.build(t, request())
	count := perUplink(entries)
	for _, up := range []string{"up1", "up2", "up3", "up4"} {
		if count[up] < 4 {
			t.Errorf("%s: %d ports, want 8/4+2 at least; %v", up, count[up], count)
		}
	}
	if len(entries)%batchPorts != 0 || len(entries) > 64 {
		t.Errorf("%d entries, want a few batches", len(entries))
	}
	for i, e := range entries {
		spine := hashPort(tupleOf(&e), 4) + 1
		want := fabric.Path{{Switch: "leaf1", In: "dn1", Out: fmt.Sprintf("up%d", spine)}, {Switch: fmt.Sprintf("spine%d", spine), In: "dn1", Out: "dn2"}, {Switch: "leaf2", In: fmt.Sprintf("up%d", spine), Out: "dn1"}}
		if int(e.SPort) != firstPort+i || e.DSCP != 26 || e.DstAddr.String() != "10.0.2.2" || e.SrcAddr.String() != "10.0.1.2" || !slices.Equal(e.Path, want) || e.State != plan.Valid || e.Source != plan.Traced {
			t.Errorf("%+v, want path %v", e, want)
		}
	}
}

// A path that the first trace did not find is traced again.
func TestAMissingPathIsTracedAgain(t *testing.T) {
	r := newRig(t)
	r.tracer.lose = map[int]int{firstPort + 1: 2}
	for _, e := range r.build(t, request()) {
		if e.State != plan.Valid {
			t.Errorf("%+v", e)
		}
	}
}

// An uplink that no packet takes ends the search after some batches, and not at 256 ports.
func TestAnUplinkWithoutRoute(t *testing.T) {
	r := newRig(t)
	r.tracer.choose = func(t fabric.Tuple, _ int) int { return hashPort(t, 3) }
	entries := r.build(t, request())
	if count := perUplink(entries); len(count) != 3 || len(entries) > 96 {
		t.Errorf("%d entries: %v", len(entries), count)
	}
}

func TestMostPortsOfAPair(t *testing.T) {
	r := newRig(t)
	r.tracer.choose = func(t fabric.Tuple, _ int) int { // one port of the first batch takes spine 4, and no other does
		if t.SPort == firstPort {
			return 3
		}
		return hashPort(t, 3)
	}
	if entries := r.build(t, request()); len(entries) != maxPorts {
		t.Errorf("%d entries, want %d", len(entries), maxPorts)
	}
}

func TestHashCheck(t *testing.T) {
	for _, x := range []struct {
		name   string
		choose func(t fabric.Tuple, packet int) int
		reason plan.Reason
	}{
		{"tuple", func(t fabric.Tuple, _ int) int { return hashPort(t, 4) }, ""},
		{"queue pair", func(t fabric.Tuple, _ int) int { return (hashPort(t, 4) + t.Variant) % 4 }, plan.HashBeyondTuple},
		{"packet", func(t fabric.Tuple, packet int) int { return (hashPort(t, 4) + packet) % 4 }, plan.Sprayed},
	} {
		r := newRig(t)
		r.tracer.choose = x.choose
		for _, e := range r.build(t, request()) {
			if e.Reason != x.reason || (e.State == plan.Valid) != (x.reason == "") || (len(e.Path) > 0) != (x.reason == "") {
				t.Errorf("%s: %+v, want reason %q", x.name, e, x.reason)
				break
			}
		}
	}
}

// What is known to be sprayed has no path, and nothing is traced: by the topology file, or while flows of the leaf show it.
func TestSprayedPairsAreNotTraced(t *testing.T) {
	sprayed := func(entries []plan.Entry) bool {
		return len(entries) > 0 && !slices.ContainsFunc(entries, func(e plan.Entry) bool {
			return e.State != plan.Unknown || e.Reason != plan.Sprayed || len(e.Path) > 0 || e.Check() != nil
		})
	}
	r := newRig(t)
	r.build(t, request())
	traced, sprays := len(r.tracer.traced), true
	r.Sprays = func(leaf string) bool { return sprays && leaf == "leaf1" }
	if got := r.build(t, request()); !sprayed(got) || len(r.tracer.traced) != traced {
		t.Errorf("%d tuples more were traced: %+v", len(r.tracer.traced)-traced, got)
	}
	for _, e := range r.List("h1/eth1", "", nil) {
		if e.State != plan.Stale {
			t.Errorf("%+v, want what was known to be stale", e)
		}
	}
	q := request()
	q.Pairs, q.Ports = nil, []PairPorts{{Pair{"h1/eth1", "h2/eth1"}, []uint16{50001, 50002}}}
	if got := r.build(t, q); !sprayed(got) || len(got) != 2 || got[0].SPort != 50001 {
		t.Errorf("given ports: %+v", got)
	}
	if back := r.build(t, Request{Pairs: []Pair{{"h2/eth1", "h1/eth1"}}, QPs: 8}); len(perUplink(back)) == 0 {
		t.Error("pairs of a leaf that does not spray have no path")
	}
	sprays = false
	if got := r.build(t, request()); len(perUplink(got)) != 4 {
		t.Errorf("%v, want paths when it has ended", perUplink(got))
	}
	declared := newRig(t)
	declared.tracer.g.Topo.Forwarding = fabric.Spray
	if got := declared.build(t, request()); !sprayed(got) || len(declared.tracer.traced) > 0 {
		t.Errorf("by the file: %d tuples were traced: %+v", len(declared.tracer.traced), got)
	}
}

// Where each trace meets several switches at one hop limit, no entry has a path, and they say why.
func TestNoPathAtAllIsSprayed(t *testing.T) {
	r := newRig(t)
	r.tracer.balanced = true
	got := r.build(t, request())
	for _, e := range got {
		if e.State != plan.Unknown || e.Reason != plan.Sprayed {
			t.Fatalf("%+v", e)
		}
	}
	if len(got) == 0 || len(got) > 2*batchPorts {
		t.Errorf("%d entries", len(got))
	}
}

// Without the NIC's setting it is not known whether its packets are sprayed, unless the operator states that they are not.
func TestMarkingIsStatedByTheOperator(t *testing.T) {
	r := newRig(t)
	r.tracer.marking = fabric.MarkingUnknown
	for _, e := range r.build(t, request()) {
		if e.State != plan.Unknown || e.Reason != plan.Sprayed {
			t.Fatalf("%+v", e)
		}
	}
	q := request()
	q.AdaptiveRouting = "off"
	if entries := r.build(t, q); len(perUplink(entries)) != 4 {
		t.Errorf("%v, want paths by the operator's statement", perUplink(entries))
	}
}

func TestStaleAfterTenMinutes(t *testing.T) {
	r := newRig(t)
	r.build(t, request())
	r.clock = r.clock.Add(freshFor - time.Second)
	if n := len(perUplink(r.List("", "", nil))); n != 4 {
		t.Errorf("%d uplinks before ten minutes", n)
	}
	r.clock = r.clock.Add(time.Second)
	all := r.List("h1/eth1", "h2/eth1", nil)
	for _, e := range all {
		if e.State != plan.Stale {
			t.Errorf("%+v, want a stale path", e)
		}
	}
	if len(r.List("h2/eth1", "", nil)) != 0 || len(all) == 0 {
		t.Errorf("%d entries", len(all))
	}
	if got := perUplink(r.build(t, request())); len(got) != 4 {
		t.Errorf("built again: %v", got)
	}
}

// A change of one path makes all of them doubtful, since the leaf spreads its flows anew.
func TestAChangedPathIsSeenByTheNextBuild(t *testing.T) {
	r := newRig(t)
	before := r.build(t, request())
	r.tracer.traced = nil
	r.clock = r.clock.Add(time.Minute)
	r.build(t, request())
	if n := len(r.tracer.traced); n != 4 {
		t.Errorf("%d traces of an unchanged fabric, want one for each path", n)
	}
	r.tracer.choose = func(t fabric.Tuple, _ int) int { return hashPort(t, 3) }
	after := r.build(t, request())
	if len(after) < len(before) {
		t.Fatalf("%d entries after %d", len(after), len(before))
	}
	for _, e := range after {
		if want := fmt.Sprintf("up%d", hashPort(tupleOf(&e), 3)+1); e.State != plan.Valid || e.Path[0].Out != want {
			t.Errorf("port %d: %+v, want uplink %s", e.SPort, e, want)
		}
	}
}

// Show 9: the next catalogue has no path over a link with an open verdict.
func TestOpenVerdictsAndWindowsAreLeftOut(t *testing.T) {
	r := newRig(t)
	g := r.graph()
	link := fabric.LinkID("leaf1:up2", "spine2:dn1")
	verdict := incident.Incident{Verdict: fabric.Verdict{ID: "v1", Element: fabric.Element{ID: link, Kind: fabric.KindLink}}, Open: true}
	closed := verdict
	closed.Open = false
	window := maintenance.Window{ID: "w1", Element: "spine3", From: r.clock, Until: r.clock.Add(time.Hour)}
	later := window
	later.From = r.clock.Add(time.Minute)
	for _, x := range []struct {
		name string
		s    snapshot.Snapshot
		more []string
		gone []string
	}{
		{"nothing", snapshot.Snapshot{}, nil, nil},
		{"open verdict", snapshot.Snapshot{Incidents: []incident.Incident{verdict}}, nil, []string{"up2"}},
		{"closed verdict", snapshot.Snapshot{Incidents: []incident.Incident{closed}}, nil, nil},
		{"window", snapshot.Snapshot{Maintenance: []maintenance.Window{window}}, nil, []string{"up3"}},
		{"later window", snapshot.Snapshot{Maintenance: []maintenance.Window{later}}, nil, nil},
		{"request", snapshot.Snapshot{}, []string{"leaf1:up4", "spine1"}, []string{"up1", "up4"}},
	} {
		q := request()
		q.Exclude = x.more
		count := perUplink(r.build(t, q, ExcludedBy(g, &x.s, r.clock)...))
		for _, up := range []string{"up1", "up2", "up3", "up4"} {
			if out := slices.Contains(x.gone, up); out != (count[up] == 0) {
				t.Errorf("%s: %s has %d ports", x.name, up, count[up])
			}
		}
	}
}

// Show 9, the plan: no queue pair of the next plan crosses a link with an open verdict.
func TestPlansAvoidOpenVerdicts(t *testing.T) {
	r := newRig(t)
	var s snapshot.Snapshot
	a := &API{Builder: r.Builder, Graph: r.graph, Snapshot: func() snapshot.Snapshot { return s }, Policy: &webaccess.Policy{}, Now: r.now}
	mux := http.NewServeMux()
	a.RegisterHandlers(mux)
	do := func(h http.Handler, method, url, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, url, strings.NewReader(body)))
		return w
	}
	planned := func(url, jobs string) (int, string) {
		w := do(http.HandlerFunc(a.handlePlan), http.MethodPost, url, jobs)
		return w.Code, w.Body.String()
	}
	const jobs = `{"jobs":[{"job":"j1","flows":[{"src":"h1/eth1","dst":"h2/eth1"}],"qps":8}]}`
	if got := do(mux, http.MethodGet, "/api/v1/plan", ""); got.Code != http.StatusNotFound {
		t.Errorf("before a plan: %d", got.Code)
	}
	if w := do(mux, http.MethodPost, "/api/v1/plan", jobs); w.Code != http.StatusForbidden && w.Code != http.StatusUnauthorized || len(r.tracer.traced) != 0 {
		t.Errorf("without authentication: %d %s", w.Code, w.Body)
	}
	uses := func() map[string]int {
		t.Helper()
		code, text := planned("/api/v1/plan?qps=8", jobs)
		if code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
		out := map[string]int{}
		for up := 1; up <= 4; up++ {
			link := fmt.Sprintf("leaf1:up%d->spine%d:dn1", up, up)
			for _, line := range strings.Split(text, "\n") {
				if strings.Contains(line, `"sport"`) && strings.Contains(line, link) {
					out[link]++
				}
			}
		}
		return out
	}
	const link = "leaf1:up2->spine2:dn1"
	ideal := func() float64 {
		t.Helper()
		p, err := plan.Read(strings.NewReader(do(mux, http.MethodGet, "/api/v1/plan", "").Body.String()))
		if err != nil || len(p.Jobs) != 1 || p.Jobs[0].IdealGbps == nil {
			t.Fatalf("%+v %v, want the ideal rate of one job", p, err)
		}
		return *p.Jobs[0].IdealGbps
	}
	if got := uses(); got[link] != 2 || len(got) != 4 {
		t.Errorf("queue pairs by uplink: %v, want two on each", got)
	}
	if got := ideal(); math.Abs(got-362) > 0.1 {
		t.Errorf("ideal %v, want that of the NIC, 362", got)
	}
	s.Incidents = []incident.Incident{{Verdict: fabric.Verdict{ID: "v1", Element: fabric.Element{ID: "leaf1:up2--spine2:dn1", Kind: fabric.KindLink}}, Open: true}}
	got := uses()
	if got[link] != 0 || len(got) != 3 {
		t.Errorf("with an open verdict: %v, want none on %s", got, link)
	}
	if got := ideal(); math.Abs(got-271.5) > 0.1 {
		t.Errorf("ideal %v with an open verdict, want that of three uplinks, 271.5", got)
	}
	for url, want := range map[string]int{"/api/v1/plan": 200, "/api/v1/plan?job=j1": 200, "/api/v1/plan?job=j2": 404} {
		if w := do(mux, http.MethodGet, url, ""); w.Code != want || want == 200 && !strings.Contains(w.Body.String(), `"reason":"verdict v1"`) {
			t.Errorf("%s: %d %s", url, w.Code, w.Body)
		}
	}
	for url, body := range map[string]string{"/api/v1/plan?qps=x": jobs, "/api/v1/plan?qps=0": jobs, "/api/v1/plan?exclude=spine9": jobs, "/api/v1/plan": "{}"} {
		if code, text := planned(url, body); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", url, code, text)
		}
	}
}

func TestRequestsAreChecked(t *testing.T) {
	r := newRig(t)
	for _, x := range []struct {
		change func(*Request)
		want   string
	}{
		{func(q *Request) { q.Pairs = nil }, `"pairs": 0, want 1 to 512`},
		{func(q *Request) { q.Pairs = []Pair{{"h1/eth1", "h9/eth1"}} }, `"pairs[0]": "h9/eth1", want a NIC of the topology`},
		{func(q *Request) { q.Pairs = []Pair{{"h1/eth1", "h1/eth1"}} }, `are of one node`},
		{func(q *Request) { q.DSCP = 64 }, `"dscp": 64, want 0 to 63`},
		{func(q *Request) { q.QPs = 0 }, `"qps": 0, want 1 to 128`},
		{func(q *Request) { q.AdaptiveRouting = "on" }, `"adaptive_routing": "on", want off`},
		{func(q *Request) { q.Exclude = []string{"spine9"} }, `exclude: "spine9" is not in the topology`},
	} {
		q := request()
		x.change(&q)
		_, err := r.Build(t.Context(), q, nil)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v, want %q", q, err, x.want)
		}
	}
	if len(r.tracer.traced) != 0 {
		t.Errorf("%d traces of requests that are not valid", len(r.tracer.traced))
	}
	r.tracer.err = errors.New("no agent")
	if _, err := r.Build(t.Context(), request(), nil); err == nil || !strings.Contains(err.Error(), "h1/eth1>h2/eth1: no agent") {
		t.Errorf("%v", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	s := newStore()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 3 * maxEntries / maxPorts {
		s.put(pairKey{Pair{fmt.Sprintf("h%d/eth1", i), "h0/eth1"}, 0}, make([]plan.Entry, maxPorts), at.Add(time.Duration(i)*time.Second))
	}
	if s.count > maxEntries || len(s.pairs) != maxEntries/maxPorts {
		t.Errorf("%d entries of %d pairs", s.count, len(s.pairs))
	}
	if s.pairs[pairKey{Pair{"h0/eth1", "h0/eth1"}, 0}] != nil {
		t.Error("the oldest pair is kept")
	}
}

func TestAPI(t *testing.T) {
	r := newRig(t)
	mux := http.NewServeMux()
	web := &webaccess.Policy{}
	a := &API{Builder: r.Builder, Graph: r.graph, Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{} }, Policy: web, Now: r.now}
	a.RegisterHandlers(mux)
	do := func(h http.Handler, method, url, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, url, strings.NewReader(body)))
		return w
	}
	body := `{"pairs":[{"src":"h1/eth1","dst":"h2/eth1"}],"dscp":26,"qps":8}`
	if w := do(mux, http.MethodPost, "/api/v1/catalogue", body); w.Code != http.StatusForbidden && w.Code != http.StatusUnauthorized {
		t.Errorf("without authentication: %d %s", w.Code, w.Body)
	}
	if len(r.tracer.traced) != 0 {
		t.Errorf("a client without authentication had %d tuples traced", len(r.tracer.traced))
	}
	build := http.HandlerFunc(a.handleBuild)
	w := do(build, http.MethodPost, "/api/v1/catalogue", body)
	lines := bytes.Split(bytes.TrimSpace(w.Body.Bytes()), []byte("\n"))
	first := 0
	err := plan.ReadCatalogue(bytes.NewReader(lines[0]), func(_ int, e *plan.Entry) error { first = int(e.SPort); return nil }, func(e fabric.LineError) { t.Error(e) })
	if w.Code != http.StatusOK || err != nil || len(lines) < 16 || first != firstPort {
		t.Fatalf("%d, %d lines, %v, port %d", w.Code, len(lines), err, first)
	}
	if got := do(mux, http.MethodGet, "/api/v1/catalogue?src=h1/eth1&dst=h2/eth1", ""); got.Body.String() != w.Body.String() {
		t.Errorf("GET differs from POST:\n%s", got.Body)
	}
	for _, x := range []struct {
		body string
		code int
	}{{`{`, 400}, {`{"pair":1}`, 400}, {`{"pairs":[],"qps":1}`, 400}} {
		if got := do(build, http.MethodPost, "/api/v1/catalogue", x.body); got.Code != x.code {
			t.Errorf("%s: %d %s", x.body, got.Code, got.Body)
		}
	}
	if got := do(mux, http.MethodGet, "/api/v1/catalogue?src=h9/eth1", ""); got.Code != http.StatusNotFound {
		t.Errorf("unknown NIC: %d", got.Code)
	}
	r.turn <- struct{}{}
	if got := do(build, http.MethodPost, "/api/v1/catalogue", body); got.Code != http.StatusConflict {
		t.Errorf("while another one is built: %d %s", got.Code, got.Body)
	}
	<-r.turn
	r.tracer.err = errors.New("no agent")
	r.clock = r.clock.Add(time.Hour)
	if got := do(build, http.MethodPost, "/api/v1/catalogue", body); got.Code != http.StatusBadGateway {
		t.Errorf("without an agent: %d %s", got.Code, got.Body)
	}
}
