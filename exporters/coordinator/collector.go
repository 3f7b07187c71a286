package coordinator

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/coordinator"
)

// topic publishes the statistics of one topic.
type topic interface {
	// descs returns the descriptions of the series that it may publish.
	descs() []*prometheus.Desc
	// collect sends the series.
	collect(s sink, stats *coordinator.Stats)
}

// collector publishes the statistics of a coordinator.
type collector struct {
	c             *coordinator.Coordinator
	fleet, always []topic // those of the fleet are the leader's: a standby has none of them
}

func newCollector(c *coordinator.Coordinator) *collector {
	return &collector{c, []topic{newScheduleTopic(), newAgentTopic(), newKeyTopic(), newClockTopic()},
		[]topic{newSessionTopic(), newProcessTopic(), newLeadershipTopic()}}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, t := range slices.Concat(c.fleet, c.always) {
		for _, d := range t.descs() {
			ch <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	stats := c.c.Stats()
	c.send(ch, &stats)
}

// send sends the series of statistics.
func (c *collector) send(ch chan<- prometheus.Metric, stats *coordinator.Stats) {
	topics := c.always
	if stats.Leadership.Leads {
		topics = slices.Concat(c.fleet, c.always)
	}
	for _, t := range topics {
		t.collect(sink{ch}, stats)
	}
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// sink sends series.
type sink struct{ ch chan<- prometheus.Metric }

func (s sink) sendGauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) sendCounter(d *prometheus.Desc, v uint64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// sendCounters sends the counts of a map, with their keys as the label.
func (s sink) sendCounters(d *prometheus.Desc, counts map[string]uint64) {
	for k, v := range counts {
		s.sendCounter(d, v, k)
	}
}

// sendGauges sends the numbers of a map, with their keys as the label.
func (s sink) sendGauges(d *prometheus.Desc, numbers map[string]int) {
	for k, v := range numbers {
		s.sendGauge(d, float64(v), k)
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

func zeroOrOne(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// scheduleTopic publishes the schedule, its paths, and what it makes of the links.
type scheduleTopic struct {
	linkEdges, linksBelow, edges, seconds, runs, lastRun, moves, traces, questions, temporary, hops, windows, windowRequests *prometheus.Desc
}

func newScheduleTopic() *scheduleTopic {
	return &scheduleTopic{
		linkEdges:      newDesc("fabric_link_probe_edges", "Probe and reply edges whose traced path crosses the link in this direction.", "link", "from", "to"),
		linksBelow:     newDesc("graylink_coordinator_links_below_wanted_edges", "Directions of links that fewer edges are known to cross than the wanted number.", "wanted"),
		edges:          newDesc("graylink_coordinator_edges", "Edges of the schedule: all, without an address, without an answer, with a known path, and without one.", "state"),
		seconds:        newDesc("graylink_coordinator_schedule_seconds", "Duration of the last computation of the schedule in seconds."),
		runs:           newDesc("graylink_coordinator_schedule_runs_total", "Computations of the schedule, by result.", "result"),
		lastRun:        newDesc("graylink_coordinator_schedule_last_success_timestamp_seconds", "Unix time of the last successful computation of the schedule."),
		moves:          newDesc("graylink_coordinator_source_ports_moved_total", "Moves of source ports to cover links."),
		traces:         newDesc("graylink_coordinator_traces_total", "Traces reported by agents: taken, and ignored because the agent has no such edge.", "result"),
		questions:      newDesc("graylink_coordinator_questions_total", "Questions of analyzers for temporary flows, by result.", "result"),
		temporary:      newDesc("graylink_coordinator_temporary_flows", "Temporary flows that analyzers asked for."),
		hops:           newDesc("graylink_coordinator_hop_probes", "Hop-limited probes that analyzers asked for. Each is one packet a second."),
		windows:        newDesc("graylink_coordinator_maintenance_windows", "Maintenance windows of the API that have not ended."),
		windowRequests: newDesc("graylink_coordinator_maintenance_requests_total", "Requests to make or end a maintenance window, by result.", "result"),
	}
}

func (t *scheduleTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.linkEdges, t.linksBelow, t.edges, t.seconds, t.runs, t.lastRun, t.moves, t.traces, t.questions, t.temporary, t.hops, t.windows, t.windowRequests}
}

func (t *scheduleTopic) collect(s sink, stats *coordinator.Stats) {
	s.sendGauges(t.edges, stats.Edges)
	s.sendCounters(t.runs, stats.Runs)
	s.sendCounters(t.traces, stats.Traces)
	s.sendCounter(t.moves, stats.Moves)
	s.sendCounters(t.questions, stats.Questions)
	s.sendGauge(t.temporary, float64(stats.TemporaryFlows))
	s.sendGauge(t.hops, float64(stats.HopProbes))
	s.sendGauge(t.windows, float64(stats.Windows))
	s.sendCounters(t.windowRequests, stats.WindowRequests)
	if stats.HasPlan {
		s.sendGauge(t.seconds, stats.RunSeconds)
		s.sendGauge(t.lastRun, unixSeconds(stats.RunAt))
	}
	if stats.Links == nil {
		return
	}
	below := 0
	for _, l := range stats.Links {
		s.sendGauge(t.linkEdges, float64(l.Edges), l.Direction.LinkID(), l.Direction.From, l.Direction.To)
		if l.Edges < stats.LinkEdges {
			below++
		}
	}
	if stats.LinkEdges > 0 {
		s.sendGauge(t.linksBelow, float64(below), strconv.Itoa(stats.LinkEdges))
	}
}

// agentTopic publishes the agents and what they are sent.
type agentTopic struct {
	agents, versions, assignments, outOfDate, registryWhole, conflicts, targetsRefused *prometheus.Desc
}

func newAgentTopic() *agentTopic {
	return &agentTopic{
		agents:         newDesc("graylink_coordinator_agents", "Nodes of the topology, by the state of their agent.", "state"),
		versions:       newDesc("graylink_coordinator_agent_versions", "Connected agents, by the version that they report.", "version"),
		assignments:    newDesc("graylink_coordinator_assignments_sent_total", "Assignments sent to agents."),
		outOfDate:      newDesc("graylink_coordinator_agents_out_of_date", "Connected agents that have not applied their assignment."),
		registryWhole:  newDesc("graylink_coordinator_registry_whole", "Whether the registry is whole, so that targets are served (1) or not (0)."),
		conflicts:      newDesc("graylink_coordinator_address_conflicts", "Addresses and GIDs reported by agents that are not used, by reason.", "reason"),
		targetsRefused: newDesc("graylink_coordinator_targets_refused", "Agents that are not scraped at the address they advertise, by reason.", "reason"),
	}
}

func (t *agentTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.agents, t.versions, t.assignments, t.outOfDate, t.registryWhole, t.conflicts, t.targetsRefused}
}

func (t *agentTopic) collect(s sink, stats *coordinator.Stats) {
	s.sendGauges(t.agents, stats.Agents)
	s.sendGauges(t.versions, stats.AgentVersions)
	s.sendCounter(t.assignments, stats.Assignments)
	s.sendGauge(t.outOfDate, float64(stats.OutOfDate))
	s.sendGauge(t.registryWhole, zeroOrOne(stats.Whole))
	s.sendGauges(t.conflicts, stats.Conflicts)
	s.sendGauges(t.targetsRefused, stats.Refused)
}

// keyTopic publishes the keys that pairs of nodes share.
type keyTopic struct{ sent, epoch, held, unconfirmed *prometheus.Desc }

func newKeyTopic() *keyTopic {
	return &keyTopic{
		sent:        newDesc("graylink_coordinator_keys_sent_total", "Sets of keys sent to agents."),
		epoch:       newDesc("graylink_coordinator_keys_epoch", "Epoch of the key that agents send with."),
		held:        newDesc("graylink_coordinator_keys_held", "Number of epochs whose keys are accepted: two during a rotation."),
		unconfirmed: newDesc("graylink_coordinator_keys_unconfirmed_agents", "Connected agents that have not confirmed the newest key."),
	}
}

func (t *keyTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.sent, t.epoch, t.held, t.unconfirmed}
}

func (t *keyTopic) collect(s sink, stats *coordinator.Stats) {
	s.sendCounter(t.sent, stats.KeysSent)
	if stats.KeysEpoch != 0 {
		s.sendGauge(t.epoch, float64(stats.KeysEpoch))
		s.sendGauge(t.held, float64(stats.KeysHeld))
		s.sendGauge(t.unconfirmed, float64(stats.KeysUnconfirmed))
	}
}

// clockTopic publishes the frame of the clocks.
type clockTopic struct{ clocks, edges, seconds, reports, updates *prometheus.Desc }

func newClockTopic() *clockTopic {
	return &clockTopic{
		clocks:  newDesc("graylink_coordinator_clocks", "Clocks, by state.", "state"),
		edges:   newDesc("graylink_coordinator_clock_edges", "Estimates between two clocks in the last cycle: used, and dropped as contradicting the others.", "state"),
		seconds: newDesc("graylink_coordinator_clock_solve_seconds", "Duration of the last computation that related the clocks in seconds."),
		reports: newDesc("graylink_coordinator_clock_reports_total", "Clock reports of agents, by result.", "result"),
		updates: newDesc("graylink_coordinator_clock_updates_sent_total", "Clock updates sent to agents."),
	}
}

func (t *clockTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.clocks, t.edges, t.seconds, t.reports, t.updates}
}

func (t *clockTopic) collect(s sink, stats *coordinator.Stats) {
	s.sendGauges(t.clocks, stats.Clocks.States)
	s.sendGauges(t.edges, stats.Clocks.Edges)
	s.sendGauge(t.seconds, stats.Clocks.Seconds)
	s.sendCounters(t.reports, stats.Clocks.Reports)
	s.sendCounter(t.updates, stats.ClockUpdates)
}

// sessionTopic publishes the requests for sessions, and the connections that have not finished their TLS handshake.
type sessionTopic struct{ sessions, open, dropped *prometheus.Desc }

func newSessionTopic() *sessionTopic {
	return &sessionTopic{
		sessions: newDesc("graylink_coordinator_sessions_total", "Requests of agents for a session, by result.", "result"),
		open:     newDesc("graylink_coordinator_handshakes", "Connections that have not finished their TLS handshake: silent, running, or waiting in line.", "state"),
		dropped:  newDesc("graylink_coordinator_handshakes_dropped_total", "Connections that ended before their TLS handshake finished, by reason.", "reason"),
	}
}

func (t *sessionTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.sessions, t.open, t.dropped}
}

func (t *sessionTopic) collect(s sink, stats *coordinator.Stats) {
	s.sendCounters(t.sessions, stats.Sessions)
	h := &stats.Handshakes
	s.sendGauge(t.open, float64(h.Silent), "silent")
	s.sendGauge(t.open, float64(h.Running), "running")
	s.sendGauge(t.open, float64(h.Waiting), "waiting")
	s.sendCounters(t.dropped, h.Dropped)
}

// processTopic publishes the main loop, the state file and the topology file.
type processTopic struct {
	saves, lastStep, configHash, reloadOK, reloadTime *prometheus.Desc
}

func newProcessTopic() *processTopic {
	return &processTopic{
		saves:      newDesc("graylink_coordinator_state_writes_total", "Writes of the state file, by result.", "result"),
		lastStep:   newDesc("graylink_coordinator_last_cycle_timestamp_seconds", "Unix time of the last cycle of the coordinator's main loop."),
		configHash: newDesc("graylink_config_hash_info", "First eight octets of the SHA-256 of the topology file in use.", "hash"),
		reloadOK:   newDesc("graylink_config_last_reload_successful", "Whether the last load of the topology succeeded (1) or failed (0)."),
		reloadTime: newDesc("graylink_config_last_reload_success_timestamp_seconds", "Unix time at which the topology in use was loaded."),
	}
}

func (t *processTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.saves, t.lastStep, t.configHash, t.reloadOK, t.reloadTime}
}

func (t *processTopic) collect(s sink, stats *coordinator.Stats) {
	s.sendCounters(t.saves, stats.Saves)
	if !stats.StepAt.IsZero() {
		s.sendGauge(t.lastStep, unixSeconds(stats.StepAt))
	}
	s.sendGauge(t.configHash, 1, stats.TopologyHash)
	s.sendGauge(t.reloadOK, zeroOrOne(stats.ReloadOK))
	s.sendGauge(t.reloadTime, unixSeconds(stats.ReloadedAt))
}

// leadershipTopic publishes which of two coordinators leads. A coordinator that is alone has none of these series.
type leadershipTopic struct{ leader, epoch, lag, standbys *prometheus.Desc }

func newLeadershipTopic() *leadershipTopic {
	return &leadershipTopic{
		leader:   newDesc("graylink_coordinator_leader", "Whether this coordinator leads (1) or is the standby of the other one (0)."),
		epoch:    newDesc("graylink_coordinator_epoch", "Epoch of the leader that this coordinator is or follows."),
		lag:      newDesc("graylink_coordinator_replication_lag_seconds", "Time since this standby had the whole state of the leader, or else since its start."),
		standbys: newDesc("graylink_coordinator_standbys", "Coordinators that follow this leader."),
	}
}

func (t *leadershipTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.leader, t.epoch, t.lag, t.standbys}
}

func (t *leadershipTopic) collect(s sink, stats *coordinator.Stats) {
	l := &stats.Leadership
	if l.Mode == "" {
		return
	}
	s.sendGauge(t.leader, zeroOrOne(l.Leads))
	s.sendGauge(t.epoch, float64(l.Epoch))
	if l.LagSeconds != nil {
		s.sendGauge(t.lag, *l.LagSeconds)
	}
	if l.Standbys != nil {
		s.sendGauge(t.standbys, float64(*l.Standbys))
	}
}
