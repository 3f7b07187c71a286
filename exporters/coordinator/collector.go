package coordinator

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/coordinator"
)

// collector publishes a coordinator's statistics.
type collector struct {
	c *coordinator.Coordinator

	linkEdges, linksBelow, agents, sessions, edges, scheduleSeconds, scheduleRuns, lastRun, assignments, keysSent, outOfDate, keysEpoch, keysHeld,
	keysUnconfirmed, registryWhole, traces, clocks, clockEdges, clockSeconds, clockReports, clockUpdates, moves, saves, lastStep, configHash, reloadOK, reloadTime,
	conflicts, targetsRefused, handshakes, handshakesDropped *prometheus.Desc
}

func newCollector(c *coordinator.Coordinator) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{c: c,
		linkEdges:         d("fabric_link_probe_edges", "Edges, of probes and of replies, that were traced to cross the link in this direction.", "link", "from", "to"),
		linksBelow:        d("graylink_coordinator_links_below_wanted_edges", "Directions of links that fewer edges are known to cross than are wanted.", "wanted"),
		agents:            d("graylink_coordinator_agents", "Nodes of the topology by the state of their agent.", "state"),
		sessions:          d("graylink_coordinator_sessions_total", "Agents that asked for a session, by what became of it.", "result"),
		edges:             d("graylink_coordinator_edges", "Edges of the schedule: all; without an address at one end; without an answer, as their agents say; traced to a path; not.", "state"),
		scheduleSeconds:   d("graylink_coordinator_schedule_seconds", "Time that the last run of the schedule took."),
		scheduleRuns:      d("graylink_coordinator_schedule_runs_total", "Runs of the schedule.", "result"),
		lastRun:           d("graylink_coordinator_schedule_last_success_timestamp_seconds", "Time of the last run that succeeded."),
		assignments:       d("graylink_coordinator_assignments_sent_total", "Assignments sent to agents."),
		keysSent:          d("graylink_coordinator_keys_sent_total", "Times that an agent was sent its keys."),
		outOfDate:         d("graylink_coordinator_agents_out_of_date", "Connected agents that have not applied their assignment."),
		keysEpoch:         d("graylink_coordinator_keys_epoch", "Epoch of the key that sends."),
		keysHeld:          d("graylink_coordinator_keys_held", "Epochs whose keys are accepted: two during a rotation."),
		keysUnconfirmed:   d("graylink_coordinator_keys_unconfirmed_agents", "Connected agents that have not confirmed the newest key."),
		registryWhole:     d("graylink_coordinator_registry_whole", "1 when targets are served."),
		traces:            d("graylink_coordinator_traces_total", "Traces reported by agents: of edges they have, and of others.", "result"),
		clocks:            d("graylink_coordinator_clocks", "Clocks by their state.", "state"),
		clockEdges:        d("graylink_coordinator_clock_edges", "Estimates between two clocks in the last cycle: used, and dropped because they contradict the others.", "state"),
		clockSeconds:      d("graylink_coordinator_clock_solve_seconds", "Time that the last cycle took to relate the clocks."),
		clockReports:      d("graylink_coordinator_clock_reports_total", "Clock reports of agents, by what became of them.", "result"),
		clockUpdates:      d("graylink_coordinator_clock_updates_sent_total", "Clock updates sent to agents."),
		moves:             d("graylink_coordinator_source_ports_moved_total", "Source ports moved to cover links."),
		saves:             d("graylink_coordinator_state_writes_total", "Writes of the state file.", "result"),
		conflicts:         d("graylink_coordinator_address_conflicts", "Addresses and GIDs that agents report for NICs and that are not used, by why.", "reason"),
		targetsRefused:    d("graylink_coordinator_targets_refused", "Agents that are not scraped where they say, by why.", "reason"),
		handshakes:        d("graylink_coordinator_handshakes", "Connections that have not finished their handshake: silent, running, or waiting in line.", "state"),
		handshakesDropped: d("graylink_coordinator_handshakes_dropped_total", "Connections that ended before their handshake had finished, by why.", "reason"),
		lastStep:          d("graylink_coordinator_last_cycle_timestamp_seconds", "Time of the last turn of the coordinator's loop."),
		configHash:        d("graylink_config_hash_info", "The topology at work: first eight octets of the file's SHA-256.", "hash"),
		reloadOK:          d("graylink_config_last_reload_successful", "1 when the last reading of the topology succeeded."),
		reloadTime:        d("graylink_config_last_reload_success_timestamp_seconds", "Time at which the topology at work was read."),
	}
}

func (c *collector) allDescs() []*prometheus.Desc {
	return []*prometheus.Desc{c.linkEdges, c.linksBelow, c.agents, c.sessions, c.edges, c.scheduleSeconds, c.scheduleRuns, c.lastRun, c.assignments, c.keysSent,
		c.outOfDate, c.keysEpoch, c.keysHeld, c.keysUnconfirmed, c.registryWhole, c.traces, c.clocks, c.clockEdges, c.clockSeconds, c.clockReports, c.clockUpdates, c.moves, c.saves, c.lastStep, c.configHash, c.reloadOK, c.reloadTime,
		c.conflicts, c.targetsRefused, c.handshakes, c.handshakesDropped}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.allDescs() {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.c.Stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	by := func(d *prometheus.Desc, m map[string]uint64) {
		for k, v := range m {
			counter(d, v, k)
		}
	}
	seconds := func(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	for k, v := range s.Agents {
		gauge(c.agents, float64(v), k)
	}
	for k, v := range s.Edges {
		gauge(c.edges, float64(v), k)
	}
	by(c.sessions, s.Sessions)
	by(c.scheduleRuns, s.Runs)
	by(c.traces, s.Traces)
	by(c.saves, s.Saves)
	for k, v := range s.Conflicts {
		gauge(c.conflicts, float64(v), k)
	}
	for k, v := range s.Refused {
		gauge(c.targetsRefused, float64(v), k)
	}
	gauge(c.handshakes, float64(s.Handshakes.Silent), "silent")
	gauge(c.handshakes, float64(s.Handshakes.Running), "running")
	gauge(c.handshakes, float64(s.Handshakes.Waiting), "waiting")
	by(c.handshakesDropped, s.Handshakes.Dropped)
	if s.HasPlan {
		gauge(c.scheduleSeconds, s.RunSeconds)
		gauge(c.lastRun, seconds(s.RunAt))
	}
	counter(c.assignments, s.Assignments)
	counter(c.keysSent, s.KeysSent)
	for k, v := range s.Clocks.States {
		gauge(c.clocks, float64(v), k)
	}
	for k, v := range s.Clocks.Edges {
		gauge(c.clockEdges, float64(v), k)
	}
	gauge(c.clockSeconds, s.Clocks.Seconds)
	by(c.clockReports, s.Clocks.Reports)
	counter(c.clockUpdates, s.ClockUpdates)
	counter(c.moves, s.Moves)
	gauge(c.outOfDate, float64(s.OutOfDate))
	if s.KeysEpoch != 0 {
		gauge(c.keysEpoch, float64(s.KeysEpoch))
		gauge(c.keysHeld, float64(s.KeysHeld))
		gauge(c.keysUnconfirmed, float64(s.KeysUnconfirmed))
	}
	gauge(c.registryWhole, truth(s.Whole))
	if !s.StepAt.IsZero() {
		gauge(c.lastStep, seconds(s.StepAt))
	}
	gauge(c.configHash, 1, s.TopologyHash)
	gauge(c.reloadOK, truth(s.ReloadOK))
	gauge(c.reloadTime, seconds(s.ReloadedAt))
	if s.Links == nil {
		return
	}
	below := 0
	for _, l := range s.Links {
		gauge(c.linkEdges, float64(l.Edges), l.Direction.LinkID(), l.Direction.From, l.Direction.To)
		if l.Edges < s.LinkEdges {
			below++
		}
	}
	if s.LinkEdges > 0 {
		gauge(c.linksBelow, float64(below), strconv.Itoa(s.LinkEdges))
	}
}
