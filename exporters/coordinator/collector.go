package coordinator

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/coordinator"
)

// collector publishes the statistics of a coordinator.
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
		linkEdges:         d("fabric_link_probe_edges", "Probe and reply edges whose traced path crosses the link in this direction.", "link", "from", "to"),
		linksBelow:        d("graylink_coordinator_links_below_wanted_edges", "Directions of links that fewer edges are known to cross than the wanted number.", "wanted"),
		agents:            d("graylink_coordinator_agents", "Nodes of the topology, by the state of their agent.", "state"),
		sessions:          d("graylink_coordinator_sessions_total", "Requests of agents for a session, by result.", "result"),
		edges:             d("graylink_coordinator_edges", "Edges of the schedule: all, without an address, without an answer, with a known path, and without one.", "state"),
		scheduleSeconds:   d("graylink_coordinator_schedule_seconds", "Duration of the last computation of the schedule in seconds."),
		scheduleRuns:      d("graylink_coordinator_schedule_runs_total", "Computations of the schedule, by result.", "result"),
		lastRun:           d("graylink_coordinator_schedule_last_success_timestamp_seconds", "Unix time of the last successful computation of the schedule."),
		assignments:       d("graylink_coordinator_assignments_sent_total", "Assignments sent to agents."),
		keysSent:          d("graylink_coordinator_keys_sent_total", "Sets of keys sent to agents."),
		outOfDate:         d("graylink_coordinator_agents_out_of_date", "Connected agents that have not applied their assignment."),
		keysEpoch:         d("graylink_coordinator_keys_epoch", "Epoch of the key that agents send with."),
		keysHeld:          d("graylink_coordinator_keys_held", "Number of epochs whose keys are accepted: two during a rotation."),
		keysUnconfirmed:   d("graylink_coordinator_keys_unconfirmed_agents", "Connected agents that have not confirmed the newest key."),
		registryWhole:     d("graylink_coordinator_registry_whole", "Whether the registry is whole, so that targets are served (1) or not (0)."),
		traces:            d("graylink_coordinator_traces_total", "Traces reported by agents: taken, and ignored because the agent has no such edge.", "result"),
		clocks:            d("graylink_coordinator_clocks", "Clocks, by state.", "state"),
		clockEdges:        d("graylink_coordinator_clock_edges", "Estimates between two clocks in the last cycle: used, and dropped as contradicting the others.", "state"),
		clockSeconds:      d("graylink_coordinator_clock_solve_seconds", "Duration of the last computation that related the clocks in seconds."),
		clockReports:      d("graylink_coordinator_clock_reports_total", "Clock reports of agents, by result.", "result"),
		clockUpdates:      d("graylink_coordinator_clock_updates_sent_total", "Clock updates sent to agents."),
		moves:             d("graylink_coordinator_source_ports_moved_total", "Edges whose source port was moved to cover links."),
		saves:             d("graylink_coordinator_state_writes_total", "Writes of the state file, by result.", "result"),
		conflicts:         d("graylink_coordinator_address_conflicts", "Addresses and GIDs reported by agents that are not used, by reason.", "reason"),
		targetsRefused:    d("graylink_coordinator_targets_refused", "Agents that are not scraped at the address they advertise, by reason.", "reason"),
		handshakes:        d("graylink_coordinator_handshakes", "Connections that have not finished their TLS handshake: silent, running, or waiting in line.", "state"),
		handshakesDropped: d("graylink_coordinator_handshakes_dropped_total", "Connections that ended before their TLS handshake finished, by reason.", "reason"),
		lastStep:          d("graylink_coordinator_last_cycle_timestamp_seconds", "Unix time of the last cycle of the coordinator's main loop."),
		configHash:        d("graylink_config_hash_info", "First eight octets of the SHA-256 of the topology file in use.", "hash"),
		reloadOK:          d("graylink_config_last_reload_successful", "Whether the last load of the topology succeeded (1) or failed (0)."),
		reloadTime:        d("graylink_config_last_reload_success_timestamp_seconds", "Unix time at which the topology in use was loaded."),
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
