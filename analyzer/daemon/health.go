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
	cycles        = newDesc("graylink_analyzer_cycles_total", "Cycles by what became of them: answered, failed for want of evidence, skipped since the one before took too long.", "result")
	cycleSeconds  = newDesc("graylink_analyzer_cycle_duration_seconds", "How long the last cycle took.")
	droppedTraces = newDesc("graylink_analyzer_traces_dropped_total", "Questions for paths that found the queue full; the next cycle asks again.")
	refusedTraces = newDesc("graylink_analyzer_traces_refused_total", "Traces not used, by the node that reported them and the reason.", "node", "reason")
	expectedFlows = newDesc("graylink_analyzer_expected_edges", "Directed flows that there should be evidence of.")
	twoSteps      = newDesc("graylink_analyzer_two_steps", "1 when the last cycle asked about flows only where there was a reason to.")
	queriedFlows  = newDesc("graylink_analyzer_asked_edges", "Directed flows that the last cycle asked about.")
	carriedFlows  = newDesc("graylink_analyzer_vouched_edges", "Directed flows that it did not ask about, and that count as healthy.")
	movedNICs     = newDesc("graylink_analyzer_moved_nics", "NICs that do not look as they used to.")
	leftOutNICs   = newDesc("graylink_analyzer_left_out_nics", "NICs that the last cycle had a reason to ask about, and no room.")
	clockOffset   = newDesc("graylink_analyzer_prometheus_clock_offset_seconds", "What Prometheus' clock is ahead of the analyzer's.")
)

// loopHealth is what a loop says of its own work.
type loopHealth struct{ l *analyzer.Loop }

// Describe implements prometheus.Collector.
func (loopHealth) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{cycles, cycleSeconds, droppedTraces, refusedTraces, expectedFlows, twoSteps, queriedFlows, carriedFlows, movedNICs, leftOutNICs, clockOffset} {
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
	count(droppedTraces, c.TracesDropped)
	for r, n := range h.l.TracesRefused() {
		count(refusedTraces, n, r.Node, r.Reason)
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
	}
}

var (
	queries       = newDesc("graylink_analyzer_queries_total", "Questions to Prometheus: answered, answered but said to be incomplete, failed.", "query", "result")
	querySeconds  = newDesc("graylink_analyzer_query_seconds_total", "Time that they took.", "query")
	queryBytes    = newDesc("graylink_analyzer_query_answer_bytes_total", "Octets of the answers, after decompression.")
	configHash    = newDesc("graylink_config_hash_info", "The configuration at work: first eight octets of the SHA-256 of the file and of the topology.", "hash")
	reloadOK      = newDesc("graylink_config_last_reload_successful", "1 when the last reading of the configuration succeeded.")
	reloadSuccess = newDesc("graylink_config_last_reload_success_timestamp_seconds", "Time at which the configuration at work was read.")
)

// queryCounts are the questions of one name.
type queryCounts struct {
	answered, partial, failed uint64
	took                      time.Duration
}

// health is what outlives a reload.
type health struct {
	mu          sync.Mutex
	queries     map[string]*queryCounts
	bytes       func() uint64 // of the backend at work
	bytesBefore uint64        // of those before
	hash        string
	reloadOK    bool
	reloaded    time.Time
}

// observeQuery is Settings.Observe.
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

// took notes a configuration that was taken, with its backend's count of octets.
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
