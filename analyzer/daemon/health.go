package daemon

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
)

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	cycles        = newDesc("graylink_analyzer_cycles_total", "Cycles by result: answered, failed without evidence, or skipped because of a slow cycle.", "result")
	cycleSeconds  = newDesc("graylink_analyzer_cycle_duration_seconds", "Duration of the last cycle.")
	droppedTraces = newDesc("graylink_analyzer_traces_dropped_total", "Requests for traces that found the queue full. The next cycle repeats them.")
	refusedTraces = newDesc("graylink_analyzer_traces_refused_total", "Refused traces, by the node that reported them and the reason.", "node", "reason")
	expectedFlows = newDesc("graylink_analyzer_expected_edges", "Number of directed flows that should have evidence.")
	twoSteps      = newDesc("graylink_analyzer_two_steps", "1 if the last cycle queried selected flows only.")
	queriedFlows  = newDesc("graylink_analyzer_asked_edges", "Number of directed flows that the last cycle queried.")
	carriedFlows  = newDesc("graylink_analyzer_vouched_edges", "Number of directed flows that the last cycle did not query, and that count as healthy.")
	movedNICs     = newDesc("graylink_analyzer_moved_nics", "Number of NICs whose aggregates are not normal.")
	leftOutNICs   = newDesc("graylink_analyzer_left_out_nics", "Number of NICs that the last cycle should have queried, but that exceeded its budget.")
	windowLag     = newDesc("graylink_analyzer_lag_seconds", "How far in the past the window of the last cycle ended.")
	sampleAge     = newDesc("graylink_analyzer_sample_age_seconds", "Age of the newest samples of nine of ten nodes in the last cycle, if the lag is measured.")
	sourceUp      = newDesc("graylink_analyzer_maintenance_source_up", "Whether the last read of a source of maintenance windows worked (1) or not (0). The windows that are known stay.", "source")
	subnetAge     = newDesc("graylink_analyzer_subnet_age_seconds", "Age of the last reading of an InfiniBand subnet.", "subnet")
	subnetReads   = newDesc("graylink_analyzer_subnet_readings_total", "Readings of an InfiniBand subnet by result: done or failed.", "subnet", "result")
	signalFinding = newDesc("graylink_analyzer_csig_finding", "1 while in-band signals are not configured alike in the domain, by kind and switch, if that is known.", "kind", "element")
	clockOffset   = newDesc("graylink_analyzer_prometheus_clock_offset_seconds", "How far the clock of Prometheus is ahead of the analyzer's.")
)

// loopHealth publishes the counters of a loop.
type loopHealth struct{ l *analyzer.Loop }

// Describe implements prometheus.Collector.
func (loopHealth) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{cycles, cycleSeconds, droppedTraces, refusedTraces, expectedFlows, twoSteps, queriedFlows, carriedFlows, movedNICs, leftOutNICs, clockOffset, windowLag, sampleAge, sourceUp, subnetAge, subnetReads, signalFinding} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (h loopHealth) Collect(ch chan<- prometheus.Metric) {
	c, s := h.l.CycleCounts(), h.l.Snapshot()
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count(cycles, c.Cycles, "answered")
	count(cycles, c.Failed, "failed")
	count(cycles, c.Skipped, "skipped")
	count(droppedTraces, h.l.Sources().Tracer().DroppedRequests())
	for _, state := range h.l.MaintenanceRegister().SourceStates() {
		up := 0.0
		if state.Up {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(sourceUp, prometheus.GaugeValue, up, state.Source)
	}
	for r, n := range h.l.Sources().Tracer().RefusedTraces() {
		count(refusedTraces, n, r.Node, r.Reason)
	}
	for _, v := range h.l.Sources().SubnetViews() {
		count(subnetReads, v.Readings, v.Subnet, "done")
		count(subnetReads, v.Failures, v.Subnet, "failed")
		if !v.ReadAt.IsZero() {
			ch <- prometheus.MustNewConstMetric(subnetAge, prometheus.GaugeValue, time.Since(v.ReadAt).Seconds(), v.Subnet)
		}
	}
	for _, f := range s.Signals {
		ch <- prometheus.MustNewConstMetric(signalFinding, prometheus.GaugeValue, 1, f.Kind, f.Element)
	}
	if c.Cycles+c.Failed > 0 {
		gauge(cycleSeconds, c.Last.Seconds())
	}
	if !s.At.IsZero() {
		gauge(expectedFlows, float64(s.Expected))
		if a := s.Queries; a != nil {
			two := 0.0
			if a.TwoSteps {
				two = 1
			}
			gauge(twoSteps, two)
			gauge(queriedFlows, float64(a.QueriedFlows))
			gauge(carriedFlows, float64(a.CarriedFlows))
			gauge(movedNICs, float64(a.Moved))
			gauge(leftOutNICs, float64(a.LeftOut))
		}
		gauge(clockOffset, float64(s.ClockOffsetNS)/1e9)
		gauge(windowLag, float64(s.LagNS)/1e9)
		if age, known := h.l.SampleAge(); known {
			gauge(sampleAge, age.Seconds())
		}
	}
}

var (
	queries       = newDesc("graylink_analyzer_queries_total", "Queries to Prometheus by result: answered, incomplete or failed.", "query", "result")
	querySeconds  = newDesc("graylink_analyzer_query_seconds_total", "Time that queries to Prometheus took.", "query")
	queryBytes    = newDesc("graylink_analyzer_query_answer_bytes_total", "Octets of the query results, after decompression.")
	configHash    = newDesc("graylink_config_hash_info", "The current configuration, by the SHA-256 of its file and topology, first eight octets.", "hash")
	reloadOK      = newDesc("graylink_config_last_reload_successful", "1 if the last reload of the configuration succeeded.")
	reloadSuccess = newDesc("graylink_config_last_reload_success_timestamp_seconds", "Time at which the current configuration was read.")
)

// queryCounts counts the queries of one name.
type queryCounts struct {
	answered, partial, failed uint64
	took                      time.Duration
}

// health holds the counters that survive a reload.
type health struct {
	mu          sync.Mutex
	queries     map[string]*queryCounts
	bytes       func() uint64 // of the current backend
	bytesBefore uint64        // of earlier backends
	hash        string
	reloadOK    bool
	reloaded    time.Time
}

// observeQuery counts a query with its duration and error. It implements Settings.Observe.
func (h *health) observeQuery(query string, took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.queries[query]
	if q == nil {
		q = &queryCounts{}
		h.queries[query] = q
	}
	q.took += took
	var partial *evidence.PartialError
	switch {
	case err == nil:
		q.answered++
	case errors.As(err, &partial):
		q.partial++
	default:
		q.failed++
	}
}

// took records a loaded configuration, with its backend's count of octets.
func (h *health) recordReload(c *Config, bytes func() uint64, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bytes != nil {
		h.bytesBefore += h.bytes()
	}
	h.bytes, h.hash, h.reloadOK, h.reloaded = bytes, c.hash, true, at
}

func (h *health) recordRefusal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reloadOK = false
}

// Describe implements prometheus.Collector.
func (*health) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queries, querySeconds, queryBytes, configHash, reloadOK, reloadSuccess} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (h *health) Collect(ch chan<- prometheus.Metric) {
	h.mu.Lock()
	defer h.mu.Unlock()
	put := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	for name, q := range h.queries {
		put(queries, prometheus.CounterValue, float64(q.answered), name, "answered")
		put(queries, prometheus.CounterValue, float64(q.partial), name, "incomplete")
		put(queries, prometheus.CounterValue, float64(q.failed), name, "failed")
		put(querySeconds, prometheus.CounterValue, q.took.Seconds(), name)
	}
	put(queryBytes, prometheus.CounterValue, float64(h.bytesBefore+h.bytes()))
	put(configHash, prometheus.GaugeValue, 1, h.hash)
	ok := 0.0
	if h.reloadOK {
		ok = 1
	}
	put(reloadOK, prometheus.GaugeValue, ok)
	put(reloadSuccess, prometheus.GaugeValue, float64(h.reloaded.UnixMilli())/1e3)
}
