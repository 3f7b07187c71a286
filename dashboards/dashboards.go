package dashboards

// acrossReplicas is what tells two analyzers apart that say the same.
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

// All are the dashboards, by the file names of their JSON.
func All() map[string]Dashboard {
	return map[string]Dashboard{
		"fleet": fleetDashboard(), "map": mapDashboard(), "edge": edgeDashboard(), "tiers": tiersDashboard(), "path": pathDashboard(),
		"links": linksDashboard(), "clocks": clocksDashboard(), "nics": nicsDashboard(), "nicstate": nicStateDashboard(), "ports": portsDashboard(), "jobs": jobsDashboard(),
	}
}

func fleetDashboard() Dashboard {
	return newDashboard("fleet", "fleet overview", "Healthy, or which element?", []Variable{plane},
		statPanel("Elements under suspicion", "0: nothing stands out. Whether that means innocent is beside it.", "short", 4, 1,
			instantTarget(`count(fabric:suspect:score) or vector(0)`, "")),
		statPanelAtLeast("Is the network innocent?", "Yes: enough healthy evidence, and nothing stands out. No is suspicion, or too little evidence.", "bool_yes_no", 4, 1,
			instantTarget(acrossReplicas+`(fabric_verdict_state{scope="fabric", state="innocent"})`, "")),
		statPanelAtLeast("Evidence covers", "Share of link directions that fresh probes of known path cross. Below 90 % nobody is called innocent.", "percentunit", 4, 0.9,
			instantTarget(acrossReplicas+`(fabric_evidence_coverage_ratio{scope="fabric"})`, "")),
		statPanel("Nodes that are no evidence", "Starved, or their agents do not answer.", "short", 4, 1,
			instantTarget(`count(`+acrossReplicas+`(graylink_analyzer_host_suspect)) or vector(0)`, "")),
		statPanel("Clocks without a frame", "Their one-way delays are not measured.", "short", 4, 1,
			instantTarget(`count(max by (clock) (fabric_clock_state{state=~"lost|converging"}) == 1) or vector(0)`, "")),
		statPanel("Seconds since the last cycle", "Of the analyzer that is furthest behind.", "s", 4, 10,
			instantTarget(`max(time() - graylink_analyzer_last_cycle_timestamp_seconds)`, "")),
		tablePanel("What is suspected", "One row per element; what its scenario and severity mean is in the runbooks.", "percentunit", 24, 7, "confidence",
			instantTarget(`fabric:suspect:score * on (element, kind) group_left (scenario, severity, from, to) topk by (element, kind) (1, max without (instance, replica, job, tier, plane, class) (fabric_suspect_info == 1))`, "")),
		timeSeriesPanel("Confidence of verdicts", "What was named, and for how long.", "percentunit", 12, rangeTarget(acrossReplicas+`(fabric_suspect_score)`, "{{kind}} {{element}}")),
		timeSeriesPanel("Probes lost, by plane and tier", "Of all NICs together. A single broken link shows little of itself here.", "percentunit", 12,
			rangeTarget(`fabric:tier_probe_lost:ratio_2s{plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}}")),
		timeSeriesPanel("One-way delay, by plane and tier: median", "All planes and tiers should run level.", "s", 12,
			rangeTarget(`fabric:tier_owd_seconds:p50_2s{plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}} ({{timestamp}})")),
		timeSeriesPanel("Flows by what is known of their path", "Flows that are not valid accuse and acquit less precisely.", "short", 12, rangeTarget(acrossReplicas+`(fabric_path_edges)`, "{{state}}")),
	)
}

func mapDashboard() Dashboard {
	end := func(of, to string) string {
		return `label_replace(` + of + `, "` + to + `", "$1", "` + map[string]string{"source": "from", "target": "to", "id": "from"}[to] + `", "([^/:]+).*")`
	}
	drawn := newPanel("nodeGraph", "The fabric, links by added delay", "Every direction of a link that probes cross, with the delay it adds; a switch or node has the most of what leaves it.", "s", 24, 16,
		instantTarget(`max by (id) (`+end("fabric_link_added_delay_seconds", "id")+`) or group by (id) (`+end("fabric_link_probe_edges", "id")+`) * NaN`, ""),
		instantTarget(`max by (id, source, target) (label_join(`+end(end("fabric_link_added_delay_seconds", "source"), "target")+`, "id", ">", "from", "to"))`, ""))
	for i := range drawn.Targets {
		drawn.Targets[i].Format = "table"
	}
	drawn.Transformations = []Transformation{{"organize", map[string]any{"excludeByName": map[string]bool{"Time": true},
		"renameByName": map[string]string{"Value": "mainstat", "Value #A": "mainstat", "Value #B": "mainstat"}}}}
	return newDashboard("map", "fabric map", "Where in the fabric is it?", []Variable{plane},
		tablePanel("Pairs of leaves, slowest first", "Median one-way delay between two leaves. One row high: a link or a pair. All rows of one leaf: the leaf. Everything: a spine, or clocks.", "s", 12, 9, "delay",
			instantTarget(`sort_desc(max by (leaf, peer_leaf, plane) (fabric:leafpair_owd_seconds:p50_2s{side="source", plane=~"$plane"}))`, "")),
		tablePanel("Pairs of leaves, most lost first", "While nothing at all comes back, what was lost is not known, and the row is missing.", "percentunit", 12, 9, "lost",
			instantTarget(`sort_desc(max by (leaf, peer_leaf, plane) (fabric:leafpair_probe_lost:ratio_2s{side="source", plane=~"$plane"}))`, "")),
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
		return `sum by (src, dst, flow) (rate(` + what + `{src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval])) / sum by (src, dst, flow) (rate(fabric_probe_sent_total{src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval]) > 0)`
	}
	return newDashboard("edge", "edge detail", "What do probes between these NICs see, each way? Choose NICs first: all edges of a large fabric are too many.", []Variable{src, dst},
		heatmapPanel("Forward: delay of probes", "Each way for itself. A clock that is wrong moves forward and reverse by opposite amounts.", 12, owd("forward")),
		heatmapPanel("Reverse: delay of replies", "The way back takes other links than the way there.", 12, owd("reverse")),
		timeSeriesPanel("Forward: median", "One line per flow: flows between the same NICs may take different spines.", "s", 12, rangeTarget(quantile("0.5", "forward"), "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Reverse: median", "As forward.", "s", 12, rangeTarget(quantile("0.5", "reverse"), "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Forward: lost", "Stands still while nothing comes back: see what arrived.", "percentunit", 12, rangeTarget(ratio("fabric_probe_lost_total", "forward"), "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Reverse: lost", "As forward.", "percentunit", 12, rangeTarget(ratio("fabric_probe_lost_total", "reverse"), "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Arrived at the far NIC", "Told by the far node, and so known also while no reply comes back.", "percentunit", 12,
			rangeTarget(`sum by (src, dst, flow) (rate(fabric_probe_received_total{src=~"$src", dst=~"$dst"}[$__rate_interval])) / sum by (src, dst, flow) (rate(fabric_probe_sent_total{src=~"$src", dst=~"$dst", direction="forward"}[$__rate_interval]) > 0)`, "{{src}} > {{dst}} #{{flow}}")),
		timeSeriesPanel("Marked: congestion experienced", "Queues on the way there.", "percentunit", 12, rangeTarget(ratio("fabric_probe_ecn_marked_total", "forward"), "{{src}} > {{dst}} #{{flow}}")),
	)
}

func tiersDashboard() Dashboard {
	each := func(title, description, unit, record string) Panel {
		return timeSeriesPanel(title, description, unit, 12, rangeTarget(record+`{plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}} {{timestamp}}"))
	}
	return newDashboard("tiers", "tiers and planes", "Is it one plane, or one tier?", []Variable{plane},
		each("Delay: median", "Planes are built alike: one above the others is at fault.", "s", "fabric:tier_owd_seconds:p50_2s"),
		each("Delay: slowest hundredth", "Queues show here first.", "s", "fabric:tier_owd_seconds:p99_2s"),
		each("Lost", "Of all NICs together.", "percentunit", "fabric:tier_probe_lost:ratio_2s"),
		each("Marked: congestion experienced", "Of all NICs together.", "percentunit", "fabric:tier_probe_ecn_marked:ratio_2s"),
	)
}

func pathDashboard() Dashboard {
	hops := tablePanel("Hops", "In order of hop, per path; egress is the port it leaves by.", "short", 24, 10, "",
		instantTarget(acrossReplicas+`(fabric_path_hop_info) and on (path) max by (path) (fabric_edge_path_info{src=~"$src", dst=~"$dst"})`, ""))
	hops.Transformations[0].Options["indexByName"] = map[string]int{"path": 0, "hop": 1, "switch": 2, "ingress": 3, "egress": 4, "link": 5}
	hops.Transformations = append(hops.Transformations, Transformation{"sortBy", map[string]any{"fields": map[string]any{}, "sort": []map[string]any{{"field": "path"}}}})
	return newDashboard("path", "path of an edge", "By which ports does it go? Paths are published of edges under a verdict; of all others the analyzer's page and API tell.", []Variable{src, dst},
		hops,
		tablePanel("Edges of these paths", "Replies have paths of their own (direction reverse).", "short", 24, 10, "",
			instantTarget(acrossReplicas+`(fabric_edge_path_info{src=~"$src", dst=~"$dst"})`, "")),
	)
}

func linksDashboard() Dashboard {
	return newDashboard("links", "link map", "Which link, which way?", []Variable{link},
		tablePanel("Links that add most delay", "What the probes across each direction leave to it, when all of them are solved together.", "s", 12, 9, "added delay",
			instantTarget(`topk(25, max by (link, from, to) (fabric_link_added_delay_seconds{link=~"$link"}))`, "")),
		tablePanel("Links that fewest edges cross", "What hardly anything crosses is neither accused nor acquitted.", "short", 12, 9, "edges",
			instantTarget(`bottomk(25, max by (link, from, to) (fabric_link_probe_edges{link=~"$link", job="graylink-analyzer"}))`, "")),
		timeSeriesPanel("Added delay", "Of the chosen links, each direction.", "s", 24, rangeTarget(`max by (from, to) (fabric_link_added_delay_seconds{link=~"$link"})`, "{{from}} > {{to}}")),
		timeSeriesPanel("Edges across", "Falls to 0 where routing went away from a link.", "short", 24, rangeTarget(`max by (from, to) (fabric_link_probe_edges{link=~"$link", job="graylink-analyzer"})`, "{{from}} > {{to}}")),
	)
}

func clocksDashboard() Dashboard {
	c := func(name string) string { return `max by (clock) (` + name + `{clock=~"$clock"})` }
	return newDashboard("clocks", "clock quality", "Can one-way delays be believed?", []Variable{clock},
		statPanel("Clocks without a frame", "Converging or lost: delays by them are not measured.", "short", 6, 1,
			instantTarget(`count(max by (clock) (fabric_clock_state{state=~"lost|converging"}) == 1) or vector(0)`, "")),
		statPanel("Largest bound of an error", "No delay is judged by less than both ends' bounds.", "s", 6, 0.001, instantTarget(`max(fabric_clock_error_bound_seconds)`, "")),
		statPanel("Clocks in holdover", "Going on by what was known of them; bounds grow.", "short", 6, 1,
			instantTarget(`count(max by (clock) (fabric_clock_state{state="holdover"}) == 1) or vector(0)`, "")),
		statPanel("Steps in the last hour", "Somebody, or something, set a clock.", "short", 6, 1, instantTarget(`sum(increase(fabric_clock_steps_total[1h]))`, "")),
		timeSeriesPanel("Bound of the error", "Shrinks while peers answer, grows while they do not.", "s", 12, rangeTarget(c("fabric_clock_error_bound_seconds"), "{{clock}}")),
		timeSeriesPanel("Offset to the frame", "Coarse part removed. A jump is a step of that clock.", "s", 12, rangeTarget(c("fabric_clock_offset_seconds"), "{{clock}}")),
		timeSeriesPanel("Drift", "What a clock gains on the frame. A kink is temperature, or a hand.", "ppm", 12, rangeTarget(c("fabric_clock_drift_ratio")+` * 1e6`, "{{clock}}")),
		timeSeriesPanel("Allowance for asymmetric paths", "Not seen by any clock: half of what two ways may differ by.", "s", 12, rangeTarget(c("fabric_clock_asymmetry_allowance_seconds"), "{{clock}}")),
	)
}

func nicsDashboard() Dashboard {
	r := func(name string) string { return name + `{nic=~"$nic", plane=~"$plane"}` }
	const legend = "{{nic}} {{side}} {{class}}"
	return newDashboard("nics", "NIC health", "Is it this NIC, or what is behind it?", []Variable{plane, nic},
		tablePanel("NICs, slowest first", "Median delay of what they send (source) and get (destination), typical of their peers' leaves: a bad NIC stands out from its leaf, and from whoever it talks to.", "s", 12, 9, "delay",
			instantTarget(`topk(25, quantile by (nic, leaf, side, plane) (0.5, `+r("fabric:nic_owd_seconds:p50_2s")+`))`, "")),
		tablePanel("NICs that hear least", "Share of their probes that is answered.", "percentunit", 12, 9, "answered",
			instantTarget(`bottomk(25, max by (nic, leaf, plane) (`+r("fabric:nic_probe_answered:ratio_2s")+`))`, "")),
		timeSeriesPanel("Delay: median", "Against what was usual (below).", "s", 12, rangeTarget(r("fabric:nic_owd_seconds:p50_2s"), legend)),
		timeSeriesPanel("Delay: slowest hundredth", "Jitter is in the tail.", "s", 12, rangeTarget(r("fabric:nic_owd_seconds:p99_2s"), legend)),
		timeSeriesPanel("Usual delay", "Low quantile of the median over an hour.", "s", 12, rangeTarget(r("fabric:nic_owd_seconds:p50_2s:low_1h"), legend)),
		timeSeriesPanel("Lost", "By side.", "percentunit", 12, rangeTarget(r("fabric:nic_probe_lost:ratio_2s"), legend)),
		timeSeriesPanel("In the node's own kernel", "From the program to the kernel's transmit stamp, on average: the host's doing.", "s", 12,
			rangeTarget(`histogram_sum(rate(fabric_nic_kernel_delay_seconds{nic=~"$nic"}[$__rate_interval])) / histogram_count(rate(fabric_nic_kernel_delay_seconds{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		timeSeriesPanel("Agent starved", "Share of the time by which its loop was late. Those windows are no evidence.", "percentunit", 12,
			rangeTarget(`max by (nic) (rate(graylink_node_stalled_seconds_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
	)
}

func nicStateDashboard() Dashboard {
	c := func(name string) string { return `max by (nic) (` + name + `{nic=~"$nic"})` }
	rate := func(name, by, more string) string {
		return `max by (nic` + by + `) (rate(` + name + `{nic=~"$nic"` + more + `}[$__rate_interval]))`
	}
	return newDashboard("nicstate", "NIC state", "What does the NIC say of itself?", []Variable{card},
		statPanel("Fatal findings", "For each of them a workload that uses the NIC fails. Those of counters stay until they are reset.", "short", 6, 1,
			instantTarget(`count(max by (nic, code) (fabric_nic_finding{nic=~"$nic", severity="fatal"})) or vector(0)`, "")),
		statPanel("Warnings", "Degraded: workloads go on.", "short", 6, 1,
			instantTarget(`count(max by (nic, code) (fabric_nic_finding{nic=~"$nic", severity="warning"})) or vector(0)`, "")),
		statPanel("Ports that are not ACTIVE", "Without virtual functions, which may be down.", "short", 6, 1,
			instantTarget(`count(max by (nic) (fabric_nic_port_state{state="ACTIVE", nic=~"$nic"}) == 0 unless on (nic) max by (nic) (fabric_nic_port_virtual_function) == 1) or vector(0)`, "")),
		statPanel("Reads that hang", "Files in the driver that do not return: what they would say is not known.", "short", 6, 1, instantTarget(`sum(graylink_node_nic_hanging_reads)`, "")),
		tablePanel("What is found", "One row per NIC and code, as the rules of nichealth name it.", "short", 12, 9, "",
			instantTarget(`max by (nic, code, severity) (fabric_nic_finding{nic=~"$nic"}) == 1`, "")),
		tablePanel("NICs", "What they are: firmware and board should be the same on all of a sort.", "short", 12, 9, "",
			instantTarget(`max by (nic, kind, type, board, firmware, driver, link_layer, function, pci) (fabric_nic_port_info{nic=~"$nic"})`, "")),
		timeSeriesPanel("Ports by state", "A port that is neither is not known.", "short", 12, rangeTarget(`sum by (state) (max by (nic, state) (fabric_nic_port_state{nic=~"$nic"}))`, "{{state}}")),
		timeSeriesPanel("Rate against what is expected", "Below 1 a cable or optic made the link slower.", "percentunit", 12,
			rangeTarget(c("fabric_nic_port_rate_bytes_per_second")+` / `+c("fabric_nic_port_expected_rate_bytes_per_second"), "{{nic}}")),
		timeSeriesPanel("Carrier changes", "Two for each time that the link went down and came back.", "short", 12, rangeTarget(`max by (nic) (increase(fabric_nic_port_carrier_changes_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		timeSeriesPanel("Links that went down", "As the RDMA device counts.", "short", 12, rangeTarget(`max by (nic) (increase(fabric_nic_port_link_downed_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		timeSeriesPanel("Damaged on the way", "Symbol errors, recoveries and damaged packets: cable and optic.", "cps", 12,
			rangeTarget(rate("fabric_nic_port_symbol_errors_total", "", ""), "{{nic}} symbols"), rangeTarget(rate("fabric_nic_port_link_recoveries_total", "", ""), "{{nic}} recoveries"),
			rangeTarget(rate("fabric_nic_port_receive_errors_total", ", reason", ""), "{{nic}} {{reason}}")),
		timeSeriesPanel("Resent or given up", "RDMA's own view of loss: holes in the sequence, timeouts, receivers that were not ready.", "cps", 12,
			rangeTarget(rate("fabric_nic_port_hardware_total", ", counter", `, counter=~"out_of_sequence|packet_seq_err|local_ack_timeout_err|rnr_nak_retry_err|req_.*_retries_exceeded"`), "{{nic}} {{counter}}")),
		timeSeriesPanel("Congestion as the NIC sees it", "Packets that came marked, and notifications for them, sent and handled.", "cps", 12,
			rangeTarget(rate("fabric_nic_port_hardware_total", ", counter", `, counter=~"np_ecn_marked_roce_packets|np_cnp_sent|rp_cnp_handled"`), "{{nic}} {{counter}}")),
		timeSeriesPanel("Waiting to send", "Ticks of the device in which it had data and no credits.", "cps", 12, rangeTarget(rate("fabric_nic_port_transmit_wait_ticks_total", "", ""), "{{nic}}")),
		timeSeriesPanel("Thrown away before sending", "Packets the port could not send.", "pps", 12, rangeTarget(rate("fabric_nic_port_transmit_discards_total", "", ""), "{{nic}}")),
		timeSeriesPanel("Told to pause, and telling", "Pause frames by direction; those of priorities are the driver's. Received: what is behind the switch is full. Sent: this node takes too slowly.", "pps", 12,
			rangeTarget(rate("fabric_nic_pause_frames_total", ", direction", ""), "{{nic}} {{direction}}"), rangeTarget(rate("fabric_nic_driver_statistic_total", ", counter", `, counter=~"[rt]x_prio._pause"`), "{{nic}} {{counter}}")),
		timeSeriesPanel("Blocks that FEC corrected, and could not", "Corrected ones are usual on fast links; their rise, and any that could not be corrected, are a cable or optic.", "cps", 12,
			rangeTarget(rate("fabric_nic_port_fec_corrected_blocks_total", "", ""), "{{nic}} corrected"), rangeTarget(rate("fabric_nic_port_fec_uncorrectable_blocks_total", "", ""), "{{nic}} not")),
		timeSeriesPanel("Light received", "By lane. A lane that fades will fail.", "W", 12, rangeTarget(`max by (nic, lane) (fabric_nic_module_receive_power_watts{nic=~"$nic"})`, "{{nic}} lane {{lane}}")),
		timeSeriesPanel("Temperature of modules", "Above the module's own threshold it says so below.", "celsius", 12, rangeTarget(c("fabric_nic_module_temperature_celsius"), "{{nic}}")),
		tablePanel("What modules warn of", "Alarms and warnings since they were read before, in the last five minutes.", "short", 24, 6, "",
			instantTarget(`max by (nic, flag, lane) (max_over_time(fabric_nic_module_flag{nic=~"$nic"}[5m]))`, "")),
		timeSeriesPanel("PCI errors", "Of the function, by severity: correctable ones in numbers are a bad slot.", "cps", 12, rangeTarget(rate("fabric_nic_pci_errors_total", ", severity", ""), "{{nic}} {{severity}}")),
		timeSeriesPanel("PCI link against its maximum", "Lanes times transfers. Below 1 the slot holds the NIC back.", "percentunit", 12,
			rangeTarget(`max by (nic) (fabric_nic_pci_link_lanes{nic=~"$nic", is="current"}) * max by (nic) (fabric_nic_pci_link_transfers_per_second{is="current"}) / (max by (nic) (fabric_nic_pci_link_lanes{is="max"}) * max by (nic) (fabric_nic_pci_link_transfers_per_second{is="max"}))`, "{{nic}}")),
		timeSeriesPanel("Lines of the kernel's log", "What the driver said of the NIC, by code.", "short", 12, rangeTarget(`max by (nic, code) (increase(fabric_nic_driver_events_total{nic=~"$nic"}[1h]))`, "{{nic}} {{code}}")),
	)
}

func portsDashboard() Dashboard {
	p := func(name string) string { return name + `{switch=~"$switch", port=~"$port"}` }
	rate := func(name string) string { return `rate(` + p(name) + `[$__rate_interval])` }
	const legend = "{{switch}}:{{port}}"
	return newDashboard("ports", "switch port", "What does the port itself say?", []Variable{sw, port},
		tablePanel("Ports that are down", "All that are down, shut on purpose or not; FabricPortDown is about those that were up within the hour.", "short", 12, 8, "", instantTarget(p("fabric_switch_port_oper_up")+` == 0`, ""), "instance"),
		timeSeriesPanel("Sent", "Against the port's speed it says whether the port is full.", "Bps", 12, rangeTarget(rate("fabric_switch_port_transmit_bytes_total"), legend)),
		timeSeriesPanel("Waiting to be sent", "A queue that stands is congestion.", "bytes", 12, rangeTarget(p("fabric_switch_port_queue_bytes"), legend)),
		timeSeriesPanel("Thrown away for want of room", "By the queue.", "pps", 12, rangeTarget(rate("fabric_switch_port_queue_discards_total"), legend)),
		timeSeriesPanel("Thrown away", "Whole packets, either way.", "pps", 12, rangeTarget(rate("fabric_switch_port_transmit_discards_total"), legend+" sending"), rangeTarget(rate("fabric_switch_port_receive_discards_total"), legend+" receiving")),
		timeSeriesPanel("Damaged", "Errors by reason: a cable, an optic, or the far end.", "pps", 12, rangeTarget(rate("fabric_switch_port_receive_errors_total"), legend+" {{reason}}")),
		timeSeriesPanel("Carrier changes", "More than none is a flap, or a hand.", "short", 12, rangeTarget(`increase(`+p("fabric_switch_port_carrier_changes_total")+`[$__rate_interval])`, legend)),
		timeSeriesPanel("Largest packet (MTU)", "Both ends of a link should agree.", "short", 12, rangeTarget(p("fabric_switch_port_mtu_bytes"), legend)),
		timeSeriesPanel("Paused by the far end", "Priority pause frames received: the port may not send. Look beyond it.", "pps", 12, rangeTarget(rate("fabric_switch_port_pfc_receive_frames_total"), legend+" priority {{priority}}")),
		timeSeriesPanel("Time paused", "Share of the time in which the far end kept the port from sending.", "percentunit", 12, rangeTarget(rate("fabric_switch_port_pfc_receive_pause_seconds_total"), legend+" priority {{priority}}")),
		timeSeriesPanel("Waiting for credits", "Ticks in which an InfiniBand port had data and could not send.", "short", 12, rangeTarget(rate("fabric_switch_port_transmit_wait_ticks_total"), legend)),
		timeSeriesPanel("Marked with congestion", "By ECN, of the port or of its queues.", "pps", 12, rangeTarget(rate("fabric_switch_port_queue_ecn_marked_packets_total"), legend+" queue {{tc}}"), rangeTarget(rate("fabric_switch_port_ecn_marked_packets_total"), legend)),
		timeSeriesPanel("Most that waited", "Of each queue, in a window that the switch chooses.", "bytes", 12, rangeTarget(p("fabric_switch_port_queue_watermark_bytes"), legend+" queue {{tc}} ({{window}})")),
		timeSeriesPanel("Bits in error", "Before and after correction. After it there should be none.", "short", 12, rangeTarget(p("fabric_switch_port_pre_fec_ber_ratio"), legend+" before"), rangeTarget(p("fabric_switch_port_lane_pre_fec_ber_ratio"), legend+" lane {{lane}} before"),
			rangeTarget(p("fabric_switch_port_post_fec_ber_ratio"), legend+" after")),
		timeSeriesPanel("Blocks that could not be corrected", "More than none is packets lost.", "short", 12, rangeTarget(`increase(`+p("fabric_switch_port_fec_uncorrectable_blocks_total")+`[$__rate_interval])`, legend)),
		timeSeriesPanel("Light received", "Of the darkest lane. It falls before a link does.", "watt", 12, rangeTarget(`min by (switch, port) (`+p("fabric_switch_port_module_receive_power_watts")+`)`, legend)),
	)
}

func jobsDashboard() Dashboard {
	return newDashboard("jobs", "job view", "Is my job slow because of the network?", []Variable{scope, suspect},
		tablePanel("Is the network to blame?", "The fabric, its planes and pods, and every job as job_name:NAME: innocent, suspect, or too little evidence. graylink job NAME says why.", "short", 12, 8, "",
			instantTarget(acrossReplicas+`(fabric_verdict_state{scope=~"$scope"}) == 1`, "")),
		timeSeriesPanel("Evidence covers", "Share of the ways of a job (or of a part of the fabric) that fresh probes cross. Low: nobody can be called innocent.", "percentunit", 12,
			rangeTarget(acrossReplicas+`(fabric_evidence_coverage_ratio{scope=~"$scope"})`, "{{scope}}")),
		tablePanel("Jobs that may cross it", "Of every suspected element. Absent where no placement is known.", "short", 8, 8, "jobs",
			instantTarget(acrossReplicas+`(fabric_suspect_affected_jobs{element=~"$element"})`, "")),
		tablePanel("Flows that suffer", "By suspected element.", "short", 8, 8, "flows", instantTarget(acrossReplicas+`(fabric_suspect_edges{element=~"$element"}) > 0`, "")),
		tablePanel("Why", "Cause as the element's own ports and counters tell it. No row: they say nothing.", "short", 8, 8, "",
			instantTarget(acrossReplicas+`(fabric_suspect_cause_info{element=~"$element"}) == 1`, "")),
		timeSeriesPanel("Added delay", "What the element adds, one way.", "s", 12, rangeTarget(acrossReplicas+`(fabric_suspect_added_delay_seconds{element=~"$element"})`, "{{kind}} {{element}}")),
		timeSeriesPanel("Lost", "What the element loses.", "percentunit", 12, rangeTarget(acrossReplicas+`(fabric_suspect_loss_ratio{element=~"$element"})`, "{{kind}} {{element}}")),
	)
}
