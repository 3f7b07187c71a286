package dashboards

// acrossReplicas removes the labels that distinguish two analyzers with the same verdict.
const acrossReplicas = "max without (instance, replica) "

var (
	plane   = labelVariable("plane", "Plane", "fabric_nic_info", "plane")
	nic     = labelVariable("nic", "NIC", "fabric_nic_info", "nic")
	card    = labelVariable("nic", "NIC", "fabric_nic_port_info", "nic")
	src     = labelVariable("src", "Source NIC", "fabric_probe_sent_total", "src")
	dst     = labelVariable("dst", "Destination NIC", "fabric_probe_sent_total", "dst")
	sw      = labelVariable("switch", "Switch", "fabric_switch_port_oper_up", "switch")
	port    = labelVariable("port", "Port", `fabric_switch_port_oper_up{switch=~"$switch"}`, "port")
	link    = labelVariable("link", "Link", "fabric_link_probe_edges", "link")
	clock   = labelVariable("clock", "Clock", "fabric_clock_state", "clock")
	scope   = labelVariable("scope", "Part of the fabric, or job", "fabric_verdict_state", "scope")
	suspect = labelVariable("element", "Element", "fabric_suspect_score", "element")
)

// All returns the dashboards by the names of their JSON files.
func All() map[string]Dashboard {
	return map[string]Dashboard{
		"fleet": fleetDashboard(), "map": mapDashboard(), "edge": edgeDashboard(), "tiers": tiersDashboard(), "path": pathDashboard(),
		"links": linksDashboard(), "clocks": clocksDashboard(), "nics": nicsDashboard(), "nicstate": nicStateDashboard(), "ports": portsDashboard(), "jobs": jobsDashboard(), "collectives": collectivesDashboard(),
		"signals": signalsDashboard(),
	}
}

func fleetDashboard() Dashboard {
	return newDashboard("fleet", "fleet overview", "Healthy, or which element?", []Variable{plane},
		statPanel("Suspected elements", "0 means that no element is suspected. The next panel shows whether the fabric is called innocent.", "short", 4, 1,
			instantTarget(`count(fabric:suspect:score) or vector(0)`, "")),
		statPanelAtLeast("Is the network innocent?", "Yes: there is enough healthy evidence and no suspect. No: there is a suspect, or too little evidence.", "bool_yes_no", 4, 1,
			instantTarget(`min without (shard) (`+acrossReplicas+`(fabric_verdict_state{scope="fabric", state="innocent"}))`, "")),
		statPanelAtLeast("Evidence coverage", "Share of link directions that fresh probes of known path cross. Below 90 % the fabric is not called innocent.", "percentunit", 4, 0.9,
			instantTarget(`min without (shard) (`+acrossReplicas+`(fabric_evidence_coverage_ratio{scope="fabric"}))`, "")),
		statPanel("Nodes excluded from the evidence", "The node is starved of CPU, or its agent does not answer.", "short", 4, 1,
			instantTarget(`count(`+acrossReplicas+`(graylink_analyzer_host_suspect)) or vector(0)`, "")),
		statPanel("Clocks without a frame", "Their one-way delays are not measured.", "short", 4, 1,
			instantTarget(`count(max by (clock) (fabric_clock_state{state=~"lost|converging"}) == 1) or vector(0)`, "")),
		statPanel("Seconds since the last cycle", "Of the analyzer whose last cycle is the oldest.", "s", 4, 10,
			instantTarget(`max(time() - graylink_analyzer_last_cycle_timestamp_seconds)`, "")),
		tablePanel("Suspects", "One row per element. The runbooks explain scenario and severity.", "percentunit", 24, 7, "confidence",
			instantTarget(`fabric:suspect:score * on (element, kind) group_left (scenario, severity, from, to) topk by (element, kind) (1, max without (instance, replica, job, tier, plane, class) (fabric_suspect_info == 1))`, "")),
		timeSeriesPanel("Confidence of verdicts", "Named elements over time.", "percentunit", 12, rangeTarget(acrossReplicas+`(fabric_suspect_score)`, "{{kind}} {{element}}")),
		timeSeriesPanel("Probes lost, by plane and tier", "Of all NICs together. A single broken link is hardly visible here.", "percentunit", 12,
			rangeTarget(`fabric:tier_probe_lost:ratio_2s{class!="csig", plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}}")),
		timeSeriesPanel("One-way delay, by plane and tier: median", "The medians should be constant, and equal across planes.", "s", 12,
			rangeTarget(`fabric:tier_owd_seconds:p50_2s{plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}} ({{timestamp}})")),
		timeSeriesPanel("Flows by state of their path", "Flows whose path is not valid localize faults less precisely.", "short", 12, rangeTarget(acrossReplicas+`(fabric_path_edges)`, "{{state}}")),
		timeSeriesPanel("Connected agents by version", "More than one line means that an upgrade is under way.", "short", 12, rangeTarget(acrossReplicas+`(graylink_coordinator_agent_versions)`, "{{version}}")),
	)
}

func mapDashboard() Dashboard {
	end := func(of, to string) string {
		return `label_replace(` + of + `, "` + to + `", "$1", "` + map[string]string{"source": "from", "target": "to", "id": "from"}[to] + `", "([^/:]+).*")`
	}
	drawn := newPanel("nodeGraph", "The fabric, links by added delay", "Every direction of a link that probes cross, with the delay it adds. A switch or node shows the maximum of its outgoing directions.", "s", 24, 16,
		instantTarget(`max by (id) (`+end("fabric_link_added_delay_seconds", "id")+`) or group by (id) (`+end("fabric_link_probe_edges", "id")+`) * NaN`, ""),
		instantTarget(`max by (id, source, target) (label_join(`+end(end("fabric_link_added_delay_seconds", "source"), "target")+`, "id", ">", "from", "to"))`, ""))
	for i := range drawn.Targets {
		drawn.Targets[i].Format = "table"
	}
	drawn.Transformations = []Transformation{{"organize", map[string]any{"excludeByName": map[string]bool{"Time": true},
		"renameByName": map[string]string{"Value": "mainstat", "Value #A": "mainstat", "Value #B": "mainstat"}}}}
	return newDashboard("map", "fabric map", "Where in the fabric is it?", []Variable{plane},
		tablePanel("Pairs of leaves, slowest first", "Median one-way delay between two leaves. If one row is high, a link or a pair is slow; if all rows of one leaf, the leaf; if all rows, a spine or the clocks.", "s", 12, 9, "delay",
			instantTarget(`sort_desc(max by (leaf, peer_leaf, plane) (fabric:leafpair_owd_seconds:p50_2s{class!="csig", side="source", plane=~"$plane"}))`, "")),
		tablePanel("Pairs of leaves, most lost first", "While no reply comes back, the loss is not known and the row is missing.", "percentunit", 12, 9, "lost",
			instantTarget(`sort_desc(max by (leaf, peer_leaf, plane) (fabric:leafpair_probe_lost:ratio_2s{class!="csig", side="source", plane=~"$plane"}))`, "")),
		drawn,
	)
}

func edgeDashboard() Dashboard {
	owd := func(direction string) string {
		return `sum(rate(fabric_probe_owd_seconds{src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval]))`
	}
	quantile := func(phi, direction string) string {
		return `histogram_quantile(` + phi + `, sum by (src, dst, flow) (rate(fabric_probe_owd_seconds{src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval])))`
	}
	ratio := func(what, direction string) string {
		return `sum by (src, dst, flow) (rate(` + what + `{class!="csig", src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval])) / sum by (src, dst, flow) (rate(fabric_probe_sent_total{class!="csig", src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval]) > 0)`
	}
	return newDashboard("edge", "edge detail", "What do probes between these NICs measure, in each direction? Choose NICs first: a large fabric has too many edges to show all.", []Variable{src, dst},
		heatmapPanel("Forward: delay of probes", "Forward delay only. A wrong clock shifts forward and reverse by opposite amounts.", 12, owd("forward")),
		heatmapPanel("Reverse: delay of replies", "Reverse delay only. Replies cross other links than probes.", 12, owd("reverse")),
		timeSeriesPanel("Forward: median", "One line per flow: flows between the same NICs may take different spines.", "s", 12, rangeTarget(quantile("0.5", "forward"), "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Reverse: median", "As forward.", "s", 12, rangeTarget(quantile("0.5", "reverse"), "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Forward: lost", "Does not change while no reply comes back. See the panel about arrivals.", "percentunit", 12, rangeTarget(ratio("fabric_probe_lost_total", "forward"), "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Reverse: lost", "As forward.", "percentunit", 12, rangeTarget(ratio("fabric_probe_lost_total", "reverse"), "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Arrived at the far NIC", "Reported by the far node, and therefore known also while no reply comes back.", "percentunit", 12,
			rangeTarget(`sum by (src, dst, flow) (rate(fabric_probe_received_total{class!="csig", src=~"$src", dst=~"$dst"}[$__rate_interval])) / sum by (src, dst, flow) (rate(fabric_probe_sent_total{class!="csig", src=~"$src", dst=~"$dst", direction="forward"}[$__rate_interval]) > 0)`, "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Marked: congestion experienced", "Queues on the forward path.", "percentunit", 12, rangeTarget(ratio("fabric_probe_ecn_marked_total", "forward"), "{{src}} > {{dst}} #{{flow}}")),
	)
}

func tiersDashboard() Dashboard {
	each := func(title, description, unit, record string) Panel {
		return timeSeriesPanel(title, description, unit, 12, rangeTarget(record+`{class!="csig", plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}} {{timestamp}}"))
	}
	return newDashboard("tiers", "tiers and planes", "Is it one plane, or one tier?", []Variable{plane},
		each("Delay: median", "Planes are equal by design. A plane above the others is at fault.", "s", "fabric:tier_owd_seconds:p50_2s"),
		each("Delay: 99th percentile", "Queues are visible here first.", "s", "fabric:tier_owd_seconds:p99_2s"),
		each("Lost", "Of all NICs together.", "percentunit", "fabric:tier_probe_lost:ratio_2s"),
		each("Marked: congestion experienced", "Of all NICs together.", "percentunit", "fabric:tier_probe_ecn_marked:ratio_2s"),
	)
}

func pathDashboard() Dashboard {
	hops := tablePanel("Hops", "In order of hop, per path. egress is the port by which packets leave the switch.", "short", 24, 10, "",
		instantTarget(acrossReplicas+`(fabric_path_hop_info) and on (path) max by (path) (fabric_edge_path_info{src=~"$src", dst=~"$dst"})`, ""))
	hops.Transformations[0].Options["indexByName"] = map[string]int{"path": 0, "hop": 1, "switch": 2, "ingress": 3, "egress": 4, "link": 5}
	hops.Transformations = append(hops.Transformations, Transformation{"sortBy", map[string]any{"fields": map[string]any{}, "sort": []map[string]any{{"field": "path"}}}})
	return newDashboard("path", "path of an edge", "Which ports does the path cross? Paths are published for edges under a verdict. The page and the API of the analyzer have all others.", []Variable{src, dst},
		hops,
		tablePanel("Edges of these paths", "Replies have paths of their own (direction reverse).", "short", 24, 10, "",
			instantTarget(acrossReplicas+`(fabric_edge_path_info{src=~"$src", dst=~"$dst"})`, "")),
	)
}

func linksDashboard() Dashboard {
	return newDashboard("links", "link map", "Which link, and in which direction?", []Variable{link},
		tablePanel("Links that add most delay", "Added delay of each direction, estimated from all probes together.", "s", 12, 9, "added delay",
			instantTarget(`topk(25, max by (link, from, to) (fabric_link_added_delay_seconds{link=~"$link"}))`, "")),
		tablePanel("Links that fewest edges cross", "A link that few edges cross can be neither suspected nor called healthy.", "short", 12, 9, "edges",
			instantTarget(`bottomk(25, max by (link, from, to) (fabric_link_probe_edges{link=~"$link", job="graylink-analyzer"}))`, "")),
		timeSeriesPanel("Added delay", "Of the chosen links, each direction.", "s", 24, rangeTarget(`max by (from, to) (fabric_link_added_delay_seconds{link=~"$link"})`, "{{from}} > {{to}}")),
		timeSeriesPanel("Edges across", "Falls to 0 when routing avoids a link.", "short", 24, rangeTarget(`max by (from, to) (fabric_link_probe_edges{link=~"$link", job="graylink-analyzer"})`, "{{from}} > {{to}}")),
	)
}

func clocksDashboard() Dashboard {
	c := func(name string) string { return `max by (clock) (` + name + `{clock=~"$clock"})` }
	return newDashboard("clocks", "clock quality", "Can one-way delays be believed?", []Variable{clock},
		statPanel("Clocks without a frame", "Converging or lost: delays by them are not measured.", "short", 6, 1,
			instantTarget(`count(max by (clock) (fabric_clock_state{state=~"lost|converging"}) == 1) or vector(0)`, "")),
		statPanel("Largest bound of an error", "The threshold of a shift in delay is never less than the bounds of both ends.", "s", 6, 0.001, instantTarget(`max(fabric_clock_error_bound_seconds)`, "")),
		statPanel("Clocks in holdover", "Extrapolated from the last known offset and drift. Their bounds grow.", "short", 6, 1,
			instantTarget(`count(max by (clock) (fabric_clock_state{state="holdover"}) == 1) or vector(0)`, "")),
		statPanel("Steps in the last hour", "Clocks that a program or an operator set.", "short", 6, 1, instantTarget(`sum(increase(fabric_clock_steps_total[1h]))`, "")),
		timeSeriesPanel("Bound of the error", "Shrinks while peers answer, grows while they do not.", "s", 12, rangeTarget(c("fabric_clock_error_bound_seconds"), "{{clock}}")),
		timeSeriesPanel("Offset to the frame", "Without its coarse part. A jump is a step of that clock.", "s", 12, rangeTarget(c("fabric_clock_offset_seconds"), "{{clock}}")),
		timeSeriesPanel("Drift", "How fast a clock gains on the frame. A kink is a change of temperature, or an adjustment.", "ppm", 12, rangeTarget(c("fabric_clock_drift_ratio")+` * 1e6`, "{{clock}}")),
		timeSeriesPanel("Allowance for asymmetric paths", "Half of the allowed difference between two directions. No clock can measure it.", "s", 12, rangeTarget(c("fabric_clock_asymmetry_allowance_seconds"), "{{clock}}")),
	)
}

func nicsDashboard() Dashboard {
	r := func(name string) string { return name + `{nic=~"$nic", plane=~"$plane"}` }
	const legend = "{{nic}} {{side}} {{class}}"
	return newDashboard("nics", "NIC health", "Is it this NIC, or what is behind it?", []Variable{plane, nic},
		tablePanel("NICs, slowest first", "Median delay of what they send (source) and receive (destination), typical over the leaves of their peers. A bad NIC differs from its leaf and from its peers.", "s", 12, 9, "delay",
			instantTarget(`topk(25, quantile by (nic, leaf, side, plane) (0.5, `+r("fabric:nic_owd_seconds:p50_2s")+`))`, "")),
		tablePanel("NICs with the fewest replies", "Share of their probes that is answered.", "percentunit", 12, 9, "answered",
			instantTarget(`bottomk(25, max by (nic, leaf, plane) (`+r("fabric:nic_probe_answered:ratio_2s")+`))`, "")),
		timeSeriesPanel("Delay: median", "Compare with the usual delay below.", "s", 12, rangeTarget(r("fabric:nic_owd_seconds:p50_2s"), legend)),
		timeSeriesPanel("Delay: 99th percentile", "Jitter is visible in the tail.", "s", 12, rangeTarget(r("fabric:nic_owd_seconds:p99_2s"), legend)),
		timeSeriesPanel("Usual delay", "Low quantile of the median over one hour.", "s", 12, rangeTarget(r("fabric:nic_owd_seconds:p50_2s:low_1h"), legend)),
		timeSeriesPanel("Lost", "By side.", "percentunit", 12, rangeTarget(`fabric:nic_probe_lost:ratio_2s{class!="csig", nic=~"$nic", plane=~"$plane"}`, legend)),
		timeSeriesPanel("Delay in the node's own kernel", "Mean time from the program to the kernel's transmit timestamp. The host causes it, not the network.", "s", 12,
			rangeTarget(`histogram_sum(rate(fabric_nic_kernel_delay_seconds{nic=~"$nic"}[$__rate_interval])) / histogram_count(rate(fabric_nic_kernel_delay_seconds{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		timeSeriesPanel("Agent starved", "Share of the time by which its loop was late. Those windows are not used as evidence.", "percentunit", 12,
			rangeTarget(`max by (nic) (rate(graylink_node_stalled_seconds_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
	)
}

func nicStateDashboard() Dashboard {
	c := func(name string) string { return `max by (nic) (` + name + `{nic=~"$nic"})` }
	rate := func(name, by, more string) string {
		return `max by (nic` + by + `) (rate(` + name + `{nic=~"$nic"` + more + `}[$__rate_interval]))`
	}
	return newDashboard("nicstate", "NIC state", "What does the NIC report about itself?", []Variable{card},
		statPanel("Fatal findings", "Each of them makes a workload fail that uses the NIC. Findings of counters stay until they are reset.", "short", 6, 1,
			instantTarget(`count(max by (nic, code) (fabric_nic_finding{nic=~"$nic", severity="fatal"})) or vector(0)`, "")),
		statPanel("Warnings", "The NIC is degraded, but workloads continue.", "short", 6, 1,
			instantTarget(`count(max by (nic, code) (fabric_nic_finding{nic=~"$nic", severity="warning"})) or vector(0)`, "")),
		statPanel("Ports that are not ACTIVE", "Excludes virtual functions, which may be down.", "short", 6, 1,
			instantTarget(`count(max by (nic) (fabric_nic_port_state{state="ACTIVE", nic=~"$nic"}) == 0 unless on (nic) max by (nic) (fabric_nic_port_virtual_function) == 1) or vector(0)`, "")),
		statPanel("Hanging reads", "Reads of driver files that do not return. Their values are not known.", "short", 6, 1, instantTarget(`sum(graylink_node_nic_hanging_reads)`, "")),
		tablePanel("Findings", "One row per NIC and code of the rules of nichealth.", "short", 12, 9, "",
			instantTarget(`max by (nic, code, severity) (fabric_nic_finding{nic=~"$nic"}) == 1`, "")),
		tablePanel("NICs", "Firmware and board should be equal on all NICs of a kind.", "short", 12, 9, "",
			instantTarget(`max by (nic, kind, type, board, firmware, driver, link_layer, function, pci) (fabric_nic_port_info{nic=~"$nic"})`, "")),
		timeSeriesPanel("Ports by state", "The state of a port that is not counted is not known.", "short", 12, rangeTarget(`sum by (state) (max by (nic, state) (fabric_nic_port_state{nic=~"$nic"}))`, "{{state}}")),
		timeSeriesPanel("Rate relative to the expected rate", "Below 1, a cable or an optic has reduced the rate of the link.", "percentunit", 12,
			rangeTarget(c("fabric_nic_port_rate_bytes_per_second")+` / `+c("fabric_nic_port_expected_rate_bytes_per_second"), "{{nic}}")),
		timeSeriesPanel("Carrier changes", "Two for each time that the link went down and came back.", "short", 12, rangeTarget(`max by (nic) (increase(fabric_nic_port_carrier_changes_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		timeSeriesPanel("Links that went down", "As counted by the RDMA device.", "short", 12, rangeTarget(`max by (nic) (increase(fabric_nic_port_link_downed_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		timeSeriesPanel("Damaged on the link", "Symbol errors, recoveries and damaged packets point to the cable or the optic.", "cps", 12,
			rangeTarget(rate("fabric_nic_port_symbol_errors_total", "", ""), "{{nic}} symbols"), rangeTarget(rate("fabric_nic_port_link_recoveries_total", "", ""), "{{nic}} recoveries"),
			rangeTarget(rate("fabric_nic_port_receive_errors_total", ", reason", ""), "{{nic}} {{reason}}")),
		timeSeriesPanel("Resent or given up", "Loss as RDMA sees it: gaps in the sequence, timeouts, receivers that were not ready.", "cps", 12,
			rangeTarget(rate("fabric_nic_port_hardware_total", ", counter", `, counter=~"out_of_sequence|packet_seq_err|local_ack_timeout_err|rnr_nak_retry_err|req_.*_retries_exceeded"`), "{{nic}} {{counter}}")),
		timeSeriesPanel("Congestion as the NIC sees it", "Marked packets received, and congestion notifications sent and handled.", "cps", 12,
			rangeTarget(rate("fabric_nic_port_hardware_total", ", counter", `, counter=~"np_ecn_marked_roce_packets|np_cnp_sent|rp_cnp_handled"`), "{{nic}} {{counter}}")),
		timeSeriesPanel("Waiting to send", "Ticks of the device in which it had data but no credits.", "cps", 12, rangeTarget(rate("fabric_nic_port_transmit_wait_ticks_total", "", ""), "{{nic}}")),
		timeSeriesPanel("Discarded before sending", "Packets that the port could not send.", "pps", 12, rangeTarget(rate("fabric_nic_port_transmit_discards_total", "", ""), "{{nic}}")),
		timeSeriesPanel("Pause frames", "By direction. Those of priorities are counted by the driver. Received: a queue behind the switch is full. Sent: this node receives too slowly.", "pps", 12,
			rangeTarget(rate("fabric_nic_pause_frames_total", ", direction", ""), "{{nic}} {{direction}}"), rangeTarget(rate("fabric_nic_driver_statistic_total", ", counter", `, counter=~"[rt]x_prio._pause"`), "{{nic}} {{counter}}")),
		timeSeriesPanel("Blocks that FEC corrected or could not correct", "Corrected blocks are usual on fast links. If they increase, or any cannot be corrected, the cable or the optic is at fault.", "cps", 12,
			rangeTarget(rate("fabric_nic_port_fec_corrected_blocks_total", "", ""), "{{nic}} corrected"), rangeTarget(rate("fabric_nic_port_fec_uncorrectable_blocks_total", "", ""), "{{nic}} not")),
		timeSeriesPanel("Light received", "By lane. A lane whose power falls will fail.", "W", 12, rangeTarget(`max by (nic, lane) (fabric_nic_module_receive_power_watts{nic=~"$nic"})`, "{{nic}} lane {{lane}}")),
		timeSeriesPanel("Temperature of modules", "Warnings of the module itself are in the table below.", "celsius", 12, rangeTarget(c("fabric_nic_module_temperature_celsius"), "{{nic}}")),
		tablePanel("Alarms and warnings of modules", "Latched flags of the last five minutes, each since the read before it.", "short", 24, 6, "",
			instantTarget(`max by (nic, flag, lane) (max_over_time(fabric_nic_module_flag{nic=~"$nic"}[5m]))`, "")),
		timeSeriesPanel("PCI errors", "Of the function, by severity. Many correctable errors point to a bad slot.", "cps", 12, rangeTarget(rate("fabric_nic_pci_errors_total", ", severity", ""), "{{nic}} {{severity}}")),
		timeSeriesPanel("PCI link relative to its maximum", "Lanes times transfers. Below 1, the slot limits the NIC.", "percentunit", 12,
			rangeTarget(`max by (nic) (fabric_nic_pci_link_lanes{nic=~"$nic", is="current"}) * max by (nic) (fabric_nic_pci_link_transfers_per_second{is="current"}) / (max by (nic) (fabric_nic_pci_link_lanes{is="max"}) * max by (nic) (fabric_nic_pci_link_transfers_per_second{is="max"}))`, "{{nic}}")),
		timeSeriesPanel("Events in the kernel log", "Events of the NIC's driver, by code.", "short", 12, rangeTarget(`max by (nic, code) (increase(fabric_nic_driver_events_total{nic=~"$nic"}[1h]))`, "{{nic}} {{code}}")),
	)
}

func portsDashboard() Dashboard {
	p := func(name string) string { return name + `{switch=~"$switch", port=~"$port"}` }
	rate := func(name string) string { return `rate(` + p(name) + `[$__rate_interval])` }
	const legend = "{{switch}}:{{port}}"
	return newDashboard("ports", "switch port", "What do the counters of the port itself show?", []Variable{sw, port},
		tablePanel("Ports that are down", "All ports that are down, on purpose or not. FabricPortDown is about those that were up within the hour.", "short", 12, 8, "", instantTarget(p("fabric_switch_port_oper_up")+` == 0`, ""), "instance"),
		timeSeriesPanel("Sent", "Compare with the speed of the port to see whether it is saturated.", "Bps", 12, rangeTarget(rate("fabric_switch_port_transmit_bytes_total"), legend)),
		timeSeriesPanel("Waiting to be sent", "A standing queue is congestion.", "bytes", 12, rangeTarget(p("fabric_switch_port_queue_bytes"), legend)),
		timeSeriesPanel("Discarded by full queues", "Of all queues of the port.", "pps", 12, rangeTarget(rate("fabric_switch_port_queue_discards_total"), legend)),
		timeSeriesPanel("Discarded", "Undamaged packets, by direction.", "pps", 12, rangeTarget(rate("fabric_switch_port_transmit_discards_total"), legend+" sending"), rangeTarget(rate("fabric_switch_port_receive_discards_total"), legend+" receiving")),
		timeSeriesPanel("Damaged", "Errors by reason. They point to a cable, an optic, or the far end.", "pps", 12, rangeTarget(rate("fabric_switch_port_receive_errors_total"), legend+" {{reason}}")),
		timeSeriesPanel("Carrier changes", "Any change is a flap, or the work of an operator.", "short", 12, rangeTarget(`increase(`+p("fabric_switch_port_carrier_changes_total")+`[$__rate_interval])`, legend)),
		timeSeriesPanel("Largest packet (MTU)", "Both ends of a link should agree.", "short", 12, rangeTarget(p("fabric_switch_port_mtu_bytes"), legend)),
		timeSeriesPanel("Paused by the far end", "Priority pause frames received. The port must not send; look at the device at the far end.", "pps", 12, rangeTarget(rate("fabric_switch_port_pfc_receive_frames_total"), legend+" priority {{priority}}")),
		timeSeriesPanel("Time paused", "Share of the time in which the far end kept the port from sending.", "percentunit", 12, rangeTarget(rate("fabric_switch_port_pfc_receive_pause_seconds_total"), legend+" priority {{priority}}")),
		timeSeriesPanel("Waiting for credits", "Ticks in which an InfiniBand port had data but could not send.", "short", 12, rangeTarget(rate("fabric_switch_port_transmit_wait_ticks_total"), legend)),
		timeSeriesPanel("Marked with congestion", "By ECN, of the port or of its queues.", "pps", 12, rangeTarget(rate("fabric_switch_port_queue_ecn_marked_packets_total"), legend+" queue {{tc}}"), rangeTarget(rate("fabric_switch_port_ecn_marked_packets_total"), legend)),
		timeSeriesPanel("Largest queue depth", "Of each queue, in a window that the switch chooses.", "bytes", 12, rangeTarget(p("fabric_switch_port_queue_watermark_bytes"), legend+" queue {{tc}} ({{window}})")),
		timeSeriesPanel("Bit error rate", "Before and after correction. After it there should be no errors.", "short", 12, rangeTarget(p("fabric_switch_port_pre_fec_ber_ratio"), legend+" before"), rangeTarget(p("fabric_switch_port_lane_pre_fec_ber_ratio"), legend+" lane {{lane}} before"),
			rangeTarget(p("fabric_switch_port_post_fec_ber_ratio"), legend+" after")),
		timeSeriesPanel("Blocks that could not be corrected", "Each of them means lost packets.", "short", 12, rangeTarget(`increase(`+p("fabric_switch_port_fec_uncorrectable_blocks_total")+`[$__rate_interval])`, legend)),
		timeSeriesPanel("Light received", "Of the lane with the least power. The power falls before a link fails.", "watt", 12, rangeTarget(`min by (switch, port) (`+p("fabric_switch_port_module_receive_power_watts")+`)`, legend)),
	)
}

func jobsDashboard() Dashboard {
	return newDashboard("jobs", "job view", "Is my job slow because of the network?", []Variable{scope, suspect},
		tablePanel("Is the network to blame?", "The fabric, its planes and pods, and every job as job_name:NAME: innocent, suspect, or too little evidence. graylink job NAME explains why.", "short", 12, 8, "",
			instantTarget(acrossReplicas+`(fabric_verdict_state{scope=~"$scope"}) == 1`, "")),
		timeSeriesPanel("Evidence coverage", "Share of the paths of a job (or of a part of the fabric) that fresh probes cross. If it is low, the network cannot be called innocent.", "percentunit", 12,
			rangeTarget(acrossReplicas+`(fabric_evidence_coverage_ratio{scope=~"$scope"})`, "{{scope}}")),
		tablePanel("Jobs that may cross it", "Of every suspected element. Absent if no placement is known.", "short", 8, 8, "jobs",
			instantTarget(acrossReplicas+`(fabric_suspect_affected_jobs{element=~"$element"})`, "")),
		tablePanel("Affected flows", "By suspected element.", "short", 8, 8, "flows", instantTarget(acrossReplicas+`(fabric_suspect_edges{element=~"$element"}) > 0`, "")),
		tablePanel("Cause", "From the counters of the element's own ports. No row means that they show no cause.", "short", 8, 8, "",
			instantTarget(acrossReplicas+`(fabric_suspect_cause_info{element=~"$element"}) == 1`, "")),
		timeSeriesPanel("Added delay", "One-way delay that the element adds.", "s", 12, rangeTarget(acrossReplicas+`(fabric_suspect_added_delay_seconds{element=~"$element"})`, "{{kind}} {{element}}")),
		timeSeriesPanel("Lost", "Share of packets that the element loses.", "percentunit", 12, rangeTarget(acrossReplicas+`(fabric_suspect_loss_ratio{element=~"$element"})`, "{{kind}} {{element}}")),
	)
}

func collectivesDashboard() Dashboard {
	mean := func(name string) string {
		sum := func(of string) string {
			return `sum without (instance, replica, job, shard) (` + of + `(rate(` + name + `[$__rate_interval])))`
		}
		return sum("histogram_sum") + ` / ` + sum("histogram_count")
	}
	const legend = "{{job_name}} {{comm_name}} {{op}}"
	return newDashboard("collectives", "collectives", "What do jobs wait for? The analyzer shows it where it follows collectives.", nil,
		statPanel("Open diagnoses", "Communicators that hang or are slow. Other communicators that wait for the same fault are not counted.", "short", 6, 1,
			instantTarget(`count(max by (job_name, comm_name, syndrome) (fabric_collective_diagnosis)) or vector(0)`, "")),
		statPanel("Network guilty", "Communicators that wait for the network, by a verdict on their way.", "short", 6, 1,
			instantTarget(`count(max by (job_name, comm_name) (fabric_collective_network_state{state="guilty"}) == 1) or vector(0)`, "")),
		statPanelAtLeast("Nodes with records", "Agents that answer with records of collectives.", "short", 6, 1, instantTarget(`max(graylink_analyzer_collective_nodes)`, "")),
		statPanel("Nodes that do not answer", "What runs on them is not seen.", "short", 6, 1, instantTarget(`max(graylink_analyzer_collective_nodes_unread)`, "")),
		tablePanel("What jobs wait for", "One row per communicator: what is wrong, and whether the network is to blame. graylink job NAME names the ranks.", "short", 12, 9, "",
			instantTarget(`max by (job_name, comm_name, syndrome) (fabric_collective_diagnosis) * on (job_name, comm_name) group_left (state) (max by (job_name, comm_name, state) (fabric_collective_network_state) == 1)`, "")),
		tablePanel("Ranks that came late most often", "Operations for which the others waited beyond what is normal, since the analyzer started.", "short", 12, 9, "operations",
			instantTarget(`sort_desc(max by (job_name, comm_name, rank) (fabric_collective_rank_late_total))`, "")),
		timeSeriesPanel("Transfer: mean", "Time in which operations move data. If it grows, data moves more slowly.", "s", 12, rangeTarget(mean("fabric_collective_transfer_seconds"), legend)),
		timeSeriesPanel("Waiting: mean", "Time for which the median rank waits for the last one. If it grows, a rank comes late.", "s", 12, rangeTarget(mean("fabric_collective_wait_seconds"), legend)),
		timeSeriesPanel("Records read", "Falls to 0 when no job writes records.", "cps", 12, rangeTarget(`sum by (instance) (rate(graylink_analyzer_collective_records_total[$__rate_interval]))`, "{{instance}}")),
		timeSeriesPanel("Records missing or changed", "By reason. What is missing is no evidence.", "cps", 12, rangeTarget(`sum by (reason) (rate(graylink_analyzer_collective_dropped_total[$__rate_interval]))`, "{{reason}}")),
	)
}
