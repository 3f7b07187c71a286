package publish

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/workload"
)

// Bounds of the series about communicators.
const (
	maxCommunicators = 64   // that have series of their own
	maxLateRanks     = 16   // of all communicators together, those that came late most often
	maxLateCounts    = 4096 // ranks that are counted
	forgetComm       = 10 * time.Minute
)

// otherLabel stands for all communicators beyond the bound.
const otherLabel = "other"

// unknownLabel stands for a name that is not known.
const unknownLabel = "unknown"

// commNames are the labels of a communicator.
type commNames struct{ job, comm string }

func namesOf(job, id, name string) commNames {
	return commNames{cmp.Or(job, unknownLabel), cmp.Or(name, id, unknownLabel)}
}

// lateRank is a rank of a communicator.
type lateRank struct {
	commNames
	rank int
}

// Collectives has the series about the operations of jobs. It may be used from any goroutine.
type Collectives struct {
	now            func() time.Time
	transfer, wait *prometheus.HistogramVec

	mu    sync.Mutex
	names map[commNames]time.Time // when a communicator was used last
	late  map[lateRank]uint64
}

// NewCollectives returns series without values.
func NewCollectives(now func() time.Time) *Collectives {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}, labels)
	}
	return &Collectives{now: now, names: map[commNames]time.Time{}, late: map[lateRank]uint64{},
		transfer: histogram("fabric_collective_transfer_seconds", "Time in which an operation of a communicator moves data, once all ranks are there.", "job_name", "comm_name", "op"),
		wait:     histogram("fabric_collective_wait_seconds", "Time for which the median rank of an operation waits for the last one.", "job_name", "comm_name", "op"),
	}
}

// Observe counts an operation.
func (c *Collectives) Observe(j workload.Judged) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.label(namesOf(j.Job, j.Comm, j.CommName))
	c.transfer.WithLabelValues(n.job, n.comm, j.Op).Observe(j.Transfer.Seconds())
	c.wait.WithLabelValues(n.job, n.comm, j.Op).Observe(j.Wait.Seconds())
	if n.comm == otherLabel {
		return // ranks of different communicators are not one
	}
	for _, rank := range j.Late {
		k := lateRank{n, rank}
		if _, known := c.late[k]; known || len(c.late) < maxLateCounts {
			c.late[k]++
		}
	}
}

// label returns the labels that a communicator has: its names, or other beyond the bound. The caller holds the lock.
func (c *Collectives) label(n commNames) commNames {
	now := c.now()
	if _, known := c.names[n]; !known && len(c.names) >= maxCommunicators && !c.forgetOne(now) {
		return commNames{otherLabel, otherLabel}
	}
	c.names[n] = now
	return n
}

// forgetOne removes the communicator that was not used for the longest time, with its series, if that time is long.
func (c *Collectives) forgetOne(now time.Time) bool {
	var oldest commNames
	at := now.Add(-forgetComm)
	found := false
	for n, used := range c.names {
		if used.Before(at) {
			oldest, at, found = n, used, true
		}
	}
	if !found {
		return false
	}
	delete(c.names, oldest)
	of := prometheus.Labels{"job_name": oldest.job, "comm_name": oldest.comm}
	c.transfer.DeletePartialMatch(of)
	c.wait.DeletePartialMatch(of)
	for k := range c.late {
		if k.commNames == oldest {
			delete(c.late, k)
		}
	}
	return true
}

var (
	collectiveLate      = newDesc("fabric_collective_rank_late_total", "Operations for which the others waited for a rank, for the 16 worst.", "job_name", "comm_name", "rank")
	collectiveDiagnosis = newDesc("fabric_collective_diagnosis", "1 while a communicator is slow or hangs.", "job_name", "comm_name", "syndrome")
	collectiveNetwork   = newDesc("fabric_collective_network_state", "Whether the network is to blame for an open diagnosis: 1 for what holds.", "job_name", "comm_name", "state")
	collectiveNodes     = newDesc("graylink_analyzer_collective_nodes", "Number of nodes whose agents answer with records of collectives.")
	collectiveUnread    = newDesc("graylink_analyzer_collective_nodes_unread", "Number of nodes whose agents did not answer the last request for records.")
	collectiveRecords   = newDesc("graylink_analyzer_collective_records_total", "Records of collectives that were read from nodes.")
	collectiveDropped   = newDesc("graylink_analyzer_collective_dropped_total", "Records that are missing or were changed, by reason.", "reason")
)

// CollectivesCollector publishes the series about operations, and what a Follower found. A nil Follower publishes nothing.
type CollectivesCollector struct {
	Series   *Collectives
	Follower *collectives.Follower
}

// Describe implements prometheus.Collector.
func (c CollectivesCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{collectiveLate, collectiveDiagnosis, collectiveNetwork, collectiveNodes, collectiveUnread, collectiveRecords, collectiveDropped} {
		ch <- d
	}
	c.Series.transfer.Describe(ch)
	c.Series.wait.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c CollectivesCollector) Collect(ch chan<- prometheus.Metric) {
	if c.Follower == nil {
		return
	}
	n, s := c.Follower.Counts(), c.Follower.State()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(collectiveNodes, float64(n.Nodes))
	gauge(collectiveUnread, float64(n.Unread))
	count(collectiveRecords, n.Records)
	for reason, v := range n.Dropped {
		count(collectiveDropped, v, string(reason))
	}
	c.Series.transfer.Collect(ch)
	c.Series.wait.Collect(ch)
	for _, l := range c.Series.worstRanks() {
		count(collectiveLate, l.n, l.job, l.comm, strconv.Itoa(l.rank))
	}
	syndromes, networks := c.Series.openDiagnoses(s.Report.Diagnoses)
	for k := range syndromes {
		gauge(collectiveDiagnosis, 1, k.job, k.comm, string(k.syndrome))
	}
	for n, now := range networks {
		for _, state := range []workload.NetworkState{workload.Guilty, workload.Innocent, workload.Insufficient} {
			v := 0.0
			if state == now {
				v = 1
			}
			gauge(collectiveNetwork, v, n.job, n.comm, string(state))
		}
	}
}

// lateCount is how often a rank was late.
type lateCount struct {
	lateRank
	n uint64
}

// worstRanks returns the ranks that were late most often.
func (c *Collectives) worstRanks() []lateCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]lateCount, 0, len(c.late))
	for k, n := range c.late {
		all = append(all, lateCount{k, n})
	}
	slices.SortFunc(all, func(a, b lateCount) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.job, b.job), cmp.Compare(a.comm, b.comm), cmp.Compare(a.rank, b.rank))
	})
	return all[:min(len(all), maxLateRanks)]
}

// commSyndrome is what is wrong with a communicator.
type commSyndrome struct {
	commNames
	syndrome workload.Syndrome
}

// openDiagnoses returns what is wrong with communicators, and what is known of the network in each. Where several diagnoses are
// open, a guilty network stands before one of which too little is known, and that before an innocent one.
func (c *Collectives) openDiagnoses(all []workload.Diagnosis) (map[commSyndrome]bool, map[commNames]workload.NetworkState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rank := map[workload.NetworkState]int{workload.Innocent: 1, workload.Insufficient: 2, workload.Guilty: 3}
	syndromes, networks := map[commSyndrome]bool{}, map[commNames]workload.NetworkState{}
	for i := range all {
		d := &all[i]
		if !d.Open {
			continue
		}
		n := c.label(namesOf(d.Job, d.Comm, d.CommName))
		syndromes[commSyndrome{n, d.Syndrome}] = true
		if rank[d.Network.State] > rank[networks[n]] {
			networks[n] = d.Network.State
		}
	}
	return syndromes, networks
}

// CollectivesAPI serves what a Follower found as JSON.
type CollectivesAPI struct{ Follower *collectives.Follower }

// RegisterHandlers adds the API's path to a mux.
func (a CollectivesAPI) RegisterHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/collectives", a.handleCollectives)
}

// handleCollectives serves the report on all jobs, or with ?job= on one.
func (a CollectivesAPI) handleCollectives(w http.ResponseWriter, r *http.Request) {
	if a.Follower == nil {
		http.Error(w, "the configuration does not say that collectives are followed", http.StatusNotFound)
		return
	}
	s := a.Follower.State()
	rep := s.Report
	if job := r.URL.Query().Get("job"); job != "" {
		var ok bool
		if rep, ok = s.JobReport(job); !ok {
			http.Error(w, "no communicator of a job of this name is known", http.StatusNotFound)
			return
		}
	}
	writeJSON(w, CollectivesAnswer{s.At, rep})
}
