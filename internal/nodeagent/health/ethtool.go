package health

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/nicethtool"
	"github.com/graylink/graylink/internal/nichw"
)

// EthtoolOptions holds the options of what is read from interfaces through ethtool.
type EthtoolOptions struct {
	// Mode is EthtoolAuto, EthtoolOn or EthtoolOff.
	Mode string
	// Counters and Modules are the intervals at which these are read.
	Counters, Modules time.Duration
	// Exclude matches names of driver statistics that are left out. If it is nil, those of queues are.
	Exclude *regexp.Regexp
	// Kernel answers the requests. If it is nil, the machine's kernel does.
	Kernel nicethtool.Kernel
}

// Values of EthtoolOptions.Mode.
const (
	EthtoolAuto = "auto" // on, unless another root of sysfs is set, whose interfaces are not the machine's
	EthtoolOn   = "on"
	EthtoolOff  = "off"
)

// DefaultEthtool returns the options without flags.
func DefaultEthtool() EthtoolOptions {
	return EthtoolOptions{Mode: EthtoolAuto, Counters: 5 * time.Second, Modules: time.Minute}
}

// enabledFor reports whether ethtool is used, with sysfs at a root.
func (o *EthtoolOptions) enabledFor(sys string) bool {
	return o.Mode == EthtoolOn || o.Mode == EthtoolAuto && (sys == "" || sys == "/sys")
}

// ethtool reads a node's interfaces through ethtool. Counters and modules are read concurrently, so that a slow module
// delays no counter.
type ethtool struct {
	log   *slog.Logger
	parts []*ethtoolPart

	mu           sync.Mutex
	errorLogged  map[string]bool // paths whose errors were logged
	denialLogged map[string]bool // parts whose denial was logged
	errors       map[nichw.Sort]uint64
}

// ethtoolPart represents the values that are read at one interval.
type ethtoolPart struct {
	name   string
	parts  nicethtool.Parts
	every  time.Duration
	reader *nicethtool.Reader

	last  *nicethtool.Poll // guarded by ethtool.mu, like the fields below
	took  time.Duration
	polls uint64
}

// newEthtool returns the reader of interfaces, or nil if the options disable it.
func newEthtool(o EthtoolOptions, sys string, log *slog.Logger) *ethtool {
	if !o.enabledFor(sys) {
		return nil
	}
	if o.Kernel == nil {
		o.Kernel = &nicethtool.Machine{}
	}
	e := &ethtool{log: log, errorLogged: map[string]bool{}, denialLogged: map[string]bool{}, errors: map[nichw.Sort]uint64{}}
	for _, p := range []ethtoolPart{{name: "counters", parts: nicethtool.ReadCounters, every: o.Counters}, {name: "modules", parts: nicethtool.ReadModules, every: o.Modules}} {
		p.reader = nicethtool.New(nicethtool.Options{Kernel: o.Kernel, Exclude: o.Exclude})
		e.parts = append(e.parts, &p)
	}
	return e
}

// run reads until ctx ends. The function interfaces returns those to read, and none before the first poll of sysfs.
func (e *ethtool) run(ctx context.Context, interfaces func() []string) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, p := range e.parts {
		running.Go(func() {
			tick := time.NewTicker(p.every)
			defer tick.Stop()
			for {
				e.pollPart(p, time.Now(), interfaces())
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
}

// pollPart reads one part once, and logs new failures.
func (e *ethtool) pollPart(p *ethtoolPart, now time.Time, interfaces []string) {
	began := time.Now()
	got := p.reader.Poll(now, interfaces, p.parts)
	took := time.Since(began)
	e.mu.Lock()
	defer e.mu.Unlock()
	p.last, p.took = got, took
	p.polls++
	failed := map[string]bool{}
	for i := range got.Errors {
		x := &got.Errors[i]
		e.errors[x.Sort]++
		key := p.name + " " + x.Device
		failed[key] = true
		if !e.errorLogged[key] {
			e.errorLogged[key] = true
			e.log.Warn("cannot read a part of an interface through ethtool", "interface", x.Device, "part", x.Path, "reason", string(x.Sort), "err", x.Err)
		}
	}
	for key := range e.errorLogged {
		if strings.HasPrefix(key, p.name+" ") && !failed[key] {
			delete(e.errorLogged, key)
			e.log.Info("an interface can be read through ethtool again, or is gone", "interface", strings.TrimPrefix(key, p.name+" "))
		}
	}
	for _, part := range got.Denied {
		if !e.denialLogged[part] {
			e.denialLogged[part] = true
			e.log.Warn("cannot read a part of the interfaces without CAP_NET_ADMIN; the rest is published", "part", part)
		}
	}
}

// EthtoolState represents what was read through ethtool.
type EthtoolState struct {
	Errors map[nichw.Sort]uint64
	Parts  []EthtoolPart
	// NICs has the names in the fabric by interface. Of several interfaces with one name, it has the first.
	NICs map[string]string
}

// EthtoolPart represents the polls of one part, which is read at an interval of its own.
type EthtoolPart struct {
	Name  string
	Polls uint64
	Took  time.Duration    // duration of the last poll
	Last  *nicethtool.Poll // nil before the first poll
}

// copyState returns what was read.
func (e *ethtool) copyState() *EthtoolState {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &EthtoolState{Errors: maps.Clone(e.errors), NICs: map[string]string{}}
	for _, p := range e.parts {
		s.Parts = append(s.Parts, EthtoolPart{p.name, p.polls, p.took, p.last})
	}
	return s
}

// validate fills in defaults, and returns an error that names the flag that is wrong.
func (o *EthtoolOptions) validate() error {
	o.Mode = cmp.Or(o.Mode, EthtoolOff)
	if o.Mode == EthtoolOff {
		return nil
	}
	for _, x := range []struct {
		flag string
		d    time.Duration
	}{{"nic.ethtool.interval", o.Counters}, {"nic.module.interval", o.Modules}} {
		if x.d < 100*time.Millisecond {
			return fmt.Errorf("--%s: 100ms or more is expected, not %s", x.flag, x.d)
		}
	}
	return nil
}
