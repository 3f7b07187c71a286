package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/nodeagent/health"
)

// scenario is a row of docs/nic-health.md: what happens, which events are reported, and which series result.
type scenario struct {
	source, what string
	profile      string
	steps        []string
	wait         time.Duration
	events       []string
	series       []string
}

const port0 = "NICPort:mlx5_0_port1 "

func counterRow(source, counter string, by int, events []string, series ...string) scenario {
	return scenario{source, fmt.Sprintf("%s grows by %d", counter, by), "h100", []string{fmt.Sprintf("add mlx5_0/1 %s %d", counter, by)}, 3 * time.Second, events, series}
}

func logRow(severity, code, line string) scenario {
	event := severity + " " + code + " NIC:mlx5_0 NONE"
	if severity == "fatal" {
		event = severity + " " + code + " NIC:mlx5_0 REPLACE_VM"
	}
	return scenario{"seed A, logs", "\"" + line + "\"", "h100", []string{"kmsg 3 " + line}, 0, []string{event}, []string{fmt.Sprintf(`fabric_nic_driver_events_total{code=%q,nic="h1/mlx5_0",severity=%q} 1`, code, severity)}}
}

var scenarios = []scenario{
	// Seed 3.1, 3.4 and appendix A: states.
	{"seed A, states", "state DOWN", "h100", []string{"set mlx5_0/1 state 1: DOWN"}, 2 * time.Second, []string{"fatal state_down " + port0 + "REPLACE_VM"},
		[]string{`fabric_nic_port_state{nic="h1/mlx5_0",state="DOWN"} 1`, `fabric_nic_port_state{nic="h1/mlx5_0",state="ACTIVE"} 0`, `fabric_nic_finding{code="state_down",nic="h1/mlx5_0",severity="fatal"} 1`}},
	{"seed 3.4", "state INIT", "h100", []string{"set mlx5_0/1 state 2: INIT"}, 2 * time.Second, []string{"warning state_init " + port0 + "NONE"}, []string{`fabric_nic_port_state{nic="h1/mlx5_0",state="INIT"} 1`}},
	{"seed 3.2", "state INIT for 31 s", "h100", []string{"set mlx5_0/1 state 2: INIT"}, 33 * time.Second, []string{"warning state_init " + port0 + "NONE", "warning state_init_stuck " + port0 + "NONE"},
		[]string{`fabric_nic_finding{code="state_init_stuck",nic="h1/mlx5_0",severity="warning"} 1`}},
	{"seed 3.4", "state ARMED", "h100", []string{"set mlx5_0/1 state 3: ARMED"}, 2 * time.Second, []string{"warning state_armed " + port0 + "NONE"}, []string{`fabric_nic_port_state{nic="h1/mlx5_0",state="ARMED"} 1`}},
	{"seed 3.4", "state ACTIVE", "h100", nil, 2 * time.Second, nil, []string{`fabric_nic_port_state{nic="h1/mlx5_0",state="ACTIVE"} 1`, "no fabric_nic_finding"}},
	{"seed A, states", "phys_state Disabled", "h100", []string{"set mlx5_0/1 phys_state 3: Disabled"}, 2 * time.Second, []string{"fatal phys_state_disabled " + port0 + "REPLACE_VM"},
		[]string{`fabric_nic_port_phys_state{nic="h1/mlx5_0",state="Disabled"} 1`}},
	{"seed 3.4", "phys_state Polling", "h100", []string{"set mlx5_0/1 phys_state 2: Polling"}, 2 * time.Second, []string{"warning phys_state_polling " + port0 + "NONE"}, []string{`fabric_nic_port_phys_state{nic="h1/mlx5_0",state="Polling"} 1`}},
	{"spec, states", "phys_state Training", "h100", []string{"set mlx5_0/1 phys_state 4: PortConfigurationTraining"}, 2 * time.Second, []string{"warning phys_state_training " + port0 + "NONE"}, nil},
	{"seed A, states", "phys_state LinkErrorRecovery", "h100", []string{"set mlx5_0/1 phys_state 6: LinkErrorRecovery"}, 2 * time.Second, []string{"fatal phys_state_link_error_recovery " + port0 + "REPLACE_VM"}, nil},
	{"spec, states", "phys_state Sleep", "h100", []string{"set mlx5_0/1 phys_state 1: Sleep"}, 2 * time.Second, nil, []string{`fabric_nic_port_phys_state{nic="h1/mlx5_0",state="Sleep"} 1`}},
	{"spec, states", "phys_state Phy Test", "h100", []string{"set mlx5_0/1 phys_state 7: Phy Test"}, 2 * time.Second, nil, []string{`fabric_nic_port_phys_state{nic="h1/mlx5_0",state="Phy Test"} 1`}},
	{"seed 13.1", "the device disappears", "h100", []string{"remove mlx5_0"}, 4 * time.Second, []string{"fatal device_disappeared NIC:mlx5_0 REPLACE_VM"},
		[]string{`fabric_nic_finding{code="device_disappeared",nic="h1/mlx5_0",severity="fatal"} 1`, `no fabric_nic_port_state{nic="h1/mlx5_0"`}},
	{"spec, correction", "two polls do not find it", "h100", []string{"remove mlx5_0"}, 2 * time.Second, nil, nil},
	{"seed 4", "rate 200 of 400 Gb/s", "h100", []string{"set mlx5_0/1 rate 200 Gb/sec (4X HDR)"}, 3 * time.Second, []string{"fatal rate_below_expected " + port0 + "REPLACE_VM"},
		[]string{`fabric_nic_port_rate_bytes_per_second{nic="h1/mlx5_0"} 2.5e+10`, `fabric_nic_port_expected_rate_bytes_per_second{nic="h1/mlx5_0"} 5e+10`}},
	// Seed 8: virtual functions.
	{"seed 8.4", "PF ACTIVE", "sriov34", nil, 2 * time.Second, nil, []string{`fabric_nic_port_virtual_function{nic="h1/mlx5_1"} 0`, `fabric_nic_port_state{nic="h1/mlx5_1",state="ACTIVE"} 1`}},
	{"seed 8.4", "PF DOWN", "sriov34", []string{"set mlx5_1/1 state 1: DOWN"}, 2 * time.Second, []string{"fatal state_down NICPort:mlx5_1_port1 REPLACE_VM"}, nil},
	{"seed 8.4", "VF DOWN", "sriov34", nil, 2 * time.Second, nil, []string{`fabric_nic_port_virtual_function{nic="h1/mlx5_18"} 1`, `fabric_nic_port_state{nic="h1/mlx5_18",state="DOWN"} 1`}},
	{"seed 8.3", "VF ACTIVE, then DOWN again", "sriov34", []string{"set mlx5_18/1 state 4: ACTIVE", "wait", "set mlx5_18/1 state 1: DOWN"}, 2 * time.Second, nil, nil},
	// Seed 9: GID tables, on a node of RoCE.
	{"seed 9.1", "an empty GID table", "sriov34", emptyGIDs("mlx5_3"), 2 * time.Second, []string{"warning gid_table_empty NICPort:mlx5_3_port1 NONE"}, []string{`fabric_nic_port_gid_entries{family="",nic="h1/mlx5_3",type=""} 0`}},
	// Spec: counters.
	counterRow("seed A, counters", "counters/link_downed", 1, []string{"fatal link_downed " + port0 + "REPLACE_VM"}, `fabric_nic_port_link_downed_total{nic="h1/mlx5_0"} 1`),
	counterRow("seed A, counters", "counters/excessive_buffer_overrun_errors", 1, []string{"fatal excessive_buffer_overrun_errors " + port0 + "REPLACE_VM"}, `fabric_nic_port_buffer_overruns_total{nic="h1/mlx5_0"} 1`),
	counterRow("seed A, counters", "counters/local_link_integrity_errors", 1, []string{"fatal local_link_integrity_errors " + port0 + "REPLACE_VM"}, `fabric_nic_port_local_link_integrity_errors_total{nic="h1/mlx5_0"} 1`),
	counterRow("spec, correction", "hw_counters/rnr_nak_retry_err", 1000, nil, `fabric_nic_port_hardware_total{counter="rnr_nak_retry_err",nic="h1/mlx5_0"} 1000`),
	counterRow("spec, correction", "hw_counters/req_rnr_retries_exceeded", 1, []string{"fatal req_rnr_retries_exceeded " + port0 + "REPLACE_VM"}),
	counterRow("spec, correction", "hw_counters/req_transport_retries_exceeded", 1, []string{"fatal req_transport_retries_exceeded " + port0 + "REPLACE_VM"}),
	counterRow("spec, correction", "counters/symbol_error", 1, nil, `fabric_nic_port_symbol_errors_total{nic="h1/mlx5_0"} 1`),
	counterRow("spec, counters", "counters/symbol_error", 121, []string{"warning symbol_error " + port0 + "NONE", "fatal symbol_error_hourly " + port0 + "REPLACE_VM"}),
	counterRow("spec, counters", "counters/link_error_recovery", 6, []string{"warning link_error_recovery " + port0 + "NONE"}, `fabric_nic_port_link_recoveries_total{nic="h1/mlx5_0"} 6`),
	counterRow("spec, counters", "counters/port_rcv_errors", 101, []string{"warning port_rcv_errors " + port0 + "NONE"}, `fabric_nic_port_receive_errors_total{nic="h1/mlx5_0",reason="damaged"} 101`),
	counterRow("spec, counters", "hw_counters/local_ack_timeout_err", 11, []string{"warning local_ack_timeout_err " + port0 + "NONE"}),
	counterRow("spec, counters", "counters/port_xmit_discards", 1001, []string{"warning port_xmit_discards " + port0 + "NONE"}, `fabric_nic_port_transmit_discards_total{nic="h1/mlx5_0"} 1001`),
	{"spec, counters", "hw_counters/roce_slow_restart grows by 101", "sriov34", []string{"add mlx5_0/1 hw_counters/roce_slow_restart 101"}, 3 * time.Second, []string{"warning roce_slow_restart " + port0 + "NONE"}, nil},
	counterRow("spec, counters", "hw_counters/out_of_sequence", 1001, []string{"warning out_of_sequence " + port0 + "NONE"}),
	counterRow("spec, counters", "counters/port_xmit_wait", 100001, []string{"warning port_xmit_wait " + port0 + "NONE"}),
	{"spec, correction", "carrier changes thrice", "h100", []string{"net eno3 carrier_changes 5"}, 2 * time.Second, []string{"warning carrier_changes NIC:eno3 NONE"}, []string{`fabric_nic_port_carrier_changes_total{nic="h1/eno3"} 5`}},
	{"spec, counters", "link_downed at the end of its 8 bits", "h100", []string{"set mlx5_0/1 counters/link_downed 255"}, 2 * time.Second, []string{"fatal link_downed " + port0 + "REPLACE_VM"},
		[]string{`fabric_nic_port_saturated{counter="link_downed",nic="h1/mlx5_0"} 1`}},
	{"spec, read", "a counter that is \"N/A (no PMA)\"", "h100", []string{"garble /sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error N/A (no PMA)"}, 2 * time.Second, nil,
		[]string{`no fabric_nic_port_symbol_errors_total{nic="h1/mlx5_0"}`, `fabric_nic_port_symbol_errors_total{nic="h1/mlx5_1"} 0`}},
	{"seed 10.1", "an interface of Ethernet is down", "h100", []string{"net eno3 operstate down"}, 2 * time.Second, []string{"fatal state_down NIC:eno3 REPLACE_VM"}, []string{`fabric_nic_port_state{nic="h1/eno3",state="DOWN"} 1`}},
	// The kernel's log; mlx5_0 is 0000:18:00.0, and its interface ibp24s0.
	logRow("fatal", "cmd_exec_timeout", "mlx5_core 0000:18:00.0: wait_func:1152:(pid 1967): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource"),
	logRow("fatal", "health_compromised", "mlx5_core 0000:18:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count"),
	logRow("fatal", "netdev_watchdog", "NETDEV WATCHDOG: ibp24s0 (mlx5_core): transmit queue 7 timed out"),
	logRow("fatal", "pcie_fatal", "mlx5_core 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)"),
	logRow("warning", "insufficient_power", "mlx5_core 0000:18:00.0: mlx5_pcie_event:301:(pid 1): Detected insufficient power on the PCIe slot (27W)."),
	logRow("warning", "high_temperature", "mlx5_core 0000:18:00.0: temp_warn:164:(pid 0): High temperature on sensors with bit set 0 1"),
	logRow("warning", "module_absent", "mlx5_core 0000:18:00.0: Port module event: module 0, Cable unplugged"),
	logRow("warning", "access_reg_failed", "mlx5_core 0000:18:00.0: mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3), syndrome (0x15c356), err(-22)"),
	{"spec, kernel log", "PCIe fatal of something that is no NIC", "h100", []string{"kmsg 3 nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
		"kmsg 3 mlx5_core 0000:18:00.0: Port module event: module 0, Cable unplugged"}, 0, []string{"warning module_absent NIC:mlx5_0 NONE"}, []string{`graylink_node_nic_log_unresolved_total{code="pcie_fatal"} 1`}},
	{"spec, state", "another boot with a port that is DOWN", "h100", []string{"boot", "set mlx5_0/1 state 1: DOWN"}, 3 * time.Second, nil, []string{`fabric_nic_port_state{nic="h1/mlx5_0",state="DOWN"} 1`}},
}

func emptyGIDs(device string) (steps []string) {
	for i := range 4 {
		steps = append(steps, fmt.Sprintf("set %s/1 gids/%d 0000:0000:0000:0000:0000:0000:0000:0000", device, i))
	}
	return steps
}

// TestScenarios plays every row on files, and writes the table of docs/nic-health.md.
func TestScenarios(t *testing.T) {
	rows := make([]string, len(scenarios))
	for i, s := range scenarios {
		if testing.Short() && i%6 != 0 {
			continue // under the race detector; make test runs all of them without it
		}
		t.Run(strings.ReplaceAll(s.what, "/", " "), func(t *testing.T) {
			logged := strings.HasPrefix(s.source, "seed A, logs") || s.source == "spec, kernel log"
			p := newPatient(t, s.profile, func(o *health.Options) {
				if logged {
					// With a file for the position, the first start begins at the oldest line.
					o.Log, o.PositionFile = health.LogKmsg, filepath.Join(t.TempDir(), "position.json")
				}
			})
			if events := p.PollFor(3 * time.Second); len(events) > 0 {
				t.Fatalf("before: %q", events)
			}
			if logged {
				ctx, cancel := context.WithCancel(t.Context())
				var following sync.WaitGroup
				following.Go(func() { p.FollowLog(ctx) })
				defer following.Wait()
				defer cancel()
			}
			var got []string
			for _, step := range s.steps {
				if step == "wait" {
					got = append(got, p.PollFor(2*time.Second)...)
				} else {
					p.RunSteps(step)
				}
			}
			got = append(got, p.PollFor(s.wait)...)
			for end := time.Now().Add(time.Minute); logged && len(got) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				got = append(got, p.NewEvents()...)
			}
			if !slices.Equal(got, s.events) {
				t.Errorf("events %q, want %q", got, s.events)
			}
			p.has(s.series...)
			reported := "none"
			if len(got) > 0 {
				reported = strings.Join(got, "<br>")
			}
			rows[i] = fmt.Sprintf("| %s | %s (%s) | %s | %s |", s.source, s.what, s.profile, reported, "`"+strings.Join(s.series, "`<br>`")+"`")
			rows[i] = strings.ReplaceAll(rows[i], " `` |", " |")
		})
	}
	if t.Failed() || slices.Contains(rows, "") {
		return // or not all of them ran
	}
	const begin, end = "<!-- table: begin -->\n", "<!-- table: end -->\n"
	const doc = "../../docs/nic-health.md"
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", doc)
	}
	want := before + begin + "| from | what happens (tree) | events | series |\n| --- | --- | --- | --- |\n" + strings.Join(rows, "\n") + "\n" + end + after
	if want == string(b) {
		return
	}
	if !*updateHealth {
		t.Errorf("the table in %s is not what is observed (rewrite it with -update.health)", doc)
	} else if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
