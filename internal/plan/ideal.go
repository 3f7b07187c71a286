package plan

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Bounds of the exact search for the fractional optimum: cells of the program, and paths of one pair of NICs.
const (
	maxCells = 2_500_000
	maxWork  = 1_000_000_000 // cells that the program changes
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
	classes, whole := n.classes(conns)
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
	if whole {
		if rates, ok := n.solve(classes, demand, maxWork); ok {
			return rates, true
		}
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

// cuts are what the connections of a unit have to cross: its access links, and the links between its leaves and higher switches, both out of it and into
// it.
type cuts struct {
	leaves []string
	name   string   // of the leaves
	access [2]int32 // numbers of the cuts; 0 stands for none yet
	up     [2]int32
}

// cutRates returns the max-min rates that the access links and the uplinks of leaves would allow, if nothing else was in the way.
func (n *Network) cutRates(conns []connection, demand []float64) []float64 {
	var capacity []float64
	var load [][]jobLoad
	add := func(number *int32, c *connection, size func() float64) {
		if *number == 0 {
			capacity, load = append(capacity, size()), append(load, nil)
			*number = int32(len(capacity))
		}
		load[*number-1] = addLoad(load[*number-1], c.job, c.share)
	}
	of := map[*unit]*cuts{}
	up := map[string]*[2]int32{} // numbers of the cuts above leaves
	for i := range conns {
		c := &conns[i]
		var both [2]*cuts
		for k, u := range []*unit{c.src, c.dst} {
			if of[u] == nil {
				leaves := n.leavesOf(u)
				of[u] = &cuts{leaves: leaves, name: strings.Join(leaves, " ")}
			}
			both[k] = of[u]
		}
		apart := !slices.ContainsFunc(both[0].leaves, func(leaf string) bool { return slices.Contains(both[1].leaves, leaf) })
		for k, u := range []*unit{c.src, c.dst} {
			away, x := k == 0, both[k]
			add(&x.access[k], c, func() float64 { return n.widthOf(u.members, away) })
			if !apart {
				continue
			}
			if x.up[k] == 0 {
				if up[x.name] == nil {
					up[x.name] = &[2]int32{}
				}
				x.up[k] = up[x.name][k]
			}
			add(&x.up[k], c, func() float64 { return n.widthOf(n.upEnds(x.leaves), away) })
			up[x.name][k] = x.up[k]
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

// classes returns the commodities of connections. whole is false if they have more paths.
func (n *Network) classes(conns []connection) (out []class, whole bool) {
	whole = true
	users := make([]int32, len(n.links)) // connections by access link
	for i := range conns {
		for _, a := range conns[i].src.ends {
			if a.out >= 0 {
				users[a.out]++
			}
		}
		for _, b := range conns[i].dst.ends {
			if b.out >= 0 {
				users[b.out^1]++
			}
		}
	}
	middle := map[[2]int32]*pathList{} // between leaves, without paths that use what is excluded
	number := map[string]int{}
	var key []byte
	for i := range conns {
		c := &conns[i]
		key = binary.AppendUvarint(key[:0], uint64(c.job))
		key = binary.LittleEndian.AppendUint64(key, math.Float64bits(c.share))
		shared := false
		for k := range c.src.ends {
			a := &c.src.ends[k]
			shared = shared || a.out >= 0 && users[a.out] > 1
			for m := range c.dst.ends {
				b := &c.dst.ends[m]
				shared = shared || b.out >= 0 && users[b.out^1] > 1
				if !n.mayCarry(a, b) {
					key = append(key, '-')
					continue
				}
				key = binary.AppendUvarint(binary.AppendUvarint(append(key, '+'), uint64(a.leaf)), uint64(b.leaf))
				for _, l := range [2]int32{a.out, b.out} {
					key = binary.LittleEndian.AppendUint64(key, math.Float64bits(n.links[l].capacity))
				}
			}
		}
		if shared {
			key = binary.AppendUvarint(append(key, "only"...), uint64(i))
		}
		if k, known := number[string(key)]; known {
			out[k].count++
			continue
		}
		number[string(key)] = len(out)
		routes, all := n.shortest(c, middle)
		whole = whole && all
		out = append(out, class{job: c.job, count: 1, share: c.share, routes: routes})
	}
	return out, whole
}

// shortest returns the shortest paths of a connection that stay on their side and avoid what is excluded. known has the paths between pairs of
// leaves. whole is false if there are more.
func (n *Network) shortest(c *connection, known map[[2]int32]*pathList) (out []route, whole bool) {
	whole = true
	for k := range c.src.ends {
		a := &c.src.ends[k]
		for m := range c.dst.ends {
			b := &c.dst.ends[m]
			if !n.mayCarry(a, b) {
				continue
			}
			key, first, last := [2]int32{a.leaf, b.leaf}, a.out, b.out^1
			list := known[key]
			if list == nil {
				list = n.usablePaths(key)
				known[key] = list
			}
			whole = whole && list.whole
			out = slices.Grow(out, len(list.paths))
			for _, p := range list.paths {
				out = append(out, route{first, last, p})
			}
		}
	}
	return out, whole
}

// usablePaths returns the shortest paths between two leaves without those that use what is excluded.
func (n *Network) usablePaths(leaves [2]int32) *pathList {
	all := n.shortestBetween(leaves[0], leaves[1])
	out := &pathList{whole: all.whole}
	for _, links := range all.paths {
		if !slices.ContainsFunc(links, func(l int32) bool { return n.excluded[l] }) {
			out.paths = append(out.paths, links)
		}
	}
	return out
}

// solve returns the lexicographic max-min rates of classes, or false if the program is too large, or takes more work.
func (n *Network) solve(classes []class, demand []float64, work int) ([]float64, bool) {
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
	p := newProgram(vars, b, work)
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
