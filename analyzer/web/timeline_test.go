package web

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/report"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// past closes an incident that lasted from so long before noon, for so long.
func past(s *snapshot.Snapshot, d fabric.Direction, before, lasted time.Duration) {
	in := blame(s, d, 90_000, 0)
	in.FirstSeen = noon().Add(-before)
	end := in.FirstSeen.Add(lasted)
	in.Open, in.Cleared, in.Closed = false, &end, "healed: probes that cross it are clean again"
}

func TestTimelineIsTheLastHour(t *testing.T) {
	g := loadDemo(t)
	s := healthy(g)
	open := fabric.Direction{From: "spine1:dn1", To: "leaf1:up1"}
	blame(&s, open, 2_000_000, 0)
	past(&s, open, 30*time.Minute, 15*time.Minute)
	past(&s, fabric.Direction{From: "leaf2:up1", To: "spine1:dn2"}, 90*time.Minute, 45*time.Minute) // began before the hour
	past(&s, fabric.Direction{From: "leaf3:up1", To: "spine1:dn3"}, 3*time.Hour, time.Hour)         // ended before it
	tl := newTimeline(s.Incidents, s.At, (&Handler{}).pageOf)
	if len(tl.Rows) != 2 || len(tl.Ticks) != 6 || tl.Ticks[5].Text != "12:00" {
		t.Fatalf("%d rows, ticks %+v", len(tl.Rows), tl.Ticks)
	}
	span := timelineRight - timelineLeft
	first := tl.Rows[0].Bars
	if len(first) != 2 || first[0].Class != "open" || first[0].Href != "#v-id0" || first[0].W < 4 || first[0].X+first[0].W < timelineRight-0.1 || first[1].W != span/4 || first[1].X != timelineLeft+span/2 {
		t.Errorf("bars of the first row: %+v", first)
	}
	if b := tl.Rows[1].Bars[0]; b.X != timelineLeft || b.W != span/4 || b.Class != "past" {
		t.Errorf("the bar that began before the hour: %+v", b)
	}
	_, all := page(t, handler(g, s), "/")
	if n := len(with(all, "data-bar", "open")); n != 1 {
		t.Errorf("%d open bars on the page", n)
	}
	if tl := newTimeline(nil, s.At, (&Handler{}).pageOf); len(tl.Rows) != 0 {
		t.Errorf("rows of nothing: %+v", tl.Rows)
	}
}

func TestTimelineIsBounded(t *testing.T) {
	g := clos{pods: 1, leaves: 20, spines: 2, nodesPerLeaf: 1}.graph(t)
	s := healthy(g)
	for i := range 20 {
		past(&s, fabric.Direction{From: fmt.Sprintf("leaf1-%d:up1", i+1), To: fmt.Sprintf("spine1-1:dn%d", i+1)}, 30*time.Minute, time.Minute)
	}
	if tl := newTimeline(s.Incidents, s.At, (&Handler{}).pageOf); len(tl.Rows) != maxTimeline || tl.More != 20-maxTimeline {
		t.Errorf("%d rows, %d more", len(tl.Rows), tl.More)
	}
}

// TestQueriesLinkToPrometheus: each question about a verdict and a flow is a link where the
// server's page is known, and text where it is not.
func TestQueriesLinkToPrometheus(t *testing.T) {
	g, s := demoFault(t)
	h := handler(g, s)
	text, _ := page(t, h, "/?src=h3/eth1&dst=h1/eth1")
	contains(t, text, "fabric_suspect_score{element=&#34;leaf1:up1--spine1:dn1&#34;,kind=&#34;link&#34;}", "fabric_switch_port_.&#43;", "flow=&#34;0&#34;")
	if strings.Contains(text, "/graph?") {
		t.Error("a link to nowhere")
	}
	h = handler(g, s)
	h.Prometheus = "https://prom.example/p/"
	_, all := page(t, h, "/")
	found := map[string]int{}
	for _, e := range with(all, "href", "") {
		u, err := url.Parse(e.attr["href"])
		if err != nil || u.Host != "prom.example" {
			continue
		}
		if u.Path != "/p/graph" || u.Query().Get("g0.expr") == "" {
			t.Errorf("link %s", u)
		}
		found[u.Query().Get("g0.expr")]++
	}
	for _, want := range []string{
		`fabric_suspect_added_delay_seconds{element="leaf1:up1--spine1:dn1",kind="link"}`,
		`{__name__=~"fabric_switch_port_.+",switch="spine1",port="dn1"}`,
		`histogram_quantile(0.5, sum(rate(fabric_probe_owd_seconds{src="h5/eth1",dst="h1/eth1",flow="0",direction="forward"}[1m])))`,
	} {
		if found[want] == 0 {
			t.Errorf("no link asks %s", want)
		}
	}
}

// TestNamesCannotLeaveTheirQuotes: a name is a string in the question, whatever is in it.
func TestNamesCannotLeaveTheirQuotes(t *testing.T) {
	h := &Handler{Prometheus: "http://p"}
	for _, a := range h.promQueries(report.ElementQueries(fabric.Element{ID: `x"} or up{a="`, Kind: fabric.KindSwitch})) {
		if strings.Contains(a.Expr, `or up{a="`) {
			t.Errorf("%s: %s", a.Name, a.Expr)
		}
	}
}

func TestScopesThatAreNotInnocentComeFirst(t *testing.T) {
	g := loadDemo(t)
	s := healthy(g)
	s.Scopes = []scope.Scope{{Scope: "fabric", State: fabric.Suspect}, {Scope: "plane:a", State: fabric.Innocent},
		{Scope: "job_name:train", State: fabric.Suspect, Why: "leaf1 is on its way", Clean: 9, Degraded: 3}, {Scope: "pod:p1", State: fabric.InsufficientEvidence}}
	rows, n := scopeRows(s.Scopes)
	if n != 3 || rows[0].Scope != "job_name:train" || rows[1].Scope != "pod:p1" || rows[2].State != "innocent" {
		t.Errorf("%d: %+v", n, rows)
	}
	_, all := page(t, handler(g, s), "/")
	contains(t, one(t, all, "data-scope", "job_name:train").text, "leaf1 is on its way")
}
