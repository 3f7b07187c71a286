package plancheck

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// hosts is the part of a topology that says which NICs form bonds, and on which sides they are.
type hosts struct {
	Nodes []struct {
		Name string `yaml:"name"`
		NICs []struct {
			Device string `yaml:"device"`
			Side   string `yaml:"side"`
		} `yaml:"nics"`
		Bonds []struct {
			Name    string   `yaml:"name"`
			Members []string `yaml:"members"`
		} `yaml:"bonds"`
	} `yaml:"nodes"`
}

// graph is a topology as it is needed for the fractional optimum.
type graph struct {
	capacity map[string]float64  // of directions, from->to, without those that are excluded
	out      map[string][]string // directions out of each owner of ports, also those that are excluded
	uplink   map[string]string   // of a NIC: the direction out of it
	side     map[string]string
	members  map[string][]string
	unit     map[string]string // of a NIC: its bond or itself
}

func ownerOf(end string) string { return end[:strings.IndexAny(end, "/:")] }

func isNIC(end string) bool { return strings.Contains(end, "/") }

// reverse returns the other direction of a link.
func reverse(direction string) string {
	from, to, _ := strings.Cut(direction, "->")
	return to + "->" + from
}

// newGraph returns the graph of a topology, of which some directions carry nothing.
func newGraph(file []byte, goodput float64, excluded func(direction string) bool) (*graph, error) {
	var t topology
	var h hosts
	if err := errors.Join(yaml.Unmarshal(file, &t), yaml.Unmarshal(file, &h)); err != nil {
		return nil, err
	}
	g := &graph{capacity: map[string]float64{}, out: map[string][]string{}, uplink: map[string]string{}, side: map[string]string{}, members: map[string][]string{}, unit: map[string]string{}}
	for _, l := range t.Links {
		for _, d := range [][2]string{{l.A, l.B}, {l.B, l.A}} {
			name := d[0] + "->" + d[1]
			g.out[ownerOf(d[0])] = append(g.out[ownerOf(d[0])], name)
			if isNIC(d[0]) {
				g.uplink[d[0]] = name
			}
			if !excluded(name) {
				g.capacity[name] = l.Speed * goodput
			}
		}
	}
	for _, n := range h.Nodes {
		for _, nic := range n.NICs {
			id := n.Name + "/" + nic.Device
			g.side[id], g.unit[id], g.members[id] = nic.Side, id, []string{id}
		}
		for _, b := range n.Bonds {
			for _, m := range b.Members {
				g.unit[n.Name+"/"+m] = n.Name + "/" + b.Name
				g.members[n.Name+"/"+b.Name] = append(g.members[n.Name+"/"+b.Name], n.Name+"/"+m)
			}
		}
	}
	return g, nil
}

// paths returns the shortest paths between two NICs that use nothing which is excluded. It searches all walks by their lengths, breadth first.
func (g *graph) paths(src, dst string) (out [][]string) {
	var walks [][]string
	for _, d := range g.out[ownerOf(src)] {
		if strings.HasPrefix(d, src+"->") {
			walks = append(walks, []string{d})
		}
	}
	for len(walks) > 0 && len(out) == 0 && len(walks[0]) < 8 {
		var longer [][]string
		for _, w := range walks {
			_, end, _ := strings.Cut(w[len(w)-1], "->")
			if end == dst {
				out = append(out, w)
				continue
			}
			if isNIC(end) {
				continue
			}
			for _, d := range g.out[ownerOf(end)] {
				from, to, _ := strings.Cut(d, "->")
				if from != end && (to == dst || !isNIC(to)) {
					longer = append(longer, append(slices.Clone(w), d))
				}
			}
		}
		walks = longer
	}
	return slices.DeleteFunc(out, func(p []string) bool { return !g.carries(p) })
}

// carries reports whether no direction of a path is excluded.
func (g *graph) carries(path []string) bool {
	return !slices.ContainsFunc(path, func(d string) bool { return g.capacity[d] == 0 })
}

// connection is what a job sends from one NIC or bond to another, per unit of its rate.
type connection struct {
	job      int
	share    float64
	src, dst string
}

// sent is what the assignments of a plan say of its jobs.
type sent struct {
	names  []string
	limits []float64 // of the rates of the jobs
	conns  []connection
	g      *graph
}

// readSent returns the connections of a plan that have queue pairs with a path.
func readSent(topologyFile, plan []byte, excluded func(direction string) bool) (*sent, error) {
	var p struct {
		planFile
		Assignments []struct {
			Job    string  `json:"job"`
			Src    string  `json:"src"`
			Dst    string  `json:"dst"`
			Weight float64 `json:"weight"`
		} `json:"assignments"`
	}
	if err := json.Unmarshal(plan, &p); err != nil {
		return nil, err
	}
	g, err := newGraph(topologyFile, p.Model.Goodput, excluded)
	if err != nil {
		return nil, err
	}
	s := &sent{g: g}
	number := map[string]int{}
	for _, j := range p.Jobs {
		number[j.Job] = len(s.names)
		limit := math.Inf(1)
		if j.Demand != nil {
			limit = *j.Demand
		}
		s.names, s.limits = append(s.names, j.Job), append(s.limits, limit)
	}
	type ends struct{ job, src, dst string }
	at := map[ends]int{}
	for _, a := range p.Assignments {
		key := ends{a.Job, g.unit[a.Src], g.unit[a.Dst]}
		k, known := at[key]
		if !known {
			k = len(s.conns)
			at[key] = k
			s.conns = append(s.conns, connection{job: number[a.Job], src: key.src, dst: key.dst})
		}
		s.conns[k].share += a.Weight
	}
	return s, nil
}

// pairs calls each with the NICs of a connection that are on one side.
func (s *sent) pairs(c *connection, each func(src, dst string)) {
	for _, src := range s.g.members[c.src] {
		for _, dst := range s.g.members[c.dst] {
			if s.g.side[src] == s.g.side[dst] {
				each(src, dst)
			}
		}
	}
}

// byName returns the rates of jobs that have queue pairs with a path.
func (s *sent) byName(rates []float64) map[string]float64 {
	out := map[string]float64{}
	for i := range s.conns {
		j := s.conns[i].job
		out[s.names[j]] = rates[j]
	}
	return out
}

// IdealRates returns the fractional optimum of the jobs of a plan, of which all queue pairs are placed.
func IdealRates(topologyFile, plan []byte, excluded func(direction string) bool, solver Solver) (map[string]float64, error) {
	s, err := readSent(topologyFile, plan, excluded)
	if err != nil {
		return nil, err
	}
	m := newModel(s)
	if solver.aggregates() {
		s.aggregatedFlows(m)
	} else {
		s.flowsOnPaths(m, func(src, dst string) [][]string { return s.g.paths(src, dst) })
	}
	rates, err := m.rates(solver)
	if err != nil {
		return nil, err
	}
	return s.byName(rates), nil
}

// AttainableRates returns the fractional optimum over the paths of a catalogue, of those jobs that have queue pairs with a path.
func AttainableRates(topologyFile, plan, catalogue []byte, excluded func(direction string) bool, solver Solver) (map[string]float64, error) {
	s, err := readSent(topologyFile, plan, excluded)
	if err != nil {
		return nil, err
	}
	known, err := s.catalogued(catalogue)
	if err != nil {
		return nil, err
	}
	m := newModel(s)
	s.flowsOnPaths(m, func(src, dst string) [][]string { return known[[2]string{src, dst}] })
	rates, err := m.rates(solver)
	if err != nil {
		return nil, err
	}
	return s.byName(rates), nil
}

// catalogued returns the different paths of a catalogue's lines, by the NICs at their ends.
func (s *sent) catalogued(catalogue []byte) (map[[2]string][][]string, error) {
	type hop struct{ Switch, In, Out string }
	type line struct {
		Src, Dst, State string
		DPort, SPort    int
		Path            []hop
	}
	type tuple struct {
		src, dst string // a NIC, and a NIC or bond
		sport    int
	}
	last := map[tuple]line{}
	var order []tuple
	for text := range strings.Lines(string(catalogue)) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return nil, err
		}
		if l.DPort != 4791 || l.SPort < 0xC000 {
			continue
		}
		key := tuple{l.Src, s.g.unit[l.Dst], l.SPort}
		if _, known := last[key]; !known {
			order = append(order, key)
		}
		last[key] = l
	}
	out := map[[2]string][][]string{}
	for _, key := range order {
		l := last[key]
		ends := [2]string{l.Src, l.Dst}
		from := l.Src
		var path []string
		for _, h := range l.Path {
			path = append(path, from+"->"+h.Switch+":"+h.In)
			from = h.Switch + ":" + h.Out
		}
		path = append(path, from+"->"+l.Dst)
		same := func(p []string) bool { return slices.Equal(p, path) }
		if l.State == "valid" && s.g.carries(path) && !slices.ContainsFunc(out[ends], same) {
			out[ends] = append(out[ends], path)
		}
	}
	return out, nil
}

// flowsOnPaths adds a variable for each path of each connection.
func (s *sent) flowsOnPaths(m *model, paths func(src, dst string) [][]string) {
	for k := range s.conns {
		s.pairs(&s.conns[k], func(src, dst string) {
			for _, p := range paths(src, dst) {
				flow := m.column(entry{k, -1})
				for _, d := range p {
					m.add(flow, m.capacityRow(d, s.g.capacity[d]), 1)
				}
			}
		})
	}
}

// aggregatedFlows adds a variable for each pair of NICs of each connection, and one for each direction between switches on shortest paths to a
// leaf. All connections to NICs of a leaf have the latter in common: where packets for one leaf share a switch, any of them may take any way on.
func (s *sent) aggregatedFlows(m *model) {
	entries := map[string]map[string]bool{} // leaves at which packets for a leaf enter
	for k := range s.conns {
		s.pairs(&s.conns[k], func(src, dst string) {
			first, last := s.g.uplink[src], reverse(s.g.uplink[dst])
			if !s.g.carries([]string{first, last}) {
				return
			}
			flow := m.column(entry{k, -1}, entry{m.capacityRow(first, s.g.capacity[first]), 1}, entry{m.capacityRow(last, s.g.capacity[last]), 1})
			_, in, _ := strings.Cut(first, "->")
			from, leaf := ownerOf(in), ownerOf(last)
			if from == leaf {
				return
			}
			if entries[leaf] == nil {
				entries[leaf] = map[string]bool{}
			}
			entries[leaf][from] = true
			m.add(flow, m.balanceRow(leaf, from), 1)
		})
	}
	for leaf, from := range entries {
		s.waysTo(m, leaf, from)
	}
}

// waysTo adds the variables of the directions on shortest paths from some switches to a leaf.
func (s *sent) waysTo(m *model, leaf string, from map[string]bool) {
	away := map[string]int{leaf: 0} // how far switches are from the leaf
	for next := []string{leaf}; len(next) > 0; next = next[1:] {
		for _, d := range s.g.out[next[0]] {
			_, to, _ := strings.Cut(d, "->")
			if _, known := away[ownerOf(to)]; !known && !isNIC(to) {
				away[ownerOf(to)] = away[next[0]] + 1
				next = append(next, ownerOf(to))
			}
		}
	}
	seen := map[string]bool{}
	var next []string
	for sw := range from {
		next, seen[sw] = append(next, sw), true
	}
	for ; len(next) > 0; next = next[1:] {
		for _, d := range s.g.out[next[0]] {
			_, to, _ := strings.Cut(d, "->")
			sw := ownerOf(to)
			if isNIC(to) || away[sw] != away[next[0]]-1 || s.g.capacity[d] == 0 {
				continue
			}
			flow := m.column(entry{m.capacityRow(d, s.g.capacity[d]), 1}, entry{m.balanceRow(leaf, next[0]), -1})
			if sw == leaf {
				continue
			}
			m.add(flow, m.balanceRow(leaf, sw), 1)
			if !seen[sw] {
				next, seen[sw] = append(next, sw), true
			}
		}
	}
}
