package routing

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// answer is what a report says: yes, no, or nothing.
type answer int

const (
	unknown answer = iota
	yes
	no
)

// prefixesOf returns the prefixes of a table that have NICs of a leaf, those of the longest match of each NIC.
func (m *Moment) prefixesOf(table map[netip.Prefix][]string, leaf string) (out []netip.Prefix) {
	for _, end := range m.Graph.EndsOf(leaf) {
		nic := m.Graph.PeerOf(end)
		if !fabric.IsNIC(nic) {
			continue
		}
		if p, ok := longestMatch(table, m.Graph.ProbeAddress(nic)); ok && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// longestMatch returns the prefix by which a table forwards an address. The default route is none.
func longestMatch(table map[netip.Prefix][]string, a netip.Addr) (netip.Prefix, bool) {
	for bits := a.BitLen(); bits > 0; bits-- {
		p, err := a.Prefix(bits)
		if err != nil {
			break
		}
		if _, ok := table[p]; ok {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// leafOf returns the leaf whose NICs a prefix has, or the switch whose own address it is. It returns "" if there is none, or several.
func (m *Moment) leafOf(p netip.Prefix) (leaf string) {
	if p.Bits() == 0 {
		return ""
	}
	for i := range m.Graph.Topo.Switches {
		if sw := &m.Graph.Topo.Switches[i]; p.IsSingleIP() && slices.Contains(sw.Addresses, p.Addr()) {
			return sw.Name
		}
	}
	for _, nic := range m.Graph.NICIDs() {
		if !p.Contains(m.Graph.ProbeAddress(nic)) {
			continue
		}
		l, _ := m.Graph.LeafOf(nic)
		if leaf != "" && l != leaf {
			return ""
		}
		leaf = l
	}
	return leaf
}

// hasHop reports whether the table of a switch sends by a port to a leaf.
func (m *Moment) hasHop(sw, leaf string, d fabric.Direction) answer {
	if r := m.Switches[sw]; r != nil {
		return m.inTable(r.FIB, leaf, d)
	}
	return unknown
}

// lacksHop reports whether the table of a switch sends to a leaf by other ports alone. A table without an entry of its own for the leaf
// says nothing of that.
func (m *Moment) lacksHop(sw, leaf string, d fabric.Direction) bool {
	r := m.Switches[sw]
	return r != nil && m.inTable(r.FIB, leaf, d) == no &&
		slices.ContainsFunc(m.prefixesOf(r.FIB, leaf), func(p netip.Prefix) bool { return len(r.FIB[p]) > 0 })
}

// hasPath reports whether the daemon of a switch has a valid path to a leaf by a port.
func (m *Moment) hasPath(sw, leaf string, d fabric.Direction) answer {
	if r := m.Switches[sw]; r != nil {
		return m.inTable(r.Paths, leaf, d)
	}
	return unknown
}

func (m *Moment) inTable(table map[netip.Prefix][]string, leaf string, d fabric.Direction) answer {
	if table == nil {
		return unknown
	}
	_, name, _ := fabric.SplitPort(d.From)
	for _, p := range m.prefixesOf(table, leaf) {
		if slices.Contains(table[p], name) {
			return yes
		}
	}
	return no
}

// mismatch is an entry of a FIB that differs from the RIB.
type mismatch struct {
	sw     string
	prefix netip.Prefix
}

// comparedTables are the entries of a switch's FIB that differ from its RIB, as of a version of its tables and of the topology.
type comparedTables struct {
	version   uint64
	graph     *fabric.Graph
	different []difference
}

// difference is an entry of a FIB that differs from the RIB, with the leaf that the prefix is of, or the prefix itself.
type difference struct {
	prefix         netip.Prefix
	leaf           string
	used, selected []string // ports
}

// differencesAt returns the entries of the FIB of a switch that differ from the RIB. They are compared again if its tables changed.
func (w *Watcher) differencesAt(m *Moment, sw string) []difference {
	r := m.Switches[sw]
	if c, known := w.compared[sw]; known && r.TableVersion != 0 && c.version == r.TableVersion && c.graph == m.Graph {
		return c.different
	}
	var out []difference
	for prefix, selected := range r.RIB {
		if samePorts(r.FIB[prefix], selected) {
			continue
		}
		leaf := m.leafOf(prefix)
		if leaf == "" {
			leaf = prefix.String()
		}
		out = append(out, difference{prefix, leaf, r.FIB[prefix], selected})
	}
	w.compared[sw] = comparedTables{r.TableVersion, m.Graph, out}
	return out
}

// fibMismatches finds entries of FIBs that have differed from the RIB for a while (rule 7). Those of one switch and leaf are one. If
// flows lose packets, entries that differ for less are returned as well, and may hold.
func (w *Watcher) fibMismatches(m *Moment, losing bool) []Finding {
	found, first := map[string]*Finding{}, map[*Finding]netip.Prefix{}
	still := map[mismatch]bool{}
	for _, name := range sortedKeys(m.Switches) {
		r := m.Switches[name]
		if r.FIB == nil || r.RIB == nil {
			delete(w.compared, name)
			continue
		}
		for _, d := range w.differencesAt(m, name) {
			k := mismatch{name, d.prefix}
			still[k] = true
			since, known := w.mismatches[k]
			if !known {
				w.mismatches[k], since = r.At, r.At
			}
			// The daemon may have selected something else meanwhile.
			sure := m.Now.Sub(since) >= lossyMismatchTime && (r.RIBAt.IsZero() || r.RIBAt.After(since))
			if !sure && (!losing || len(found) >= mostMayHold || m.Now.Sub(since) > settleTime) {
				continue
			}
			f := found[name+" "+d.leaf]
			if f == nil {
				f = w.mismatchAt(name, &d, since)
				found[name+" "+d.leaf] = f
			}
			if sure {
				f.Phase = Holds
			}
			if since.Before(f.Since) {
				f.Since = since
			}
			if before, said := first[f]; said && before.Compare(d.prefix) < 0 {
				continue
			}
			first[f] = d.prefix
			f.Text = "The kernel sends " + d.prefix.String() + " " + byPorts(d.used) + ", while the routing daemon selected " + strings.TrimPrefix(byPorts(d.selected), "by ") + "."
		}
	}
	for k := range w.mismatches {
		if !still[k] {
			delete(w.mismatches, k)
		}
	}
	for name := range w.compared {
		if m.Switches[name] == nil {
			delete(w.compared, name)
		}
	}
	var out []Finding
	for _, k := range sortedKeys(found) {
		f := found[k]
		if len(f.Lost) == 0 && m.Now.Sub(f.Since) < mismatchTime {
			f.Phase = MayHold // a difference that loses packets counts sooner
		}
		out = append(out, *f)
	}
	return out
}

// mismatchAt returns the finding on a prefix at a switch, without its text.
func (w *Watcher) mismatchAt(sw string, d *difference, since time.Time) *Finding {
	f := &Finding{Element: fabric.Element{ID: sw, Kind: fabric.KindSwitch}, Kind: FIBMismatch, Phase: MayHold, Prefix: d.leaf, Since: since, Confidence: 0.999, Claimed: true, Reported: true,
		Used: len(d.used), Expected: len(d.selected)}
	f.Explained = w.usage.flowsWhere(func(r *record) bool {
		return r.leaf == d.leaf && crosses(r.path, sw) || r.leaf == d.leaf && crosses(r.before, sw)
	})
	f.Lost = w.lossyAmong(f.Explained)
	return f
}

func byPorts(ports []string) string {
	if len(ports) == 0 {
		return "nowhere"
	}
	return "by " + strings.Join(slices.Sorted(slices.Values(ports)), ", ")
}

func samePorts(a, b []string) bool {
	return slices.Equal(a, b) || slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// sessionCounts is what the counters of a port's sessions were, and when they changed.
type sessionCounts struct {
	established, downs uint64
	hasBGP, hasBFD     bool
	bgpUp, bfdUp       bool
	bgpCycle, bfdCycle int // the last cycles with a report that has such a session
	resets, lapses     []time.Time
	downSince          time.Time
}

// followSessions takes the counters of sessions.
func (w *Watcher) followSessions(m *Moment) {
	for name, r := range m.Switches {
		for _, s := range r.Sessions {
			c := w.sessionsAt(name + ":" + s.Port)
			if s.Protocol == "bfd" {
				c.lapses = countEvents(c.lapses, c.hasBFD, c.downs, s.Downs, m.Now)
				c.hasBFD, c.downs, c.bfdUp, c.bfdCycle = true, s.Downs, s.Up, w.cycles
				continue
			}
			c.resets = countEvents(c.resets, c.hasBGP, c.established, s.Established, m.Now)
			c.hasBGP, c.established, c.bgpUp, c.bgpCycle = true, s.Established, s.Up, w.cycles
			switch {
			case s.Up:
				c.downSince = time.Time{}
			case c.downSince.IsZero():
				c.downSince = m.Now
			}
		}
	}
}

func (w *Watcher) sessionsAt(port string) *sessionCounts {
	c := w.sessions[port]
	if c == nil {
		c = &sessionCounts{}
		w.sessions[port] = c
	}
	return c
}

// sameEvent is the time within which a session that goes and comes again does so for one reason: two ends that connect at once close one of
// their connections.
const sameEvent = 3 * time.Second

// countEvents adds the moment at which a counter grew, and drops those of before flapSpan.
func countEvents(events []time.Time, known bool, was, is uint64, now time.Time) []time.Time {
	events = slices.DeleteFunc(events, func(t time.Time) bool { return now.Sub(t) > flapSpan })
	if last := len(events) - 1; known && is > was && len(events) < 64 && (last < 0 || now.Sub(events[last]) > sameEvent) {
		events = append(events, now)
	}
	return events
}
