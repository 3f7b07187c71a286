package attribute

import (
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// TestCausesOfInfiniBand checks the readings that only InfiniBand has: ticks as a share of time, bit errors compared
// with the limit of the link, marks, kinds of errors, and traps.
func TestCausesOfInfiniBand(t *testing.T) {
	const sw = "fabric_switch_port_"
	grow := func(per string) string { return step("5", "5+"+per) }
	const speed = sw + "speed_bytes_per_second"
	fdr, edr, tick := written{speed, facing, "7e9x200"}, written{speed, facing, "12.5e9x200"}, written{sw + "transmit_wait_tick_seconds", uplink, "1e-9x200"}
	first := func(at string) string { return "_x" + at + " 1x60" }
	for _, tt := range []struct {
		name  string
		more  []written
		want  string
		words string
	}{
		{"waits for a third of the time", []written{tick, {sw + "transmit_wait_ticks_total", uplink, grow("330e6")}}, "pause_stall",
			"at leaf1:up1 (weight 0.70): it had data to send and waited during 31.4 % of the time, compared with 0 % before. The other end of its cable is spine1:dn1."},
		{"many ticks that are a small share", []written{tick, {sw + "transmit_wait_ticks_total", uplink, grow("9e6")}}, "", "No cause found"},
		{"waits as it did before", []written{tick, {sw + "transmit_wait_ticks_total", uplink, "0+330e6x200"}}, "", "No cause found"},
		{"a length of ticks that is absent", []written{{sw + "transmit_wait_ticks_total", uplink, grow("9e6")}}, "pause_stall", "transmit_wait_ticks grew by 8.55e+06 per second"},
		{"one virtual lane waits", []written{tick, {sw + "vl_transmit_wait_ticks_total", uplink + `,vl="0"`, "7x200"}, {sw + "vl_transmit_wait_ticks_total", uplink + `,vl="3"`, grow("900e6")}}, "pause_stall", "85.5 % of the time, compared with 0 % before (VL 3)"},
		{"no credits arrive", []written{{sw + "traps_total", uplink + `,trap="131"`, first("110")}}, "pause_stall", "1 trap (trap 131, flow control update watchdog timer expired)"},

		{"bit errors beyond the limit of FDR", []written{fdr, {sw + "symbol_errors_total", facing, grow("1")}}, "physical_errors", "symbol_errors grew by 19, 1.7e-11 of the bits and more than the limit of 1e-12"},
		{"the same on EDR with correction", []written{edr, {sw + "fec_corrected_blocks_total", facing, "70+1x200"}, {sw + "symbol_errors_total", facing, grow("0.19")}}, "physical_errors", "more than the limit of 1e-15"},
		{"bit errors at an unknown rate", []written{{speed, facing, "_x200"}, {sw + "symbol_errors_total", facing, grow("1")}}, "physical_errors", "symbol_errors grew by 19, compared with 0 per second before"},
		{"errors that correction left over", []written{{sw + "effective_errors_total", facing, grow("1")}}, "physical_errors", "effective_errors grew by 19, 2.4e-12 of the bits and more than the limit of 1e-15"},
		{"the integrity of the link", []written{{sw + "traps_total", facing + `,trap="129"`, first("110")}}, "physical_errors", "(trap 129, local link integrity threshold reached)"},
		{"traps as often as before", []written{{sw + "traps_total", facing + `,trap="129"`, "0+0.25x200"}}, "", "No cause found"},
		{"malformed packets", []written{{sw + "receive_error_details_total", facing + `,reason="malformed"`, grow("1")}}, "physical_errors", "(malformed)"},

		{"no buffer left", []written{{sw + "receive_error_details_total", facing + `,reason="buffer_overrun"`, grow("1")}}, "drops", "(buffer_overrun)"},
		{"a service level without a lane", []written{{sw + "receive_error_details_total", facing + `,reason="vl_mapping"`, grow("1")}}, "drops", "(vl_mapping)"},
		{"an address without a route", []written{{sw + "receive_error_details_total", facing + `,reason="dlid_mapping"`, grow("1")}}, "drops", "(dlid_mapping)"},
		{"packets that would return", []written{{sw + "receive_error_details_total", facing + `,reason="looping"`, grow("1")}}, "drops", "(weight 0.30)"},
		{"buffers that overran", []written{{sw + "traps_total", facing + `,trap="130"`, first("110")}}, "drops", "trap 130"},
		{"links of another port of the switch", []written{{sw + "traps_total", `switch="spine1",port="0",trap="128"`, step("2", "6")}}, "", "No cause found"},
		{"a description that changed", []written{{sw + "traps_total", facing + `,trap="144"`, first("110")}}, "", "No cause found"},
		{"damaged elsewhere", []written{{sw + "receive_errors_total", facing + `,reason="remote_physical"`, grow("5")}}, "", "No cause found"},
	} {
		a := ask(t, link(), nil, with(idle(), tt.more...))
		if causes(a) != tt.want || !strings.Contains(a.Summary, tt.words) {
			t.Errorf("%s: causes %q, want %q; %s", tt.name, causes(a), tt.want, a.Summary)
		}
	}
	// The queue of idle is known and empty, so that marks are no congestion there.
	for _, marks := range []written{{sw + "receive_fecn_packets_total", facing, grow("50")}, {sw + "receive_becn_packets_total", uplink, grow("50")}} {
		if a := ask(t, link(), nil, []written{marks}); causes(a) != "congestion" {
			t.Errorf("%s: %s", marks.name, a.Summary)
		}
	}
	v := fabric.Verdict{Element: fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, Scenario: fabric.Flap}
	changes := written{sw + "traps_total", `switch="spine1",port="0",trap="128"`, step("2", "6")}
	if a := ask(t, v, nil, with(idle(), changes)); causes(a) != "link_flap" || !strings.Contains(a.Summary, "at spine1:0 (weight 0.60): the subnet manager received 4 traps (trap 128, state of a link of the switch changed)") {
		t.Errorf("links of a switch: %s", a.Summary)
	}
	if a := ask(t, link(), nil, []written{{sw + "traps_total", facing + `,trap="129"`, first("110")}}); len(a.Causes) != 0 {
		t.Errorf("a trap of an end whose other series are unknown: %s", a.Summary)
	}
}

// TestLongIncidentsHaveTheLimitOfTheirLink checks that the errors that a link may have are no cause, however long the
// incident lasts.
func TestLongIncidentsHaveTheLimitOfTheirLink(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		gbps, corrected, perHour float64
		want                     bool
	}{
		{"SDR, a tenth of the limit", 10, 0, 3.6, false},
		{"SDR, ten times the limit", 10, 0, 360, true},
		{"FDR, half of the limit", 56, 0, 100, false},
		{"FDR, twice the limit", 56, 0, 400, true},
		{"EDR without correction, half of the limit", 100, 0, 180, false},
		{"EDR with correction, the same", 100, 7, 180, true},
		{"HDR, which always has correction", 200, 0, 180, true},
		{"NDR, too few to judge", 400, 0, 2, false},
		{"an unknown rate", 0, 0, 4, true},
	} {
		zero, speed := 0.0, tt.gbps*1e9/8
		k := reading{"spine1:dn1", "symbol_errors_total", ""}
		r := &readings{at: map[reading]*values{k: {past: &zero, atStart: &zero, now: &tt.perHour, secondsBefore: 60, seconds: 3600}}}
		if tt.gbps > 0 {
			r.at[reading{k.end, "speed_bytes_per_second", ""}] = &values{now: &speed}
		}
		if tt.corrected > 0 {
			r.at[reading{k.end, "fec_corrected_blocks_total", ""}] = &values{now: &tt.corrected}
		}
		if text, _ := exceedsBitErrorLimit.test(r, k); (text != "") != tt.want {
			t.Errorf("%s: %q, want a cause: %v", tt.name, text, tt.want)
		}
	}
}

// TestBothEndsAreNamed checks that a cause in a cable names the other end, in the summary and in the action.
func TestBothEndsAreNamed(t *testing.T) {
	v := link()
	a := ask(t, v, nil, with(idle(), written{"fabric_switch_port_symbol_errors_total", facing, step("0", "0+9")}))
	if len(a.Causes) != 1 || a.Causes[0].Element != "spine1:dn1" || a.Causes[0].Peer != "leaf1:up1" || !strings.Contains(a.Summary, "The other end of its cable is leaf1:up1.") {
		t.Errorf("%+v: %s", a.Causes, a.Summary)
	}
	ApplyAttribution(&v, nil, &a)
	if !strings.Contains(v.Action, "cable at spine1:dn1 (cable to leaf1:up1)") {
		t.Error(v.Action)
	}
	drops := ask(t, v, nil, with(idle(), written{"fabric_switch_port_queue_discards_total", uplink, step("0", "0+20")}))
	if len(drops.Causes) != 1 || drops.Causes[0].Cause != fabric.CauseDrops || drops.Causes[0].Peer != "" {
		t.Errorf("a cause in a switch names a cable: %+v", drops.Causes)
	}
}
