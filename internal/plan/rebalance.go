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

// oneMove is a queue pair that is moved, and the path that it had.
type oneMove struct{ q, from int32 }

// round moves queue pairs off the fullest links, and returns how many it has moved. Several links may be equally full: moves count
// together from the first one that is needed to the one that raises the worst rate by roundGain. Moves that do not raise it are
// taken back, and so are those without which the rate is the same.
func (b *balancer) round(number int) int {
	a := b.a
	most := max(1, int(roundShare*float64(len(a.choice))))
	var tried []oneMove
	useful, worst := 0, b.worst()
	for len(tried) < most {
		q, to, ok := b.bestMove(number, func(q int32) bool {
			return !slices.ContainsFunc(tried, func(m oneMove) bool { return m.q == q })
		})
		if !ok {
			break
		}
		tried = append(tried, oneMove{q, a.choice[q]})
		a.take(q)
		a.place(q, to)
		if now := b.worst(); now >= worst*(1+roundGain) {
			useful, worst = len(tried), now
		}
	}
	moved := 0
	for i := len(tried) - 1; i >= 0; i-- {
		m := tried[i]
		to := a.choice[m.q]
		a.take(m.q)
		a.place(m.q, m.from)
		if i < useful && b.worst() < worst*(1-slack) {
			a.take(m.q)
			a.place(m.q, to)
			b.last[m.q] = number
			moved++
		}
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
