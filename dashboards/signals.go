package dashboards

// signalsDashboard returns the dashboard of in-band signals, which agents and the Collector's receiver read.
func signalsDashboard() Dashboard {
	const chosen = `src=~"$src", dst=~"$dst"`
	const legend = "{{src}} > {{dst}} #{{flow}} {{direction}}"
	worst := func(aggregate, name string) Target {
		return rangeTarget(aggregate+` by (src, dst, flow, direction) (`+name+`{bound="lower", `+chosen+`})`, legend)
	}
	// A locator names the worst hop of an idle path as well, so only flows with little left count.
	bottlenecks := `max by (format, locator, switch, port) (fabric_csig_locator_info) * on (format, locator) group_left () ` +
		`sum by (format, locator) (sum by (src, dst, flow, direction, format, locator) (rate(fabric_csig_packets_total{signal="share", ` + chosen +
		`}[$__rate_interval])) and on (src, dst, flow, direction) (min by (src, dst, flow, direction) (fabric_csig_available_ratio{bound="lower"}) <= 0.1))`
	return newDashboard("signals", "in-band signals", "Which port is the bottleneck of a path, and what does it have left?", []Variable{src, dst},
		statPanel("Flows whose tagged packets are lost", "Their packets without a tag arrive. A switch on the way drops tagged frames.", "short", 6, 1,
			instantTarget(`count(max by (src, dst, flow) (fabric_csig_path_supported) == 0) or vector(0)`, "")),
		statPanel("Profiles in use", "All devices of a domain need the same profile.", "short", 6, 2,
			instantTarget(`count(count by (hash) (graylink_csig_profile_info))`, "")),
		statPanel("Ports reported to be down", "By the locators that the profile has for it.", "short", 6, 1,
			instantTarget(`count(count by (port) (fabric_csig_port_down_info)) or vector(0)`, "")),
		statPanel("Tags that are not used", "Of all NICs together. The last graph shows why.", "cps", 6, 1,
			instantTarget(`sum(rate(fabric_csig_dropped_total[$__rate_interval]))`, "")),
		timeSeriesPanel("Available share of the bottleneck", "At least so much of its speed is left. A gap means that no tag arrived, and not that the path is free.", "percentunit", 12,
			worst("min", "fabric_csig_available_ratio")),
		timeSeriesPanel("Available bandwidth of the bottleneck", "At least so much is left.", "Bps", 12, worst("min", "fabric_csig_available_bytes_per_second")),
		timeSeriesPanel("Largest delay of a hop", "At least as long as this. The hop need not be the one with the least bandwidth.", "s", 12, worst("max", "fabric_csig_hop_delay_seconds")),
		tablePanel("Bottleneck ports", "Tagged packets by the port that they name, of flows with at most 10 % left. Ports with one compact locator have a row each: the path shows which of them it is.", "pps", 12, 8, "packets",
			instantTarget(`sort_desc(`+bottlenecks+`)`, "")),
		tablePanel("Paths that lose tagged packets", "Nothing is concluded from their tags.", "short", 12, 8, "",
			instantTarget(`max by (src, dst, flow) (fabric_csig_path_supported{`+chosen+`}) == 0`, "")),
		tablePanel("Profiles", "Agents and receivers with each.", "short", 12, 8, "readers", instantTarget(`count by (hash) (graylink_csig_profile_info)`, "")),
		timeSeriesPanel("Tags that are not used, by reason", "stranger: the sender is not registered. unknown_locator: a switch has another profile.", "cps", 24,
			rangeTarget(`sum by (reason) (rate(fabric_csig_dropped_total[$__rate_interval]))`, "{{reason}}")),
	)
}
