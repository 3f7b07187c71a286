package klog

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// node resolves as a node with two ConnectX does, of which one is a bond of two functions; it also has a GPU, an NVMe
// and the ports of a switch, which are no NICs.
func node(pci, netdev, rdma string) (string, bool) {
	for _, d := range []struct{ pci, netdev, rdma string }{
		{"0000:17:00.0", "eth2", "mlx5_0"},
		{"0000:9b:00.0", "ibs1", "mlx5_1"},
		{"0000:9b:00.1", "ens5f1np1", "mlx5_bond_0"},
		{"10000:01:00.0", "eth9", "mlx5_9"},
		{"0000:c1:00.0", "eno1", "bnxt_re0"},
		{"0000:17:00.2", "eth2v0", "mlx5_4"},
	} {
		if pci == d.pci || netdev != "" && netdev == d.netdev || rdma != "" && rdma == d.rdma {
			return d.rdma, true
		}
	}
	return "", false
}

func TestPatterns(t *testing.T) {
	pci := func(address string) map[string]string {
		return map[string]string{"SUBSYSTEM": "pci", "DEVICE": "+pci:" + address}
	}
	for _, tc := range []struct {
		text    string
		tags    map[string]string
		pattern string // empty: no match
		device  string
		unknown bool
	}{
		// cmd_exec_timeout
		{text: "mlx5_core 0000:17:00.0: wait_func:967:(pid 4242): CREATE_MKEY(0x200) timeout. Will cause a leak of a command resource", pattern: "cmd_exec_timeout", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.0: wait_func_handle_exec_timeout:1121:(pid 3202): cmd[3]: DESTROY_EQ(0x302) timeout. Will cause a leak of a command resource", pattern: "cmd_exec_timeout", device: "mlx5_0"},
		{text: "mlx5_core 0000:9b:00.0: cb_timeout_handler:883:(pid 1871): cmd[0]: MODIFY_RQ(0x909) Async, timeout. Will cause a leak of a command resource", pattern: "cmd_exec_timeout", device: "mlx5_1"},
		{text: "mlx5_core 0000:9b:00.0: ACCESS_REG(0x805) timeout. Will cause a leak of a command resource", pattern: "cmd_exec_timeout", device: "mlx5_1"},
		{text: "mlx5_core 0000:9b:00.0: 0000:9b:00.0:wait_func:655:(pid 1020): QUERY_VPORT_STATE(0x750) timeout. Will cause a leak of a command resource", pattern: "cmd_exec_timeout", device: "mlx5_1"},
		{text: "mlx5_core 0000:b3:00.0: wait_func:1174:(pid 9): QUERY_PAGES(0x107) timeout. Will cause a leak of a command resource", pattern: "cmd_exec_timeout", device: "0000:b3:00.0", unknown: true},
		{text: "mlx5_core mlx5_core.sf.4: wait_func:1174:(pid 9): QUERY_PAGES(0x107) timeout. Will cause a leak of a command resource", tags: map[string]string{"DEVICE": "+auxiliary:mlx5_core.sf.4"}, pattern: "cmd_exec_timeout", device: "mlx5_core.sf.4", unknown: true},
		{text: "mlx5_core 0000:17:00.0: wait_func_handle_exec_timeout:1106:(pid 3202): cmd[3]: DESTROY_EQ(0x302) recovered after timeout"},
		{text: "mlx5_core 0000:17:00.0: wait_func_handle_exec_timeout:1114:(pid 3202): cmd[3]: DESTROY_EQ(0x302) No done completion"},
		{text: "mlx5_core 0000:17:00.0: wait_func:1132:(pid 3202): DESTROY_EQ(0x302) canceled on out of queue timeout."},
		{text: "nvme nvme0: I/O 12 QID 3 timeout, aborting"},
		{text: "mlxfw: command timeout. Will cause a leak of a command resource"},

		// health_compromised
		{text: "mlx5_core 0000:17:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count", pattern: "health_compromised", device: "mlx5_0"},
		{text: "mlx5_core 0000:9b:00.0: device's health compromised - reached miss count", pattern: "health_compromised", device: "mlx5_1"},
		{text: "mlx5_core.sf mlx5_core.sf.2: poll_health:825:(pid 0): device's health compromised - reached miss count", pattern: "health_compromised", device: "", unknown: true},
		{text: "mlx5_core 0000:17:00.0: mlx5_health_try_recover:335:(pid 55): health recovery succeeded"},
		{text: "mlx5_core 0000:17:00.0: mlx5_health_try_recover:327:(pid 55): handling bad device here"},
		{text: "hpsa 0000:05:00.0: device's health compromised - reached miss count"},

		// unrecoverable_hw_error
		{text: "mlx5_core 0000:17:00.0: print_health_info:500:(pid 0): synd 0x8: unrecoverable hardware error", pattern: "unrecoverable_hw_error", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.0: print_health_info:433:(pid 0): Health issue observed, unrecoverable hardware error, severity(1) ALERT:", pattern: "unrecoverable_hw_error", device: "mlx5_0"},
		{text: "mlx5_core: INFO: synd 0x8: unrecoverable hardware error", tags: pci("0000:9b:00.0"), pattern: "unrecoverable_hw_error", device: "mlx5_1"},
		{text: "mlx5_core 0000:17:00.0: print_health_info:500:(pid 0): synd 0x1: firmware internal error"},
		{text: "mlx5_core 0000:17:00.0: print_health_info:433:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:"},
		{text: "qla2xxx [0000:03:00.0]-00fb:1: Unrecoverable Hardware Error: adapter marked OFFLINE!"},

		// pcie_fatal
		{text: "pcieport 0000:16:00.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0", tags: pci("0000:16:00.0"), pattern: "pcie_fatal", device: "mlx5_0"},
		{text: "pcieport 0000:16:00.0: AER: Multiple Uncorrected (Fatal) error received: 0000:17:00.0", pattern: "pcie_fatal", device: "mlx5_0"},
		{text: "pcieport 0000:16:00.0: AER: Uncorrectable (Fatal) error message received from 0000:17:00.0", pattern: "pcie_fatal", device: "mlx5_0"},
		{text: "pcieport 0000:9a:01.0: AER: Multiple Uncorrectable (Fatal) error message received from 0000:9b:00.1 (no details found", pattern: "pcie_fatal", device: "mlx5_bond_0"},
		{text: "pcieport 0000:16:00.0: AER: Uncorrected (Fatal) error received: id=1700", tags: pci("0000:16:00.0"), pattern: "pcie_fatal", device: "mlx5_0"},
		{text: "pcieport 0000:9a:01.0: AER: Multiple Uncorrected (Fatal) error received: id=9b01", pattern: "pcie_fatal", device: "mlx5_bond_0"},
		{text: "pcieport 10000:00:00.0: AER: Uncorrected (Fatal) error received: id=0100", pattern: "pcie_fatal", device: "mlx5_9"},
		{text: "mlx5_core 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)", pattern: "pcie_fatal", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)", pattern: "pcie_fatal", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, id=1700(Receiver ID)", pattern: "pcie_fatal", device: "mlx5_0"},
		{text: "bnxt_en 0000:c1:00.0: AER: PCIe Bus Error: severity=Fatal, type=Transaction Layer", pattern: "pcie_fatal", device: "bnxt_re0"},
		{text: "pci 0000:9b:00.0: AER: CXL Bus Error: severity=Uncorrectable (Fatal), type=Physical Layer, (Receiver ID)", pattern: "pcie_fatal", device: "mlx5_1"},
		{text: "pcieport 0000:16:00.0: DPC: containment event, status:0x1f05, ERR_FATAL received from 0000:17:00.0", tags: pci("0000:16:00.0"), pattern: "pcie_fatal", device: "mlx5_0"},
		{text: "pcieport 0000:16:00.0: DPC: containment event, status:0x1f03, ERR_NONFATAL received from 0000:17:00.0"},
		{text: "pcieport 0000:16:00.0: DPC: containment event, status:0x1f01: unmasked uncorrectable error detected", tags: pci("0000:17:00.0")},
		{text: "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0"},
		{text: "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)"},
		{text: "nvme 0000:2a:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link Layer, (Receiver ID)", tags: pci("0000:2a:00.0")},
		{text: "mlx5_core 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)"},
		{text: "mlx5_core 0000:17:00.0: AER: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)"},
		{text: "mlx5_core 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"},
		{text: "pcieport 0000:16:00.0: AER: Corrected error received: 0000:17:00.0"},
		{text: "pcieport 0000:16:00.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:17:00.0"},
		{text: "pcieport 0000:16:00.0: AER: found no error details for 0000:17:00.0"},

		// netdev_watchdog
		{text: "NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 5 timed out", pattern: "netdev_watchdog", device: "mlx5_0"},
		{text: "NETDEV WATCHDOG: ens5f1np1 (mlx5_core): transmit queue 31 timed out 5432 ms", pattern: "netdev_watchdog", device: "mlx5_bond_0"},
		{text: "NETDEV WATCHDOG: eno1 (bnxt_en): transmit queue 0 timed out", pattern: "netdev_watchdog", device: "bnxt_re0"},
		{text: "mlx5_core 0000:17:00.0 eth2: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 5120 ms", pattern: "netdev_watchdog", device: "mlx5_0"},
		{text: "mlx5_core 0000:9b:00.0 ib7 (unregistering): NETDEV WATCHDOG: CPU: 127: transmit queue 0 timed out 15234 ms", pattern: "netdev_watchdog", device: "mlx5_1"},
		{text: "mlx5_core mlx5_core.sf.4 eth9: NETDEV WATCHDOG: CPU: 1: transmit queue 2 timed out 6000 ms", pattern: "netdev_watchdog", device: "mlx5_9"},
		{text: "virtio_net virtio0 ens3: NETDEV WATCHDOG: CPU: 0: transmit queue 0 timed out 5000 ms"},
		{text: "NETDEV WATCHDOG: usb0 (cdc_ether): transmit queue 0 timed out"},
		{text: "mlx5_core 0000:17:00.0 eth2: TX timeout detected"},
		{text: "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:99]"},

		// insufficient_power
		{text: "mlx5_core 0000:17:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).", pattern: "insufficient_power", device: "mlx5_0"},
		{text: "mlx5_core 0000:9b:00.0: Detected insufficient power on the PCIe slot (25W).", pattern: "insufficient_power", device: "mlx5_1"},
		{text: "mlx5_core 0000:17:00.0: mlx5_pcie_event:304:(pid 330): PCIe slot advertised sufficient power (75W)."},
		{text: "mlx5_core 0000:17:00.0: mlx5_pcie_event:294:(pid 330): PCIe slot power capability was not advertised."},
		{text: "hub 1-0:1.0: insufficient power on the PCIe slot"},

		// high_temperature
		{text: "mlx5_core 0000:17:00.0: temp_warn:170:(pid 0): High temperature on sensors with bit set 0 1", pattern: "high_temperature", device: "mlx5_0"},
		{text: "mlx5_core 0000:9b:00.1: temp_warn:191:(pid 0): High temperature on sensors with bit set 0 0x8000000000000001", pattern: "high_temperature", device: "mlx5_bond_0"},
		{text: "mlx5_core 0000:17:00.0: Port module event[error]: module 0, Cable error, High Temperature", pattern: "high_temperature", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.0: print_health_info:520:(pid 0): synd 0x10: High temperature", pattern: "high_temperature", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.0: Port module event[error]: module 0, Cable error, Power budget exceeded"},
		{text: "CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)"},
		{text: "nvme nvme1: High temperature on sensors"},

		// module_absent
		{text: "mlx5_core 0000:17:00.0: Port module event: module 0, Cable unplugged", pattern: "module_absent", device: "mlx5_0"},
		{text: "mlx5_core 0000:9b:00.1: port_module:244:(pid 0): Port module event: module 1, Cable unplugged", pattern: "module_absent", device: "mlx5_bond_0"},
		{text: "mlx5_core 0000:17:00.0 eth2: Port module event: module 12, Cable unplugged", pattern: "module_absent", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.0: Port module event: module 0, Cable plugged"},
		{text: "mlx5_core 0000:17:00.0: Port module event[error]: module 0, Cable error, Unknown status"},
		{text: "usb 1-3: Cable unplugged"},

		// access_reg_failed
		{text: "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x305684), err(-22)", pattern: "access_reg_failed", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.2: mlx5_cmd_check:756:(pid 12450): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3), syndrome (0x1e5585)", pattern: "access_reg_failed", device: "mlx5_4"},
		{text: "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:838:(pid 77): ACCESS_REG(0x805) op_mod(0x0) failed, status bad resource(0x5), syndrome (0x5d4c1), err(-22)", pattern: "access_reg_failed", device: "mlx5_0"},
		{text: "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:838:(pid 77): CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x1fe2), err(-22)"},
		{text: "node_exporter[812]: ACCESS_REG(0x805) op_mod(0x1) failed"},

		// Nothing of ours.
		{text: "mlx5_core 0000:17:00.0: firmware version: 28.39.1002"},
		{text: "mlx5_core 0000:17:00.0 eth2: Link down"},
		{text: "systemd[1]: mlx5_core 0000:17:00.0: device's health compromised - reached miss count"},
		{text: ""},
	} {
		m, err := NewMatcher(MatchConfig{}, node, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := m.Match(Record{Text: tc.text, Tags: tc.tags})
		if got.Pattern != tc.pattern || ok != (tc.pattern != "") {
			t.Errorf("%s\n\tis %q, want %q", tc.text, got.Pattern, tc.pattern)
			continue
		}
		if ok && (got.Device != tc.device || got.Known == tc.unknown) {
			t.Errorf("%s\n\tis about %q (known: %v), want %q (%v)", tc.text, got.Device, got.Known, tc.device, !tc.unknown)
		}
	}
}

func TestSeverityOfTable(t *testing.T) {
	want := map[string]Severity{
		"cmd_exec_timeout": Fatal, "health_compromised": Fatal, "unrecoverable_hw_error": Fatal, "pcie_fatal": Fatal, "netdev_watchdog": Fatal,
		"insufficient_power": Warning, "high_temperature": Warning, "module_absent": Warning, "access_reg_failed": Warning,
	}
	got := map[string]Severity{}
	for _, p := range BuiltinPatterns() {
		got[p.ID] = p.Severity
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

const healthLine = "mlx5_core 0000:17:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count"

func TestMatchRule1OnlyTheKernel(t *testing.T) {
	m, _ := NewMatcher(MatchConfig{}, node, nil)
	// A writer to /dev/kmsg gets LOG_USER.
	if got, ok := m.Match(Record{Text: healthLine, Facility: 1}); ok {
		t.Errorf("a user's line is %+v", got)
	}
	if _, ok := m.Match(Record{Text: healthLine}); !ok {
		t.Error("the kernel's line does not match")
	}
}

func TestMatchRule3And4Unresolved(t *testing.T) {
	m, _ := NewMatcher(MatchConfig{}, node, nil)
	m.Match(Record{Text: "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"})
	m.Match(Record{Text: strings.Replace(healthLine, ":17:", ":b7:", 1)})
	m.Match(Record{Text: healthLine})
	c := m.Counts()
	if c.Unresolved["pcie_fatal"] != 1 || c.Matches["pcie_fatal"] != 0 {
		t.Errorf("a GPU's error: unresolved %d, matches %d, want 1 and 0", c.Unresolved["pcie_fatal"], c.Matches["pcie_fatal"])
	}
	if c.Unresolved["health_compromised"] != 1 || c.Matches["health_compromised"] != 2 {
		t.Errorf("two NICs, one of them gone: unresolved %d, matches %d, want 1 and 2", c.Unresolved["health_compromised"], c.Matches["health_compromised"])
	}
	if v, ok := c.Suppressed["netdev_watchdog"]; !ok || v != 0 {
		t.Error("a pattern that did not occur has no entry")
	}
}

func TestMatchRule5RateLimit(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	m, err := NewMatcher(MatchConfig{PerMinute: 3}, node, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	offer := func(n int, text string) (delivered int) {
		for range n {
			if _, ok := m.Match(Record{Text: text}); ok {
				delivered++
			}
		}
		return delivered
	}
	if n := offer(1, healthLine); n != 1 {
		t.Fatalf("%d of 1 delivered", n)
	}
	now = now.Add(40 * time.Second)
	if n := offer(5, healthLine); n != 2 {
		t.Errorf("%d of 5 delivered after one, want 2", n)
	}
	if n := offer(5, strings.Replace(healthLine, "17:", "9b:", 1)); n != 3 {
		t.Errorf("another device: %d of 5 delivered, want 3", n)
	}
	if n := offer(5, "mlx5_core 0000:17:00.0: Port module event: module 0, Cable unplugged"); n != 3 {
		t.Errorf("another pattern: %d of 5 delivered, want 3", n)
	}
	now = now.Add(20 * time.Second)
	if n := offer(5, healthLine); n != 1 {
		t.Errorf("when the first is a minute old: %d of 5 delivered, want 1", n)
	}
	now = now.Add(time.Minute)
	if n := offer(5, healthLine); n != 3 {
		t.Errorf("a minute later: %d of 5 delivered, want 3", n)
	}
	c := m.Counts()
	if c.Matches["health_compromised"] != 21 || c.Suppressed["health_compromised"] != 21-10 {
		t.Errorf("matches %d, suppressed %d, want 21 and 11", c.Matches["health_compromised"], c.Suppressed["health_compromised"])
	}
	if len(m.delivered) != 1 {
		t.Errorf("%d keys are kept after a minute, want 1", len(m.delivered))
	}
}

func TestRateLimitDefault(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	m, _ := NewMatcher(MatchConfig{}, node, func() time.Time { return now })
	delivered := 0
	for range 25 {
		if _, ok := m.Match(Record{Text: healthLine}); ok {
			delivered++
		}
	}
	if delivered != 10 {
		t.Errorf("%d of 25 delivered, want 10", delivered)
	}
}

func TestMatchConfig(t *testing.T) {
	m, err := NewMatcher(MatchConfig{
		Severity: map[string]Severity{"netdev_watchdog": Warning, "access_reg_failed": Off},
		Extra: []ExtraPattern{
			{ID: "cqe_dump", Regexp: `^infiniband (?P<rdma>\w+): dump_cqe`, Severity: Warning, OnlyKnown: true},
			{ID: "mce", Regexp: `Machine check events logged`, Severity: Warning},
		},
	}, node, nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 5 timed out":                      "netdev_watchdog warning mlx5_0",
		"mlx5_core 0000:17:00.0: ACCESS_REG(0x805) op_mod(0x1) failed, status bad size(0x6)": "",
		"infiniband mlx5_1: dump_cqe:275:(pid 0): dump error cqe":                            "cqe_dump warning mlx5_1",
		"infiniband rxe0: dump_cqe:275:(pid 0): dump error cqe":                              "",
		"mce: [Hardware Error]: Machine check events logged":                                 "mce warning ",
	} {
		var got string
		if match, ok := m.Match(Record{Text: text}); ok {
			got = fmt.Sprintf("%s %s %s", match.Pattern, match.Severity, match.Device)
		}
		if got != want {
			t.Errorf("%s\n\tis %q, want %q", text, got, want)
		}
	}
	if _, ok := m.Counts().Matches["access_reg_failed"]; ok {
		t.Error("a pattern that is off is counted")
	}
	if builtin[4].Severity != Fatal {
		t.Error("the configuration has changed the table itself")
	}
}

func TestMatchConfigBad(t *testing.T) {
	extra := func(e ExtraPattern) MatchConfig { return MatchConfig{Extra: []ExtraPattern{e}} }
	for _, tc := range []struct {
		cfg  MatchConfig
		want string
	}{
		{MatchConfig{PerMinute: -1}, "per_minute: -1: must not be negative"},
		{MatchConfig{Severity: map[string]Severity{"cmd_timeout": Off}}, "severity[cmd_timeout]: no such pattern"},
		{MatchConfig{Severity: map[string]Severity{"pcie_fatal": "no"}}, `severity[pcie_fatal]: "no": must be fatal, warning or off`},
		{extra(ExtraPattern{ID: "A", Regexp: "x", Severity: Fatal}), `extra[0].id: "A": must be of a-z, 0-9 and _, and begin with a letter`},
		{extra(ExtraPattern{ID: "pcie_fatal", Regexp: "x", Severity: Fatal}), `extra[0].id: "pcie_fatal": is there already`},
		{extra(ExtraPattern{ID: "a", Severity: Fatal}), "extra[0].regexp: must be given"},
		{extra(ExtraPattern{ID: "a", Regexp: "(", Severity: Fatal}), "extra[0].regexp: error parsing regexp: missing closing ): `(`"},
		{extra(ExtraPattern{ID: "a", Regexp: "(?P<nic>x)", Severity: Fatal}), `extra[0].regexp: group "nic": must be pci, netdev or rdma`},
		{extra(ExtraPattern{ID: "a", Regexp: "x*", Severity: Fatal}), "extra[0].regexp: matches every line"},
		{extra(ExtraPattern{ID: "a", Regexp: "x"}), `extra[0].severity: "": must be fatal, warning or off`},
	} {
		if err := tc.cfg.Validate(); err == nil || err.Error() != tc.want {
			t.Errorf("got %v, want %s", err, tc.want)
		}
	}
	if err := (MatchConfig{}).Validate(); err != nil {
		t.Error(err)
	}
}
