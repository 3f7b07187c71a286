package attribute

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/klog"
)

var update = flag.Bool("update", false, "rewrite docs/causes.md")

const topo = `version: 1
switches: [{name: leaf1, role: leaf}, {name: leaf2, role: leaf}, {name: spine1, role: spine}]
nodes: [{name: h1, nics: [{device: eth1}]}, {name: h2, nics: [{device: eth1}]}]
links:
  - {a: "h1/eth1", b: "leaf1:dn1"}
  - {a: "h2/eth1", b: "leaf2:dn1"}
  - {a: "leaf1:up1", b: "spine1:dn1"}
  - {a: "leaf2:up1", b: "spine1:dn2"}
`

func graph(t *testing.T) *fabric.Graph {
	t.Helper()
	tp, found := fabric.ParseTopology("t.yaml", []byte(topo))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return fabric.NewGraph(tp)
}

// The incident begins at second 100 and is asked about at second 120; a scrape a second,
// 60 s are compared with it.
const begin, end = 100, 120

// link returns a verdict on the uplink of leaf1, in the upward direction. uplink and facing are its ends.
func link() fabric.Verdict {
	return fabric.Verdict{Element: fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}, Direction: "leaf1:up1->spine1:dn1",
		Scenario: fabric.Corridor, Action: "generic", Symptom: fabric.Symptom{AddedDelayNS: 1e6}}
}

const (
	uplink = `switch="leaf1",port="up1"`
	facing = `switch="spine1",port="dn1"`
)

// written is a series: values, one a second, in promqltest's notation.
type written struct{ name, labels, values string }

// step returns a series whose value changes in the second after begin.
func step(was, is string) string {
	return fmt.Sprintf("%sx%d %sx%d", was, begin, is, 200-begin)
}

// idle returns the series of the two ends of a link without a change.
func idle() []written {
	var out []written
	for _, at := range []string{uplink, facing} {
		out = append(out, written{"fabric_switch_port_queue_bytes", at, "0x200"}, written{"fabric_switch_port_oper_up", at, "1x200"},
			written{"fabric_switch_port_admin_up", at, "1x200"}, written{"fabric_switch_port_carrier_changes_total", at, "4x200"},
			written{"fabric_switch_port_speed_bytes_per_second", at, "50e9x200"}, written{"fabric_switch_port_mtu_bytes", at, "9000x200"},
			written{"fabric_switch_port_queue_discards_total", at, "7x200"}, written{"fabric_switch_port_receive_errors_total", at + `,reason="crc"`, "2x200"},
			written{"fabric_switch_port_transmit_bytes_total", at, "0+1e9x200"})
	}
	return out
}

// with replaces series, or adds them.
func with(base []written, more ...written) []written {
	base = slices.Clone(base)
	for _, m := range more {
		base = slices.DeleteFunc(base, func(s written) bool { return s.name == m.name && s.labels == m.labels })
		base = append(base, m)
	}
	return base
}

func ask(t *testing.T, v fabric.Verdict, suggested []string, all []written) fabric.Attribution {
	t.Helper()
	var b strings.Builder
	b.WriteString("load 1s\n")
	for _, s := range all {
		fmt.Fprintf(&b, "  %s{%s,instance=\"x:1\",job=\"switch\"} %s\n", s.name, s.labels, s.values)
	}
	a := Attributor{DB: evidencetest.NewQuerier(t, b.String()), Scrape: time.Second}
	got, err := a.Attribute(t.Context(), graph(t), Request{Verdict: v, Suggested: suggested, Since: time.Unix(begin, 0), SureSince: time.Unix(begin+5, 0), Now: time.Unix(end, 0)})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func causes(a fabric.Attribution) string {
	var out []string
	for _, c := range a.Causes {
		if !slices.Contains(out, c.Cause) {
			out = append(out, c.Cause)
		}
	}
	return strings.Join(out, " ")
}

// TestCauses checks each row of the table with the series that it reads (rules 2 and 6).
func TestCauses(t *testing.T) {
	const sw, nic = "fabric_switch_port_", "fabric_nic_port_"
	grow := func(per string) string { return step("5", "5+"+per) }
	for _, tt := range []struct {
		name  string
		more  []written
		want  string
		words string // in the summary
	}{
		{"a queue that fills", []written{{sw + "queue_bytes", uplink, step("0", "4600")}}, "congestion", "at leaf1:up1 (weight 0.90): 4.6 kB waited on average, compared with 0 B before"},
		{"a queue that is as full as ever", []written{{sw + "queue_bytes", uplink, "4600x200"}}, "", "No cause found"},
		{"a queue in packets", []written{{sw + "queue_packets", uplink, step("0", "40")}}, "congestion", "40 packets waited"},
		{"held back and discarded", []written{{sw + "queue_bytes", uplink, step("0", "4600")}, {sw + "queue_overlimits_total", uplink, grow("800")}, {sw + "queue_discards_total", uplink, grow("90")}},
			"congestion drops", "queue_overlimits grew by 760 per second, compared with 0 per second before"},
		{"marked by the fabric", []written{{sw + "receive_fecn_packets_total", facing, grow("50")}}, "", "No cause found"}, // the queue is known and empty
		{"discards without a queue", []written{{sw + "queue_discards_total", uplink, grow("20")}}, "drops", "queue_discards grew by 380, compared with 0 per second before"},
		{"discards as ever", []written{{sw + "queue_discards_total", uplink, "0+20x200"}}, "", "No cause found"},
		{"discards of what came in", []written{{sw + "receive_discards_total", facing, grow("20")}}, "drops", "at spine1:dn1 (weight 0.50): receive_discards"},
		{"damaged packets", []written{{sw + "receive_errors_total", facing + `,reason="crc"`, grow("1")}}, "physical_errors", "receive_errors grew by 19, compared with 0 per second before (crc)"},
		{"a counter that began anew", []written{{sw + "receive_errors_total", facing + `,reason="crc"`, step("5000", "0+1")}}, "physical_errors", "receive_errors grew by 19"},
		{"symbol errors", []written{{sw + "symbol_errors_total", facing, grow("1")}}, "physical_errors", "symbol_errors"},
		{"recovered from errors", []written{{sw + "link_recoveries_total", facing, step("1", "2")}}, "physical_errors", "link_recoveries grew by 1"},
		{"uncorrectable by lane", []written{{sw + "lane_fec_uncorrectable_blocks_total", facing + `,lane="0"`, step("0", "1")}, {sw + "lane_fec_uncorrectable_blocks_total", facing + `,lane="1"`, step("0", "3")}}, "physical_errors", "lane_fec_uncorrectable_blocks grew by 4"},
		{"carrier that changes", []written{{sw + "carrier_changes_total", uplink, step("4", "9")}}, "link_flap", "carrier_changes grew by 5"},
		{"down", []written{{sw + "oper_up", facing, step("1", "0")}}, "link_down", "it is down, previously up"},
		{"down as before", []written{{sw + "oper_up", facing, "0x200"}}, "", "No cause found"},
		{"shut", []written{{sw + "admin_up", uplink, step("1", "0")}, {sw + "oper_up", uplink, step("1", "0")}}, "admin_down link_down", "shut by configuration"},
		{"shut, and down at both ends", []written{{sw + "admin_up", uplink, step("1", "0")}, {sw + "oper_up", uplink, step("1", "0")}, {sw + "oper_up", facing, step("1", "0")}}, "admin_down link_down", "Cause: admin down"},
		{"slower", []written{{sw + "speed_bytes_per_second", uplink, step("50e9", "12.5e9")}}, "link_downshift", "it runs at 100 Gbit/s, compared with 400 Gbit/s before"},
		{"no credits", []written{{sw + "transmit_wait_ticks_total", uplink, grow("90000")}}, "pause_stall", "transmit_wait_ticks grew by 85500 per second"},
		{"ends that differ since", []written{{sw + "mtu_bytes", facing, step("9000", "1500")}}, "mtu_mismatch", "its MTU is 9000 and that of spine1:dn1 is 1500, changed during the incident"},
		{"ends that always differed", []written{{sw + "mtu_bytes", facing, "1500x200"}}, "mtu_mismatch", "as before the incident"},
		{"too large for the neighbour", []written{{sw + "transmit_discard_details_total", uplink + `,reason="neighbor_mtu"`, grow("5")}}, "mtu_mismatch", "(neighbor_mtu)"},
		{"paused by priority", []written{{sw + "pfc_receive_frames_total", uplink + `,priority="3"`, step("7", "7+90")}, {sw + "pfc_receive_frames_total", uplink + `,priority="4"`, step("7", "7+10")}}, "pause_stall", "pfc_receive_frames grew by 95 per second"},
		{"pauses that the far end receives", []written{{sw + "pfc_receive_frames_total", facing + `,priority="3"`, step("7", "7+90")}}, "", "which would be pause stall in the other direction"},
		{"a pause that never ends", []written{{sw + "pfc_deadlocks_total", uplink + `,priority="3"`, step("0", "1")}}, "pause_stall", "pfc_deadlocks grew by 1"},
		{"a class that is thrown away", []written{{sw + "queue_discards_total", uplink + `,reason="full",tc="3"`, step("0", "0+9")}}, "drops", "(full)"},
		{"errors that correction leaves over", []written{{sw + "post_fec_ber_ratio", facing, step("1e-15", "3e-10")}}, "physical_errors", "post_fec_ber_ratio is 3e-10, compared with 1e-15 before"},
		{"as few errors as on any link", []written{{sw + "post_fec_ber_ratio", facing, step("0", "1e-14")}}, "", "No cause found"},
		{"light that fades", []written{{sw + "module_receive_power_watts", facing + `,lane="1"`, step("1e-3", "0.2e-3")}, {sw + "module_receive_power_watts", facing + `,lane="2"`, "1e-3x200"}}, "optics", "the optical power of its module is 1.2 mW, compared with 2 mW before"},
		{"light that is as it was", []written{{sw + "module_receive_power_watts", facing + `,lane="1"`, step("1e-3", "0.95e-3")}}, "", "No cause found"},
		{"a way that groups left", []written{{sw + "next_hop_group_members", uplink, step("12", "4")}}, "routing_change", "4 next-hop group members lead out of it, compared with 12 before"},
		{"a way that no group has", []written{{sw + "next_hop_group_members", uplink, step("12", "0")}}, "routing_change", "0 next-hop group members"},
		{"a way that more groups have", []written{{sw + "next_hop_group_members", uplink, step("4", "12")}}, "", "No cause found"},
		{"a way that is as it was", []written{{sw + "next_hop_group_members", uplink, "4x200"}}, "", "No cause found"},
		{"nothing", nil, "", "No cause found: the series of leaf1:up1 and spine1:dn1 show nothing unusual."},
	} {
		a := ask(t, link(), nil, with(idle(), tt.more...))
		if causes(a) != tt.want || !strings.Contains(a.Summary, tt.words) {
			t.Errorf("%s: causes %q, want %q; %s", tt.name, causes(a), tt.want, a.Summary)
		}
		if state := map[bool]fabric.AttributionState{true: fabric.CauseFound, false: fabric.NoCauseFound}[tt.want != ""]; a.State != state {
			t.Errorf("%s: state %s, want %s", tt.name, a.State, state)
		}
		for _, c := range a.Causes {
			if c.Weight <= 0 || c.Weight >= 1 {
				t.Errorf("%s: %s weighs %v", tt.name, c.Cause, c.Weight)
			}
		}
	}
	for _, scenario := range []fabric.Scenario{fabric.HardFailure, fabric.Flap} {
		v := link()
		v.Scenario = scenario
		if a := ask(t, v, nil, with(idle(), written{sw + "next_hop_group_members", uplink, step("12", "4")})); causes(a) != "" {
			t.Errorf("%s: its consequence is named as its cause: %s", scenario, a.Summary)
		}
	}
	one := ask(t, link(), nil, with(idle(), written{sw + "queue_bytes", uplink, step("0", "4600")}))
	two := ask(t, link(), nil, with(idle(), written{sw + "queue_bytes", uplink, step("0", "4600")}, written{sw + "queue_overlimits_total", uplink, grow("800")}))
	if two.Causes[0].Weight <= one.Causes[0].Weight {
		t.Errorf("two readings weigh %v, one %v", two.Causes[0].Weight, one.Causes[0].Weight)
	}
	marked := ask(t, link(), nil, []written{{sw + "receive_fecn_packets_total", facing, grow("50")}})
	if causes(marked) != "congestion" {
		t.Errorf("marks where no queue is known: %s", marked.Summary)
	}
	v := fabric.Verdict{Element: fabric.Element{ID: "h1/eth1", Kind: fabric.KindNIC}, Scenario: fabric.BadNIC}
	if a := ask(t, v, nil, []written{{nic + "symbol_errors_total", `nic="h1/eth1"`, grow("3")}}); causes(a) != "physical_errors" || a.Causes[0].Element != "h1/eth1" {
		t.Errorf("a NIC's own port: %s", a.Summary)
	}
	if a := ask(t, v, nil, []written{{stalled, `nic="h1/eth1"`, grow("0.4")}}); causes(a) != "host" {
		t.Errorf("a starved node: %s", a.Summary)
	}
	up := fabric.Verdict{Element: fabric.Element{ID: "leaf1", Kind: fabric.KindLeafUplinks}, Scenario: fabric.LeafUplinks}
	if a := ask(t, up, nil, []written{{sw + "oper_up", uplink, "0x200"}}); causes(a) != "capacity_loss" || !strings.Contains(a.Summary, "1 of 1 uplink ports are down") {
		t.Errorf("uplinks: %s", a.Summary)
	}
}

// TestCausesOfNICs checks the causes from the series that a node reports of its own NIC.
func TestCausesOfNICs(t *testing.T) {
	const at, port = `nic="h1/eth1"`, "fabric_nic_port_"
	well := []written{{port + "state", at + `,state="ACTIVE"`, "1x200"}, {port + "state", at + `,state="DOWN"`, "0x200"}, {port + "phys_state", at + `,state="Disabled"`, "0x200"},
		{port + "rate_bytes_per_second", at, "50e9x200"}, {pciLanes, at + `,is="current"`, "16x200"}, {pciLanes, at + `,is="max"`, "16x200"},
		{driverLines, at + `,code="cmd_exec_timeout",severity="fatal"`, "0x200"}, {driverLines, at + `,code="access_reg_failed",severity="warning"`, "0+1x200"},
		{findings, at + `,code="rate_below_expected",severity="fatal"`, "1x200"}, {port + "hardware_total", at + `,counter="out_of_sequence"`, "0+2x200"}}
	bad := fabric.Verdict{Element: fabric.Element{ID: "h1/eth1", Kind: fabric.KindNIC}, Scenario: fabric.BadNIC, Action: "generic"}
	for _, tt := range []struct {
		name  string
		more  []written
		want  string
		words string
	}{
		{"all is as ever", nil, "", "No cause found"},
		{"not active", []written{{port + "state", at + `,state="ACTIVE"`, step("1", "0")}}, "link_down", "at h1/eth1 (weight 0.90): it is not ACTIVE, previously ACTIVE (ACTIVE)"},
		{"disabled", []written{{port + "phys_state", at + `,state="Disabled"`, step("0", "1")}}, "admin_down", "it is Disabled, previously it was not"},
		{"half the rate", []written{{port + "rate_bytes_per_second", at, step("50e9", "25e9")}}, "link_downshift", "it runs at 200 Gbit/s, compared with 400 Gbit/s before"},
		{"gone", []written{{port + "state", at + `,state="ACTIVE"`, fmt.Sprintf("1x%d stale", begin)}, {findings, at + `,code="device_disappeared",severity="fatal"`, fmt.Sprintf("_x%d 1x99", begin+1)}}, "nic_fault", "reported by its node, and not before (device_disappeared)"},
		{"its firmware is dead", []written{{driverLines, at + `,code="cmd_exec_timeout",severity="fatal"`, step("0", "1")}}, "nic_fault", "fabric_nic_driver_events grew by 1"},
		{"lanes lost", []written{{pciLanes, at + `,is="current"`, step("16", "8")}}, "nic_fault", "its PCI link has 8 lanes, compared with 16 lanes before"},
		{"errors of the bus", []written{{pciErrors, at + `,severity="nonfatal"`, step("0", "2")}}, "nic_fault", "(nonfatal)"},
		{"the cable is out", []written{{driverLines, at + `,code="module_absent",severity="warning"`, step("0", "1")}}, "optics", "(module_absent)"},
		{"marked", []written{{port + "hardware_total", at + `,counter="np_ecn_marked_roce_packets"`, step("5", "5+400")}}, "congestion", "hardware grew by 380 per second"},
		{"holes in the sequence", []written{{port + "hardware_total", at + `,counter="out_of_sequence"`, step("200", "200+90")}}, "drops", "(out_of_sequence)"},
		{"nothing ready to receive", []written{{port + "hardware_total", at + `,counter="rnr_nak_retry_err"`, step("0", "0+50")}}, "host", "(rnr_nak_retry_err)"},
		{"the module lost its light", []written{{moduleFlags, at + `,flag="receive_loss_of_signal",lane="1"`, fmt.Sprintf("_x%d 1x99", begin+1)}, {moduleFlags, at + `,flag="receive_loss_of_signal",lane="2"`, fmt.Sprintf("_x%d 1x99", begin+1)}}, "optics", "(receive_loss_of_signal)"},
		{"it receives pause frames", []written{{driverCounts, at + `,counter="rx_prio3_pause"`, step("0", "0+100")}}, "pause_stall", "(rx_prio3_pause)"},
		{"it sends pause frames", []written{{driverCounts, at + `,counter="tx_prio3_pause"`, step("0", "0+100")}}, "host", "(tx_prio3_pause)"},
		{"blocks beyond correction", []written{{port + "fec_uncorrectable_blocks_total", at, step("0", "0+1")}}, "physical_errors", "fec_uncorrectable_blocks grew by"},
		{"damaged at the port", []written{{driverCounts, at + `,counter="rx_symbol_err_phy"`, step("0", "0+1")}}, "physical_errors", "(rx_symbol_err_phy)"},
		{"a counter that is in no row", []written{{port + "hardware_total", at + `,counter="lifespan"`, step("0", "0+50")}}, "", "No cause found"},
	} {
		a := ask(t, bad, nil, with(well, tt.more...))
		if causes(a) != tt.want || !strings.Contains(a.Summary, tt.words) {
			t.Errorf("%s: causes %q, want %q; %s", tt.name, causes(a), tt.want, a.Summary)
		}
	}
	// A finding of an agent that has just started may be older than the incident.
	young := ask(t, bad, nil, []written{{findings, at + `,code="device_disappeared",severity="fatal"`, fmt.Sprintf("_x%d 1x99", begin+1)}})
	if causes(young) != "nic_fault" || young.Causes[0].Weight != 0.48 || !strings.Contains(young.Summary, "previous state unknown") {
		t.Errorf("an agent that just came up: %+v", young)
	}
	v := bad
	a := ask(t, v, nil, with(well, written{driverLines, at + `,code="cmd_exec_timeout",severity="fatal"`, step("0", "1")}))
	ApplyAttribution(&v, nil, &a)
	if !strings.HasPrefix(v.Action, "Take the node of h1/eth1 out of service") {
		t.Errorf("what to do: %s", v.Action)
	}
	v = bad
	v.Scenario = fabric.HardFailure // the action follows the scenario, and the cause is reported
	ApplyAttribution(&v, nil, &a)
	if v.Action != "generic" || !slices.Equal(v.Causes, []string{fabric.CauseNIC}) {
		t.Errorf("a failure: %q, %s", v.Causes, v.Action)
	}
}

// TestRowsNameWhatThereIs: codes of the kernel's log that no pattern has would never be found.
func TestRowsNameWhatThereIs(t *testing.T) {
	m, err := klog.NewMatcher(klog.MatchConfig{}, func(string, string, string) (string, bool) { return "", false }, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	known := m.PatternSeverities()
	for i := range table {
		for _, code := range table[i].Reasons {
			if _, ok := known[code]; table[i].Series == driverLines && !ok {
				t.Errorf("%s: no pattern of the kernel's log has the code %q", table[i].Cause, code)
			}
		}
	}
}

// TestAbsentIsNoCause: rules 1 and 3.
func TestAbsentIsNoCause(t *testing.T) {
	if a := ask(t, link(), []string{fabric.CauseCongestion}, nil); a.State != fabric.NoCauseData || len(a.Causes) != 0 || a.Agrees != nil || !strings.HasPrefix(a.Summary, "No data:") {
		t.Errorf("no series: %+v", a)
	}
	others := []written{{"fabric_switch_port_queue_bytes", `switch="leaf2",port="up1"`, step("0", "9e6")}, {"fabric_switch_port_queue_bytes", `switch="leaf1",port="up11"`, step("0", "9e6")}}
	if a := ask(t, link(), nil, others); a.State != fabric.NoCauseData {
		t.Errorf("series of other ports: %+v", a)
	}
	// The scrapes ended before the incident, so their values do not belong to it.
	gone := []written{{"fabric_switch_port_queue_bytes", uplink, fmt.Sprintf("0x%d", begin-2)}, {"fabric_switch_port_oper_up", uplink, fmt.Sprintf("0x%d", begin-2)}}
	if a := ask(t, link(), []string{fabric.CauseCongestion}, gone); a.State != fabric.NoCauseData {
		t.Errorf("series that ended: %+v", a)
	}
	// Known only since the incident began: it weighs half.
	late := []written{{"fabric_switch_port_queue_bytes", uplink, fmt.Sprintf("_x%d 4600x99", begin+1)}}
	if a := ask(t, link(), nil, late); causes(a) != "congestion" || a.Causes[0].Weight != 0.45 || !strings.Contains(a.Summary, "average before unknown") {
		t.Errorf("nothing known of before: %+v", a)
	}
}

// TestYoungSeries: a series that is younger than the time before the incident is compared with its own age.
func TestYoungSeries(t *testing.T) {
	young := []written{{"fabric_switch_port_queue_discards_total", uplink, fmt.Sprintf("_x%d 0+1x11 11+20x98", begin-12)}}
	if a := ask(t, link(), nil, young); causes(a) != "drops" || !strings.Contains(a.Summary, "compared with 0.8 per second before") || a.Causes[0].Weight != 0.5 {
		t.Errorf("%+v", a)
	}
}

// TestMarksAloneAreNoCongestion: rule 4.
func TestMarksAloneAreNoCongestion(t *testing.T) {
	v := link()
	v.Symptom = fabric.Symptom{ECNRatio: 0.5}
	a := ask(t, v, []string{fabric.CauseCongestion}, idle())
	if a.State != fabric.NoCauseFound || a.Agrees == nil || *a.Agrees || !strings.Contains(a.Summary, "the queue of leaf1:up1 held 0 B on average, so this is no congestion") {
		t.Errorf("%+v", a)
	}
	ApplyAttribution(&v, []string{fabric.CauseCongestion}, &a)
	if len(v.Causes) != 0 || v.Action != noQueue {
		t.Errorf("causes %q: %s", v.Causes, v.Action)
	}
	v.Symptom = fabric.Symptom{LossRatio: 0.02}
	early := ask(t, v, nil, with(idle(), written{"fabric_switch_port_queue_discards_total", uplink, step("0", "0+20")}, written{"fabric_switch_port_transmit_bytes_total", uplink, step("0", "0+50e9")}))
	if causes(early) != "drops" {
		t.Errorf("random early loss: %+v", early)
	}
	// What the probes suggest stands where the queue is unknown.
	unknown := ask(t, v, []string{fabric.CauseCongestion}, []written{{"fabric_switch_port_oper_up", uplink, "1x200"}})
	ApplyAttribution(&v, []string{fabric.CauseCongestion}, &unknown)
	if unknown.State != fabric.NoCauseFound || unknown.Agrees != nil || !slices.Equal(v.Causes, []string{fabric.CauseCongestion}) {
		t.Errorf("%+v, causes %q", unknown, v.Causes)
	}
}

// TestTheOtherWay: rule 5.
func TestTheOtherWay(t *testing.T) {
	a := ask(t, link(), nil, with(idle(), written{"fabric_switch_port_queue_bytes", facing, step("0", "4600")}))
	if len(a.Causes) != 0 || a.Agrees == nil || *a.Agrees || !strings.Contains(a.Summary, "at spine1:dn1, 4.6 kB waited on average, compared with 0 B before, which would be congestion in the other direction") {
		t.Errorf("%+v", a)
	}
	v := link()
	v.Direction = ""
	if a := ask(t, v, nil, with(idle(), written{"fabric_switch_port_queue_bytes", facing, step("0", "4600")})); causes(a) != "congestion" {
		t.Errorf("without a direction: %+v", a)
	}
}

// TestTwoScrapersCountOnce: two Prometheus jobs scrape one switch.
func TestTwoScrapersCountOnce(t *testing.T) {
	a := ask(t, link(), nil, with(idle(), written{"fabric_switch_port_queue_discards_total", uplink + `,replica="a"`, step("5", "5+20")}, written{"fabric_switch_port_queue_discards_total", uplink + `,replica="b"`, step("5", "5+20")}))
	if causes(a) != "drops" || !strings.Contains(a.Summary, "grew by 380,") {
		t.Errorf("%s", a.Summary)
	}
}

// TestBlocking: rule 7.
func TestBlocking(t *testing.T) {
	v := fabric.Verdict{Element: fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}, Scenario: fabric.HOLCross}
	out := written{"fabric_switch_port_queue_bytes", `switch="spine1",port="dn2"`, step("0", "9e6")}
	in := written{"fabric_switch_port_receive_discards_total", facing, step("0", "0+50")}
	for _, tt := range []struct {
		series []written
		want   bool
	}{{[]written{out, in}, true}, {[]written{out}, false}, {[]written{in}, false}, {nil, false}} {
		a := ask(t, v, nil, tt.series)
		if text, ok := BlockingEvidence(&a); ok != tt.want || ok && (!strings.Contains(text, "spine1:dn2") || !strings.Contains(text, "spine1:dn1")) {
			t.Errorf("%v: %v, %s", tt.series, ok, text)
		}
	}
}

// TestCausesAtEquivalents checks that a cause in a link that the same flows cross is the cause (rule 9), in the direction in which they
// cross it, that the element's own cause comes first, and that two equivalents with one leave it open.
func TestCausesAtEquivalents(t *testing.T) {
	grow := step("5", "5+1")
	second := link()
	second.SameFlowEquivalents = []fabric.DirectedElement{{Element: fabric.Element{ID: "leaf2:up1--spine1:dn2", Kind: fabric.KindLink}, Direction: fabric.Direction{From: "spine1:dn2", To: "leaf2:up1"}},
		{Element: fabric.Element{ID: "h1/eth1--leaf1:dn1", Kind: fabric.KindAccessLink}, Direction: fabric.Direction{From: "h1/eth1", To: "leaf1:dn1"}},
		{Element: fabric.Element{ID: "spine1", Kind: fabric.KindSwitch}}}
	at := func(port string) written {
		return written{"fabric_switch_port_receive_errors_total", port + `,reason="crc"`, grow}
	}
	const far, back, access = `switch="leaf2",port="up1"`, `switch="spine1",port="dn2"`, `switch="leaf1",port="dn1"`
	for _, tt := range []struct {
		name string
		more []written
		want string // the place of the cause
	}{
		{"in the other link", []written{at(far)}, "leaf2:up1"},
		{"in the other direction of the other link", []written{at(back)}, ""},
		{"in both others", []written{at(far), at(access)}, ""},
		{"in its own link", []written{at(far), at(facing)}, "spine1:dn1"},
	} {
		a := ask(t, second, nil, with(idle(), tt.more...))
		got := ""
		if len(a.Causes) > 0 {
			got = a.Causes[0].Element
		}
		if got != tt.want || (a.State == fabric.CauseFound) != (tt.want != "") {
			t.Errorf("%s: %q, %+v", tt.name, got, a)
		}
		if tt.want == "leaf2:up1" && !strings.Contains(a.Summary, "those of leaf2:up1--spine1:dn2 do") {
			t.Errorf("%s: %s", tt.name, a.Summary)
		}
	}
}

// TestAnEarlierIncidentIsNoNormal has errors that grow as fast as in an earlier incident on the link, which ended 25 s before (rule 10).
func TestAnEarlierIncidentIsNoNormal(t *testing.T) {
	// From second 50 to 70, and again from 100 on.
	errors := written{"fabric_switch_port_receive_errors_total", facing + `,reason="crc"`, "5x50 5+10x20 205x29 205+10x80"}
	var b strings.Builder
	b.WriteString("load 1s\n")
	for _, s := range with(idle(), errors) {
		fmt.Fprintf(&b, "  %s{%s,instance=\"x:1\",job=\"switch\"} %s\n", s.name, s.labels, s.values)
	}
	a := Attributor{DB: evidencetest.NewQuerier(t, b.String()), Scrape: time.Second}
	for _, quiet := range []int64{0, 75, 99, 110} {
		q := Request{Verdict: link(), Since: time.Unix(begin, 0), SureSince: time.Unix(begin+5, 0), Now: time.Unix(end, 0)}
		if quiet > 0 {
			q.Quiet = time.Unix(quiet, 0)
		}
		got, err := a.Attribute(t.Context(), graph(t), q)
		if err != nil {
			t.Fatal(err)
		}
		if found := got.State == fabric.CauseFound; found != (quiet > 0) {
			t.Errorf("last named at second %d: %+v", quiet, got)
		}
	}
}

// TestConclude: a cause determines the action, where the scenario does not.
func TestConclude(t *testing.T) {
	v := link()
	a := ask(t, v, nil, with(idle(), written{"fabric_switch_port_receive_errors_total", facing + `,reason="crc"`, step("0", "0+1")}))
	ApplyAttribution(&v, nil, &a)
	if !slices.Equal(v.Causes, []string{fabric.CausePhysical}) || !strings.Contains(v.Action, "optics and cable at spine1:dn1") {
		t.Errorf("%q: %s", v.Causes, v.Action)
	}
	v = link()
	v.Scenario = fabric.HardFailure
	ApplyAttribution(&v, nil, &a)
	if v.Action != "generic" {
		t.Errorf("a failure: %s", v.Action)
	}
	v = link()
	ApplyAttribution(&v, []string{fabric.CauseMiscabled}, nil)
	if !slices.Equal(v.Causes, []string{fabric.CauseMiscabled}) || v.Action != "generic" {
		t.Errorf("without an attribution: %q, %s", v.Causes, v.Action)
	}
}

// TestEveryKindHasPlaces: the right ends are queried for each kind of element.
func TestEveryKindHasPlaces(t *testing.T) {
	g := graph(t)
	for _, tt := range []struct {
		kind            fabric.Kind
		name, direction string
		want            string
	}{
		{fabric.KindLink, "leaf1:up1--spine1:dn1", "", "leaf1:up1<> spine1:dn1<>"},
		{fabric.KindLink, "leaf1:up1--spine1:dn1", "spine1:dn1->leaf1:up1", "spine1:dn1> leaf1:up1<"},
		{fabric.KindNIC, "h1/eth1", "leaf1:dn1->h1/eth1", "leaf1:dn1> h1/eth1<"},
		{fabric.KindNIC, "h1/eth1", "", "h1/eth1<> leaf1:dn1<>"},
		{fabric.KindPort, "spine1:dn2", "", "spine1:dn2> leaf2:up1<"},
		{fabric.KindQueue, "spine1:dn2@tc3", "", "spine1:dn2> leaf2:up1<"},
		{fabric.KindSwitch, "spine1", "", "spine1:dn1<> spine1:dn2<>"},
		{fabric.KindHost, "h1", "", "h1/eth1<> leaf1:dn1<>"},
		{fabric.KindLeafUplinks, "leaf1", "", "leaf1:up1<>"},
		{fabric.KindCorridor, "leaf1->spine1->leaf2", "", "leaf1:up1> spine1:dn1< spine1:dn2> leaf2:up1<"},
		{fabric.KindPair, "leaf1->leaf2", "", "leaf1:up1> leaf2:up1<"},
		{fabric.KindClock, "h1/eth1", "", ""},
		{fabric.KindLink, "leaf1:up9--spine1:dn9", "", ""},
	} {
		var got []string
		for _, p := range endRolesOf(g, &fabric.Verdict{Element: fabric.Element{ID: tt.name, Kind: tt.kind}, Direction: tt.direction}) {
			text := p.end
			if p.receives {
				text += "<"
			}
			if p.sends {
				text += ">"
			}
			got = append(got, text)
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.kind, tt.name, s, tt.want)
		}
	}
}

// TestTableIsPublished checks that the table is complete, and that docs/causes.md has it.
func TestTableIsPublished(t *testing.T) {
	for i := range table {
		if r := &table[i]; actions[r.Cause] == "" || r.Weight <= 0 || r.Weight >= 1 {
			t.Errorf("row %d, %s by %s: weight %v, action %q", i, r.Cause, r.Series, r.Weight, actions[r.Cause])
		}
	}
	const file, begin, end = "../../docs/causes.md", "<!-- table -->\n", "<!-- end of table -->\n"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, foot, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := head + begin + MarkdownTable() + end + foot
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(b) {
		t.Errorf("%s is not what the code says: rewrite it with -update", file)
	}
}

// TestSeriesOfCauses: the series that can show a cause have their full names, by what the element is. Routing has none.
func TestSeriesOfCauses(t *testing.T) {
	for _, x := range []struct{ cause, element, has, lacks string }{
		{fabric.CauseCongestion, "leaf1:up1", "fabric_switch_port_queue_bytes", "fabric_nic_port_queue_bytes"},
		{fabric.CausePhysical, "h1/eth1", "fabric_nic_", "fabric_switch_"},
		{fabric.CauseControl, "leaf1", "fabric_switch_control_plane_discards_total", "fabric_switch_port_"},
		{fabric.CauseRouting, "leaf1", "", "fabric_"},
	} {
		got := strings.Join(SeriesOf(x.cause, x.element), " ")
		if !strings.Contains(got, x.has) || strings.Contains(got, x.lacks) {
			t.Errorf("%s at %s: %s", x.cause, x.element, got)
		}
	}
}
