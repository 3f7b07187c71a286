package sizing

// Kinds of sources of a constant.
const (
	measured = "measured"
	reckoned = "reckoned"
)

// Constant represents a number of the formulas, with its source.
type Constant struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Kind   string  `json:"kind"` // measured or reckoned
	Source string  `json:"source"`
}

const (
	demo = "counted on 2026-11-26 in graylink demo --fabric netns (8 nodes, 6 switches), clock sync on, kernel stamps"
	// made-up counts of an hour; names of some 20 octets
	scraped = "exporters/node TestOctetsOfJobs, 2026-11-27, 120 and 512 flows of 8 NICs"
	h100    = "counted on 2026-11-26 in exporters/node/testdata/nics-h100.metrics, a node of 8 NICs, without ethtool"
)

// A native histogram is one series.
var (
	conditionsPerNIC = Constant{"conditions_per_nic", 5, "series", measured, demo + ": fabric_nic_flows"}
	summaryPerNode   = Constant{"summary_per_node", 6, "series", measured, "exporters/node: the sums over a node at /metrics/nics, with clock sync"}
	hostLossPerNIC   = Constant{"host_loss_per_nic", 5, "series", measured, demo + ": stalls, three reasons of unread packets, one forger; both on /metrics/nics and /metrics/edges"}
	sumSeries        = Constant{"series_per_sum", 8, "series", measured, demo + ": delays, sent, lost and marked of two sides, of a NIC and class or a pair of leaves"}
	sumHistograms    = Constant{"histograms_per_sum", 2, "series", measured, demo}
	flowSent         = Constant{"series_per_flow_sent", 15, "series", measured, demo}
	flowReceived     = Constant{"series_per_flow_received", 1, "series", measured, demo}
	flowHistograms   = Constant{"histograms_per_flow", 2, "series", measured, demo}
	nodeBase         = Constant{"metrics_per_node", 133, "series", measured, demo + ": /metrics without those of NICs and pairs of leaves"}
	nicBase          = Constant{"metrics_per_nic", 43, "series", measured, demo + ": /metrics without health and ICMP errors"}
	nicHistograms    = Constant{"metrics_histograms_per_nic", 1, "series", measured, demo}
	healthPerNIC     = Constant{"health_per_nic", 92, "series", measured, h100 + ": of one mlx5 device"}
	healthOfOthers   = Constant{"health_of_other_devices", 199, "series", measured, h100 + ": three management interfaces and a bond"}
	perTarget        = Constant{"series_per_target", 5, "series", reckoned, "up and four scrape_ series that Prometheus 2.42 adds to each target: https://prometheus.io/docs/concepts/jobs_instances/"}

	analyzerBase      = Constant{"analyzer_base", 73, "series", measured, demo + ": 143 lines without those of links, nodes and switches, with Go and process"}
	analyzerPerLink   = Constant{"analyzer_per_link", 4, "series", reckoned, "fabric_link_probe_edges of two directions in the demo, and at most as many of fabric_link_added_delay_seconds"}
	analyzerPerNode   = Constant{"analyzer_per_node", 1, "series", measured, demo + ": graylink_analyzer_host_suspect"}
	analyzerPerSwitch = Constant{"analyzer_per_switch", 5, "series", measured, demo + ": graylink_analyzer_switch_"}

	coordinatorBase    = Constant{"coordinator_base", 100, "series", reckoned, "docs/coordinator.md: at most 100 for a fleet of any size"}
	coordinatorPerLink = Constant{"coordinator_per_link", 2, "series", reckoned, "docs/coordinator.md: two per link of the topology"}

	switchBase    = Constant{"series_per_switch", 57, "series", measured, demo + ": 157 of a switch with four ports"}
	switchPerPort = Constant{"series_per_port", 25, "series", measured, demo}

	edgesOctets    = Constant{"edges_octets", 1800, "octets of protobuf", reckoned, "names and help of the families of /metrics/edges, and the series of the NIC"}
	edgesGzip      = Constant{"edges_gzip_octets", 5500, "octets of protobuf with gzip", measured, scraped + ": of a node, what flows do not explain"}
	flowOctets     = Constant{"octets_per_flow", 1930, "octets of protobuf", measured, "without names, which each series has again: 2026-11-26, 16,673 octets of 7 flows in the demo, 1,361,769 of 512 flows in TestSizeInOctets"}
	flowGzipOctets = Constant{"gzip_octets_per_flow", 257, "octets of protobuf with gzip", measured, scraped}
	nicsBaseOctets = Constant{"nics_octets", 763, "octets of protobuf", measured, "test/e2e TestSizeOfLab, 2026-11-27: 1,838 octets of 16 series of a node with one NIC, less these: names and help of the families"}
	nicsBaseGzip   = Constant{"nics_gzip_octets", 645, "octets of protobuf with gzip", measured, scraped}
	nicsOctets     = Constant{"nics_octets_per_series", 67, "octets of protobuf", measured, scraped + ": /metrics/nics without sums"}
	nicsGzip       = Constant{"nics_gzip_octets_per_series", 4.1, "octets of protobuf with gzip", measured, scraped}
	nicSumOctets   = Constant{"octets_per_nic_sum", 1850, "octets of protobuf", measured, scraped + ": the sum of a NIC and class"}
	nicSumGzip     = Constant{"gzip_octets_per_nic_sum", 570, "octets of protobuf with gzip", measured, scraped}
	pairOctets     = Constant{"octets_per_leaf_pair", 1490, "octets of protobuf", measured, scraped + ": the sum of a pair of leaves"}
	pairGzip       = Constant{"gzip_octets_per_leaf_pair", 243, "octets of protobuf with gzip", measured, scraped}
	ownOctets      = Constant{"own_octets_per_series", 82, "octets of protobuf", measured, scraped + ": /metrics without health and sums"}
	ownGzip        = Constant{"own_gzip_octets_per_series", 19.5, "octets of protobuf with gzip", measured, scraped}
	healthOctets   = Constant{"health_octets_per_series", 58, "octets of protobuf", measured, h100}
	healthGzip     = Constant{"health_gzip_octets_per_series", 7.5, "octets of protobuf with gzip", measured, h100}

	probeOctets         = Constant{"octets_per_probe", 250, "octets with framing", reckoned, "project's specification; a reply has the same size"}
	coordinatorPerAgent = Constant{"coordinator_octets_per_agent", 81e3, "octets", measured, "docs/coordinator.md: at most 812 MB while 10,016 agents connect at once"}

	agentProcessors   = Constant{"agent_processors", 15.6e-3, "s", measured, "docs/probemesh.md (make peers): 34 ms a second at 1,000 probes a second, less the probes"}
	probeSeconds      = Constant{"processor_seconds_per_probe", 18.8e-6, "s", measured, "docs/probemesh.md (make peers): 20.8 % of a core at 10,000 probes a second, with the reflections, on virtual links, whose delivery is charged to the sender"}
	syncSeconds       = Constant{"processor_seconds_of_clock_sync_per_probe", 2.6e-6, "s", measured, "docs/probemesh.md (BenchmarkExchange): 21.6 us with clock sync, 19.0 us without"}
	judgeSeconds      = Constant{"processor_seconds_per_flow_and_second", 16.3e-6, "s", measured, "docs/adr/0022-agents-judge.md (BenchmarkReading): 1.7 ms a second for 104 flows"}
	scrapeSeconds     = Constant{"processor_seconds_per_scraped_octet", 30e-9, "s", measured, "exporters/node/README.md: 36 ms for 1.22 MB of protobuf with gzip"}
	agentOctets       = Constant{"agent_octets", 23e6, "octets", measured, "docs/probemesh.md: resident at 1,000 probes a second"}
	agentProbeOctets  = Constant{"agent_octets_per_probe_and_second", 1030, "octets", measured, "docs/probemesh.md: 125 MB at 100,000 probes a second"}
	windowOctets      = Constant{"agent_octets_of_windows_per_flow", 29e3, "octets", measured, "docs/adr/0022-agents-judge.md (BenchmarkReading): 3 MB for the last minute of 104 flows"}
	syncOctets        = Constant{"agent_octets_of_clock_sync_per_flow", 17e3, "octets", measured, "docs/probemesh.md: of an edge at 100 probes a second"}
	sampleSeconds     = Constant{"processor_seconds_per_sample", 5.1e-6, "s", measured, "make test-scale, 2026-11-27: a profile of Prometheus 2.42 between evaluations of rules, 4.67 s for 912,000 scraped samples of protobuf"}
	seriesOctets      = Constant{"prometheus_octets_per_series", 7100, "octets", measured, "make test-scale, 2026-11-27: Prometheus 2.42 with 1.78 M series, 0.4 M of them native histograms, and recording rules: 12.6 GB resident after 7 minutes"}
	rateSeconds       = Constant{"processor_seconds_per_rate_of_a_histogram", 48e-6, "s", measured, "make test-scale, 2026-11-26: 73 s for four rates of 364,000 histograms and two of 32,800, with the rates of counters beside them, in Prometheus 2.42"}
	ratesOfPairs      = Constant{"rates_of_leaf_pair_histograms", 4, "rates an evaluation", reckoned, "rules/aggregates.rules.yaml: two quantiles of graylink-leaf-pairs and two of graylink-tiers"}
	ratesOfNICs       = Constant{"rates_of_nic_histograms", 2, "rates an evaluation", reckoned, "rules/aggregates.rules.yaml: two quantiles of graylink-nics"}
	cycleSecondsFleet = Constant{"analyzer_processor_seconds_per_directed_flow", 3.8e-6, "s a cycle", measured, "make test-scale, 2026-11-26: 1.5 s a cycle for 393,862 directed flows, traces among it; make bench-evidence has 0.36 s for 100,000"}
)

// Constants returns all constants.
func Constants() []Constant {
	return []Constant{summaryPerNode, conditionsPerNIC, hostLossPerNIC, sumSeries, sumHistograms, flowSent, flowReceived, flowHistograms, nodeBase, nicBase, nicHistograms, healthPerNIC, healthOfOthers, perTarget,
		analyzerBase, analyzerPerLink, analyzerPerNode, analyzerPerSwitch, coordinatorBase, coordinatorPerLink, switchBase, switchPerPort,
		edgesOctets, edgesGzip, flowOctets, flowGzipOctets, nicsBaseOctets, nicsBaseGzip, nicsOctets, nicsGzip, nicSumOctets, nicSumGzip, pairOctets, pairGzip, ownOctets, ownGzip, healthOctets, healthGzip, probeOctets, coordinatorPerAgent,
		agentProcessors, probeSeconds, syncSeconds, judgeSeconds, scrapeSeconds, agentOctets, agentProbeOctets, windowOctets, syncOctets, sampleSeconds, seriesOctets, rateSeconds, ratesOfPairs, ratesOfNICs, cycleSecondsFleet}
}
