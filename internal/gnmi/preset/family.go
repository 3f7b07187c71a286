// Package preset is the table of the switches' gNMI trees: for every vendor the paths that are subscribed to
// and, for every leaf, its series in the common vocabulary, its type, unit and scaling (spec 60, gNMI
// receiver). It holds data only, and does not use gNMI.
package preset

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Kind is the type of a family.
type Kind int

// The kinds of families. An Info is a gauge that is always 1; its labels carry the information. A Relation is
// not a series: it states the port to which a component belongs. Nor are a Member and a HopPort: groups of next
// hops are counted by port, since there may be too many of them for series of their own. Nor is a SessionText.
const (
	Counter Kind = iota + 1
	Gauge
	Info
	Relation
	Member      // states that a next hop is in a group
	HopPort     // states the port of a next hop
	SessionText // states an address or a port, by which sessions are related to ports
)

// IsText reports whether the value of a leaf of this kind is a text.
func (k Kind) IsText() bool { return k >= Info }

func (k Kind) String() string {
	switch k {
	case Counter:
		return "counter"
	case Gauge:
		return "gauge"
	case Info:
		return "info"
	case Relation:
		return "relation"
	case Member:
		return "member"
	case HopPort:
		return "port of a next hop"
	case SessionText:
		return "text of a session"
	}
	return "untyped"
}

// Family is a metric of the vocabulary. Its first label, switch, is not listed.
type Family struct {
	Name   string // Prometheus name; its unit is its suffix
	Help   string
	Kind   Kind
	Labels []string
}

// Unit returns the unit of the family by its name's suffix: "By/s", "s", "By", "1" for a ratio, W, A, V, Cel,
// and "" for counts and states.
func (f *Family) Unit() string {
	name := strings.TrimSuffix(f.Name, "_total")
	for _, u := range units {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	return ""
}

// units lists the suffixes of names with their units in UCUM, the longer ones first.
var units = []struct{ suffix, unit string }{
	{"_bytes_per_second", "By/s"}, {"_seconds", "s"}, {"_bytes", "By"}, {"_ratio", "1"},
	{"_watts", "W"}, {"_amperes", "A"}, {"_volts", "V"}, {"_celsius", "Cel"},
}

// Families is the vocabulary, sorted by name.
var Families = func() []*Family {
	port := func(more ...string) []string { return append([]string{"port"}, more...) }
	list := []*Family{
		{"fabric_switch_cpu_utilization_ratio", "Share of a processor's time that is in use.", Gauge, []string{"cpu"}},
		{"fabric_switch_memory_bytes", "Memory of the switch's control plane.", Gauge, nil},
		{"fabric_switch_memory_used_bytes", "Memory of the switch's control plane that is in use.", Gauge, nil},

		{"fabric_switch_control_plane_discards_total", "Packets to the switch's processor that a policer dropped, by class of the policer.", Counter, []string{"class"}},

		{"fabric_switch_port_admin_up", "Whether the port is configured to be up.", Gauge, port()},
		{"fabric_switch_port_oper_up", "Whether the port carries packets.", Gauge, port()},
		{"fabric_switch_port_carrier_changes_total", "Changes of the carrier, either way.", Counter, port()},
		{"fabric_switch_port_speed_bytes_per_second", "Negotiated rate.", Gauge, port()},
		{"fabric_switch_port_mtu_bytes", "Largest packet.", Gauge, port()},

		{"fabric_switch_port_receive_bytes_total", "Octets received.", Counter, port()},
		{"fabric_switch_port_transmit_bytes_total", "Octets sent.", Counter, port()},
		{"fabric_switch_port_receive_packets_total", "Packets received.", Counter, port()},
		{"fabric_switch_port_transmit_packets_total", "Packets sent.", Counter, port()},
		{"fabric_switch_port_receive_discards_total", "Whole packets received and thrown away.", Counter, port()},
		{"fabric_switch_port_transmit_discards_total", "Whole packets thrown away instead of sent.", Counter, port()},
		{"fabric_switch_port_receive_discard_details_total", "Packets received and discarded, by reason; a part of all discards.", Counter, port("reason")},
		{"fabric_switch_port_transmit_discard_details_total", "Packets discarded instead of sent, by reason; a part of all discards.", Counter, port("reason")},
		{"fabric_switch_port_receive_errors_total", "Packets received that were of no use, by reason.", Counter, port("reason")},
		{"fabric_switch_port_transmit_errors_total", "Packets that could not be sent, by reason.", Counter, port("reason")},
		{"fabric_switch_port_receive_error_details_total", "Packets received with an error, by kind of error; a part of all errors.", Counter, port("reason")},

		{"fabric_switch_port_pfc_receive_frames_total", "Priority pause frames received.", Counter, port("priority")},
		{"fabric_switch_port_pfc_transmit_frames_total", "Priority pause frames sent.", Counter, port("priority")},
		{"fabric_switch_port_pfc_receive_pause_seconds_total", "Time during which the far end paused transmission by the port.", Counter, port("priority")},
		{"fabric_switch_port_pfc_transmit_pause_seconds_total", "Time during which the port requested the far end not to send.", Counter, port("priority")},
		{"fabric_switch_port_pfc_deadlocks_total", "Number of times that a paused priority was considered deadlocked.", Counter, port("priority")},

		{"fabric_switch_port_ecn_marked_packets_total", "Packets of all queues that were marked congestion experienced.", Counter, port()},
		{"fabric_switch_port_queue_ecn_marked_packets_total", "Packets of a queue that were marked congestion experienced.", Counter, port("tc")},
		{"fabric_switch_port_queue_ecn_marked_bytes_total", "Octets of packets of a queue that were marked congestion experienced.", Counter, port("tc")},
		{"fabric_switch_port_queue_bytes", "Octets that wait to be sent.", Gauge, port("tc")},
		{"fabric_switch_port_queue_average_bytes", "Octets that wait to be sent, as averaged by the switch.", Gauge, port("tc")},
		{"fabric_switch_port_queue_watermark_bytes", "Largest number of octets that waited to be sent, within a window of the switch.", Gauge, port("tc", "window")},
		{"fabric_switch_port_queue_transmit_packets_total", "Packets of a queue that were sent.", Counter, port("tc")},
		{"fabric_switch_port_queue_transmit_bytes_total", "Octets of a queue that were sent.", Counter, port("tc")},
		{"fabric_switch_port_queue_discards_total", "Packets of a queue that were thrown away, by why.", Counter, port("tc", "reason")},

		{"fabric_switch_port_fec_corrected_blocks_total", "FEC blocks with errors that were corrected.", Counter, port()},
		{"fabric_switch_port_fec_corrected_bit_errors_total", "Bit errors that were corrected by FEC.", Counter, port()},
		{"fabric_switch_port_fec_uncorrectable_blocks_total", "FEC blocks with errors that could not be corrected.", Counter, port()},
		{"fabric_switch_port_lane_fec_corrected_symbols_total", "FEC symbols of a lane with errors that were corrected.", Counter, port("lane")},
		{"fabric_switch_port_pre_fec_ber_ratio", "Ratio of bit errors to bits before error correction.", Gauge, port()},
		{"fabric_switch_port_lane_pre_fec_ber_ratio", "Ratio of bit errors to bits of a lane before error correction.", Gauge, port("lane")},
		{"fabric_switch_port_post_fec_ber_ratio", "Ratio of bit errors to bits after error correction.", Gauge, port()},
		{"fabric_switch_port_symbol_ber_ratio", "Ratio of bit errors in symbols that remain after error correction and retransmission.", Gauge, port()},
		{"fabric_switch_port_symbol_errors_total", "Symbols in error on one or more lanes.", Counter, port()},

		{"fabric_switch_port_module_receive_power_watts", "Received optical power; 0 means no light, or less than the monitor's resolution.", Gauge, port("lane")},
		{"fabric_switch_port_module_transmit_power_watts", "Transmitted optical power; 0 means that the laser is off.", Gauge, port("lane")},
		{"fabric_switch_port_module_bias_amperes", "Bias current of the laser.", Gauge, port("lane")},
		{"fabric_switch_port_module_temperature_celsius", "Temperature of the module.", Gauge, port()},
		{"fabric_switch_port_module_voltage_volts", "Supply voltage of the module.", Gauge, port()},

		{"fabric_switch_port_neighbor_info", "Neighbor at the other end of the cable, by LLDP or the subnet manager; always 1.", Info, port("remote", "remote_port", "remote_chassis")},

		{"fabric_switch_port_qos_info", "Maps of DSCP and of queues, and priorities with PFC, as they are configured; always 1.", Info,
			port("dscp_map", "queue_map", "pfc")},
		{"fabric_switch_port_queue_qos_info", "Profile by which a queue marks packets, as it is configured; always 1.", Info, port("tc",
			"ecn_profile")},
		{"fabric_switch_ecn_profile_info", "Thresholds of a profile by which queues mark packets; always 1.", Info, []string{"profile",
			"ecn", "min_threshold", "max_threshold", "probability"}},

		{FamilyMembers, "Number of members of next-hop groups that leave by the port.", Gauge, port()},
		{FamilyBGPUp, "Whether the BGP session with the neighbor at the port is established.", Gauge, port()},
		{FamilyBGPEstablished, "Number of times that the port's BGP session was established.", Counter, port()},
		{FamilyBFDUp, "Whether the BFD session with the neighbor at the port is up.", Gauge, port()},
		{FamilyBFDDowns, "Number of times that the port's BFD session went down.", Counter, port()},
		{FamilyRoutes, "Number of routes in the forwarding tables.", Gauge, []string{"vrf", "address_family", "protocol"}},

		{"fabric_switch_port_link_downed_total", "Number of times that the link failed to recover from an error and went down.", Counter, port()},
		{"fabric_switch_port_link_recoveries_total", "Number of times that the link recovered from an error.", Counter, port()},
		{"fabric_switch_port_local_link_integrity_errors_total", "Number of times that errors on the link exceeded the allowed rate.", Counter, port()},
		{"fabric_switch_port_buffer_overruns_total", "Number of buffer overruns that flow control did not prevent.", Counter, port()},
		{"fabric_switch_port_qp1_dropped_total", "Packets to the general services interface that were dropped.", Counter, port()},
		{"fabric_switch_port_vl15_dropped_total", "Management packets dropped for lack of a buffer; readings are suspect when it grows.", Counter, port()},
		{"fabric_switch_port_transmit_wait_ticks_total", "Ticks of the port's clock during which it had data to send and waited for credits or arbitration.", Counter, port()},
		componentPort,
	}
	slices.SortFunc(list, func(a, b *Family) int { return strings.Compare(a.Name, b.Name) })
	return list
}()

// componentPort relates a component of the chassis (a transceiver) to its port.
var componentPort = &Family{"component_port", "Port of a component; not a series.", Relation, []string{"port"}}

// LookupFamily returns the family of a name, or nil if there is none.
func LookupFamily(name string) *Family {
	i, ok := slices.BinarySearchFunc(Families, name, func(f *Family, n string) int { return strings.Compare(f.Name, n) })
	if !ok {
		return nil
	}
	return Families[i]
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]*$`)
)

// UserPath is a path that a user adds to a preset.
type UserPath struct {
	Path   string `mapstructure:"path" yaml:"path"`     // keys in braces become labels: interface[name={port}]
	Metric string `mapstructure:"metric" yaml:"metric"` // Prometheus name
	Type   string `mapstructure:"type" yaml:"type"`     // counter or gauge
	Unit   string `mapstructure:"unit" yaml:"unit"`     // UCUM, as of Family.Unit; "none" for counts and states
	// Convert is a name of Conversions. If it is empty, the value has the unit already.
	Convert string `mapstructure:"convert" yaml:"convert"`
	Help    string `mapstructure:"help" yaml:"help"`
	// Target is the target of the request's prefix (for SONiC, the database).
	Target string `mapstructure:"target" yaml:"target"`
	// OnChange subscribes to changes instead of samples.
	OnChange bool `mapstructure:"on_change" yaml:"on_change"`
}

// ToRule returns the rule of a user's path. It has a family of its own unless the vocabulary has the name. An
// incomplete path is refused with an error that names it.
func (u UserPath) ToRule() (Rule, error) {
	fail := func(format string, args ...any) (Rule, error) {
		return Rule{}, fmt.Errorf("path %q: %s", u.Path, fmt.Sprintf(format, args...))
	}
	r := Rule{Path: u.Path, Metric: u.Metric, Convert: u.Convert, Source: "configuration", Target: u.Target, OnChange: u.OnChange}
	if u.Path == "" {
		return fail("path: a gNMI path is expected, as /interfaces/interface[name={port}]/state/mtu")
	}
	captures, err := r.captureNames()
	if err != nil {
		return fail("%v", err)
	}
	if !metricName.MatchString(u.Metric) {
		return fail("metric: a Prometheus name is expected, not %q", u.Metric)
	}
	f := Family{Name: u.Metric, Help: u.Help, Labels: captures}
	switch u.Type {
	case "counter":
		f.Kind = Counter
		if !strings.HasSuffix(u.Metric, "_total") {
			return fail("metric: the name of a counter ends in _total, not %q", u.Metric)
		}
	case "gauge":
		f.Kind = Gauge
		if strings.HasSuffix(u.Metric, "_total") {
			return fail("metric: only the name of a counter ends in _total")
		}
	default:
		return fail("type: counter or gauge is expected, not %q", u.Type)
	}
	switch unit := f.Unit(); {
	case u.Unit == "":
		return fail("unit: one of %s is expected, or none", unitNames())
	case u.Unit == "none" && unit == "":
	case u.Unit != unit && unit == "":
		return fail("unit: the name %s has none, the unit is %q; names end in %s", u.Metric, u.Unit, suffixOf(u.Unit))
	case u.Unit != unit:
		return fail("unit: the name %s has %q, the unit is %q", u.Metric, unit, u.Unit)
	}
	if _, ok := Conversions[u.Convert]; !ok {
		return fail("convert: %q is not one of %s", u.Convert, conversionNames())
	}
	if known := LookupFamily(u.Metric); known != nil {
		if known.Kind != f.Kind {
			return fail("type: %s is a %v", u.Metric, known.Kind)
		}
		if !sameSet(known.Labels, captures) {
			return fail("%s has the labels %v; the path's keys in braces are %v", u.Metric, known.Labels, captures)
		}
		return r, nil
	}
	for _, l := range captures {
		if l == "switch" {
			return fail("label switch is the target's name")
		}
	}
	if f.Help == "" {
		f.Help = "Leaf " + u.Path + "."
	}
	r.ownFamily = &f
	return r, nil
}

func sameSet(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

func unitNames() string {
	var all []string
	for _, u := range units {
		all = append(all, u.unit)
	}
	return strings.Join(all, ", ")
}

func suffixOf(unit string) string {
	for _, u := range units {
		if u.unit == unit {
			return u.suffix
		}
	}
	return "a unit of " + unitNames()
}
