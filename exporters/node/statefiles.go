package node

// Names of the files that a node keeps over a restart, as in the label file of their series.
const (
	fileAssignment  = "assignment"
	fileNICs        = "nics"
	fileLogPosition = "log_position"
)

// fileCollector publishes the writes of the files that keep state.
type fileCollector struct {
	counts map[string]func() (done, failed uint64)
}

func newFileCollector(from *sources) collector {
	if len(from.files) == 0 {
		return nil
	}
	return fileCollector{from.files}
}

// addSeries implements collector.
func (c fileCollector) addSeries(s *scrape) error {
	writes := s.counterFamily("graylink_node_state_writes_total", "Writes of the files that keep state over a restart, by file and result.")
	for _, file := range sortedKeys(c.counts) {
		done, failed := c.counts[file]()
		s.addCounter(writes, float64(done), s.labelPairs("file", file, "result", "done"))
		s.addCounter(writes, float64(failed), s.labelPairs("file", file, "result", "failed"))
	}
	return nil
}
