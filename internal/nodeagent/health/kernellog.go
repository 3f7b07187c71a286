package health

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/klog"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nichw"
)

// kernelLog makes events of lines of the kernel's log.
type kernelLog struct {
	log      *slog.Logger
	node     string
	position string                 // file that keeps the position; empty: it is not kept
	lastPoll func() *nichw.Poll     // returns the NICs of the node; nil before the first poll
	excluded func(name string) bool // reports whether a device is not watched
	events   *reporter
	follower klog.Follower
	matcher  *klog.Matcher

	mu      sync.Mutex
	matched map[matchKey]uint64

	saveFailing bool // the last write of the position failed; only the goroutine that follows the log uses it
}

// matchKey represents a kind of matches. The device is empty if the line is about no NIC of this node.
type matchKey struct {
	device, code, severity string
}

// CheckLog is the name of the check for events from the kernel's log.
const CheckLog = "NICKernelLogCheck"

// newKernelLog returns the reader of the kernel's log. It returns nil if no log is to be read, or none can be opened.
func newKernelLog(o *Options, boot string, lastPoll func() *nichw.Poll, events *reporter, log *slog.Logger) (*kernelLog, error) {
	k := &kernelLog{log: log, node: o.Rules.Node, position: o.PositionFile, lastPoll: lastPoll, excluded: o.Rules.IsExcluded, events: events, matched: map[matchKey]uint64{}}
	var err error
	if k.matcher, err = klog.NewMatcher(o.Patterns, k.resolveNIC, time.Now); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	if o.Log == LogOff || o.Log == "" {
		return nil, nil
	}
	// Without a known position, every start would report the same lines again.
	position, save, from := (*klog.Position)(nil), (func(klog.Position) error)(nil), klog.FromNow
	if k.position != "" {
		from = klog.FromBeginning
		position, err = klog.LoadPosition(k.position)
		if err != nil {
			log.Warn("cannot read the position in the kernel log", "err", err)
		}
		save = k.savePosition
	}
	if o.Log == LogJournal {
		k.follower, err = klog.NewJournal(klog.JournalConfig{BootID: boot, Position: position, From: from, Save: save})
	} else {
		k.follower, err = klog.NewReader(klog.Config{Path: o.Kmsg, BootID: boot, Position: position, From: from, Save: save})
	}
	if err != nil {
		log.Warn("cannot read the kernel log", "log", o.Log, "err", err)
		return nil, nil
	}
	return k, nil
}

// savePosition writes the position to its file. It logs the first failure, and the first success after it.
func (k *kernelLog) savePosition(p klog.Position) error {
	err := klog.SavePosition(k.position, p)
	switch {
	case err != nil && !k.saveFailing:
		k.log.Warn("cannot write the position in the kernel log; a restart would report lines again", "err", err)
	case err == nil && k.saveFailing:
		k.log.Info("writing the position in the kernel log succeeds again", "file", k.position)
	}
	k.saveFailing = err != nil
	return err
}

// countSaves returns how many writes of the position succeeded and how many failed.
func (k *kernelLog) countSaves() (done, failed uint64) {
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
		k.log.Error("stopped reading the kernel log", "err", err)
	}
}

// emitMatch makes an event of a match and emits it.
func (k *kernelLog) emitMatch(m *klog.Match) {
	device := m.Device
	if device == "" {
		device = "unknown"
	}
	e := nichealth.Event{Agent: nichealth.Agent, ComponentClass: nichealth.ComponentNIC, CheckName: CheckLog, IsFatal: m.Severity == klog.Fatal, Message: m.Record.Text,
		RecommendedAction: nichealth.ActionNone, EntitiesImpacted: []nichealth.Entity{nichealth.NICEntity(device)}, ErrorCode: []string{m.Pattern}, NodeName: k.node, GeneratedTimestamp: time.Now()}
	if e.IsFatal {
		e.RecommendedAction = nichealth.ActionReplaceVM
	}
	key := matchKey{"", m.Pattern, severityOf(&e)} // names in a line cannot be trusted, so unknown ones are not labels
	if m.Known {
		key.device = device
	}
	k.mu.Lock()
	k.matched[key]++
	k.mu.Unlock()
	k.events.reportAll([]nichealth.Event{e})
}

// resolveNIC finds the NIC that a line is about. It returns the RDMA device of a PCI function or of an interface, or
// else the interface.
func (k *kernelLog) resolveNIC(pci, netdev, rdma string) (device string, ok bool) {
	p := k.lastPoll()
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

// LogState represents what was read of the kernel's log.
type LogState struct {
	Lines  map[LogLine]uint64
	Reads  klog.Stats
	Counts klog.Counts
}

// LogLine represents a kind of lines of NIC drivers. The NIC is empty if it is not one of this node.
type LogLine struct{ Code, NIC, Severity string }

// copyState returns what was read, with the names that NICs have in the fabric. The poll is the last one, or nil.
func (k *kernelLog) copyState(p *nichw.Poll, name nicNamer) *LogState {
	s := &LogState{Lines: map[LogLine]uint64{}, Reads: k.follower.Stats(), Counts: k.matcher.Counts()}
	// Physical functions begin at 0, so that the first line of a kind counts as growth, too.
	if p != nil {
		for code, severity := range k.matcher.PatternSeverities() {
			for i := range p.Devices {
				if d := &p.Devices[i]; d.Function != nichw.Virtual && !k.excluded(d.Name) {
					s.Lines[LogLine{code, name(d.Name, 1, ""), string(severity)}] = 0
				}
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for m, n := range k.matched {
		nic := ""
		if m.device != "" {
			nic = name(m.device, 1, "")
		}
		s.Lines[LogLine{m.code, nic, m.severity}] += n
	}
	return s
}
