// Package node publishes the state of internal/nodeagent as Prometheus series, one collector a topic, and serves the
// node's HTTP API.
package node

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/ccl/follow"
	"github.com/graylink/graylink/internal/kubenode"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nvsentinel"
	"github.com/graylink/graylink/internal/pki"
)

// Exporter publishes the series of a node and of what works beside it, and serves their API. Parts are added before
// Gatherers and Handler are called.
type Exporter struct {
	node     *nodeagent.Node
	health   *health.Watcher  // nil if the NICs are not watched
	follower *follow.Follower // nil if collective libraries are not followed
	pairs    QueuePairLister  // nil: not listed
	log      *slog.Logger
	from     sources
	runs     *runs
	registry *prometheus.Registry
	certs    *certificates.Collector
	windows  windowTurn
}

// New returns an Exporter of a node.
func New(n *nodeagent.Node, log *slog.Logger) *Exporter {
	e := &Exporter{node: n, log: log, runs: newRuns(), registry: processRegistry(), certs: certificates.NewCollector(n.Certificates()...), windows: newWindowTurn()}
	e.registry.MustRegister(e.certs)
	e.from = sources{readState: n.ReadState, signalProfile: n.SignalProfile(), files: map[string]func() (done, failed uint64){}, now: time.Now}
	started := time.Now()
	e.from.uptime = func() time.Duration { return time.Since(started) }
	if n.ChronySamples() != nil {
		e.from.chrony = n.ChronySamples
	}
	if counts := n.AssignmentWrites(); counts != nil {
		e.from.files[fileAssignment] = counts
	}
	return e
}

// AddHealth adds the series and the API of the health of the node's NICs.
func (e *Exporter) AddHealth(w *health.Watcher) {
	e.health, e.from.health = w, w.Snapshot
	state, position := w.FileWrites()
	if state != nil {
		e.from.files[fileNICs] = state
	}
	if position != nil {
		e.from.files[fileLogPosition] = position
	}
}

// AddCollectives adds the series and the API of what the collective libraries of the node's jobs write.
func (e *Exporter) AddCollectives(f *follow.Follower) {
	e.follower, e.from.collectives = f, f.CollectPoints
}

// AddQueuePairs adds the API that lists the RDMA queue pairs of the node.
func (e *Exporter) AddQueuePairs(l QueuePairLister) { e.pairs = l }

// AddKubernetes adds the series of the requests to Kubernetes.
func (e *Exporter) AddKubernetes(stats func() kubenode.Stats) { e.from.kubernetes = stats }

// AddNVSentinel adds the series of the events for NVSentinel.
func (e *Exporter) AddNVSentinel(stats func() nvsentinel.Stats) { e.from.nvsentinel = stats }

// AddCertificates adds the certificates of other parts of the process.
func (e *Exporter) AddCertificates(sources ...pki.Source) { e.certs.Add(sources...) }

// Registry returns the registry for collectors of other parts of the process. They are added to /metrics.
func (e *Exporter) Registry() *prometheus.Registry { return e.registry }

// Gatherers returns the gatherers of /metrics, /metrics/nics and /metrics/edges.
func (e *Exporter) Gatherers() (metrics, nics, edges prometheus.Gatherer) {
	return disjoint{newGatherer(&e.from, metricsConstructors(), e.runs, true), e.registry}, newGatherer(&e.from, nicsConstructors(), e.runs, false), newGatherer(&e.from, edgesConstructors(), e.runs, false)
}

// PushGatherer returns a gatherer of all series, or of all but those of single edges. A family of several paths is there
// once.
func (e *Exporter) PushGatherer(edges bool) prometheus.Gatherer {
	metrics, nics, ofEdges := e.Gatherers()
	all := disjoint{metrics, nics}
	if edges {
		all = append(all, ofEdges)
	}
	return all
}

// processRegistry returns a registry with the client library's series about the process.
func processRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(version.NewCollector("graylink_node"), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
