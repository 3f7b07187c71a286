package routing

import (
	"cmp"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// portID numbers a direction of a link between switches.
type portID int32

// record is what is remembered of a directed flow.
type record struct {
	flow fabric.Flow
	// path is the last valid path, and before the one that it replaced. valid means that it is confirmed now.
	path, before fabric.Path
	ports        []portID
	changes      []pathChange // the latest, oldest first
	leaf         string
	valid        bool
	seen         time.Time
	lossy        bool
	healthy      bool
	losses       []*episode // of the probe flow lately, oldest first
}

// pathChange is when another path of a flow was learnt, and the ports of the one before.
type pathChange struct {
	at    time.Time
	ports []portID
}

// mostChanges bounds the changes of a flow's path that are remembered: routes that move take it over two or three paths.
const mostChanges = 4

// former returns the ports of the path that a flow had before its last one.
func (r *record) former() []portID {
	if n := len(r.changes); n > 0 {
		return r.changes[n-1].ports
	}
	return nil
}

// learntWithin is how long after a flow's path changed that is learnt at the latest, where packets are lost for it.
const learntWithin = 2 * time.Second

// portsBefore returns the ports of the path that a flow had when something began to lose its packets: changes that were learnt a little
// before count as well.
func (r *record) portsBefore(since time.Time) []portID {
	for _, c := range r.changes {
		if !c.at.Before(since.Add(-learntWithin)) {
			return c.ports
		}
	}
	return r.ports
}

// toLeaf counts the flows to a leaf by the ports by which they leave switches.
type toLeaf struct {
	byPort   map[portID]int
	bySwitch map[string]int
}

// port is what is known of a direction of a link between switches.
type port struct {
	fabric.Direction
	// users are flows with a valid path across it, uncertain those whose last path crosses it.
	users, uncertain int
	used             bool // since the analyzer started
	// onward counts the flows that cross it by the ports by which they leave the next switch.
	onward map[portID]int
}

// usage counts which flows use which ports. It follows changes, so that a cycle costs what changes.
type usage struct {
	numbers map[fabric.Direction]portID
	ports   []port
	records map[fabric.Flow]*record
	leaves  map[string]*toLeaf
}

func newUsage() *usage {
	return &usage{numbers: map[fabric.Direction]portID{}, records: map[fabric.Flow]*record{}, leaves: map[string]*toLeaf{}}
}

func (u *usage) numberOf(d fabric.Direction) portID {
	n, ok := u.numbers[d]
	if !ok {
		n = portID(len(u.ports)) //nolint:gosec // directions of a fabric
		u.numbers[d] = n
		u.ports = append(u.ports, port{Direction: d, onward: map[portID]int{}})
	}
	return n
}

// directionsOf returns the directions of a link that flows crossed.
func (u *usage) directionsOf(link string) (out []portID) {
	a, b, ok := fabric.SplitLink(link)
	if !ok {
		return nil
	}
	for _, d := range [2]fabric.Direction{{From: a, To: b}, {From: b, To: a}} {
		if n, known := u.numbers[d]; known {
			out = append(out, n)
		}
	}
	return out
}

// portsOf returns the directions of links between switches that a path crosses.
func (u *usage) portsOf(p fabric.Path) []portID {
	var out []portID
	for i := 1; i < len(p); i++ {
		from, to := p[i-1].Switch+":"+p[i-1].Out, p[i].Switch+":"+p[i].In
		out = append(out, u.numberOf(fabric.Direction{From: from, To: to}))
	}
	return out
}

// follow takes what a cycle knows of a flow.
func (u *usage) follow(f *Flow, now time.Time) *record {
	r := u.records[f.Flow]
	if r == nil {
		r = &record{flow: f.Flow}
		u.records[f.Flow] = r
	}
	r.seen, r.lossy, r.healthy = now, f.Lossy, f.Healthy
	known := len(f.Path) > 0 && f.Valid
	same := known && len(r.path) == len(f.Path) && (&r.path[0] == &f.Path[0] || slices.Equal(r.path, f.Path))
	if same && r.valid || !known && !r.valid {
		return r
	}
	u.count(r, -1)
	switch {
	case !known:
		r.valid = false
	case same:
		r.valid = true
	default:
		if r.path != nil {
			r.before = r.path
			r.changes = append(r.changes[max(0, len(r.changes)+1-mostChanges):], pathChange{now, r.ports})
		}
		r.path, r.ports, r.leaf, r.valid = f.Path, u.portsOf(f.Path), f.Path[len(f.Path)-1].Switch, true
	}
	u.count(r, 1)
	return r
}

// count adds a flow to what it uses, or takes it off.
func (u *usage) count(r *record, by int) {
	if !r.valid {
		for _, p := range r.ports {
			u.ports[p].uncertain += by
		}
		return
	}
	to := u.leaves[r.leaf]
	if to == nil {
		to = &toLeaf{byPort: map[portID]int{}, bySwitch: map[string]int{}}
		u.leaves[r.leaf] = to
	}
	for i, n := range r.ports {
		p := &u.ports[n]
		p.users += by
		p.used = true
		addTo(to.byPort, n, by)
		addTo(to.bySwitch, fabric.OwnerOf(p.From), by)
		if i > 0 {
			addTo(u.ports[r.ports[i-1]].onward, n, by)
		}
	}
}

func addTo[K comparable](m map[K]int, k K, by int) {
	if m[k] += by; m[k] == 0 {
		delete(m, k)
	}
}

// forgetUnseen drops flows that were not seen for long.
func (u *usage) forgetUnseen(now time.Time) {
	for f, r := range u.records {
		if now.Sub(r.seen) > forgetAfter {
			u.count(r, -1)
			delete(u.records, f)
		}
	}
}

// usersOf returns the number of flows that cross a direction of a link.
func (u *usage) usersOf(d fabric.Direction) int {
	if n, ok := u.numbers[d]; ok {
		return u.ports[n].users
	}
	return 0
}

// works reports whether a link works: flows cross it, in either direction, and it is not known to be down (rule 1).
func (u *usage) works(m *Moment, d fabric.Direction) bool {
	return u.usersOf(d)+u.usersOf(d.Reverse()) > 0 && !m.linkIsDown(d)
}

// distances keeps the distances of switches to leaves, for one graph.
type distances struct {
	graph *fabric.Graph
	to    map[string]map[string]int
}

func (c *distances) of(g *fabric.Graph, leaf string) map[string]int {
	if c.graph != g {
		c.graph, c.to = g, map[string]map[string]int{}
	}
	d := c.to[leaf]
	if d == nil {
		d = g.SwitchDistances(leaf)
		c.to[leaf] = d
	}
	return d
}

// flowsWhere returns the flows with a valid path for which keep returns true, sorted, mostFlows at most.
func (u *usage) flowsWhere(keep func(*record) bool) (out []fabric.Flow) {
	for _, r := range u.records {
		if keep(r) {
			out = append(out, r.flow)
		}
	}
	slices.SortFunc(out, compareFlows)
	return out
}

func compareFlows(a, b fabric.Flow) int {
	return cmp.Or(cmp.Compare(a.Src, b.Src), cmp.Compare(a.Dst, b.Dst), cmp.Compare(a.Number, b.Number), cmp.Compare(boolInt(a.Reply), boolInt(b.Reply)))
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
