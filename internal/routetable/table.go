package routetable

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Table holds the routes and sessions of a switch, with versions. The tests are named after these rules:
//
//  1. A prefix changes if one of its entries changes. All changes until EndRound are one version.
//  2. The table can report the changes since any version that is not too old.
//  3. A table that becomes known or unknown makes earlier versions too old, and its entries did not change.
//  4. An entry of FIB that changes has the time of its change, which is kept for ChangeKept after the entry is gone.
//  5. FIB and RIB mismatch at a prefix if they have differed for SettleTime, and a reading of RIB that began after that
//     time still differs.
//  6. The table has room for a number of prefixes. What does not fit is counted.
type Table struct {
	limit    int
	groups   map[string]*group // by their ports, joined
	entries  map[netip.Prefix]*entry
	known    [tables]bool
	readAt   [tables]time.Time
	omitted  [tables]int
	sessions []Session
	version  uint64
	dirty    bool     // something changed since the last version
	log      []change // in ascending order of versions
	oldest   uint64   // the version that the log continues

	fibChanges uint64
}

// SettleTime is how long FIB and RIB may differ while routes change.
const SettleTime = time.Second

// Kinds of tables.
const (
	inFIB = iota
	inRIB
	inPaths
	tables
)

// group is a list of ports. There is one of each list, so groups are equal if their pointers are.
type group struct{ ports []string }

type entry struct {
	groups  [tables]*group // nil if the table does not have the prefix
	changed time.Time      // last change of FIB; zero if there was none
	differs time.Time      // since when FIB and RIB differ; zero if they agree or one is not known
	version uint64
}

type change struct {
	version uint64
	prefix  netip.Prefix
}

// NewTable makes a table with room for so many prefixes.
func NewTable(limit int) *Table {
	return &Table{limit: limit, groups: map[string]*group{}, entries: map[netip.Prefix]*entry{}}
}

// Routes maps prefixes to the ports by which packets to them leave. A prefix without ports is discarded.
type Routes map[netip.Prefix][]string

// SetFIB sets the kernel's table, of a reading that began at a time. What differs from the last one is recorded as changed
// at the time of noticing it, which is a little earlier if the kernel notified. A nil map means that the table is not known.
func (t *Table) SetFIB(routes Routes, noticed, began time.Time) { t.set(inFIB, routes, noticed, began) }

// SetRIB sets the routing daemon's selected routes, of a reading that began at a time. A nil map means that they are not
// known.
func (t *Table) SetRIB(routes Routes, began time.Time) { t.set(inRIB, routes, began, began) }

// SetPaths sets the routing daemon's valid paths. A nil map means that they are not known.
func (t *Table) SetPaths(routes Routes, began time.Time) { t.set(inPaths, routes, began, began) }

func (t *Table) set(table int, routes Routes, noticed, began time.Time) {
	was := t.known[table]
	t.known[table], t.readAt[table], t.omitted[table] = routes != nil, began, 0
	if routes == nil {
		t.readAt[table] = time.Time{}
	}
	if was != t.known[table] { // rule 3
		t.dirty, t.oldest, t.log = true, t.version+1, nil
	}
	set := func(p netip.Prefix, e *entry, g *group) {
		if e.groups[table] == g {
			return
		}
		e.groups[table] = g
		if table == inFIB && was && routes != nil { // rule 4
			e.changed = noticed
			t.fibChanges++
		}
		t.logChange(p, e)
	}
	for p, e := range t.entries {
		if _, ok := routes[p]; !ok {
			set(p, e, nil)
		}
	}
	for p, ports := range routes {
		e := t.entries[p]
		if e == nil {
			if len(t.entries) >= t.limit {
				t.omitted[table]++
				continue
			}
			e = &entry{}
			t.entries[p] = e
		}
		set(p, e, t.intern(ports))
	}
	for _, e := range t.entries {
		switch {
		case !t.known[inFIB] || !t.known[inRIB] || e.groups[inRIB] == nil || e.groups[inFIB] == e.groups[inRIB]:
			e.differs = time.Time{}
		case e.differs.IsZero():
			e.differs = began
		}
	}
}

// SetSessions sets the sessions. Nil means that they are not known.
func (t *Table) SetSessions(sessions []Session) {
	sessions = slices.Clone(sessions)
	slices.SortFunc(sessions, func(a, b Session) int {
		return cmp.Or(strings.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Peer, b.Peer))
	})
	if (sessions == nil) == (t.sessions == nil) && slices.EqualFunc(sessions, t.sessions, sameSession) {
		return
	}
	t.sessions, t.dirty = sessions, true
}

func sameSession(a, b Session) bool {
	same := func(a, b *uint64) bool { return a == b || a != nil && b != nil && *a == *b }
	return a.Port == b.Port && a.Peer == b.Peer && a.Protocol == b.Protocol && a.Up == b.Up && same(a.Established, b.Established) && same(a.Downs, b.Downs) &&
		a.Changed.Equal(b.Changed) && a.Detection == b.Detection
}

// Sessions returns the sessions, or nil if they are not known. The caller must not change them.
func (t *Table) Sessions() []Session { return t.sessions }

// intern returns the group of a list of ports, which may have a port twice.
func (t *Table) intern(ports []string) *group {
	ports = slices.Compact(slices.Sorted(slices.Values(ports)))
	key := strings.Join(ports, "\xff")
	g := t.groups[key]
	if g == nil {
		if ports == nil {
			ports = []string{}
		}
		g = &group{ports}
		t.groups[key] = g
	}
	return g
}

// logChange records a change, at most once per version.
func (t *Table) logChange(p netip.Prefix, e *entry) {
	t.dirty = true
	if e.version != t.version+1 {
		e.version = t.version + 1
		t.log = append(t.log, change{t.version + 1, p})
	}
}

// EndRound makes a version of what changed since the last one, and forgets prefixes that no table has any more.
func (t *Table) EndRound(now time.Time) {
	for p, e := range t.entries {
		if e.groups == [tables]*group{} && now.Sub(e.changed) > ChangeKept {
			t.logChange(p, e)
			delete(t.entries, p)
		}
	}
	if t.dirty {
		t.version++
		t.dirty = false
	}
	// A client that missed more than this gets the whole table.
	if over := len(t.log) - t.limit/8 - 1024; over > 0 {
		t.oldest = t.log[over-1].version
		for over < len(t.log) && t.log[over].version == t.oldest {
			over++
		}
		t.log = slices.Clone(t.log[over:]) // the memory of a burst is released
	}
	if len(t.groups) > 1024 && len(t.groups) > 2*tables*len(t.entries) {
		t.forgetGroups()
	}
}

// forgetGroups forgets the groups that no entry has.
func (t *Table) forgetGroups() {
	used := map[*group]bool{}
	for _, e := range t.entries {
		for _, g := range e.groups {
			used[g] = true
		}
	}
	maps.DeleteFunc(t.groups, func(_ string, g *group) bool { return !used[g] })
}

// Version returns the version of the last round that changed something.
func (t *Table) Version() uint64 { return t.version }

// Len returns the number of prefixes that a table has.
func (t *Table) Len() int { return len(t.entries) }

// FIBChanges returns how many entries of FIB changed since the first reading. ok is false if FIB is not known.
func (t *Table) FIBChanges() (n uint64, ok bool) { return t.fibChanges, t.known[inFIB] }

// Mismatches returns at how many prefixes FIB and RIB mismatch. ok is false if one of them is not known.
func (t *Table) Mismatches() (n int, ok bool) {
	for _, e := range t.entries {
		if !e.differs.IsZero() && !t.readAt[inRIB].Before(e.differs.Add(SettleTime)) { // rule 5
			n++
		}
	}
	return n, t.known[inFIB] && t.known[inRIB]
}

// Differs reports whether FIB and RIB differ at a prefix, for however short a time.
func (t *Table) Differs() bool {
	for _, e := range t.entries {
		if !e.differs.IsZero() {
			return true
		}
	}
	return false
}

// CoversVersion reports whether the changes since a version are known.
func (t *Table) CoversVersion(version uint64) bool {
	return version != 0 && version >= t.oldest && version <= t.version
}

// ReportSince returns the changes since a version, or the whole table if CoversVersion does not hold for it. The caller
// adds the switch, the instance and the time.
func (t *Table) ReportSince(since uint64) Report {
	r := Report{Version: t.version, FIBAt: t.readAt[inFIB], RIBAt: t.readAt[inRIB], Omitted: max(t.omitted[inFIB], t.omitted[inRIB], t.omitted[inPaths])}
	b := reportBuilder{table: t, report: &r, numbers: map[*group]int{}}
	switch {
	case !t.CoversVersion(since):
		b.openMaps()
		for p, e := range t.entries {
			b.addEntry(p, e)
		}
		r.Sessions = t.sessions
		return r
	case since == t.version:
		r.Since = since
		return r
	}
	r.Since, r.Sessions = since, t.sessions
	b.openMaps()
	from, _ := slices.BinarySearchFunc(t.log, since+1, func(c change, v uint64) int { return cmp.Compare(c.version, v) })
	gone := map[netip.Prefix]bool{}
	for _, c := range t.log[from:] {
		switch e := t.entries[c.prefix]; {
		case e == nil:
			gone[c.prefix] = true
		case e.version == c.version: // its last change
			if b.addEntry(c.prefix, e); e.groups == [tables]*group{} {
				gone[c.prefix] = true
			}
		}
	}
	for p := range gone {
		r.Gone = append(r.Gone, p)
	}
	slices.SortFunc(r.Gone, netip.Prefix.Compare)
	return r
}

// reportBuilder adds entries to a report.
type reportBuilder struct {
	table   *Table
	report  *Report
	numbers map[*group]int
}

// openMaps makes the maps of the tables that are known.
func (b *reportBuilder) openMaps() {
	b.report.Groups = [][]string{}
	b.report.Changed = map[netip.Prefix]time.Time{}
	for i, m := range b.report.maps() {
		if b.table.known[i] {
			*m = map[netip.Prefix]int{}
		}
	}
}

// maps returns the tables of a report in the order of their kinds.
func (r *Report) maps() [tables]*map[netip.Prefix]int {
	return [tables]*map[netip.Prefix]int{&r.FIB, &r.RIB, &r.Paths}
}

func (b *reportBuilder) addEntry(p netip.Prefix, e *entry) {
	for i, m := range b.report.maps() {
		g := e.groups[i]
		if g == nil {
			continue
		}
		n, ok := b.numbers[g]
		if !ok {
			n = len(b.report.Groups)
			b.numbers[g] = n
			b.report.Groups = append(b.report.Groups, g.ports)
		}
		(*m)[p] = n
	}
	if !e.changed.IsZero() {
		b.report.Changed[p] = e.changed
	}
}
