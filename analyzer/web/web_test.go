package web

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// element is one element of a parsed page.
type element struct {
	name string
	attr map[string]string
	text string // of itself and its descendants
	from int    // where its text begins in that of the page
}

// parse reads a page, which is well-formed XML by intent: a name that broke
// out of its attribute or text would not be.
func parse(t testing.TB, body string) []*element {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(body))
	dec.Entity = xml.HTMLEntity
	var all, stack []*element
	var text strings.Builder
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			if len(stack) > 0 {
				t.Fatalf("<%s> is not closed", stack[len(stack)-1].name)
			}
			return all
		}
		if err != nil {
			t.Fatalf("the page is not well-formed: %v", err)
		}
		switch v := tok.(type) {
		case xml.StartElement:
			e := &element{name: v.Name.Local, attr: map[string]string{}, from: text.Len()}
			for _, a := range v.Attr {
				e.attr[a.Name.Local] = a.Value
			}
			all, stack = append(all, e), append(stack, e)
		case xml.EndElement:
			e := stack[len(stack)-1]
			e.text = text.String()[e.from:]
			stack = stack[:len(stack)-1]
		case xml.CharData:
			text.Write(v)
		}
	}
}

// with returns the elements that have an attribute, of the given value unless it is "".
func with(all []*element, attr, value string) (out []*element) {
	for _, e := range all {
		if got, ok := e.attr[attr]; ok && (value == "" || got == value) {
			out = append(out, e)
		}
	}
	return out
}

func get(t testing.TB, h http.Handler, url string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	return w
}

func page(t testing.TB, h http.Handler, url string) (string, []*element) {
	t.Helper()
	w := get(t, h, url)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: status %d, want 200: %s", url, w.Code, w.Body)
	}
	return w.Body.String(), parse(t, w.Body.String())
}

func one(t testing.TB, all []*element, attr, value string) *element {
	t.Helper()
	found := with(all, attr, value)
	if len(found) != 1 {
		t.Fatalf("%d elements with %s=%q, want 1", len(found), attr, value)
	}
	return found[0]
}

func headline(t testing.TB, all []*element) string {
	t.Helper()
	for _, e := range all {
		if e.name == "title" {
			return strings.TrimSuffix(e.text, " – Graylink demo")
		}
	}
	t.Fatal("no title")
	return ""
}

func TestAnswer(t *testing.T) {
	g := loadDemo(t)
	down := fabric.Direction{From: "spine1:dn1", To: "leaf1:up1"}
	for _, c := range []struct {
		name  string
		set   func(*snapshot.Snapshot)
		state string
		head  string
		words []string
		stale bool
	}{
		{"innocent", func(*snapshot.Snapshot) {}, "innocent", "The network is innocent", []string{"Evidence covers 100 % of the link directions", "112 flows", "1 s ago"}, false},
		{"suspect", func(s *snapshot.Snapshot) { blame(s, down, 2_000_000, 0) }, "suspect",
			"Suspect: leaf1:up1--spine1:dn1, adds 2.0 ms from spine1 to leaf1", nil, false},
		{"lossy suspect", func(s *snapshot.Snapshot) { blame(s, down, 0, 0.1) }, "suspect",
			"Suspect: leaf1:up1--spine1:dn1, loses 10 % from spine1 to leaf1", nil, false},
		{"held", func(s *snapshot.Snapshot) { blame(s, down, 2_000_000, 0).Held = "nothing has crossed it" }, "suspect",
			"Suspect: leaf1:up1--spine1:dn1, adds 2.0 ms from spine1 to leaf1 (held open)", []string{"nothing has crossed it"}, false},
		{"the one still felt comes before the one held", func(s *snapshot.Snapshot) {
			blame(s, down, 2_000_000, 0).Held = "unused"
			blame(s, fabric.Direction{From: "leaf2:up1", To: "spine1:dn2"}, 90_000, 0)
		}, "suspect", "Suspect: leaf2:up1--spine1:dn2, adds 90 µs from leaf2 to spine1", []string{"(held open)"}, false},
		{"for information", func(s *snapshot.Snapshot) {
			state := s.Report.State
			in := blame(s, down, 0, 0)
			in.Scenario, in.Severity, in.Summary = fabric.RoutingFault, fabric.SeverityInfo, "Switch leaf1 chooses a next hop anew for each packet."
			s.Report.State, s.Report.Paths = state, fabric.PathChoice{Mode: fabric.Spray, Sprayed: 96}
		}, "innocent", "The network is innocent", []string{"Switches spray the packets of 96 flows.", "For information: Switch leaf1 chooses"}, false},
		{"insufficient", func(s *snapshot.Snapshot) {
			s.Report.State, s.Baselines, s.Pending = fabric.InsufficientEvidence, 40, 3
			s.Report.Coverage = fabric.Coverage{Links: 0.625, Edges: 0.5}
			s.Report.Edges.UnknownPath = 9
			s.Hosts = map[string]string{"h2": "does not answer"}
		}, "insufficient", "Insufficient evidence", []string{"baselines are known for 40 of 112 flows", "62.5 %", "1 host provides no evidence: h2 (does not answer)", "3 flows wait", "9 flows have no known path"}, false},
		{"no cycle yet", func(s *snapshot.Snapshot) { *s = snapshot.Snapshot{} }, "insufficient", "Insufficient evidence", []string{"has not finished a cycle"}, false},
		{"stale innocence is no innocence", func(s *snapshot.Snapshot) { s.At = noon().Add(-14 * time.Second) }, "innocent",
			"Last known: The network is innocent", []string{"STALE: the last cycle ended 15 s ago"}, true},
		{"a cycle in fifteen seconds", func(s *snapshot.Snapshot) { s.At, s.Every = noon().Add(-14*time.Second), 15*time.Second }, "innocent", "The network is innocent", nil, false},
		{"failed cycle", func(s *snapshot.Snapshot) { s.CycleError = "evidence: no answer" }, "innocent", "The network is innocent",
			[]string{"The last cycle failed: evidence: no answer"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := healthy(g)
			c.set(&s)
			_, all := page(t, handler(g, s), "/")
			b := one(t, all, "id", "answer")
			if b.attr["data-state"] != c.state {
				t.Errorf("state %q, want %q", b.attr["data-state"], c.state)
			}
			if got := headline(t, all); got != c.head {
				t.Errorf("headline %q, want %q", got, c.head)
			}
			if _, stale := b.attr["data-stale"]; stale != c.stale {
				t.Errorf("stale %v, want %v", stale, c.stale)
			}
			contains(t, one(t, all, "id", "answer").text+one(t, all, "id", "verdicts").text, c.words...)
		})
	}
}

func strokeOf(t testing.TB, all []*element, from, to string) *element {
	t.Helper()
	for _, e := range with(all, "data-from", from) {
		if e.attr["data-to"] == to {
			return e
		}
	}
	t.Fatalf("no stroke from %s to %s", from, to)
	return nil
}

func TestFabricOfTheDemo(t *testing.T) {
	g, s := demoFault(t)
	*linkOf(&s, fabric.Direction{From: "leaf3:up1", To: "spine1:dn3"}) = snapshot.LinkView{Link: "leaf3:up1--spine1:dn3", From: "leaf3:up1", To: "spine1:dn3"}
	linkOf(&s, fabric.Direction{From: "leaf4:up1", To: "spine1:dn4"}).AddedDelayNS = nil
	linkOf(&s, fabric.Direction{From: "leaf2:up2", To: "spine2:dn2"}).LossRatio = 0.02
	linkOf(&s, fabric.Direction{From: "spine2:dn3", To: "leaf3:up2"}).Degraded = 7
	_, all := page(t, handler(g, s), "/")

	if got, want := len(with(all, "data-link", "")), 2*len(g.Topo.Links); got != want {
		t.Errorf("%d strokes, want %d: every link in both directions", got, want)
	}
	if got := len(with(all, "data-box", "")); got != 14 {
		t.Errorf("%d boxes, want 14: six switches and eight nodes", got)
	}
	for _, c := range []struct{ from, to, state, mark, title string }{
		{"spine1:dn1", "leaf1:up1", "delay", "suspect", "adds 2.0 ms\n7 flows, 6 degraded\nSUSPECT"},
		{"leaf1:up1", "spine1:dn1", "healthy", "", "no added delay\n7 flows, 0 degraded"},
		{"leaf3:up1", "spine1:dn3", "none", "", "no evidence"},
		{"leaf4:up1", "spine1:dn4", "unknown", "", "its own delay cannot be determined"},
		{"leaf2:up2", "spine2:dn2", "loss", "", "loses 2 %"},
		{"spine2:dn3", "leaf3:up2", "unknown", "", "its own delay cannot be determined\n7 flows, 7 degraded"},
		{"h1/eth1", "leaf1:dn1", "healthy", "", "no added delay"},
	} {
		e := strokeOf(t, all, c.from, c.to)
		if e.attr["data-state"] != c.state || e.attr["data-mark"] != c.mark {
			t.Errorf("%s → %s: state %q, mark %q; want %q, %q", c.from, c.to, e.attr["data-state"], e.attr["data-mark"], c.state, c.mark)
		}
		contains(t, e.text, c.from+" → "+c.to, c.title)
	}
	if n := len(with(all, "class", "arrow suspect")); n != 2 {
		t.Errorf("%d arrows, want one on the suspect and one in the legend", n)
	}
	l := one(t, all, "data-label", "id0")
	contains(t, l.text, "leaf1:up1--spine1:dn1", "adds 2.0 ms, spine1 → leaf1")
	if one(t, all, "id", strings.TrimPrefix(l.attr["href"], "#")).name != "article" {
		t.Errorf("the label's link %q does not lead to a verdict", l.attr["href"])
	}
}

func TestEveryKindIsMarked(t *testing.T) {
	for _, c := range []struct {
		el        fabric.Element
		direction string
		attr      string // of the marked element
		value     string
		n         int // marked as suspect in all
	}{
		{fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, "", "data-box", "spine1", 1},
		{fabric.Element{ID: "h3", Kind: fabric.KindHost}, "", "data-box", "h3", 1},
		{fabric.Element{ID: "h3/eth1", Kind: fabric.KindNIC}, "", "data-nic", "h3/eth1", 1},
		{fabric.Element{ID: "h3/eth1", Kind: fabric.KindNIC}, "leaf2:dn1->h3/eth1", "data-from", "leaf2:dn1", 2},
		{fabric.Element{ID: "h3/eth1", Kind: fabric.KindClock}, "", "data-nic", "h3/eth1", 1},
		{fabric.Element{ID: "h3/eth1--leaf2:dn1", Kind: fabric.KindAccessLink}, "", "data-from", "leaf2:dn1", 2},
		{fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}, "", "data-from", "spine1:dn1", 2},
		{fabric.Element{ID: "spine1:dn1", Kind: fabric.KindPort}, "spine1:dn1->leaf1:up1", "data-from", "spine1:dn1", 1},
		{fabric.Element{ID: "spine1:dn1@tc3", Kind: fabric.KindQueue}, "", "data-from", "spine1:dn1", 1},
		{fabric.Element{ID: "leaf1->spine1->leaf2", Kind: fabric.KindCorridor}, "", "data-from", "spine1:dn2", 2},
		{fabric.Element{ID: "leaf1->leaf2", Kind: fabric.KindPair}, "", "data-box", "leaf2", 2},
		{fabric.Element{ID: "leaf1", Kind: fabric.KindLeafUplinks}, "", "data-from", "leaf1:up2", 4},
	} {
		t.Run(string(c.el.Kind)+" "+c.direction, func(t *testing.T) {
			g := loadDemo(t)
			s := healthy(g)
			s.Incidents = []incident.Incident{{Open: true, Verdict: fabric.Verdict{ID: "x", Element: c.el, Direction: c.direction}}}
			_, all := page(t, handler(g, s), "/")
			marked := with(all, "data-mark", "suspect")
			if len(marked) != c.n || len(with(marked, c.attr, c.value)) != 1 {
				t.Errorf("%d marked, %d of them with %s=%s; want %d and 1", len(marked), len(with(marked, c.attr, c.value)), c.attr, c.value, c.n)
			}
			one(t, all, "data-label", "x")
		})
	}
}

func TestElementOutsideTheTopologyIsListedOnly(t *testing.T) {
	g := loadDemo(t)
	for _, k := range []fabric.Kind{fabric.KindLink, fabric.KindPort, fabric.KindNIC, fabric.KindSwitch, fabric.KindQueue, fabric.KindCorridor,
		fabric.KindPair, fabric.KindLeafUplinks, fabric.KindHost, fabric.KindClock, "novel"} {
		s := healthy(g)
		s.Incidents = []incident.Incident{{Open: true, Verdict: fabric.Verdict{ID: "x", Element: fabric.Element{ID: "nowhere:1--else:2", Kind: k}, Direction: "nowhere:1->else:2"}}}
		_, all := page(t, handler(g, s), "/")
		one(t, all, "data-verdict", "x")
		if n := len(with(all, "data-mark", "")); n != 0 {
			t.Errorf("kind %s: %d elements are marked, want none", k, n)
		}
	}
}

func TestHeldIsMarkedAsHeld(t *testing.T) {
	g, s := demoFault(t)
	s.Incidents[0].Held = "no healthy probe has crossed it since"
	_, all := page(t, handler(g, s), "/")
	if e := strokeOf(t, all, "spine1:dn1", "leaf1:up1"); e.attr["data-mark"] != "held" {
		t.Errorf("mark %q, want held", e.attr["data-mark"])
	}
	v := one(t, all, "data-verdict", "id0")
	if v.attr["data-level"] != "held" {
		t.Errorf("level %q, want held", v.attr["data-level"])
	}
	contains(t, v.text, "Held open:", "no healthy probe has crossed it since")
}

func TestVerdictCarriesItsEvidence(t *testing.T) {
	g, s := demoFault(t)
	closed := noon().Add(-time.Hour)
	for i := range 60 {
		in := incident.Incident{Cleared: &closed, Closed: "healed: probes are clean", Verdict: s.Incidents[0].Verdict}
		in.ID = fmt.Sprintf("past%d", i)
		s.Incidents = append(s.Incidents, in)
	}
	_, all := page(t, handler(g, s), "/")
	contains(t, one(t, all, "data-verdict", "id0").text, "99.8 % confident", "warning", "corridor", "6 of 6 degraded flows explained",
		"41 nearby flows are healthy", "7 NICs, 6 flows", "port spine1:dn1", "Check the queues", "spine1:dn1 → leaf1:up1", "2026-11-20 11:59:16 UTC (45 s)", "tier 2, plane a")
	if n := len(with(all, "data-past", "")); n != maxHistory {
		t.Errorf("%d closed verdicts, want the newest %d", n, maxHistory)
	}
	contains(t, one(t, all, "id", "history").text, "The newest 50 of 60", "healed: probes are clean")
	one(t, all, "data-past", "past0")
	if len(with(all, "data-past", "past59")) != 0 {
		t.Error("the oldest is listed instead of the newest")
	}
}

// A verdict on routing has the prefix that it is about. What shares a fault of polarization is not called indistinguishable.
func TestVerdictsOnRoutingNameThePrefix(t *testing.T) {
	for _, c := range []struct {
		scenario fabric.Scenario
		prefix   string
		want     string
	}{
		{fabric.RoutingFault, "leaf3", "indistinguishable from"},
		{fabric.FIBMismatch, "10.0.3.0/24", "indistinguishable from"},
		{fabric.Polarization, "", "the same hash"},
	} {
		g, s := demoFault(t)
		in := &s.Incidents[0]
		in.Element, in.Direction, in.Scenario, in.Prefix = fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, "", c.scenario, c.prefix
		in.Equivalent = []fabric.Element{{ID: "spine2", Kind: fabric.KindSwitch}}
		_, all := page(t, handler(g, s), "/")
		text := one(t, all, "data-verdict", "id0").text
		contains(t, text, string(c.scenario), c.prefix, c.want, "switch spine2")
		if strings.Contains(text, "prefix") != (c.prefix != "") {
			t.Errorf("%s: prefix %q: %s", c.scenario, c.prefix, text)
		}
	}
}

func TestDegradedFlows(t *testing.T) {
	g, s := demoFault(t)
	s.Edges = append(s.Edges, snapshot.EdgeView{Condition: snapshot.Healthy, Flow: fabric.Flow{Src: "h2/eth1", Dst: "h3/eth1"}, Obs: fabric.Observation{Edge: "h2/eth1>h3/eth1#0", Src: "h2/eth1", Dst: "h3/eth1"}})
	bare := snapshot.EdgeView{Condition: snapshot.Degraded, Flow: fabric.Flow{Src: "h2/eth1", Dst: "h5/eth1"}, Obs: fabric.Observation{Edge: "h2/eth1>h5/eth1#0", Src: "h2/eth1", Dst: "h5/eth1"}}
	s.Edges = append(s.Edges, bare)
	_, all := page(t, handler(g, s), "/")
	rows := with(all, "data-edge", "")
	if len(rows) != 4 {
		t.Fatalf("%d rows, want the 4 degraded flows", len(rows))
	}
	contains(t, rows[0].text, "2.0 ms", "2.3 ms", "4.9 µs", "8.8 µs", "1.5 %", "spine1[dn2→dn1] leaf1[up1→dn1]", "valid")
	if got := one(t, all, "data-edge", bare.Obs.Edge).text; got != bare.Obs.Edge+strings.Repeat("–", 6)+"unknown" {
		t.Errorf("a flow without numbers reads %q: absent is not zero", got)
	}
	for range 200 {
		s.Edges = append(s.Edges, bare)
	}
	_, all = page(t, handler(g, s), "/")
	if n := len(with(all, "data-edge", "")); n != maxEdges {
		t.Errorf("%d rows, want %d", n, maxEdges)
	}
	contains(t, one(t, all, "id", "edges").text, "The 100 worst of 204 are listed.")
}

func TestLookup(t *testing.T) {
	g, s := demoFault(t)
	h := handler(g, s)
	forward := traced(t, g, h.Store, "h3/eth1>h1/eth1#0")
	traced(t, g, h.Store, "h3/eth1>h1/eth1#0/r")
	_, all := page(t, h, "/?src=h3/eth1&dst=h1/eth1")
	there, back := one(t, all, "data-way", "h3/eth1>h1/eth1"), one(t, all, "data-way", "h1/eth1>h3/eth1")
	contains(t, there.text, "h3/eth1>h1/eth1#0", "path valid", "traced 2026-11-20 11:59:57 UTC", "degraded: p50 2.0 ms (normally 4.9 µs)")
	for _, hop := range forward {
		contains(t, there.text, hop.Switch+" in "+hop.In+", out "+hop.Out)
	}
	contains(t, back.text, "h3/eth1>h1/eth1#0/r", "There are no measurements in the last window")

	_, all = page(t, h, "/?src=h5/eth1&dst=h6/eth1")
	contains(t, one(t, all, "data-way", "h5/eth1>h6/eth1").text, "There is no known flow in this direction.")
}

func TestLookupRefuses(t *testing.T) {
	g, s := demoFault(t)
	for _, c := range []struct{ url, want string }{
		{"/?src=h99/eth1&dst=h1/eth1", `src: "h99/eth1" is not a NIC of this fabric; expected node/device, such as h1/eth1`},
		{"/?src=h1/eth1", `dst: "" is not a NIC`},
		{"/?src=h1/eth1&dst=leaf1", `dst: "leaf1" is not a NIC`},
		{"/?src=h1/eth1&dst=h1/eth1", "expected two different NICs"},
		{"/?src=" + strings.Repeat("x", 5000) + "&dst=h1/eth1", "…"},
		{"/?src=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&dst=h1/eth1", "is not a NIC"},
	} {
		w := get(t, handler(g, s), c.url)
		if w.Code != http.StatusBadRequest {
			t.Errorf("GET %.60s: status %d, want 400", c.url, w.Code)
		}
		all := parse(t, w.Body.String())
		contains(t, one(t, all, "data-error", "lookup").text, c.want)
		one(t, all, "id", "answer")
		noForeignScript(t, all)
	}
}

func noForeignScript(t testing.TB, all []*element) {
	t.Helper()
	for _, e := range all {
		if e.name == "script" && (strings.TrimPrefix(e.attr["src"], "../") != "static/refresh.js" && e.attr["src"] != "static/matrix.js" || e.text != "") {
			t.Errorf("a script of its own: src %q, text %q", e.attr["src"], e.text)
		}
		for _, a := range []string{"onload", "onerror", "onclick", "onmouseover", "style"} {
			if v, ok := e.attr[a]; ok {
				t.Errorf("<%s> has %s=%q", e.name, a, v)
			}
		}
		for _, a := range []string{"href", "src", "action"} {
			if v := strings.TrimSpace(strings.ToLower(e.attr[a])); strings.HasPrefix(v, "javascript:") || strings.HasPrefix(v, "http") || strings.HasPrefix(v, "//") {
				t.Errorf("<%s> has %s=%q", e.name, a, v)
			}
		}
	}
}

// hostileFabric carries one name wherever a name can stand.
func hostileFabric(name string) (*fabric.Graph, snapshot.Snapshot) {
	topo := &fabric.Topology{Switches: []fabric.Switch{{Name: name, Role: fabric.Leaf, Pod: name, Plane: name}, {Name: name + "2", Role: fabric.Spine, Plane: "b"}},
		Nodes: []fabric.Node{{Name: "h1", NICs: []fabric.NIC{{Node: "h1", Device: name, Plane: name}}}},
		Links: []fabric.Link{{A: "h1/" + name, B: name + ":dn1"}, {A: name + ":" + name, B: name + "2:dn"}}}
	g := fabric.NewGraph(topo)
	s := healthy(g)
	in := blame(&s, fabric.Direction{From: "h1/" + name, To: name + ":dn1"}, 5, 0.5)
	in.ID, in.Plane, in.Class, in.Severity, in.Action, in.Summary, in.Held = name, name, name, name, name, name, name
	in.Scenario, in.Kind, in.Causes, in.Jobs = fabric.Scenario(name), fabric.KindLink, []string{name}, []string{name}
	past := *in
	past.Open, past.Closed = false, name
	s.Incidents = append(s.Incidents, past)
	s.Hosts, s.CycleError = map[string]string{name: name}, name
	s.Edges = []snapshot.EdgeView{degradedEdge("h1/"+name, "h2/"+name, fabric.Path{{Switch: name, In: name, Out: name}})}
	return g, s
}

// hostileHandler returns a handler of such a fabric, with a matrix in which a flow goes from its NIC to itself.
func hostileHandler(name string) *Handler {
	g, s := hostileFabric(name)
	h := handler(g, s)
	h.Title, h.Matrix = name, matrix.NewStore()
	self := degradedEdge("h1/"+name, "h1/"+name, nil)
	self.Obs.Class = name
	s.Hosts, s.FreshFor, s.Edges = nil, time.Second, []snapshot.EdgeView{self}
	h.Matrix.Record(g, &s)
	return h
}

func TestHostileNames(t *testing.T) {
	for _, name := range []string{`"><script>alert(1)</script>`, `'onload='x`, `</title></svg><img src=x onerror=alert(1)>`, "javascript:alert(1)", "{{.Title}}", "`${x}`",
		"&lt;b&gt;", "日本語-ß-\u202e", "%3Cscript%3E", strings.Repeat("long", 300)} {
		h := hostileHandler(name)
		_, all := page(t, h, "/")
		contains(t, one(t, all, "id", "verdicts").text, name)
		cell := "row=" + url.QueryEscape(name) + "&column=" + url.QueryEscape(name)
		of := "plane=" + url.QueryEscape(name) + "&class=" + url.QueryEscape(name) + "&pod=" + url.QueryEscape(name)
		for _, request := range []string{"/", "/matrix?" + cell, "/matrix?" + of, "/matrix?by=nic&" + of, "/matrix?fragment=cell&" + cell} {
			got := get(t, h, request) // 400 where a name is no leaf, as one with a slash
			noForeignScript(t, parse(t, got.Body.String()))
			if strings.Contains(name, "<") && strings.Contains(got.Body.String(), name) {
				t.Errorf("%q stands unescaped in %s", name, request)
			}
		}
		for _, wrong := range []string{"of", "direction", "zoom", "at"} {
			got := get(t, h, "/matrix?"+wrong+"="+url.QueryEscape(name))
			noForeignScript(t, parse(t, got.Body.String()))
			if got.Code != http.StatusBadRequest {
				t.Errorf("%s=%q: status %d, want 400", wrong, name, got.Code)
			}
		}
	}
}

func FuzzNames(f *testing.F) {
	f.Add(`"><script>`, "h1/eth1", "p1")
	f.Add("a", "%00", "</svg>")
	f.Fuzz(func(t *testing.T, name, nic, pod string) {
		// A byte that XML cannot carry is HTML's to replace; the parser here is XML's.
		for _, r := range name + nic + pod {
			if r < 0x20 && r != '\t' && r != '\n' || r == 0xfffd || r == 0xfffe || r == 0xffff {
				return
			}
		}
		h := hostileHandler(name)
		for _, request := range []string{"/?" + url.Values{"src": {nic}, "dst": {name}, "pod": {pod}}.Encode(),
			"/matrix?" + url.Values{"row": {name}, "column": {nic}, "pod": {pod}, "at": {nic}, "zoom": {pod}}.Encode()} {
			w := get(t, h, request)
			if w.Code != http.StatusOK && w.Code != http.StatusBadRequest {
				t.Fatalf("GET %s: status %d", request, w.Code)
			}
			noForeignScript(t, parse(t, w.Body.String()))
		}
	})
}

func TestHeadersAndFiles(t *testing.T) {
	g, s := demoFault(t)
	h := handler(g, s)
	for _, c := range []struct {
		method, url string
		status      int
		kind        string
	}{
		{http.MethodGet, "/", 200, "text/html"}, {http.MethodHead, "/", 200, "text/html"},
		{http.MethodGet, "/static/page.css", 200, "text/css"}, {http.MethodGet, "/static/refresh.js", 200, "javascript"},
		{http.MethodGet, "/static/icon.svg", 200, "image/svg"}, {http.MethodGet, "/static/", 404, ""},
		{http.MethodGet, "/static/../page.html", 404, ""}, {http.MethodGet, "/static/..%2fpage.html", 404, ""},
		{http.MethodGet, "/nothing", 404, ""}, {http.MethodPost, "/", 405, ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.url, nil))
		if w.Code != c.status || !strings.Contains(w.Header().Get("Content-Type"), c.kind) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.url, w.Code, w.Header().Get("Content-Type"), c.status, c.kind)
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s %s: policy %q", c.method, c.url, csp)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: nosniff is missing", c.method, c.url)
		}
	}
}

func TestFragmentIsThePageWithoutItsFrame(t *testing.T) {
	g, s := demoFault(t)
	whole, _ := page(t, handler(g, s), "/")
	part, all := page(t, handler(g, s), "/?fragment=main")
	if !strings.HasPrefix(part, "<main ") || !strings.Contains(whole, part) {
		t.Error("the fragment is not a part of the page")
	}
	for _, e := range with(all, "data-live", "") {
		if e.attr["id"] == "" {
			t.Errorf("data-live=%q has no id to be replaced by", e.attr["data-live"])
		}
	}
}

func TestTablesAndHeadings(t *testing.T) {
	g, s := demoFault(t)
	s.Incidents = append(s.Incidents, incident.Incident{Verdict: s.Incidents[0].Verdict})
	_, all := page(t, handler(g, s), "/?src=h3/eth1&dst=h1/eth1")
	ids := map[string]bool{}
	for _, e := range all {
		if e.name == "th" && e.attr["scope"] == "" {
			t.Errorf("a table heading %q without scope", e.text)
		}
		if id := e.attr["id"]; id != "" {
			if ids[id] {
				t.Errorf("id %q stands twice", id)
			}
			ids[id] = true
		}
	}
	for _, e := range all {
		if l := e.attr["aria-labelledby"]; l != "" && !ids[l] {
			t.Errorf("labelled by %q, which does not exist", l)
		}
	}
}

func demoCandidates() []fabric.Candidate {
	return []fabric.Candidate{{Element: fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}, Direction: "leaf2:up1->spine1:dn2", Probability: 0.417, Edges: 3,
		Others: []fabric.DirectedElement{{Element: fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}}}},
		{Element: fabric.Element{ID: "h4/eth1", Kind: fabric.KindNIC}, Probability: 0.08, Edges: 1}}
}

// TestCandidatesAreListedQuietly: below the verdicts and folded, with what would show more; the answer does not change.
func TestCandidatesAreListedQuietly(t *testing.T) {
	g, s := demoFault(t)
	plain, _ := page(t, handler(g, s), "/")
	s.Report.Candidates = demoCandidates()[:1]
	body, _ := page(t, handler(g, s), "/")
	contains(t, body, `<details id="candidates"><summary>Not enough evidence for a verdict (1)</summary>`, `data-candidate="leaf2:up1--spine1:dn2, from leaf2 to spine1"`, "41.7 %", "a flow from ", " crosses spine1 and avoids leaf2:up1--spine1:dn2")
	answer := func(p string) string { return p[strings.Index(p, `id="answer"`):strings.Index(p, `id="fabric"`)] }
	if strings.Contains(plain, "Not enough evidence") || answer(plain) != answer(body) {
		t.Error("candidates change the answer, or are listed where there are none")
	}
}
