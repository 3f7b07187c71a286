package plan

import "slices"

// Bounds of refine, beside the steps that are left. It counts a step for each path that is tried and, for an allocation whose rates are computed or that it
// begins at, one for each queue pair.
const (
	refineSteps  = 3_000_000
	refinements  = 6  // how often a rate is tried that may be out of reach
	randomStarts = 16 // allocations at random
)

// search is the state of refine: the best allocation so far, and its rates in ascending order.
type search struct {
	a      *allocation
	demand []float64
	best   []int32
	rates  []float64
}

// refine searches further where jobs have less than they aim at, as with catalogues that lack paths. They then aim at the optimum over the paths of the
// catalogue, which may also be more: a job that lacks paths leaves capacity to others. The search begins at the best allocation, at none, and at
// allocations at random. Then it looks for the highest rate that all jobs can have.
func (a *allocation) refine(demand []float64) {
	now, _, _ := a.ratesNow(demand)
	short := func() bool {
		for j, rate := range now {
			if rate < a.rates[j]*goodEnough {
				return true
			}
		}
		return false
	}
	if !short() {
		return
	}
	wanted := slices.Clone(a.rates)
	a.steps = min(a.steps, refineSteps)
	if a.lacksPaths() {
		if most, ok := a.attainable(demand); ok {
			for j, rate := range most {
				if rate > 0 {
					a.rates[j] = rate
				}
			}
		}
	}
	if short() {
		s := &search{a: a, demand: demand}
		s.keepBest()
		s.from(s.best)
		s.from(s.nothing())
		s.fromRandom()
		s.raiseLowest()
		copy(a.rates, wanted)
		a.restore(s.best)
		return
	}
	copy(a.rates, wanted)
	a.restore(slices.Clone(a.choice))
}

// keepBest keeps the allocation as it is now, if it has better rates than the best one.
func (s *search) keepBest() {
	s.a.steps -= len(s.a.choice)
	now, _, _ := s.a.ratesNow(s.demand)
	if rates := sortedRates(now); s.best == nil || compareRates(rates, s.rates) > 0 {
		s.best, s.rates = slices.Clone(s.a.choice), rates
	}
}

// nothing returns an allocation without any path.
func (s *search) nothing() []int32 { return slices.Repeat([]int32{-1}, len(s.a.choice)) }

// from begins at an allocation and improves it, for the rates that the jobs aim at now. It does nothing if too few steps are left.
func (s *search) from(start []int32) {
	a := s.a
	need := 2 * len(start)
	for q, o := range start {
		if o < 0 {
			need += len(a.options[a.connOf[q]])
		}
	}
	if need > a.steps {
		return
	}
	a.steps -= len(start)
	a.restore(start)
	a.fill()
	a.improve()
	s.keepBest()
}

// fromRandom begins at allocations at random.
func (s *search) fromRandom() {
	a := s.a
	start := s.nothing()
	for n := range randomStarts {
		for q := range start {
			if k := len(a.options[a.connOf[q]]); k > 0 {
				start[q] = int32(mix(mix(uint64(n))^uint64(q)) % uint64(k))
			}
		}
		s.from(start)
	}
}

// raiseLowest looks for the highest rate that all jobs can have which aim at more, by halving an interval.
func (s *search) raiseLowest() {
	a := s.a
	aim := slices.Clone(a.rates)
	low, high := s.rates[0], slices.Max(aim)
	for n := 0; n < refinements && a.steps > 0 && high > low*(1+slack); n++ {
		level := (low + high) / 2
		for j := range aim {
			a.rates[j] = min(aim[j], level)
		}
		if s.from(s.best); s.rates[0] < level*(1-slack) {
			s.from(s.nothing())
		}
		if low = max(low, s.rates[0]); low < level*(1-slack) {
			high = level
		}
	}
}

// lacksPaths reports whether the catalogue has not all shortest paths of some connection that has at least one.
func (a *allocation) lacksPaths() bool {
	known := map[[2]int32]*pathList{}
	for i := range a.conns {
		if k := len(a.options[i]); k > 0 {
			if routes, _ := a.net.shortest(&a.conns[i], known); k < len(routes) {
				return true
			}
		}
	}
	return false
}

// attainableWork bounds the program for the optimum over the catalogue, in cells.
const attainableWork = 50_000_000

// attainable returns the rates of the fractional optimum over the paths of the catalogue, or false if the program is too large.
func (a *allocation) attainable(demand []float64) ([]float64, bool) {
	var classes []class
	for i := range a.conns {
		k := class{job: a.conns[i].job, count: 1, share: a.conns[i].share}
		for _, o := range a.options[i] {
			last := len(o.links) - 1
			k.routes = append(k.routes, route{o.links[0], o.links[last], o.links[1:last]})
		}
		if len(k.routes) > 0 {
			classes = append(classes, k)
		}
	}
	return a.net.solve(classes, demand, attainableWork)
}

func sortedRates(rates []float64) []float64 {
	out := slices.Clone(rates)
	slices.Sort(out)
	return out
}
