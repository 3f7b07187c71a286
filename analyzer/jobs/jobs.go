// Package jobs holds the placements of jobs, and finds the jobs that cross an element. Rules:
//
//  1. A placement consists of nodes or NICs and a time. Nodes and NICs that the topology does not
//     have are left out and counted. A job without any remaining one is ignored.
//  2. Identifiers distinguish two jobs of one name that run at the same time.
//  3. A job crosses every cable and switch that a shortest path between two of its NICs on
//     different nodes may take, and its own access links. Which of several equal paths its
//     packets take is not known, and not guessed.
//  4. Without a known placement nothing is reported about jobs, since jobs may still run.
//  5. A source that cannot be read changes nothing.
package jobs

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/placement"
)

// Placement represents a job and its nodes or NICs.
type Placement struct {
	Job string `json:"job"`
	// ID is the scheduler's, where it has another than the name.
	ID    string   `json:"id,omitempty"`
	Nodes []string `json:"nodes,omitempty"`
	// NICs are those of a job that does not use all of its nodes'.
	NICs []string `json:"nics,omitempty"`
	// Ranks are where the ranks of the whole job run, by their numbers. It is empty where that is not known.
	Ranks []RankPlace `json:"-"`
	// Declared is the job as a file of our own format has it, with what it sends. It is nil for jobs of other sources.
	Declared *placement.Job `json:"-"`
	// Start is zero where it is not known, End while it is not.
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
}

// RankPlace is where a rank of a job runs.
type RankPlace struct {
	Node string
	NIC  string // empty: not known
	GPU  *int   // number within the node; nil: not known
}

// RunsAt reports whether the job runs at a time.
func (p *Placement) RunsAt(at time.Time) bool {
	return !p.Start.After(at) && (p.End.IsZero() || p.End.After(at))
}

// Hosts returns the different nodes of the job, by the scheduler's names: its nodes, and those of its NICs.
func (p *Placement) Hosts() []string {
	all := slices.Clone(p.Nodes)
	for _, nic := range p.NICs {
		all = append(all, fabric.OwnerOf(nic))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Map holds the placements of a moment on a fabric.
type Map struct {
	g    *fabric.Graph
	jobs map[string]*job
	// onHost lists the jobs of each node, sorted, by the scheduler's name of the node and by that without its domain.
	onHost map[string][]string
	// Unknown is how many nodes and NICs of running jobs the topology does not have.
	Unknown int
}

type job struct {
	Placement
	nics map[string]bool
	// directions are the directed links that it may cross.
	directions map[fabric.Direction]bool
}

// distances are those of switches from leaves, kept while the topology is the same.
type distances map[string]map[string]int

// newMap places jobs on a fabric.
func newMap(g *fabric.Graph, all []Placement, at time.Time, known distances) *Map {
	m := &Map{g: g, jobs: map[string]*job{}}
	names := map[string]int{}
	for i := range all {
		if all[i].RunsAt(at) {
			names[all[i].Job]++
		}
	}
	for i := range all {
		p := all[i]
		if !p.RunsAt(at) {
			continue
		}
		if names[p.Job] > 1 && p.ID != "" {
			p.Job += "." + p.ID
		}
		m.addJob(p, known)
	}
	m.onHost = jobsByHost(m.JobNames(), func(name string) []string {
		p := m.jobs[name].Placement
		return p.Hosts()
	})
	return m
}

// jobsByHost returns the jobs of each node, by the name of the node with and without its domain.
func jobsByHost(names []string, hosts func(job string) []string) map[string][]string {
	out := map[string][]string{}
	for _, name := range names {
		for _, host := range hosts(name) {
			out[host] = append(out[host], name)
			if short, _, ok := strings.Cut(host, "."); ok && !slices.Contains(out[short], name) {
				out[short] = append(out[short], name)
			}
		}
	}
	return out
}

// onlyJobOn returns the only job that is on all of some nodes; empty: there is none, or there are several.
func onlyJobOn(onHost map[string][]string, hosts []string) string {
	if len(hosts) == 0 {
		return ""
	}
	found := ""
	for _, name := range onHost[hosts[0]] {
		if slices.ContainsFunc(hosts[1:], func(h string) bool { return !slices.Contains(onHost[h], name) }) {
			continue
		}
		if found != "" && found != name {
			return ""
		}
		found = name
	}
	return found
}

// JobOn returns the job that runs on all of some nodes; empty: none is known, or several do.
func (m *Map) JobOn(hosts []string) string {
	if m == nil {
		return ""
	}
	return onlyJobOn(m.onHost, hosts)
}

// PlaceOf returns where a rank of a communicator runs that has all ranks of a job, some of which are on some nodes. It is false unless
// one job alone is on all of these nodes, and it has as many ranks.
func (m *Map) PlaceOf(hosts []string, ranks, rank int) (RankPlace, bool) {
	name := m.JobOn(hosts)
	if name == "" || len(m.jobs[name].Ranks) != ranks {
		return RankPlace{}, false
	}
	p := m.jobs[name].Ranks[rank]
	if short, _, ok := strings.Cut(p.Node, "."); ok && len(m.g.EndsOf(p.Node)) == 0 {
		p.Node = short
	}
	return p, true
}

// PlaceOf returns where a rank of a communicator runs that has all ranks of a job: of the one that runs on some nodes at a time, or of
// the one with a name where no nodes are known.
func PlaceOf(placements []Placement, name string, hosts []string, at time.Time, ranks, rank int) (RankPlace, bool) {
	if len(hosts) > 0 {
		name = JobOn(placements, hosts, at)
	}
	var found *Placement
	for i := range placements {
		if p := &placements[i]; p.Job == name && name != "" && p.RunsAt(at) {
			if found != nil {
				return RankPlace{}, false
			}
			found = p
		}
	}
	if found == nil || len(found.Ranks) != ranks {
		return RankPlace{}, false
	}
	return found.Ranks[rank], true
}

// JobOn returns the job of some placements that runs on all of some nodes at a time; empty: none is known, or several do.
func JobOn(placements []Placement, hosts []string, at time.Time) string {
	var running []string
	byName := map[string][]string{}
	for i := range placements {
		if p := &placements[i]; p.RunsAt(at) {
			running = append(running, p.Job)
			byName[p.Job] = append(byName[p.Job], p.Hosts()...)
		}
	}
	slices.Sort(running)
	return onlyJobOn(jobsByHost(slices.Compact(running), func(name string) []string { return byName[name] }), hosts)
}

func (m *Map) addJob(p Placement, known distances) {
	j := m.jobs[p.Job]
	if j == nil {
		j = &job{Placement: p, nics: map[string]bool{}, directions: map[fabric.Direction]bool{}}
	} else {
		j.Ranks = nil // of several jobs of one name
	}
	for _, node := range p.Nodes {
		ends := m.g.EndsOf(node)
		if len(ends) == 0 || m.g.Switch(node) != nil {
			m.Unknown++
			continue
		}
		for _, nic := range ends {
			j.nics[nic] = true
		}
	}
	for _, id := range p.NICs {
		if nic := m.g.NIC(id); nic != nil && m.g.PeerOf(nic.ID()) != "" {
			j.nics[nic.ID()] = true
		} else {
			m.Unknown++
		}
	}
	if len(j.nics) == 0 {
		return
	}
	m.jobs[p.Job] = j
	m.addDirections(j, known)
}

// addDirections finds what a job may cross: its access links, and backwards from each of its leaves
// to each other whatever lies on a shortest way.
func (m *Map) addDirections(j *job, known distances) {
	nodes := map[string]map[string]bool{} // by leaf
	for nic := range j.nics {
		leaf, _ := m.g.LeafOf(nic)
		if leaf == "" {
			continue
		}
		if nodes[leaf] == nil {
			nodes[leaf] = map[string]bool{}
		}
		nodes[leaf][fabric.OwnerOf(nic)] = true
		port := m.g.PeerOf(nic)
		j.directions[fabric.Direction{From: nic, To: port}] = true
		j.directions[fabric.Direction{From: port, To: nic}] = true
	}
	cables := map[string][]cable{}
	for a := range nodes {
		if known[a] == nil {
			known[a] = m.g.SwitchDistances(a)
		}
		seen := map[string]bool{}
		var back []string
		for b := range nodes {
			if _, ok := known[a][b]; ok && a != b && !sameNode(nodes[a], nodes[b]) {
				back, seen[b] = append(back, b), true
			}
		}
		for len(back) > 0 {
			sw := back[0]
			back = back[1:]
			if _, found := cables[sw]; !found {
				cables[sw] = m.cablesTo(sw)
			}
			distance := known[a][sw]
			for _, c := range cables[sw] {
				if d, reached := known[a][c.next]; !reached || d != distance-1 {
					continue
				}
				j.directions[c.direction] = true
				if !seen[c.next] {
					seen[c.next] = true
					back = append(back, c.next)
				}
			}
		}
	}
}

// cable is the way to a switch from the next one.
type cable struct {
	next      string
	direction fabric.Direction
}

// cablesTo returns the cables from other switches to a switch.
func (m *Map) cablesTo(sw string) (out []cable) {
	for _, end := range m.g.EndsOf(sw) {
		peer := m.g.PeerOf(end)
		if next, _, ok := fabric.SplitPort(peer); ok {
			out = append(out, cable{next, fabric.Direction{From: peer, To: end}})
		}
	}
	return out
}

// sameNode reports whether all NICs on two leaves are one node's, which does not send to itself.
func sameNode(a, b map[string]bool) bool {
	return len(a) == 1 && len(b) == 1 && maps.Equal(a, b)
}

// JobNames returns the names of the jobs, sorted, or nil if no placement is known.
func (m *Map) JobNames() []string {
	if m == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(m.jobs))
}

// FindJob returns a job by its name or identifier, under the name it has here.
func (m *Map) FindJob(name string) (Placement, bool) {
	if m == nil {
		return Placement{}, false
	}
	if j := m.jobs[name]; j != nil {
		return j.Placement, true
	}
	for _, n := range m.JobNames() {
		if m.jobs[n].ID == name {
			return m.jobs[n].Placement, true
		}
	}
	return Placement{}, false
}

// NICsOf returns the NICs of a job, sorted.
func (m *Map) NICsOf(name string) []string {
	if j := m.jobs[name]; j != nil {
		return slices.Sorted(maps.Keys(j.nics))
	}
	return nil
}

// HasNIC reports whether a NIC is a job's.
func (m *Map) HasNIC(name, nic string) bool { return m.jobs[name] != nil && m.jobs[name].nics[nic] }

// DirectionsOf returns the directed links that a job may cross.
func (m *Map) DirectionsOf(name string) map[fabric.Direction]bool {
	if j := m.jobs[name]; j != nil {
		return j.directions
	}
	return nil
}

// JobsCrossing returns the jobs that may cross the element of a verdict, sorted, in its direction if it
// has one. A clock affects no job.
func (m *Map) JobsCrossing(v *fabric.Verdict) []string {
	if m == nil || v.Kind == fabric.KindClock {
		return nil
	}
	test := m.crossingTest(v)
	var out []string
	for _, name := range m.JobNames() {
		if test(m.jobs[name]) {
			out = append(out, name)
		}
	}
	return out
}

func (m *Map) crossingTest(v *fabric.Verdict) func(*job) bool {
	var all []fabric.Direction
	d, err := fabric.ParseDirection(v.Direction)
	switch {
	case err == nil && v.Kind != fabric.KindHost:
		all = []fabric.Direction{d}
	case v.Kind == fabric.KindPair:
		way := v.Waypoints()
		from, to := way[0], way[len(way)-1]
		return func(j *job) bool { return m.hasNICOn(j, from) && m.hasNICOn(j, to) }
	case v.Kind == fabric.KindCorridor:
		way := v.Waypoints()
		return func(j *job) bool {
			for i := 1; i < len(way); i++ {
				if !m.crossesBetween(j, way[i-1], way[i]) {
					return false
				}
			}
			return len(way) > 1
		}
	default:
		all = v.Footprint(m.g)
	}
	return func(j *job) bool {
		return slices.ContainsFunc(all, func(d fabric.Direction) bool { return j.directions[d] })
	}
}

// hasNICOn reports whether a job has a NIC on a leaf.
func (m *Map) hasNICOn(j *job, leaf string) bool {
	return slices.ContainsFunc(m.g.EndsOf(leaf), func(end string) bool { return j.nics[m.g.PeerOf(end)] })
}

// crossesBetween reports whether a job may go from one switch to the next.
func (m *Map) crossesBetween(j *job, from, to string) bool {
	return slices.ContainsFunc(m.g.LinksBetween(from, to), func(d fabric.Direction) bool { return j.directions[d] })
}

// Register holds the placements of all sources. A nil Register knows none.
type Register struct {
	graph *fabric.Graph

	mu      sync.Mutex
	sources map[string][]Placement
	known   distances
	lastMap *Map
	until   time.Time // of last: then a job begins or ends
}

// NewRegister returns an empty one for a fabric.
func NewRegister(g *fabric.Graph) *Register {
	return &Register{graph: g, sources: map[string][]Placement{}, known: distances{}}
}

// ReplaceSource replaces the placements of a source.
func (r *Register) ReplaceSource(source string, all []Placement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, known := r.sources[source]; known && reflect.DeepEqual(old, all) {
		return // as most readings of a scheduler
	}
	r.sources[source], r.lastMap = all, nil
}

// MapAt returns the placements of a moment, or nil if none are known.
func (r *Register) MapAt(at time.Time) *Map {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sources) == 0 {
		return nil
	}
	if r.lastMap != nil && at.Before(r.until) {
		return r.lastMap
	}
	var all []Placement
	r.until = at.Add(time.Hour)
	for _, s := range slices.Sorted(maps.Keys(r.sources)) {
		all = append(all, r.sources[s]...)
	}
	slices.SortStableFunc(all, func(a, b Placement) int { return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.ID, b.ID)) })
	for i := range all {
		for _, t := range []time.Time{all[i].Start, all[i].End} {
			if t.After(at) && t.Before(r.until) {
				r.until = t
			}
		}
	}
	r.lastMap = newMap(r.graph, all, at, r.known)
	return r.lastMap
}

// truncateText returns the beginning of a text that may be long.
func truncateText(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
