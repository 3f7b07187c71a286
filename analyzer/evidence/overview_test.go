package evidence

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// TestRule13NodesThatJudge checks that counts of two replicas are not added up, and that a missing count is no healthy NIC.
func TestRule13NodesThatJudge(t *testing.T) {
	s := healthy()
	for _, replica := range []string{"a", "b"} {
		for condition, values := range map[string]string{"healthy": "9x30", "shifted": "0x10 2x20", "lossy": "0x30", "silent": "0x30", "unjudged": "1x30"} {
			s.more += `  fabric_nic_flows{nic="h1/eth1", replica="` + replica + `", condition="` + condition + `"} ` + values + "\n"
		}
	}
	overviewOf := func(s series) Overview {
		c, err := BeginCycle(t.Context(), s.load(t), DefaultSettings(), time.Unix(20, 0))
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.ReadOverview(t.Context(), &OverviewCache{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	s.more += `  graylink_node_unhealthy_flows{instance="h1"} 0x10 3x20
  graylink_node_unhealthy_flows{instance="h9"} 0x10
`
	o := overviewOf(s)
	if want := map[string]int{"h1/eth1": 12}; !maps.Equal(o.Flows, want) || o.MissingReason != "" {
		t.Errorf("%v flows, %q; want %v", o.Flows, o.MissingReason, want)
	}
	if want := map[window.Condition]int{window.Shifted: 2, window.Unjudged: 1}; !maps.Equal(o.Unhealthy["h1/eth1"], want) || len(o.Unhealthy) != 1 {
		t.Errorf("%v, want %v", o.Unhealthy, want)
	}
	if !o.AgentAnswers("h1/eth1") || o.AgentAnswers("h9/eth1") {
		t.Error("who answers is not known")
	}
	if o := overviewOf(healthy()); o.MissingReason != "no agent publishes fabric_nic_flows" {
		t.Errorf("without counts: %q", o.MissingReason)
	}
}

// TestRule14NormalValuesAreLeftOut checks that they are known all the same.
func TestRule14NormalValuesAreLeftOut(t *testing.T) {
	s := healthy()
	s.more = clockSeries
	db := s.load(t)
	whole, err := ReadWindow(t.Context(), db, DefaultSettings(), time.Unix(20, 0))
	if err != nil {
		t.Fatal(err)
	}
	c, err := BeginCycle(t.Context(), db, DefaultSettings(), time.Unix(20, 0))
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.ReadOverview(t.Context(), &OverviewCache{})
	if err != nil {
		t.Fatal(err)
	}
	for _, nic := range []string{"h7/eth1", "h8/eth1"} {
		if have, want := clockText(o.window.Clocks[nic]), clockText(whole.Clocks[nic]); have != want {
			t.Errorf("%s: %s, want %s", nic, have, want)
		}
	}
	for name, most := range map[string]int{"nodeMoved": 0, "nodeUnlocked": 1, "nodeStalled": 0, "state": 1, "nicMoved": 0} {
		rows, err := db.QueryInstant(t.Context(), DefaultSettings().OverviewQueries()[name], c.at)
		if err != nil || len(rows) != most {
			t.Errorf("%s: %d rows, want %d (%v)", name, len(rows), most, err)
		}
	}
}

// Two clocks: one as clocks are, one that stepped at 19 s, and whose paths differ.
const clockSeries = `  fabric_nic_flows{nic="h7/eth1", condition="healthy"} 12x60
  graylink_node_unhealthy_flows{instance="h7"} 0x60
  graylink_node_unlocked_clocks{instance="h7"} 0x60
  graylink_node_unlocked_clocks{instance="h8"} 1x60
  graylink_node_clock_changes_total{instance="h7"} 0x60
  graylink_node_clock_changes_total{instance="h8"} 3x35 4x24
  graylink_node_clock_error_bound_seconds{instance="h8"} 1e-6x44 3e-6x20
  graylink_node_unhealthy_flows{instance="h9"} _x40 0x20
  graylink_node_clock_error_bound_seconds{instance="h9"} _x40 1e-6x20
  fabric_clock_error_bound_seconds{clock="h7/eth1"} 1e-6x60
  fabric_clock_asymmetry_allowance_seconds{clock="h7/eth1"} 2e-6x60
  fabric_clock_state{clock="h7/eth1", state="locked"} 1x60
  fabric_clock_state{clock="h7/eth1", state="holdover"} 0x60
  fabric_clock_steps_total{clock="h7/eth1"} 0x60
  fabric_clock_drift_changes_total{clock="h7/eth1"} 0x60
  fabric_clock_offset_seconds{clock="h7/eth1"} 0.5x60
  fabric_clock_drift_ratio{clock="h7/eth1"} 1e-6x60
  fabric_clock_error_bound_seconds{clock="h8/eth1"} 1e-6x60
  fabric_clock_asymmetry_allowance_seconds{clock="h8/eth1"} 9e-6x60
  fabric_clock_state{clock="h8/eth1", state="locked"} 0x60
  fabric_clock_state{clock="h8/eth1", state="holdover"} 1x60
  fabric_clock_steps_total{clock="h8/eth1"} 3x35 4x24
  fabric_clock_drift_changes_total{clock="h8/eth1"} 0x60
  fabric_clock_offset_seconds{clock="h8/eth1"} 0.25x60
  fabric_clock_drift_ratio{clock="h8/eth1"} 0x60
  fabric_clock_error_bound_seconds{clock="h9/eth1"} _x40 1e-6x20
`

func clockText(c Clock) string {
	v := func(x *float64) string {
		if x == nil {
			return "-"
		}
		return strconv.FormatFloat(*x, 'g', 6, 64)
	}
	bound := "-"
	if c.Bound != nil {
		bound = strconv.FormatInt((*c.Bound+5)/10*10, 10)
	}
	return strings.Join([]string{c.State, bound, v(c.Steps), v(c.Drifts), v(c.Offset), v(c.Drift)}, " ")
}

// TestRule15WhatSeldomChangesIsAskedSeldom, and at once when a clock counted or is new.
func TestRule15WhatSeldomChangesIsAskedSeldom(t *testing.T) {
	s := healthy()
	s.more = clockSeries
	db := s.load(t)
	r := &OverviewCache{}
	for at := int64(20); at < 48; at++ {
		c, err := BeginCycle(t.Context(), db, DefaultSettings(), time.Unix(at, 0))
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.ReadOverview(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		step, where, first := " 3 ", "- -", c.at.Unix()
		if first >= 36 {
			step = " 4 "
		}
		// The first, one in ten from the fifth after it on, the one after the count, and those after a new node and its clock.
		if slices.Contains([]int64{20, 25, 35, 39, 41, 43}, at) {
			where = "0.25 0"
		}
		bound := "10000"
		if first >= 45 {
			bound = "12000" // the node's clocks became worse
		}
		want := "holdover " + bound + step + "0 " + where
		if have := clockText(o.window.Clocks["h8/eth1"]); have != want {
			t.Errorf("%d s: %s, want %s", at, have, want)
		}
		if have := clockText(o.window.Clocks["h9/eth1"]); at >= 43 && !strings.HasPrefix(have, "locked 10000 0 0") {
			t.Errorf("%d s: a new clock is %s: the worst allowance is expected", at, have)
		}
	}
}

// TestFlowsAreAskedAboutAlone: the result of a flow does not depend on the other queried flows.
func TestFlowsAreAskedAboutAlone(t *testing.T) {
	s := healthy()
	for _, nic := range []string{"h1/eth1", "h2/eth1"} {
		s.more += `  fabric_nic_flows{nic="` + nic + `", condition="healthy"} 1x30
  graylink_node_unhealthy_flows{instance="` + fabric.OwnerOf(nic) + `"} 0x30
`
	}
	s.more += `  fabric_probe_sent_total{src="h1/eth1", dst="h3/eth1", flow="0", tier="2", plane="a", direction="forward"} 0+100x30
  fabric_probe_lost_total{src="h1/eth1", dst="h3/eth1", flow="0", tier="2", plane="a", direction="forward"} 0x30
  fabric_probe_sent_total{src="h4/eth1.2", dst="h2/eth1", flow="0", tier="2", plane="a", direction="forward"} 0+100x30
  fabric_probe_lost_total{src="h4/eth1.2", dst="h2/eth1", flow="0", tier="2", plane="a", direction="forward"} 0x30
`
	db := s.load(t)
	whole, err := ReadWindow(t.Context(), db, DefaultSettings(), time.Unix(20, 0))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, o := range whole.Observations {
		all[o.Edge] = shown(Window{Observations: []*fabric.Observation{o}})
	}
	if len(all) != 4 {
		t.Fatalf("%d flows", len(all))
	}
	for _, tt := range []struct {
		src, dst string
		want     int
	}{{"h1/eth1", "", 3}, {"h4/eth1.2", "", 1}, {"", "h3/eth1", 1}, {"", "h2/eth1", 3}, {"h1/eth1", "h2/eth1", 4}, {"h2/eth1", "", 0}} {
		only := Selection{Sources: map[string]bool{}, Destinations: map[string]bool{}}
		if tt.src != "" {
			only.Sources[tt.src] = true
		}
		if tt.dst != "" {
			only.Destinations[tt.dst] = true
		}
		c, err := BeginCycle(t.Context(), db, DefaultSettings(), time.Unix(20, 0))
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.ReadOverview(t.Context(), &OverviewCache{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.ReadFlows(t.Context(), &o, only)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.Observations) != tt.want {
			t.Errorf("from %q to %q: %d, want %d", tt.src, tt.dst, len(w.Observations), tt.want)
		}
		for _, o := range w.Observations {
			if got := shown(Window{Observations: []*fabric.Observation{o}}); got != all[o.Edge] || got == "" {
				t.Errorf("%s: %s, want %s", o.Edge, got, all[o.Edge])
			}
		}
	}
}

// TestEveryQuestionAboutFlowsHasAPlaceForWho: else a cycle in two steps would ask about all.
func TestEveryQuestionAboutFlowsHasAPlaceForWho(t *testing.T) {
	selector := regexp.MustCompile(`fabric_probe_\w+(\{[^}]*\})?`)
	for name, q := range defaultWindowQueries() {
		for _, m := range selector.FindAllString(q, -1) {
			if !strings.Contains(m, "$only") {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

// TestNodesOfAnotherName: an instance that is not a node's name, as of pushed series, has all NICs queried, and its stalls by
// NIC.
func TestNodesOfAnotherName(t *testing.T) {
	s := healthy()
	s.stall1 = "0+1x30"
	s.more = `  fabric_nic_flows{nic="h1/eth1", condition="healthy"} 12x30
  fabric_nic_flows{nic="h1/eth1", condition="shifted"} 3x30
  graylink_node_unhealthy_flows{instance="h1:9868"} 3x30
  graylink_node_loop_late_seconds_total{instance="h1:9868"} 0+1x30
`
	db, r := s.load(t), &OverviewCache{}
	for at := int64(20); at < 23; at++ {
		c, err := BeginCycle(t.Context(), db, DefaultSettings(), time.Unix(at, 0))
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.ReadOverview(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if o.Unhealthy["h1/eth1"][window.Shifted] != 3 || o.Flows["h1/eth1"] != 15 || !o.AgentAnswers("h1/eth1") || len(o.StarvedHosts()) != 1 || o.StarvedHosts()["h1"] == "" {
			t.Errorf("%d s: %v of %v, %v", at, o.Unhealthy, o.Flows, o.StarvedHosts())
		}
	}
}

// TestOverviewAfterAFailure checks that an overview after one that failed has everything.
func TestOverviewAfterAFailure(t *testing.T) {
	s := healthy()
	s.more = clockSeries
	c, err := BeginCycle(t.Context(), s.load(t), DefaultSettings(), time.Unix(20, 0))
	if err != nil {
		t.Fatal(err)
	}
	r := &OverviewCache{}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := c.ReadOverview(ended, r); err == nil {
		t.Fatal("no error after the context has ended")
	}
	if o, err := c.ReadOverview(t.Context(), r); err != nil || o.MissingReason != "" || o.Flows["h7/eth1"] != 12 {
		t.Errorf("%v, %q, %v", err, o.MissingReason, o.Flows)
	}
}

// recordedQueries is a database that notes what was queried of it.
type recordedQueries struct {
	Querier
	mu    sync.Mutex
	texts []string
}

func (r *recordedQueries) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	r.mu.Lock()
	r.texts = append(r.texts, query)
	r.mu.Unlock()
	return r.Querier.QueryInstant(ctx, query, at)
}

// TestRule14LossesAtHosts checks that dropped packets are known whoever counts them, and that only nodes that do not deny them
// are queried by NIC.
func TestRule14LossesAtHosts(t *testing.T) {
	unread := func(nic, values string) string {
		return `  fabric_nic_unread_packets_total{instance="` + fabric.OwnerOf(nic) + `", nic="` + nic + `", reason="socket_full"} ` + values + "\n"
	}
	lost := func(instance, values string) string {
		return `  graylink_node_host_losses_total{instance="` + instance + `"} ` + values + "\n"
	}
	for name, tt := range map[string]struct {
		series  string
		unread  string // NICs that are known to drop
		queried string // a part of the query by NIC; "": there is none
	}{
		"nothing is dropped":          {unread("h1/eth1", "7x30") + unread("h2/eth1", "7x30") + lost("h1", "7x30") + lost("h2", "7x30"), "", ""},
		"a node drops":                {unread("h1/eth1", "0+1x30") + unread("h2/eth1", "7x30") + lost("h1", "0+1x30") + lost("h2", "7x30"), "h1/eth1", `{nic!="", instance=~"h1"}`},
		"an earlier version drops":    {unread("h1/eth1", "7x30") + unread("h2/eth1", "0+1x30") + lost("h1", "7x30"), "h2/eth1", `{nic!="", instance=~"h2"}`},
		"an earlier version does not": {unread("h1/eth1", "7x30") + unread("h2/eth1", "7x30") + lost("h1", "7x30"), "", `{nic!="", instance=~"h2"}`},
		"a node has just started":     {unread("h2/eth1", "_x21 3x30") + lost("h1", "7x30") + lost("h2", "_x21 3x30"), "", `{nic!="", instance=~"h2"}`},
		"nodes of other names":        {unread("h2/eth1", "0+1x30") + lost("h1:9868", "7x30") + lost("h2:9868", "0+1x30"), "h2/eth1", `{nic!=""}`},
	} {
		s := healthy()
		s.more = `  fabric_nic_flows{nic="h1/eth1", condition="healthy"} 12x30
  graylink_node_unhealthy_flows{instance="h1"} 0x30
` + tt.series
		db, cache := &recordedQueries{Querier: s.load(t)}, &OverviewCache{}
		for at := int64(19); at < 22; at++ {
			c, err := BeginCycle(t.Context(), db, DefaultSettings(), time.Unix(at, 0))
			if err != nil {
				t.Fatal(err)
			}
			db.texts = nil
			o, err := c.ReadOverview(t.Context(), cache)
			if err != nil {
				t.Fatal(err)
			}
			if at == 19 {
				continue // the first one does not know the nodes, and queries all of them
			}
			for _, nic := range []string{"h1/eth1", "h2/eth1"} {
				if want := nic == tt.unread; o.DropsUnread(nic) != want {
					t.Errorf("%s: at %d s %s drops: %v, want %v", name, at, nic, o.DropsUnread(nic), want)
				}
			}
			i := slices.IndexFunc(db.texts, func(q string) bool { return strings.Contains(q, "unread_packets") })
			if (i >= 0) != (tt.queried != "") || i >= 0 && !strings.Contains(db.texts[i], tt.queried) {
				t.Errorf("%s: at %d s %q, want a query with %q", name, at, db.texts, tt.queried)
			}
		}
	}
}

// TestDetailsOfSomeNodes checks which nodes a query about NICs names: as many as Prometheus looks up in its index, in several
// queries if there are more, and none of them if they are most of all nodes.
func TestDetailsOfSomeNodes(t *testing.T) {
	nodes := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("h%03d.rack", i))
		}
		return out
	}
	const query = `max by (nic) (x{nic!=""} > 0)`
	for _, tt := range []struct{ some, all, queries int }{{1, 2, 1}, {256, 2000, 1}, {257, 2000, 2}, {1000, 2000, 4}} {
		got := ofNodes(query, "nic", nodes(tt.some), tt.all)
		text := strings.Join(got, " ")
		if len(got) != tt.queries || strings.Count(text, ".rack") != tt.some || !strings.HasPrefix(got[0], `max by (nic) (x{nic!="", instance=~"h000\\.rack`) {
			t.Errorf("%d of %d: %d queries about %d nodes, %.80s", tt.some, tt.all, len(got), strings.Count(text, ".rack"), got[0])
		}
	}
	for _, whole := range [][]string{ofNodes(query, "nic", nodes(6), 10), ofNodes(`max by (nic) (y)`, "nic", nodes(1), 10)} {
		if len(whole) != 1 || strings.Contains(whole[0], "instance") {
			t.Errorf("%q, want one query about all nodes", whole)
		}
	}
}
