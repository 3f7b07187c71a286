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
	matched  map[matchKey]uint64 // Health.mu is held

	saveFailing bool // the last write of the position failed; of the goroutine that follows the log
}

type matchKey struct {
	device, code, severity string
}

// CheckLog is the check of events from the kernel's log.
const CheckLog = "NICKernelLogCheck"

// newKernelLog returns nil where no log is to be read, or none can be.
func newKernelLog(h *Health, boot string) (*kernelLog, error) {
	k := &kernelLog{h: h, matched: map[matchKey]uint64{}}
	var err error
	if k.matcher, err = klog.NewMatcher(h.o.Patterns, k.resolveNIC, time.Now); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	if h.o.Log == LogOff || h.o.Log == "" {
		return nil, nil
	}
	// Who does not know how far it came would tell at every start what it told before.
	position, save, from := (*klog.Position)(nil), (func(klog.Position) error)(nil), klog.FromNow
	if h.o.PositionFile != "" {
		from = klog.FromBeginning
		position, err = klog.LoadPosition(h.o.PositionFile)
		if err != nil {
			h.log.Warn("how far the kernel's log was read is not known", "err", err)
		}
		save = k.savePosition
	}
	if h.o.Log == LogJournal {
		k.follower, err = klog.NewJournal(klog.JournalConfig{BootID: boot, Position: position, From: from, Save: save})
	} else {
		k.follower, err = klog.NewReader(klog.Config{Path: h.o.Kmsg, BootID: boot, Position: position, From: from, Save: save})
	}
	if err != nil {
		h.log.Warn("the kernel's log is not read", "log", h.o.Log, "err", err)
		return nil, nil
	}
	return k, nil
}

// savePosition writes the position, and logs the first failure and the first success after it.
func (k *kernelLog) savePosition(p klog.Position) error {
	err := klog.SavePosition(k.h.o.PositionFile, p)
	switch {
	case err != nil && !k.saveFailing:
		k.h.log.Warn("cannot write the position in the kernel's log: until a later write succeeds, a restart reports lines again", "err", err)
	case err == nil && k.saveFailing:
		k.h.log.Info("the position in the kernel's log is written again", "file", k.h.o.PositionFile)
	}
	k.saveFailing = err != nil
	return err
}

// stateWrites counts the writes of the position.
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
		k.h.log.Error("the kernel's log is not read any more", "err", err)
	}
}

// emitMatch makes an event of a match.
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
		k.matched[matchKey{"", m.Pattern, severityOf(&e)}]++ // lines name what they like
	}
	k.h.mu.Unlock()
	k.h.emitEvent(&e)
}

// resolveNIC finds the NIC that a line is about: the RDMA device of a PCI function or of an
// interface, else the interface.
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

// writeSeries are those of the log; Health.mu is held.
func (k *kernelLog) writeSeries(x *exposition, name func(device string, port int, netdev string) string) {
	var (
		lines      = x.counterFamily("fabric_nic_driver_events_total", "Lines of the kernel's log about the NIC, by what they say; nic is empty where they name none of this node.")
		records    = x.counterFamily("graylink_node_nic_log_records_total", "Records of the kernel's log that were read.")
		lost       = x.counterFamily("graylink_node_nic_log_lost_total", "Records that were overwritten before they were read.")
		malformed  = x.counterFamily("graylink_node_nic_log_malformed_total", "Records that could not be understood.")
		suppressed = x.counterFamily("graylink_node_nic_log_suppressed_total", "Matches beyond the rate limit, which made no event.")
		unresolved = x.counterFamily("graylink_node_nic_log_unresolved_total", "Lines that would match and are about no NIC of this node.")
	)
	// Physical functions begin at 0: the first line of a kind is growth, too.
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

// sinkSeries are what became of the events that went to NVSentinel.
type sinkSeries func() nvsentinel.Stats

// SinkSeries publishes them.
func SinkSeries(stats func() nvsentinel.Stats) prometheus.Gatherer { return sinkSeries(stats) }

// Gather implements prometheus.Gatherer.
func (s sinkSeries) Gather() ([]*dto.MetricFamily, error) {
	x := newExposition(time.Now())
	events := x.counterFamily("graylink_node_nvsentinel_events_total", "Events for NVSentinel, by what became of them.")
	failures := x.counterFamily("graylink_node_nvsentinel_failures_total", "Requests to NVSentinel that failed, and were tried again.")
	queued := x.gaugeFamily("graylink_node_nvsentinel_queued_events", "Events that wait for NVSentinel.")
	v := s()
	x.addCounter(events, float64(v.Sent), x.labelPairs("result", "sent"))
	x.addCounter(events, float64(v.Dropped), x.labelPairs("result", "dropped"))
	x.addCounter(events, float64(v.Rejected), x.labelPairs("result", "rejected"))
	x.addCounter(failures, float64(v.Failures), nil)
	x.addGauge(queued, float64(v.Queued), nil)
	return x.sortedFamilies(), nil
}
