package plan

import (
	"fmt"
	"math"
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
	job   int
	count float64 // of the connections
	share float64
	paths [][]int32 // links of the first connection; access links have count times their capacity
}

// idealRates returns the rates of jobs by the fractional optimum, lexicographic max-min over the shortest paths of the topology that stay
// on their side and avoid what is excluded. exact is false where the fabric is too large: the rates are then those of an even
// split over the paths, which the optimum may exceed.
func (n *Network) idealRates(conns []connection, demand []float64) (rates []float64, exact bool) {
	classes := n.classes(conns)
	load := make([][]jobLoad, len(n.links))
	for _, c := range classes {
		for _, p := range c.paths {
			for i, l := range p {
				w := c.share * c.count / float64(len(c.paths))
				if i == 0 || i == len(p)-1 {
					w /= c.count
				}
				load[l] = addLoad(load[l], c.job, w)
			}
		}
	}
	even, bound := maxMin(n.capacities(), load, demand), n.accessRates(conns, demand)
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

// accessRates returns the max-min rates that the access links alone would allow.
func (n *Network) accessRates(conns []connection, demand []float64) []float64 {
	number := map[string]int{}
	var capacity []float64
	var load [][]jobLoad
	for i := range conns {
		c := &conns[i]
		for _, u := range []struct {
			*unit
			way string
		}{{c.src, "from "}, {c.dst, "to "}} {
			at, known := number[u.way+u.id]
			if !known {
				at = len(capacity)
				number[u.way+u.id] = at
				sum := 0.0
				for _, m := range u.members {
					l, linked := n.byEnd[m]
					if u.way == "to " && linked {
						l = n.byEnd[n.links[l].to]
					}
					if linked && !n.excluded[l] {
						sum += n.links[l].capacity
					}
				}
				capacity, load = append(capacity, sum), append(load, nil)
			}
			load[at] = addLoad(load[at], c.job, c.share)
		}
	}
	return maxMin(capacity, load, demand)
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
	middle := map[[2]string][]fabric.Path{}
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
		out = append(out, class{job: c.job, count: 1, share: c.share, paths: n.shortest(c, middle)})
	}
	return out
}

// usable reports whether packets may leave by an end of a link.
func (n *Network) usable(from string) bool { return !n.excluded[n.byEnd[from]] }

// shortest returns the shortest paths of a connection that stay on their side and avoid what is excluded. known has the paths between pairs of leaves.
func (n *Network) shortest(c *connection, known map[[2]string][]fabric.Path) (out [][]int32) {
	for _, a := range c.src.members {
		for _, b := range c.dst.members {
			if !n.sameSide(a, b) {
				continue
			}
			leafA, portA := n.Graph.LeafOf(a)
			leafB, portB := n.Graph.LeafOf(b)
			key := [2]string{leafA, leafB}
			paths, ok := known[key]
			if !ok {
				paths = n.Graph.ShortestPaths(a, b, maxPaths)
				known[key] = paths
			}
			for _, p := range paths {
				own := append(fabric.Path(nil), p...)
				own[0].In, own[len(own)-1].Out = portA, portB
				links, ok := n.follow(nil, a, b, own)
				for _, l := range links {
					ok = ok && !n.excluded[l]
				}
				if ok {
					out = append(out, links)
				}
			}
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
		vars += len(c.paths)
		for _, p := range c.paths {
			for i, l := range p {
				if key := accessKey(k, i, p, c.count, l); rowOf[key] == 0 {
					capacity := n.links[l].capacity
					if key[0] != 0 {
						capacity *= c.count
					}
					rowOf[key] = len(b)
					b = append(b, capacity/scale)
				}
			}
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
		for _, path := range c.paths {
			p.rows[k][v] = -1
			for i, l := range path {
				p.rows[rowOf[accessKey(k, i, path, c.count, l)]][v] = 1
			}
			v++
		}
	}
	return p.lexicographic(classes, demandRow, scale)
}

// accessKey returns the key of the row of a link: connections that are alike have access links of their own.
func accessKey(k, i int, path []int32, count float64, l int32) [2]int32 {
	if count > 1 && (i == 0 || i == len(path)-1) {
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
