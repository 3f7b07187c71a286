package preset

import (
	"fmt"
	"slices"
	"strings"
)

// Preset describes the switches of a vendor.
type Preset struct {
	Name string
	Help string
	// Encodings lists the encodings in which the switch's values are known, preferred first. The first one that
	// Capabilities offers is requested.
	Encodings []string
	// Basic sends credentials in an HTTP authorization header (RFC 7617) instead of the metadata username and
	// password.
	Basic bool
	Rules []Rule
	// Subscriptions are the containers that are subscribed to. A rule beneath one of them is served by it; any
	// other rule is subscribed to by itself.
	Subscriptions []Subscription
	// Unconfirmed lists useful paths that no available document confirms. They are not subscribed to.
	Unconfirmed []Unconfirmed
}

// Subscription represents a container that is subscribed to.
type Subscription struct {
	Path, Target string
	OnChange     bool
}

// Unconfirmed represents a path that is left out, with the reason.
type Unconfirmed struct{ Path, Metric, Why string }

const (
	ocQoS        = "openconfig-qos"
	ocInterfaces = "openconfig-interfaces"
	ocEthernet   = "openconfig-if-ethernet"
	ocOptics     = "openconfig-platform-transceiver"
	ocLLDP       = "openconfig-lldp"
	spec         = "spec 60"
	cumulusDoc   = "Cumulus Linux 5.16 user guide, gNMI Streaming"
	cumulusOld   = "Cumulus Linux 5.12 to 5.16 user guides, gNMI Streaming"
	sonicDoc     = "sonic-gnmi, doc/grpc_telemetry.md"
	sonicDB      = "SONiC database schema"
	srlDoc       = "srl_nokia-qos"
	srlIf        = "srl_nokia-interfaces"
	nvosDoc      = "NVOS 25.02 user manual, gNMI Streaming"
)

// openconfigInterfaces returns the rules that every tree of openconfig-interfaces has.
func openconfigInterfaces(source string) []Rule {
	i := "/interfaces/interface[name={port}]"
	c := i + "/state/counters/"
	return []Rule{
		{Path: i + "/state/admin-status", Metric: "fabric_switch_port_admin_up", Convert: "up", OnChange: true, Source: source},
		{Path: i + "/state/oper-status", Metric: "fabric_switch_port_oper_up", Convert: "up", OnChange: true, Source: source},
		{Path: i + "/state/mtu", Metric: "fabric_switch_port_mtu_bytes", OnChange: true, Source: source},
		{Path: c + "in-octets", Metric: "fabric_switch_port_receive_bytes_total", Source: source},
		{Path: c + "out-octets", Metric: "fabric_switch_port_transmit_bytes_total", Source: source},
		{Path: c + "in-pkts", Metric: "fabric_switch_port_receive_packets_total", Source: source},
		{Path: c + "out-pkts", Metric: "fabric_switch_port_transmit_packets_total", Source: source},
		{Path: c + "in-discards", Metric: "fabric_switch_port_receive_discards_total", Source: source},
		{Path: c + "out-discards", Metric: "fabric_switch_port_transmit_discards_total", Source: source},
		{Path: c + "in-errors", Metric: "fabric_switch_port_receive_errors_total", Labels: reasonLabel("all"), Source: source},
		{Path: c + "out-errors", Metric: "fabric_switch_port_transmit_errors_total", Labels: reasonLabel("all"), Source: source},
		{Path: c + "carrier-transitions", Metric: "fabric_switch_port_carrier_changes_total", Source: source},
	}
}

func reasonLabel(s string) map[string]string { return map[string]string{"reason": s} }

func windowLabel(s string) map[string]string { return map[string]string{"window": s} }

func openconfigEthernet(source string) []Rule {
	i := "/interfaces/interface[name={port}]/ethernet/state/"
	return []Rule{
		{Path: i + "port-speed", Metric: "fabric_switch_port_speed_bytes_per_second", Convert: "speed", OnChange: true, Source: source},
		{Path: i + "counters/in-fcs-errors", Metric: "fabric_switch_port_receive_error_details_total", Labels: reasonLabel("crc"), Source: source},
	}
}

func openconfigBER(source string) []Rule {
	i := "/interfaces/interface[name={port}]/ethernet/state/"
	return []Rule{
		{Path: i + "pre-fec-ber/instant", Metric: "fabric_switch_port_pre_fec_ber_ratio", Convert: "ber", Source: source},
		{Path: i + "post-fec-ber/instant", Metric: "fabric_switch_port_post_fec_ber_ratio", Convert: "ber", Source: source},
	}
}

// openconfigQueues returns the rules of openconfig-qos; lengths are in octets.
func openconfigQueues(source string) []Rule {
	q := "/qos/interfaces/interface[interface-id={port}]/output/queues/queue[name={tc}]/state/"
	return []Rule{
		{Path: q + "max-queue-len", Metric: "fabric_switch_port_queue_watermark_bytes", Labels: windowLabel("since_clear"), Source: source},
		{Path: q + "avg-queue-len", Metric: "fabric_switch_port_queue_average_bytes", Source: source},
		{Path: q + "dropped-pkts", Metric: "fabric_switch_port_queue_discards_total", Labels: reasonLabel("full"), Source: source},
		{Path: q + "ecn-marked-pkts", Metric: "fabric_switch_port_queue_ecn_marked_packets_total", Source: source},
		{Path: q + "ecn-marked-octets", Metric: "fabric_switch_port_queue_ecn_marked_bytes_total", Source: source},
		{Path: q + "transmit-pkts", Metric: "fabric_switch_port_queue_transmit_packets_total", Source: source},
		{Path: q + "transmit-octets", Metric: "fabric_switch_port_queue_transmit_bytes_total", Source: source},
	}
}

// openconfigOptics returns the rules of transceivers, with power in the unit of convert and current in mA.
func openconfigOptics(source, convert string) []Rule {
	c := "/components/component[name={component}]"
	l := c + "/transceiver/physical-channels/channel[index={lane}]/state/"
	return []Rule{
		{Path: l + "input-power/instant", Metric: "fabric_switch_port_module_receive_power_watts", Convert: convert, Source: source},
		{Path: l + "output-power/instant", Metric: "fabric_switch_port_module_transmit_power_watts", Convert: convert, Source: source},
		{Path: l + "laser-bias-current/instant", Metric: "fabric_switch_port_module_bias_amperes", Convert: "milliamperes", Source: source},
		{Path: c + "/transceiver/state/supply-voltage/instant", Metric: "fabric_switch_port_module_voltage_volts", Source: source},
		{Path: c + "/state/temperature/instant", Metric: "fabric_switch_port_module_temperature_celsius", Source: source},
		{Path: "/interfaces/interface[name={port}]/state/transceiver", Metric: "component_port", OnChange: true, Source: source},
	}
}

func openconfigLLDP(source string) []Rule {
	n := "/lldp/interfaces/interface[name={port}]/neighbors/neighbor[id={_neighbor}]/state/"
	return neighborRules(n, "system-name", "port-id", "chassis-id", "", source)
}

// openconfigSettings returns the rules of how queues mark packets. A profile may mark uniformly alone here.
func openconfigSettings(source string) []Rule {
	q := "/qos/interfaces/interface[interface-id={port}]"
	w := "/qos/queue-management-profiles/queue-management-profile[name={profile}]/wred/uniform/state/"
	const profile = "fabric_switch_ecn_profile_info"
	return []Rule{
		{Path: q + "/output/queues/queue[name={tc}]/state/queue-management-profile", Metric: "fabric_switch_port_queue_qos_info",
			TextLabel: "ecn_profile", OnChange: true, Source: source},
		{Path: q + "/input/classifiers/classifier[type=IPV4]/state/name", Metric: "fabric_switch_port_qos_info", TextLabel: "dscp_map",
			OnChange: true, Source: source},
		{Path: w + "enable-ecn", Metric: profile, TextLabel: "ecn", OnChange: true, Source: source},
		{Path: w + "min-threshold", Metric: profile, TextLabel: "min_threshold", OnChange: true, Source: source},
		{Path: w + "max-threshold", Metric: profile, TextLabel: "max_threshold", OnChange: true, Source: source},
		{Path: w + "max-drop-probability-percent", Metric: profile, TextLabel: "probability", OnChange: true, Source: source},
	}
}

// sonicSettings returns the rules of SONiC's configuration of QoS. A profile of packets of other colors than green is left out, as lossless
// classes have green ones alone.
func sonicSettings() (out []Rule) {
	for _, x := range [][3]string{
		{"PORT_QOS_MAP/{port}/dscp_to_tc_map", "fabric_switch_port_qos_info", "dscp_map"},
		{"PORT_QOS_MAP/{port}/tc_to_queue_map", "fabric_switch_port_qos_info", "queue_map"},
		{"PORT_QOS_MAP/{port}/pfc_enable", "fabric_switch_port_qos_info", "pfc"},
		{"QUEUE/{port}|{tc}/wred_profile", "fabric_switch_port_queue_qos_info", "ecn_profile"},
		{"WRED_PROFILE/{profile}/ecn", "fabric_switch_ecn_profile_info", "ecn"},
		{"WRED_PROFILE/{profile}/green_min_threshold", "fabric_switch_ecn_profile_info", "min_threshold"},
		{"WRED_PROFILE/{profile}/green_max_threshold", "fabric_switch_ecn_profile_info", "max_threshold"},
		{"WRED_PROFILE/{profile}/green_drop_probability", "fabric_switch_ecn_profile_info", "probability"},
	} {
		out = append(out, Rule{Path: x[0], Metric: x[1], TextLabel: x[2], Target: "CONFIG_DB", OnChange: true, Source: sonicDB})
	}
	return out
}

// neighborRules returns the rules of a neighbor's info from three leaves beneath a path.
func neighborRules(path, system, port, chassis, target, source string) []Rule {
	const m = "fabric_switch_port_neighbor_info"
	return []Rule{
		{Path: path + system, Metric: m, TextLabel: "remote", OnChange: true, Target: target, Source: source},
		{Path: path + port, Metric: m, TextLabel: "remote_port", OnChange: true, Target: target, Source: source},
		{Path: path + chassis, Metric: m, TextLabel: "remote_chassis", OnChange: true, Target: target, Source: source},
	}
}

func openconfigCPU(source string) []Rule {
	return []Rule{{Path: "/system/cpus/cpu[index={cpu}]/state/total/instant", Metric: "fabric_switch_cpu_utilization_ratio", Convert: "percent", Source: source}}
}

func openconfigMemory(source string) []Rule {
	return []Rule{
		{Path: "/system/memory/state/physical", Metric: "fabric_switch_memory_bytes", Source: source},
		{Path: "/system/memory/state/used", Metric: "fabric_switch_memory_used_bytes", Source: source},
	}
}

func openconfigPreset() *Preset {
	return &Preset{
		Name: "openconfig", Help: "Any switch by the public OpenConfig models.", Encodings: []string{"PROTO", "JSON_IETF", "JSON"},
		Rules: slices.Concat(openconfigInterfaces(ocInterfaces), openconfigEthernet(ocEthernet), openconfigBER(spec), openconfigQueues(ocQoS),
			openconfigOptics(ocOptics, "dbm"), openconfigLLDP(ocLLDP), openconfigSettings(ocQoS), openconfigCPU("openconfig-system"),
			openconfigMemory("openconfig-system")),
		Unconfirmed: []Unconfirmed{{"-", "fabric_switch_port_pfc_receive_frames_total", "the OpenConfig models have no priority pause frames"}},
	}
}

func cumulusPreset() *Preset {
	i := "/interfaces/interface[name={port}]"
	phy := i + "/ethernet/phy/state/"
	p := "/qos/interfaces/interface[interface-id={port}]/switch-priority[priority={priority}]/state/"
	q := "/qos/interfaces/interface[interface-id={port}]/output/queues/queue[name={tc}]/state/"
	drops := i + "/state/counters/"
	return &Preset{
		Name: "cumulus", Help: "Cumulus Linux 5.16 (NVUE); subscriptions only, samples of 1 s at least, no patterns in keys.", Basic: true,
		Encodings: []string{"PROTO", "JSON_IETF", "JSON"},
		Rules: slices.Concat(openconfigInterfaces(cumulusDoc), openconfigEthernet(cumulusDoc), []Rule{
			{Path: p + "counters/in-pause-pkts", Metric: "fabric_switch_port_pfc_receive_frames_total", Source: cumulusDoc},
			{Path: p + "counters/out-pause-pkts", Metric: "fabric_switch_port_pfc_transmit_frames_total", Source: cumulusDoc},
			{Path: p + "in-pause-duration", Metric: "fabric_switch_port_pfc_receive_pause_seconds_total", Convert: "microseconds", Source: cumulusDoc},
			{Path: p + "out-pause-duration", Metric: "fabric_switch_port_pfc_transmit_pause_seconds_total", Convert: "microseconds", Source: cumulusDoc},
			{Path: q + "ecn-marked-pkts", Metric: "fabric_switch_port_queue_ecn_marked_packets_total", Source: cumulusDoc},
			{Path: q + "instant-queue-len", Metric: "fabric_switch_port_queue_bytes", Source: cumulusDoc},
			{Path: q + "max-queue-len", Metric: "fabric_switch_port_queue_watermark_bytes", Labels: windowLabel("since_clear"), Source: cumulusDoc},
			{Path: q + "wred-dropped-pkts", Metric: "fabric_switch_port_queue_discards_total", Labels: reasonLabel("wred"), Source: cumulusDoc},
			{Path: q + "no-buffer-uc-dropped-pkts", Metric: "fabric_switch_port_queue_discards_total", Labels: reasonLabel("full"), Source: cumulusDoc},
			{Path: q + "transmit-pkts", Metric: "fabric_switch_port_queue_transmit_packets_total", Source: cumulusDoc},
			{Path: q + "transmit-octets", Metric: "fabric_switch_port_queue_transmit_bytes_total", Source: cumulusDoc},
			{Path: drops + "ecn-marked-pkts", Metric: "fabric_switch_port_ecn_marked_packets_total", Source: cumulusDoc},
			{Path: drops + "in-acl-drops", Metric: "fabric_switch_port_receive_discard_details_total", Labels: reasonLabel("acl"), Source: cumulusDoc},
			{Path: drops + "out-acl-drops", Metric: "fabric_switch_port_transmit_discard_details_total", Labels: reasonLabel("acl"), Source: cumulusDoc},
			{Path: drops + "out-hoq-drops", Metric: "fabric_switch_port_transmit_discard_details_total", Labels: reasonLabel("head_of_queue"), Source: cumulusDoc},
			{Path: drops + "out-sll-drops", Metric: "fabric_switch_port_transmit_discard_details_total", Labels: reasonLabel("switch_lifetime"), Source: cumulusDoc},
			{Path: i + "/ethernet/state/counters/in-vlan-membership-drops", Metric: "fabric_switch_port_receive_discard_details_total", Labels: reasonLabel("vlan"), Source: cumulusDoc},
			{Path: i + "/ethernet/state/counters/in-link-down-drops", Metric: "fabric_switch_port_receive_discard_details_total", Labels: reasonLabel("link_down"), Source: cumulusDoc},
			{Path: phy + "rs-fec-uncorrectable-blocks", Metric: "fabric_switch_port_fec_uncorrectable_blocks_total", Source: cumulusOld},
			{Path: phy + "corrected-bits", Metric: "fabric_switch_port_fec_corrected_bit_errors_total", Source: cumulusOld},
			{Path: phy + "lane[lane={lane}]/rs-fec-corrected-symbols", Metric: "fabric_switch_port_lane_fec_corrected_symbols_total", Source: cumulusOld},
			{Path: phy + "lane[lane={lane}]/raw-ber", Metric: "fabric_switch_port_lane_pre_fec_ber_ratio", Convert: "ber", Source: cumulusOld},
			{Path: phy + "effective-ber", Metric: "fabric_switch_port_post_fec_ber_ratio", Convert: "ber", Source: cumulusOld},
			{Path: phy + "symbol-ber", Metric: "fabric_switch_port_symbol_ber_ratio", Convert: "ber", Source: cumulusOld},
			{Path: phy + "symbol-errors", Metric: "fabric_switch_port_symbol_errors_total", Source: cumulusOld},
		}, openconfigOptics(cumulusDoc, "centidbm"), openconfigLLDP(cumulusDoc), openconfigCPU(cumulusDoc)),
		Unconfirmed: []Unconfirmed{
			{"/system/memory/state/used", "fabric_switch_memory_used_bytes", "the unit is not documented"},
		},
	}
}

func sonicPreset() *Preset {
	port := func(leaf, metric, convert string, labels map[string]string) Rule {
		return Rule{Path: "COUNTERS/Ethernet*/{port}/" + leaf, Metric: metric, Convert: convert, Labels: labels, Target: "COUNTERS_DB", Source: sonicDoc}
	}
	rules := []Rule{
		port("SAI_PORT_STAT_IF_IN_OCTETS", "fabric_switch_port_receive_bytes_total", "", nil),
		port("SAI_PORT_STAT_IF_OUT_OCTETS", "fabric_switch_port_transmit_bytes_total", "", nil),
		port("SAI_PORT_STAT_IF_IN_DISCARDS", "fabric_switch_port_receive_discards_total", "", nil),
		port("SAI_PORT_STAT_IF_OUT_DISCARDS", "fabric_switch_port_transmit_discards_total", "", nil),
		port("SAI_PORT_STAT_IF_IN_ERRORS", "fabric_switch_port_receive_errors_total", "", reasonLabel("all")),
		port("SAI_PORT_STAT_IF_OUT_ERRORS", "fabric_switch_port_transmit_errors_total", "", reasonLabel("all")),
		port("SAI_PORT_STAT_IF_IN_FEC_CORRECTABLE_FRAMES", "fabric_switch_port_fec_corrected_blocks_total", "", nil),
		port("SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES", "fabric_switch_port_fec_uncorrectable_blocks_total", "", nil),
	}
	for p := range 8 {
		priority := map[string]string{"priority": fmt.Sprint(p)}
		rules = append(rules,
			port(fmt.Sprintf("SAI_PORT_STAT_PFC_%d_RX_PKTS", p), "fabric_switch_port_pfc_receive_frames_total", "", priority),
			port(fmt.Sprintf("SAI_PORT_STAT_PFC_%d_TX_PKTS", p), "fabric_switch_port_pfc_transmit_frames_total", "", priority))
	}
	queue := func(leaf, metric string, labels map[string]string) Rule {
		return Rule{Path: "COUNTERS/Ethernet*/Queues/{port}:{tc}/" + leaf, Metric: metric, Labels: labels, Target: "COUNTERS_DB", Source: sonicDoc}
	}
	rules = append(rules,
		queue("SAI_QUEUE_STAT_PACKETS", "fabric_switch_port_queue_transmit_packets_total", nil),
		queue("SAI_QUEUE_STAT_BYTES", "fabric_switch_port_queue_transmit_bytes_total", nil),
		// SAI counts here what a queue dropped for any reason.
		queue("SAI_QUEUE_STAT_DROPPED_PACKETS", "fabric_switch_port_queue_discards_total", reasonLabel("all")),
		queue("SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS", "fabric_switch_port_queue_ecn_marked_packets_total", nil),
		queue("SAI_QUEUE_STAT_WRED_ECN_MARKED_BYTES", "fabric_switch_port_queue_ecn_marked_bytes_total", nil),
		queue("SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES", "fabric_switch_port_queue_watermark_bytes", windowLabel("since_clear")),
		Rule{Path: "COUNTERS/Ethernet*/Queues/{port}:{tc}:periodic/SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES", Metric: "fabric_switch_port_queue_watermark_bytes",
			Labels: windowLabel("periodic"), Target: "COUNTERS_DB", Source: spec})
	table := func(target, path, metric, convert string, labels map[string]string) Rule {
		return Rule{Path: path, Metric: metric, Convert: convert, Labels: labels, Target: target, Source: sonicDB, OnChange: target == "APPL_DB"}
	}
	rules = append(rules,
		table("APPL_DB", "PORT_TABLE/{port}/oper_status", "fabric_switch_port_oper_up", "up", nil),
		table("APPL_DB", "PORT_TABLE/{port}/admin_status", "fabric_switch_port_admin_up", "up", nil),
		table("APPL_DB", "PORT_TABLE/{port}/speed", "fabric_switch_port_speed_bytes_per_second", "megabits", nil),
		table("APPL_DB", "PORT_TABLE/{port}/mtu", "fabric_switch_port_mtu_bytes", "", nil),
		table("STATE_DB", "TRANSCEIVER_DOM_SENSOR/{port}/temperature", "fabric_switch_port_module_temperature_celsius", "", nil),
		table("STATE_DB", "TRANSCEIVER_DOM_SENSOR/{port}/voltage", "fabric_switch_port_module_voltage_volts", "", nil))
	for l := 1; l <= 8; l++ {
		lane := map[string]string{"lane": fmt.Sprint(l)}
		dom := fmt.Sprintf("TRANSCEIVER_DOM_SENSOR/{port}/%%cx%d", l)
		rules = append(rules,
			table("STATE_DB", fmt.Sprintf(dom, 'r')+"power", "fabric_switch_port_module_receive_power_watts", "dbm", lane),
			table("STATE_DB", fmt.Sprintf(dom, 't')+"power", "fabric_switch_port_module_transmit_power_watts", "dbm", lane),
			table("STATE_DB", fmt.Sprintf(dom, 't')+"bias", "fabric_switch_port_module_bias_amperes", "milliamperes", lane))
	}
	rules = append(rules, neighborRules("LLDP_ENTRY_TABLE/{port}/", "lldp_rem_sys_name", "lldp_rem_port_id", "lldp_rem_chassis_id", "APPL_DB", sonicDB)...)
	rules = append(rules, sonicSettings()...)
	return &Preset{
		Name: "sonic", Help: "SONiC by its databases; values are texts in one JSON object.", Encodings: []string{"JSON_IETF", "JSON"}, Rules: rules,
		Subscriptions: []Subscription{
			{Path: "COUNTERS/Ethernet*", Target: "COUNTERS_DB"},
			{Path: "COUNTERS/Ethernet*/Queues", Target: "COUNTERS_DB"},
			{Path: "PORT_TABLE", Target: "APPL_DB", OnChange: true},
			{Path: "LLDP_ENTRY_TABLE", Target: "APPL_DB", OnChange: true},
			{Path: "PORT_QOS_MAP", Target: "CONFIG_DB", OnChange: true},
			{Path: "QUEUE", Target: "CONFIG_DB", OnChange: true},
			{Path: "WRED_PROFILE", Target: "CONFIG_DB", OnChange: true},
			{Path: "TRANSCEIVER_DOM_SENSOR", Target: "STATE_DB"},
		},
		Unconfirmed: []Unconfirmed{
			{"COUNTERS/Ethernet*/{port}/SAI_PORT_STAT_PFC_3_RX_PAUSE_DURATION_US", "fabric_switch_port_pfc_receive_pause_seconds_total", "the unit differs between SAI implementations"},
			{"RATES/{port}/FEC_PRE_BER", "fabric_switch_port_pre_fec_ber_ratio", "keyed by object id; no virtual path is documented"},
			{"COUNTERS/Ethernet*/Pfcwd", "fabric_switch_port_pfc_deadlocks_total", "the virtual path is in the server's tests; its JSON is not documented"},
		},
	}
}

func aristaPreset() *Preset {
	p := "/interfaces/interface[name={port}]/ethernet/pfc/priorities/priority[index={priority}]/state/"
	return &Preset{
		Name: "arista", Help: "Arista EOS: OpenConfig, and its own priority pause frames.", Encodings: []string{"PROTO", "JSON_IETF", "JSON"},
		Rules: slices.Concat(openconfigInterfaces(ocInterfaces), openconfigEthernet(ocEthernet), openconfigBER(spec), openconfigQueues(ocQoS), []Rule{
			{Path: p + "in-frames", Metric: "fabric_switch_port_pfc_receive_frames_total", Source: spec},
			{Path: p + "out-frames", Metric: "fabric_switch_port_pfc_transmit_frames_total", Source: spec},
		}, openconfigOptics(ocOptics, "dbm"), openconfigLLDP(ocLLDP), openconfigSettings(ocQoS), openconfigCPU("openconfig-system"),
			openconfigMemory("openconfig-system")),
		Unconfirmed: []Unconfirmed{
			{".../priority[index]/.../stuck-count", "fabric_switch_port_pfc_deadlocks_total", "the container of the watchdog's stuck-count is not documented"},
		},
	}
}

func srlinuxPreset() *Preset {
	i := "/interface[name={port}]"
	s := i + "/statistics/"
	lane := i + "/transceiver/channel[index={lane}]/"
	pfc := "/qos/interfaces/interface[interface-id={port}]/pfc/statistics/pfc-priority[index={priority}]/"
	q := "/qos/interfaces/interface[interface-id={port}]/output/queues/queue[queue-name={tc}]/queue-depth/"
	watermark := func(minutes string) Rule {
		return Rule{Path: q + "high-watermark-" + minutes, Metric: "fabric_switch_port_queue_watermark_bytes", Labels: windowLabel(minutes + "m"), Source: srlDoc}
	}
	return &Preset{
		Name: "srlinux", Help: "Nokia SR Linux by its native models.", Encodings: []string{"PROTO", "JSON_IETF"},
		Rules: slices.Concat([]Rule{
			{Path: i + "/admin-state", Metric: "fabric_switch_port_admin_up", Convert: "up", OnChange: true, Source: srlIf},
			{Path: i + "/oper-state", Metric: "fabric_switch_port_oper_up", Convert: "up", OnChange: true, Source: srlIf},
			{Path: i + "/mtu", Metric: "fabric_switch_port_mtu_bytes", OnChange: true, Source: srlIf},
			{Path: i + "/ethernet/port-speed", Metric: "fabric_switch_port_speed_bytes_per_second", Convert: "speed", OnChange: true, Source: srlIf},
			{Path: s + "in-octets", Metric: "fabric_switch_port_receive_bytes_total", Source: srlIf},
			{Path: s + "out-octets", Metric: "fabric_switch_port_transmit_bytes_total", Source: srlIf},
			{Path: s + "in-packets", Metric: "fabric_switch_port_receive_packets_total", Source: srlIf},
			{Path: s + "out-packets", Metric: "fabric_switch_port_transmit_packets_total", Source: srlIf},
			{Path: s + "in-discarded-packets", Metric: "fabric_switch_port_receive_discards_total", Source: srlIf},
			{Path: s + "out-discarded-packets", Metric: "fabric_switch_port_transmit_discards_total", Source: srlIf},
			{Path: s + "in-error-packets", Metric: "fabric_switch_port_receive_errors_total", Labels: reasonLabel("all"), Source: srlIf},
			{Path: s + "out-error-packets", Metric: "fabric_switch_port_transmit_errors_total", Labels: reasonLabel("all"), Source: srlIf},
			{Path: s + "carrier-transitions", Metric: "fabric_switch_port_carrier_changes_total", Source: srlIf},
			{Path: pfc + "pfc-pause-frames-received", Metric: "fabric_switch_port_pfc_receive_frames_total", Source: srlDoc},
			{Path: pfc + "pfc-pause-frames-generated", Metric: "fabric_switch_port_pfc_transmit_frames_total", Source: srlDoc},
			{Path: pfc + "deadlock-recovery-occurrences", Metric: "fabric_switch_port_pfc_deadlocks_total", Source: srlDoc},
			watermark("1"), watermark("5"), watermark("15"),
			{Path: lane + "input-power/latest-value", Metric: "fabric_switch_port_module_receive_power_watts", Convert: "dbm", Source: srlIf},
			{Path: lane + "output-power/latest-value", Metric: "fabric_switch_port_module_transmit_power_watts", Convert: "dbm", Source: srlIf},
			{Path: lane + "laser-bias-current/latest-value", Metric: "fabric_switch_port_module_bias_amperes", Convert: "milliamperes", Source: srlIf},
			{Path: i + "/transceiver/temperature/latest-value", Metric: "fabric_switch_port_module_temperature_celsius", Source: srlIf},
			{Path: i + "/transceiver/voltage/latest-value", Metric: "fabric_switch_port_module_voltage_volts", Source: srlIf},
		}, neighborRules("/system/lldp/interface[name={port}]/neighbor[id={_neighbor}]/", "system-name", "port-id", "chassis-id", "", "srl_nokia-lldp")),
		Unconfirmed: []Unconfirmed{
			{q + "../queue-statistics/aggregate-statistics", "fabric_switch_port_queue_discards_total", "the names of its leaves are unknown"},
			{"ECN-marked packets", "fabric_switch_port_queue_ecn_marked_packets_total", "no path is known"},
			{i + "/ethernet/... FEC and BER", "fabric_switch_port_pre_fec_ber_ratio", "no path is known"},
		},
	}
}

func nvosPreset() *Preset {
	ib := "/interfaces/interface[name={port}]/infiniband/state/counters/port/"
	phy := "/interfaces/interface[name={port}]/phy-diag/state/"
	one := func(leaf, metric string, labels map[string]string) Rule {
		return Rule{Path: ib + leaf, Metric: metric, Labels: labels, Source: nvosDoc}
	}
	return &Preset{
		Name: "nvos", Help: "NVOS of InfiniBand switches: openconfig-interfaces and InfiniBand counters.", Encodings: []string{"PROTO", "JSON_IETF", "JSON"},
		Rules: slices.Concat(slices.DeleteFunc(openconfigInterfaces(nvosDoc), func(r Rule) bool {
			// MTU and transitions come from the InfiniBand model; in-errors would be counted beside its parts.
			return strings.HasSuffix(r.Path, "/mtu") || strings.HasSuffix(r.Path, "/carrier-transitions") || strings.HasSuffix(r.Path, "/in-errors")
		}), []Rule{
			one("link-downed", "fabric_switch_port_link_downed_total", nil),
			one("link-error-recovery", "fabric_switch_port_link_recoveries_total", nil),
			one("rcv-remote-phy-errors", "fabric_switch_port_receive_errors_total", reasonLabel("remote_physical")),
			one("rcv-switch-relay-errors", "fabric_switch_port_receive_errors_total", reasonLabel("switch_relay")),
			one("rcv-constraints-errors", "fabric_switch_port_receive_errors_total", reasonLabel("constraint")),
			one("local-link-integrity-errors", "fabric_switch_port_local_link_integrity_errors_total", nil),
			one("excessive-buffer-overrun", "fabric_switch_port_buffer_overruns_total", nil),
			one("qp1-dropped", "fabric_switch_port_qp1_dropped_total", nil),
			one("vl15-dropped", "fabric_switch_port_vl15_dropped_total", nil),
			one("xmit-wait", "fabric_switch_port_transmit_wait_ticks_total", nil),
			{Path: phy + "raw-ber", Metric: "fabric_switch_port_pre_fec_ber_ratio", Convert: "ber", Source: nvosDoc},
			{Path: phy + "effective-ber", Metric: "fabric_switch_port_post_fec_ber_ratio", Convert: "ber", Source: nvosDoc},
			{Path: phy + "symbol-ber", Metric: "fabric_switch_port_symbol_ber_ratio", Convert: "ber", Source: nvosDoc},
			{Path: "/interfaces/interface[name={port}]/infiniband/state/mtu", Metric: "fabric_switch_port_mtu_bytes", OnChange: true, Source: nvosDoc},
		}),
		Unconfirmed: []Unconfirmed{
			{"/interfaces/interface[name]/infiniband/state/counters/port/symbol-error-counter", "fabric_switch_port_symbol_errors_total", "the leaf's name is unknown"},
			{"/interfaces/interface[name]/infiniband/state/counters/port/rcv-errors", "fabric_switch_port_receive_errors_total", "the leaf's name is unknown"},
			{"/interfaces/interface[name]/infiniband/state/speed", "fabric_switch_port_speed_bytes_per_second", "a name of a signalling rate; the rate needs the width as well"},
		},
	}
}

// All lists the presets, sorted by name.
var All = []*Preset{aristaPreset(), cumulusPreset(), nvosPreset(), openconfigPreset(), sonicPreset(), srlinuxPreset()}

// ByName returns the preset of a name, or nil if there is none.
func ByName(name string) *Preset {
	for _, p := range All {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Names returns the names of the presets.
func Names() []string {
	var out []string
	for _, p := range All {
		out = append(out, p.Name)
	}
	return out
}
