package node

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/graylink/graylink/internal/fakesys"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nichw"
	"github.com/graylink/graylink/internal/webaccess"
)

var updateHealth = flag.Bool("update.health", false, "rewrite the golden exposition of NICs, and the table of docs/nic-health.md")

var healthStart = time.Unix(1_800_000_000, 0).UTC()

// patient runs a Health on a tree of files, in a time of its own.
type patient struct {
	t    testing.TB
	h    *Health
	tree *fakesys.Tree
	now  time.Time
	log  safeBuffer
	read int // position in the log
	edit func(*HealthOptions)
	// current reports whether everything was read since the last change.
	current bool
}

// safeBuffer is safe for concurrent use, because the follower of the kernel's log writes to it, too.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newPatient(t testing.TB, profile string, edit func(*HealthOptions)) *patient {
	t.Helper()
	node, err := fakesys.FindProfile(profile)
	if err != nil {
		t.Fatal(err)
	}
	root := inMemory(t)
	if err := fakesys.BuildTree(root, node); err != nil {
		t.Fatal(err)
	}
	tree, err := fakesys.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	p := &patient{t: t, tree: tree, now: healthStart, edit: edit}
	p.restart()
	return p
}

// inMemory returns a directory in memory for thousands of small files, which are slow on disks.
func inMemory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "graylink-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// restart begins anew, as a restarted agent would.
func (p *patient) restart() {
	p.t.Helper()
	p.current = false
	o := DefaultHealth()
	o.Sys, o.Proc, o.Kmsg = p.tree.Path("sys"), p.tree.Path("proc"), p.tree.Path("dev/kmsg")
	// No file of a test is slow by itself, whatever the machine does.
	o.Patience, o.Log = time.Minute, LogOff
	if p.edit != nil {
		p.edit(&o)
	}
	p.h = &Health{o: o, log: slog.New(slog.NewJSONHandler(&p.log, nil)), started: healthStart, errors: map[nichw.Sort]uint64{}, events: map[eventKey]uint64{}, errorLogged: map[string]bool{},
		node: func() (string, map[string]string) { return "h1", nil }}
	if err := p.h.setUpMonitor(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *patient) do(steps ...string) {
	p.t.Helper()
	p.current = false
	for _, s := range steps {
		if err := p.tree.RunStep(s); err != nil {
			p.t.Fatal(err)
		}
	}
}

// run polls for a time, at the interval that the rules ask for, and returns the events.
func (p *patient) run(d time.Duration) []string {
	p.t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		parts := nichw.ReadStates
		if !p.current {
			parts, p.current = nichw.ReadAll, true
		}
		p.h.pollOnce(p.now, parts)
		p.now = p.now.Add(p.h.monitor.NextPoll())
	}
	return p.events()
}

// events returns the events logged since the last call, such as "ERROR state_down NICPort:mlx5_0_port1 REPLACE_VM".
func (p *patient) events() (out []string) {
	p.t.Helper()
	all := p.log.String()
	text := []byte(all[p.read:])
	p.read = len(all)
	for line := range bytes.Lines(text) {
		var e struct {
			Level, Event, ErrorCode, EntitiesImpacted, RecommendedAction, NodeName, Agent, ComponentClass string
			IsFatal, IsHealthy                                                                            bool
		}
		if err := json.Unmarshal(line, &e); err != nil {
			p.t.Fatalf("%v in %s", err, line)
		}
		if e.Event != "nic_health" {
			continue
		}
		if e.NodeName != "h1" || e.Agent != "graylink-node" || e.ComponentClass != "NIC" || e.IsFatal != (e.Level == "ERROR") || e.IsHealthy != (e.Level == "INFO") {
			p.t.Errorf("an event with wrong fields: %s", line)
		}
		out = append(out, fmt.Sprintf("%s %s %s %s", map[string]string{"ERROR": "fatal", "WARN": "warning", "INFO": "healthy"}[e.Level], e.ErrorCode, e.EntitiesImpacted, e.RecommendedAction))
	}
	return out
}

// exposition returns the text of all series but those of time.
func (p *patient) exposition() string {
	p.t.Helper()
	families, err := p.h.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	var b bytes.Buffer
	seen := map[string]bool{}
	for _, f := range families {
		if f.GetName() == "graylink_node_nic_poll_seconds" {
			continue
		}
		for _, m := range f.Metric {
			id := f.GetName() + fmt.Sprint(m.Label)
			if seen[id] {
				p.t.Errorf("twice: %s", id)
			}
			seen[id] = true
			if !slices.IsSortedFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) }) {
				p.t.Errorf("labels out of order: %s", id)
			}
		}
		slices.SortFunc(f.Metric, func(a, b *dto.Metric) int { return strings.Compare(fmt.Sprint(a.Label), fmt.Sprint(b.Label)) })
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			p.t.Fatal(err)
		}
	}
	problems, err := testutil.GatherAndLint(prometheus.Gatherers{p.h})
	if err != nil {
		p.t.Error(err)
	}
	for _, x := range problems {
		p.t.Errorf("%s: %s", x.Metric, x.Text)
	}
	return b.String()
}

func (p *patient) has(series ...string) {
	p.t.Helper()
	text := p.exposition()
	for _, s := range series {
		want, absent := strings.CutPrefix(s, "no ")
		if strings.Contains(text, want) == absent {
			i := strings.Index(text, want[:strings.IndexAny(want, "{ ")])
			p.t.Errorf("want %s; there is:\n%s", s, text[max(i, 0):min(len(text), max(i, 0)+1500)])
		}
	}
}

// TestHealthOfAnH100 compares the whole output for one tree with a golden file.
func TestHealthOfAnH100(t *testing.T) {
	p := newPatient(t, "h100", nil)
	if events := p.run(3 * time.Second); len(events) > 0 {
		t.Errorf("a healthy node: %q", events)
	}
	got := p.exposition()
	const golden = "testdata/nics-h100.metrics"
	if *updateHealth {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the exposition differs from %s (rewrite it with -update.health)", golden)
	}
}

// TestHealthOfEveryTree checks that no series appears twice, that names are valid, that no file fails, and that nothing is
// reported about a node on which nothing happens.
func TestHealthOfEveryTree(t *testing.T) {
	for i, profile := range fakesys.Profiles() {
		if profile.Name == "broken" || testing.Short() && i%3 != 0 {
			continue
		}
		t.Run(profile.Name, func(t *testing.T) {
			p := newPatient(t, profile.Name, nil)
			if events := p.run(5 * time.Second); len(events) > 0 {
				t.Errorf("events %q", events)
			}
			for i := range p.h.last.Errors {
				t.Errorf("%v", &p.h.last.Errors[i])
			}
			if text := p.exposition(); !strings.Contains(text, `fabric_nic_port_state{nic="h1/`) {
				t.Errorf("no states:\n%s", text)
			}
		})
	}
}

// TestABrokenTree checks that what can be read is published, and that the rest is counted by reason.
func TestABrokenTree(t *testing.T) {
	p := newPatient(t, "broken", func(o *HealthOptions) { o.Patience = 300 * time.Millisecond })
	p.run(2 * time.Second)
	text := p.exposition()
	for _, why := range []string{"unreadable", "malformed", "hanging"} {
		if strings.Contains(text, fmt.Sprintf("graylink_node_nic_read_errors_total{why=%q} 0\n", why)) {
			t.Errorf("nothing is counted as %s", why)
		}
	}
	for _, i := range []int{0, 1, 2, 3, 5, 6, 7} { // mlx5_4 has no ports
		if !strings.Contains(text, fmt.Sprintf(`fabric_nic_port_state{nic="h1/mlx5_%d",state="ACTIVE"} 1`, i)) {
			t.Errorf("mlx5_%d is not published as ACTIVE", i)
		}
	}
	if !strings.Contains(text, "graylink_node_nic_hanging_reads 1\n") {
		t.Error("one read hangs")
	}
}

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
			p := newPatient(t, s.profile, func(o *HealthOptions) {
				if logged {
					// With a file for the position, the first start begins at the oldest line.
					o.Log, o.PositionFile = LogKmsg, filepath.Join(t.TempDir(), "position.json")
				}
			})
			if events := p.run(3 * time.Second); len(events) > 0 {
				t.Fatalf("before: %q", events)
			}
			if logged {
				ctx, cancel := context.WithCancel(t.Context())
				var following sync.WaitGroup
				following.Go(func() { p.h.kernel.followLog(ctx) })
				defer following.Wait()
				defer cancel()
			}
			var got []string
			for _, step := range s.steps {
				if step == "wait" {
					got = append(got, p.run(2*time.Second)...)
				} else {
					p.do(step)
				}
			}
			got = append(got, p.run(s.wait)...)
			for end := time.Now().Add(time.Minute); logged && len(got) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				got = append(got, p.events()...)
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

// TestARestartIsNoNews checks that reported findings are in the state file, and are not reported again.
func TestARestartIsNoNews(t *testing.T) {
	state := filepath.Join(t.TempDir(), "nics.json")
	p := newPatient(t, "h100", func(o *HealthOptions) { o.StateFile = state })
	p.run(2 * time.Second)
	p.do("set mlx5_0/1 state 1: DOWN", "add mlx5_1/1 counters/link_downed 1")
	if got := p.run(2 * time.Second); len(got) != 2 {
		t.Errorf("%q", got)
	}
	p.h.saveState(false)
	p.restart()
	if got := p.run(2 * time.Second); len(got) != 0 {
		t.Errorf("reported again: %q", got)
	}
	p.has(`fabric_nic_finding{code="link_downed",nic="h1/mlx5_1",severity="fatal"} 1`, `fabric_nic_finding{code="state_down",nic="h1/mlx5_0",severity="fatal"} 1`)
	p.h.saveState(true)
	p.do("set mlx5_0/1 state 4: ACTIVE", "set mlx5_2/1 state 1: DOWN")
	p.restart()
	if got, want := p.run(2*time.Second), []string{"healthy state_down " + port0 + "NONE", "fatal state_down NICPort:mlx5_2_port1 REPLACE_VM"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if err := os.WriteFile(state, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.restart() // it logs this and continues
	if got := p.run(2 * time.Second); len(got) != 0 {
		t.Errorf("first sight: %q", got)
	}
	if !strings.Contains(p.log.String(), "cannot read the state file of NIC health") {
		t.Error("a state file that cannot be read is not logged")
	}
}

// TestHealthAPI checks that findings are listed, and that a reset by an authorized client ends latched ones.
func TestHealthAPI(t *testing.T) {
	p := newPatient(t, "h100", nil)
	p.run(6 * time.Second)
	p.do("add mlx5_0/1 counters/link_downed 1", "add mlx5_1/1 counters/link_downed 1")
	p.run(6 * time.Second)
	mux, policy := http.NewServeMux(), &webaccess.Policy{}
	p.h.addRoutes(mux, policy)
	found := func() (out healthJSON) {
		t.Helper()
		code, body := do(mux, request("GET", "/api/v1/nic-health", ""))
		if err := json.Unmarshal([]byte(body), &out); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s: %v", code, body, err)
		}
		return out
	}
	f := found()
	if len(f.Findings) != 2 || f.Node != "h1" || f.Polled == nil || f.Findings[0].NIC != "h1/mlx5_0" || f.Findings[0].Code != "link_downed" || !f.Findings[0].Latched || !f.Findings[0].Fatal || len(f.Unread) != 0 {
		t.Fatalf("%+v", f)
	}
	if code, _ := do(mux, request("POST", "/api/v1/nic-health/reset", "")); code != http.StatusForbidden || len(found().Findings) != 2 {
		t.Errorf("a reset without authorization: %d", code)
	}
	policy.AdminAPI = true
	for body, want := range map[string]int{`{"entity":"mlx5_7_port1"}`: http.StatusNotFound, `{"entity":7}`: http.StatusBadRequest, `{"nic":"mlx5_0_port1"}`: http.StatusBadRequest} {
		if code, answer := do(mux, request("POST", "/api/v1/nic-health/reset", body)); code != want || len(found().Findings) != 2 {
			t.Errorf("%s: %d %s", body, code, answer)
		}
	}
	p.events()
	if code, body := do(mux, request("POST", "/api/v1/nic-health/reset", `{"entity":"mlx5_0_port1"}`)); code != http.StatusOK || strings.TrimSpace(body) != `{"reset":1}` {
		t.Errorf("reset of one: %d %s", code, body)
	}
	if got, want := p.events(), []string{"healthy link_downed NICPort:mlx5_0_port1 NONE"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if f := found(); len(f.Findings) != 1 || f.Findings[0].NIC != "h1/mlx5_1" {
		t.Errorf("after it: %+v", f.Findings)
	}
	if code, body := do(mux, request("POST", "/api/v1/nic-health/reset", "")); code != http.StatusOK || strings.TrimSpace(body) != `{"reset":1}` || len(found().Findings) != 0 {
		t.Errorf("reset of all: %d %s", code, body)
	}
}

// TestWhatIsProbedIsLookedAfter checks an interface without hardware that a coordinator has probed after the agent started.
// It is watched from that moment on, and not from the next minute.
func TestWhatIsProbedIsLookedAfter(t *testing.T) {
	p := newPatient(t, "h100", nil)
	nics := map[string]string{}
	p.h.node = func() (string, map[string]string) { return "h1", nics }
	p.run(2 * time.Second)
	p.has(`no fabric_nic_port_carrier_changes_total{nic="h1/bond0"}`)
	nics, p.current = map[string]string{"bond0": "h1/bond0"}, false // counters are read again
	p.run(2 * time.Second)
	p.has(`fabric_nic_port_carrier_changes_total{nic="h1/bond0"}`)
}

func TestNamesOfNICs(t *testing.T) {
	p := newPatient(t, "mlx4", nil)
	p.run(time.Second)
	p.has(`fabric_nic_port_info{board=`, `nic="h1/mlx4_0.2"`, `nic="h1/mlx4_0"`)
	p = newPatient(t, "h100", nil)
	p.h.node = func() (string, map[string]string) {
		return "h1", map[string]string{"bond0": "h1/bond0", "mlx5_3": "h1/rail3"}
	}
	p.run(time.Second)
	p.has(`fabric_nic_port_state{nic="h1/bond0",state="ACTIVE"} 1`, `fabric_nic_port_state{nic="h1/rail3",state="ACTIVE"} 1`, `no nic="h1/mlx5_3"`)
}

func TestHealthFiles(t *testing.T) {
	o := DefaultHealth()
	err := parseHealth("nics.yml", []byte("management: ['^eno']\nmisses: 5\ncounters_every: 10s\ngpu: NVIDIA H100 80GB HBM3\nproducts: [{match: h100, ports: 8, rate_bits_per_second: 400000000000}]\n"+
		"thresholds: [{counter: symbol_error, sort: rate, above: 20, window: 10s}, {counter: np_cnp_sent, sort: rate, above: 1000, window: 1m}]\nwithout: [roce_slow_restart]\n"), &o)
	if err != nil {
		t.Fatal(err)
	}
	if o.Rules.Misses != 5 || o.Counters != 10*time.Second || len(o.Rules.Management) != 1 || o.Rules.GPU == "" || o.Rules.Products[0].Ports != 8 {
		t.Errorf("%+v", o)
	}
	codes := map[string]float64{}
	for _, x := range o.Rules.Thresholds {
		codes[x.Code] = x.Above
	}
	if codes["symbol_error"] != 20 || codes["np_cnp_sent"] != 1000 || codes["symbol_error_hourly"] == 0 || len(codes) != len(nichealth.DefaultThresholds()) {
		t.Errorf("%v", codes)
	}
	if _, ok := codes["roce_slow_restart"]; ok {
		t.Error("a rule that was left out is there")
	}
	for in, want := range map[string]string{
		"managment: [x]":            "nics.yml: yaml: unmarshal errors:\n  line 1: field managment not found",
		"management: ['(']":         "nics.yml: management[0]: a regular expression is expected",
		"every: 1ms":                "nics.yml: every: 10ms or more is expected, not 1ms",
		"misses: 0":                 "nics.yml: misses: 1 or more is expected",
		"products: [{match: h100}]": "nics.yml: products[0]: match, ports and rate_bits_per_second",
		"without: [nothing]":        `nics.yml: without[0]: the code of a rule is expected, not "nothing"`,
		"every: soon":               "line 1: cannot unmarshal",
	} {
		o := DefaultHealth()
		if err := parseHealth("nics.yml", []byte(in), &o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

func TestGPUProduct(t *testing.T) {
	root := t.TempDir()
	if got := GPUProduct(root); got != "" {
		t.Errorf("no driver: %q", got)
	}
	dir := filepath.Join(root, "driver/nvidia/gpus/0000:18:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "information"), []byte("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := GPUProduct(root); got != "NVIDIA H100 80GB HBM3" {
		t.Errorf("%q", got)
	}
}

// TestAnotherNetworksInterfaces checks a /sys that shows the interfaces of another network namespace.
func TestAnotherNetworksInterfaces(t *testing.T) {
	if p := newPatient(t, "h100", nil); sameNetwork(filepath.Join(p.tree.Root(), "sys")) {
		t.Error("a tree of other interfaces is taken for ours")
	}
	if sameNetwork(t.TempDir()) {
		t.Error("nothing is taken for ours")
	}
}
