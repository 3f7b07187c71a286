package node

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of the files that a node keeps over a restart, as in the label file of their series.
const (
	fileAssignment  = "assignment"
	fileNICs        = "nics"
	fileLogPosition = "log_position"
)

var stateWritesDesc = prometheus.NewDesc("graylink_node_state_writes_total", "Writes of the files that keep state over a restart, by file and result.", []string{"file", "result"}, nil)

// stateWrites publishes the counts of writes of state files. The zero value has no files.
type stateWrites struct {
	mu      sync.Mutex
	sources map[string]func() (done, failed uint64)
}

// addFile publishes the counts of a file. It publishes nothing for a file that is not kept.
func (s *stateWrites) addFile(file string, counts func() (done, failed uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources == nil {
		s.sources = map[string]func() (done, failed uint64){}
	}
	s.sources[file] = counts
}

// Describe implements prometheus.Collector.
func (s *stateWrites) Describe(ch chan<- *prometheus.Desc) { ch <- stateWritesDesc }

// Collect implements prometheus.Collector.
func (s *stateWrites) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for file, counts := range s.sources {
		done, failed := counts()
		ch <- prometheus.MustNewConstMetric(stateWritesDesc, prometheus.CounterValue, float64(done), file, "done")
		ch <- prometheus.MustNewConstMetric(stateWritesDesc, prometheus.CounterValue, float64(failed), file, "failed")
	}
}
