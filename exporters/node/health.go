package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/klog"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nichw"
)

// HealthOptions holds the options of the NIC health monitor.
type HealthOptions struct {
	// Sys and Proc are the roots of sysfs and procfs. If they are empty, the machine's own are read.
	Sys, Proc string
	// StateFile keeps the reported findings over a restart. If it is empty, nothing is kept.
	StateFile string
	// Rules are the options of nichealth. NewHealth fills in the node.
	Rules nichealth.Config
	// Counters, GIDs and Identity are the intervals at which these are read. The rules have the interval of states.
	Counters, GIDs, Identity time.Duration
	// Patience is the longest time that reading one file may take.
	Patience time.Duration
	// Log names the kernel log that is read: LogKmsg, LogJournal or LogOff. Kmsg is its file; if it is empty, the machine's
	// own is read. PositionFile keeps the position in the log over a restart. Patterns holds the patterns that lines are
	// matched against.
	Log, Kmsg, PositionFile string
	Patterns                klog.MatchConfig
	// Ethtool holds the options of what is read through ethtool.
	Ethtool EthtoolOptions
	// Sinks receive every event in addition to the log. They must not block.
	Sinks []func(nichealth.Event)
}

// The kernel logs that can be read.
const (
	LogKmsg    = "kmsg"
	LogJournal = "journal"
	LogOff     = "off"
)

// Health polls the NICs of a node, publishes their states and counters, and reports findings.
type Health struct {
	o       HealthOptions
	log     *slog.Logger
	node    func() (name string, nics map[string]string) // names of the probed NICs, by interface
	reader  *nichw.Reader
	probed  map[string]string // last result of node, for the goroutine that polls
	started time.Time

	mu       sync.Mutex
	monitor  *nichealth.Monitor
	last     *nichw.Poll
	listedAt time.Time // time of the last poll that could list the devices
	took     time.Duration
	polls    uint64
	errors   map[nichw.Sort]uint64
	events   map[eventKey]uint64
	saved    string // content of the state file, without counters
	savedAt  time.Time
	saves    [2]uint64 // writes of the state file: succeeded, failed

	saveFailing bool            // the last write of the state file failed
	errorLogged map[string]bool // devices whose errors were logged
	kernel      *kernelLog      // nil if the log is not read
	ethtool     *ethtool        // nil if ethtool is not used
}

type eventKey struct {
	code     string
	severity string
}

// NewHealth returns a Health for a node's NICs. It takes their names from n.
func NewHealth(n *Node, o HealthOptions, log *slog.Logger) (*Health, error) {
	h := &Health{o: o, log: log, started: time.Now(), errors: map[nichw.Sort]uint64{}, events: map[eventKey]uint64{}, errorLogged: map[string]bool{}}
	h.node = func() (string, map[string]string) {
		n.mu.RLock()
		defer n.mu.RUnlock()
		cfg := n.engine.Config()
		nics := map[string]string{}
		for i := range cfg.NICs {
			if c := &cfg.NICs[i]; c.Device != "" {
				nics[c.Device] = c.NIC
			}
		}
		return cfg.Node, nics
	}
	if err := h.setUpMonitor(); err != nil {
		return h, err
	}
	if o.StateFile != "" {
		n.writes.addFile(fileNICs, h.stateWrites)
	}
	if h.kernel != nil && o.PositionFile != "" {
		n.writes.addFile(fileLogPosition, h.kernel.stateWrites)
	}
	return h, nil
}

// stateWrites returns how many writes of the state file succeeded and how many failed.
func (h *Health) stateWrites() (done, failed uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.saves[0], h.saves[1]
}

func (h *Health) setUpMonitor() error {
	name, _ := h.node()
	h.o.Rules.Node = name
	if err := h.o.Ethtool.validate(); err != nil {
		return err
	}
	h.ethtool = newEthtool(h.o.Ethtool, h.o.Sys, h.log)
	if err := h.o.Rules.Validate(); err != nil {
		return err
	}
	// The kernel shows in /sys the network namespace of the process that mounted it. Interfaces of another namespace may
	// have the same names as those of this one.
	ours := h.o.Sys != "" || sameNetwork("/sys")
	if !ours {
		h.log.Warn("not watching interfaces: /sys shows those of another network namespace")
	}
	h.reader = nichw.New(nichw.Options{Sys: h.o.Sys, Proc: h.o.Proc, Patience: h.o.Patience, Interface: func(name string, device bool) bool {
		if !ours || h.o.Rules.IsExcluded(name) {
			return false
		}
		_, nics := h.node()
		return device || nics[name] != ""
	}})
	boot, err := nichw.BootID(h.o.Proc)
	if err != nil {
		h.log.Warn("cannot read the boot identifier; findings are not kept over a restart", "err", err)
	}
	remembered, err := loadMemory(h.o.StateFile)
	if err != nil {
		h.log.Warn("cannot read the state file of NIC health; findings may be reported again", "err", err)
	}
	h.monitor = nichealth.New(h.o.Rules, boot, remembered)
	h.kernel, err = newKernelLog(h, boot)
	return err
}

// sameNetwork reports whether sysfs at the root shows the interfaces that this process has.
func sameNetwork(sys string) bool {
	list, err := net.Interfaces()
	if err != nil {
		return false
	}
	entries, err := os.ReadDir(filepath.Join(sys, "class/net"))
	if err != nil {
		return false
	}
	seen := map[string]bool{}
	for _, e := range entries {
		seen[e.Name()] = true
	}
	for _, i := range list {
		b, err := os.ReadFile(filepath.Join(sys, "class/net", i.Name, "ifindex"))
		if err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(i.Index) {
			return false
		}
		delete(seen, i.Name)
	}
	for name := range seen {
		if _, err := os.Stat(filepath.Join(sys, "class/net", name, "ifindex")); err == nil {
			return false // an interface that this process does not have; the file bonding_masters is not an interface
		}
	}
	return true
}

// Run polls until ctx ends.
func (h *Health) Run(ctx context.Context) {
	due := map[nichw.Parts]time.Time{}
	every := map[nichw.Parts]time.Duration{nichw.ReadCounters: h.o.Counters, nichw.ReadGIDs: h.o.GIDs, nichw.ReadIdentity: h.o.Identity}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var log sync.WaitGroup
	defer log.Wait()
	following, asking := false, false
	for {
		select {
		case <-ctx.Done():
			h.saveState(true)
			return
		case <-timer.C:
		}
		now := time.Now()
		parts := nichw.ReadStates
		for p, d := range every {
			if !now.Before(due[p]) {
				parts |= p
				due[p] = now.Add(d)
			}
		}
		h.pollOnce(now, parts)
		if h.kernel != nil && !following {
			following = true // the NICs are known only from the first poll on
			log.Go(func() { h.kernel.followLog(ctx) })
		}
		if h.ethtool != nil && !asking {
			asking = true
			log.Go(func() { h.ethtool.run(ctx, h.ethtoolInterfaces) })
		}
		h.saveState(false)
		h.mu.Lock()
		next := h.monitor.NextPoll()
		h.mu.Unlock()
		timer.Reset(max(0, time.Until(now.Add(next))))
	}
}

// pollOnce reads the parts once, and reports what is new.
func (h *Health) pollOnce(now time.Time, parts nichw.Parts) {
	// Interfaces that are probed are watched from then on.
	if _, nics := h.node(); !maps.Equal(nics, h.probed) {
		h.probed = nics
		h.reader.RelistAll()
	}
	began := time.Now()
	p := h.reader.Poll(now, parts)
	took := time.Since(began)
	h.mu.Lock()
	events := h.monitor.ObservePoll(p)
	h.last, h.took = p, took
	if p.DevicesKnown && p.InterfacesKnown {
		h.listedAt = now
	}
	h.polls++
	for i := range p.Errors {
		h.errors[p.Errors[i].Sort]++
	}
	for i := range events {
		h.events[eventKey{events[i].ErrorCode[0], severityOf(&events[i])}]++
	}
	h.mu.Unlock()
	h.logReadErrors(p)
	for i := range events {
		h.emitEvent(&events[i])
	}
}

// OpenFindings returns the open findings, and the time at which the devices were last listed. The time is zero if they
// never were.
func (h *Health) OpenFindings() (open []nichealth.Finding, read time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.monitor.OpenFindings(), h.listedAt
}

func severityOf(e *nichealth.Event) string {
	switch {
	case e.IsHealthy:
		return "healthy"
	case e.IsFatal:
		return "fatal"
	}
	return "warning"
}

// logReadErrors logs once when files of a device cannot be read, and once when all of them can be read again.
func (h *Health) logReadErrors(p *nichw.Poll) {
	now := map[string]int{}
	for i := range p.Errors {
		now[p.Errors[i].Device]++
	}
	for i := range p.Errors {
		e := &p.Errors[i]
		if n := now[e.Device]; !h.errorLogged[e.Device] && n > 0 {
			h.errorLogged[e.Device] = true
			h.log.Warn("cannot read files of a NIC", "device", e.Device, "files", n, "first", e.Path, "reason", string(e.Sort), "err", e.Err)
		}
	}
	for device := range h.errorLogged {
		if now[device] == 0 {
			delete(h.errorLogged, device)
			h.log.Info("files of a NIC can be read again, or the device is gone", "device", device)
		}
	}
}

// emitEvent logs an event, with its fields under the names that NVSentinel has for them, and passes it to the sinks.
func (h *Health) emitEvent(e *nichealth.Event) {
	for _, sink := range h.o.Sinks {
		sink(*e)
	}
	level := slog.LevelWarn
	switch {
	case e.IsHealthy:
		level = slog.LevelInfo
	case e.IsFatal:
		level = slog.LevelError
	}
	entities := make([]string, 0, len(e.EntitiesImpacted))
	for _, x := range e.EntitiesImpacted {
		entities = append(entities, string(x.Type)+":"+x.Value)
	}
	h.log.Log(context.Background(), level, e.Message, "event", "nic_health", "agent", e.Agent, "componentClass", e.ComponentClass, "checkName", e.CheckName, "isFatal", e.IsFatal, "isHealthy", e.IsHealthy,
		"recommendedAction", string(e.RecommendedAction), "entitiesImpacted", strings.Join(entities, ","), "errorCode", strings.Join(e.ErrorCode, ","), "nodeName", e.NodeName,
		"generatedTimestamp", e.GeneratedTimestamp.UTC().Format(time.RFC3339Nano))
}

// Intervals of the writes of the state file.
const (
	saveEvery = time.Minute     // greatest age of the counters in the file
	saveAgain = 5 * time.Second // delay after a write that failed
)

// saveState writes the state file if findings changed since the last write, or if that write is saveEvery ago. A write
// that failed is tried again after saveAgain.
func (h *Health) saveState(last bool) {
	if h.o.StateFile == "" {
		return
	}
	h.mu.Lock()
	m := h.monitor.SaveMemory()
	h.mu.Unlock()
	if m == nil {
		return
	}
	brief := *m
	brief.Counters = nil
	text, err := json.Marshal(brief)
	if err != nil {
		return
	}
	age := time.Since(h.savedAt)
	changed := string(text) != h.saved
	if due := last || age >= saveEvery || changed && (!h.saveFailing || age >= saveAgain); !due {
		return
	}
	whole, err := json.Marshal(m)
	if err == nil {
		err = durable.WriteFile(h.o.StateFile, whole)
	}
	h.savedAt = time.Now()
	result := 0
	if err != nil {
		result = 1
	}
	h.mu.Lock()
	h.saves[result]++
	h.mu.Unlock()
	switch {
	case err != nil:
		if !h.saveFailing {
			h.log.Warn("cannot write the state file of NIC health; a restart would report findings again", "file", h.o.StateFile, "err", err)
		}
		h.saved, h.saveFailing = "", true
	default:
		if h.saveFailing {
			h.log.Info("writing the state file of NIC health succeeds again", "file", h.o.StateFile)
		}
		h.saved, h.saveFailing = string(text), false
	}
}

func loadMemory(path string) (*nichealth.Memory, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m nichealth.Memory
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &m, nil
}

// Gather implements prometheus.Gatherer.
func (h *Health) Gather() ([]*dto.MetricFamily, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := newExposition(h.started)
	h.writeSeries(x)
	return x.sortedFamilies(), nil
}

// portNames maps sysfs' counters to the vocabulary that graylink-ib has for the same counters when it reads them through
// the fabric: the family, and the value of the label reason.
var portNames = map[string][2]string{
	"symbol_error": {"symbol_errors"}, "link_error_recovery": {"link_recoveries"}, "link_downed": {"link_downed"}, "port_rcv_errors": {"receive_errors", "damaged"},
	"port_rcv_remote_physical_errors": {"receive_errors", "remote_physical"}, "port_rcv_switch_relay_errors": {"receive_errors", "switch_relay"},
	"port_rcv_constraint_errors": {"receive_errors", "constraint"}, "port_xmit_constraint_errors": {"transmit_errors", "constraint"}, "port_xmit_discards": {"transmit_discards"},
	"local_link_integrity_errors": {"local_link_integrity_errors"}, "excessive_buffer_overrun_errors": {"buffer_overruns"}, "VL15_dropped": {"vl15_dropped"},
	"port_xmit_data": {"transmit_bytes"}, "port_rcv_data": {"receive_bytes"}, "port_xmit_packets": {"transmit_packets"}, "port_rcv_packets": {"receive_packets"},
	"unicast_xmit_packets": {"transmit_unicast_packets"}, "unicast_rcv_packets": {"receive_unicast_packets"}, "multicast_xmit_packets": {"transmit_multicast_packets"},
	"multicast_rcv_packets": {"receive_multicast_packets"}, "port_xmit_wait": {"transmit_wait_ticks"},
}

// octetsPerUnit is the size of a unit of port_xmit_data and port_rcv_data in octets (IBA 16.1.3.5).
const octetsPerUnit = 4

// writeSeries adds the series of the last poll.
func (h *Health) writeSeries(x *exposition) {
	var (
		state     = x.gaugeFamily("fabric_nic_port_state", "Logical state of the port; without RDMA, ACTIVE means up. All states are 0 if it is not known.")
		phys      = x.gaugeFamily("fabric_nic_port_phys_state", "Physical state of the port.")
		rate      = x.gaugeFamily("fabric_nic_port_rate_bytes_per_second", "Negotiated rate of the port in bytes per second.")
		expected  = x.gaugeFamily("fabric_nic_port_expected_rate_bytes_per_second", "Expected rate of the port in bytes per second, from the products table or from its role.")
		info      = x.gaugeFamily("fabric_nic_port_info", "Identity of the port: device, interface, driver, firmware and kind.")
		function  = x.gaugeFamily("fabric_nic_port_virtual_function", "Whether the port belongs to a virtual function, which may be down.")
		filled    = x.gaugeFamily("fabric_nic_port_saturated", "Whether the counter stands at its limit and no longer counts.")
		finding   = x.gaugeFamily("fabric_nic_finding", "Open findings of a NIC or a port, by code; those from counters stay until they are reset.")
		crossed   = x.counterFamily("fabric_nic_port_threshold_crossings_total", "Times a counter of the port crossed the threshold of a warning, including before a reset.")
		hardware  = x.counterFamily("fabric_nic_port_hardware_total", "Counters of the port's hw_counters/ directory, under the kernel's names.")
		other     = x.counterFamily("fabric_nic_port_other_total", "Counters of the port's counters/ directory without a family of their own, under the kernel's names.")
		carrier   = x.counterFamily("fabric_nic_port_carrier_changes_total", "Changes of the interface's carrier in either direction.")
		statistic = x.counterFamily("fabric_nic_interface_total", "Counters of the interface's statistics/ directory, under the kernel's names.")
		gids      = x.gaugeFamily("fabric_nic_port_gid_entries", "Entries of the GID table that are not empty, by type and address family.")
		pciSpeed  = x.gaugeFamily("fabric_nic_pci_link_transfers_per_second", "Transfers per second and lane of the PCI link, current and maximum.")
		pciWidth  = x.gaugeFamily("fabric_nic_pci_link_lanes", "Lanes of the PCI link, current and maximum.")
		aer       = x.counterFamily("fabric_nic_pci_errors_total", "Errors of the PCI function (advanced error reporting).")
		missing   = x.gaugeFamily("graylink_node_nic_ports", "Ports of the node: expected by the products table, and found.")
		polls     = x.counterFamily("graylink_node_nic_polls_total", "Polls of the NICs.")
		took      = x.gaugeFamily("graylink_node_nic_poll_seconds", "Duration of the last poll in seconds.")
		failed    = x.counterFamily("graylink_node_nic_read_errors_total", "Files of NICs that could not be read or parsed, by reason.")
		hanging   = x.gaugeFamily("graylink_node_nic_hanging_reads", "Reads of files of NICs that have not returned.")
		events    = x.counterFamily("graylink_node_nic_events_total", "Events of NICs, by code and severity.")
		listed    = x.gaugeFamily("graylink_node_nic_devices_known", "Whether the last poll could list the devices.")
		ports     = map[string]*dto.MetricFamily{}
	)
	p := h.last
	if h.kernel != nil {
		name := func(string, int, string) string { return "" }
		if p != nil {
			name = h.nicNames(p)
		}
		h.kernel.writeSeries(x, name)
	}
	if h.ethtool != nil {
		name := func(string, int, string) string { return "" } // no interface is known yet
		if p != nil {
			name = h.nicNames(p)
		}
		h.ethtool.writeSeries(x, p, name)
	}
	x.addCounter(polls, float64(h.polls), nil)
	for _, s := range []nichw.Sort{nichw.Unreadable, nichw.Malformed, nichw.Hanging, nichw.Skipped} {
		x.addCounter(failed, float64(h.errors[s]), x.labelPairs("why", string(s)))
	}
	for k, n := range h.events {
		x.addCounter(events, float64(n), x.labelPairs("code", k.code, "severity", k.severity))
	}
	if p == nil {
		return
	}
	x.addGauge(took, h.took.Seconds(), nil)
	x.addGauge(hanging, float64(p.Hanging), nil)
	x.addGauge(listed, oneIf(p.DevicesKnown), nil)
	if want, have, ok := h.monitor.PortCounts(); ok {
		x.addGauge(missing, float64(want), x.labelPairs("ports", "expected"))
		x.addGauge(missing, float64(have), x.labelPairs("ports", "found"))
	}
	name := h.nicNames(p)
	family := func(n string) *dto.MetricFamily {
		if ports[n] == nil {
			ports[n] = x.counterFamily("fabric_nic_port_"+n+"_total", "Counter of the port, as the kernel reads it from the device.")
		}
		return ports[n]
	}
	pci := func(nic string, v *nichw.PCI) {
		if v == nil {
			return
		}
		for _, s := range []struct {
			is    string
			speed *float64
			width *uint64
		}{{"current", v.Speed, v.Width}, {"max", v.MaxSpeed, v.MaxWidth}} {
			if s.speed != nil {
				x.addGauge(pciSpeed, *s.speed, x.labelPairs("is", s.is, "nic", nic))
			}
			if s.width != nil {
				x.addGauge(pciWidth, float64(*s.width), x.labelPairs("is", s.is, "nic", nic))
			}
		}
		for _, s := range []struct {
			severity string
			n        *uint64
		}{{"correctable", v.Correctable}, {"nonfatal", v.NonFatal}, {"fatal", v.Fatal}} {
			if s.n != nil {
				x.addCounter(aer, float64(*s.n), x.labelPairs("nic", nic, "severity", s.severity))
			}
		}
	}
	address := func(v *nichw.PCI) string {
		if v == nil {
			return ""
		}
		return v.Address
	}
	for i := range p.Devices {
		d := &p.Devices[i]
		if h.o.Rules.IsExcluded(d.Name) {
			continue
		}
		for j := range d.Ports {
			port := &d.Ports[j]
			e, nic := nichealth.PortEntity(d.Name, port.Number), name(d.Name, port.Number, port.Netdev)
			if j == 0 {
				pci(nic, d.PCI)
			}
			oneOf(x, state, nic, nichw.States[1:], int(port.State))
			oneOf(x, phys, nic, nichw.PhysStates[1:], int(port.Phys))
			if port.Rate != nil {
				x.addGauge(rate, float64(*port.Rate), x.labelPairs("nic", nic))
			}
			if want, ok := h.monitor.ExpectedRate(e); ok {
				x.addGauge(expected, float64(want), x.labelPairs("nic", nic))
			}
			x.addGauge(function, oneIf(d.Function == nichw.Virtual), x.labelPairs("nic", nic))
			x.addGauge(info, 1, x.labelPairs("board", d.Board, "device", d.Name, "driver", d.Driver, "firmware", d.Firmware, "function", d.Function.String(), "interface", port.Netdev, "kind", string(d.Kind),
				"link_layer", port.LinkLayer, "nic", nic, "pci", address(d.PCI), "port", strconv.Itoa(port.Number), "type", d.HCAType))
			if n, ok := h.monitor.CrossingCount(e); ok {
				x.addCounter(crossed, float64(n), x.labelPairs("nic", nic))
			}
			for _, c := range port.Counters {
				v := float64(c.Value)
				n, known := portNames[c.Name]
				switch {
				case !known:
					x.addCounter(other, v, x.labelPairs("counter", c.Name, "nic", nic))
				case n[1] != "":
					x.addCounter(family(n[0]), v, x.labelPairs("nic", nic, "reason", n[1]))
				case strings.HasSuffix(n[0], "_bytes"):
					x.addCounter(family(n[0]), v*octetsPerUnit, x.labelPairs("nic", nic))
				default:
					x.addCounter(family(n[0]), v, x.labelPairs("nic", nic))
				}
				if known && h.monitor.IsSaturated(e, c.Name) {
					x.addGauge(filled, 1, x.labelPairs("counter", c.Name, "nic", nic))
				}
			}
			for _, c := range port.Hardware {
				x.addCounter(hardware, float64(c.Value), x.labelPairs("counter", c.Name, "nic", nic))
			}
			if port.GIDsKnown {
				table := map[[2]string]int{}
				for k := range port.GIDs {
					g := &port.GIDs[k]
					f := "ipv6"
					if g.IsIPv4() {
						f = "ipv4"
					}
					table[[2]string{f, g.Type}]++
				}
				if len(table) == 0 {
					x.addGauge(gids, 0, x.labelPairs("family", "", "nic", nic, "type", ""))
				}
				for k, n := range table {
					x.addGauge(gids, float64(n), x.labelPairs("family", k[0], "nic", nic, "type", k[1]))
				}
			}
		}
	}
	for i := range p.Interfaces {
		f := &p.Interfaces[i]
		nic := nicOf(p, f, name)
		withoutRDMA := f.Device == "" || f.Master != ""
		if withoutRDMA {
			pci(nic, f.PCI)
			switch f.OperState {
			case "up":
				oneOf(x, state, nic, nichw.States[1:], int(nichw.Active))
			case "down", "lowerlayerdown", "notpresent":
				oneOf(x, state, nic, nichw.States[1:], int(nichw.Down))
			}
			if f.Speed != nil {
				x.addGauge(rate, float64(*f.Speed), x.labelPairs("nic", nic))
			}
			x.addGauge(function, oneIf(f.Function == nichw.Virtual), x.labelPairs("nic", nic))
			x.addGauge(info, 1, x.labelPairs("board", "", "device", "", "driver", f.Driver, "firmware", "", "function", f.Function.String(), "interface", f.Name, "kind", string(f.Kind),
				"link_layer", "Ethernet", "nic", nic, "pci", address(f.PCI), "port", "", "type", ""))
		}
		if f.Changes != nil {
			x.addCounter(carrier, float64(*f.Changes), x.labelPairs("nic", nic))
		}
		for _, c := range f.Counters {
			x.addCounter(statistic, float64(c.Value), x.labelPairs("counter", c.Name, "nic", nic))
		}
	}
	for _, f := range h.monitor.OpenFindings() {
		device, number := entityParts(f.Entity)
		sev := "warning"
		if f.Fatal {
			sev = "fatal"
		}
		x.addGauge(finding, 1, x.labelPairs("code", f.Code, "nic", name(device, number, ""), "severity", sev))
	}
}

// portOf returns the RDMA port that an interface is the only one of.
func portOf(p *nichw.Poll, netdev string) (device string, port int, ok bool) {
	for i := range p.Devices {
		for j := range p.Devices[i].Ports {
			if q := &p.Devices[i].Ports[j]; q.Netdev == netdev {
				return p.Devices[i].Name, q.Number, true
			}
		}
	}
	return "", 0, false
}

func oneOf(x *exposition, f *dto.MetricFamily, nic string, names []string, is int) {
	for i, n := range names {
		x.addGauge(f, oneIf(is == i+1), x.labelPairs("nic", nic, "state", n))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func entityParts(e nichealth.Entity) (device string, port int) {
	if e.Type == nichealth.EntityPort {
		if d, n, ok := cutLast(e.Value, "_port"); ok {
			if port, err := strconv.Atoi(n); err == nil {
				return d, port
			}
		}
	}
	return e.Value, 1
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// nicNames returns a function that gives the name of a port in the fabric. It is the name of the NIC that probes through
// the port's interface, if there is one. Otherwise it is the device, with the number of the port from the second port on.
func (h *Health) nicNames(p *nichw.Poll) func(device string, port int, netdev string) string {
	node, nics := h.node()
	netdevs := map[string]string{}
	for i := range p.Devices {
		d := &p.Devices[i]
		for j := range d.Ports {
			netdevs[d.Name+" "+strconv.Itoa(d.Ports[j].Number)] = d.Ports[j].Netdev
		}
	}
	return func(device string, port int, netdev string) string {
		if netdev == "" {
			netdev = netdevs[device+" "+strconv.Itoa(port)]
		}
		for _, n := range []string{device, netdev} {
			if nic := nics[n]; nic != "" {
				return nic
			}
		}
		if port > 1 {
			return fmt.Sprintf("%s/%s.%d", node, device, port)
		}
		return node + "/" + device
	}
}
