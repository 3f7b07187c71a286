package node

import "strings"

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
