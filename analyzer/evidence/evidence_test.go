package evidence

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"

	"github.com/graylink/graylink/internal/fabric"
)

// loaded answers from series written in promqltest's notation.
type loaded struct {
	engine *promql.Engine
	db     storage.Storage
}

func (l loaded) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	return EvaluateAt(ctx, l.engine, l.db, query, at)
}

const flowName = `src="h1/eth1", dst="h2/eth1", flow="0", tier="2", plane="a"`

// series are the values of one flow, one a second, in promqltest's notation.
type series struct {
	sent, acked, late, received, lostFwd, lostRev, sentRev string
	stall1, stall2, owdFwd, owdRev, bound                  string
	more                                                   string // series as they are
}

func healthy() series {
	// 100 probes a second, 2 s of 4 us: the histogram's schema 4 has its buckets
	// around 4 us, count and sum growing evenly.
	h := "{{schema:4 count:0 sum:0 offset:-286 buckets:[0]}}+{{schema:4 count:100 sum:0.0004 offset:-286 buckets:[100]}}x30"
	return series{sent: "0+100x30", acked: "0+100x30", late: "0x30", received: "0+100x30", lostFwd: "0x30", lostRev: "0x30", sentRev: "0+100x30",
		stall1: "0x30", stall2: "0x30", owdFwd: h, owdRev: h, bound: "0.000001x30"}
}

func (s series) load(t *testing.T) Querier {
	t.Helper()
	var b strings.Builder
	b.WriteString("load 1s\n")
	add := func(name, labels, values string) {
		if values != "" {
			fmt.Fprintf(&b, "  %s{%s} %s\n", name, labels, values)
		}
	}
	add("fabric_probe_sent_total", flowName+`, direction="forward"`, s.sent)
	add("fabric_probe_sent_total", flowName+`, direction="reverse"`, s.sentRev)
	add("fabric_probe_lost_total", flowName+`, direction="forward"`, s.lostFwd)
	add("fabric_probe_lost_total", flowName+`, direction="reverse"`, s.lostRev)
	add("fabric_probe_acked_total", flowName, s.acked)
	add("fabric_probe_late_total", flowName, s.late)
	add("fabric_probe_received_total", flowName, s.received)
	add("graylink_node_stalled_seconds_total", `nic="h1/eth1"`, s.stall1)
	add("graylink_node_stalled_seconds_total", `nic="h2/eth1"`, s.stall2)
	add("fabric_probe_owd_seconds", flowName+`, direction="forward", timestamp="kernel"`, s.owdFwd)
	add("fabric_probe_owd_seconds", flowName+`, direction="reverse", timestamp="kernel"`, s.owdRev)
	for _, nic := range []string{"h1/eth1", "h2/eth1"} {
		add("fabric_clock_error_bound_seconds", `clock="`+nic+`"`, s.bound)
	}
	b.WriteString(s.more)
	db := promqltest.LoadedStorage(t, b.String())
	t.Cleanup(func() { db.Close() })
	return loaded{promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery), db}
}

// ask evaluates the window that ends at second 20 less the lag.
func ask(t *testing.T, s series) (fwd, rev *fabric.Observation, w Window) {
	t.Helper()
	w, err := ReadWindow(t.Context(), s.load(t), DefaultSettings(), time.Unix(20, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range w.Observations {
		switch o.Edge {
		case "h1/eth1>h2/eth1#0":
			fwd = o
		case "h1/eth1>h2/eth1#0/r":
			rev = o
		default:
			t.Errorf("unexpected edge %s", o.Edge)
		}
	}
	return fwd, rev, w
}

func near(got uint64, want float64) bool { return math.Abs(float64(got)-want) <= 0.02*want+1 }

func TestHealthyWindow(t *testing.T) {
	fwd, rev, w := ask(t, healthy())
	if fwd == nil || rev == nil {
		t.Fatalf("observations %v", w.Observations)
	}
	if fwd.Src != "h1/eth1" || rev.Src != "h2/eth1" || fwd.Tier != 2 || fwd.Plane != "a" || fwd.Class != "" || fwd.Timestamp != "kernel" {
		t.Errorf("forward %+v, reverse %+v", fwd, rev)
	}
	if !near(fwd.Sent, 200) || fwd.Lost != 0 || rev.Lost != 0 || fwd.HostSuspect {
		t.Errorf("sent %d lost %d, reverse lost %d, host suspect %v", fwd.Sent, fwd.Lost, rev.Lost, fwd.HostSuspect)
	}
	if fwd.OWD == nil || *fwd.OWD.P50 < 3500 || *fwd.OWD.P50 > 4500 {
		t.Errorf("delays %+v", fwd.OWD)
	}
	if fwd.ClockErrorNS == nil || *fwd.ClockErrorNS != 2000 {
		t.Errorf("clock bound %v, want the sum of both ends, 2000 ns", fwd.ClockErrorNS)
	}
	if want := time.Unix(20, 0).Add(-DefaultSettings().Lag - 2*time.Second); !fwd.Start.Equal(want) {
		t.Errorf("window starts %s, want %s", fwd.Start, want)
	}
}

func TestLossHasItsDirection(t *testing.T) {
	tests := []struct {
		name             string
		edit             func(*series)
		sent, lost       float64 // sent 0: nothing known of the probes
		revSent, revLost float64 // revSent 0: nothing known of the replies
		scope            string
	}{
		{"a tenth lost forward", func(s *series) {
			s.acked, s.received, s.lostFwd, s.sentRev = "0+90x30", "0+90x30", "0+10x30", "0+90x30"
		}, 200, 20, 180, 0, ""},
		{"a tenth lost on the way back", func(s *series) { s.acked, s.lostRev = "0+90x30", "0+10x30" }, 200, 0, 200, 20, ""},
		{"nothing arrives", func(s *series) { s.acked, s.received, s.sentRev = "100x30", "100x30", "100x30" }, 100, 100, 0, 0, ""},
		{"everything arrives and nothing returns", func(s *series) { s.acked, s.sentRev = "100x30", "100x30" }, 10, 0, 100, 100, ""},
		// Rule 7.
		{"nothing returns, and of what arrived a tenth is counted later", func(s *series) { s.acked, s.sentRev, s.received = "100x30", "100x30", "0+90x30" }, 10, 0, 90, 90, ""},
		{"nothing returns, and of what arrived a third is counted later", func(s *series) { s.acked, s.sentRev, s.received = "100x30", "100x30", "0+66x30" }, 0, 0, 0, 0, ""},
		{"nothing returns, and less than half arrived", func(s *series) { s.acked, s.sentRev, s.received = "100x30", "100x30", "0+40x30" }, 100, 60, 0, 0, ""},
		{"nothing returns and no counter shows what arrived", func(s *series) { s.acked, s.received, s.sentRev = "100x30", "", "100x30" }, 100, 100, 0, 0, fabric.LossRoundTrip},
		// The silence ended at second 17; its 1000 losses are counted there.
		{"old losses come to light", func(s *series) { s.lostFwd = "0x16 1000x14" }, 200, 0, 200, 0, ""},
	}
	for _, tt := range tests {
		s := healthy()
		tt.edit(&s)
		fwd, rev, _ := ask(t, s)
		if tt.sent == 0 {
			if fwd != nil && fwd.Sent != 0 {
				t.Errorf("%s: probes %d of %d made up", tt.name, fwd.Lost, fwd.Sent)
			}
		} else if fwd == nil || !near(fwd.Sent, tt.sent) || !near(fwd.Lost, tt.lost) || fwd.LossScope != tt.scope {
			t.Errorf("%s: forward %+v", tt.name, fwd)
			continue
		}
		if tt.revSent == 0 {
			// Its delays may still be in the window; a count must not be made up.
			if rev != nil && rev.Sent != 0 {
				t.Errorf("%s: replies %d of %d made up", tt.name, rev.Lost, rev.Sent)
			}
			continue
		}
		if rev == nil || !near(rev.Sent, tt.revSent) || !near(rev.Lost, tt.revLost) {
			t.Errorf("%s: reverse %+v", tt.name, rev)
		}
	}
}

func TestStarvedAndSilentHosts(t *testing.T) {
	stalled := healthy()
	stalled.stall2 = "0x17 0.8x13"
	if fwd, _, w := ask(t, stalled); !fwd.HostSuspect || !strings.Contains(w.Hosts["h2"], "late") {
		t.Errorf("stalled: %v, hosts %v", fwd.HostSuspect, w.Hosts)
	}
	silent := healthy()
	silent.stall2, silent.received = "0x17", "0+100x17"
	if fwd, _, w := ask(t, silent); !fwd.HostSuspect || !strings.Contains(w.Hosts["h2"], "does not answer") {
		t.Errorf("silent: %v, hosts %v", fwd.HostSuspect, w.Hosts)
	}
}

// TestRestartedAgents: the flows of a node whose agent was away for a part of the window are no evidence, though it answers
// again. Those of one that was away before are.
func TestRestartedAgents(t *testing.T) {
	for _, tt := range []struct {
		stalls string // scrapes of h2, of which those of seconds 16 to 18 matter
		away   bool
	}{
		{"0x30", false}, {"0x15 _x2 0x11", true}, {"0x14 _x2 0x12", true}, {"0x10 _x3 0x15", false},
	} {
		s := healthy()
		s.stall2 = tt.stalls
		fwd, _, w := ask(t, s)
		if fwd.HostSuspect != tt.away || tt.away != (w.Hosts["h2"] == awayForAWhile) {
			t.Errorf("%s: suspect %v, hosts %v", tt.stalls, fwd.HostSuspect, w.Hosts)
		}
	}
}

// TestStartedAgents: the flows of a node whose agent started during the window, or after it, are no evidence.
func TestStartedAgents(t *testing.T) {
	for _, tt := range []struct {
		uptime string // of h2; the cycle is at second 20, and needs 5.3 s
		young  bool
	}{
		{"100+1x30", false}, {"100+1x17 0.4+1x12", true}, {"100+1x14 0.2+1x15", true}, {"100+1x12 0.4+1x17", false},
	} {
		s := healthy()
		s.more = `  graylink_node_uptime_seconds{instance="h2"} ` + tt.uptime + "\n" + `  graylink_node_uptime_seconds{instance="h1"} 50+1x30` + "\n"
		fwd, rev, w := ask(t, s)
		if fwd.HostSuspect != tt.young || rev.HostSuspect != tt.young || (w.Hosts["h2"] == awayForAWhile) != tt.young || len(w.Hosts) > 1 {
			t.Errorf("%s: suspect %v, hosts %v", tt.uptime, fwd.HostSuspect, w.Hosts)
		}
	}
}

func TestAbsentIsAbsent(t *testing.T) {
	s := healthy()
	s.bound, s.owdRev, s.lostRev = "", "", ""
	fwd, rev, _ := ask(t, s)
	if fwd.ClockErrorNS != nil {
		t.Errorf("a clock bound of %d from nothing", *fwd.ClockErrorNS)
	}
	if rev != nil {
		t.Errorf("replies observed without delay or count: %+v", rev)
	}
	if fwd.ECN != nil {
		t.Errorf("%d marks from no series", *fwd.ECN)
	}
}

// TestQueriesParse keeps the published questions valid PromQL.
func TestQueriesParse(t *testing.T) {
	db := healthy().load(t)
	for name, q := range DefaultSettings().WindowQueries() {
		if strings.Contains(q, "$") {
			t.Errorf("%s: %s holds an unfilled place", name, q)
		}
		if _, err := db.QueryInstant(t.Context(), q, time.Unix(20, 0)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnreadPacketsAreNoEvidence: what is lost while a NIC drops packets that it
// did not read may have arrived; a flood is named with and without that.
func TestUnreadPacketsAreNoEvidence(t *testing.T) {
	s := healthy()
	s.lostFwd, s.acked, s.received = "0+20x30", "0+80x30", "0+80x30"
	for _, tc := range []struct {
		what, unread, forged string
		suspect              bool
		finding              string
	}{
		{"nothing of it", "0x30", "0x30", false, ""},
		{"a flood, every packet of which was verified", "0x30", "0+5000x30", false, "NIC h2/eth1 is flooded by packets with forged HMAC from 10.0.1.2 (5000 a second)"},
		{"a flood beyond the budget", "0x17 5x12", "0+5000x30", true, "NIC h2/eth1 is flooded by packets with forged HMAC from 10.0.1.2 (5000 a second); its flows are no evidence"},
		{"full sockets long ago", "0x8 5x21", "0x30", false, ""},
		{"a few wrong ones while keys are replaced", "0x30", "0+30x30", false, ""},
	} {
		s.more = `  fabric_nic_unread_packets_total{nic="h2/eth1", reason="socket_full"} ` + tc.unread + `
  fabric_nic_unread_packets_total{nic="h1/eth1", reason="socket_full"} 7x30
  fabric_nic_forged_packets_total{nic="h2/eth1", from="10.0.1.2"} ` + tc.forged + "\n"
		fwd, rev, w := ask(t, s)
		if fwd.Lost == 0 {
			t.Fatalf("%s: no loss, which is what this is about", tc.what)
		}
		for _, o := range []*fabric.Observation{fwd, rev} {
			if o.Unread != tc.suspect || o.HostSuspect != tc.suspect {
				t.Errorf("%s: %s: unread %v, no evidence %v; want %v", tc.what, o.Edge, o.Unread, o.HostSuspect, tc.suspect)
			}
		}
		got := ""
		for _, f := range w.Floods {
			got += f.String()
		}
		if got != tc.finding {
			t.Errorf("%s: finding %q, want %q", tc.what, got, tc.finding)
		}
		if len(w.Hosts) != 0 {
			t.Errorf("%s: hosts %v are blamed", tc.what, w.Hosts)
		}
	}
}

func TestClocks(t *testing.T) {
	s := healthy()
	s.more = `  fabric_clock_asymmetry_allowance_seconds{clock="h1/eth1"} 0.0000005x30
  fabric_clock_state{clock="h1/eth1", state="locked"} 1x30
  fabric_clock_state{clock="h1/eth1", state="holdover"} 0x30
  fabric_clock_state{clock="h2/eth1", state="holdover"} 1x30
  fabric_clock_steps_total{clock="h1/eth1"} 3x30
  fabric_clock_drift_changes_total{clock="h1/eth1"} 4x30
  fabric_clock_offset_seconds{clock="h1/eth1"} -0.25x30
  fabric_clock_drift_ratio{clock="h1/eth1"} 0.00001x30
`
	fwd, rev, w := ask(t, s)
	if fwd.ClockErrorNS == nil || *fwd.ClockErrorNS != 2500 {
		t.Errorf("bound %v, want those of both ends and the allowance of one, 2500 ns", fwd.ClockErrorNS)
	}
	if fwd.ClockSuspect || rev.ClockSuspect {
		t.Error("a clock in holdover is not trusted within its bound")
	}
	c := w.Clocks["h1/eth1"]
	if c.State != "locked" || *c.Steps != 3 || *c.Drifts != 4 || *c.Offset != -0.25 || *c.Drift != 1e-5 {
		t.Errorf("%+v", c)
	}
	if c = w.Clocks["h2/eth1"]; c.State != "holdover" || c.Steps != nil || c.Drifts != nil || c.Offset != nil || c.Drift != nil {
		t.Errorf("something from nothing: %+v", c)
	}
	for _, state := range []string{"converging", "lost"} {
		s.more = `  fabric_clock_state{clock="h2/eth1", state="` + state + `"} 1x30
`
		if fwd, rev, _ := ask(t, s); !fwd.ClockSuspect || !rev.ClockSuspect {
			t.Errorf("%s: a delay by it is evidence", state)
		}
	}
}

// TestRule23FlowsWithSignals: a flow of probes that carry in-band signals, all of which are lost, is not observed, and not counted.
func TestRule23FlowsWithSignals(t *testing.T) {
	const tagged = `class="csig", src="h1/eth1", dst="h2/eth1", flow="64", tier="2", plane="a"`
	s := healthy()
	_, _, plain := ask(t, s)
	s.more = fmt.Sprintf("  fabric_probe_sent_total{%s, direction=\"forward\"} 0+100x30\n  fabric_probe_lost_total{%s, direction=\"forward\"} 0+100x30\n"+
		"  fabric_probe_acked_total{%s} 0x30\n  fabric_probe_late_total{%s} 0x30\n  fabric_probe_received_total{%s} 0x30\n  fabric_probe_owd_seconds{%s, direction=\"forward\", timestamp=\"kernel\"} %s\n",
		tagged, tagged, tagged, tagged, tagged, tagged, s.owdFwd)
	_, _, w := ask(t, s) // which refuses other edges
	if w.Flows != plain.Flows || len(w.Observations) != len(plain.Observations) || w.BySource["h1/eth1"] != plain.BySource["h1/eth1"] || len(w.Hosts) != 0 {
		t.Errorf("%d flows, %v by source, hosts %v; without them %d and %v", w.Flows, w.BySource, w.Hosts, plain.Flows, plain.BySource)
	}
	settings := DefaultSettings()
	c, err := BeginCycle(t.Context(), s.load(t), settings, time.Unix(20, 0))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.CountFlows(t.Context()); err != nil || n != plain.Flows {
		t.Errorf("%d flows are counted before a cycle (%v), not %d", n, err, plain.Flows)
	}
	h, err := RecallHistory(t.Context(), s.load(t), settings, time.Unix(25, 0))
	if err != nil || h.Expected != plain.Flows {
		t.Errorf("%d flows are expected by history (%v), not %d", h.Expected, err, plain.Flows)
	}
	for e := range h.Flows {
		if e.Number == 64 {
			t.Errorf("history has the delays of %s", e)
		}
	}
}
