// Package health watches the NICs of a node. It polls their files and their drivers, follows the kernel's log, and
// reports what the rules of internal/nichealth find. exporters/node publishes its snapshots.
package health

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/klog"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nichw"
)

// Options holds the options of the NIC health monitor.
type Options struct {
	// Sys and Proc are the roots of sysfs and procfs. If they are empty, the machine's own are read.
	Sys, Proc string
	// StateFile keeps the reported findings over a restart. If it is empty, nothing is kept.
	StateFile string
	// Rules are the options of nichealth. New fills in the node.
	Rules nichealth.Config
	// Counters, GIDs and Identity are the intervals at which these are read. The rules have the interval of states.
	Counters, GIDs, Identity time.Duration
	// Patience is the longest time that reading one file may take.
	Patience time.Duration
	// Log names the kernel log that is read: LogKmsg, LogJournal or LogOff. Kmsg is its file; if it is empty, the
	// machine's own is read. PositionFile keeps the position in the log over a restart. Patterns holds the patterns
	// that lines are matched against.
	Log, Kmsg, PositionFile string
	Patterns                klog.MatchConfig
	// Ethtool holds the options of what is read through ethtool.
	Ethtool EthtoolOptions
	// Sinks receive every event in addition to the log. They must not block.
	Sinks []func(nichealth.Event)
}

// The kernel logs that can be read.
const (
	LogKmsg    = "kmsg"
	LogJournal = "journal"
	LogOff     = "off"
)

// Names returns the name of the node, and the names of its probed NICs by interface.
type Names func() (node string, nics map[string]string)

// Watcher polls the NICs of a node and reports findings about them.
type Watcher struct {
	o       Options
	log     *slog.Logger
	names   Names
	reader  *nichw.Reader
	events  *reporter
	kernel  *kernelLog // nil if the log is not read
	ethtool *ethtool   // nil if ethtool is not used
	file    stateFile

	errorLogged map[string]bool // devices whose errors were logged; only the goroutine that polls uses it

	mu      sync.Mutex
	monitor *nichealth.Monitor
	polled  polled
}

// polled represents the polls until now.
type polled struct {
	last     *nichw.Poll
	node     string            // name of the node
	nics     map[string]string // names of its NICs by interface
	listedAt time.Time         // time of the last poll that could list the devices
	took     time.Duration
	count    uint64
	errors   map[nichw.Sort]uint64
}

// New returns a Watcher of the NICs of a node, which has the names that the function returns.
func New(names Names, o Options, log *slog.Logger) (*Watcher, error) {
	w := &Watcher{o: o, log: log, names: names, errorLogged: map[string]bool{}, polled: polled{errors: map[nichw.Sort]uint64{}},
		file: stateFile{path: o.StateFile, log: log}}
	w.o.Rules.Node, _ = names()
	w.polled.node = w.o.Rules.Node
	w.events = newReporter(w.o.Sinks, log)
	if err := w.o.Ethtool.validate(); err != nil {
		return nil, err
	}
	w.ethtool = newEthtool(w.o.Ethtool, w.o.Sys, log)
	if err := w.o.Rules.Validate(); err != nil {
		return nil, err
	}
	w.reader = w.newReader()
	boot, err := nichw.BootID(w.o.Proc)
	if err != nil {
		log.Warn("cannot read the boot identifier; findings are not kept over a restart", "err", err)
	}
	remembered, err := loadMemory(w.o.StateFile)
	if err != nil {
		log.Warn("cannot read the state file of NIC health; findings may be reported again", "err", err)
	}
	w.monitor = nichealth.New(w.o.Rules, boot, remembered)
	w.kernel, err = newKernelLog(&w.o, boot, w.lastPoll, w.events, log)
	return w, err
}

// newReader returns the reader of the NICs' files. It reads the interfaces that have hardware or are probed.
func (w *Watcher) newReader() *nichw.Reader {
	// The kernel shows in /sys the network namespace of the process that mounted it. Interfaces of another namespace
	// may have the same names as those of this one.
	ours := w.o.Sys != "" || sameNetwork("/sys")
	if !ours {
		w.log.Warn("not watching interfaces: /sys shows those of another network namespace")
	}
	return nichw.New(nichw.Options{Sys: w.o.Sys, Proc: w.o.Proc, Patience: w.o.Patience, Interface: func(name string, device bool) bool {
		if !ours || w.o.Rules.IsExcluded(name) {
			return false
		}
		_, nics := w.names()
		return device || nics[name] != ""
	}})
}

// sameNetwork reports whether sysfs at the root shows the interfaces that this process has.
func sameNetwork(sys string) bool {
	list, err := net.Interfaces()
	if err != nil {
		return false
	}
	entries, err := os.ReadDir(filepath.Join(sys, "class/net"))
	if err != nil {
		return false
	}
	seen := map[string]bool{}
	for _, e := range entries {
		seen[e.Name()] = true
	}
	for _, i := range list {
		b, err := os.ReadFile(filepath.Join(sys, "class/net", i.Name, "ifindex"))
		if err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(i.Index) {
			return false
		}
		delete(seen, i.Name)
	}
	for name := range seen {
		if _, err := os.Stat(filepath.Join(sys, "class/net", name, "ifindex")); err == nil {
			return false // an interface that this process does not have; the file bonding_masters is not an interface
		}
	}
	return true
}

// Run polls until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	due := map[nichw.Parts]time.Time{}
	every := map[nichw.Parts]time.Duration{nichw.ReadCounters: w.o.Counters, nichw.ReadGIDs: w.o.GIDs, nichw.ReadIdentity: w.o.Identity}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var others sync.WaitGroup
	defer others.Wait()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			w.SaveState(true)
			return
		case <-timer.C:
		}
		now := time.Now()
		parts := nichw.ReadStates
		for p, d := range every {
			if !now.Before(due[p]) {
				parts |= p
				due[p] = now.Add(d)
			}
		}
		w.PollOnce(now, parts)
		if first { // the NICs are known only from the first poll on
			others.Go(func() { w.FollowLog(ctx) })
			if w.ethtool != nil {
				others.Go(func() { w.ethtool.run(ctx, w.interfaceNames) })
			}
		}
		w.SaveState(false)
		timer.Reset(max(0, time.Until(now.Add(w.NextPoll()))))
	}
}

// NextPoll returns the time from one poll to the next one.
func (w *Watcher) NextPoll() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.monitor.NextPoll()
}

// PollOnce reads the parts once at a time, and reports what is new. Run does so at its intervals.
func (w *Watcher) PollOnce(now time.Time, parts nichw.Parts) {
	// Interfaces that are probed are watched from then on.
	node, nics := w.names()
	w.mu.Lock()
	same := maps.Equal(nics, w.polled.nics)
	w.polled.node, w.polled.nics = node, nics
	w.mu.Unlock()
	if !same {
		w.reader.RelistAll()
	}
	began := time.Now()
	p := w.reader.Poll(now, parts)
	took := time.Since(began)
	w.mu.Lock()
	events := w.monitor.ObservePoll(p)
	w.polled.last, w.polled.took = p, took
	if p.DevicesKnown && p.InterfacesKnown {
		w.polled.listedAt = now
	}
	w.polled.count++
	for i := range p.Errors {
		w.polled.errors[p.Errors[i].Sort]++
	}
	w.mu.Unlock()
	w.logReadErrors(p)
	w.events.reportAll(events)
}

// FollowLog reads the kernel's log until ctx ends, if it is to be read. Run does so from the first poll on.
func (w *Watcher) FollowLog(ctx context.Context) {
	if w.kernel != nil {
		w.kernel.followLog(ctx)
	}
}

// PollEthtool reads everything that is read through ethtool once. Run reads each part at its own interval.
func (w *Watcher) PollEthtool(now time.Time) {
	if w.ethtool == nil {
		return
	}
	for _, p := range w.ethtool.parts {
		w.ethtool.pollPart(p, now, w.interfaceNames())
	}
}

// lastPoll returns the last poll. It returns nil before the first one.
func (w *Watcher) lastPoll() *nichw.Poll {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.polled.last
}

// interfaceNames returns the names of the interfaces in the last poll of sysfs.
func (w *Watcher) interfaceNames() (out []string) {
	p := w.lastPoll()
	if p == nil {
		return nil
	}
	for i := range p.Interfaces {
		out = append(out, p.Interfaces[i].Name)
	}
	return out
}

// OpenFindings returns the open findings, and the time at which the devices were last listed. The time is zero if they
// never were.
func (w *Watcher) OpenFindings() (open []nichealth.Finding, read time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.monitor.OpenFindings(), w.polled.listedAt
}

// Reset ends the latched findings of an entity, or of all if the entity is empty, and returns how many it ended. It
// returns an error that wraps ErrNoFindings if the entity has no findings.
func (w *Watcher) Reset(entity string, now time.Time) (ended int, err error) {
	w.mu.Lock()
	var of nichealth.Entity
	for _, f := range w.monitor.OpenFindings() {
		if f.Entity.Value == entity {
			of = f.Entity
		}
	}
	if entity != "" && of == (nichealth.Entity{}) {
		w.mu.Unlock()
		return 0, fmt.Errorf("%w for %s", ErrNoFindings, entity)
	}
	events := w.monitor.Reset(of, now)
	w.mu.Unlock()
	w.events.reportAll(events)
	return len(events), nil
}

// logReadErrors logs once when files of a device cannot be read, and once when all of them can be read again.
func (w *Watcher) logReadErrors(p *nichw.Poll) {
	now := map[string]int{}
	for i := range p.Errors {
		now[p.Errors[i].Device]++
	}
	for i := range p.Errors {
		e := &p.Errors[i]
		if n := now[e.Device]; !w.errorLogged[e.Device] && n > 0 {
			w.errorLogged[e.Device] = true
			w.log.Warn("cannot read files of a NIC", "device", e.Device, "files", n, "first", e.Path, "reason", string(e.Sort), "err", e.Err)
		}
	}
	for device := range w.errorLogged {
		if now[device] == 0 {
			delete(w.errorLogged, device)
			w.log.Info("files of a NIC can be read again, or the device is gone", "device", device)
		}
	}
}

// SaveState writes the state file if that is due, and always if last is true. Run does so after every poll.
func (w *Watcher) SaveState(last bool) {
	if w.o.StateFile == "" {
		return
	}
	w.mu.Lock()
	m := w.monitor.SaveMemory()
	w.mu.Unlock()
	w.file.saveMemory(m, last)
}

// FileWrites returns the counts of the writes of the state file and of the file with the position in the log. They are
// nil for files that are not kept.
func (w *Watcher) FileWrites() (state, position func() (done, failed uint64)) {
	if w.o.StateFile != "" {
		state = w.file.countWrites
	}
	if w.kernel != nil && w.o.PositionFile != "" {
		position = w.kernel.countSaves
	}
	return state, position
}
