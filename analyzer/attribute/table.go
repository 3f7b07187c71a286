package attribute

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Row is a row of the table of causes.
type Row struct {
	Cause string
	// Series is a name behind fabric_switch_port_ and fabric_nic_port_, or a whole name.
	Series string
	// Reasons are the values of the series' label (labelOf: mostly reason) that count; none:
	// all of the series.
	Reasons []string
	// Weight is how far the reading alone points to the cause, 0 to 1.
	Weight float64

	side  side
	unit  string
	queue bool // the row says whether packets wait
	condition
}

// condition is what a reading must meet: in words, and as a test that gives the reading in
// words, "" if it does not meet it, with the share of the row's weight that it has.
type condition struct {
	Description string
	test        func(r *readings, k reading) (text string, share float64)
}

// unknownBefore is the share of a row's weight where nothing is known of before.
const unknownBefore = 0.5

// Weights of causes that are found by comparing readings with each other.
const (
	mtuWeight      = 0.9
	capacityWeight = 0.9
	routingWeight  = 0.3
	mostWeight     = 0.99
	// actsFrom is the weight from which a cause decides what to do.
	actsFrom = 0.5
)

// fullShare is the share of its rate from which a port is full: bursts need the rest.
const fullShare = 0.9

// fullPacket is an Ethernet packet of full size, octets: fewer wait whenever two meet.
const fullPacket = 1500

// growsBy is met by a counter that grew by least in the incident, and more than times as fast as
// before.
func growsBy(least, times float64) condition {
	return condition{fmt.Sprintf("grew by %.0f or more in the incident, and %.0f times as fast as before", least, times),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			n, ok := v.growthDuring()
			if !ok || n < least {
				return "", 0
			}
			return v.compareRate(k, n/v.seconds, times, fmt.Sprintf("%s grew by %s", counterName(k), formatNumber(n)))
		}}
}

// growsAtRate is met by a counter that grew by least a second in the incident, and more than times as fast
// as before.
func growsAtRate(least, times float64) condition {
	return condition{fmt.Sprintf("grew by %s a second or more, and %.0f times as fast as before", formatNumber(least), times),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			n, ok := v.growthDuring()
			if !ok || n < least*v.seconds {
				return "", 0
			}
			return v.compareRate(k, n/v.seconds, times, fmt.Sprintf("%s grew by %s a second", counterName(k), formatNumber(n/v.seconds)))
		}}
}

// compareRate compares a counter's rate with that of before.
func (v *values) compareRate(k reading, rate, times float64, text string) (string, float64) {
	was, ok := v.rateBefore()
	switch {
	case !ok:
		return text + ", before: not known", unknownBefore
	case rate < times*was:
		return "", 0
	}
	return fmt.Sprintf("%s, by %s a second before", text, formatNumber(was)), 1
}

// averageRises is met by a gauge whose average rose by more than least, and to times what it was.
func averageRises(least, times float64, unit string) condition {
	return condition{fmt.Sprintf("on average %s or more above, and %.0f times, what it was before", formatAmount(least, unit), times),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			if v.avgNow == nil || *v.avgNow < least {
				return "", 0
			}
			text := fmt.Sprintf("%s waited on average", formatAmount(*v.avgNow, unit))
			switch {
			case v.avgBefore == nil:
				return text + ", before: not known", unknownBefore
			case *v.avgNow < *v.avgBefore+least, *v.avgNow < times**v.avgBefore:
				return "", 0
			}
			return fmt.Sprintf("%s, %s before", text, formatAmount(*v.avgBefore, unit)), 1
		}}
}

// fellToZero is met by a state that was 1 before the incident and is 0 now.
func fellToZero(was, is string) condition {
	return condition{fmt.Sprintf("1 before, 0 now (%s, then %s)", was, is),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			if v.now == nil || *v.now != 0 {
				return "", 0
			}
			switch {
			case v.atStart == nil:
				return fmt.Sprintf("it is %s, before: not known", is), unknownBefore
			case *v.atStart == 0:
				return "", 0
			}
			return fmt.Sprintf("it is %s, it was %s before", is, was), 1
		}}
}

// roseToOne is met by a state that was not 1 before the incident and is 1 now.
func roseToOne(is string) condition {
	return condition{fmt.Sprintf("0 before, 1 now (%s)", is),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			if v.now == nil || *v.now != 1 {
				return "", 0
			}
			switch {
			case v.atStart == nil:
				return fmt.Sprintf("it is %s, before: not known", is), unknownBefore
			case *v.atStart == 1:
				return "", 0
			}
			return fmt.Sprintf("it is %s, it was not before", is), 1
		}}
}

// flagRaised is met by what is published only while it holds: where the end told other things
// before the incident, it did not hold then.
var flagRaised = condition{"there in the incident, and not before",
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		switch {
		case v.now == nil || *v.now < 1 || v.atStart != nil && *v.atStart >= 1: // more than 1: of several lanes
			return "", 0
		case !r.reportedBefore(k.end):
			return "its node says so, before: not known", unknownBefore
		}
		return "its node says so, and did not before", 1
	}}

// lowerThanBefore is met by what is lower than before, and not 0.
func lowerThanBefore(what, unit string) condition {
	return condition{"lower than before, and not 0",
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			if v.now == nil || v.atStart == nil || *v.now <= 0 || *v.now >= *v.atStart {
				return "", 0
			}
			return fmt.Sprintf("%s has %s, %s before", what, formatAmount(*v.now, unit), formatAmount(*v.atStart, unit)), 1
		}}
}

// fewerNextHops is met by a port that fewer routes' groups of next hops have as a way out than before.
var fewerNextHops = condition{"fewer than before; not for failures and flaps, whose consequence that is",
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		if v.now == nil || v.atStart == nil || *v.now >= *v.atStart {
			return "", 0
		}
		return fmt.Sprintf("%s members of groups of next hops lead out of it, %s before", formatNumber(*v.now), formatNumber(*v.atStart)), 1
	}}

// ratioRises is met by a ratio of least or more, and times what it was before.
func ratioRises(least, times float64) condition {
	return condition{fmt.Sprintf("%g or more, and %.0f times what it was before", least, times),
		func(r *readings, k reading) (string, float64) {
			v := r.at[k]
			switch {
			case v.now == nil || *v.now < least:
				return "", 0
			case v.atStart == nil:
				return fmt.Sprintf("%s is %.2g, before: not known", counterName(k), *v.now), unknownBefore
			case *v.now < times**v.atStart:
				return "", 0
			}
			return fmt.Sprintf("%s is %.2g, %.2g before", counterName(k), *v.now, *v.atStart), 1
		}}
}

// lightDropped is met by light, all lanes together, that fell by a fifth or more.
var lightDropped = condition{"a fifth or more below what it was before",
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		if v.now == nil || v.atStart == nil || *v.atStart <= 0 || *v.now > 0.8**v.atStart {
			return "", 0
		}
		return fmt.Sprintf("its module has %.3g mW of light, %.3g mW before", *v.now*1e3, *v.atStart*1e3), 1
	}}

// speedDropped is met by a rate below the one of before.
var speedDropped = condition{"lower than before, and not 0",
	func(r *readings, k reading) (string, float64) {
		v := r.at[k]
		if v.now == nil || v.atStart == nil || *v.now <= 0 || *v.now >= *v.atStart {
			return "", 0
		}
		return fmt.Sprintf("it runs at %s, at %s before", formatBitRate(*v.now), formatBitRate(*v.atStart)), 1
	}}

// portFilled is met by a port that sent at nearly its speed, and did not before.
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
		return fmt.Sprintf("it sends at %.0f %% of its rate", 100*n/v.seconds / *speed.now), 1
	}}

const (
	queueBytes = "queue_bytes"
	octetUnit  = "B"
	packets    = "packets"
	// Series of a node, by NIC, that are none of a port.
	stalled     = "graylink_node_stalled_seconds_total"
	findings    = "fabric_nic_finding"
	driverLines = "fabric_nic_driver_events_total"
	pciErrors   = "fabric_nic_pci_errors_total"
	pciLanes    = "fabric_nic_pci_link_lanes"
	pciSpeed    = "fabric_nic_pci_link_transfers_per_second"
	// Counters of hw_counters/ under the kernel's names.
	rdma = "hardware_total"
	// What ethtool tells of interfaces: pause frames, the driver's counters under its names, and
	// what the plugged module warns of.
	pauseFrames  = "fabric_nic_pause_frames_total"
	driverCounts = "fabric_nic_driver_statistic_total"
	moduleFlags  = "fabric_nic_module_flag"
	// Of a switch's processor, by switch.
	policed = "fabric_switch_control_plane_discards_total"
)

// pauseCounters are the driver's counters of pause frames of all priorities (mlx5).
func pauseCounters(way string) (out []string) {
	for i := range 8 {
		out = append(out, fmt.Sprintf("%s_prio%d_pause", way, i))
	}
	return out
}

// labels are those by which the series of one end are told apart, where that is not reason.
var labels = map[string]string{"state": "state", "phys_state": "state", findings: "code", driverLines: "code", pciErrors: "severity", pciLanes: "is", pciSpeed: "is", rdma: "counter",
	pauseFrames: "direction", driverCounts: "counter", moduleFlags: "flag"}

// labelOf is the label by which a series of one end is told apart.
func labelOf(series string) string {
	if l := labels[series]; l != "" {
		return l
	}
	return "reason"
}

// table is the table of causes: which reading of which end points to which cause, and how far.
var table = []Row{
	{Cause: fabric.CauseCongestion, Series: queueBytes, Weight: 0.9, side: sends, unit: octetUnit, queue: true, condition: averageRises(fullPacket, 3, octetUnit)},
	{Cause: fabric.CauseCongestion, Series: "queue_packets", Weight: 0.6, side: sends, unit: packets, queue: true, condition: averageRises(2, 3, packets)},
	{Cause: fabric.CauseCongestion, Series: "queue_overlimits_total", Weight: 0.5, side: sends, queue: true, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: "receive_fecn_packets_total", Weight: 0.6, side: receives, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseCongestion, Series: "transmit_bytes_total", Weight: 0.3, side: sends, condition: portFilled},

	{Cause: fabric.CauseStall, Series: "transmit_wait_ticks_total", Weight: 0.7, side: sends, condition: growsAtRate(1000, 3)},
	{Cause: fabric.CauseStall, Series: "vl_transmit_wait_ticks_total", Weight: 0.5, side: sends, condition: growsAtRate(1000, 3)},
	{Cause: fabric.CauseStall, Series: "transmit_discard_details_total", Reasons: []string{"lifetime", "head_of_queue_lifetime"}, Weight: 0.7, side: sends, condition: growsBy(3, 3)},

	{Cause: fabric.CauseDrops, Series: "queue_discards_total", Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "transmit_discards_total", Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "receive_discards_total", Weight: 0.5, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "receive_errors_total", Reasons: []string{"overrun", "fifo", "missed", "switch_relay", "constraint"}, Weight: 0.5, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "transmit_errors_total", Reasons: []string{"aborted", "fifo", "heartbeat", "constraint"}, Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CauseDrops, Series: "buffer_overruns_total", Weight: 0.5, side: receives, condition: growsBy(3, 3)},

	{Cause: fabric.CausePhysical, Series: "receive_errors_total", Reasons: []string{"crc", "alignment", "damaged"}, Weight: 0.8, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CausePhysical, Series: "receive_error_details_total", Reasons: []string{"local_physical", "malformed"}, Weight: 0.7, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CausePhysical, Series: "symbol_errors_total", Weight: 0.7, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CausePhysical, Series: "link_recoveries_total", Weight: 0.7, side: receives, condition: growsBy(1, 3)},
	{Cause: fabric.CausePhysical, Series: "local_link_integrity_errors_total", Weight: 0.7, side: receives, condition: growsBy(1, 3)},
	{Cause: fabric.CausePhysical, Series: "fec_uncorrectable_blocks_total", Weight: 0.8, side: receives, condition: growsBy(1, 3)},
	{Cause: fabric.CausePhysical, Series: "lane_fec_uncorrectable_blocks_total", Weight: 0.8, side: receives, condition: growsBy(1, 3)},
	{Cause: fabric.CausePhysical, Series: "fec_corrected_blocks_total", Weight: 0.3, side: receives, condition: growsAtRate(1, 10)},
	{Cause: fabric.CausePhysical, Series: "sync_header_errors_total", Weight: 0.5, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CausePhysical, Series: "lane_errors_total", Weight: 0.5, side: receives, condition: growsBy(3, 3)},

	{Cause: fabric.CauseFlap, Series: "carrier_changes_total", Weight: 0.97, side: either, condition: growsBy(3, 3)},
	{Cause: fabric.CauseFlap, Series: "link_downed_total", Weight: 0.9, side: either, condition: growsBy(1, 3)},
	{Cause: fabric.CauseFlap, Series: "transmit_errors_total", Reasons: []string{"carrier"}, Weight: 0.4, side: sends, condition: growsBy(1, 3)},
	{Cause: fabric.CauseDown, Series: "oper_up", Weight: 0.9, side: either, condition: fellToZero("up", "down")},
	{Cause: fabric.CauseDown, Series: "transmit_discard_details_total", Reasons: []string{"port_inactive"}, Weight: 0.5, side: sends, condition: growsBy(3, 3)},
	{Cause: fabric.CauseAdmin, Series: "admin_up", Weight: 0.95, side: either, condition: fellToZero("enabled", "shut by configuration")},
	{Cause: fabric.CauseDownshift, Series: "speed_bytes_per_second", Weight: 0.9, side: either, condition: speedDropped},

	{Cause: fabric.CauseMTU, Series: "receive_errors_total", Reasons: []string{"length"}, Weight: 0.4, side: receives, condition: growsBy(3, 3)},
	{Cause: fabric.CauseMTU, Series: "transmit_discard_details_total", Reasons: []string{"neighbor_mtu"}, Weight: 0.9, side: sends, condition: growsBy(3, 3)},

	// What switches tell by gNMI, or UFM tells of them: pauses and marks by priority and class are
	// summed.
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

	// What a switch's forwarding tables say. Of failures and flaps it is the consequence (explain).
	{Cause: fabric.CauseRouting, Series: "next_hop_group_members", Weight: 0.4, side: sends, condition: fewerNextHops},

	// What the NICs of nodes tell of themselves.
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
	{Cause: fabric.CauseNIC, Series: pciSpeed, Reasons: []string{"current"}, Weight: 0.8, side: either, condition: lowerThanBefore("its PCI link", "transfers a second and lane")},
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
	{Cause: fabric.CauseCongestion, Series: rdma, Reasons: []string{"rp_cnp_handled"}, Weight: 0.5, side: sends, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseDrops, Series: rdma, Reasons: []string{"out_of_sequence"}, Weight: 0.3, side: receives, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseDrops, Series: rdma, Reasons: []string{"packet_seq_err", "local_ack_timeout_err"}, Weight: 0.3, side: sends, condition: growsAtRate(1, 3)},
	{Cause: fabric.CauseHost, Series: rdma, Reasons: []string{"out_of_buffer", "rnr_nak_retry_err"}, Weight: 0.5, side: either, condition: growsAtRate(1, 3)},

	{Cause: fabric.CauseControl, Series: policed, Weight: 0.6, side: either, condition: growsAtRate(10, 3)},

	{Cause: fabric.CauseHost, Series: stalled, Weight: 0.7, side: either, condition: growsAtRate(0.05, 3)},
}

// compared are causes that are found by comparing readings with each other.
var compared = []struct{ cause, series, condition, weight string }{
	{fabric.CauseMTU, "mtu_bytes", "the two ends of a cable differ", fmt.Sprintf("%g; half of it where they differed before", mtuWeight)},
	{fabric.CauseCapacity, "oper_up", "of a leaf's way out (kind leaf_uplinks), ports that are 0", fmt.Sprint(capacityWeight)},
	{fabric.CauseRouting, "the analyzer's own paths", "flows of the verdict took another way since it began; not for failures and flaps, whose consequence that is", fmt.Sprint(routingWeight)},
}

// actions are what to do about a cause, with the end that told of it.
var actions = map[string]string{
	fabric.CauseCongestion: "Nothing is broken: find the jobs that fill the queue at %s and spread or pace them; look at its pause frames and at ECMP's balance over its neighbours.",
	fabric.CauseStall:      "Look beyond %s: what it sends to takes packets too slowly. Follow the pause frames or missing credits to the receiver that stops.",
	fabric.CauseDrops:      "Look at why %s throws packets away (buffer, filter, forwarding), by its discard counters; cost it out of ECMP if jobs are affected.",
	fabric.CausePhysical:   "Clean or replace the optic and cable at %s: packets arrive damaged. Cost the link out of ECMP until its counters stand still.",
	fabric.CauseRouting:    "Find out why routing left %s: look at its sessions with the neighbour, and at what was withdrawn or configured.",
	fabric.CauseFlap:       "Shut the link at %s at both ends, so that routing stops coming back to it; then look at optics and cable.",
	fabric.CauseDown:       "The link at %s is down: look at optics, cable and the port across it, and replace what is dead.",
	fabric.CauseAdmin:      "Somebody shut %s by configuration: ask who and why, and enable it, or put it under maintenance.",
	fabric.CauseDownshift:  "Reseat or replace optic and cable at %s: it negotiated a lower rate. Cost it out of ECMP until it is back.",
	fabric.CauseCapacity:   "Bring the leaf's ports that are down back, %s first; until then keep new jobs off this leaf.",
	fabric.CauseMTU:        "Set the same MTU at both ends of the cable at %s.",
	fabric.CauseNIC:        "Take the node of %s out of service and replace the NIC: its own driver, firmware or PCI link says that it is broken.",
	fabric.CauseOptics:     "Look at the optic or cable of %s: seat, cooling, and whether it is there at all; replace it.",
	fabric.CauseControl:    "Look at what floods the processor of %s, and at its policers: the sessions of routing and LLDP live there.",
	fabric.CauseHost:       "Leave the network alone. Look at CPU load, interrupts and PCIe of the node of %s.",
}

// noQueue is what to do where packets suffer as behind a queue, and there is none.
const noQueue = "Look at what marks, delays or drops packets there without a queue: ECN and WRED settings, policers, filters; cost the link out of ECMP if jobs are affected."

// MarkdownTable writes the table of causes in Markdown.
func MarkdownTable() string {
	var b strings.Builder
	b.WriteString("| cause | series | of which end | condition | weight |\n| --- | --- | --- | --- | --- |\n")
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

// portSeries are the names behind fabric_switch_port_ and fabric_nic_port_ that are asked for.
func portSeries() []string {
	names := map[string]bool{"mtu_bytes": true, "speed_bytes_per_second": true}
	for i := range table {
		if !isWholeName(table[i].Series) {
			names[table[i].Series] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// isWholeName reports whether a row's series is a whole name.
func isWholeName(series string) bool {
	return strings.HasPrefix(series, "graylink_") || strings.HasPrefix(series, "fabric_")
}

// Whose whole names.
const (
	ofNIC    = false
	ofSwitch = true
)

// wholeNames are the whole names that are asked for, of NICs or of switches.
func wholeNames(of bool) []string {
	names := map[string]bool{}
	for i := range table {
		if isWholeName(table[i].Series) && strings.HasPrefix(table[i].Series, "fabric_switch_") == of {
			names[table[i].Series] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
