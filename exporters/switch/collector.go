package fabricswitch

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/switchagent"
)

// topic publishes the series of one topic.
type topic interface {
	// descs returns the descriptions of the series that it may publish.
	descs() []*prometheus.Desc
	// collect sends the series.
	collect(s sink, status *switchagent.Status, read *switchagent.Telemetry)
}

// newTopics returns the topics of graylink-switch.
func newTopics(log *slog.Logger) []topic {
	return []topic{newAgentTopic(), newReadTopic(log), newPortTopic(), newTrafficTopic(), newQueueTopic(), newRouteTopic()}
}

// SeriesDescs returns the descriptions of all series that an agent may publish.
func SeriesDescs() (out []*prometheus.Desc) {
	for _, t := range newTopics(nil) {
		out = append(out, t.descs()...)
	}
	return append(out, certificates.Families()...)
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// collector publishes the topics of an agent.
type collector struct {
	agent  *switchagent.Agent
	topics []topic
}

func newCollector(a *switchagent.Agent, log *slog.Logger) *collector {
	return &collector{a, newTopics(log)}
}

// Describe sends nothing, because the set of series depends on the switch.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the state of the agent and of the ports.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	status, read := c.agent.Status(), c.agent.ReadTelemetry()
	for _, t := range c.topics {
		t.collect(sink{ch, status.Switch}, &status, &read)
	}
}

// sink sends series that have the name of the switch as their first label.
type sink struct {
	ch chan<- prometheus.Metric
	sw string
}

func (s sink) sendGauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.sw}, labels...)...)
}

func (s sink) sendCounter(d *prometheus.Desc, v uint64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{s.sw}, labels...)...)
}

// agentTopic publishes the state of the agent itself.
type agentTopic struct {
	kind, flows, version, dropped, rounds, took, last, lldp *prometheus.Desc
}

func newAgentTopic() *agentTopic {
	return &agentTopic{
		kind:    newDesc("graylink_switch_source_info", "Kind of source that probes are seen by.", "switch", "kind"),
		flows:   newDesc("graylink_switch_flows", "Flows in the table.", "switch"),
		version: newDesc("graylink_switch_table_version", "Version of the table.", "switch"),
		dropped: newDesc("graylink_switch_dropped_total", "Samples and flows that were lost because a buffer or the table was full.", "switch"),
		rounds:  newDesc("graylink_switch_rounds_total", "Rounds in which the table was updated.", "switch"),
		took:    newDesc("graylink_switch_round_seconds", "Duration of the last round in seconds.", "switch"),
		last:    newDesc("graylink_switch_last_round_timestamp_seconds", "Time of the last round in Unix seconds.", "switch"),
		lldp:    newDesc("graylink_switch_lldp_errors_total", "Received LLDP frames that were malformed.", "switch"),
	}
}

func (t *agentTopic) descs() []*prometheus.Desc {
	return []*prometheus.Desc{t.kind, t.flows, t.version, t.dropped, t.rounds, t.took, t.last, t.lldp}
}

func (t *agentTopic) collect(s sink, status *switchagent.Status, _ *switchagent.Telemetry) {
	s.sendGauge(t.kind, 1, string(status.Kind))
	s.sendGauge(t.flows, float64(status.Flows))
	s.sendGauge(t.version, float64(status.Version))
	s.sendCounter(t.dropped, status.Dropped)
	s.sendCounter(t.rounds, status.Rounds)
	s.sendGauge(t.took, status.Took.Seconds())
	s.sendGauge(t.last, float64(status.LastEnd.UnixNano())/float64(time.Second))
	s.sendCounter(t.lldp, status.MalformedLLDP)
}

// readTopic publishes whether the telemetry of the ports could be read, and logs why not.
type readTopic struct {
	up  *prometheus.Desc
	log *slog.Logger
}

func newReadTopic(log *slog.Logger) *readTopic {
	return &readTopic{newDesc("graylink_switch_collector_up", "Whether the last read of this part of the telemetry succeeded.", "switch", "collector"), log}
}

func (t *readTopic) descs() []*prometheus.Desc { return []*prometheus.Desc{t.up} }

func (t *readTopic) collect(s sink, status *switchagent.Status, read *switchagent.Telemetry) {
	if status.Routes != nil { // the agent logs why they failed
		for source, failing := range status.Routes.Failing {
			s.sendGauge(t.up, zeroOrOne(!failing), source)
		}
	}
	for _, part := range []struct {
		name string
		err  error
	}{{"links", read.LinkErr}, {"queues", read.QueueErr}} {
		if part.err != nil {
			t.log.Warn("cannot read telemetry", "collector", part.name, "err", part.err)
		}
		s.sendGauge(t.up, zeroOrOne(part.err == nil), part.name)
	}
}

func zeroOrOne(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
