package triangulate

import (
	"math"
	"slices"
)

// Losses come in bursts: a queue that overflows drops packets that follow each other. Where they do, a flow's burst is one
// event, however many packets it took. The number of packets that a flow loses then has the distribution of Pólya and
// Aeppli: events as by Poisson, each of a geometric length. Its mean length is estimated from the flows of the window.

const (
	// leastBurst is the mean length from which bursts are taken into account. Without bursts the estimate is lower.
	leastBurst = 1.3
	// mostBurst bounds the estimate.
	mostBurst = 50
	// leastLossy is the number of lossy flows that an estimate needs.
	leastLossy = 8
	// mostEvents is the mean number of events of a flow up to which its losses say how long bursts are.
	mostEvents = 0.3
	// exactLosses is the number of lost packets up to which the distribution is evaluated. Beyond it the normal
	// approximation holds.
	exactLosses = 64
)

// estimateBurst returns the mean number of packets that are lost in one event, and 1 if losses are single ones. It is
// that of the flows that cross no place where more flows lose something than chance explains: most of these lose
// packets in one event only.
func estimateBurst(e *Engine, flows []flow, p Parameters) float64 {
	perHop := lossyRate(flows, func(int) bool { return true })
	if perHop == 0 {
		return 1
	}
	seen := sumEvidence(e.componentCount(), len(flows), func(out []evidence, i int) {
		fl := &flows[i]
		expected := -math.Expm1(-perHop * fl.exposure())
		lossy := 0.0
		if fl.lost > 0 {
			lossy = 1
		}
		for _, at := range fl.crossed {
			out[at].lost += lossy
			out[at].expected += expected
		}
	})
	standsOut := func(at component) bool { return seen[at].lossExcess() > p.MostExcess }
	return burstOf(flows, func(i int) bool { return !slices.ContainsFunc(flows[i].crossed, standsOut) })
}

// exposure returns how many packets of a flow could be lost, and on how many links.
func (fl *flow) exposure() float64 { return float64(fl.sent) * float64(fl.hops) }

// lossyRate returns the number of flows with a loss for each packet and link of the flows in use.
func lossyRate(flows []flow, use func(i int) bool) float64 {
	lossy, all := 0.0, 0.0
	for i := range flows {
		if fl := &flows[i]; use(i) {
			all += fl.exposure()
			if fl.lost > 0 {
				lossy++
			}
		}
	}
	return lossy / max(all, 1)
}

// burstOf returns the mean number of packets that clean flows lose in one event.
func burstOf(flows []flow, clean func(i int) bool) float64 {
	perHop := lossyRate(flows, clean)
	lossy, lost, events := 0, 0.0, 0.0
	for i := range flows {
		fl := &flows[i]
		mean := perHop * fl.exposure()
		if fl.lost == 0 || mean > mostEvents || !clean(i) {
			continue
		}
		lossy++
		lost += float64(fl.lost)
		events += mean / -math.Expm1(-mean) // of a flow that has one at least
	}
	if b := lost / events; lossy >= leastLossy && b >= leastBurst {
		return min(b, mostBurst)
	}
	return 1
}

// burstLL returns the log-likelihood of k > 0 lost packets by a mean number of events, up to a constant that depends on
// k alone.
func (m *model) burstLL(k uint64, events float64) float64 {
	events = max(events, 1e-12)
	// The sum over 1 to k events is Laguerre's polynomial of degree k-1 and order 1 at -x, times x/k.
	x := events / (m.burst - 1)
	sum, ratio := math.Log(x), 1.0
	for n := range k - 1 {
		if n == 0 {
			ratio = 2 + x
		} else {
			ratio = (float64(2*n+2)+x)/float64(n+1) - 1/ratio
		}
		sum += math.Log(ratio)
	}
	return sum - events
}

// bestBurstLL returns the largest log-likelihood of k lost packets of n by any number of events.
func (m *model) bestBurstLL(k, n uint64) float64 {
	low, high := math.Log(0.1), math.Log(float64(n)/m.burst+1)
	for range 24 { // the likelihood has one maximum
		a, b := low+(high-low)/3, high-(high-low)/3
		if m.burstLL(k, math.Exp(a)) < m.burstLL(k, math.Exp(b)) {
			low = a
		} else {
			high = b
		}
	}
	return m.burstLL(k, math.Exp((low+high)/2))
}
