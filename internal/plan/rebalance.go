package plan

import (
	"math"
	"slices"
)

// Bounds of a round of rebalancing.
const (
	roundShare = 0.05 // of the queue pairs that a round moves at most, but one at least
	roundGain  = 0.02 // of the worst rate that a move gains at least
	restRounds = 10   // in which a queue pair is not moved again
)

// balancer moves queue pairs of running jobs, a few in each round.
type balancer struct {
	a      *allocation
	demand []float64
	last   []int // round in which each queue pair was moved
}

func newBalancer(a *allocation, demand []float64) *balancer {
	b := &balancer{a: a, demand: demand, last: make([]int, len(a.choice))}
	for q := range b.last {
		b.last[q] = -restRounds - 1
	}
	return b
}

// round moves queue pairs off the fullest links as long as the moves together raise the worst rate by roundGain for each, and returns how
// many it has moved. A set of moves that does not raise it is taken back.
func (b *balancer) round(number int) (moved int) {
	a := b.a
	most := max(1, int(roundShare*float64(len(a.choice))))
	type move struct{ q, from int32 }
	var tried []move
	worst := b.worst()
	for len(tried) < most {
		q, to, ok := b.bestMove(number, func(q int32) bool {
			return !slices.ContainsFunc(tried, func(m move) bool { return m.q == q })
		})
		if !ok {
			break
		}
		tried = append(tried, move{q, a.choice[q]})
		a.take(q)
		a.place(q, to)
		// Several links may be equally full: moves count together from the first one that is needed to the one that raises the rate.
		if now := b.worst(); now >= worst*(1+roundGain) {
			for _, m := range tried[moved:] {
				b.last[m.q] = number
			}
			moved, worst = len(tried), now
		}
	}
	for i := len(tried) - 1; i >= moved; i-- {
		a.take(tried[i].q)
		a.place(tried[i].q, tried[i].from)
	}
	return moved
}

func (b *balancer) worst() float64 {
	rates, _, _ := b.a.ratesNow(b.demand)
	return slices.Min(rates)
}

// bestMove returns the move of a queue pair from a fullest link that makes the links the least full. ok is false if none does.
func (b *balancer) bestMove(number int, may func(int32) bool) (qp, to int32, ok bool) {
	a := b.a
	worst := a.worst()
	least := -math.SmallestNonzeroFloat64
	for l := range a.load {
		if a.load[l]/a.capacity[l] < worst-slack {
			continue
		}
		qps := slices.Clone(a.on[l])
		slices.Sort(qps)
		for _, q := range qps {
			if number-b.last[q] <= restRounds || !may(q) {
				continue
			}
			from := a.choice[q]
			a.take(q)
			stay := a.costOf(q, from).powers
			for o := range a.options[a.connOf[q]] {
				c := a.costOf(q, int32(o))
				if gain := c.powers - stay; gain < least-slack && c.fullest < worst-slack {
					qp, to, least, ok = q, int32(o), gain, true
				}
			}
			a.place(q, from)
		}
		break
	}
	return qp, to, ok
}
