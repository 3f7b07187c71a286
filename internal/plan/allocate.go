package plan

import (
	"cmp"
	"math"
	"slices"
)

// allocation assigns a path to each queue pair of some connections.
type allocation struct {
	net      *Network
	conns    []connection
	options  [][]option // of each connection
	reasons  []Reason
	rates    []float64 // what each job aims at, Gb/s
	first    []int     // number of the first queue pair of each connection; one more than connections
	connOf   []int32
	choice   []int32       // option of each queue pair, or -1
	before   []int32       // option that a previous plan had, or -1
	previous []*Assignment // of a previous plan, or nil
	moved    int           // queue pairs that are elsewhere than before, though they need not be
	mayMove  int           // most of them
	load     []float64
	capacity []float64
	on       [][]int32 // queue pairs on each link
	steps    int       // options that may still be tried
}

// weight returns what a queue pair puts on its links, in Gb/s, when its job has the rate that it aims at.
func (a *allocation) weight(qp int32) float64 {
	c := &a.conns[a.connOf[qp]]
	return a.rates[c.job] * c.share / float64(c.qps)
}

// newAllocation returns an allocation in which no queue pair has a path yet.
func newAllocation(n *Network, c *Catalogue, conns []connection, rates []float64, steps int) *allocation {
	total := 0
	for i := range conns {
		total += conns[i].qps
	}
	a := &allocation{net: n, conns: conns, rates: rates, connOf: make([]int32, 0, total), first: make([]int, 0, len(conns)+1), options: make([][]option, 0, len(conns)), capacity: n.capacities(), load: make([]float64, len(n.links)), on: make([][]int32, len(n.links)), steps: steps, mayMove: math.MaxInt}
	for i := range conns {
		options, why := c.options(&conns[i], false)
		a.options, a.reasons = append(a.options, options), append(a.reasons, why)
		a.first = append(a.first, len(a.connOf))
		for range conns[i].qps {
			a.connOf = append(a.connOf, int32(i))
		}
	}
	a.first = append(a.first, len(a.connOf))
	a.choice, a.before = make([]int32, len(a.connOf)), make([]int32, len(a.connOf))
	for q := range a.choice {
		a.choice[q], a.before[q] = -1, -1
	}
	return a
}

// reserve makes room for the queue pairs on each link, of an allocation that is placed next, and for a few more.
func (a *allocation) reserve(choice []int32) {
	const more = 2
	count, total := make([]int, len(a.on)), 0
	for q, o := range choice {
		if o >= 0 {
			for _, l := range a.options[a.connOf[q]][o].links {
				count[l]++
				total++
			}
		}
	}
	room := make([]int32, total+more*len(a.on))
	for l, n := range count {
		a.on[l], room = room[:0:n+more], room[n+more:]
	}
}

// place puts a queue pair on an option, and take takes it off.
func (a *allocation) place(qp, option int32) {
	w := a.weight(qp)
	for _, l := range a.options[a.connOf[qp]][option].links {
		a.load[l] += w
		a.on[l] = append(a.on[l], qp)
	}
	a.choice[qp] = option
	if a.before[qp] >= 0 && a.before[qp] != option {
		a.moved++
	}
}

func (a *allocation) take(qp int32) {
	w := a.weight(qp)
	for _, l := range a.options[a.connOf[qp]][a.choice[qp]].links {
		a.load[l] -= w
		at := slices.Index(a.on[l], qp)
		a.on[l][at] = a.on[l][len(a.on[l])-1]
		a.on[l] = a.on[l][:len(a.on[l])-1]
	}
	if a.before[qp] >= 0 && a.before[qp] != a.choice[qp] {
		a.moved--
	}
	a.choice[qp] = -1
}

// power returns a high power of an utilisation, and much more beyond the capacity: sums of it are ruled by the fullest links,
// and a link may be filled up to its capacity if this relieves one that is beyond it.
func power(u float64) float64 {
	x := 0.0
	if u > 1 {
		x = 1e4 * (u - 1) * (u - 1)
	}
	u *= u
	u *= u
	u *= u
	return u*u + x
}

// cost is what an option would add: the utilisation of its fullest link, and what it adds to the sums of powers and squares.
type cost struct{ fullest, powers, squares float64 }

func (a *allocation) costOf(qp, option int32) (c cost) {
	w := a.weight(qp)
	for _, l := range a.options[a.connOf[qp]][option].links {
		u, v := a.load[l]/a.capacity[l], (a.load[l]+w)/a.capacity[l]
		c.fullest = max(c.fullest, v)
		c.powers += power(v) - power(u)
		c.squares += v*v - u*u
	}
	a.steps--
	return c
}

const slack = 1e-9 // differences of utilisations that do not count

func (c cost) less(d cost) bool {
	if math.Abs(c.fullest-d.fullest) > slack {
		return c.fullest < d.fullest
	}
	return c.squares < d.squares-slack
}

// fill places the queue pairs that have no path, those of the connections with the fewest paths first. Each one gets the
// path whose fullest link is the least full; then the sum of squares counts.
func (a *allocation) fill() {
	order := make([]int, len(a.conns))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(len(a.options[x]), len(a.options[y])) })
	for _, c := range order {
		for q := a.first[c]; q < a.first[c+1]; q++ {
			if a.choice[q] >= 0 || len(a.options[c]) == 0 {
				continue
			}
			best, least := int32(-1), cost{}
			for o := range a.options[c] {
				if x := a.costOf(int32(q), int32(o)); best < 0 || x.less(least) {
					best, least = int32(o), x
				}
			}
			a.place(int32(q), best)
		}
	}
}

// worst returns the utilisation of the fullest link.
func (a *allocation) worst() (u float64) {
	for l, x := range a.load {
		u = max(u, x/a.capacity[l])
	}
	return u
}

// overfull returns the links that are fuller than their capacity, the fullest first.
func (a *allocation) overfull() (out []int32) {
	for l := range a.load {
		if a.isOverfull(int32(l)) {
			out = append(out, int32(l))
		}
	}
	slices.SortStableFunc(out, func(x, y int32) int { return cmp.Compare(a.load[y]/a.capacity[y], a.load[x]/a.capacity[x]) })
	return out
}

func (a *allocation) isOverfull(l int32) bool { return a.load[l] > a.capacity[l]*(1+slack) }

// improve goes over the links that are fuller than their capacity in rounds, and moves a queue pair off each. Where no move
// helps, it swaps two. It ends when no link is too full, nothing helps any more, or the steps are used up.
func (a *allocation) improve() {
	for a.steps > 0 {
		links, helped := a.overfull(), false
		for _, help := range []func(int32) bool{a.relieve, a.swap} {
			for _, l := range links {
				if a.steps > 0 && a.isOverfull(l) && help(l) {
					helped = true
				}
			}
			if helped {
				break
			}
		}
		if !helped {
			return
		}
	}
}

// restore puts all queue pairs on paths that they had, with the loads of the rates that the jobs aim at now.
func (a *allocation) restore(choice []int32) {
	for l := range a.on {
		a.on[l], a.load[l] = a.on[l][:0], 0
	}
	a.moved = 0
	for q, o := range choice {
		if a.choice[q] = -1; o >= 0 {
			a.place(int32(q), o)
		}
	}
}

// relieve moves one queue pair from a link, if this makes the sum of powers less.
func (a *allocation) relieve(l int32) bool {
	best, to, least := int32(-1), int32(-1), -slack
	for _, q := range a.distinctOn(l) {
		if !a.mayBeMoved(q) {
			continue
		}
		from := a.choice[q]
		a.take(q)
		stay := a.costOf(q, from).powers
		for o := range a.options[a.connOf[q]] {
			if gain := a.costOf(q, int32(o)).powers - stay; gain < least {
				best, to, least = q, int32(o), gain
			}
		}
		a.place(q, from)
	}
	if best < 0 {
		return false
	}
	a.take(best)
	a.place(best, to)
	return true
}

// swap moves one queue pair from a link and another one out of its way, if this makes the sum of powers less.
func (a *allocation) swap(l int32) bool {
	for _, q := range a.distinctOn(l) {
		if a.steps > 0 && a.mayBeMoved(q) && a.displace(q) {
			return true
		}
	}
	return false
}

// distinctOn returns the queue pairs on a link by their numbers. Of those that are alike it returns the first one: they belong to one connection, and have one
// path now and had one before.
func (a *allocation) distinctOn(l int32) []int32 {
	qps := slices.Clone(a.on[l])
	slices.Sort(qps)
	return slices.CompactFunc(qps, func(p, q int32) bool {
		return a.connOf[p] == a.connOf[q] && a.choice[p] == a.choice[q] && a.before[p] == a.before[q]
	})
}

// mayBeMoved reports whether a queue pair may leave its path.
func (a *allocation) mayBeMoved(q int32) bool {
	return a.before[q] < 0 || a.choice[q] != a.before[q] || a.moved < a.mayMove
}

// displace puts a queue pair on another path and moves one that is there elsewhere, if this makes the sum of powers less.
func (a *allocation) displace(q int32) bool {
	from := a.choice[q]
	for o := range a.options[a.connOf[q]] {
		if int32(o) == from || a.steps <= 0 {
			continue
		}
		a.take(q)
		saved := a.costOf(q, from).powers
		added := a.costOf(q, int32(o)).powers
		a.place(q, int32(o))
		links := a.options[a.connOf[q]][o].links
		for _, l := range links {
			if !a.isOverfull(l) {
				continue
			}
			for _, r := range a.distinctOn(l) {
				if r == q || !a.mayBeMoved(r) {
					continue
				}
				was := a.choice[r]
				a.take(r)
				back := a.costOf(r, was).powers
				for p := range a.options[a.connOf[r]] {
					if a.costOf(r, int32(p)).powers-back+added-saved < -slack {
						a.place(r, int32(p))
						return true
					}
				}
				a.place(r, was)
			}
		}
		a.take(q)
		a.place(q, from)
	}
	return false
}

// ratesNow returns the rates of the jobs by the model, and what each link carries.
func (a *allocation) ratesNow(demand []float64) (rates, carried []float64, qps []int) {
	load := make([][]jobLoad, len(a.load))
	qps = make([]int, len(a.load))
	for q, o := range a.choice {
		if o < 0 {
			continue
		}
		c := &a.conns[a.connOf[q]]
		for _, l := range a.options[a.connOf[q]][o].links {
			load[l] = addLoad(load[l], c.job, c.share/float64(c.qps))
			qps[l]++
		}
	}
	rates = maxMin(a.capacity, load, demand)
	carried = make([]float64, len(a.load))
	for l, jobs := range load {
		for _, j := range jobs {
			carried[l] += j.weight * rates[j.job]
		}
	}
	return rates, carried, qps
}

// Exact search is done where it takes at most this many allocations, and the steps suffice.
const maxExact = 1 << 13

// exact tries all allocations, if there are few, and keeps the best one: the lowest rates count first, then the fullest
// links, then the number of moved queue pairs. It returns false if there are too many.
func (a *allocation) exact(demand []float64) bool {
	total := 1
	for c := range a.conns {
		k, q := len(a.options[c]), a.conns[c].qps
		// Queue pairs of one connection may be exchanged: multisets of q out of k.
		for i := 1; i <= q && total <= maxExact && k > 0; i++ {
			total = total * (k + i - 1) / i
		}
		if total > maxExact || total*len(a.choice) > a.steps {
			return false
		}
	}
	for q := range a.choice {
		if a.choice[q] >= 0 {
			a.take(int32(q))
		}
	}
	var best []int32
	var bestRates, bestLoads []float64
	var try func(q int)
	try = func(q int) {
		if q == len(a.choice) {
			rates, carried, _ := a.ratesNow(demand)
			slices.Sort(rates)
			for l := range carried {
				carried[l] /= a.capacity[l]
			}
			slices.SortFunc(carried, func(x, y float64) int { return cmp.Compare(y, x) })
			if best != nil {
				order := compareRates(rates, bestRates)
				if order == 0 {
					order = -compareRates(carried, bestLoads)
				}
				if order <= 0 {
					return
				}
			}
			best, bestRates, bestLoads = slices.Clone(a.choice), rates, carried
			return
		}
		c := a.connOf[q]
		from := int32(0)
		if q > a.first[c] {
			from = max(from, a.choice[q-1])
		}
		if len(a.options[c]) == 0 {
			try(q + 1)
		}
		for o := from; int(o) < len(a.options[c]); o++ {
			a.choice[q] = o
			try(q + 1)
			a.choice[q] = -1
		}
	}
	try(0)
	for q, o := range best {
		if o >= 0 {
			a.place(int32(q), o)
		}
	}
	return true
}

// compareRates compares two sorted lists of numbers lexicographically, and takes close ones for equal.
func compareRates(a, b []float64) int {
	for i := range a {
		if d := a[i] - b[i]; math.Abs(d) > slack*(1+math.Abs(b[i])) {
			return cmp.Compare(d, 0)
		}
	}
	return 0
}
