package attribute

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Row represents a row of the table of causes.
type Row struct {
	Cause string
	// Series is a name without its prefix fabric_switch_port_ or fabric_nic_port_, or a full name.
	Series string
	// Reasons are the values of the label (labelOf, mostly reason) to which the row applies. Empty means that it
	// applies to the whole series.
	Reasons []string
	// Weight is how strongly the reading alone points to the cause, from 0 to 1.
	Weight float64

	side  side
	unit  string
	queue bool // the row shows whether packets wait
	condition
}

// condition represents what a reading must meet. The test returns the reading as text, "" if it does not meet the
// condition, and the share of the row's weight that applies.
type condition struct {
	Description string
	test        func(r *readings, k reading) (text string, share float64)
}

// unknownBefore is the share of a row's weight where no value from before the incident is known.
const unknownBefore = 0.5

// Weights of causes that result from comparing readings with each other.
const (
	mtuWeight      = 0.9
	capacityWeight = 0.9
	routingWeight  = 0.3
	mostWeight     = 0.99
	// actsFrom is the weight from which a cause determines the recommended action.
	actsFrom = 0.5
)

// fullShare is the share of its rate from which a port is full: bursts need the rest.
const fullShare = 0.9

// fullPacket is an Ethernet packet of full size, octets: fewer wait whenever two meet.
const fullPacket = 1500

// growsBy returns a condition that a counter meets if it grew by least in the incident, and at least times as fast
// as before.
func growsBy(least, times float64) condition {
	return condition{fmt.Sprintf("grew by %.0f or more during the incident, and at least %.0f times as fast as before", least, times),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			n, ok := v.growthDuring()
			if !ok || n < least {
				return "", 0
			}
			return v.compareRate(k, n/v.seconds, times, fmt.Sprintf("%s grew by %s", counterName(k), formatNumber(n)))
		}}
}

// growsAtRate returns a condition that a counter meets if it grew by least per second in the incident, and at least
// times as fast as before.
func growsAtRate(least, times float64) condition {
	return condition{fmt.Sprintf("grew by %s per second or more, and at least %.0f times as fast as before", formatNumber(least), times),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			n, ok := v.growthDuring()
			if !ok || n < least*v.seconds {
				return "", 0
			}
			return v.compareRate(k, n/v.seconds, times, fmt.Sprintf("%s grew by %s per second", counterName(k), formatNumber(n/v.seconds)))
		}}
}

// compareRate compares a counter's rate with the rate before the incident. It returns "" if it is below times that rate.
func (v *values) compareRate(k reading, rate, times float64, text string) (string, float64) {
	was, ok := v.rateBefore()
	switch {
	case !ok:
		return text + ", rate before unknown", unknownBefore
	case rate < times*was:
		return "", 0
	}
	return fmt.Sprintf("%s, compared with %s per second before", text, formatNumber(was)), 1
}

// averageRises returns a condition that a gauge meets if its average rose by least or more, and to at least times its
// average before the incident.
func averageRises(least, times float64, unit string) condition {
	return condition{fmt.Sprintf("average at least %s above, and %.0f times, the average before", formatAmount(least, unit), times),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			if v.avgNow == nil || *v.avgNow < least {
				return "", 0
			}
			text := fmt.Sprintf("%s waited on average", formatAmount(*v.avgNow, unit))
			switch {
			case v.avgBefore == nil:
				return text + ", average before unknown", unknownBefore
			case *v.avgNow < *v.avgBefore+least, *v.avgNow < times**v.avgBefore:
				return "", 0
			}
			return fmt.Sprintf("%s, compared with %s before", text, formatAmount(*v.avgBefore, unit)), 1
		}}
}

// fellToZero returns a condition that a state meets if it was 1 before the incident and is 0 now.
func fellToZero(was, is string) condition {
	return condition{fmt.Sprintf("1 before, 0 now (%s, then %s)", was, is),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			if v.now == nil || *v.now != 0 {
				return "", 0
			}
			switch {
			case v.atStart == nil:
				return fmt.Sprintf("it is %s, previous state unknown", is), unknownBefore
			case *v.atStart == 0:
				return "", 0
			}
			return fmt.Sprintf("it is %s, previously %s", is, was), 1
		}}
}

// roseToOne returns a condition that a state meets if it was not 1 before the incident and is 1 now.
func roseToOne(is string) condition {
	return condition{fmt.Sprintf("0 before, 1 now (%s)", is),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			if v.now == nil || *v.now != 1 {
				return "", 0
			}
			switch {
			case v.atStart == nil:
				return fmt.Sprintf("it is %s, previous state unknown", is), unknownBefore
			case *v.atStart == 1:
				return "", 0
			}
			return fmt.Sprintf("it is %s, previously it was not", is), 1
		}}
}

// flagRaised is met by a series that exists only while the flag is set. If the end had other series before the
// incident, the flag was not set then.
var flagRaised = condition{"present during the incident, and absent before",
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		switch {
		case v.now == nil || *v.now < 1 || v.atStart != nil && *v.atStart >= 1: // more than 1: of several lanes
			return "", 0
		case !r.reportedBefore(k.end):
			return "reported by its node, previous state unknown", unknownBefore
		}
		return "reported by its node, and not before", 1
	}}

// lowerThanBefore returns a condition that a gauge meets if it is lower than before the incident, and not 0.
func lowerThanBefore(what, unit string) condition {
	return condition{"lower than before, and not 0",
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			if v.now == nil || v.atStart == nil || *v.now <= 0 || *v.now >= *v.atStart {
				return "", 0
			}
			return fmt.Sprintf("%s has %s, compared with %s before", what, formatAmount(*v.now, unit), formatAmount(*v.atStart, unit)), 1
		}}
}

// fewerNextHops is met by a port that fewer members of next-hop groups lead out of than before the incident.
var fewerNextHops = condition{"fewer than before; does not apply to hard failures and flaps, which have this effect",
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		if v.now == nil || v.atStart == nil || *v.now >= *v.atStart {
			return "", 0
		}
		return fmt.Sprintf("%s next-hop group members lead out of it, compared with %s before", formatNumber(*v.now), formatNumber(*v.atStart)), 1
	}}

// ratioRises returns a condition that a ratio meets if it is least or more, and at least times its value before the
// incident.
func ratioRises(least, times float64) condition {
	return condition{fmt.Sprintf("%g or more, and at least %.0f times the value before", least, times),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			switch {
			case v.now == nil || *v.now < least:
				return "", 0
			case v.atStart == nil:
				return fmt.Sprintf("%s is %.2g, value before unknown", counterName(k), *v.now), unknownBefore
			case *v.now < times**v.atStart:
				return "", 0
			}
			return fmt.Sprintf("%s is %.2g, compared with %.2g before", counterName(k), *v.now, *v.atStart), 1
		}}
}

// lightDropped is met if the optical power of all lanes together fell by a fifth or more.
var lightDropped = condition{"at least a fifth below the value before",
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		if v.now == nil || v.atStart == nil || *v.atStart <= 0 || *v.now > 0.8**v.atStart {
			return "", 0
		}
		return fmt.Sprintf("the optical power of its module is %.3g mW, compared with %.3g mW before", *v.now*1e3, *v.atStart*1e3), 1
	}}

// speedDropped is met by a rate below the rate before the incident.
var speedDropped = condition{"lower than before, and not 0",
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		if v.now == nil || v.atStart == nil || *v.now <= 0 || *v.now >= *v.atStart {
			return "", 0
		}
		return fmt.Sprintf("it runs at %s, compared with %s before", formatBitRate(*v.now), formatBitRate(*v.atStart)), 1
	}}

// portFilled is met by a port that sent at nearly its line rate, and did not before the incident.
var portFilled = condition{fmt.Sprintf("%.0f %% of speed_bytes_per_second or more, and less before", fullShare*100),
	func(r *readings, k reading) (string, float64) {
		v, speed := r.at[k], r.at[reading{k.end, "speed_bytes_per_second", ""}]
		n, ok := v.growthDuring()
		if !ok || speed == nil || speed.now == nil || *speed.now <= 0 || n/v.seconds < fullShare**speed.now {
			return "", 0
		}
		was, known := v.rateBefore()
		if known && was >= fullShare**speed.now {
			return "", 0
		}
		return fmt.Sprintf("it sends at %.0f %% of its line rate", 100*n/v.seconds / *speed.now), 1
	}}

const (
	queueBytes = "queue_bytes"
	octetUnit  = "B"
	packets    = "packets"
	// Series of a node, by NIC, that do not belong to a port.
	stalled     = "graylink_node_stalled_seconds_total"
	findings    = "fabric_nic_finding"
	driverLines = "fabric_nic_driver_events_total"
	pciErrors   = "fabric_nic_pci_errors_total"
	pciLanes    = "fabric_nic_pci_link_lanes"
	pciSpeed    = "fabric_nic_pci_link_transfers_per_second"
	// Counters of hw_counters/ under the kernel's names.
	rdma = "hardware_total"
	// Interface data from ethtool: pause frames, the driver's counters under the driver's names, and the warnings of
	// the plugged module.
	pauseFrames  = "fabric_nic_pause_frames_total"
	driverCounts = "fabric_nic_driver_statistic_total"
	moduleFlags  = "fabric_nic_module_flag"
	// Series of InfiniBand ports: ticks of waiting by virtual lane, and the traps that the subnet manager received.
	vlWait = "vl_transmit_wait_ticks_total"
	traps  = "traps_total"
	// Series of a switch's control plane, by switch.
	policed = "fabric_switch_control_plane_discards_total"
)

// pauseCounters returns the names of the driver's counters of pause frames, of all priorities (mlx5).
func pauseCounters(way string) (out []string) {
	for i := range 8 {
		out = append(out, fmt.Sprintf("%s_prio%d_pause", way, i))
	}
	return out
}

// virtualLanes returns the numbers of the virtual lanes that carry data (IBA volume 1, 7.6: VL 15 carries management).
func virtualLanes() (out []string) {
	for i := range 15 {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

// labels holds the label that distinguishes the series of one end, where that is not reason.
var labels = map[string]string{vlWait: "vl", traps: "trap", "state": "state", "phys_state": "state", findings: "code", driverLines: "code", pciErrors: "severity", pciLanes: "is", pciSpeed: "is", rdma: "counter",
	pauseFrames: "direction", driverCounts: "counter", moduleFlags: "flag"}

// labelOf returns the label that distinguishes the series of one end.
func labelOf(series string) string {
	if l := labels[series]; l != "" {
		return l
	}
	return "reason"
}

// table lists which reading of which end points to which cause, and how strongly.
var table = []Row{
	{Cause: fabric.CauseCongestion, Series: queueBytes, Weight: 0.9, side: sends, unit: octetUnit, queue: true, condition: averageRises(fullPacket, 3, octetUnit)},
	{Cause: fabric.CauseCongestion, Series: "queue_packets", Weight: 0.6, side: sends, unit: packets, queue: true, condition: averageRises(2, 3, packets)},
	{Cause: fabric.CauseCongestion, Series: "queue_overlimits_total", Weight: 0.5, side: sends, queue: true, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: "receive_fecn_packets_total", Weight: 0.6, side: receives, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: "receive_becn_packets_total", Weight: 0.5, side: sends, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: "transmit_bytes_total", Weight: 0.3, side: sends, condition: portFilled},

	{Cause: fabric.CauseStall, Series: "transmit_wait_ticks_total", Weight: 0.7, side: sends, condition: waitsLonger},
	{Cause: fabric.CauseStall, Series: vlWait, Reasons: virtualLanes(), Weight: 0.5, side: sends, condition: waitsLonger},
	{Cause: fabric.CauseStall, Series: traps, Reasons: []string{"131"}, Weight: 0.8, side: sends, condition: trapsCounted(1)},
	{Cause: fabric.CauseStall, Series: "transmit_discard_details_total", Reasons: []string{"lifetime", "head_of_queue_lifetime"}, Weight: 0.7, side: sends, condition: growsBy(3, 3)},

	{Cause: fabric.CauseDrops, Series: "queue_discards_total", Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "transmit_discards_total", Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "receive_discards_total", Weight: 0.5, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "receive_errors_total", Reasons: []string{"overrun", "fifo", "missed", "switch_relay", "constraint"}, Weight: 0.5, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "transmit_errors_total", Reasons: []string{"aborted", "fifo", "heartbeat", "constraint"}, Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "buffer_overruns_total", Weight: 0.5, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "receive_error_details_total", Reasons: []string{"buffer_overrun", "dlid_mapping", "vl_mapping"}, Weight: 0.6, side: receives, condition: growsBy(3, 3)},
	// Multicast packets that would return to their sender count as looping on healthy switches, too.
	{Cause: fabric.CauseDrops, Series: "receive_error_details_total", Reasons: []string{"looping"}, Weight: 0.3, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: traps, Reasons: []string{"130"}, Weight: 0.6, side: receives, condition: trapsCounted(1)},

	{Cause: fabric.CausePhysical, Series: "receive_errors_total", Reasons: []string{"crc", "alignment", "damaged"}, Weight: 0.8, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CausePhysical, Series: "receive_error_details_total", Reasons: []string{"local_physical", "malformed"}, Weight: 0.7, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CausePhysical, Series: "symbol_errors_total", Weight: 0.7, side: receives, condition: exceedsBitErrorLimit},
	{Cause: fabric.CausePhysical, Series: "effective_errors_total", Weight: 0.7, side: receives, condition: exceedsBitErrorLimit},
	{Cause: fabric.CausePhysical, Series: traps, Reasons: []string{"129"}, Weight: 0.7, side: receives, condition: trapsCounted(1)},
	{Cause: fabric.CausePhysical, Series: "link_recoveries_total", Weight: 0.7, side: receives, condition: growsBy(1, 3)},
	{Cause: fabric.CausePhysical, Series: "local_link_integrity_errors_total", Weight: 0.7, side: receives, condition: growsBy(1, 3)},
	{Cause: fabric.CausePhysical, Series: "fec_uncorrectable_blocks_total", Weight: 0.8, side: receives, condition: growsBy(1, 3)},
	{Cause: fabric.CausePhysical, Series: "lane_fec_uncorrectable_blocks_total", Weight: 0.8, side: receives, condition: growsBy(1, 3)},
	{Cause: fabric.CausePhysical, Series: "fec_corrected_blocks_total", Weight: 0.3, side: receives, condition: growsAtRate(1, 10)},
	{Cause: fabric.CausePhysical, Series: "sync_header_errors_total", Weight: 0.5, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CausePhysical, Series: "lane_errors_total", Weight: 0.5, side: receives, condition: growsBy(3, 3)},

	{Cause: fabric.CauseFlap, Series: "carrier_changes_total", Weight: 0.97, side: either, condition: growsBy(3, 3)},
	{Cause: fabric.CauseFlap, Series: "link_downed_total", Weight: 0.9, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseFlap, Series: traps, Reasons: []string{"128"}, Weight: 0.6, side: either, condition: trapsCounted(3)},
	{Cause: fabric.CauseFlap, Series: "transmit_errors_total", Reasons: []string{"carrier"}, Weight: 0.4, side: sends, condition: growsBy(1, 3)},
	{Cause: fabric.CauseDown, Series: "oper_up", Weight: 0.9, side: either, condition: fellToZero("up", "down")},
	{Cause: fabric.CauseDown, Series: "transmit_discard_details_total", Reasons: []string{"port_inactive"}, Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CauseAdmin, Series: "admin_up", Weight: 0.95, side: either, condition: fellToZero("enabled", "shut by configuration")},
	{Cause: fabric.CauseDownshift, Series: "speed_bytes_per_second", Weight: 0.9, side: either, condition: speedDropped},

	{Cause: fabric.CauseMTU, Series: "receive_errors_total", Reasons: []string{"length"}, Weight: 0.4, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseMTU, Series: "transmit_discard_details_total", Reasons: []string{"neighbor_mtu"}, Weight: 0.9, side: sends, condition: growsBy(3, 3)},

	// Series of switches from gNMI or UFM. Pauses and marks are summed over priorities and classes.
	{Cause: fabric.CauseCongestion, Series: "ecn_marked_packets_total", Weight: 0.7, side: sends, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: "queue_ecn_marked_packets_total", Weight: 0.7, side: sends, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseStall, Series: "pfc_receive_frames_total", Weight: 0.8, side: sends, condition: growsAtRate(10, 3)},
	{Cause: fabric.CauseStall, Series: "pfc_receive_pause_seconds_total", Weight: 0.9, side: sends, condition: growsAtRate(0.01, 3)},
	{Cause: fabric.CauseStall, Series: "pfc_deadlocks_total", Weight: 0.9, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseDrops, Series: "queue_discards_total", Reasons: []string{"full", "wred", "all"}, Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CausePhysical, Series: "post_fec_ber_ratio", Weight: 0.8, side: receives, condition: ratioRises(1e-12, 10)},
	{Cause: fabric.CausePhysical, Series: "symbol_ber_ratio", Weight: 0.8, side: receives, condition: ratioRises(1e-12, 10)},
	{Cause: fabric.CausePhysical, Series: "pre_fec_ber_ratio", Weight: 0.4, side: receives, condition: ratioRises(1e-6, 10)},
	{Cause: fabric.CauseOptics, Series: "module_receive_power_watts", Weight: 0.6, side: receives, condition: lightDropped},
	{Cause: fabric.CauseOptics, Series: "module_transmit_power_watts", Weight: 0.7, side: sends, condition: lightDropped},

	// A switch's forwarding tables. A failure or flap changes them, so the change is not its cause (attributionOf).
	{Cause: fabric.CauseRouting, Series: "next_hop_group_members", Weight: 0.4, side: sends, condition: fewerNextHops},

	// Series that nodes report of their NICs.
	{Cause: fabric.CauseOptics, Series: "fabric_nic_module_receive_power_watts", Weight: 0.6, side: receives, condition: lightDropped},
	{Cause: fabric.CauseOptics, Series: "fabric_nic_module_transmit_power_watts", Weight: 0.7, side: sends, condition: lightDropped},
	{Cause: fabric.CauseDown, Series: "state", Reasons: []string{"ACTIVE"}, Weight: 0.9, side: either, condition: fellToZero("ACTIVE", "not ACTIVE")},
	{Cause: fabric.CauseAdmin, Series: "phys_state", Reasons: []string{"Disabled"}, Weight: 0.6, side: either, condition: roseToOne("Disabled")},
	{Cause: fabric.CausePhysical, Series: "phys_state", Reasons: []string{"LinkErrorRecovery"}, Weight: 0.8, side: either, condition: roseToOne("recovering from errors")},
	{Cause: fabric.CauseDownshift, Series: "rate_bytes_per_second", Weight: 0.9, side: either, condition: speedDropped},
	{Cause: fabric.CauseNIC, Series: findings, Reasons: []string{"device_disappeared"}, Weight: 0.95, side: either, condition: flagRaised},
	{Cause: fabric.CauseNIC, Series: driverLines, Reasons: []string{"cmd_exec_timeout", "health_compromised", "unrecoverable_hw_error", "pcie_fatal"}, Weight: 0.95, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseNIC, Series: driverLines, Reasons: []string{"netdev_watchdog"}, Weight: 0.7, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseNIC, Series: driverLines, Reasons: []string{"insufficient_power"}, Weight: 0.5, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseNIC, Series: pciErrors, Reasons: []string{"fatal", "nonfatal"}, Weight: 0.8, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseNIC, Series: pciLanes, Reasons: []string{"current"}, Weight: 0.8, side: either, condition: lowerThanBefore("its PCI link", "lanes")},
	{Cause: fabric.CauseNIC, Series: pciSpeed, Reasons: []string{"current"}, Weight: 0.8, side: either, condition: lowerThanBefore("its PCI link", "transfers per second and lane")},
	{Cause: fabric.CauseOptics, Series: driverLines, Reasons: []string{"module_absent"}, Weight: 0.9, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseOptics, Series: driverLines, Reasons: []string{"high_temperature"}, Weight: 0.5, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseOptics, Series: moduleFlags, Reasons: []string{"receive_loss_of_signal", "receive_loss_of_lock", "transmit_fault", "module_firmware_error", "data_path_firmware_error"}, Weight: 0.9, side: either, condition: flagRaised},
	{Cause: fabric.CauseOptics, Series: moduleFlags, Reasons: []string{"receive_power_low_alarm", "transmit_power_low_alarm", "bias_high_alarm", "bias_low_alarm", "temperature_high_alarm", "voltage_low_alarm", "voltage_high_alarm"},
		Weight: 0.8, side: either, condition: flagRaised},
	{Cause: fabric.CausePhysical, Series: driverCounts, Reasons: []string{"rx_crc_errors_phy", "rx_symbol_err_phy"}, Weight: 0.8, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseStall, Series: pauseFrames, Reasons: []string{"receive"}, Weight: 0.6, side: sends, condition: growsAtRate(10, 3)},
	{Cause: fabric.CauseStall, Series: driverCounts, Reasons: pauseCounters("rx"), Weight: 0.7, side: sends, condition: growsAtRate(10, 3)},
	{Cause: fabric.CauseHost, Series: pauseFrames, Reasons: []string{"transmit"}, Weight: 0.6, side: receives, condition: growsAtRate(10, 3)},
	{Cause: fabric.CauseHost, Series: driverCounts, Reasons: pauseCounters("tx"), Weight: 0.7, side: receives, condition: growsAtRate(10, 3)},
	{Cause: fabric.CauseHost, Series: driverCounts, Reasons: []string{"rx_discards_phy", "rx_out_of_buffer"}, Weight: 0.5, side: receives, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: rdma, Reasons: []string{"np_ecn_marked_roce_packets"}, Weight: 0.6, side: receives, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: rdma, Reasons: []string{"np_cnp_sent"}, Weight: 0.4, side: receives, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: rdma, Reasons: []string{"rp_cnp_handled"}, Weight: 0.5, side: sends, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseDrops, Series: rdma, Reasons: []string{"out_of_sequence"}, Weight: 0.3, side: receives, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseDrops, Series: rdma, Reasons: []string{"packet_seq_err", "local_ack_timeout_err"}, Weight: 0.3, side: sends, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseHost, Series: rdma, Reasons: []string{"out_of_buffer", "rnr_nak_retry_err"}, Weight: 0.5, side: either, condition: growsAtRate(1, 3)},

	{Cause: fabric.CauseControl, Series: policed, Weight: 0.6, side: either, condition: growsAtRate(10, 3)},

	{Cause: fabric.CauseHost, Series: stalled, Weight: 0.7, side: either, condition: growsAtRate(0.05, 3)},
}

// compared lists the causes that result from comparing readings with each other.
var compared = []struct{ cause, series, condition, weight string }{
	{fabric.CauseMTU, "mtu_bytes", "the two ends of a cable differ", fmt.Sprintf("%g; half of it if they differed before", mtuWeight)},
	{fabric.CauseCapacity, "oper_up", "uplink ports of a leaf (kind leaf_uplinks) that are 0", fmt.Sprint(capacityWeight)},
	{fabric.CauseCongestion, "in-band signals (`fabric_csig_*`)", "half of the tags name the sending port with a value of congestion", fmt.Sprintf("%g; half of it if the share was as small before, or is not known", signalWeight)},
	{fabric.CauseRouting, "the analyzer's own paths", "flows of the verdict took another path since it began; does not apply to hard failures and flaps, which have this effect", fmt.Sprint(routingWeight)},
}

// actions holds the recommended action for each cause. Its verb %s is the end whose series point to the cause.
var actions = map[string]string{
	fabric.CauseCongestion: "Nothing is broken. Find the jobs that fill the queue at %s, and spread or pace them. Check its pause frames and the ECMP balance across its neighbours.",
	fabric.CauseStall:      "Look downstream of %s: the device it sends to accepts packets too slowly. Follow the pause frames or missing credits to the receiver that stalls.",
	fabric.CauseDrops:      "Find out from its discard counters why %s drops packets (buffer, filter, forwarding). Cost it out of ECMP if jobs are affected.",
	fabric.CausePhysical:   "Clean or replace the optics and cable at %s: packets arrive damaged. Cost the link out of ECMP until its error counters stop growing.",
	fabric.CauseRouting:    "Find out why routing left %s. Check its sessions with the neighbour, withdrawn routes and recent configuration changes.",
	fabric.CauseFlap:       "Shut the link at %s down at both ends, so that routing stops returning to it. Then check optics and cable.",
	fabric.CauseDown:       "The link at %s is down. Check optics, cable and the port at the other end, and replace the failed part.",
	fabric.CauseAdmin:      "%s is shut down by configuration. Find out who did that and why, then enable it or put it under maintenance.",
	fabric.CauseDownshift:  "Reseat or replace the optics and cable at %s: it negotiated a lower rate. Cost it out of ECMP until the full rate is back.",
	fabric.CauseCapacity:   "Restore the uplink ports of the leaf that are down, %s first. Keep new jobs off this leaf until then.",
	fabric.CauseMTU:        "Set the same MTU at both ends of the cable at %s.",
	fabric.CauseNIC:        "Take the node of %s out of service and replace the NIC: its driver, firmware or PCI link reports that it is broken.",
	fabric.CauseOptics:     "Check the optics or cable of %s: whether it is present, its seating and its cooling. Replace it.",
	fabric.CauseControl:    "Find out which traffic floods the control plane of %s, and check its policers: routing sessions and LLDP depend on it.",
	fabric.CauseHost:       "Do not change the network. Check CPU load, interrupts and PCIe of the node of %s.",
}

// noQueue is the recommended action where the probes show the pattern of a queue, and the queue is empty.
const noQueue = "Find out what marks, delays or drops packets there without a queue: check ECN and WRED settings, policers and filters. Cost the link out of ECMP if jobs are affected."

// MarkdownTable writes the table of causes in Markdown.
func MarkdownTable() string {
	var b strings.Builder
	b.WriteString("| cause | series | end | condition | weight |\n| --- | --- | --- | --- | --- |\n")
	for i := range table {
		r := &table[i]
		series := "`" + r.Series + "`"
		if len(r.Reasons) > 0 {
			series += ", `" + labelOf(r.Series) + "` " + strings.Join(r.Reasons, ", ")
		}
		end := map[side]string{sends: "sends", receives: "receives", either: "either"}[r.side]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %g |\n", r.Cause, series, end, r.Description, r.Weight)
	}
	for _, c := range compared {
		fmt.Fprintf(&b, "| `%s` | %s | | %s | %s |\n", c.cause, c.series, c.condition, c.weight)
	}
	return b.String()
}

// portSeries returns the sorted names of the queried series without the prefixes fabric_switch_port_ and
// fabric_nic_port_.
func portSeries() []string {
	names := map[string]bool{"mtu_bytes": true, "speed_bytes_per_second": true, waitTick: true}
	for i := range table {
		if !isWholeName(table[i].Series) {
			names[table[i].Series] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// isWholeName reports whether the series of a row has its full name.
func isWholeName(series string) bool {
	return strings.HasPrefix(series, "graylink_") || strings.HasPrefix(series, "fabric_")
}

// Owners of series with full names.
const (
	ofNIC    = false
	ofSwitch = true
)

// SeriesOf returns the full names of the series of a switch, a port or a NIC that can show a cause, sorted. There are none for a cause
// that follows from something else, such as paths.
func SeriesOf(cause, element string) (out []string) {
	_, _, isPort := fabric.SplitPort(element)
	isNIC := fabric.IsNIC(element)
	for i := range table {
		row := &table[i]
		ofSwitch := strings.HasPrefix(row.Series, "fabric_switch_")
		switch {
		case row.Cause != cause:
		case isWholeName(row.Series) && !isPort && ofSwitch != isNIC:
			out = append(out, row.Series)
		case isWholeName(row.Series):
		case isNIC:
			out = append(out, nicPrefix+row.Series)
		case isPort:
			out = append(out, switchPrefix+row.Series)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// wholeNames returns the sorted full names of the queried series, of NICs or of switches.
func wholeNames(of bool) []string {
	names := map[string]bool{}
	for i := range table {
		if isWholeName(table[i].Series) && strings.HasPrefix(table[i].Series, "fabric_switch_") == of {
			names[table[i].Series] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
