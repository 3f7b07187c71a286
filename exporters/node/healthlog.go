package node

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/klog"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nichw"
	"github.com/graylink/graylink/internal/nvsentinel"
)

// kernelLog makes events of lines of the kernel's log.
type kernelLog struct {
	h        *Health
	follower klog.Follower
	matcher  *klog.Matcher
	matched  map[matchKey]uint64 // guarded by Health.mu

	saveFailing bool // reports whether the last write of the position failed; only the goroutine that follows the log uses it
}

type matchKey struct {
	device, code, severity string
}

// CheckLog is the name of the check for events from the kernel's log.
const CheckLog = "NICKernelLogCheck"

// newKernelLog returns the reader of the kernel's log. It returns nil if no log is to be read, or none can be opened.
func newKernelLog(h *Health, boot string) (*kernelLog, error) {
	k := &kernelLog{h: h, matched: map[matchKey]uint64{}}
	var err error
	if k.matcher, err = klog.NewMatcher(h.o.Patterns, k.resolveNIC, time.Now); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	if h.o.Log == LogOff || h.o.Log == "" {
		return nil, nil
	}
	// Without a known position, every start would report the same lines again.
	position, save, from := (*klog.Position)(nil), (func(klog.Position) error)(nil), klog.FromNow
	if h.o.PositionFile != "" {
		from = klog.FromBeginning
		position, err = klog.LoadPosition(h.o.PositionFile)
		if err != nil {
			h.log.Warn("cannot read the position in the kernel log", "err", err)
		}
		save = k.savePosition
	}
	if h.o.Log == LogJournal {
		k.follower, err = klog.NewJournal(klog.JournalConfig{BootID: boot, Position: position, From: from, Save: save})
	} else {
		k.follower, err = klog.NewReader(klog.Config{Path: h.o.Kmsg, BootID: boot, Position: position, From: from, Save: save})
	}
	if err != nil {
		h.log.Warn("cannot read the kernel log", "log", h.o.Log, "err", err)
		return nil, nil
	}
	return k, nil
}

// savePosition writes the position to its file. It logs the first failure, and the first success after it.
func (k *kernelLog) savePosition(p klog.Position) error {
	err := klog.SavePosition(k.h.o.PositionFile, p)
	switch {
	case err != nil && !k.saveFailing:
		k.h.log.Warn("cannot write the position in the kernel log; a restart would report lines again", "err", err)
	case err == nil && k.saveFailing:
		k.h.log.Info("writing the position in the kernel log succeeds again", "file", k.h.o.PositionFile)
	}
	k.saveFailing = err != nil
	return err
}

// stateWrites returns how many writes of the position succeeded and how many failed.
func (k *kernelLog) stateWrites() (done, failed uint64) {
	s := k.follower.Stats()
	return s.Saves, s.SaveErrors
}

// followLog reads the log until ctx ends.
func (k *kernelLog) followLog(ctx context.Context) {
	err := k.follower.Run(ctx, func(r klog.Record) error {
		if m, ok := k.matcher.Match(r); ok {
			k.emitMatch(&m)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		k.h.log.Error("stopped reading the kernel log", "err", err)
	}
}

// emitMatch makes an event of a match and emits it.
func (k *kernelLog) emitMatch(m *klog.Match) {
	device := m.Device
	if device == "" {
		device = "unknown"
	}
	e := nichealth.Event{Agent: nichealth.Agent, ComponentClass: nichealth.ComponentNIC, CheckName: CheckLog, IsFatal: m.Severity == klog.Fatal, Message: m.Record.Text,
		RecommendedAction: nichealth.ActionNone, EntitiesImpacted: []nichealth.Entity{nichealth.NICEntity(device)}, ErrorCode: []string{m.Pattern}, NodeName: k.h.o.Rules.Node, GeneratedTimestamp: time.Now()}
	if e.IsFatal {
		e.RecommendedAction = nichealth.ActionReplaceVM
	}
	k.h.mu.Lock()
	k.h.events[eventKey{m.Pattern, severityOf(&e)}]++
	if m.Known {
		k.matched[matchKey{device, m.Pattern, severityOf(&e)}]++
	} else {
		k.matched[matchKey{"", m.Pattern, severityOf(&e)}]++ // the names in a line cannot be trusted, so they are not labels here
	}
	k.h.mu.Unlock()
	k.h.emitEvent(&e)
}

// resolveNIC finds the NIC that a line is about. It returns the RDMA device of a PCI function or of an interface, or else
// the interface.
func (k *kernelLog) resolveNIC(pci, netdev, rdma string) (device string, ok bool) {
	k.h.mu.Lock()
	p := k.h.last
	k.h.mu.Unlock()
	if p == nil {
		return "", false
	}
	for i := range p.Devices {
		d := &p.Devices[i]
		if rdma != "" && d.Name == rdma || pci != "" && d.PCI != nil && d.PCI.Address == pci {
			return d.Name, true
		}
		for j := range d.Ports {
			if netdev != "" && d.Ports[j].Netdev == netdev {
				return d.Name, true
			}
		}
	}
	for i := range p.Interfaces {
		f := &p.Interfaces[i]
		if netdev != "" && f.Name == netdev || pci != "" && f.PCI != nil && f.PCI.Address == pci {
			return f.Name, true
		}
	}
	return "", false
}

// writeSeries adds the series of the log. Health.mu must be held.
func (k *kernelLog) writeSeries(x *exposition, name func(device string, port int, netdev string) string) {
	var (
		lines      = x.counterFamily("fabric_nic_driver_events_total", "Kernel log lines of NIC drivers, by code; nic is empty if the NIC is not one of this node.")
		records    = x.counterFamily("graylink_node_nic_log_records_total", "Records of the kernel log that were read.")
		lost       = x.counterFamily("graylink_node_nic_log_lost_total", "Records of the kernel log that were overwritten before they were read.")
		malformed  = x.counterFamily("graylink_node_nic_log_malformed_total", "Records of the kernel log that were malformed.")
		suppressed = x.counterFamily("graylink_node_nic_log_suppressed_total", "Matching log lines that exceeded the rate limit and made no event.")
		unresolved = x.counterFamily("graylink_node_nic_log_unresolved_total", "Matching log lines that are about no NIC of this node.")
	)
	// Physical functions begin at 0, so that the first line of a kind counts as growth, too.
	byNIC := map[matchKey]uint64{}
	if p := k.h.last; p != nil {
		for code, severity := range k.matcher.PatternSeverities() {
			for i := range p.Devices {
				if d := &p.Devices[i]; d.Function != nichw.Virtual && !k.h.o.Rules.IsExcluded(d.Name) {
					byNIC[matchKey{name(d.Name, 1, ""), code, string(severity)}] += 0
				}
			}
		}
	}
	for m, n := range k.matched {
		if m.device != "" {
			m.device = name(m.device, 1, "")
		}
		byNIC[m] += n
	}
	for m, n := range byNIC {
		x.addCounter(lines, float64(n), x.labelPairs("code", m.code, "nic", m.device, "severity", m.severity))
	}
	s, c := k.follower.Stats(), k.matcher.Counts()
	x.addCounter(records, float64(s.Records), nil)
	x.addCounter(lost, float64(s.Lost), nil)
	x.addCounter(malformed, float64(s.Malformed), nil)
	for id, n := range c.Suppressed {
		x.addCounter(suppressed, float64(n), x.labelPairs("code", id))
	}
	for id, n := range c.Unresolved {
		x.addCounter(unresolved, float64(n), x.labelPairs("code", id))
	}
}

// sinkSeries gathers the counts of the events that went to NVSentinel.
type sinkSeries func() nvsentinel.Stats

// SinkSeries returns a gatherer of these counts.
func SinkSeries(stats func() nvsentinel.Stats) prometheus.Gatherer { return sinkSeries(stats) }

// Gather implements prometheus.Gatherer.
func (s sinkSeries) Gather() ([]*dto.MetricFamily, error) {
	x := newExposition(time.Now())
	events := x.counterFamily("graylink_node_nvsentinel_events_total", "Events for NVSentinel, by result.")
	failures := x.counterFamily("graylink_node_nvsentinel_failures_total", "Requests to NVSentinel that failed and were tried again.")
	queued := x.gaugeFamily("graylink_node_nvsentinel_queued_events", "Events in the queue for NVSentinel.")
	v := s()
	x.addCounter(events, float64(v.Sent), x.labelPairs("result", "sent"))
	x.addCounter(events, float64(v.Dropped), x.labelPairs("result", "dropped"))
	x.addCounter(events, float64(v.Rejected), x.labelPairs("result", "rejected"))
	x.addCounter(failures, float64(v.Failures), nil)
	x.addGauge(queued, float64(v.Queued), nil)
	return x.sortedFamilies(), nil
}
