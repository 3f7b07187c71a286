package klog

import (
	"fmt"
	"regexp"
	"slices"
)

// Severity states what a pattern means for the running workload.
type Severity string

// A fatal line: the workload has failed or will. Off: the pattern is not looked for.
const (
	Fatal   Severity = "fatal"
	Warning Severity = "warning"
	Off     Severity = "off"
)

// Pattern is one kind of line.
type Pattern struct {
	ID       string
	Severity Severity
	// Generic is set if drivers of all kinds use these words. The pattern then counts for known NICs only (rule 3).
	Generic bool
	// Expressions are alternatives. Their groups are named: pci, netdev and rdma are what the line is about; port and
	// id are a reporting PCIe port and the requester id of 16 bits that it reports, in place of pci.
	Expressions []*regexp.Regexp
}

const (
	// dev_name() of a PCI device, pci_setup_device in drivers/pci/probe.c. Domains may have more than four digits (VMD).
	rePCI = `[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]`
	// netdev_name() and what netdev_reg_state() adds, __netdev_printk in net/core/dev.c.
	reNetdev = `(?P<netdev>[^\s:]+)(?: \([^)]*\))?`
	// dev_printk of mlx5_core (mlx5_core.h), for a PCI function or a subfunction on the auxiliary bus, and
	// netdev_printk of its network devices.
	reMlx5 = `^mlx5_core(?:\.\w+)?(?: (?:(?P<pci>` + rePCI + `)|[^\s:]+)(?: ` + reNetdev + `)?)?: (?:.*[ :])?`
	// dev_printk of any driver for a PCI device; "pci" where there is none.
	reAnyPCI = `^[\w.-]+ (?P<pci>` + rePCI + `)(?: ` + reNetdev + `)?: `
	// aer_error_severity_string in drivers/pci/pcie/aer.c: "Uncorrected" in older kernels, "Uncorrectable" in newer.
	reAERFatal = `(?:Uncorrect(?:ed|able) \(Fatal\)|Fatal\b)`
)

// builtin is the table of the specification, in the order in which it is tried. Paths are of the
// kernel's source, mlx5 is drivers/net/ethernet/mellanox/mlx5/core; older and newer are the wordings of its versions.
var builtin = []Pattern{
	{
		// mlx5/cmd.c: wait_func, cb_timeout_handler ("Async, timeout." in newer kernels). What recovered after a timeout, or
		// was cancelled, leaks nothing and is no failure.
		ID: "cmd_exec_timeout", Severity: Fatal,
		Expressions: compileAll(reMlx5 + `timeout\. Will cause a leak of a command resource`),
	},
	{
		// mlx5/health.c: poll_health. The firmware's heartbeat has stopped.
		ID: "health_compromised", Severity: Fatal,
		Expressions: compileAll(reMlx5 + `device's health compromised - reached miss count`),
	},
	{
		// mlx5/health.c: hsynd_str by print_health_info, with the syndrome's number and in newer kernels also in one
		// line with the severity.
		ID: "unrecoverable_hw_error", Severity: Fatal,
		Expressions: compileAll(reMlx5 + `(?:synd 0x[0-9a-f]+: |Health issue observed, )unrecoverable hardware error`),
	},
	{
		ID: "pcie_fatal", Severity: Fatal, Generic: true,
		Expressions: compileAll(
			// drivers/pci/pcie/aer.c: aer_print_error, about the device itself; "CXL" in place of PCIe for some devices in the newest.
			reAnyPCI+`(?:AER: )?(?:PCIe|CXL) Bus Error: severity=`+reAERFatal,
			// aer.c: aer_print_port_info, aer_print_source: the port's line about who sent it the message. "error
			// received: id=1700" in old kernels, "error received: 0000:17:00.0" then, and now "error message received
			// from 0000:17:00.0".
			`^\w+ (?P<port>`+rePCI+`): (?:AER: )?(?:Multiple )?`+reAERFatal+` error (?:message )?received(?::| from) (?:(?P<pci>`+rePCI+`)|id=(?P<id>[0-9a-f]{4})\b)`,
			// drivers/pci/pcie/dpc.c: dpc_process_error, in the newest. Before, the port did not say who.
			`^\w+ (?P<port>`+rePCI+`): DPC: containment event, status:0x[0-9a-f]+[,:] ERR_FATAL received from (?P<pci>`+rePCI+`)`,
		),
	},
	{
		ID: "netdev_watchdog", Severity: Fatal, Generic: true,
		Expressions: compileAll(
			// net/sched/sch_generic.c: dev_watchdog, in older kernels once per boot (WARN_ONCE); then with " ms".
			`^NETDEV WATCHDOG: (?P<netdev>\S+) \([^)]*\): transmit queue \d+ timed out`,
			// The same in newer kernels, each time (netdev_crit).
			`^(?:[\w.-]+ (?:(?P<pci>`+rePCI+`)|[^\s:]+) )?`+reNetdev+`: NETDEV WATCHDOG: CPU: \d+: transmit queue \d+ timed out`,
		),
	},
	{
		// mlx5/events.c: mlx5_pcie_event.
		ID: "insufficient_power", Severity: Warning,
		Expressions: compileAll(reMlx5 + `Detected insufficient power on the PCIe slot`),
	},
	{
		ID: "high_temperature", Severity: Warning,
		Expressions: compileAll(
			// mlx5/events.c: temp_warn.
			reMlx5+`High temperature on sensors`,
			// mlx5/events.c: mlx5_pme_error by port_module: the module in the cage.
			reMlx5+`Port module event\[error\]: module \d+, Cable error, High Temperature`,
			// mlx5/health.c: hsynd_str.
			reMlx5+`(?:synd 0x[0-9a-f]+: |Health issue observed, )High temperature`,
		),
	},
	{
		// mlx5/events.c: mlx5_pme_status by port_module.
		ID: "module_absent", Severity: Warning,
		Expressions: compileAll(reMlx5 + `Port module event: module \d+, Cable unplugged`),
	},
	{
		// mlx5/cmd.c: mlx5_cmd_check, in newer kernels mlx5_cmd_out_err. 0x805 is the command's number in mlx5_ifc.h.
		ID: "access_reg_failed", Severity: Warning,
		Expressions: compileAll(reMlx5 + `ACCESS_REG\(0x805\) op_mod\(0x[0-9a-f]+\) failed`),
	},
}

func compileAll(expressions ...string) []*regexp.Regexp {
	out := make([]*regexp.Regexp, len(expressions))
	for i, e := range expressions {
		out[i] = regexp.MustCompile(e)
	}
	return out
}

// BuiltinPatterns returns the patterns without configuration.
func BuiltinPatterns() []Pattern { return slices.Clone(builtin) }

// DefaultPerMinute is how many matches of a pattern and a device are delivered in a minute.
const DefaultPerMinute = 10

// MatchConfig changes the table of patterns.
type MatchConfig struct {
	// Severity is another severity by pattern, or off.
	Severity map[string]Severity `yaml:"severity" schema:"enum=fatal|warning|off"`
	// Extra patterns are tried after the table's.
	Extra []ExtraPattern `yaml:"extra"`
	// PerMinute is how many matches of a pattern and a device are delivered in a minute; 0 is the default.
	PerMinute int `yaml:"per_minute" schema:"min=0"`
}

// ExtraPattern is a pattern of a site's own.
type ExtraPattern struct {
	// ID is the pattern's identifier.
	ID string `yaml:"id" schema:"required,form=identifier"`
	// Regexp is in RE2's syntax, and may have groups of the names pci, netdev and rdma. Case counts, and it may match
	// anywhere in the text unless it has anchors.
	Regexp string `yaml:"regexp" schema:"required"`
	// Severity is the severity of its events.
	Severity Severity `yaml:"severity" schema:"required,enum=fatal|warning|off"`
	// OnlyKnown ignores lines whose device is no known NIC.
	OnlyKnown bool `yaml:"only_known_nics"`
}

var reID = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// Validate returns an error that names the wrong field and the reason.
func (c MatchConfig) Validate() error {
	_, err := c.activePatterns()
	return err
}

// activePatterns returns the patterns that are not off, in order.
func (c MatchConfig) activePatterns() ([]Pattern, error) {
	if c.PerMinute < 0 {
		return nil, fmt.Errorf("per_minute: %d: must not be negative", c.PerMinute)
	}
	all := BuiltinPatterns()
	for i, e := range c.Extra {
		field := func(name, format string, args ...any) error {
			return fmt.Errorf("extra[%d].%s: %s", i, name, fmt.Sprintf(format, args...))
		}
		if !reID.MatchString(e.ID) {
			return nil, field("id", "%q: must be of a-z, 0-9 and _, and begin with a letter", e.ID)
		}
		if slices.ContainsFunc(all, func(p Pattern) bool { return p.ID == e.ID }) {
			return nil, field("id", "%q: is there already", e.ID)
		}
		if e.Regexp == "" {
			return nil, field("regexp", "must be given")
		}
		re, err := regexp.Compile(e.Regexp)
		if err != nil {
			return nil, field("regexp", "%v", err)
		}
		for _, name := range re.SubexpNames() {
			switch name {
			case "", "pci", "netdev", "rdma":
			default:
				return nil, field("regexp", "group %q: must be pci, netdev or rdma", name)
			}
		}
		if re.MatchString("") {
			return nil, field("regexp", "matches every line")
		}
		if err := e.Severity.validate(); err != nil {
			return nil, field("severity", "%v", err)
		}
		all = append(all, Pattern{ID: e.ID, Severity: e.Severity, Generic: e.OnlyKnown, Expressions: []*regexp.Regexp{re}})
	}
	for _, id := range sortedKeys(c.Severity) {
		i := slices.IndexFunc(all, func(p Pattern) bool { return p.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("severity[%s]: no such pattern", id)
		}
		if err := c.Severity[id].validate(); err != nil {
			return nil, fmt.Errorf("severity[%s]: %w", id, err)
		}
		all[i].Severity = c.Severity[id]
	}
	return slices.DeleteFunc(all, func(p Pattern) bool { return p.Severity == Off }), nil
}

func (s Severity) validate() error {
	switch s {
	case Fatal, Warning, Off:
		return nil
	}
	return fmt.Errorf("%q: must be fatal, warning or off", string(s))
}
