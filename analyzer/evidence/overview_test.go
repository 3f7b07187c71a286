package evidence

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// TestRule11TheRulesRecordWhatIsAsked: every series of the overview is recorded by the rules
// that this repository has.
func TestRule11TheRulesRecordWhatIsAsked(t *testing.T) {
	b, err := os.ReadFile("../../rules/aggregates.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range recorded {
		if !strings.Contains(string(b), "record: "+r.series+"\n") {
			t.Errorf("%s asks for %s, which no rule records", name, r.series)
		}
		if q := DefaultSettings().OverviewQueries()[name]; !strings.HasPrefix(q, r.series) {
			t.Errorf("%s: %s", name, q)
		}
	}
}

// TestRule13RulesThatAreMissingOrLate make no overview, and are named.
func TestRule13RulesThatAreMissingOrLate(t *testing.T) {
	all := func(values string) string {
		var b strings.Builder
		for _, r := range recorded {
			b.WriteString("  " + r.series + `{nic="h1/eth1", side="source", plane="a", tier="2"} ` + values + "\n")
		}
		return b.String()
	}
	for name, tt := range map[string]struct{ more, want string }{
		"missing":  {"", "nothing records fabric:nic_"},
		"one":      {strings.ReplaceAll(all("0.5x30"), "fabric:nic_probe_lost:", "fabric:other:"), "nothing records fabric:nic_probe_lost:ratio_2s"},
		"late":     {all("0.5x10"), "was recorded 10s ago"},
		"at work":  {all("0.5x30"), ""},
		"a little": {all("0.5x15"), ""},
	} {
		s := healthy()
		s.more = tt.more
		c, err := BeginCycle(t.Context(), s.load(t), DefaultSettings(), time.Unix(20, 0))
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.ReadOverview(t.Context(), &OverviewCache{})
		if err != nil {
			t.Fatal(err)
		}
		if tt.want == "" && o.MissingReason != "" || !strings.Contains(o.MissingReason, tt.want) {
			t.Errorf("%s: %q, want %q", name, o.MissingReason, tt.want)
		}
		if n := len(o.Values); name == "at work" && n != len(recorded) {
			t.Errorf("%d values of %d: %v", n, len(recorded), o.Values)
		}
		if !o.AgentAnswers("h1/eth1") || o.AgentAnswers("h9/eth1") {
			t.Error("who answers is not known")
		}
	}
}

// TestRule13RulesThatStop checks that they are missed within three overviews of when they would be at once.
func TestRule13RulesThatStop(t *testing.T) {
	var more strings.Builder
	for _, r := range recorded {
		more.WriteString("  " + r.series + `{nic="h1/eth1", side="source", plane="a", tier="2"} 0.5x10 _x30` + "\n")
	}
	s := healthy()
	s.more = more.String()
	db := s.load(t)
	kept, since := &OverviewCache{}, int64(0)
	for at := int64(8); at < 40; at++ {
		c, err := BeginCycle(t.Context(), db, DefaultSettings(), time.Unix(at, 0))
		if err != nil {
			t.Fatal(err)
		}
		missed := func(r *OverviewCache) bool {
			o, err := c.ReadOverview(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return o.MissingReason != ""
		}
		if missed(&OverviewCache{}) && since == 0 {
			since = at
		}
		switch late := missed(kept); {
		case late && since == 0:
			t.Fatalf("missed at %d s, while they are at work", at)
		case late && kept.rulesTrustedFor > 0:
			t.Fatal("rules that do not work are taken to")
		case late && at <= since+2:
			return
		case since > 0 && at > since+2:
			t.Fatalf("missed at %d s, %d s after they should be", at, at-since)
		}
	}
	t.Error("never missed")
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
	for name, most := range map[string]int{"steps": 1, "drifts": 0, "state": 1, "stalled": 0} {
		rows, err := db.QueryInstant(t.Context(), DefaultSettings().OverviewQueries()[name], c.at)
		if err != nil || len(rows) != most {
			t.Errorf("%s: %d rows, want %d (%v)", name, len(rows), most, err)
		}
	}
}

// Two clocks: one as clocks are, one that stepped at 19 s, and whose paths differ.
const clockSeries = `  fabric_clock_error_bound_seconds{clock="h7/eth1"} 1e-6x60
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
	for at := int64(20); at < 46; at++ {
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
		// The first, one in ten, the one after the count, and the one after a new clock.
		if slices.Contains([]int64{20, 30, 39, 43}, at) {
			where = "0.25 0"
		}
		want := "holdover 10000" + step + "0 " + where
		if have := clockText(o.window.Clocks["h8/eth1"]); have != want {
			t.Errorf("%d s: %s, want %s", at, have, want)
		}
		if have := clockText(o.window.Clocks["h9/eth1"]); first >= 40 && !strings.HasPrefix(have, "locked 10000 0 0") {
			t.Errorf("%d s: a new clock is %s: the worst allowance is expected", at, have)
		}
	}
}

// TestFlowsAreAskedAboutAlone: the result of a flow does not depend on the other queried flows.
func TestFlowsAreAskedAboutAlone(t *testing.T) {
	s := healthy()
	s.more = `  fabric_probe_sent_total{src="h1/eth1", dst="h3/eth1", flow="0", tier="2", plane="a", direction="forward"} 0+100x30
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
