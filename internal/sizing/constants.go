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
	h100 = "counted on 2026-11-26 in exporters/node/testdata/nics-h100.metrics, a node of 8 NICs, without ethtool"
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
	flowOctets     = Constant{"octets_per_flow", 1930, "octets of protobuf", measured, "without names, which each series has again: 2026-11-26, 16,673 octets of 7 flows in the demo, 1,361,769 of 512 flows in TestSizeInOctets"}
	flowGzipOctets = Constant{"gzip_octets_per_flow", 268, "octets of protobuf with gzip", measured, "exporters/node/README.md, 512 flows in 137 kB; made-up counts of an hour. Few flows compress less: 470 with 7"}

	probeOctets         = Constant{"octets_per_probe", 250, "octets with framing", reckoned, "project's specification; a reply has the same size"}
	coordinatorPerAgent = Constant{"coordinator_octets_per_agent", 81e3, "octets", measured, "docs/coordinator.md: at most 812 MB while 10,016 agents connect at once"}
)

// Constants returns all constants.
func Constants() []Constant {
	return []Constant{summaryPerNode, conditionsPerNIC, hostLossPerNIC, sumSeries, sumHistograms, flowSent, flowReceived, flowHistograms, nodeBase, nicBase, nicHistograms, healthPerNIC, healthOfOthers, perTarget,
		analyzerBase, analyzerPerLink, analyzerPerNode, analyzerPerSwitch, coordinatorBase, coordinatorPerLink, switchBase, switchPerPort, edgesOctets, flowOctets, flowGzipOctets, probeOctets, coordinatorPerAgent}
}
