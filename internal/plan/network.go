package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Network is a topology with the capacities of its links, by numbers. It is used by one goroutine at a time.
type Network struct {
	Graph    *fabric.Graph
	Goodput  float64
	links    []direction // each link has two, one behind the other
	byEnd    map[string]int32
	byPort   map[portKey]int32
	units    map[string]*unit // NICs and bonds, by identifier
	unitOf   map[string]*unit // the bond of a member, or the NIC itself
	excluded []bool           // by direction
	reasons  []Exclusion
	// switches has the numbers of switches, to is the switch that each direction leads to, or -1, and out lists the directions from each
	// switch to others.
	switches map[string]int32
	to       []int32
	out      [][]int32
	// shortestOf holds the paths between pairs of leaves, as far as they were needed.
	shortestOf map[[2]int32]*pathList
}

// pathList holds the links of shortest paths between two switches. whole is false if there are more.
type pathList struct {
	paths [][]int32
	whole bool
}

// direction is one way through a link.
type direction struct {
	from, to string
	name     string  // from->to
	capacity float64 // Gb/s of payload
}

type portKey struct{ sw, port string }

// unit is what a queue pair is opened on: a NIC, or a bond with its members.
type unit struct {
	id      string
	members []string
	ends    []unitEnd // of the members
	bond    bool
}

// unitEnd is where a member of a unit is connected.
type unitEnd struct {
	out  int32 // the direction of its link out of it, or -1
	leaf int32 // the switch there, or -1
	side string
}

// NewNetwork returns the network of a topology. It fails if a link has no speed.
func NewNetwork(g *fabric.Graph, goodput float64) (*Network, error) {
	if !(goodput > 0 && goodput <= 1) {
		return nil, fmt.Errorf("goodput ratio %v: a number above 0, up to 1, is expected", goodput)
	}
	n := &Network{Graph: g, Goodput: goodput, byEnd: map[string]int32{}, byPort: map[portKey]int32{}, units: map[string]*unit{}, unitOf: map[string]*unit{}, switches: map[string]int32{}, shortestOf: map[[2]int32]*pathList{}}
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		if l.SpeedGbps <= 0 {
			return nil, fmt.Errorf("link %s has no speed_gbps: the planner needs the speed of every link", l.ID())
		}
		for _, d := range [2]direction{{l.A, l.B, l.A + "->" + l.B, l.SpeedGbps * goodput}, {l.B, l.A, l.B + "->" + l.A, l.SpeedGbps * goodput}} {
			at := int32(len(n.links))
			n.byEnd[d.from] = at
			if sw, port, ok := fabric.SplitPort(d.from); ok {
				n.byPort[portKey{sw, port}] = at
			}
			n.links = append(n.links, d)
		}
	}
	for i := range g.Topo.Nodes {
		n.addUnits(&g.Topo.Nodes[i])
	}
	n.excluded = make([]bool, len(n.links))
	n.numberSwitches()
	for _, u := range n.units {
		for _, m := range u.members {
			end := unitEnd{out: -1, leaf: n.leafOf(m), side: n.sideOf(m)}
			if l, linked := n.byEnd[m]; linked {
				end.out = l
			}
			u.ends = append(u.ends, end)
		}
	}
	return n, nil
}

// numberSwitches fills in which switches directions lead from and to.
func (n *Network) numberSwitches() {
	for i := range n.Graph.Topo.Switches {
		n.switches[n.Graph.Topo.Switches[i].Name] = int32(i)
	}
	n.to, n.out = make([]int32, len(n.links)), make([][]int32, len(n.switches))
	for l := range n.links {
		n.to[l] = n.switchOf(n.links[l].to)
		if from := n.switchOf(n.links[l].from); from >= 0 && n.to[l] >= 0 {
			n.out[from] = append(n.out[from], int32(l))
		}
	}
}

// switchOf returns the number of the switch of a port, or -1.
func (n *Network) switchOf(end string) int32 {
	if sw, _, ok := fabric.SplitPort(end); ok {
		if i, known := n.switches[sw]; known {
			return i
		}
	}
	return -1
}

// leafOf returns the number of the switch that a NIC is connected to, or -1.
func (n *Network) leafOf(nic string) int32 {
	if l, linked := n.byEnd[nic]; linked {
		return n.to[l]
	}
	return -1
}

// distances returns the number of links from every switch to one, without some of the links, or -1 where there is no way.
func (n *Network) distances(goal int32, without []bool) []int32 {
	d := make([]int32, len(n.out))
	for i := range d {
		d[i] = -1
	}
	d[goal] = 0
	for queue := []int32{goal}; len(queue) > 0; queue = queue[1:] {
		for _, l := range n.out[queue[0]] {
			back := l ^ 1 // the other direction of the link
			if from := n.to[l]; d[from] < 0 && (without == nil || !without[back]) {
				d[from] = d[queue[0]] + 1
				queue = append(queue, from)
			}
		}
	}
	return d
}

// shortestBetween returns the shortest paths between two switches, at most maxPaths.
func (n *Network) shortestBetween(from, to int32) *pathList {
	key := [2]int32{from, to}
	list := n.shortestOf[key]
	if list != nil {
		return list
	}
	list = &pathList{whole: true}
	n.shortestOf[key] = list
	dist := n.distances(to, nil)
	var path []int32
	var walk func(sw int32)
	walk = func(sw int32) {
		if sw == to {
			if list.whole = len(list.paths) < maxPaths; list.whole {
				list.paths = append(list.paths, append([]int32{}, path...))
			}
			return
		}
		for _, l := range n.out[sw] {
			if next := n.to[l]; list.whole && dist[next] == dist[sw]-1 && dist[next] >= 0 {
				path = append(path, l)
				walk(next)
				path = path[:len(path)-1]
			}
		}
	}
	if dist[from] >= 0 {
		walk(from)
	}
	return list
}

// addUnits adds the bonds of a node, and its NICs that belong to none.
func (n *Network) addUnits(node *fabric.Node) {
	for _, b := range node.Bonds {
		u := &unit{id: node.Name + "/" + b.Name, bond: true}
		for _, m := range b.Members {
			u.members = append(u.members, node.Name+"/"+m)
			n.unitOf[node.Name+"/"+m] = u
		}
		n.units[u.id] = u
	}
	for _, nic := range node.NICs {
		if n.unitOf[nic.ID()] == nil {
			u := &unit{id: nic.ID(), members: []string{nic.ID()}}
			n.units[u.id], n.unitOf[nic.ID()] = u, u
		}
	}
}

// nodeUnits returns the units of a node that have a link, in the order of its bonds and NICs.
func (n *Network) nodeUnits(name string) (out []*unit) {
	node := n.Graph.Node(name)
	for _, b := range node.Bonds {
		out = append(out, n.units[name+"/"+b.Name])
	}
	for _, nic := range node.NICs {
		if u := n.unitOf[nic.ID()]; !u.bond && n.Graph.LinkAt(nic.ID()) != nil {
			out = append(out, u)
		}
	}
	return out
}

// sideOf returns the side of a NIC: its key side or, in a bond, its place there. It is "" where it has none.
func (n *Network) sideOf(nic string) string {
	if x := n.Graph.NIC(nic); x != nil && x.Side != "" {
		return x.Side
	}
	if u := n.unitOf[nic]; u != nil && u.bond {
		return fmt.Sprint("#", slices.Index(u.members, nic))
	}
	return ""
}

// sameSide reports whether packets from one NIC to another stay on their side.
func (n *Network) sameSide(src, dst string) bool {
	a, b := n.sideOf(src), n.sideOf(dst)
	return a == b || a == "" || b == ""
}

// mayCarry reports whether packets from one end to another stay on their side and may cross both links.
func (n *Network) mayCarry(from, to *unitEnd) bool {
	return from.leaf >= 0 && to.leaf >= 0 && (from.side == to.side || from.side == "" || to.side == "") && !n.excluded[from.out] && !n.excluded[to.out^1]
}

// Exclude leaves an element out: a switch, a node, a NIC, a port (packets out of it), a link, or a direction FROM->TO.
func (n *Network) Exclude(element, reason string) error {
	n.reasons = append(n.reasons, Exclusion{Element: element, Reason: reason})
	if strings.Contains(element, "->") {
		d, err := fabric.ParseDirection(element)
		if at, ok := n.byEnd[d.From]; err != nil || !ok || n.links[at].to != d.To {
			return fmt.Errorf("%q: no such direction of a link is in the topology", truncate(element))
		}
		n.excluded[n.byEnd[d.From]] = true
		return nil
	}
	if err := n.Graph.CheckElement(element); err != nil {
		return err
	}
	kind := fabric.KindLink
	switch {
	case n.Graph.Switch(element) != nil:
		kind = fabric.KindSwitch
	case n.Graph.Node(element) != nil:
		kind = fabric.KindHost
	case strings.Contains(element, "--"):
	case fabric.IsNIC(element):
		kind = fabric.KindNIC
	default:
		kind = fabric.KindPort
	}
	n.excludeElement(fabric.Element{ID: element, Kind: kind})
	return nil
}

// ExcludeVerdict leaves the element of an open verdict out, a link in both directions. A switch whose routing is not as planned stays in
// unless packets are lost there, since no part of it is at fault.
func (n *Network) ExcludeVerdict(v *fabric.Verdict) {
	if v.Scenario.IsRouting() && v.Kind == fabric.KindSwitch && v.Severity != fabric.SeverityCritical {
		return
	}
	n.reasons = append(n.reasons, Exclusion{Element: v.Element.ID, Reason: "verdict " + v.ID})
	n.excludeElement(v.Element)
}

// ExcludeWhere leaves the directions of links out of which touches reports true. The plan lists them as x.
func (n *Network) ExcludeWhere(x Exclusion, touches func(fabric.Direction) bool) {
	n.reasons = append(n.reasons, x)
	for i := range n.links {
		n.excluded[i] = n.excluded[i] || touches(fabric.Direction{From: n.links[i].from, To: n.links[i].to})
	}
}

func (n *Network) excludeElement(e fabric.Element) {
	for _, d := range e.Footprint(n.Graph) {
		if at, ok := n.byEnd[d.From]; ok {
			n.excluded[at] = true
		}
	}
}

// follow returns the directions of links that a path crosses from src to dst. It returns false if the topology does not
// have the path.
func (n *Network) follow(buf []int32, src, dst string, p fabric.Path) ([]int32, bool) {
	at, ok := n.byEnd[src]
	if !ok {
		return buf, false
	}
	for _, h := range p {
		if to := n.links[at].to; len(to) != len(h.Switch)+1+len(h.In) || to[:len(h.Switch)] != h.Switch || to[len(h.Switch)] != ':' || to[len(h.Switch)+1:] != h.In {
			return buf, false
		}
		buf = append(buf, at)
		if at, ok = n.byPort[portKey{h.Switch, h.Out}]; !ok {
			return buf, false
		}
	}
	return append(buf, at), n.links[at].to == dst
}

// linkNames returns the names of directions.
func (n *Network) linkNames(links []int32) []string {
	out := make([]string, len(links))
	for i, l := range links {
		out[i] = n.links[l].name
	}
	return out
}

// connection is what a job sends from one unit to another.
type connection struct {
	job      int
	src, dst *unit
	qps      int     // 0: the number is chosen
	share    float64 // of the rate of the job
}

// connections returns the connections of jobs. An error names the job and the field.
func (n *Network) connections(jobs []Job) (out []connection, err error) {
	for i := range jobs {
		j := &jobs[i]
		before := len(out)
		if out, err = n.jobConnections(out, i, j); err != nil {
			return nil, fmt.Errorf("job %q: %w", j.Name(), err)
		}
		if len(out) == before {
			return nil, fmt.Errorf("job %q: nodes: at least two nodes with NICs, or flows, are expected", j.Name())
		}
	}
	return out, nil
}

func (n *Network) jobConnections(out []connection, number int, j *Job) ([]connection, error) {
	for i, f := range j.Flows {
		src, dst := n.units[f.Src], n.units[f.Dst]
		for _, end := range []struct {
			key, name string
			u         *unit
		}{{"src", f.Src, src}, {"dst", f.Dst, dst}} {
			if end.u == nil {
				return nil, fmt.Errorf("flows[%d].%s: the topology has no NIC or bond %q (the members of a bond are not named)", i, end.key, end.name)
			}
		}
		q := f.QPs
		if q == 0 {
			q = j.QPs
		}
		out = append(out, connection{number, src, dst, q, 1})
	}
	if len(j.Flows) > 0 {
		return out, nil
	}
	groups, err := n.jobUnits(j)
	if err != nil {
		return nil, err
	}
	for a := range groups {
		for step := 1; step < len(groups); step++ {
			b := (a + step) % len(groups)
			share := 1.0
			if j.Collective == AllToAll {
				share = 1 / float64(len(groups)-1)
			} else if step > 1 {
				break
			}
			for i := range groups[a] {
				out = append(out, connection{number, groups[a][i], groups[b][i], j.QPs, share})
			}
		}
	}
	return out, nil
}

// jobUnits returns the units of each node of a job, in its order, as many on each node.
func (n *Network) jobUnits(j *Job) (groups [][]*unit, err error) {
	order := j.Order
	if len(order) == 0 {
		order = slices.Clone(j.Nodes)
		for _, nic := range j.NICs {
			if node := fabric.OwnerOf(nic); !slices.Contains(order, node) {
				order = append(order, node)
			}
		}
	}
	seen := map[string]bool{}
	for _, name := range order {
		if n.Graph.Node(name) == nil {
			return nil, fmt.Errorf("nodes: the topology has no node %q", truncate(name))
		}
		if seen[name] {
			return nil, fmt.Errorf("order: node %q is given twice", name)
		}
		seen[name] = true
		units := n.nodeUnits(name)
		if len(j.NICs) > 0 && !slices.Contains(j.Nodes, name) {
			units = slices.DeleteFunc(units, func(u *unit) bool {
				return !slices.Contains(j.NICs, u.id) && !slices.ContainsFunc(u.members, func(m string) bool { return slices.Contains(j.NICs, m) })
			})
		}
		if len(groups) > 0 && len(units) != len(groups[0]) {
			return nil, fmt.Errorf("nodes: %q has %d NICs or bonds and %q has %d: as many are expected, or flows", order[0], len(groups[0]), name, len(units))
		}
		groups = append(groups, units)
	}
	return groups, nil
}
