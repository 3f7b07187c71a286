package dashboards

// replicas is what tells two analyzers apart that say the same.
const replicas = "max without (instance, replica) "

var (
	plane   = choice("plane", "Plane", "fabric_nic_info", "plane")
	nic     = choice("nic", "NIC", "fabric_nic_info", "nic")
	card    = choice("nic", "NIC", "fabric_nic_port_info", "nic")
	src     = choice("src", "Source NIC", "fabric_probe_sent_total", "src")
	dst     = choice("dst", "Destination NIC", "fabric_probe_sent_total", "dst")
	sw      = choice("switch", "Switch", "fabric_switch_port_oper_up", "switch")
	port    = choice("port", "Port", `fabric_switch_port_oper_up{switch=~"$switch"}`, "port")
	link    = choice("link", "Link", "fabric_link_probe_edges", "link")
	clock   = choice("clock", "Clock", "fabric_clock_state", "clock")
	scope   = choice("scope", "Part of the fabric, or job", "fabric_verdict_state", "scope")
	suspect = choice("element", "Element", "fabric_suspect_score", "element")
)

// All are the dashboards, by the file names of their JSON.
func All() map[string]Dashboard {
	return map[string]Dashboard{
		"fleet": fleet(), "map": fabricMap(), "edge": edge(), "tiers": tiers(), "path": path(),
		"links": links(), "clocks": clocks(), "nics": nics(), "nicstate": nicState(), "ports": ports(), "jobs": jobs(),
	}
}

func fleet() Dashboard {
	return dashboard("fleet", "fleet overview", "Healthy, or which element?", []Variable{plane},
		number("Elements under suspicion", "0: nothing stands out. Whether that means innocent is beside it.", "short", 4, 1,
			now(`count(fabric:suspect:score) or vector(0)`, "")),
		good("Is the network innocent?", "Yes: enough healthy evidence, and nothing stands out. No is suspicion, or too little evidence.", "bool_yes_no", 4, 1,
			now(replicas+`(fabric_verdict_state{scope="fabric", state="innocent"})`, "")),
		good("Evidence covers", "Share of link directions that fresh probes of known path cross. Below 90 % nobody is called innocent.", "percentunit", 4, 0.9,
			now(replicas+`(fabric_evidence_coverage_ratio{scope="fabric"})`, "")),
		number("Nodes that are no evidence", "Starved, or their agents do not answer.", "short", 4, 1,
			now(`count(`+replicas+`(graylink_analyzer_host_suspect)) or vector(0)`, "")),
		number("Clocks without a frame", "Their one-way delays are not measured.", "short", 4, 1,
			now(`count(max by (clock) (fabric_clock_state{state=~"lost|converging"}) == 1) or vector(0)`, "")),
		number("Seconds since the last cycle", "Of the analyzer that is furthest behind.", "s", 4, 10,
			now(`max(time() - graylink_analyzer_last_cycle_timestamp_seconds)`, "")),
		table("What is suspected", "One row per element; what its scenario and severity mean is in the runbooks.", "percentunit", 24, 7, "confidence",
			now(`fabric:suspect:score * on (element, kind) group_left (scenario, severity, from, to) topk by (element, kind) (1, max without (instance, replica, job, tier, plane, class) (fabric_suspect_info == 1))`, "")),
		lines("Confidence of verdicts", "What was named, and for how long.", "percentunit", 12, over(replicas+`(fabric_suspect_score)`, "{{kind}} {{element}}")),
		lines("Probes lost, by plane and tier", "Of all NICs together. A single broken link shows little of itself here.", "percentunit", 12,
			over(`fabric:tier_probe_lost:ratio_2s{plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}}")),
		lines("One-way delay, by plane and tier: median", "All planes and tiers should run level.", "s", 12,
			over(`fabric:tier_owd_seconds:p50_2s{plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}} ({{timestamp}})")),
		lines("Flows by what is known of their path", "Flows that are not valid accuse and acquit less precisely.", "short", 12, over(replicas+`(fabric_path_edges)`, "{{state}}")),
	)
}

func fabricMap() Dashboard {
	end := func(of, to string) string {
		return `label_replace(` + of + `, "` + to + `", "$1", "` + map[string]string{"source": "from", "target": "to", "id": "from"}[to] + `", "([^/:]+).*")`
	}
	drawn := panel("nodeGraph", "The fabric, links by added delay", "Every direction of a link that probes cross, with the delay it adds; a switch or node has the most of what leaves it.", "s", 24, 16,
		now(`max by (id) (`+end("fabric_link_added_delay_seconds", "id")+`) or group by (id) (`+end("fabric_link_probe_edges", "id")+`) * NaN`, ""),
		now(`max by (id, source, target) (label_join(`+end(end("fabric_link_added_delay_seconds", "source"), "target")+`, "id", ">", "from", "to"))`, ""))
	for i := range drawn.Targets {
		drawn.Targets[i].Format = "table"
	}
	drawn.Transformations = []Transformation{{"organize", map[string]any{"excludeByName": map[string]bool{"Time": true},
		"renameByName": map[string]string{"Value": "mainstat", "Value #A": "mainstat", "Value #B": "mainstat"}}}}
	return dashboard("map", "fabric map", "Where in the fabric is it?", []Variable{plane},
		table("Pairs of leaves, slowest first", "Median one-way delay between two leaves. One row high: a link or a pair. All rows of one leaf: the leaf. Everything: a spine, or clocks.", "s", 12, 9, "delay",
			now(`sort_desc(max by (leaf, peer_leaf, plane) (fabric:leafpair_owd_seconds:p50_2s{side="source", plane=~"$plane"}))`, "")),
		table("Pairs of leaves, most lost first", "While nothing at all comes back, what was lost is not known, and the row is missing.", "percentunit", 12, 9, "lost",
			now(`sort_desc(max by (leaf, peer_leaf, plane) (fabric:leafpair_probe_lost:ratio_2s{side="source", plane=~"$plane"}))`, "")),
		drawn,
	)
}

func edge() Dashboard {
	owd := func(direction string) string {
		return `sum(rate(fabric_probe_owd_seconds{src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval]))`
	}
	quantile := func(phi, direction string) string {
		return `histogram_quantile(` + phi + `, sum by (src, dst, flow) (rate(fabric_probe_owd_seconds{src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval])))`
	}
	ratio := func(what, direction string) string {
		return `sum by (src, dst, flow) (rate(` + what + `{src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval])) / sum by (src, dst, flow) (rate(fabric_probe_sent_total{src=~"$src", dst=~"$dst", direction="` + direction + `"}[$__rate_interval]) > 0)`
	}
	return dashboard("edge", "edge detail", "What do probes between these NICs see, each way? Choose NICs first: all edges of a large fabric are too many.", []Variable{src, dst},
		heat("Forward: delay of probes", "Each way for itself. A clock that is wrong moves forward and reverse by opposite amounts.", 12, owd("forward")),
		heat("Reverse: delay of replies", "The way back takes other links than the way there.", 12, owd("reverse")),
		lines("Forward: median", "One line per flow: flows between the same NICs may take different spines.", "s", 12, over(quantile("0.5", "forward"), "{{src}} > {{dst}} #{{flow}}")),
		lines("Reverse: median", "As forward.", "s", 12, over(quantile("0.5", "reverse"), "{{src}} > {{dst}} #{{flow}}")),
		lines("Forward: lost", "Stands still while nothing comes back: see what arrived.", "percentunit", 12, over(ratio("fabric_probe_lost_total", "forward"), "{{src}} > {{dst}} #{{flow}}")),
		lines("Reverse: lost", "As forward.", "percentunit", 12, over(ratio("fabric_probe_lost_total", "reverse"), "{{src}} > {{dst}} #{{flow}}")),
		lines("Arrived at the far NIC", "Told by the far node, and so known also while no reply comes back.", "percentunit", 12,
			over(`sum by (src, dst, flow) (rate(fabric_probe_received_total{src=~"$src", dst=~"$dst"}[$__rate_interval])) / sum by (src, dst, flow) (rate(fabric_probe_sent_total{src=~"$src", dst=~"$dst", direction="forward"}[$__rate_interval]) > 0)`, "{{src}} > {{dst}} #{{flow}}")),
		lines("Marked: congestion experienced", "Queues on the way there.", "percentunit", 12, over(ratio("fabric_probe_ecn_marked_total", "forward"), "{{src}} > {{dst}} #{{flow}}")),
	)
}

func tiers() Dashboard {
	each := func(title, description, unit, record string) Panel {
		return lines(title, description, unit, 12, over(record+`{plane=~"$plane"}`, "plane {{plane}} tier {{tier}} {{class}} {{timestamp}}"))
	}
	return dashboard("tiers", "tiers and planes", "Is it one plane, or one tier?", []Variable{plane},
		each("Delay: median", "Planes are built alike: one above the others is at fault.", "s", "fabric:tier_owd_seconds:p50_2s"),
		each("Delay: slowest hundredth", "Queues show here first.", "s", "fabric:tier_owd_seconds:p99_2s"),
		each("Lost", "Of all NICs together.", "percentunit", "fabric:tier_probe_lost:ratio_2s"),
		each("Marked: congestion experienced", "Of all NICs together.", "percentunit", "fabric:tier_probe_ecn_marked:ratio_2s"),
	)
}

func path() Dashboard {
	hops := table("Hops", "In order of hop, per path; egress is the port it leaves by.", "short", 24, 10, "",
		now(replicas+`(fabric_path_hop_info) and on (path) max by (path) (fabric_edge_path_info{src=~"$src", dst=~"$dst"})`, ""))
	hops.Transformations[0].Options["indexByName"] = map[string]int{"path": 0, "hop": 1, "switch": 2, "ingress": 3, "egress": 4, "link": 5}
	hops.Transformations = append(hops.Transformations, Transformation{"sortBy", map[string]any{"fields": map[string]any{}, "sort": []map[string]any{{"field": "path"}}}})
	return dashboard("path", "path of an edge", "By which ports does it go? Paths are published of edges under a verdict; of all others the analyzer's page and API tell.", []Variable{src, dst},
		hops,
		table("Edges of these paths", "Replies have paths of their own (direction reverse).", "short", 24, 10, "",
			now(replicas+`(fabric_edge_path_info{src=~"$src", dst=~"$dst"})`, "")),
	)
}

func links() Dashboard {
	return dashboard("links", "link map", "Which link, which way?", []Variable{link},
		table("Links that add most delay", "What the probes across each direction leave to it, when all of them are solved together.", "s", 12, 9, "added delay",
			now(`topk(25, max by (link, from, to) (fabric_link_added_delay_seconds{link=~"$link"}))`, "")),
		table("Links that fewest edges cross", "What hardly anything crosses is neither accused nor acquitted.", "short", 12, 9, "edges",
			now(`bottomk(25, max by (link, from, to) (fabric_link_probe_edges{link=~"$link", job="graylink-analyzer"}))`, "")),
		lines("Added delay", "Of the chosen links, each direction.", "s", 24, over(`max by (from, to) (fabric_link_added_delay_seconds{link=~"$link"})`, "{{from}} > {{to}}")),
		lines("Edges across", "Falls to 0 where routing went away from a link.", "short", 24, over(`max by (from, to) (fabric_link_probe_edges{link=~"$link", job="graylink-analyzer"})`, "{{from}} > {{to}}")),
	)
}

func clocks() Dashboard {
	c := func(name string) string { return `max by (clock) (` + name + `{clock=~"$clock"})` }
	return dashboard("clocks", "clock quality", "Can one-way delays be believed?", []Variable{clock},
		number("Clocks without a frame", "Converging or lost: delays by them are not measured.", "short", 6, 1,
			now(`count(max by (clock) (fabric_clock_state{state=~"lost|converging"}) == 1) or vector(0)`, "")),
		number("Largest bound of an error", "No delay is judged by less than both ends' bounds.", "s", 6, 0.001, now(`max(fabric_clock_error_bound_seconds)`, "")),
		number("Clocks in holdover", "Going on by what was known of them; bounds grow.", "short", 6, 1,
			now(`count(max by (clock) (fabric_clock_state{state="holdover"}) == 1) or vector(0)`, "")),
		number("Steps in the last hour", "Somebody, or something, set a clock.", "short", 6, 1, now(`sum(increase(fabric_clock_steps_total[1h]))`, "")),
		lines("Bound of the error", "Shrinks while peers answer, grows while they do not.", "s", 12, over(c("fabric_clock_error_bound_seconds"), "{{clock}}")),
		lines("Offset to the frame", "Coarse part removed. A jump is a step of that clock.", "s", 12, over(c("fabric_clock_offset_seconds"), "{{clock}}")),
		lines("Drift", "What a clock gains on the frame. A kink is temperature, or a hand.", "ppm", 12, over(c("fabric_clock_drift_ratio")+` * 1e6`, "{{clock}}")),
		lines("Allowance for asymmetric paths", "Not seen by any clock: half of what two ways may differ by.", "s", 12, over(c("fabric_clock_asymmetry_allowance_seconds"), "{{clock}}")),
	)
}

func nics() Dashboard {
	r := func(name string) string { return name + `{nic=~"$nic", plane=~"$plane"}` }
	const legend = "{{nic}} {{side}} {{class}}"
	return dashboard("nics", "NIC health", "Is it this NIC, or what is behind it?", []Variable{plane, nic},
		table("NICs, slowest first", "Median delay of what they send (source) and get (destination), typical of their peers' leaves: a bad NIC stands out from its leaf, and from whoever it talks to.", "s", 12, 9, "delay",
			now(`topk(25, quantile by (nic, leaf, side, plane) (0.5, `+r("fabric:nic_owd_seconds:p50_2s")+`))`, "")),
		table("NICs that hear least", "Share of their probes that is answered.", "percentunit", 12, 9, "answered",
			now(`bottomk(25, max by (nic, leaf, plane) (`+r("fabric:nic_probe_answered:ratio_2s")+`))`, "")),
		lines("Delay: median", "Against what was usual (below).", "s", 12, over(r("fabric:nic_owd_seconds:p50_2s"), legend)),
		lines("Delay: slowest hundredth", "Jitter is in the tail.", "s", 12, over(r("fabric:nic_owd_seconds:p99_2s"), legend)),
		lines("Usual delay", "Low quantile of the median over an hour.", "s", 12, over(r("fabric:nic_owd_seconds:p50_2s:low_1h"), legend)),
		lines("Lost", "By side.", "percentunit", 12, over(r("fabric:nic_probe_lost:ratio_2s"), legend)),
		lines("In the node's own kernel", "From the program to the kernel's transmit stamp, on average: the host's doing.", "s", 12,
			over(`histogram_sum(rate(fabric_nic_kernel_delay_seconds{nic=~"$nic"}[$__rate_interval])) / histogram_count(rate(fabric_nic_kernel_delay_seconds{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		lines("Agent starved", "Share of the time by which its loop was late. Those windows are no evidence.", "percentunit", 12,
			over(`max by (nic) (rate(graylink_node_stalled_seconds_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
	)
}

func nicState() Dashboard {
	c := func(name string) string { return `max by (nic) (` + name + `{nic=~"$nic"})` }
	rate := func(name, by, more string) string {
		return `max by (nic` + by + `) (rate(` + name + `{nic=~"$nic"` + more + `}[$__rate_interval]))`
	}
	return dashboard("nicstate", "NIC state", "What does the NIC say of itself?", []Variable{card},
		number("Fatal findings", "For each of them a workload that uses the NIC fails. Those of counters stay until they are reset.", "short", 6, 1,
			now(`count(max by (nic, code) (fabric_nic_finding{nic=~"$nic", severity="fatal"})) or vector(0)`, "")),
		number("Warnings", "Degraded: workloads go on.", "short", 6, 1,
			now(`count(max by (nic, code) (fabric_nic_finding{nic=~"$nic", severity="warning"})) or vector(0)`, "")),
		number("Ports that are not ACTIVE", "Without virtual functions, which may be down.", "short", 6, 1,
			now(`count(max by (nic) (fabric_nic_port_state{state="ACTIVE", nic=~"$nic"}) == 0 unless on (nic) max by (nic) (fabric_nic_port_virtual_function) == 1) or vector(0)`, "")),
		number("Reads that hang", "Files in the driver that do not return: what they would say is not known.", "short", 6, 1, now(`sum(graylink_node_nic_hanging_reads)`, "")),
		table("What is found", "One row per NIC and code, as the rules of nichealth name it.", "short", 12, 9, "",
			now(`max by (nic, code, severity) (fabric_nic_finding{nic=~"$nic"}) == 1`, "")),
		table("NICs", "What they are: firmware and board should be the same on all of a sort.", "short", 12, 9, "",
			now(`max by (nic, kind, type, board, firmware, driver, link_layer, function, pci) (fabric_nic_port_info{nic=~"$nic"})`, "")),
		lines("Ports by state", "A port that is neither is not known.", "short", 12, over(`sum by (state) (max by (nic, state) (fabric_nic_port_state{nic=~"$nic"}))`, "{{state}}")),
		lines("Rate against what is expected", "Below 1 a cable or optic made the link slower.", "percentunit", 12,
			over(c("fabric_nic_port_rate_bytes_per_second")+` / `+c("fabric_nic_port_expected_rate_bytes_per_second"), "{{nic}}")),
		lines("Carrier changes", "Two for each time that the link went down and came back.", "short", 12, over(`max by (nic) (increase(fabric_nic_port_carrier_changes_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		lines("Links that went down", "As the RDMA device counts.", "short", 12, over(`max by (nic) (increase(fabric_nic_port_link_downed_total{nic=~"$nic"}[$__rate_interval]))`, "{{nic}}")),
		lines("Damaged on the way", "Symbol errors, recoveries and damaged packets: cable and optic.", "cps", 12,
			over(rate("fabric_nic_port_symbol_errors_total", "", ""), "{{nic}} symbols"), over(rate("fabric_nic_port_link_recoveries_total", "", ""), "{{nic}} recoveries"),
			over(rate("fabric_nic_port_receive_errors_total", ", reason", ""), "{{nic}} {{reason}}")),
		lines("Resent or given up", "RDMA's own view of loss: holes in the sequence, timeouts, receivers that were not ready.", "cps", 12,
			over(rate("fabric_nic_port_hardware_total", ", counter", `, counter=~"out_of_sequence|packet_seq_err|local_ack_timeout_err|rnr_nak_retry_err|req_.*_retries_exceeded"`), "{{nic}} {{counter}}")),
		lines("Congestion as the NIC sees it", "Packets that came marked, and notifications for them, sent and handled.", "cps", 12,
			over(rate("fabric_nic_port_hardware_total", ", counter", `, counter=~"np_ecn_marked_roce_packets|np_cnp_sent|rp_cnp_handled"`), "{{nic}} {{counter}}")),
		lines("Waiting to send", "Ticks of the device in which it had data and no credits.", "cps", 12, over(rate("fabric_nic_port_transmit_wait_ticks_total", "", ""), "{{nic}}")),
		lines("Thrown away before sending", "Packets the port could not send.", "pps", 12, over(rate("fabric_nic_port_transmit_discards_total", "", ""), "{{nic}}")),
		lines("Told to pause, and telling", "Pause frames by direction; those of priorities are the driver's. Received: what is behind the switch is full. Sent: this node takes too slowly.", "pps", 12,
			over(rate("fabric_nic_pause_frames_total", ", direction", ""), "{{nic}} {{direction}}"), over(rate("fabric_nic_driver_statistic_total", ", counter", `, counter=~"[rt]x_prio._pause"`), "{{nic}} {{counter}}")),
		lines("Blocks that FEC corrected, and could not", "Corrected ones are usual on fast links; their rise, and any that could not be corrected, are a cable or optic.", "cps", 12,
			over(rate("fabric_nic_port_fec_corrected_blocks_total", "", ""), "{{nic}} corrected"), over(rate("fabric_nic_port_fec_uncorrectable_blocks_total", "", ""), "{{nic}} not")),
		lines("Light received", "By lane. A lane that fades will fail.", "W", 12, over(`max by (nic, lane) (fabric_nic_module_receive_power_watts{nic=~"$nic"})`, "{{nic}} lane {{lane}}")),
		lines("Temperature of modules", "Above the module's own threshold it says so below.", "celsius", 12, over(c("fabric_nic_module_temperature_celsius"), "{{nic}}")),
		table("What modules warn of", "Alarms and warnings since they were read before, in the last five minutes.", "short", 24, 6, "",
			now(`max by (nic, flag, lane) (max_over_time(fabric_nic_module_flag{nic=~"$nic"}[5m]))`, "")),
		lines("PCI errors", "Of the function, by severity: correctable ones in numbers are a bad slot.", "cps", 12, over(rate("fabric_nic_pci_errors_total", ", severity", ""), "{{nic}} {{severity}}")),
		lines("PCI link against its maximum", "Lanes times transfers. Below 1 the slot holds the NIC back.", "percentunit", 12,
			over(`max by (nic) (fabric_nic_pci_link_lanes{nic=~"$nic", is="current"}) * max by (nic) (fabric_nic_pci_link_transfers_per_second{is="current"}) / (max by (nic) (fabric_nic_pci_link_lanes{is="max"}) * max by (nic) (fabric_nic_pci_link_transfers_per_second{is="max"}))`, "{{nic}}")),
		lines("Lines of the kernel's log", "What the driver said of the NIC, by code.", "short", 12, over(`max by (nic, code) (increase(fabric_nic_driver_events_total{nic=~"$nic"}[1h]))`, "{{nic}} {{code}}")),
	)
}

func ports() Dashboard {
	p := func(name string) string { return name + `{switch=~"$switch", port=~"$port"}` }
	rate := func(name string) string { return `rate(` + p(name) + `[$__rate_interval])` }
	const legend = "{{switch}}:{{port}}"
	return dashboard("ports", "switch port", "What does the port itself say?", []Variable{sw, port},
		table("Ports that are down", "All that are down, shut on purpose or not; FabricPortDown is about those that were up within the hour.", "short", 12, 8, "", now(p("fabric_switch_port_oper_up")+` == 0`, ""), "instance"),
		lines("Sent", "Against the port's speed it says whether the port is full.", "Bps", 12, over(rate("fabric_switch_port_transmit_bytes_total"), legend)),
		lines("Waiting to be sent", "A queue that stands is congestion.", "bytes", 12, over(p("fabric_switch_port_queue_bytes"), legend)),
		lines("Thrown away for want of room", "By the queue.", "pps", 12, over(rate("fabric_switch_port_queue_discards_total"), legend)),
		lines("Thrown away", "Whole packets, either way.", "pps", 12, over(rate("fabric_switch_port_transmit_discards_total"), legend+" sending"), over(rate("fabric_switch_port_receive_discards_total"), legend+" receiving")),
		lines("Damaged", "Errors by reason: a cable, an optic, or the far end.", "pps", 12, over(rate("fabric_switch_port_receive_errors_total"), legend+" {{reason}}")),
		lines("Carrier changes", "More than none is a flap, or a hand.", "short", 12, over(`increase(`+p("fabric_switch_port_carrier_changes_total")+`[$__rate_interval])`, legend)),
		lines("Largest packet (MTU)", "Both ends of a link should agree.", "short", 12, over(p("fabric_switch_port_mtu_bytes"), legend)),
		lines("Paused by the far end", "Priority pause frames received: the port may not send. Look beyond it.", "pps", 12, over(rate("fabric_switch_port_pfc_receive_frames_total"), legend+" priority {{priority}}")),
		lines("Time paused", "Share of the time in which the far end kept the port from sending.", "percentunit", 12, over(rate("fabric_switch_port_pfc_receive_pause_seconds_total"), legend+" priority {{priority}}")),
		lines("Waiting for credits", "Ticks in which an InfiniBand port had data and could not send.", "short", 12, over(rate("fabric_switch_port_transmit_wait_ticks_total"), legend)),
		lines("Marked with congestion", "By ECN, of the port or of its queues.", "pps", 12, over(rate("fabric_switch_port_queue_ecn_marked_packets_total"), legend+" queue {{tc}}"), over(rate("fabric_switch_port_ecn_marked_packets_total"), legend)),
		lines("Most that waited", "Of each queue, in a window that the switch chooses.", "bytes", 12, over(p("fabric_switch_port_queue_watermark_bytes"), legend+" queue {{tc}} ({{window}})")),
		lines("Bits in error", "Before and after correction. After it there should be none.", "short", 12, over(p("fabric_switch_port_pre_fec_ber_ratio"), legend+" before"), over(p("fabric_switch_port_lane_pre_fec_ber_ratio"), legend+" lane {{lane}} before"),
			over(p("fabric_switch_port_post_fec_ber_ratio"), legend+" after")),
		lines("Blocks that could not be corrected", "More than none is packets lost.", "short", 12, over(`increase(`+p("fabric_switch_port_fec_uncorrectable_blocks_total")+`[$__rate_interval])`, legend)),
		lines("Light received", "Of the darkest lane. It falls before a link does.", "watt", 12, over(`min by (switch, port) (`+p("fabric_switch_port_module_receive_power_watts")+`)`, legend)),
	)
}

func jobs() Dashboard {
	return dashboard("jobs", "job view", "Is my job slow because of the network?", []Variable{scope, suspect},
		table("Is the network to blame?", "The fabric, its planes and pods, and every job as job_name:NAME: innocent, suspect, or too little evidence. graylink job NAME says why.", "short", 12, 8, "",
			now(replicas+`(fabric_verdict_state{scope=~"$scope"}) == 1`, "")),
		lines("Evidence covers", "Share of the ways of a job (or of a part of the fabric) that fresh probes cross. Low: nobody can be called innocent.", "percentunit", 12,
			over(replicas+`(fabric_evidence_coverage_ratio{scope=~"$scope"})`, "{{scope}}")),
		table("Jobs that may cross it", "Of every suspected element. Absent where no placement is known.", "short", 8, 8, "jobs",
			now(replicas+`(fabric_suspect_affected_jobs{element=~"$element"})`, "")),
		table("Flows that suffer", "By suspected element.", "short", 8, 8, "flows", now(replicas+`(fabric_suspect_edges{element=~"$element"}) > 0`, "")),
		table("Why", "Cause as the element's own ports and counters tell it. No row: they say nothing.", "short", 8, 8, "",
			now(replicas+`(fabric_suspect_cause_info{element=~"$element"}) == 1`, "")),
		lines("Added delay", "What the element adds, one way.", "s", 12, over(replicas+`(fabric_suspect_added_delay_seconds{element=~"$element"})`, "{{kind}} {{element}}")),
		lines("Lost", "What the element loses.", "percentunit", 12, over(replicas+`(fabric_suspect_loss_ratio{element=~"$element"})`, "{{kind}} {{element}}")),
	)
}
