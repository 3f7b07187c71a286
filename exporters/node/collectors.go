package node

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/kubenode"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nvsentinel"
	"github.com/graylink/graylink/internal/points"
	"github.com/graylink/graylink/internal/probe"
)

// collector publishes the series of one topic.
type collector interface {
	// addSeries adds the series to a scrape. It returns errNothingRead if there is nothing to publish yet.
	addSeries(s *scrape) error
}

// errNothingRead means that what a collector publishes was not read or measured yet.
var errNothingRead = errors.New("nothing was read yet")

// sources holds what the collectors read. A source that is nil does not exist, and its series do not either.
type sources struct {
	readState  func(func(nodeagent.State)) // calls its argument once, and keeps the node unchanged until it returns
	health     func() *health.Snapshot
	chrony     func() map[string]uint64
	files      map[string]func() (done, failed uint64) // counts of the writes of a file
	kubernetes func() kubenode.Stats
	nvsentinel func() nvsentinel.Stats
	// signalProfile is the profile by which in-band signals are read.
	signalProfile *csig.Profile
	// collectives returns the series of collective operations.
	collectives func(now time.Time) []points.Point
	now         func() time.Time
	uptime      func() time.Duration // of the agent
}

// constructor makes a collector. It returns nil if the collector's source does not exist.
type constructor struct {
	name string
	make func(*sources) collector
}

// metricsConstructors returns the collectors of /metrics.
func metricsConstructors() []constructor {
	return slices.Concat(nodeConstructors(), healthConstructors(), []constructor{
		{"state_files", newFileCollector},
		{"chrony", newChronyCollector},
		{"kubernetes", newKubernetesCollector},
		{"nvsentinel", newNVSentinelCollector},
		{"collectives", newCollectivesCollector},
	})
}

// nodeConstructors returns the collectors of what the probe engine measures, without those of flows.
func nodeConstructors() []constructor {
	return []constructor{
		{"nics", newNICCollector},
		{"leaves", newLeafCollector},
		{"rdma", newRDMACollector},
		{"clocks", newClockCollector},
		{"paths", newPathCollector},
		{"config", newConfigCollector},
	}
}

// healthConstructors returns the collectors of the health of the node's NICs.
func healthConstructors() []constructor {
	return []constructor{
		{"nic_polls", newNICPollCollector},
		{"nic_ports", newPortCollector},
		{"nic_counters", newCounterCollector},
		{"nic_pci", newPCICollector},
		{"nic_findings", newFindingCollector},
		{"nic_log", newLogCollector},
		{"ethtool_polls", newEthtoolPollCollector},
		{"ethtool_links", newEthtoolLinkCollector},
		{"ethtool_modules", newModuleCollector},
	}
}

// nicsConstructors returns the collectors of /metrics/nics.
func nicsConstructors() []constructor {
	return []constructor{
		{"node_summary", newSummaryCollector},
		{"nic_flows", newNICFlowCollector},
		{"nic_sums", newNICSumCollector},
		{"host_losses", newHostLossCollector},
	}
}

// edgesConstructors returns the collectors of /metrics/edges.
func edgesConstructors() []constructor {
	return []constructor{
		{"flows", newFlowCollector},
		{"host_losses", newHostLossCollector},
		{"csig", newSignalCollector},
	}
}

// scrape holds what the collectors of one scrape read, and the exposition that they write.
type scrape struct {
	*exposition
	nodeagent.State
	from    *sources
	planes  []string // whose NICs the engine's series are of; empty means all
	nics    []probe.NICStats
	watched *health.Snapshot
}

// snapshotNICs returns the state of the NICs of the scrape's planes at this scrape. The first collector that calls it has the cost.
func (s *scrape) snapshotNICs() []probe.NICStats {
	if s.nics == nil {
		s.nics = s.Snapshot().NICs
		if len(s.planes) > 0 {
			s.nics = slices.DeleteFunc(slices.Clone(s.nics), func(n probe.NICStats) bool { return !slices.Contains(s.planes, n.Plane) })
		}
	}
	return s.nics
}

// snapshotHealth returns the health of the NICs at this scrape. The first collector that calls it has the cost.
func (s *scrape) snapshotHealth() *health.Snapshot {
	if s.watched == nil {
		s.watched = s.from.health()
	}
	return s.watched
}

// gatherer runs collectors at the moment of the scrape.
type gatherer struct {
	from       *sources
	collectors []namedCollector
	runs       *runs
	showRuns   bool     // publish the runs of all collectors
	planes     []string // whose NICs the engine's series are of; empty means all
}

type namedCollector struct {
	name string
	collector
}

// newGatherer returns a gatherer of the collectors whose sources exist.
func newGatherer(from *sources, of []constructor, r *runs, showRuns bool) *gatherer {
	g := &gatherer{from: from, runs: r, showRuns: showRuns}
	for _, c := range of {
		if made := c.make(from); made != nil {
			g.collectors = append(g.collectors, namedCollector{c.name, made})
		}
	}
	return g
}

// Gather implements prometheus.Gatherer. A collector that fails does not affect the others.
func (g *gatherer) Gather() ([]*dto.MetricFamily, error) {
	var families []*dto.MetricFamily
	g.from.readState(func(st nodeagent.State) {
		s := &scrape{exposition: newExposition(st.Started), State: st, from: g.from, planes: g.planes}
		for _, c := range g.collectors {
			began := g.from.now()
			err := c.addSeries(s)
			g.runs.record(c.name, run{g.from.now().Sub(began), err == nil})
		}
		if g.showRuns {
			g.runs.addSeries(s.exposition)
		}
		families = s.sortedFamilies()
	})
	return families, nil
}

// runs holds the last run of each collector.
type runs struct {
	mu   sync.Mutex
	last map[string]run
}

type run struct {
	took    time.Duration
	success bool
}

func newRuns() *runs { return &runs{last: map[string]run{}} }

func (r *runs) record(name string, last run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[name] = last
}

// addSeries adds the last runs. A collector that has not run yet is absent.
func (r *runs) addSeries(x *exposition) {
	took := x.gaugeFamily("graylink_node_collector_duration_seconds", "Duration of the last run of a collector in seconds.")
	success := x.gaugeFamily("graylink_node_collector_success", "Whether the last run of a collector succeeded. It fails before its data were first read.")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.last)) {
		labels := x.labelPairs("collector", name)
		x.addGauge(took, r.last[name].took.Seconds(), labels)
		x.addGauge(success, zeroOrOne(r.last[name].success), labels)
	}
}

// disjoint joins gatherers. If two of them have a family with the same name, the family of the later gatherer is left
// out.
type disjoint []prometheus.Gatherer

// Gather implements prometheus.Gatherer.
func (gs disjoint) Gather() ([]*dto.MetricFamily, error) {
	var all []*dto.MetricFamily
	for _, g := range gs {
		families, err := g.Gather()
		if err != nil {
			return nil, err
		}
		all = append(all, families...)
	}
	byName := func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) }
	slices.SortStableFunc(all, byName)
	return slices.CompactFunc(all, func(a, b *dto.MetricFamily) bool { return byName(a, b) == 0 }), nil
}

func zeroOrOne(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
