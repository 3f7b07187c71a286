package node

// pathCollector publishes the traced paths.
type pathCollector struct{}

func newPathCollector(*sources) collector { return pathCollector{} }

// addSeries implements collector.
func (pathCollector) addSeries(s *scrape) error {
	version, paths := s.TracedPaths()
	states := map[string]int{"valid": 0, "stale": 0, "unknown": 0}
	for i := range paths {
		states[string(paths[i].State)]++
	}
	edges := s.gaugeFamily("graylink_node_path_edges", "Flows traced by this node, by state of their path.")
	for _, name := range sortedKeys(states) {
		s.addGauge(edges, float64(states[name]), s.labelPairs("state", name))
	}
	s.addGauge(s.gaugeFamily("graylink_node_path_map_version", "Version of the traced paths. It grows with every change."), float64(version), nil)
	sent, answered := s.TraceStats()
	packets := s.counterFamily("graylink_node_trace_packets_total", "Trace packets, sent and answered.")
	s.addCounter(packets, float64(sent), s.labelPairs("result", "sent"))
	s.addCounter(packets, float64(answered), s.labelPairs("result", "answered"))
	return nil
}

// configCollector publishes which configuration runs.
type configCollector struct{}

func newConfigCollector(*sources) collector { return configCollector{} }

// addSeries implements collector.
func (configCollector) addSeries(s *scrape) error {
	s.addGauge(s.gaugeFamily("graylink_config_hash_info", "First eight octets of the configuration's SHA-256, as a label."), 1, s.labelPairs("hash", s.Config().Hash))
	s.addGauge(s.gaugeFamily("graylink_config_last_reload_successful", "Whether the last reload was successful."), zeroOrOne(s.ReloadOK), nil)
	s.addGauge(s.gaugeFamily("graylink_config_last_reload_success_timestamp_seconds", "Time when the running configuration was loaded, in Unix seconds."), float64(s.Loaded.UnixNano())/1e9, nil)
	return nil
}
