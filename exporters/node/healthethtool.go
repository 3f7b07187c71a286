package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/nicethtool"
	"github.com/graylink/graylink/internal/nicethtool/module"
	"github.com/graylink/graylink/internal/nichw"
)

// EthtoolOptions holds the options of what is read from interfaces through ethtool.
type EthtoolOptions struct {
	// Mode is EthtoolAuto, EthtoolOn or EthtoolOff.
	Mode string
	// Counters and Modules are the intervals at which these are read.
	Counters, Modules time.Duration
	// Exclude matches names of driver statistics that are left out. If it is nil, those of queues are.
	Exclude *regexp.Regexp
	// Kernel answers the requests. If it is nil, the machine's kernel does.
	Kernel nicethtool.Kernel
}

// Values of EthtoolOptions.Mode.
const (
	EthtoolAuto = "auto" // on, unless another root of sysfs is set, whose interfaces are not the machine's
	EthtoolOn   = "on"
	EthtoolOff  = "off"
)

// DefaultEthtool returns the options without flags.
func DefaultEthtool() EthtoolOptions {
	return EthtoolOptions{Mode: EthtoolAuto, Counters: 5 * time.Second, Modules: time.Minute}
}

// enabledFor reports whether ethtool is used, with sysfs at a root.
func (o *EthtoolOptions) enabledFor(sys string) bool {
	return o.Mode == EthtoolOn || o.Mode == EthtoolAuto && (sys == "" || sys == "/sys")
}

// ethtool reads a node's interfaces through ethtool. Counters and modules are read concurrently, so that a slow module
// delays no counter.
type ethtool struct {
	log   *slog.Logger
	parts []*ethtoolPart

	mu           sync.Mutex
	errorLogged  map[string]bool // paths whose errors were logged
	denialLogged map[string]bool // parts whose denial was logged
	errors       map[nichw.Sort]uint64
}

// ethtoolPart represents the values that are read at one interval.
type ethtoolPart struct {
	name   string
	parts  nicethtool.Parts
	every  time.Duration
	reader *nicethtool.Reader

	last  *nicethtool.Poll // guarded by ethtool.mu, like the fields below
	took  time.Duration
	polls uint64
}

// newEthtool returns the reader of interfaces, or nil if the options disable it.
func newEthtool(o EthtoolOptions, sys string, log *slog.Logger) *ethtool {
	if !o.enabledFor(sys) {
		return nil
	}
	if o.Kernel == nil {
		o.Kernel = &nicethtool.Machine{}
	}
	e := &ethtool{log: log, errorLogged: map[string]bool{}, denialLogged: map[string]bool{}, errors: map[nichw.Sort]uint64{}}
	for _, p := range []ethtoolPart{{name: "counters", parts: nicethtool.ReadCounters, every: o.Counters}, {name: "modules", parts: nicethtool.ReadModules, every: o.Modules}} {
		p.reader = nicethtool.New(nicethtool.Options{Kernel: o.Kernel, Exclude: o.Exclude})
		e.parts = append(e.parts, &p)
	}
	return e
}

// run reads until ctx ends. The function interfaces returns those to read, and none before the first poll of sysfs.
func (e *ethtool) run(ctx context.Context, interfaces func() []string) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, p := range e.parts {
		running.Go(func() {
			tick := time.NewTicker(p.every)
			defer tick.Stop()
			for {
				e.pollPart(p, time.Now(), interfaces())
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
}

// pollPart reads one part once, and logs new failures.
func (e *ethtool) pollPart(p *ethtoolPart, now time.Time, interfaces []string) {
	began := time.Now()
	got := p.reader.Poll(now, interfaces, p.parts)
	took := time.Since(began)
	e.mu.Lock()
	defer e.mu.Unlock()
	p.last, p.took = got, took
	p.polls++
	failed := map[string]bool{}
	for i := range got.Errors {
		x := &got.Errors[i]
		e.errors[x.Sort]++
		key := p.name + " " + x.Device
		failed[key] = true
		if !e.errorLogged[key] {
			e.errorLogged[key] = true
			e.log.Warn("cannot read a part of an interface through ethtool", "interface", x.Device, "part", x.Path, "reason", string(x.Sort), "err", x.Err)
		}
	}
	for key := range e.errorLogged {
		if strings.HasPrefix(key, p.name+" ") && !failed[key] {
			delete(e.errorLogged, key)
			e.log.Info("an interface can be read through ethtool again, or is gone", "interface", strings.TrimPrefix(key, p.name+" "))
		}
	}
	for _, part := range got.Denied {
		if !e.denialLogged[part] {
			e.denialLogged[part] = true
			e.log.Warn("cannot read a part of the interfaces without CAP_NET_ADMIN; the rest is published", "part", part)
		}
	}
}

// ethtoolInterfaces returns the names of the interfaces in the last poll of sysfs.
func (h *Health) ethtoolInterfaces() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		return nil
	}
	for i := range h.last.Interfaces {
		out = append(out, h.last.Interfaces[i].Name)
	}
	return out
}

// nicOf returns the name of an interface in the fabric. An interface that is the only one of an RDMA port, and no member of
// a bond, has the name of that port. Others of the port's function, such as representors, have their own names.
func nicOf(p *nichw.Poll, f *nichw.Interface, name func(device string, port int, netdev string) string) string {
	if f.Device != "" && f.Master == "" {
		if device, port, ok := portOf(p, f.Name); ok {
			return name(device, port, f.Name)
		}
	}
	return name(f.Name, 1, f.Name)
}

// driverCounter reports whether a statistic of a driver only grows. Drivers do not state this, and some of their
// statistics are gauges, so the name decides: what its last word counts, after words for the place of the count are
// removed. A statistic that is not known to be a counter is not published.
func driverCounter(name string) bool {
	if driverCounters[name] {
		return true
	}
	if driverGauges[name] {
		return false
	}
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune("_. -:[]", r) })
	for _, w := range words {
		if driverLevels[w] {
			return false
		}
	}
	for len(words) > 1 && (driverScopes[words[len(words)-1]] || strings.Trim(words[len(words)-1], "0123456789") == "") {
		words = words[:len(words)-1]
	}
	return len(words) > 0 && driverCounts[words[len(words)-1]]
}

var (
	// driverScopes are last words that name the place where something was counted.
	driverScopes = nameSet("phy port vport mac nic sw hw lane prio total")
	// driverCounts are words for things that are counted. A duration is the total duration of pauses.
	driverCounts = nameSet("packets pkts packet pkt bytes octets frames bits errors error errs err drops drop dropped discard discards discarded missed collisions overruns overrun underruns " +
		"events timeouts timeout retries resets transitions transition pause pauses duration broadcast multicast unicast fragments jabbers undersize oversize restarts stopped wake " +
		"complete none fail failed failures redirect xmit kicks")
	// driverLevels are words for values that rise and fall.
	driverLevels = nameSet("pending current cur max min avg free used limit threshold speed rate ratio percent usage state index ifindex")
	// driverGauges end like counters, but are mlx5's shares of time in percent.
	driverGauges = nameSet("outbound_pci_stalled_rd outbound_pci_stalled_wr")
	// driverCounters are counters that their last words do not show to be counters (mlx5).
	driverCounters = nameSet("rx_out_of_buffer rx_pci_signal_integrity tx_pci_signal_integrity outbound_pci_buffer_overflow module_unplug module_bus_stuck module_high_temp module_bad_shorted " +
		"rx_buffer_passed_thres_phy tx_pause_ctrl_phy rx_pause_ctrl_phy")
)

func nameSet(s string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(s) {
		set[w] = true
	}
	return set
}

// writeSeries adds the series of the last polls. Health.mu must be held.
func (e *ethtool) writeSeries(x *exposition, sys *nichw.Poll, name func(device string, port int, netdev string) string) {
	var (
		statistic     = x.counterFamily("fabric_nic_driver_statistic_total", "Driver statistics (ethtool -S) whose names show that they are counters, under the driver's names.")
		unclassified  = x.gaugeFamily("graylink_node_nic_ethtool_statistics_left_out", "Driver statistics, except those of queues, that are left out because they may not be counters.")
		fecBlocks     = x.counterFamily("fabric_nic_port_fec_corrected_blocks_total", "Blocks that FEC corrected.")
		fecLost       = x.counterFamily("fabric_nic_port_fec_uncorrectable_blocks_total", "Blocks that FEC could not correct.")
		fecBits       = x.counterFamily("fabric_nic_port_fec_corrected_bit_errors_total", "Bits that FEC corrected.")
		laneBlocks    = x.counterFamily("fabric_nic_port_lane_fec_corrected_blocks_total", "Blocks of a lane that FEC corrected; lanes count from 1.")
		laneLost      = x.counterFamily("fabric_nic_port_lane_fec_uncorrectable_blocks_total", "Blocks of a lane that FEC could not correct; lanes count from 1.")
		laneBits      = x.counterFamily("fabric_nic_port_lane_fec_corrected_bit_errors_total", "Bits of a lane that FEC corrected; lanes count from 1.")
		fecMode       = x.gaugeFamily("fabric_nic_fec_mode", "Whether the FEC mode is active, and whether it is configured.")
		pauseFrames   = x.counterFamily("fabric_nic_pause_frames_total", "Pause frames of IEEE 802.3.")
		pauseOn       = x.gaugeFamily("fabric_nic_pause_enabled", "Whether pause frames are obeyed (receive), sent (transmit), and negotiated (autoneg).")
		duplex        = x.gaugeFamily("fabric_nic_link_full_duplex", "Whether the link is full duplex.")
		linkLanes     = x.gaugeFamily("fabric_nic_link_lanes", "Lanes of the link.")
		sqi           = x.gaugeFamily("fabric_nic_link_signal_quality", "Signal quality index, current and maximum.")
		downs         = x.counterFamily("fabric_nic_link_down_events_total", "Times the link went down, as the device counts them.")
		extended      = x.gaugeFamily("fabric_nic_link_extended_state", "Reason why the link is down, as the driver reports it.")
		info          = x.gaugeFamily("fabric_nic_module_info", "Identity of the plugged module.")
		state         = x.gaugeFamily("fabric_nic_module_state", "State of the module (CMIS).")
		temperature   = x.gaugeFamily("fabric_nic_module_temperature_celsius", "Temperature of the module.")
		voltage       = x.gaugeFamily("fabric_nic_module_voltage_volts", "Supply voltage of the module.")
		receive       = x.gaugeFamily("fabric_nic_module_receive_power_watts", "Received optical power in watts; 0 is below the monitor's resolution.")
		transmit      = x.gaugeFamily("fabric_nic_module_transmit_power_watts", "Transmitted optical power in watts; 0 means that the laser is off.")
		bias          = x.gaugeFamily("fabric_nic_module_bias_amperes", "Bias current of the laser.")
		raised        = x.gaugeFamily("fabric_nic_module_flag", "Alarms and warnings of the module since its last read; lane is empty for the whole module.")
		polls         = x.counterFamily("graylink_node_nic_ethtool_polls_total", "Polls of the interfaces through ethtool.")
		tookSeconds   = x.gaugeFamily("graylink_node_nic_ethtool_poll_seconds", "Duration of the last poll through ethtool in seconds.")
		failed        = x.counterFamily("graylink_node_nic_ethtool_errors_total", "Parts of interfaces that could not be read through ethtool, by reason.")
		hangingAsked  = x.gaugeFamily("graylink_node_nic_ethtool_hanging", "Requests through ethtool that drivers have not answered.")
		threshold     = x.gaugeFamily("fabric_nic_module_threshold", "Threshold of a monitor of the module, in celsius, volts, watts or amperes.")
		deniedPrivate = x.gaugeFamily("graylink_node_nic_ethtool_denied", "Parts of interfaces that cannot be read without CAP_NET_ADMIN.")
	)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range []nichw.Sort{nichw.Unreadable, nichw.Malformed, nichw.Hanging, nichw.Skipped} {
		x.addCounter(failed, float64(e.errors[s]), x.labelPairs("why", string(s)))
	}
	for _, p := range e.parts {
		x.addCounter(polls, float64(p.polls), x.labelPairs("part", p.name))
		if p.last == nil {
			continue
		}
		x.addGauge(tookSeconds, p.took.Seconds(), x.labelPairs("part", p.name))
		x.addGauge(hangingAsked, float64(p.last.Hanging), x.labelPairs("part", p.name))
		for _, part := range p.last.Denied {
			x.addGauge(deniedPrivate, 1, x.labelPairs("part", part))
		}
	}
	if sys == nil {
		return
	}
	nics, seen := map[string]string{}, map[string]bool{}
	for i := range sys.Interfaces {
		f := &sys.Interfaces[i]
		if nic := nicOf(sys, f, name); !seen[nic] {
			nics[f.Name], seen[nic] = nic, true
		}
	}
	lanes := func(port, lane *dto.MetricFamily, v *nicethtool.Lanes, nic string) {
		if v == nil {
			return
		}
		x.addCounter(port, float64(v.Total), x.labelPairs("nic", nic))
		for i, n := range v.Lanes {
			x.addCounter(lane, float64(n), x.labelPairs("lane", strconv.Itoa(i+1), "nic", nic))
		}
	}
	frames := func(v *uint64, direction, nic string) {
		if v != nil {
			x.addCounter(pauseFrames, float64(*v), x.labelPairs("direction", direction, "nic", nic))
		}
	}
	enabled := func(v *bool, what, nic string) {
		if v != nil {
			x.addGauge(pauseOn, oneIf(*v), x.labelPairs("nic", nic, "what", what))
		}
	}
	reading := func(f *dto.MetricFamily, v *float64, labels ...string) {
		if v != nil {
			x.addGauge(f, *v, x.labelPairs(labels...))
		}
	}
	for _, p := range e.parts {
		if p.last == nil {
			continue
		}
		for i := range p.last.Interfaces {
			f := &p.last.Interfaces[i]
			nic, known := nics[f.Name]
			if !known {
				continue // it is gone since the poll
			}
			if f.Statistics != nil {
				left := 0
				for _, c := range f.Statistics {
					if driverCounter(c.Name) {
						x.addCounter(statistic, float64(c.Value), x.labelPairs("counter", c.Name, "nic", nic))
					} else {
						left++
					}
				}
				x.addGauge(unclassified, float64(left), x.labelPairs("nic", nic))
			}
			if v := f.FEC; v != nil {
				lanes(fecBlocks, laneBlocks, v.Corrected, nic)
				lanes(fecLost, laneLost, v.Uncorrectable, nic)
				lanes(fecBits, laneBits, v.CorrectedBits, nic)
				for _, mode := range nicethtool.FECModes {
					if v.Configured != nil {
						x.addGauge(fecMode, oneIf(slices.Contains(v.Configured, mode)), x.labelPairs("is", "configured", "mode", mode, "nic", nic))
					}
					if v.Active != "" {
						x.addGauge(fecMode, oneIf(v.Active == mode), x.labelPairs("is", "active", "mode", mode, "nic", nic))
					}
				}
				if v.Auto != nil {
					x.addGauge(fecMode, oneIf(*v.Auto), x.labelPairs("is", "configured", "mode", "auto", "nic", nic))
				}
			}
			if v := f.Pause; v != nil {
				frames(v.ReceiveFrames, "receive", nic)
				frames(v.TransmitFrames, "transmit", nic)
				enabled(v.Autoneg, "autoneg", nic)
				enabled(v.Receive, "receive", nic)
				enabled(v.Transmit, "transmit", nic)
			}
			if v := f.LinkModes; v != nil {
				if v.Duplex != "" {
					x.addGauge(duplex, oneIf(v.Duplex == "full"), x.labelPairs("nic", nic))
				}
				if v.Lanes != nil {
					x.addGauge(linkLanes, float64(*v.Lanes), x.labelPairs("nic", nic))
				}
			}
			if v := f.LinkState; v != nil {
				if v.SQI != nil {
					x.addGauge(sqi, float64(*v.SQI), x.labelPairs("is", "current", "nic", nic))
				}
				if v.SQIMax != nil {
					x.addGauge(sqi, float64(*v.SQIMax), x.labelPairs("is", "max", "nic", nic))
				}
				if v.Downs != nil {
					x.addCounter(downs, float64(*v.Downs), x.labelPairs("nic", nic))
				}
				if v.State != "" {
					x.addGauge(extended, 1, x.labelPairs("nic", nic, "state", v.State, "substate", v.Substate))
				}
			}
			m := f.Module
			if m == nil {
				continue
			}
			x.addGauge(info, 1, x.labelPairs("nic", nic, "oui", m.OUI, "part", m.Part, "revision", m.Revision, "serial", m.Serial, "standard", strings.TrimSpace(string(m.Standard)+" "+m.Compliance), "type", m.Type, "vendor", m.Vendor))
			if m.State != "" {
				x.addGauge(state, 1, x.labelPairs("cause", m.FaultCause, "nic", nic, "state", m.State))
			}
			reading(temperature, m.Temperature, "nic", nic)
			reading(voltage, m.Voltage, "nic", nic)
			for _, l := range m.Lanes {
				n := strconv.Itoa(l.Number)
				reading(receive, l.ReceivePower, "lane", n, "nic", nic)
				reading(transmit, l.TransmitPower, "lane", n, "nic", nic)
				reading(bias, l.Bias, "lane", n, "nic", nic)
			}
			t := &m.Thresholds
			for _, v := range []struct {
				monitor string
				limits  *module.Limits
			}{{"bias", t.Bias}, {"receive_power", t.ReceivePower}, {"temperature", t.Temperature}, {"transmit_power", t.TransmitPower}, {"voltage", t.Voltage}} {
				if l := v.limits; l != nil {
					x.addGauge(threshold, l.HighAlarm, x.labelPairs("is", "high_alarm", "monitor", v.monitor, "nic", nic))
					x.addGauge(threshold, l.HighWarning, x.labelPairs("is", "high_warning", "monitor", v.monitor, "nic", nic))
					x.addGauge(threshold, l.LowAlarm, x.labelPairs("is", "low_alarm", "monitor", v.monitor, "nic", nic))
					x.addGauge(threshold, l.LowWarning, x.labelPairs("is", "low_warning", "monitor", v.monitor, "nic", nic))
				}
			}
			for _, flag := range m.Flags {
				lane := ""
				if flag.Lane != 0 {
					lane = strconv.Itoa(flag.Lane)
				}
				x.addGauge(raised, 1, x.labelPairs("flag", flag.Name, "lane", lane, "nic", nic))
			}
		}
	}
}

// validate fills in defaults, and returns an error that names the flag that is wrong.
func (o *EthtoolOptions) validate() error {
	o.Mode = cmp.Or(o.Mode, EthtoolOff)
	if o.Mode == EthtoolOff {
		return nil
	}
	for _, x := range []struct {
		flag string
		d    time.Duration
	}{{"nic.ethtool.interval", o.Counters}, {"nic.module.interval", o.Modules}} {
		if x.d < 100*time.Millisecond {
			return fmt.Errorf("--%s: 100ms or more is expected, not %s", x.flag, x.d)
		}
	}
	return nil
}
