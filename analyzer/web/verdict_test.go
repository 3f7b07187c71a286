package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/internal/fabric"
)

// wavy answers every query: lines that rise during the incident, and histograms of two peaks. Its labels are those of the flows.
type wavy struct{ labels []map[string]string }

func (w wavy) QueryInstant(context.Context, string, time.Time) ([]evidence.Sample, error) {
	return []evidence.Sample{{Labels: map[string]string{}, Value: 0.002}}, nil
}

func (w wavy) QueryRange(_ context.Context, query string, from, to time.Time, step time.Duration) (out []evidence.Series, err error) {
	for i, labels := range w.labels {
		s := evidence.Series{Labels: labels}
		for at := from; !at.After(to); at = at.Add(step) {
			v := 0.00001 * float64(i+2+at.Second()%3)
			if strings.Contains(query, "lost") {
				v /= 10
			} else if at.After(noon().Add(-44*time.Second)) && i < 3 {
				v += 0.002
			}
			s.Points = append(s.Points, evidence.Point{At: at, Value: v})
		}
		out = append(out, s)
	}
	return out, nil
}

func (w wavy) QueryHistograms(_ context.Context, _ string, at time.Time) ([]evidence.Histogram, error) {
	h := evidence.Histogram{Count: 900, Sum: 1, Buckets: []evidence.Bucket{{Lower: 8e-6, Upper: 9e-6, Count: 100}, {Lower: 9e-6, Upper: 1e-5, Count: 400}, {Lower: 1e-5, Upper: 1.1e-5, Count: 300}, {Lower: 2e-5, Upper: 2.2e-5, Count: 100}}}
	if at.After(noon().Add(-40 * time.Second)) {
		h.Buckets = append(h.Buckets, evidence.Bucket{Lower: 1.9e-3, Upper: 2.1e-3, Count: 500}, evidence.Bucket{Lower: 2.1e-3, Upper: 2.3e-3, Count: 200})
		h.Count = 1600
	}
	return []evidence.Histogram{h}, nil
}

// withReports adds reports from a server to a handler.
func withReports(h *Handler, db evidence.Querier) *Handler {
	h.Reports = &report.Collector{Snapshot: h.Snapshot, Store: h.Store, DB: db, Evidence: evidence.DefaultSettings(), Version: "1.2.3", ConfigHash: "c0ffee", Now: h.Now}
	return h
}

// reportedFault returns a handler with the demo's fault, whose flows are traced and have time lines.
func reportedFault(t *testing.T) *Handler {
	t.Helper()
	g, s := demoFault(t)
	var db wavy
	in := &s.Incidents[0]
	for _, src := range []string{"h3/eth1", "h5/eth1", "h7/eth1", "h2/eth1"} {
		f := fabric.Flow{Src: src, Dst: "h1/eth1"}
		in.Edges = append(in.Edges, f.String())
		db.labels = append(db.labels, map[string]string{"src": src, "dst": "h1/eth1", "flow": "0", "direction": "forward"})
	}
	in.Runbook, in.Jobs = "docs/runbooks/FabricLinkDegraded.md", []string{"ml/train"}
	in.Attribution = &fabric.Attribution{State: fabric.CauseFound, Summary: "Packets were damaged on the way to leaf1:up1.", From: noon().Add(-44 * time.Second), Until: noon(),
		Causes: []fabric.Cause{{Cause: fabric.CausePhysical, Element: "leaf1:up1", Peer: "spine1:dn1", Weight: 0.9, Text: "receive_fcs_errors_total grew by 42"}}}
	end := noon().Add(-20 * time.Minute)
	closed := *in
	closed.ID, closed.Open, closed.Cleared, closed.Closed, closed.FirstSeen, closed.LastSeen = "closed1", false, &end, "healed", end.Add(-time.Minute), end
	s.Incidents = append(s.Incidents, closed)
	h := handler(g, s)
	for _, f := range in.Edges {
		traced(t, g, h.Store, f)
	}
	return withReports(h, db)
}

// TestVerdictPage: the page has each part, its links lead somewhere, and an unknown identifier is a page as well.
func TestVerdictPage(t *testing.T) {
	h := reportedFault(t)
	body, all := page(t, h, "/verdicts/id0")
	contains(t, body, "link leaf1:up1--spine1:dn1", "Open for", "adds 2.0 ms", "ml/train", "docs/runbooks/FabricLinkDegraded.md", "first seen", "&#43; 2.0 ms", "histogram_quantile(0.5", "receive_fcs_errors_total grew by 42", "c0ffee", "1.2.3",
		`href="../api/v1/verdicts/id0/report?format=html"`, `href="../?dst=h1%2Feth1&amp;src=h3%2Feth1#lookup"`)
	for _, id := range []string{"answer", "summary", "delays", "lines", "flows", "paths", "causes", "others", "queries", "settings", "record"} {
		one(t, all, "id", id)
	}
	for _, chart := range []string{"delays", "p50", "loss", "cause"} {
		one(t, all, "data-chart", chart)
	}
	if n := len(with(all, "data-path", "")); n != 4 {
		t.Errorf("%d paths are drawn, want 4", n)
	}
	ids := map[string]bool{}
	for _, e := range all {
		if id := e.attr["id"]; id != "" {
			if ids[id] {
				t.Errorf("id %q stands twice", id)
			}
			ids[id] = true
		}
	}
	for _, e := range all {
		if target, ok := strings.CutPrefix(e.attr["href"], "#"); ok && !ids[target] {
			t.Errorf("a link to #%s leads nowhere", target)
		}
		if e.attr["style"] != "" {
			t.Errorf("<%s> has a style of its own, which the policy forbids", e.name)
		}
	}
	first, _ := page(t, h, "/")
	contains(t, first, `<a href="verdicts/id0">leaf1:up1--spine1:dn1</a>`, `<a href="verdicts/closed1">`)
	closed, _ := page(t, h, "/verdicts/closed1")
	contains(t, closed, "Closed after", "healed")
	if strings.Contains(closed, "refresh.js") {
		t.Error("the page of a closed verdict is loaded again and again")
	}
	got := get(t, h, "/verdicts/none")
	if got.Code != http.StatusNotFound {
		t.Errorf("an unknown verdict: %d", got.Code)
	}
	contains(t, got.Body.String(), "No verdict has the identifier none", `data-error="verdict"`)
	if got := get(t, handler(h.Store.Graph(), h.Snapshot()), "/verdicts/id0"); got.Code != http.StatusNotFound {
		t.Errorf("without reports: %d", got.Code)
	}
}

// TestNewestVerdict: an alert's labels lead to the newest verdict on an element, an open one first.
func TestNewestVerdict(t *testing.T) {
	h := reportedFault(t)
	element := url.QueryEscape("leaf1:up1--spine1:dn1")
	for query, want := range map[string]string{"element=" + element: "verdicts/id0", "element=" + element + "&kind=link&scenario=corridor": "verdicts/id0",
		"element=" + element + "&kind=switch": "", "element=none": "", "": ""} {
		got := get(t, h, "/verdicts?"+query)
		if want != "" && (got.Code != http.StatusSeeOther || got.Header().Get("Location") != want) {
			t.Errorf("%s: %d to %q, want 303 to %s", query, got.Code, got.Header().Get("Location"), want)
		}
		if want == "" && got.Code != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", query, got.Code)
		}
	}
	contains(t, get(t, h, "/verdicts?element=x").Body.String(), `No verdict is known on the element &#34;x&#34;`, `href="static/page.css"`)
}

// hostileReport returns a handler that has a name in every place of a verdict, its flows and its series.
func hostileReport(t *testing.T, name string) *Handler {
	t.Helper()
	g, s := hostileFabric(name)
	in := &s.Incidents[0]
	in.Edges = []string{fabric.Flow{Src: "h1/" + name, Dst: "h2/" + name}.String()}
	other := []fabric.Element{{ID: name, Kind: fabric.Kind(name)}}
	in.Prefix, in.Runbook, in.Equivalent, in.Causes = name, name, other, []string{name}
	in.Evidence.Asked = []fabric.Asked{{Between: other, Asked: fabric.AskedHop, Flows: []string{name}, Refused: []string{name}, Excluded: other, Hops: []fabric.AskedHopProbe{{Flow: name, Switch: name, Discarded: name}}}}
	in.Attribution = &fabric.Attribution{State: fabric.AttributionState(name), Summary: name, Against: []string{name}, Signals: &fabric.SignalReading{Text: name},
		Causes: []fabric.Cause{{Cause: fabric.CausePhysical, Element: name + ":" + name, Peer: name, Text: name}, {Cause: name, Element: name, Peer: name, Text: name}}}
	in.Failovers = []fabric.Failover{{Direction: name, LossNS: 1}}
	in.WouldSplit = []fabric.Measurement{{Meets: other[0], Avoids: other[0], Src: name, Dst: name, EndsAt: name}}
	h := handler(g, s)
	h.Title = name
	db := wavy{labels: []map[string]string{{"__name__": name, "src": "h1/" + name, "dst": "h2/" + name, "flow": "0", "direction": "forward", "leaf": name, "peer_leaf": name, "side": name, name: name}}}
	return withReports(h, db)
}

func TestHostileReports(t *testing.T) {
	for _, name := range []string{`"><script>alert(1)</script>`, `'onload='x`, `</title></style></svg><img src=x onerror=alert(1)>`, "javascript:alert(1)", "{{.Title}}", "`${x}`|\\|`", "[a](javascript:b) <b> ![x](http://y/z) @all #1",
		"日本語-ß-\u202e", "%3Cscript%3E", strings.Repeat("long", 300)} {
		h := hostileReport(t, name)
		id := url.PathEscape(name)
		got := get(t, h, "/verdicts/"+id)
		if got.Code != http.StatusOK {
			t.Fatalf("%q: %d: %.300s", name, got.Code, got.Body)
		}
		noForeignScript(t, parse(t, got.Body.String()))
		for _, request := range []string{"/verdicts/x" + id, "/verdicts?element=" + url.QueryEscape(name+"x")} {
			noForeignScript(t, parse(t, get(t, h, request).Body.String()))
		}
		r, err := h.Reports.Report(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := r.Encode(report.HTML, Style())
		if err != nil || len(file) > report.MaxFile {
			t.Fatalf("%q: a file of %d bytes (%v)", name, len(file), err)
		}
		for _, e := range parse(t, string(file)) {
			if e.name == "script" || e.name == "img" || e.name == "link" || e.attr["src"] != "" || strings.HasPrefix(e.attr["href"], "http") || strings.HasPrefix(strings.ToLower(e.attr["href"]), "javascript:") {
				t.Errorf("%q: the file has <%s> %v", name, e.name, e.attr)
			}
		}
		if _, err := r.Encode(report.Markdown, ""); err != nil {
			t.Error(err)
		}
	}
}

// TestReportFileInABrowser opens the file of a report in Chromium, by itself: it is shown with its style, no script runs, nothing is
// loaded, and nothing is wider than the window but what scrolls.
func TestReportFileInABrowser(t *testing.T) {
	for _, name := range []string{"", `</style><script>document.title="owned"</script><img src=/loaded onerror='document.title="owned"'>`, strings.Repeat("long", 300)} {
		h, id := reportedFault(t), "id0"
		if name != "" {
			h, id = hostileReport(t, name), name
		}
		r, err := h.Reports.Report(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		file, err := r.Encode(report.HTML, Style())
		if err != nil {
			t.Fatal(err)
		}
		loaded := 0
		got := drive(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/" {
				loaded++
			}
			if r.URL.Path == "/favicon.ico" { // which the browser wants of each site by itself
				loaded--
			}
			// The file's own policy is in its text, and would keep the test's script out.
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, strings.Replace(string(file), "default-src 'none';", "default-src 'none'; script-src 'self'; connect-src 'self';", 1))
		}), "/", `
			await new Promise((done) => setTimeout(done, 200));
			await send({
				title: document.title, scripts: document.querySelectorAll('script:not([src="/static/drive.js"])').length, images: document.querySelectorAll('img').length,
				font: getComputedStyle(document.querySelector('h2')).fontSize, wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
				charts: document.querySelectorAll('svg').length,
				widest: [...document.querySelectorAll('main *, header *')].filter((e) => !e.closest('.scroll') && e.getBoundingClientRect().right > document.documentElement.clientWidth).map((e) => e.tagName + '.' + e.className + ' in ' + e.closest('section')?.id).slice(0, 5),
			});`)
		if got["title"] == "owned" || got["scripts"] != 0.0 || got["images"] != 0.0 || got["font"] != "16px" || got["wide"].(float64) > 0 || got["charts"].(float64) < 1 || loaded > 0 {
			t.Errorf("%.40q: %v, %d files loaded", name, got, loaded)
		}
	}
}

// TestVerdictScreenshots photographs the page of a verdict and its file.
func TestVerdictScreenshots(t *testing.T) {
	h := reportedFault(t)
	for _, dark := range []bool{false, true} {
		img := shoot(t, h, fmt.Sprintf("verdict-dark-%t", dark), "/verdicts/id0", dark)
		if n := len(colours(img)); n < 8 {
			t.Errorf("dark %t: %d colours", dark, n)
		}
	}
	if dir := os.Getenv("GRAYLINK_SCREENSHOTS"); dir != "" {
		r, err := h.Reports.Report(t.Context(), "id0")
		if err != nil {
			t.Fatal(err)
		}
		for format, name := range map[string]string{report.HTML: "report.html", report.Markdown: "report.md", report.JSON: "report.json"} {
			file, err := r.Encode(format, Style())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), file, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}
