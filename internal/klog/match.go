package klog

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Resolve returns which NIC has a PCI address, a network device or an RDMA device (those that are not known are empty),
// and whether that is one at all. It should know a device some time longer than the device is there: the line that
// says why it went may come late.
type Resolve func(pci, netdev, rdma string) (device string, ok bool)

// Match is a record that fits a pattern.
type Match struct {
	Pattern  string
	Severity Severity
	// Device is Resolve's name of it: "mlx5_0". Where Resolve knows none, the best that the record has: PCI address,
	// network device, RDMA device, name of the kernel's device; or empty.
	Device string
	// Known is set if Resolve knows the device.
	Known bool
	// PCI, Netdev and RDMA are what the record names, empty what it does not.
	PCI, Netdev, RDMA string
	Record            Record
}

// Counts are a Matcher's, by pattern. Every pattern that is not off has its entries, 0 included.
type Counts struct {
	// Matches are all lines that count, delivered or not.
	Matches map[string]uint64
	// Suppressed are those of Matches that were too many.
	Suppressed map[string]uint64
	// Unresolved lines fit, but their device is not a known NIC. They count as Matches only where no other driver says
	// the same.
	Unresolved map[string]uint64
}

// Matcher finds patterns in records. It may be used by several goroutines.
type Matcher struct {
	patterns  []Pattern
	resolve   Resolve
	now       func() time.Time
	perMinute int

	mu        sync.Mutex
	counts    Counts
	delivered map[limitKey][]time.Time
}

type limitKey struct{ pattern, device string }

// NewMatcher makes a matcher. A nil now is time.Now; errors are those of cfg.Validate.
func NewMatcher(cfg MatchConfig, resolve Resolve, now func() time.Time) (*Matcher, error) {
	table, err := cfg.activePatterns()
	if err != nil {
		return nil, err
	}
	m := &Matcher{patterns: table, resolve: resolve, now: now, perMinute: cfg.PerMinute,
		counts:    Counts{map[string]uint64{}, map[string]uint64{}, map[string]uint64{}},
		delivered: map[limitKey][]time.Time{},
	}
	if m.perMinute == 0 {
		m.perMinute = DefaultPerMinute
	}
	if m.now == nil {
		m.now = time.Now
	}
	for _, p := range table {
		m.counts.Matches[p.ID], m.counts.Suppressed[p.ID], m.counts.Unresolved[p.ID] = 0, 0, 0
	}
	return m, nil
}

// PatternSeverities returns the severities of the patterns that are not off, by pattern.
func (m *Matcher) PatternSeverities() map[string]Severity {
	out := map[string]Severity{}
	for i := range m.patterns {
		out[m.patterns[i].ID] = m.patterns[i].Severity
	}
	return out
}

// Match reports whether a record is to be reported, and returns what it matched.
func (m *Matcher) Match(r Record) (Match, bool) {
	if r.Facility != FacilityKernel {
		return Match{}, false
	}
	for i := range m.patterns {
		p := &m.patterns[i]
		for _, re := range p.Expressions {
			if sub := re.FindStringSubmatch(r.Text); sub != nil {
				return m.buildMatch(p, re, sub, r)
			}
		}
	}
	return Match{}, false
}

func (m *Matcher) buildMatch(p *Pattern, re *regexp.Regexp, sub []string, r Record) (Match, bool) {
	match := Match{Pattern: p.ID, Severity: p.Severity, Record: r}
	var port, id string
	for i, name := range re.SubexpNames() {
		switch name {
		case "pci":
			match.PCI = sub[i]
		case "netdev":
			match.Netdev = sub[i]
		case "rdma":
			match.RDMA = sub[i]
		case "port":
			port = sub[i]
		case "id":
			id = sub[i]
		}
	}
	if id != "" {
		match.PCI = requesterAddress(port, id)
	}
	// A port's line is about another device than its tag.
	tag := r.Tags["DEVICE"]
	if pci, ok := strings.CutPrefix(tag, "+pci:"); ok && match.PCI == "" && port == "" {
		match.PCI = pci
	}
	if m.resolve != nil && (match.PCI != "" || match.Netdev != "" || match.RDMA != "") {
		match.Device, match.Known = m.resolve(match.PCI, match.Netdev, match.RDMA)
	}
	if !match.Known {
		match.Device = firstOf(match.PCI, match.Netdev, match.RDMA, tag[strings.IndexByte(tag, ':')+1:])
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	if !match.Known {
		m.counts.Unresolved[p.ID]++
		if p.Generic {
			return Match{}, false
		}
	}
	m.counts.Matches[p.ID]++
	if !m.allowDelivery(limitKey{p.ID, match.Device}) {
		m.counts.Suppressed[p.ID]++
		return Match{}, false
	}
	return match, true
}

// requesterAddress returns the PCI address of a requester id (bus, device and function in 16 bits) in the domain of
// its port.
func requesterAddress(port, id string) string {
	v, err := strconv.ParseUint(id, 16, 16)
	domain, _, ok := strings.Cut(port, ":")
	if err != nil || !ok {
		return ""
	}
	return fmt.Sprintf("%s:%02x:%02x.%d", domain, v>>8, v>>3&0x1f, v&7)
}

func firstOf(names ...string) string {
	for _, n := range names {
		if n != "" {
			return n
		}
	}
	return ""
}

// allowDelivery reports whether one more may be delivered, and counts it. For each key the times of the last deliveries are
// kept, perMinute at most; keys of the last minute only.
func (m *Matcher) allowDelivery(k limitKey) bool {
	now := m.now()
	minuteAgo := now.Add(-time.Minute)
	last := slices.DeleteFunc(m.delivered[k], func(t time.Time) bool { return !t.After(minuteAgo) })
	if len(last) >= m.perMinute {
		m.delivered[k] = last
		return false
	}
	if len(last) == 0 {
		maps.DeleteFunc(m.delivered, func(_ limitKey, ts []time.Time) bool { return !ts[len(ts)-1].After(minuteAgo) })
	}
	m.delivered[k] = append(last, now)
	return true
}

// Counts returns the counts up to now.
func (m *Matcher) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Counts{maps.Clone(m.counts.Matches), maps.Clone(m.counts.Suppressed), maps.Clone(m.counts.Unresolved)}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
