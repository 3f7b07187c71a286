package node

import "github.com/graylink/graylink/internal/nichw"

// readErrors lists the reasons why a part of a NIC could not be read.
func readErrors() []nichw.Sort {
	return []nichw.Sort{nichw.Unreadable, nichw.Malformed, nichw.Hanging, nichw.Skipped}
}

// nicPollCollector publishes how the node's NICs are polled.
type nicPollCollector struct{}

func newNICPollCollector(from *sources) collector {
	if from.health == nil {
		return nil
	}
	return nicPollCollector{}
}

// addSeries implements collector.
func (nicPollCollector) addSeries(s *scrape) error {
	var (
		polls   = s.counterFamily("graylink_node_nic_polls_total", "Polls of the NICs.")
		failed  = s.counterFamily("graylink_node_nic_read_errors_total", "Files of NICs that could not be read or parsed, by reason.")
		events  = s.counterFamily("graylink_node_nic_events_total", "Events of NICs, by code and severity.")
		took    = s.gaugeFamily("graylink_node_nic_poll_seconds", "Duration of the last poll in seconds.")
		hanging = s.gaugeFamily("graylink_node_nic_hanging_reads", "Reads of files of NICs that have not returned.")
		listed  = s.gaugeFamily("graylink_node_nic_devices_known", "Whether the last poll could list the devices.")
		ports   = s.gaugeFamily("graylink_node_nic_ports", "Ports of the node: expected by the products table, and found.")
	)
	h := s.snapshotHealth()
	s.addCounter(polls, float64(h.Polls), nil)
	for _, why := range readErrors() {
		s.addCounter(failed, float64(h.ReadErrors[why]), s.labelPairs("why", string(why)))
	}
	for k, n := range h.Events {
		s.addCounter(events, float64(n), s.labelPairs("code", k.Code, "severity", k.Severity))
	}
	if h.Poll == nil {
		return errNothingRead
	}
	s.addGauge(took, h.Took.Seconds(), nil)
	s.addGauge(hanging, float64(h.Poll.Hanging), nil)
	s.addGauge(listed, zeroOrOne(h.Poll.DevicesKnown), nil)
	if c := h.PortCounts; c != nil {
		s.addGauge(ports, float64(c.Expected), s.labelPairs("ports", "expected"))
		s.addGauge(ports, float64(c.Found), s.labelPairs("ports", "found"))
	}
	return nil
}

// findingCollector publishes the open findings about the node's NICs.
type findingCollector struct{}

func newFindingCollector(from *sources) collector {
	if from.health == nil {
		return nil
	}
	return findingCollector{}
}

// addSeries implements collector.
func (findingCollector) addSeries(s *scrape) error {
	h := s.snapshotHealth()
	if h.Poll == nil {
		return errNothingRead
	}
	family := s.gaugeFamily("fabric_nic_finding", "Open findings of a NIC or a port, by code; those from counters stay until they are reset.")
	for i := range h.Findings {
		f := &h.Findings[i]
		severity := "warning"
		if f.Fatal {
			severity = "fatal"
		}
		s.addGauge(family, 1, s.labelPairs("code", f.Code, "nic", f.NIC, "severity", severity))
	}
	return nil
}

// logCollector publishes what the kernel's log says of NICs.
type logCollector struct{}

func newLogCollector(from *sources) collector {
	if from.health == nil || from.health().Log == nil {
		return nil
	}
	return logCollector{}
}

// addSeries implements collector.
func (logCollector) addSeries(s *scrape) error {
	l := s.snapshotHealth().Log
	var (
		lines      = s.counterFamily("fabric_nic_driver_events_total", "Kernel log lines of NIC drivers, by code; nic is empty if the NIC is not one of this node.")
		records    = s.counterFamily("graylink_node_nic_log_records_total", "Records of the kernel log that were read.")
		lost       = s.counterFamily("graylink_node_nic_log_lost_total", "Records of the kernel log that were overwritten before they were read.")
		malformed  = s.counterFamily("graylink_node_nic_log_malformed_total", "Records of the kernel log that were malformed.")
		suppressed = s.counterFamily("graylink_node_nic_log_suppressed_total", "Matching log lines that exceeded the rate limit and made no event.")
		unresolved = s.counterFamily("graylink_node_nic_log_unresolved_total", "Matching log lines that are about no NIC of this node.")
	)
	for k, n := range l.Lines {
		s.addCounter(lines, float64(n), s.labelPairs("code", k.Code, "nic", k.NIC, "severity", k.Severity))
	}
	s.addCounter(records, float64(l.Reads.Records), nil)
	s.addCounter(lost, float64(l.Reads.Lost), nil)
	s.addCounter(malformed, float64(l.Reads.Malformed), nil)
	for id, n := range l.Counts.Suppressed {
		s.addCounter(suppressed, float64(n), s.labelPairs("code", id))
	}
	for id, n := range l.Counts.Unresolved {
		s.addCounter(unresolved, float64(n), s.labelPairs("code", id))
	}
	return nil
}
