package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Bounds of the exact search for the fractional optimum: cells of the program, and paths of one pair of NICs.
const (
	maxCells = 2_500_000
	maxPaths = 512
)

// class is some connections of a job that are alike: they start under the same leaves and end under the same ones, and no other
// connection uses their access links. Since they may be exchanged, they have an optimum in which they are treated alike,
// and one commodity stands for all.
type class struct {
	job    int
	count  float64 // of the connections
	share  float64
	routes []route // of the first connection; access links have count times their capacity
}

// route is a path between two NICs: their access links and, between leaves, links that other connections have in common.
type route struct {
	first, last int32
	middle      []int32
}

// links calls each with the links of a route, and with true for access links.
func (r *route) links(each func(l int32, access bool)) {
	each(r.first, true)
	for _, l := range r.middle {
		each(l, false)
	}
	each(r.last, true)
}

// idealRates returns the rates of jobs by the fractional optimum, lexicographic max-min over the shortest paths of the topology that stay
// on their side and avoid what is excluded. exact is false where the fabric is too large: the rates are then those of an even
// split over the paths, which the optimum may exceed.
func (n *Network) idealRates(conns []connection, demand []float64) (rates []float64, exact bool) {
	classes := n.classes(conns)
	load := make([][]jobLoad, len(n.links))
	for _, c := range classes {
		for i := range c.routes {
			w := c.share / float64(len(c.routes))
			c.routes[i].links(func(l int32, access bool) {
				if access {
					load[l] = addLoad(load[l], c.job, w)
				} else {
					load[l] = addLoad(load[l], c.job, w*c.count)
				}
			})
		}
	}
	even, bound := maxMin(n.capacities(), load, demand), n.cutRates(conns, demand)
	if within(even, bound, 1e-9) {
		return bound, true
	}
	if rates, ok := n.solve(classes, demand); ok {
		return rates, true
	}
	if within(even, bound, boundGap) {
		return bound, true
	}
	return even, false
}

// within reports whether no rate is below its bound by more than a share.
func within(rates, bound []float64, share float64) bool {
	for j := range rates {
		if rates[j] < bound[j]*(1-share) {
			return false
		}
	}
	return true
}

// boundGap is how far an even split may be below a bound that no split exceeds, for the bound to count as the optimum.
const boundGap = 0.005

// cut is what connections have to cross: the access links of a NIC or bond, or the links between its leaves and higher switches.
type cut struct {
	of   string // a unit, or leaves
	away bool   // out of it
}

// cutRates returns the max-min rates that the access links and the uplinks of leaves would allow, if nothing else was in the way.
func (n *Network) cutRates(conns []connection, demand []float64) []float64 {
	number := map[cut]int{}
	var capacity []float64
	var load [][]jobLoad
	add := func(key cut, c *connection, size func() float64) {
		at, known := number[key]
		if !known {
			at = len(capacity)
			number[key] = at
			capacity, load = append(capacity, size()), append(load, nil)
		}
		load[at] = addLoad(load[at], c.job, c.share)
	}
	leavesOf := map[*unit][]string{}
	for i := range conns {
		c := &conns[i]
		for _, u := range []*unit{c.src, c.dst} {
			if leavesOf[u] == nil {
				leavesOf[u] = n.leavesOf(u)
			}
		}
		from, to := leavesOf[c.src], leavesOf[c.dst]
		apart := !slices.ContainsFunc(from, func(leaf string) bool { return slices.Contains(to, leaf) })
		for k, u := range []*unit{c.src, c.dst} {
			away := k == 0
			add(cut{u.id, away}, c, func() float64 { return n.widthOf(u.members, away) })
			if leaves := leavesOf[u]; apart {
				add(cut{strings.Join(leaves, " "), away}, c, func() float64 { return n.widthOf(n.upEnds(leaves), away) })
			}
		}
	}
	return maxMin(capacity, load, demand)
}

// leavesOf returns the switches that the members of a unit are connected to.
func (n *Network) leavesOf(u *unit) (out []string) {
	for _, m := range u.members {
		if leaf, _ := n.Graph.LeafOf(m); leaf != "" && !slices.Contains(out, leaf) {
			out = append(out, leaf)
		}
	}
	return out
}

// upEnds returns the ports of switches that face other switches.
func (n *Network) upEnds(switches []string) (out []string) {
	for _, sw := range switches {
		for _, end := range n.Graph.EndsOf(sw) {
			if at, ok := n.byEnd[end]; ok && !fabric.IsNIC(n.links[at].to) {
				out = append(out, end)
			}
		}
	}
	return out
}

// widthOf returns the sum of the capacities of links out of some ends, or into them, without those that are excluded.
func (n *Network) widthOf(ends []string, away bool) (sum float64) {
	for _, end := range ends {
		l, linked := n.byEnd[end]
		if linked && !away {
			l = n.byEnd[n.links[l].to]
		}
		if linked && !n.excluded[l] {
			sum += n.links[l].capacity
		}
	}
	return sum
}

func (n *Network) capacities() []float64 {
	out := make([]float64, len(n.links))
	for i := range n.links {
		out[i] = n.links[i].capacity
	}
	return out
}

// classes returns the commodities of connections.
func (n *Network) classes(conns []connection) []class {
	users := map[string]int{} // connections by access link
	for i := range conns {
		for _, m := range conns[i].src.members {
			users[m]++
		}
		for _, m := range conns[i].dst.members {
			users[">"+m]++
		}
	}
	middle := map[[2]string][][]int32{}
	number := map[string]int{}
	var out []class
	for i := range conns {
		c := &conns[i]
		var key strings.Builder
		fmt.Fprint(&key, c.job, " ", c.share)
		shared := false
		for _, a := range c.src.members {
			shared = shared || users[a] > 1
			for _, b := range c.dst.members {
				shared = shared || users[">"+b] > 1
				from, to := n.Graph.PeerOf(a), n.Graph.PeerOf(b)
				if from != "" && to != "" && n.sameSide(a, b) && n.usable(a) && n.usable(to) {
					fmt.Fprint(&key, " ", fabric.OwnerOf(from), ">", fabric.OwnerOf(to), ":", n.links[n.byEnd[a]].capacity, ":", n.links[n.byEnd[b]].capacity)
				} else {
					fmt.Fprint(&key, " -")
				}
			}
		}
		if shared {
			fmt.Fprint(&key, " only ", i)
		}
		if k, known := number[key.String()]; known {
			out[k].count++
			continue
		}
		number[key.String()] = len(out)
		out = append(out, class{job: c.job, count: 1, share: c.share, routes: n.shortest(c, middle)})
	}
	return out
}

// usable reports whether packets may leave by an end of a link.
func (n *Network) usable(from string) bool { return !n.excluded[n.byEnd[from]] }

// shortest returns the shortest paths of a connection that stay on their side and avoid what is excluded. known has the paths between pairs of leaves.
func (n *Network) shortest(c *connection, known map[[2]string][][]int32) (out []route) {
	for _, a := range c.src.members {
		for _, b := range c.dst.members {
			first, linked := n.byEnd[a]
			back, alsoLinked := n.byEnd[b]
			if !linked || !alsoLinked || !n.sameSide(a, b) {
				continue
			}
			last := n.byEnd[n.links[back].to]
			if n.excluded[first] || n.excluded[last] {
				continue
			}
			leafA, _ := n.Graph.LeafOf(a)
			leafB, _ := n.Graph.LeafOf(b)
			key := [2]string{leafA, leafB}
			paths, ok := known[key]
			if !ok {
				paths = n.between(a, b)
				known[key] = paths
			}
			for _, p := range paths {
				out = append(out, route{first, last, p})
			}
		}
	}
	return out
}

// between returns the links between leaves on the shortest paths from one NIC to another, without paths that use what is excluded.
func (n *Network) between(a, b string) (out [][]int32) {
	for _, p := range n.Graph.ShortestPaths(a, b, maxPaths) {
		links, ok := n.follow(nil, a, b, p)
		if !ok {
			continue
		}
		links = links[1 : len(links)-1]
		if !slices.ContainsFunc(links, func(l int32) bool { return n.excluded[l] }) {
			out = append(out, links)
		}
	}
	return out
}

// solve returns the lexicographic max-min rates of classes, or false if the program is too large.
func (n *Network) solve(classes []class, demand []float64) ([]float64, bool) {
	rowOf := map[[2]int32]int{} // of a link, or of an access link of a class
	var b []float64
	scale, vars := 0.0, 1
	for i := range n.links {
		scale = max(scale, n.links[i].capacity)
	}
	jobs := make([]bool, len(demand))
	for range classes {
		b = append(b, 0)
	}
	for k, c := range classes {
		jobs[c.job] = true
		vars += len(c.routes)
		for i := range c.routes {
			c.routes[i].links(func(l int32, access bool) {
				if key := c.rowKey(k, l, access); rowOf[key] == 0 {
					capacity := n.links[l].capacity
					if key[0] != 0 {
						capacity *= c.count
					}
					rowOf[key] = len(b)
					b = append(b, capacity/scale)
				}
			})
		}
	}
	demandRow := make([]int, len(demand))
	for j, d := range demand {
		if demandRow[j] = -1; jobs[j] && !math.IsInf(d, 1) {
			demandRow[j] = len(b)
			b = append(b, d/scale)
		}
	}
	if len(classes) == 0 || len(b)*(vars+len(b)+len(demand)) > maxCells {
		return nil, false
	}
	p := newProgram(vars, b)
	v := 1
	for k, c := range classes {
		for i := range c.routes {
			p.rows[k][v] = -1
			c.routes[i].links(func(l int32, access bool) { p.rows[rowOf[c.rowKey(k, l, access)]][v] = 1 })
			v++
		}
	}
	return p.lexicographic(classes, demandRow, scale)
}

// rowKey returns the key of the row of a link: connections that are alike have access links of their own.
func (c *class) rowKey(k int, l int32, access bool) [2]int32 {
	if access && c.count > 1 {
		return [2]int32{int32(k) + 1, l}
	}
	return [2]int32{0, l}
}

// lexicographic raises the rates of all jobs together as far as they can be raised, freezes those that cannot be raised
// further, and goes on with the others. A job cannot if the dual variable of one of its rows is above 0.
func (p *program) lexicographic(classes []class, demandRow []int, scale float64) ([]float64, bool) {
	rates := make([]float64, len(demandRow))
	frozen := make([]bool, len(demandRow))
	for j := range frozen {
		frozen[j] = true
	}
	for _, c := range classes {
		frozen[c.job] = false
	}
	level := 0.0
	for {
		raised := map[int]float64{}
		for k, c := range classes {
			if !frozen[c.job] {
				raised[k] = c.share * c.count
			}
		}
		for j, row := range demandRow {
			if !frozen[j] && row >= 0 {
				raised[row] = 1
			}
		}
		if len(raised) == 0 {
			return rates, true
		}
		column := p.addColumn(raised)
		more, reduced, ok := p.maximize(column)
		if !ok {
			return nil, false
		}
		level += more
		var stopped []int
		for k, c := range classes {
			tight := reduced[p.vars+k] > 1e-7 || demandRow[c.job] >= 0 && reduced[p.vars+demandRow[c.job]] > 1e-7
			if tight && !frozen[c.job] {
				stopped = append(stopped, c.job)
			}
		}
		if len(stopped) == 0 {
			return nil, false
		}
		for _, j := range stopped {
			rates[j], frozen[j] = level*scale, true
		}
	}
}
